"""Breakers: a service that fails in a row is left alone but for a probe at a time, and costs no attempts."""

import asyncio

import pytest
from tests.support.flow_setup import FlowFleet, FlowReplica
from tests.support.virtual_time import virtual

from lucius.core.flow import BreakerRule, ServiceLimits
from lucius.core.inputs import Cancel, Pause, ResultStatus, Resume
from lucius.core.model import StepPolicy
from lucius.core.replies import STOPPED
from lucius.core.states import Fact, JobState

BREAKS = ServiceLimits(breaker=BreakerRule(failures_max=3, probe_every_ms=10_000))
RETRY, FINAL = ResultStatus.FAILED_RETRY, ResultStatus.FAILED_FINAL
POLICY = StepPolicy(max_attempts=2, backoff_result_ms=(30_000,), backoff_ack_ms=(30_000,))


async def _fail(replica: FlowReplica, times: int, status: ResultStatus = RETRY) -> None:
    for _ in range(times):
        (handed,) = await replica.take()
        await replica.answer(handed, status)


@virtual
async def test_after_failures_in_a_row_nothing_leaves_but_one_probe_at_a_time() -> None:
    fleet = FlowFleet(BREAKS, POLICY)
    replica = fleet.start()
    await fleet.submit(20)
    await _fail(replica, 3)
    began = asyncio.get_running_loop().time()
    assert await replica.take(5, wait_ms=9_000) == []
    (probe,) = await replica.take(5, wait_ms=5_000)
    assert asyncio.get_running_loop().time() - began == pytest.approx(10, abs=0.5)
    assert probe.step.probing
    assert await replica.take(5, wait_ms=5_000) == [], "one at a time"
    await replica.answer(probe, RETRY)
    record = await replica.record(probe.record.job.job_id)
    assert (record.steps[0].attempt_no, record.steps[0].attempts_counted) == (1, 0)
    assert await replica.take(5, wait_ms=19_000) == [], "each probe that fails doubles the wait"
    (probe,) = await replica.take(5, wait_ms=5_000)
    await replica.answer(probe)
    assert len(await replica.take(5)) == 5, "the service answers again"
    await fleet.stop()


@virtual
async def test_failures_count_only_in_a_row_and_a_final_one_is_an_answer() -> None:
    fleet = FlowFleet(BREAKS, POLICY)
    replica = fleet.start()
    await fleet.submit(20)
    for status in (ResultStatus.SUCCEEDED, FINAL):
        await _fail(replica, 2)
        await _fail(replica, 1, status)
    await _fail(replica, 2)
    assert len(await replica.take(5)) == 5
    await fleet.stop()


@virtual
async def test_work_that_a_pause_stopped_is_no_failure_of_its_service() -> None:
    fleet = FlowFleet(BREAKS, POLICY, stop_on_pause=True)
    replica = fleet.start()
    await fleet.submit(20)
    for handed in await replica.take(5):
        await replica.kernel.writer.apply(handed.record.job.job_id, Pause())
        await replica.answer(handed, RETRY, error_code=STOPPED)
        assert (await replica.record(handed.record.job.job_id)).job.state is JobState.PAUSED
    assert len(await replica.take(5)) == 5 and replica.flow.view_of("ocr").breaker is None
    await fleet.stop()


@virtual
async def test_a_service_that_is_silent_opens_its_breaker() -> None:
    fleet = FlowFleet(BREAKS, StepPolicy(ack_timeout_ms=5_000, backoff_ack_ms=(1_000,)))
    replica = fleet.start()
    await fleet.submit(10)
    assert len(await replica.take(3)) == 3
    await asyncio.sleep(8)
    assert await replica.take(5, wait_ms=100) == []
    assert replica.flow.view_of("ocr").breaker is not None
    await fleet.stop()


@virtual
async def test_every_replica_learns_that_a_breaker_is_open_and_that_it_is_closed() -> None:
    fleet = FlowFleet(BREAKS, POLICY)
    first, second = fleet.start(), fleet.start()
    await fleet.submit(20)
    await _fail(first, 3)
    await asyncio.sleep(1.5)
    assert await second.take(5, wait_ms=100) == []
    await asyncio.sleep(10)
    (probe,) = await second.take(5, wait_ms=1_000)
    assert await first.take(5, wait_ms=1_000) == []
    await first.answer(probe)
    await asyncio.sleep(1.5)
    assert len(await second.take(5)) == 5
    await fleet.stop()


