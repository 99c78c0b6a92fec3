"""Many lanes read at once: turns, room, waits, faults, and what is let go."""

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from lucius.bus.memory import MemoryBus, MemoryLimits, MemoryReceiver
from lucius.bus.port import BusUnavailable, Delivery, DirectiveOut
from lucius.core.routing import LANES
from lucius.sdk.bus_lanes import LaneReader

ALL = range(LANES)


class CountedReceiver(MemoryReceiver):
    """Counts what a broker would have to answer, and fails on demand."""

    lane: int
    deployment: "Deployment"

    async def receive(self, *, messages_max: int, wait_ms: int) -> list[Delivery]:
        self.deployment.calls[self.lane] += 1
        if self.lane in self.deployment.broken:
            raise BusUnavailable("this lane is broken")
        return await super().receive(messages_max=messages_max, wait_ms=wait_ms)

    async def extend(self, delivery: Delivery) -> Delivery:
        self.deployment.asked_to_renew += 1
        renewed = await super().extend(delivery)
        self.deployment.renewed += 1
        return renewed


class Deployment:
    def __init__(
        self,
        lanes: range = ALL,
        *,
        hold_seconds: float = 0.05,
        ahead: int = 0,
        renew_seconds: float = 5.0,
        lock_ms: int = 30_000,
        deliveries_max: int = 3,
    ) -> None:
        self.clock_ms = self.renewed = self.asked_to_renew = 0
        limits = MemoryLimits(lock_ms=lock_ms, deliveries_max=deliveries_max)
        self.bus = MemoryBus(now_ms=lambda: self.clock_ms, limits=limits)
        self.calls: Counter[int] = Counter()
        self.opened: Counter[int] = Counter()
        self.broken: set[int] = set()
        self.reader = LaneReader(
            self._open, lanes, hold_seconds=hold_seconds, ahead=ahead, renew_seconds=renew_seconds
        )

    async def _open(self, lane: int) -> CountedReceiver:
        self.opened[lane] += 1
        receiver = await self.bus.directives("ocr", lane)
        receiver.__class__ = CountedReceiver
        assert isinstance(receiver, CountedReceiver)
        receiver.lane, receiver.deployment = lane, self
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

    async def others(self, lane: int) -> int:
        """How many another process is given."""
        receiver = await self.bus.directives("ocr", lane)
        return len(await receiver.receive(messages_max=100, wait_ms=0))

    def depth(self) -> int:
        return sum(self.bus.directive_depth("ocr", lane) for lane in ALL)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.002)


async def test_lanes_take_turns() -> None:
    deployment = Deployment()
    for lane in (2, 5, 9):
        await deployment.give(lane, 30)
    got = Counter([lane for _ in range(30) for lane in await deployment.take(1)])
    assert got == {2: 10, 5: 10, 9: 10}
    assert Counter(await deployment.take(6)) == {2: 2, 5: 2, 9: 2}
    await deployment.reader.close()


async def test_a_lone_lane_gets_all_the_room_and_costs_one_call() -> None:
    deployment = Deployment()
    await deployment.give(4, 100)
    assert await deployment.take(10) == [4] * 10
    deployment.calls.clear()
    for _ in range(5):
        assert await deployment.take(10) == [4] * 10
    assert deployment.calls == {4: 5}
    await deployment.reader.close()


async def test_nothing_is_locked_that_was_not_asked_for() -> None:
    deployment = Deployment()
    for lane in ALL:
        await deployment.give(lane, 2)
    assert len(await deployment.take(3)) == 3
    await asyncio.sleep(0.1)
    other = [await deployment.bus.directives("ocr", lane) for lane in ALL]
    left = [one for receiver in other for one in await receiver.receive(messages_max=9, wait_ms=0)]
    assert len(left) == 2 * LANES - 3
    assert {delivery.delivery_count for delivery in left} == {1}
    await deployment.reader.close()


async def test_an_idle_service_makes_one_call_a_lane_and_wait() -> None:
    deployment = Deployment()
    for _ in range(20):
        assert await deployment.take(8, 0.01) == []
    assert deployment.calls == dict.fromkeys(ALL, 2)  # is there anything, and then the wait
    await deployment.reader.close()


async def test_a_message_ends_the_wait_and_the_other_waits_stay() -> None:
    deployment = Deployment()
    waiting = asyncio.create_task(deployment.take(8, 10))
    await asyncio.sleep(0.01)
    deployment.calls.clear()
    for lane in (11, 6):
        await deployment.give(lane)
        async with asyncio.timeout(2):
            assert await waiting == [lane]
        waiting = asyncio.create_task(deployment.take(8, 10))
        await asyncio.sleep(0.01)
    assert deployment.calls == {11: 2, 6: 2}
    waiting.cancel()
    await asyncio.wait({waiting})
    await deployment.reader.close()


async def test_what_came_too_much_goes_back_if_nobody_takes_it_soon() -> None:
    deployment = Deployment()
    assert await deployment.take(1) == []
    for lane in (1, 2, 3):  # each ends the wait of its lane
        await deployment.give(lane)
    assert await deployment.take(1, 1) == [1]
    assert await deployment.take(1, 1) == [2]
    await asyncio.sleep(0.15)
    other = await deployment.bus.directives("ocr", 3)
    (left,) = await other.receive(messages_max=1, wait_ms=0)
    assert left.delivery_count == 2
    assert deployment.depth() == 1
    await deployment.reader.close()


