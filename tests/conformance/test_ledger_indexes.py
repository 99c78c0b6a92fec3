"""The rows around the truth: the due index, the dispatch index, and what a job leaves when it has ended."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.conformance.ledger_checks import check_always, check_at_rest, of_table, run_out
from tests.conformance.ledger_setup import (
    DAY_MS,
    START_MS,
    Deployment,
    T,
    Trial,
    TriedStore,
    World,
    opened_world,
    submit,
)

from lucius.core.attempt import AttemptRef
from lucius.core.draft import Decision
from lucius.core.inputs import Cancel, HandOut, Pause, ResultStatus, Resume
from lucius.core.states import Engine, JobState, Mode, StepState
from lucius.jobs.submit import Submitted
from lucius.ledger.job_ledger import LayoutName
from lucius.ledger.lists import DlqFilter
from lucius.ledger.names import lane_partition
from lucius.ledger.store import Op, Row, StoreUnavailable, put


@pytest.fixture
async def deployment(world: World) -> Deployment:
    ready = world.deployment()
    await ready.warm()
    return ready


async def handed_out(deployment: Deployment, request_type: str = "OCR") -> AttemptRef:
    await submit(deployment, request_type=request_type)
    (attempt,) = await deployment.take("ocr")
    return attempt


async def ended(deployment: Deployment, status: ResultStatus = ResultStatus.SUCCEEDED) -> AttemptRef:
    attempt = await handed_out(deployment)
    await deployment.result(attempt, status, "BROKEN")
    return attempt


# The due index


async def test_a_deadline_that_moves_later_costs_no_row(world: World, deployment: Deployment) -> None:
    attempt = await handed_out(deployment)
    armed = await of_table(world, T.due)
    assert [key[:14] for _, key in armed] == [f"{START_MS + 30_000:014d}"]
    world.clock.now_ms += 10
    deployment.store.commits.clear()
    await deployment.ack(attempt)
    written = {op.table for ops in deployment.store.commits for op in ops}
    assert T.due not in written and await of_table(world, T.due) == armed
    world.clock.now_ms = START_MS + 30_000
    assert await deployment.sweeper.sweep() == 1
    assert [key[:14] for _, key in await of_table(world, T.due)] == [f"{START_MS + 10 + 900_000:014d}"]
    assert deployment.sweeper.actions == {"moved": 1}
    await check_at_rest(world)


async def pick_up(deployment: Deployment, job_id: str) -> AttemptRef:
    """As a service of this very process does: taking the directive is its ACK."""
    loaded = await deployment.ledger.load(job_id)
    assert loaded is not None and loaded.record.current is not None
    attempt = AttemptRef.of(job_id, loaded.record.current)
    given = HandOut(
        step_id=attempt.step_id, attempt_no=attempt.attempt_no, lease_id=attempt.lease_id, picked_up=True
    )
    await deployment.writer.apply(job_id, given)
    return attempt


async def test_one_row_is_early_enough_for_a_later_step_with_a_shorter_lease(
    world: World, deployment: Deployment
) -> None:
    """OCR has 15 minutes and EMBEDDING 5: the row of the first step stands for the second as well."""
    job_id = await submit(deployment, request_type="OCR_EMBEDDING")
    attempt = await pick_up(deployment, job_id)
    armed = await of_table(world, T.due)
    world.clock.now_ms += 10_000
    await deployment.result(attempt)
    await pick_up(deployment, job_id)
    assert await of_table(world, T.due) == armed
    world.clock.now_ms = START_MS + 300_000
    await deployment.sweeper.sweep()
    assert deployment.sweeper.actions == {"moved": 1}
    assert [key[:14] for _, key in await of_table(world, T.due)] == [f"{START_MS + 310_000:014d}"]
    await check_at_rest(world)


async def test_a_row_that_was_met_early_moves_to_the_end_of_the_lease(
    world: World, deployment: Deployment
) -> None:
    job_id = await submit(deployment, request_type="OCR_EMBEDDING")
    await pick_up(deployment, job_id)
    world.clock.now_ms = START_MS + 300_000
    await deployment.sweeper.sweep()
    assert [key[:14] for _, key in await of_table(world, T.due)] == [f"{START_MS + 900_000:014d}"]
    await check_at_rest(world)


async def test_a_paused_job_keeps_a_due_row(world: World, deployment: Deployment) -> None:
    job_id = await submit(deployment)
    await deployment.writer.apply(job_id, Pause())
    for _ in range(5):
        world.clock.now_ms += DAY_MS
        await deployment.sweeper.sweep()
        await check_at_rest(world)
    assert len(await of_table(world, T.due)) == 1


async def test_rows_that_must_wait_do_not_hide_those_behind_them(
    world: World, deployment: Deployment
) -> None:
    attempt = await handed_out(deployment)
    loaded = await deployment.ledger.load(attempt.job_id)
    assert loaded is not None
    job, now_ms = loaded.record.job, START_MS + 31_000
    for number in range(130):
        # Announced by somebody just now, for jobs that are still to come.
        coming = msgspec.structs.replace(job, job_id=f"job_coming_{number}", version=1)
        await deployment.store.commit([deployment.ledger.planner.due_put(coming, START_MS + number, now_ms)])
    world.clock.now_ms = now_ms
    await deployment.sweeper.sweep()
    assert deployment.sweeper.actions == {"waiting": 130, "acted": 1}


async def test_a_job_that_cannot_be_read_stops_nobody_else(world: World, deployment: Deployment) -> None:
    attempt = await handed_out(deployment)
    loaded = await deployment.ledger.load(attempt.job_id)
    assert loaded is not None
    broken = msgspec.structs.replace(loaded.record.job, job_id="job_broken", version=1)
    write = deployment.ledger.layout.job_write(broken, None)
    bad = msgspec.structs.replace(write, body=b'{"job_id":1}')
    await deployment.store.commit([bad])
    for op in deployment.ledger.layout.created(broken):
        await deployment.store.commit([op])
    await deployment.store.commit([deployment.ledger.planner.due_put(broken, START_MS, START_MS)])
    world.clock.now_ms += 30_000
    assert await deployment.sweeper.sweep() == 2
    assert deployment.sweeper.actions == {"unreadable": 1, "acted": 1}
    (row,) = deployment.ledger.quarantine.rows()
    assert (row.job_id, row.later_version) == ("job_broken", False)


async def test_a_cancelling_job_past_its_sla_is_not_looked_at_all_the_time(
    world: World, deployment: Deployment
) -> None:
    attempt = await handed_out(deployment)
    await deployment.ack(attempt)
    await deployment.writer.apply(attempt.job_id, Cancel())
    loaded = await deployment.ledger.load(attempt.job_id)
    assert loaded is not None
    old = msgspec.structs.replace(loaded.record.job, sla_ms=1_000)
    record = msgspec.structs.replace(loaded.record, job=old)
    world.clock.now_ms += 10_000
    await deployment.ledger.commit(loaded, Decision(record=record), world.clock.now_ms)
    await deployment.sweeper.sweep()
    assert await deployment.sweeper.sweep() == 0
    await check_at_rest(world)


# The dispatch index


async def test_a_paused_job_is_held_and_comes_back(world: World, deployment: Deployment) -> None:
    job_id = await submit(deployment)
    waiting = await of_table(world, T.dispatch)
    assert len(waiting) == 1
    await deployment.writer.apply(job_id, Pause())
    assert await of_table(world, T.dispatch) == []
    assert await deployment.take("ocr") == []
    await check_at_rest(world)
    await deployment.writer.apply(job_id, Resume())
    assert await of_table(world, T.dispatch) == waiting
    (attempt,) = await deployment.take("ocr")
    assert attempt.attempt_no == 1
    assert await of_table(world, T.dispatch) == []
    await check_at_rest(world)


async def test_a_row_that_names_another_attempt_is_mended(world: World, deployment: Deployment) -> None:
    """Two writers announced the same millisecond; the row is the loser's, the attempt the winner's."""
    job_id = await submit(deployment)
    loaded = await deployment.ledger.load(job_id)
    assert loaded is not None and loaded.record.outbox is not None
    loser = msgspec.structs.replace(loaded.record.outbox, lease_id="the-losers")
    await deployment.store.commit(
        [deployment.ledger.planner.dispatch_put(loaded.record.job, loser, START_MS)]
    )
    assert await deployment.take("ocr") == []
    (attempt,) = await deployment.take("ocr")
    assert attempt.lease_id == loaded.record.outbox.lease_id
    await check_at_rest(world)


# The end


@pytest.mark.parametrize("status", [ResultStatus.SUCCEEDED, ResultStatus.FAILED_FINAL, None])
async def test_what_an_ended_job_leaves(
    world: World, deployment: Deployment, status: ResultStatus | None
) -> None:
    if status is None:
        job_id = await submit(deployment)
        await deployment.writer.apply(job_id, Cancel())
    else:
        job_id = (await ended(deployment, status)).job_id
    state = (await check_at_rest(world))[job_id].job.state
    for table in (T.inflight, T.due, T.dispatch):
        assert await of_table(world, table) == []
    assert len(await of_table(world, T.dlq)) == (1 if state is JobState.FAILED_FINAL else 0)
    assert len(await of_table(world, T.retention)) == 1
    assert deployment.admission.by_tenant == {}


async def test_the_code_of_a_failed_job_is_found_in_rows_of_every_age(
    world: World, deployment: Deployment
) -> None:
    attempt = await ended(deployment, ResultStatus.FAILED_FINAL)
    ((key, row),) = await deployment.lists.dlq("", 10)
    assert isinstance(row.error_code, str)
    wanted, other = DlqFilter(error_code=row.error_code), DlqFilter(error_code="OTHER")
    lane = lane_partition(row.lane)
    stored = await deployment.store.get(T.dlq, lane, key)
    assert stored is not None
    before = msgspec.json.decode(stored.body)
    del before["error_code"]
    await deployment.store.commit([put(T.dlq, lane, key, msgspec.json.encode(before))])
    ((_, old),) = await deployment.lists.dlq("", 10)
    assert old.job_id == attempt.job_id and old.error_code is msgspec.UNSET
    for each in (row, old):
        assert await deployment.lists.passes_dlq(each, wanted)
        assert not await deployment.lists.passes_dlq(each, other)


async def test_a_redriven_job_leaves_the_dlq(world: World, deployment: Deployment) -> None:
    attempt = await ended(deployment, ResultStatus.FAILED_FINAL)
    ((key, row),) = await deployment.lists.dlq("", 10)
    assert row.job_id == attempt.job_id and row.state == "FAILED_FINAL"
    assert await deployment.lists.dlq(key, 10) == []
    world.clock.now_ms += 1
    first = await deployment.reruns.rerun(attempt.job_id, from_step=None, key=None)
    again = await deployment.reruns.rerun(attempt.job_id, from_step=None, key=None)
    assert isinstance(first, Submitted) and isinstance(again, Submitted)
    assert (again.job_id, again.duplicate) == (first.job_id, True)
    assert await deployment.lists.dlq("", 10) == []
    await run_out(world)
    assert await deployment.lists.dlq("", 10) == []
    await check_at_rest(world)


async def test_a_rerun_is_run_by_the_engine_of_new_jobs(world: World, deployment: Deployment) -> None:
    """Those who ran the job before may have been put away since."""
    attempt = await ended(deployment, ResultStatus.FAILED_FINAL)
    assert (await world.records())[attempt.job_id].job.engine is Engine.OUTBOX
    store = TriedStore(world.store, world.places)
    moved = Deployment(store, world.layout, world.clock, world.ids, engine=Engine.TEMPORAL)
    accepted = await moved.reruns.rerun(attempt.job_id, from_step=None, key=None)
    assert isinstance(accepted, Submitted)
    again = (await world.records())[accepted.job_id]
    assert (again.job.engine, again.job.rerun_of) == (Engine.TEMPORAL, attempt.job_id)


async def test_a_lane_that_cannot_be_read_stops_no_other(tmp_path: Path) -> None:
    """As a store may throttle one partition and no other."""
    async with opened_world("memory-no-spans", LayoutName.LEDGER, tmp_path) as world:
        deployment = world.deployment()
        for number in (1, 2):
            await submit(deployment, number, mode=Mode.BURST, doc_id=f"document {number}")
        assert len(await deployment.take("ocr")) == 2
        jobs = {record.job.lane: job_id for job_id, record in (await world.records()).items()}
        slow, other = sorted(jobs)
        query = world.store.query

        async def throttled(table: str, partition: str, **bounds: Any) -> list[Row]:
            if (table, partition) == (T.due, lane_partition(slow)):
                raise StoreUnavailable("busy")
            return await query(table, partition, **bounds)

        world.store.query = throttled  # type: ignore[method-assign]
        world.clock.now_ms += DAY_MS
        await world.deployment().sweeper.sweep()
        records = await world.records()
        assert records[jobs[slow]].steps[0].state is StepState.INITIATED
        assert records[jobs[other]].steps[0].state is StepState.FAILED_RETRY


async def test_a_fact_stands_even_if_tidying_fails(world: World) -> None:
    """What is committed is answered as such; what could not be tidied is done when its row comes due."""
    attempt = await handed_out(world.deployment())

    async def fail() -> None:
        raise StoreUnavailable("out of reach")

    def tidies(ops: Sequence[Op]) -> bool:
        return ops[0].table == T.inflight

    deployment = world.deployment(Trial(at=tidies, sleeps=fail))
    assert (await deployment.result(attempt)).record.job.state is JobState.SUCCEEDED
    await check_always(world)
    await run_out(world)
    await check_at_rest(world)
