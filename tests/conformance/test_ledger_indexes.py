"""The rows around the truth: the due index, the dispatch index, and what a job leaves when it has ended."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from lucius.core.draft import Decision
from lucius.core.inputs import Cancel, Pause, ResultStatus, Resume
from lucius.core.states import Engine, JobState, Mode, StepState
from lucius.intake.submit import Accepted
from lucius.ledger.jobs import LayoutName
from lucius.ledger.names import lane_partition
from lucius.ledger.store import Op, Row, StoreUnavailable
from lucius.progress.tokens import Attempt

if TYPE_CHECKING:
    from tests.conformance.ledger_checks import check_always, check_at_rest, of_table, run_out
    from tests.conformance.ledger_house import (
        DAY_MS,
        START_MS,
        House,
        T,
        Trial,
        TriedStore,
        World,
        opened_world,
        submit,
    )
else:
    from ledger_checks import check_always, check_at_rest, of_table, run_out
    from ledger_house import (
        DAY_MS,
        START_MS,
        House,
        T,
        Trial,
        TriedStore,
        World,
        opened_world,
        submit,
    )


@pytest.fixture
async def house(world: World) -> House:
    ready = world.house()
    await ready.warm()
    return ready


async def handed_out(house: House, request_type: str = "OCR") -> Attempt:
    await submit(house, request_type=request_type)
    (attempt,) = await house.take("ocr")
    return attempt


async def ended(house: House, status: ResultStatus = ResultStatus.SUCCEEDED) -> Attempt:
    attempt = await handed_out(house)
    await house.result(attempt, status, "BROKEN")
    return attempt


# The due index


async def test_a_deadline_that_moves_later_costs_no_row(world: World, house: House) -> None:
    attempt = await handed_out(house)
    armed = await of_table(world, T.due)
    assert [key[:14] for _, key in armed] == [f"{START_MS + 30_000:014d}"]
    world.clock.now_ms += 10
    house.store.commits.clear()
    await house.ack(attempt)
    written = {op.table for ops in house.store.commits for op in ops}
    assert T.due not in written and await of_table(world, T.due) == armed
    world.clock.now_ms = START_MS + 30_000
    assert await house.sweeper.sweep() == 1
    assert [key[:14] for _, key in await of_table(world, T.due)] == [f"{START_MS + 10 + 900_000:014d}"]
    assert house.sweeper.actions == {"moved": 1}
    await check_at_rest(world)


async def test_a_paused_job_keeps_a_due_row(world: World, house: House) -> None:
    job_id = await submit(house)
    await house.progress.apply(job_id, Pause())
    for _ in range(5):
        world.clock.now_ms += DAY_MS
        await house.sweeper.sweep()
        await check_at_rest(world)
    assert len(await of_table(world, T.due)) == 1


async def test_rows_that_must_wait_do_not_hide_those_behind_them(world: World, house: House) -> None:
    attempt = await handed_out(house)
    loaded = await house.ledger.load(attempt.job_id)
    assert loaded is not None
    job, now_ms = loaded.record.job, START_MS + 31_000
    for number in range(130):
        # Announced by somebody just now, for jobs that are still to come.
        coming = msgspec.structs.replace(job, job_id=f"job_coming_{number}", version=1)
        await house.store.commit([house.ledger.planner.due_put(coming, START_MS + number, now_ms)])
    world.clock.now_ms = now_ms
    await house.sweeper.sweep()
    assert house.sweeper.actions == {"waiting": 130, "acted": 1}


async def test_a_job_that_cannot_be_read_stops_nobody_else(world: World, house: House) -> None:
    attempt = await handed_out(house)
    loaded = await house.ledger.load(attempt.job_id)
    assert loaded is not None
    broken = msgspec.structs.replace(loaded.record.job, job_id="job_broken", version=1)
    write = house.ledger.layout.job_write(broken, None)
    bad = msgspec.structs.replace(write, body=b'{"job_id":1}')
    await house.store.commit([bad])
    for op in house.ledger.layout.created(broken):
        await house.store.commit([op])
    await house.store.commit([house.ledger.planner.due_put(broken, START_MS, START_MS)])
    world.clock.now_ms += 30_000
    assert await house.sweeper.sweep() == 2
    assert house.sweeper.actions == {"unreadable": 1, "acted": 1}
    (row,) = house.ledger.quarantine.rows()
    assert (row.job_id, row.later_version) == ("job_broken", False)


async def test_a_cancelling_job_past_its_sla_is_not_looked_at_all_the_time(
    world: World, house: House
) -> None:
    attempt = await handed_out(house)
    await house.ack(attempt)
    await house.progress.apply(attempt.job_id, Cancel())
    loaded = await house.ledger.load(attempt.job_id)
    assert loaded is not None
    old = msgspec.structs.replace(loaded.record.job, sla_ms=1_000)
    record = msgspec.structs.replace(loaded.record, job=old)
    world.clock.now_ms += 10_000
    await house.ledger.commit(loaded, Decision(record=record), world.clock.now_ms)
    await house.sweeper.sweep()
    assert await house.sweeper.sweep() == 0
    await check_at_rest(world)


# The dispatch index


async def test_a_paused_job_is_held_and_comes_back(world: World, house: House) -> None:
    job_id = await submit(house)
    waiting = await of_table(world, T.dispatch)
    assert len(waiting) == 1
    await house.progress.apply(job_id, Pause())
    assert await of_table(world, T.dispatch) == []
    assert await house.take("ocr") == []
    await check_at_rest(world)
    await house.progress.apply(job_id, Resume())
    assert await of_table(world, T.dispatch) == waiting
    (attempt,) = await house.take("ocr")
    assert attempt.attempt_no == 1
    assert await of_table(world, T.dispatch) == []
    await check_at_rest(world)


async def test_a_row_that_names_another_attempt_is_mended(world: World, house: House) -> None:
    """Two writers announced the same millisecond; the row is the loser's, the attempt the winner's."""
    job_id = await submit(house)
    loaded = await house.ledger.load(job_id)
    assert loaded is not None and loaded.record.outbox is not None
    loser = msgspec.structs.replace(loaded.record.outbox, lease_id="the-losers")
    await house.store.commit([house.ledger.planner.dispatch_put(loaded.record.job, loser, START_MS)])
    assert await house.take("ocr") == []
    (attempt,) = await house.take("ocr")
    assert attempt.lease_id == loaded.record.outbox.lease_id
    await check_at_rest(world)


# The end


@pytest.mark.parametrize("status", [ResultStatus.SUCCEEDED, ResultStatus.FAILED_FINAL, None])
async def test_what_an_ended_job_leaves(world: World, house: House, status: ResultStatus | None) -> None:
    if status is None:
        job_id = await submit(house)
        await house.progress.apply(job_id, Cancel())
    else:
        job_id = (await ended(house, status)).job_id
    state = (await check_at_rest(world))[job_id].job.state
    for table in (T.inflight, T.due, T.dispatch):
        assert await of_table(world, table) == []
    assert len(await of_table(world, T.dlq)) == (1 if state is JobState.FAILED_FINAL else 0)
    assert len(await of_table(world, T.retention)) == 1
    assert house.admission.by_tenant == {}


async def test_a_redriven_job_leaves_the_dlq(world: World, house: House) -> None:
    attempt = await ended(house, ResultStatus.FAILED_FINAL)
    ((key, row),) = await house.lists.dlq("", 10)
    assert row.job_id == attempt.job_id and row.state == "FAILED_FINAL"
    assert await house.lists.dlq(key, 10) == []
    world.clock.now_ms += 1
    first = await house.reruns.rerun(attempt.job_id, from_step=None, key=None)
    again = await house.reruns.rerun(attempt.job_id, from_step=None, key=None)
    assert isinstance(first, Accepted) and isinstance(again, Accepted)
    assert (again.job_id, again.duplicate) == (first.job_id, True)
    assert await house.lists.dlq("", 10) == []
    await run_out(world)
    assert await house.lists.dlq("", 10) == []
    await check_at_rest(world)


async def test_a_rerun_is_run_by_the_engine_of_new_jobs(world: World, house: House) -> None:
    """Those who ran the job before may have been put away since."""
    attempt = await ended(house, ResultStatus.FAILED_FINAL)
    assert (await world.records())[attempt.job_id].job.engine is Engine.OUTBOX
    store = TriedStore(world.store, world.places)
    moved = House(store, world.layout, world.clock, world.ids, engine=Engine.TEMPORAL)
    accepted = await moved.reruns.rerun(attempt.job_id, from_step=None, key=None)
    assert isinstance(accepted, Accepted)
    again = (await world.records())[accepted.job_id]
    assert (again.job.engine, again.job.rerun_of) == (Engine.TEMPORAL, attempt.job_id)


async def test_a_lane_that_cannot_be_read_stops_no_other(tmp_path: Path) -> None:
    """As a store may throttle one partition and no other."""
    async with opened_world("memory-no-spans", LayoutName.LEDGER, tmp_path) as world:
        house = world.house()
        for number in (1, 2):
            await submit(house, number, mode=Mode.BURST, doc_id=f"document {number}")
        assert len(await house.take("ocr")) == 2
        jobs = {record.job.lane: job_id for job_id, record in (await world.records()).items()}
        slow, other = sorted(jobs)
        query = world.store.query

        async def throttled(table: str, partition: str, **bounds: Any) -> list[Row]:
            if (table, partition) == (T.due, lane_partition(slow)):
                raise StoreUnavailable("busy")
            return await query(table, partition, **bounds)

        world.store.query = throttled  # type: ignore[method-assign]
        world.clock.now_ms += DAY_MS
        await world.house().sweeper.sweep()
        records = await world.records()
        assert records[jobs[slow]].steps[0].state is StepState.INITIATED
        assert records[jobs[other]].steps[0].state is StepState.FAILED_RETRY


async def test_a_fact_stands_even_if_tidying_fails(world: World) -> None:
    """What is committed is answered as such; what could not be tidied is done when its row comes due."""
    attempt = await handed_out(world.house())

    async def fail() -> None:
        raise StoreUnavailable("out of reach")

    def tidies(ops: Sequence[Op]) -> bool:
        return ops[0].table == T.inflight

    house = world.house(Trial(at=tidies, sleeps=fail))
    assert (await house.result(attempt)).record.job.state is JobState.SUCCEEDED
    await check_always(world)
    await run_out(world)
    await check_at_rest(world)
