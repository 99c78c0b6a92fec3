"""Limits of services: most at once, most in a time, over replicas, crashes and changes while they run."""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any, cast

import pytest
from tests.support.flow_setup import FlowFleet, FlowReplica
from tests.support.virtual_time import virtual

from lucius.core.flow import Rate, ServiceLimits
from lucius.core.inputs import Pause, ResultStatus
from lucius.core.model import StepPolicy
from lucius.core.states import Fact, StepState
from lucius.engines.outbox.dispatcher import HandedOut
from lucius.ledger.store import Op, TableStore

TWO = ServiceLimits(concurrency=2)


@virtual
async def test_no_more_than_the_limit_are_out_at_once() -> None:
    fleet = FlowFleet(TWO)
    replica = fleet.start()
    await fleet.submit(5)
    first = await replica.take(5)
    assert len(first) == 2
    assert await replica.take(5, wait_ms=900) == []
    waiting = asyncio.create_task(replica.take(5, wait_ms=5_000))
    await asyncio.sleep(0.5)
    began = asyncio.get_running_loop().time()
    await replica.answer(first[0])
    assert len(await waiting) == 1
    assert asyncio.get_running_loop().time() - began < 0.1, "its place is given on at once"
    await fleet.stop()


@virtual
async def test_nothing_runs_out_for_an_attempt_that_waits_for_a_place() -> None:
    fleet = FlowFleet(TWO, StepPolicy(ack_timeout_ms=1_000_000))
    replica = fleet.start()
    jobs = await fleet.submit(3)
    await replica.take(5)
    await asyncio.sleep(900)
    states = [(await replica.record(job_id)).steps[0] for job_id in jobs]
    waiting = [step for step in states if step.state is StepState.DISPATCHING]
    assert [(step.attempt_no, step.lease_expires_at_ms) for step in waiting] == [(1, None)]
    await fleet.stop()


@virtual
async def test_replicas_share_one_limit() -> None:
    fleet = FlowFleet(ServiceLimits(concurrency=5))
    replicas = [fleet.start() for _ in range(3)]
    await fleet.submit(30)
    taken = await asyncio.gather(*(replica.take(5) for replica in replicas for _ in range(3)))
    assert sum(map(len, taken)) == 5
    assert (await fleet.under_way())["ocr"] == 5
    await fleet.stop()


@virtual
async def test_what_another_replica_gives_up_is_found() -> None:
    fleet = FlowFleet(ServiceLimits(concurrency=1))
    first, second = fleet.start(), fleet.start()
    await fleet.submit(2)
    (handed,) = await first.take()
    waiting = asyncio.create_task(second.take(wait_ms=5_000))
    await asyncio.sleep(0.4)
    await first.answer(handed)
    await asyncio.sleep(0.4)
    assert waiting.done() and len(waiting.result()) == 1
    await fleet.stop()


@virtual
async def test_a_replica_that_dies_leaks_no_place() -> None:
    fleet = FlowFleet(TWO, StepPolicy(ack_timeout_ms=20_000, backoff_ack_ms=(1_000,)))
    first = fleet.start()
    await fleet.submit(4)
    assert len(await first.take(5)) == 2
    await first.crash()
    second = fleet.start()
    assert await second.take(5, wait_ms=15_000) == [], "the attempts may still be worked on"
    taken = await second.take(5, wait_ms=15_000)
    await asyncio.sleep(3)
    taken += await second.take(5)
    assert len(taken) == 2, "their time is over"
    await fleet.stop()


@virtual
async def test_a_place_that_was_taken_for_a_hand_out_that_never_came_is_given_up() -> None:
    fleet = FlowFleet(ServiceLimits(concurrency=1))
    first = fleet.start()
    jobs = await fleet.submit(2)

    async def dies(*_: object, **__: object) -> None:
        raise asyncio.CancelledError

    first.kernel.writer.apply = dies  # type: ignore[method-assign,assignment]
    await asyncio.gather(first.take(1, wait_ms=1), return_exceptions=True)
    await first.crash()
    row = await first.flow.rows.read("ocr")
    assert len(row.state.slots) == 1
    second = fleet.start()
    await second.kernel.writer.apply(next(iter(row.state.slots)), Pause())  # it can never be handed out
    taken = await second.take(1, wait_ms=60_000)
    assert [handed.record.job.job_id in jobs for handed in taken] == [True]
    await fleet.stop()


@virtual
async def test_the_waiting_attempt_that_has_a_place_already_is_handed_out() -> None:
    fleet = FlowFleet(ServiceLimits(concurrency=1))
    first = fleet.start()
    await fleet.submit(2)

    async def dies(*_: object, **__: object) -> None:
        raise asyncio.CancelledError

    first.kernel.writer.apply = dies  # type: ignore[method-assign,assignment]
    await asyncio.gather(first.take(1, wait_ms=1), return_exceptions=True)
    await first.crash()
    second = fleet.start()
    assert len(await second.take(1, wait_ms=100)) == 1
    await fleet.stop()


