"""Lanes are dealt out over the reconcilers that are alive, and dealt out again when one is not."""

import asyncio
from itertools import combinations

import pytest

from lucius.core.routing import LANES
from lucius.engines import lane_leases as lanes
from lucius.engines.lane_leases import ALIVE_MS, ALL_LANES, LaneLeases, share_of
from lucius.ledger.job_ledger import JobLedger, LayoutName
from lucius.ledger.memory import MemoryStore
from lucius.ledger.store import StoreUnavailable


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=[True, False], ids=["spanning", "single-partition"])
def ledger(request: pytest.FixtureRequest) -> JobLedger:
    return JobLedger(MemoryStore(spans=request.param), LayoutName.LEDGER)


async def alive(ledger: JobLedger) -> list[str]:
    return [row.key for row in await ledger.store.query(ledger.tables.meta, "reconcilers", limit=100)]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 16, 20])
def test_shares_cover_every_lane_once_and_evenly(count: int) -> None:
    names = [f"r{n:02d}" for n in range(count)]
    shares = [share_of(name, names) for name in names]
    assert frozenset().union(*shares) == ALL_LANES
    assert all(not one & other for one, other in combinations(shares, 2))
    sizes = [len(lane_leases) for lane_leases in shares]
    assert max(sizes) - min(sizes) <= 1


def test_the_order_in_which_others_are_found_does_not_matter() -> None:
    assert share_of("b", ["c", "a", "b"]) == share_of("b", ["a", "b", "c"])


async def test_one_alone_has_all_lanes_and_two_have_half_each(ledger: JobLedger, clock: Clock) -> None:
    one, other = (LaneLeases(ledger, name, now_ms=clock) for name in ("one", "other"))
    assert one.lanes() == frozenset()
    await one.renew()
    assert one.lanes() == ALL_LANES
    await other.renew()
    await one.renew()
    assert one.lanes() | other.lanes() == ALL_LANES
    assert len(one.lanes()) == len(other.lanes()) == LANES // 2


async def test_the_lanes_of_one_that_died_are_taken_over(ledger: JobLedger, clock: Clock) -> None:
    one, other = (LaneLeases(ledger, name, now_ms=clock) for name in ("one", "other"))
    await one.renew()
    await other.renew()
    clock.now_ms += ALIVE_MS - 1
    await other.renew()
    assert len(other.lanes()) == LANES // 2
    clock.now_ms += 1
    await other.renew()
    assert other.lanes() == ALL_LANES
    assert await alive(ledger) == ["other"]


async def test_one_that_died_with_a_clock_ahead_is_not_waited_for(ledger: JobLedger, clock: Clock) -> None:
    ahead, other = (
        LaneLeases(ledger, "ahead", now_ms=lambda: clock() + 3_600_000),
        LaneLeases(ledger, "other", now_ms=clock),
    )
    await ahead.renew()
    await other.renew()
    assert len(other.lanes()) == LANES // 2
    clock.now_ms += ALIVE_MS
    await other.renew()
    assert other.lanes() == ALL_LANES
    assert await alive(ledger) == ["other"]


async def test_one_whose_clock_is_behind_keeps_its_lanes(ledger: JobLedger, clock: Clock) -> None:
    behind, other = (
        LaneLeases(ledger, "behind", now_ms=lambda: clock() - 3_600_000),
        LaneLeases(ledger, "other", now_ms=clock),
    )
    for _ in range(3):
        await behind.renew()
        await other.renew()
        clock.now_ms += 2_000
    assert behind.lanes() | other.lanes() == ALL_LANES
    assert not behind.lanes() & other.lanes()


async def test_one_that_was_only_slow_comes_back(ledger: JobLedger, clock: Clock) -> None:
    one, other = (LaneLeases(ledger, name, now_ms=clock) for name in ("one", "other"))
    await one.renew()
    clock.now_ms += ALIVE_MS
    await other.renew()
    assert other.lanes() == ALL_LANES
    await one.renew()
    await other.renew()
    assert one.lanes() | other.lanes() == ALL_LANES
    assert not one.lanes() & other.lanes()


async def test_whoever_leaves_is_not_waited_for(ledger: JobLedger, clock: Clock) -> None:
    one, other = (LaneLeases(ledger, name, now_ms=clock) for name in ("one", "other"))
    await one.renew()
    await other.renew()
    await one.leave()
    assert one.lanes() == frozenset()
    await other.renew()
    assert other.lanes() == ALL_LANES


async def test_a_ledger_that_is_away_does_not_take_the_lanes_away(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()
    away = False

    def before_commit(_: object) -> None:
        if away:
            asked.set()
            raise StoreUnavailable("away")

    ledger = JobLedger(MemoryStore(before_commit=before_commit), LayoutName.LEDGER)
    monkeypatch.setattr(lanes, "RENEW_EVERY_SECONDS", 0.01)
    lane_leases = LaneLeases(ledger, "one", now_ms=clock)
    await lane_leases.renew()
    away = True
    running = asyncio.create_task(lane_leases.run())
    await asyncio.wait_for(asked.wait(), 10)
    asked.clear()
    await asyncio.wait_for(asked.wait(), 10)
    assert lane_leases.lanes() == ALL_LANES
    running.cancel()