@virtual
async def test_a_probe_whose_replica_dies_is_followed_by_another() -> None:
    fleet = FlowFleet(BREAKS, StepPolicy(ack_timeout_ms=5_000, backoff_ack_ms=(1_000,)))
    first = fleet.start()
    await fleet.submit(20)
    await _fail(first, 3)
    await asyncio.sleep(10)
    assert len(await first.take()) == 1
    await first.crash()
    second = fleet.start()
    taken = await second.take(5, wait_ms=60_000)
    assert len(taken) == 1 and taken[0].step.probing
    await fleet.stop()


@virtual
async def test_a_probe_that_is_cancelled_makes_room_for_another() -> None:
    fleet = FlowFleet(BREAKS, StepPolicy(ack_timeout_ms=5_000, backoff_ack_ms=(1_000,)))
    replica = fleet.start()
    await fleet.submit(20)
    await _fail(replica, 3)
    await asyncio.sleep(10)
    (probe,) = await replica.take()
    await replica.kernel.writer.apply(probe.record.job.job_id, Cancel())
    assert len(await replica.take(5, wait_ms=30_000)) == 1
    await fleet.stop()


@virtual
async def test_a_dependency_that_is_down_for_ten_minutes_costs_a_thousand_jobs_nothing() -> None:
    rule = BreakerRule(failures_max=5, probe_every_ms=10_000)
    fleet = FlowFleet(ServiceLimits(concurrency=20, breaker=rule), StepPolicy())
    replicas = [fleet.start() for _ in range(2)]
    await fleet.submit(1_000, "acme", "zeta")
    now = asyncio.get_running_loop().time
    down_until, over = now() + 600, asyncio.Event()

    async def work(replica: FlowReplica) -> None:
        while not over.is_set():
            for handed in await replica.take(2, wait_ms=2_000):
                await asyncio.sleep(0.05)
                await replica.answer(handed, RETRY if now() < down_until else ResultStatus.SUCCEEDED)

    working = [asyncio.create_task(work(replica)) for replica in replicas for _ in range(5)]
    while True:
        await asyncio.sleep(20)
        records = [await replicas[0].record(job_id) for job_id in fleet.jobs]
        if all(record.job.terminal for record in records):
            break
        assert now() < down_until + 600, "all should have ended by now"
    over.set()
    await asyncio.gather(*working)
    assert {record.job.state for record in records} == {JobState.SUCCEEDED}
    failed = [record.steps[0].attempts_counted - 1 for record in records]
    assert max(failed) <= 1, "no job lost more than the attempt that was under way"
    probes = sum(record.steps[0].attempts_forgiven for record in records)
    assert 5 <= probes <= 20
    assert sum(failed) <= 2 * 20 + 2 * rule.failures_max
    await fleet.stop()


@virtual
async def test_parked_jobs_go_on_with_fresh_attempts_once_the_service_is_back() -> None:
    fleet = FlowFleet(None, StepPolicy(max_attempts=1), on_exhausted="park")
    replica = fleet.start()
    jobs = await fleet.submit(3)
    await _fail(replica, 3)
    assert {(await replica.record(job_id)).job.state for job_id in jobs} == {JobState.PAUSED}
    for job_id in jobs:
        await replica.kernel.writer.apply(job_id, Resume())
    await _fail(replica, 3, ResultStatus.SUCCEEDED)
    assert {(await replica.record(job_id)).job.state for job_id in jobs} == {JobState.SUCCEEDED}
    events = await replica.kernel.ledger.events(jobs[0], limit=100)
    assert [event.type for event in events].count(Fact.ATTEMPT_BEGUN) == 2
    await fleet.stop()


@virtual
async def test_a_fallback_is_asked_by_its_own_workers() -> None:
    fleet = FlowFleet(None, StepPolicy(max_attempts=1), fallback=["ocr_b"])
    replica = fleet.start()
    (job_id,) = await fleet.submit(1)
    await _fail(replica, 1)
    assert await replica.take() == []
    (handed,) = await replica.take(service="ocr_b")
    await replica.answer(handed)
    record = await replica.record(job_id)
    assert (record.job.state, record.steps[0].tried) == (JobState.SUCCEEDED, ("ocr",))
    assert "ocr_b" in await replica.kernel.services.all()
    await fleet.stop()