@virtual
async def test_limits_follow_their_document() -> None:
    fleet = FlowFleet(ServiceLimits(concurrency=1))
    replica = fleet.start()
    await fleet.submit(10)
    assert len(await replica.take(10)) == 1
    fleet.registry.limits["ocr"] = ServiceLimits(concurrency=3)
    await asyncio.sleep(0.3)
    assert len(await replica.take(10)) == 2
    fleet.registry.limits.clear()
    assert len(await replica.take(10, wait_ms=300)) == 7
    await fleet.stop()


@virtual
async def test_a_limit_of_each_tenant_holds_no_other_up() -> None:
    fleet = FlowFleet(ServiceLimits(tenant_concurrency=2))
    replica = fleet.start()
    await fleet.submit(10, "acme")
    await fleet.submit(1, "zeta")
    taken: list[HandedOut] = []
    for _ in range(4):
        taken += await replica.take(3, wait_ms=50)
    tenants = sorted(handed.record.job.tenant_id for handed in taken)
    assert tenants == ["acme", "acme", "zeta"]
    await fleet.stop()


async def _sent_at(replica: FlowReplica, jobs: list[str]) -> list[int]:
    found: list[int] = []
    for job_id in jobs:
        events = await replica.kernel.ledger.events(job_id, limit=100)
        found += [event.at_ms for event in events if event.type is Fact.DIRECTIVE_PUBLISHED]
    return sorted(found)


def most_in_a_second(times_ms: list[int]) -> int:
    most, first = 0, 0
    for last, at_ms in enumerate(times_ms):
        while times_ms[first] <= at_ms - 1_000:
            first += 1
        most = max(most, last - first + 1)
    return most


@virtual
async def test_no_more_leave_in_any_second_than_the_rate_and_one_burst() -> None:
    fleet = FlowFleet(ServiceLimits(rate=Rate(tokens=100, per_ms=1_000, burst=20)))
    replicas = [fleet.start() for _ in range(3)]
    jobs = await fleet.submit(500)
    until = asyncio.get_running_loop().time() + 4

    async def work(replica: FlowReplica) -> None:
        while asyncio.get_running_loop().time() < until:
            for handed in await replica.take(10, wait_ms=100):
                await replica.answer(handed)

    await asyncio.gather(*(work(replica) for replica in replicas for _ in range(3)))
    times = await _sent_at(replicas[0], jobs)
    assert 380 <= len(times) <= 440, "neither too many nor far too few"
    assert most_in_a_second(times) <= 120
    await fleet.stop()


@virtual
async def test_attempts_that_a_dead_replica_had_a_place_for_leave_within_the_rate() -> None:
    """Neither is anything known of when they left, nor did they leave: they pay again."""
    fleet = FlowFleet(ServiceLimits(concurrency=50, rate=Rate(tokens=4, per_ms=1_000, burst=2)))
    last = fleet.start()
    jobs = await fleet.submit(60)
    loop = asyncio.get_running_loop()

    async def dies(*_: object, **__: object) -> None:
        raise asyncio.CancelledError

    for _ in range(4):
        replica = fleet.start()
        replica.kernel.writer.apply = dies  # type: ignore[method-assign,assignment]
        await asyncio.gather(replica.take(20, wait_ms=600), return_exceptions=True)
        await replica.crash()
        await asyncio.sleep(0.6)
    until = loop.time() + 3
    while (left := until - loop.time()) > 0.001:
        await last.take(20, wait_ms=round(left * 1000))
    times = await _sent_at(last, jobs)
    assert len(times) >= 10
    assert most_in_a_second(times) <= 4 + 2
    await fleet.stop()


@virtual
async def test_what_comes_too_late_leaves_within_the_rate() -> None:
    """A process that stood still between its grants and their hand-outs goes on with all of them at once."""
    fleet = FlowFleet(ServiceLimits(rate=Rate(tokens=4, per_ms=1_000, burst=2)))
    replica, loop, goes_on = fleet.start(), asyncio.get_running_loop(), asyncio.Event()
    jobs, taking, apply = await fleet.submit(60), [], replica.kernel.writer.apply

    async def stands_still(*args: Any, **more: Any) -> Any:
        await goes_on.wait()
        return await apply(*args, **more)

    replica.kernel.writer.apply = stands_still  # type: ignore[method-assign]
    for _ in range(4):
        taking.append(asyncio.create_task(replica.take(2, wait_ms=5_000)))
        await asyncio.sleep(0.6)
    goes_on.set()
    until = loop.time() + 3
    while (left := until - loop.time()) > 0.001:
        await replica.take(20, wait_ms=round(left * 1000))
    await asyncio.gather(*taking)
    times = await _sent_at(replica, jobs)
    assert len(times) >= 10
    assert most_in_a_second(times) <= 4 + 2
    await fleet.stop()


