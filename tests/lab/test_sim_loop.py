"""The loop of a simulation: asyncio works on it, time is virtual, the seed decides, the dead stay dead."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from lucius_lab.sim.loop import Exhausted, Process, SimLoop

START_MS = 1_000_000


def play(main: Coroutine[Any, Any, None], loop: SimLoop, *, seconds_max: float = 1e9) -> None:
    loop.run(main, steps_max=100_000, seconds_max=seconds_max)


def test_a_day_passes_in_a_few_steps() -> None:
    loop = SimLoop(1, start_ms=START_MS)

    async def main() -> None:
        await asyncio.sleep(86_400)

    play(main(), loop)
    assert loop.now_ms() == START_MS + 86_400_000
    assert loop.steps < 10


def test_timeouts_events_locks_queues_gather_and_threads_work() -> None:
    loop = SimLoop(2, start_ms=START_MS)
    seen: list[Any] = []

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 5)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await asyncio.sleep(1)
        queue: asyncio.Queue[int] = asyncio.Queue(maxsize=1)
        lock = asyncio.Lock()

        async def put(number: int) -> None:
            async with lock:
                await queue.put(number)

        async with asyncio.TaskGroup() as group:
            for number in range(5):
                group.create_task(put(number))
            seen.append(sorted([await queue.get() for _ in range(5)]))
        seen.append(await asyncio.gather(asyncio.sleep(2, "late"), asyncio.sleep(1, "soon")))
        seen.append(await asyncio.to_thread(sum, [1, 2, 3]))

    play(main(), loop)
    assert seen == [[0, 1, 2, 3, 4], ["late", "soon"], 6]
    assert 7 <= loop.time() < 7.1


def order_of(seed: int) -> list[int]:
    loop = SimLoop(seed, start_ms=START_MS)
    order: list[int] = []

    async def note(number: int) -> None:
        order.append(number)

    async def main() -> None:
        await asyncio.gather(*(note(number) for number in range(8)))

    play(main(), loop)
    return order


def test_the_seed_decides_the_order() -> None:
    assert order_of(5) == order_of(5)
    assert len({tuple(order_of(seed)) for seed in range(10)}) > 5


def test_what_raises_is_raised() -> None:
    async def main() -> None:
        raise LookupError("no")

    with pytest.raises(LookupError, match="no"):
        play(main(), SimLoop(1, start_ms=START_MS))


def test_steps_and_time_are_bounded() -> None:
    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    async def stuck() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Exhausted, match="more than 100000 steps"):
        play(spin(), SimLoop(1, start_ms=START_MS))
    with pytest.raises(Exhausted, match="nothing will ever happen"):
        play(stuck(), SimLoop(1, start_ms=START_MS))
    with pytest.raises(Exhausted, match="virtual time"):
        play(asyncio.sleep(20), SimLoop(1, start_ms=START_MS), seconds_max=10)


def test_a_process_that_died_never_goes_on() -> None:
    loop = SimLoop(3, start_ms=START_MS)
    process = Process(loop, "p", 1)
    seen: list[str] = []

    async def child() -> None:
        try:
            await asyncio.sleep(2)
            seen.append("went on")
        finally:
            seen.append("put away")
            await asyncio.sleep(0)
            seen.append("waited in finally")

    async def parent() -> None:
        loop.call_later(2, seen.append, "timer")
        await asyncio.gather(child(), child())

    async def main() -> None:
        process.spawn(parent())
        await asyncio.sleep(1)
        loop.kill(process)
        await asyncio.sleep(10)

    play(main(), loop)
    assert seen == ["put away", "put away"]
    assert process.dead


def test_a_process_can_die_by_its_own_hand() -> None:
    loop = SimLoop(3, start_ms=START_MS)
    process = Process(loop, "p", 1)
    seen: list[str] = []

    async def suicide() -> None:
        loop.kill(process)
        await loop.never()
        seen.append("went on")

    async def main() -> None:
        process.spawn(suicide())
        await asyncio.sleep(5)

    play(main(), loop)
    assert seen == []


def test_a_fault_that_nobody_lived_to_see_is_not_reported_and_others_are() -> None:
    loop = SimLoop(3, start_ms=START_MS)
    process = Process(loop, "p", 1)
    heard: list[str] = []
    loop.on_fault = lambda message, fault: heard.append(str(fault))

    async def fail(text: str) -> None:
        raise LookupError(text)

    async def parent() -> None:
        failed = asyncio.create_task(fail("unseen"))
        await asyncio.sleep(5)
        await failed

    async def main() -> None:
        process.spawn(parent())
        await asyncio.sleep(1)
        loop.kill(process)
        lost = asyncio.create_task(fail("lost"))
        await asyncio.sleep(1)
        del lost

    play(main(), loop)
    assert heard == ["lost"]


def test_a_frozen_process_does_everything_late() -> None:
    loop = SimLoop(4, start_ms=START_MS)
    frozen, other = Process(loop, "f", 1), Process(loop, "o", 2)
    frozen.frozen_until = 30.0
    times: dict[str, float] = {}

    async def note(name: str) -> None:
        await asyncio.sleep(1)
        times[name] = loop.time()

    async def main() -> None:
        await asyncio.gather(frozen.spawn(note("frozen")), other.spawn(note("other")))

    play(main(), loop)
    assert times == {"other": 1.0, "frozen": 31.0}


def test_a_process_that_is_frozen_again_does_not_go_on_earlier() -> None:
    """A second standstill ended the first: some of the process went on, and some slept until the first was
    over. The watch, which knew the first, found that deadlines counted too early (I16, seed 1000594)."""
    loop = SimLoop(4, start_ms=START_MS)
    frozen = Process(loop, "f", 1)
    times: list[float] = []

    async def note(seconds: float) -> None:
        await asyncio.sleep(seconds)
        times.append(loop.time())

    async def main() -> None:
        notes = [frozen.spawn(note(seconds)) for seconds in (3, 5)]
        await asyncio.sleep(2)
        frozen.freeze(10)
        await asyncio.sleep(2)
        frozen.freeze(4)
        assert (frozen.frozen_from, frozen.frozen_until) == (2.0, 12.0)
        frozen.freeze(16)
        assert (frozen.frozen_from, frozen.frozen_until) == (2.0, 20.0)
        await asyncio.gather(*notes)
        await asyncio.sleep(1)
        frozen.freeze(1)
        assert (frozen.frozen_from, frozen.frozen_until) == (21.0, 22.0)

    play(main(), loop)
    assert times == [20.0, 20.0]


def test_each_process_has_a_clock_of_its_own() -> None:
    loop = SimLoop(4, start_ms=START_MS)
    late = Process(loop, "late", 1, offset_ms=-1_500)

    play(asyncio.sleep(2.5), loop)
    assert (loop.now_ms(), late.now_ms()) == (START_MS + 2_500, START_MS + 1_000)


@pytest.mark.parametrize("seed", range(8))
def test_a_timer_may_be_cancelled_until_the_moment_it_runs(seed: int) -> None:
    """Two timers of the same moment, each of which cancels the other: whichever is first runs alone."""
    loop = SimLoop(seed, start_ms=START_MS)
    rang: list[int] = []
    timers: list[Any] = []

    def ring(which: int) -> None:
        rang.append(which)
        timers[1 - which].cancel()

    async def main() -> None:
        timers.extend(loop.call_later(1, ring, which) for which in (0, 1))
        await asyncio.sleep(2)

    play(main(), loop)
    assert rang in ([0], [1])


def test_a_timer_of_a_frozen_process_may_be_cancelled() -> None:
    loop = SimLoop(4, start_ms=START_MS)
    frozen = Process(loop, "f", 1)
    rang: list[str] = []

    async def main() -> None:
        timer = loop.call_later(1, rang.append, "late", context=frozen.context)
        frozen.frozen_until = 30.0
        await asyncio.sleep(5)
        timer.cancel()
        await asyncio.sleep(50)

    play(main(), loop)
    assert rang == []


def told_by_two(seed: int, *, spied: bool) -> tuple[list[tuple[str, int, float]], int]:
    """What two processes do that wait now alone, now side by side."""
    loop = SimLoop(seed, start_ms=START_MS)
    seen: list[tuple[str, int, float]] = []
    if spied:
        loop.before_step = lambda process: None

    async def live(name: str, seconds: float) -> None:
        for number in range(40):
            await loop.pause(seconds if number % 3 else 0.002)
            seen.append((name, number, loop.time()))

    async def main() -> None:
        tasks = [
            Process(loop, name, index).spawn(live(name, seconds))
            for index, (name, seconds) in enumerate((("quick", 0.01), ("slow", 0.35)))
        ]
        for task in tasks:
            await task

    play(main(), loop)
    return seen, loop.steps


@pytest.mark.parametrize("seed", range(5))
def test_a_pause_that_nothing_can_disturb_is_over_at_once_and_changes_nothing(seed: int) -> None:
    """A spied loop goes the long way for each of them."""
    assert told_by_two(seed, spied=False) == told_by_two(seed, spied=True)


def test_nobody_goes_on_after_a_pause_who_died_or_was_halted_before_it() -> None:
    loop = SimLoop(9, start_ms=START_MS)
    seen: list[str] = []

    async def dies(process: Process) -> None:
        loop.kill(process)
        await loop.pause(0.001)
        seen.append("the dead went on")

    async def halts() -> None:
        await loop.pause(1.0)
        loop.halt()
        await loop.pause(0.001)
        seen.append("the halted went on")

    async def main() -> None:
        process = Process(loop, "mortal", 1)
        process.spawn(dies(process))
        await halts()

    play(main(), loop)
    assert seen == []
    assert loop.time() == 1.0


def test_pauses_that_nothing_disturbs_are_bounded_too() -> None:
    async def for_ever(loop: SimLoop, seconds: float) -> None:
        while True:
            await loop.pause(seconds)

    for seconds in (0.0, 1.0):
        loop = SimLoop(10, start_ms=START_MS)
        with pytest.raises(Exhausted):
            play(for_ever(loop, seconds), loop, seconds_max=500.0)
        assert loop.time() <= 500.0


def test_a_timeout_whose_time_is_over_when_it_begins_may_still_end_in_time() -> None:
    """What asks for an answer after its deadline, and has it at once."""
    loop = SimLoop(3, start_ms=START_MS)

    async def main() -> None:
        async with asyncio.timeout_at(loop.time()):
            pass
        await asyncio.sleep(1)  # the timeout's own call would come now

    play(main(), loop)