async def test_a_busy_service_leaves_new_messages_to_others() -> None:
    deployment = Deployment()
    await deployment.give(0)
    assert await deployment.take(1) == [0]
    await asyncio.sleep(0.15)
    await deployment.give(8)
    other = await deployment.bus.directives("ocr", 8)
    (left,) = await other.receive(messages_max=1, wait_ms=0)
    assert left.delivery_count == 1
    await other.complete(left)
    await deployment.give(8)
    assert await deployment.take(1) == [8]
    await deployment.reader.close()


async def test_a_cancelled_take_loses_nothing() -> None:
    deployment = Deployment(hold_seconds=10.0)
    waiting = asyncio.create_task(deployment.take(4, 10))
    await asyncio.sleep(0.01)
    await deployment.give(5)
    waiting.cancel()
    ended = await asyncio.gather(waiting, return_exceptions=True)
    got = [lane for end in ended if isinstance(end, list) for lane in end]
    assert got + (await deployment.take(4, 1) if not got else []) == [5]
    assert deployment.depth() == 0
    await deployment.reader.close()


async def test_a_broken_lane_rests_and_the_others_go_on() -> None:
    deployment = Deployment()
    deployment.broken = {3}
    await deployment.give(3)
    await deployment.give(4)
    assert await deployment.take(8, 1) == [4]
    assert await deployment.take(8, 0.05) == []
    assert deployment.calls[3] == 1
    deployment.broken = set()
    async with asyncio.timeout(5):
        assert await deployment.take(8, 5) == [3]
    assert deployment.opened[3] == 1
    await deployment.reader.close()


async def test_when_every_lane_fails_the_caller_is_told() -> None:
    deployment = Deployment(range(2), hold_seconds=0.01)
    deployment.broken = {0, 1}
    with pytest.raises(BusUnavailable, match="broken"):
        await deployment.take(8, 60)
    deployment.broken = set()
    await deployment.give(1)
    async with asyncio.timeout(5):
        while not (got := await _tried(deployment)):
            await asyncio.sleep(0.02)
    assert got == [1]
    await deployment.reader.close()


async def _tried(deployment: Deployment) -> list[int]:
    try:
        return await deployment.take(8, 0.1)
    except BusUnavailable:
        return []


async def test_closing_gives_back_what_it_holds() -> None:
    deployment = Deployment(hold_seconds=10.0)
    await deployment.take(1)
    for lane in (1, 2):
        await deployment.give(lane)
    assert await deployment.take(1, 1) == [1]
    await deployment.reader.close()
    other = await deployment.bus.directives("ocr", 2)
    assert len(await other.receive(messages_max=9, wait_ms=0)) == 1


async def test_a_few_are_taken_ahead_and_are_at_hand() -> None:
    deployment = Deployment(hold_seconds=0.01, ahead=3)
    await deployment.give(5, 6)
    assert await deployment.take(1) == [5]
    asked = deployment.calls.total()
    for _ in range(3):
        await asyncio.sleep(0.03)
        assert await deployment.take(1) == [5]
    assert deployment.calls.total() == asked, "nobody was asked for them"
    assert await deployment.others(5) == 2, "and no more were taken"
    await deployment.reader.close()


async def test_what_was_taken_ahead_is_renewed_and_goes_back_if_nobody_wants_it() -> None:
    deployment = Deployment(hold_seconds=0.01, ahead=2, renew_seconds=0.4, lock_ms=1_000, deliveries_max=10)
    await deployment.give(5, 3)
    assert await deployment.take(1) == [5]
    deployment.clock_ms = 900
    await until(lambda: deployment.renewed == 2)
    deployment.clock_ms = 1_100
    assert await deployment.others(5) == 0, "its lock was renewed"
    async with asyncio.timeout(5):
        while (left := await deployment.others(5)) == 0:
            await asyncio.sleep(0.01)
    assert left > 0, "and then it was left to others"
    await deployment.reader.close()


async def test_what_may_not_come_often_again_is_kept() -> None:
    deployment = Deployment(hold_seconds=0.01, ahead=2, renew_seconds=0.01, deliveries_max=3)
    await deployment.give(5, 3)
    assert await deployment.take(1) == [5]
    await until(lambda: deployment.renewed >= 10)
    assert await deployment.others(5) == 0
    assert await deployment.take(2) == [5, 5]
    await deployment.reader.close()


async def test_a_lock_that_was_lost_is_no_longer_at_hand() -> None:
    deployment = Deployment(hold_seconds=0.01, ahead=1, renew_seconds=0.02, lock_ms=1_000, deliveries_max=10)
    await deployment.give(5, 2)
    assert await deployment.take(1) == [5]
    deployment.clock_ms = 2_000
    assert await deployment.others(5) == 1, "another has it"
    await until(lambda: deployment.asked_to_renew > 0)
    assert await deployment.take(1) == []
    await deployment.reader.close()


async def test_closing_gives_back_what_was_taken_ahead() -> None:
    deployment = Deployment(hold_seconds=0.01, ahead=2, deliveries_max=10)
    await deployment.give(5, 3)
    assert await deployment.take(1) == [5]
    await asyncio.sleep(0.03)
    await deployment.reader.close()
    assert await deployment.others(5) == 2
