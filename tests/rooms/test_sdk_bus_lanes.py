"""Many lanes read at once: turns, room, waits, faults, and what is let go."""

import asyncio
from collections import Counter

import pytest

from lucius.bus.memory import MemoryBus, MemoryLimits, MemoryReceiver
from lucius.bus.port import BusUnavailable, Delivery, DirectiveOut
from lucius.core.routing import LANES
from lucius.sdk.bus_lanes import LaneReader

ALL = range(LANES)


class CountedReceiver(MemoryReceiver):
    """Counts what a broker would have to answer, and fails on demand."""

    lane: int
    house: "House"

    async def receive(self, *, messages_max: int, wait_ms: int) -> list[Delivery]:
        self.house.calls[self.lane] += 1
        if self.lane in self.house.broken:
            raise BusUnavailable("this lane is broken")
        return await super().receive(messages_max=messages_max, wait_ms=wait_ms)


class House:
    def __init__(self, lanes: range = ALL, *, hold_seconds: float = 0.05) -> None:
        self.bus = MemoryBus(now_ms=lambda: 0, limits=MemoryLimits(deliveries_max=3))
        self.calls: Counter[int] = Counter()
        self.opened: Counter[int] = Counter()
        self.broken: set[int] = set()
        self.reader = LaneReader(self._open, lanes, hold_seconds=hold_seconds)

    async def _open(self, lane: int) -> CountedReceiver:
        self.opened[lane] += 1
        receiver = await self.bus.directives("ocr", lane)
        receiver.__class__ = CountedReceiver
        assert isinstance(receiver, CountedReceiver)
        receiver.lane, receiver.house = lane, self
        return receiver

    async def give(self, lane: int, count: int = 1) -> None:
        for number in range(count):
            name = f"{lane}.{number}"
            out = DirectiveOut(service="ocr", lane=lane, message_key="k", message_id=name, body=b"{}")
            await self.bus.publish_directive(out)

    async def take(self, messages_max: int, wait_seconds: float = 0.0) -> list[int]:
        """The lanes of what came; all of it is settled."""
        taken = await self.reader.take(messages_max=messages_max, wait_seconds=wait_seconds)
        for receiver, delivery in taken:
            await receiver.complete(delivery)
        return [delivery.lane for _, delivery in taken]

    def depth(self) -> int:
        return sum(self.bus.directive_depth("ocr", lane) for lane in ALL)


async def test_lanes_take_turns() -> None:
    house = House()
    for lane in (2, 5, 9):
        await house.give(lane, 30)
    got = Counter([lane for _ in range(30) for lane in await house.take(1)])
    assert got == {2: 10, 5: 10, 9: 10}
    assert Counter(await house.take(6)) == {2: 2, 5: 2, 9: 2}
    await house.reader.close()


async def test_a_lone_lane_gets_all_the_room_and_costs_one_call() -> None:
    house = House()
    await house.give(4, 100)
    assert await house.take(10) == [4] * 10
    house.calls.clear()
    for _ in range(5):
        assert await house.take(10) == [4] * 10
    assert house.calls == {4: 5}
    await house.reader.close()


async def test_nothing_is_locked_that_was_not_asked_for() -> None:
    house = House()
    for lane in ALL:
        await house.give(lane, 2)
    assert len(await house.take(3)) == 3
    await asyncio.sleep(0.1)
    other = [await house.bus.directives("ocr", lane) for lane in ALL]
    left = [one for receiver in other for one in await receiver.receive(messages_max=9, wait_ms=0)]
    assert len(left) == 2 * LANES - 3
    assert {delivery.delivery_count for delivery in left} == {1}
    await house.reader.close()


async def test_an_idle_service_makes_one_call_a_lane_and_wait() -> None:
    house = House()
    for _ in range(20):
        assert await house.take(8, 0.01) == []
    assert house.calls == dict.fromkeys(ALL, 2)  # is there anything, and then the wait
    await house.reader.close()


async def test_a_message_ends_the_wait_and_the_other_waits_stay() -> None:
    house = House()
    waiting = asyncio.create_task(house.take(8, 10))
    await asyncio.sleep(0.01)
    house.calls.clear()
    for lane in (11, 6):
        await house.give(lane)
        async with asyncio.timeout(2):
            assert await waiting == [lane]
        waiting = asyncio.create_task(house.take(8, 10))
        await asyncio.sleep(0.01)
    assert house.calls == {11: 2, 6: 2}
    waiting.cancel()
    await asyncio.wait({waiting})
    await house.reader.close()


async def test_what_came_too_much_goes_back_if_nobody_takes_it_soon() -> None:
    house = House()
    assert await house.take(1) == []
    for lane in (1, 2, 3):  # each ends the wait of its lane
        await house.give(lane)
    assert await house.take(1, 1) == [1]
    assert await house.take(1, 1) == [2]
    await asyncio.sleep(0.15)
    other = await house.bus.directives("ocr", 3)
    (left,) = await other.receive(messages_max=1, wait_ms=0)
    assert left.delivery_count == 2
    assert house.depth() == 1
    await house.reader.close()


async def test_a_busy_service_leaves_new_messages_to_others() -> None:
    house = House()
    await house.give(0)
    assert await house.take(1) == [0]
    await asyncio.sleep(0.15)
    await house.give(8)
    other = await house.bus.directives("ocr", 8)
    (left,) = await other.receive(messages_max=1, wait_ms=0)
    assert left.delivery_count == 1
    await other.complete(left)
    await house.give(8)
    assert await house.take(1) == [8]
    await house.reader.close()


async def test_a_cancelled_take_loses_nothing() -> None:
    house = House(hold_seconds=10.0)
    waiting = asyncio.create_task(house.take(4, 10))
    await asyncio.sleep(0.01)
    await house.give(5)
    waiting.cancel()
    ended = await asyncio.gather(waiting, return_exceptions=True)
    got = [lane for end in ended if isinstance(end, list) for lane in end]
    assert got + (await house.take(4, 1) if not got else []) == [5]
    assert house.depth() == 0
    await house.reader.close()


async def test_a_broken_lane_rests_and_the_others_go_on() -> None:
    house = House()
    house.broken = {3}
    await house.give(3)
    await house.give(4)
    assert await house.take(8, 1) == [4]
    assert await house.take(8, 0.05) == []
    assert house.calls[3] == 1
    house.broken = set()
    async with asyncio.timeout(5):
        assert await house.take(8, 5) == [3]
    assert house.opened[3] == 1
    await house.reader.close()


async def test_when_every_lane_fails_the_caller_is_told() -> None:
    house = House(range(2), hold_seconds=0.01)
    house.broken = {0, 1}
    with pytest.raises(BusUnavailable, match="broken"):
        await house.take(8, 60)
    house.broken = set()
    await house.give(1)
    async with asyncio.timeout(5):
        while not (got := await _tried(house)):
            await asyncio.sleep(0.02)
    assert got == [1]
    await house.reader.close()


async def _tried(house: House) -> list[int]:
    try:
        return await house.take(8, 0.1)
    except BusUnavailable:
        return []


async def test_closing_gives_back_what_it_holds() -> None:
    house = House(hold_seconds=10.0)
    await house.take(1)
    for lane in (1, 2):
        await house.give(lane)
    assert await house.take(1, 1) == [1]
    await house.reader.close()
    other = await house.bus.directives("ocr", 2)
    assert len(await other.receive(messages_max=9, wait_ms=0)) == 1
