"""Turns: so many bytes at a time, first come, first served, and nothing is lost by those who leave."""

import asyncio

import pytest

from lucius.api.turns import Turns


class Queue:
    """Workers that each hold a turn until they are let go."""

    def __init__(self, bytes_at_once: int, commands_at_once: int) -> None:
        self.turns = Turns(bytes_at_once, commands_at_once)
        self.begun: list[str] = []
        self._go: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, name: str, size: int) -> None:
        self._go[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(self._work(name, size))
        await self._settle()

    async def _work(self, name: str, size: int) -> None:
        async with self.turns.turn(size):
            self.begun.append(name)
            await self._go[name].wait()

    async def end(self, name: str) -> None:
        self._go[name].set()
        await self._settle()

    async def leave(self, *names: str) -> None:
        for name in names:
            self._tasks[name].cancel()
        await self._settle()

    async def _settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


async def test_so_many_bytes_at_a_time_and_in_their_order() -> None:
    queue = Queue(100, 10)
    for name, size in (("a", 60), ("b", 40), ("c", 50), ("d", 1)):
        await queue.come(name, size)
    assert queue.begun == ["a", "b"], "the small one does not overtake"
    await queue.end("b")
    assert queue.begun == ["a", "b"]
    await queue.end("a")
    assert queue.begun == ["a", "b", "c", "d"]


async def test_so_many_commands_at_a_time_and_a_large_one_alone() -> None:
    queue = Queue(100, 2)
    for name, size in (("a", 1), ("b", 1), ("c", 1), ("large", 1_000), ("d", 1)):
        await queue.come(name, size)
    assert queue.begun == ["a", "b"]
    for name in ("a", "b"):
        await queue.end(name)
    assert queue.begun == ["a", "b", "c"]
    await queue.end("c")
    assert queue.begun[-1] == "large"
    await queue.end("large")
    assert queue.begun[-1] == "d"


@pytest.mark.parametrize("leaving", [("b",), ("a",), ("a", "b")])
async def test_those_who_leave_give_their_turn_on(leaving: tuple[str, ...]) -> None:
    queue = Queue(100, 1)
    for name in ("a", "b", "c"):
        await queue.come(name, 10)
    await queue.leave(*leaving)
    for name in ("a", "b"):
        await queue.end(name)
    assert queue.begun[-1] == "c"
    await queue.end("c")
    await queue.come("d", 100)
    assert queue.begun[-1] == "d"