class _SlowStore:
    """Each commit takes a while, and now and then a long one, as on a machine that does other things."""

    def __init__(self, store: TableStore, slow_ms: int, chance: Random) -> None:
        self._store, self._slow_ms, self._chance = store, slow_ms, chance

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, ops: Sequence[Op]) -> list[str]:
        most_ms = self._slow_ms * (8 if self._chance.random() < 0.1 else 1)
        await asyncio.sleep(self._chance.uniform(0, most_ms / 1_000))
        return await self._store.commit(ops)


@pytest.mark.parametrize("slow_ms", [5, 60, 200])
@virtual
async def test_the_rate_holds_where_commits_are_slow(slow_ms: int) -> None:
    fleet, chance = FlowFleet(ServiceLimits(rate=Rate(tokens=100, per_ms=1_000, burst=10))), Random(slow_ms)
    plain = fleet.start()
    jobs = await fleet.submit(700)
    stores = [cast(TableStore, _SlowStore(fleet.store, slow_ms, chance)) for _ in range(3)]
    replicas = [fleet.start(store) for store in stores]
    loop = asyncio.get_running_loop()
    until = loop.time() + 8

    async def work(replica: FlowReplica) -> None:
        while loop.time() < until:
            await replica.take(10, wait_ms=100)

    await asyncio.gather(*(work(replica) for replica in replicas for _ in range(4)))
    times = await _sent_at(plain, jobs)
    assert most_in_a_second(times) <= 100 + 10
    assert len(times) >= (600 if slow_ms < 50 else 80), "what is too late asks again, earlier"
    await fleet.stop()


@virtual
async def test_a_rate_by_the_minute_of_each_tenant() -> None:
    fleet = FlowFleet(ServiceLimits(tenant_rate=Rate(tokens=6, per_ms=60_000, burst=1)))
    replica = fleet.start()
    await fleet.submit(5, "acme")
    await fleet.submit(5, "zeta")
    taken: list[str] = []
    until = asyncio.get_running_loop().time() + 21
    while asyncio.get_running_loop().time() < until:
        taken += [handed.record.job.tenant_id for handed in await replica.take(5, wait_ms=500)]
    assert sorted(taken) == ["acme"] * 3 + ["zeta"] * 3
    await fleet.stop()


@virtual
async def test_a_service_that_asks_for_less_gets_less_and_recovers() -> None:
    fleet = FlowFleet(
        ServiceLimits(rate=Rate(tokens=40, per_ms=1_000, burst=4)),
        StepPolicy(backoff_result_ms=(1_000_000,), ack_timeout_ms=1_000_000),
    )
    replica = fleet.start()
    await fleet.submit(1_400, "acme", "zeta")

    async def in_ten_seconds() -> int:
        taken, until = 0, asyncio.get_running_loop().time() + 10
        while (left := until - asyncio.get_running_loop().time()) > 0.001:
            taken += len(await replica.take(10, wait_ms=round(left * 1000)))
        return taken

    assert 380 <= await in_ten_seconds() <= 410
    (handed,) = await replica.take(1, wait_ms=1_000)
    await replica.answer(handed, ResultStatus.FAILED_RETRY, slow_down=True)
    assert 180 <= await in_ten_seconds() <= 210
    await asyncio.sleep(30)
    assert 380 <= await in_ten_seconds() <= 410
    await fleet.stop()


@virtual
async def test_a_service_without_a_rate_that_asks_for_less_gets_half_of_what_it_had() -> None:
    fleet = FlowFleet(None, StepPolicy(backoff_result_ms=(1_000_000,), ack_timeout_ms=1_000_000))
    replica = fleet.start()
    await fleet.submit(1_000)
    handed: list[HandedOut] = []
    for _ in range(20):
        handed += await replica.take(20)
        await asyncio.sleep(1)
    await replica.answer(handed[-1], ResultStatus.FAILED_RETRY, slow_down=True)
    taken, until = 0, asyncio.get_running_loop().time() + 10
    while (left := until - asyncio.get_running_loop().time()) > 0.001:
        taken += len(await replica.take(10, wait_ms=round(left * 1000)))
    assert 80 <= taken <= 115
    await fleet.stop()


@virtual
async def test_a_service_without_limits_reads_and_writes_no_row() -> None:
    fleet = FlowFleet()
    replica = fleet.start()
    await fleet.submit(3)
    for handed in await replica.take(5):
        await replica.answer(handed)
    assert (await replica.flow.rows.read("ocr")).etag is None
    await fleet.stop()
