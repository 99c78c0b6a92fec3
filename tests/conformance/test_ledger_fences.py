"""Rows are removed only as they were seen: what somebody announced again since then stays."""

from collections.abc import Sequence

import msgspec
import pytest
from tests.conformance.ledger_checks import check_always, check_at_rest, of_table, run_out
from tests.conformance.ledger_plays import finish, handed_out
from tests.conformance.ledger_setup import LAYOUTS, START_MS, T, Trial, World, submit

from lucius.core.decide import decide
from lucius.core.draft import Decision
from lucius.core.inputs import Result, ResultStatus
from lucius.ledger import layout, projections
from lucius.ledger.commit_plan import GRACE_MS
from lucius.ledger.job_ledger import LayoutName
from lucius.ledger.memory import MemoryStore
from lucius.ledger.names import time_key
from lucius.ledger.rows import version_of
from lucius.ledger.store import Conflict, Op, Row, discard, put


@pytest.fixture(params=LAYOUTS, ids=lambda layout: layout.value)
def world(request: pytest.FixtureRequest) -> World:
    return World(MemoryStore(spans=False), LayoutName(request.param))


async def only_row(world: World, table: str) -> tuple[str, str, Row]:
    ((partition, key),) = await of_table(world, table)
    row = await world.store.get(table, partition, key)
    assert row is not None
    return partition, key, row


async def test_a_due_row_that_was_announced_again_is_not_dropped(world: World) -> None:
    deployment = world.deployment()
    await submit(deployment)
    partition, key, row = await only_row(world, T.due)
    (entry,) = await deployment.indexes.due(int(partition), START_MS + GRACE_MS, 10)
    await world.store.commit([put(T.due, partition, key, row.body)])
    await deployment.indexes.drop_due(entry)
    assert await of_table(world, T.due) == [(partition, key)]
    (entry,) = await deployment.indexes.due(int(partition), START_MS + GRACE_MS, 10)
    await deployment.indexes.drop_due(entry)
    assert await of_table(world, T.due) == []


async def test_a_dispatch_row_that_was_announced_again_is_not_dropped(world: World) -> None:
    deployment = world.deployment()
    await submit(deployment)
    partition, key, row = await only_row(world, T.dispatch)
    lane = int(partition[-2:])
    (entry,) = await deployment.indexes.dispatch("ocr", lane, 10)
    await world.store.commit([put(T.dispatch, partition, key, row.body)])
    await deployment.indexes.drop_dispatch(entry)
    assert await of_table(world, T.dispatch) == [(partition, key)]
    (entry,) = await deployment.indexes.dispatch("ocr", lane, 10)
    await deployment.indexes.drop_dispatch(entry)
    assert await of_table(world, T.dispatch) == []


async def test_an_announcement_of_a_later_version_is_never_taken_over(world: World) -> None:
    """It shows that our own commit would be refused, and somebody may already rely on it."""
    attempt = await handed_out(world)
    deployment, now_ms = world.deployment(), START_MS + 5
    loaded = await deployment.ledger.load(attempt.job_id)
    assert loaded is not None
    failed = Result(
        step_id=attempt.step_id,
        attempt_no=1,
        lease_id=attempt.lease_id,
        content=dict,
        status=ResultStatus.FAILED_RETRY,
    )
    decision = decide(loaded.record, failed, now_ms=now_ms, lease_id="")
    assert isinstance(decision, Decision)
    wanted_ms = decision.record.steps[0].next_attempt_at_ms
    assert wanted_ms is not None
    later = msgspec.structs.replace(loaded.record.job, version=9)
    await deployment.store.commit([deployment.ledger.planner.due_put(later, wanted_ms, now_ms)])
    # Once the armed row has fired, the next deadline has to be announced.
    armed = decision.record.job.due_at_ms
    assert armed is not None and wanted_ms > armed
    world.clock.now_ms = armed
    with pytest.raises(Conflict):
        await deployment.ledger.commit(loaded, decision, armed)
    row = await world.store.get(T.due, f"{loaded.record.job.lane:02d}", time_key(wanted_ms, attempt.job_id))
    assert row is not None and version_of(row) == 9
    await check_always(world)


async def test_whoever_clears_up_leaves_the_rows_of_a_job_that_came_after_all(world: World) -> None:
    """The sweeper has set the tombstone and is about to take the slot back; a client finishes the job."""
    await finish(world)
    world.clock.now_ms += GRACE_MS

    async def ask_again() -> None:
        await submit(world.deployment(), request_type="OCR_EMBEDDING", key="k")

    def takes_the_slot_back(ops: Sequence[Op]) -> bool:
        return ops[0].table == T.inflight

    await world.deployment(Trial(at=takes_the_slot_back, sleeps=ask_again)).sweeper.sweep()
    assert len(await world.records()) == 1
    await check_always(world)
    await check_at_rest(world)
    await run_out(world)
    await check_at_rest(world)


# Reading and copying in pages


async def test_a_job_read_in_pages_is_of_one_version(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = await handed_out(world)
    monkeypatch.setattr(layout, "PAGE_ROWS_MAX", 2)
    reads = 0

    async def change_between_pages() -> None:
        nonlocal reads
        reads += 1
        if reads == 2:
            await world.deployment().ack(attempt)

    loaded = await world.deployment(waits=change_between_pages).ledger.load(attempt.job_id)
    assert loaded is not None and reads > 4
    assert loaded.record == (await world.records())[attempt.job_id]
    assert loaded.record.steps[0].acked


async def test_what_was_never_copied_is_copied_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(MemoryStore(spans=False), LayoutName.TABLE)
    monkeypatch.setattr(projections, "PAGE_EVENTS_MAX", 2)
    job_id = await submit(world.deployment(), request_type="OCR_EMBEDDING")
    await world.deployment().work()
    for table, partition, key in await world.rows():
        if table in (T.jobs, T.events, T.outbox):
            await world.store.commit([discard(table, partition, key)])
    await world.deployment().ledger.do_chores((await world.records())[job_id])
    await check_at_rest(world)


async def test_an_older_copy_never_replaces_a_newer_one() -> None:
    world = World(MemoryStore(spans=False), LayoutName.TABLE)
    job_id = await submit(world.deployment())
    old = (await world.records())[job_id]
    await world.deployment().work()
    rows = await world.rows()
    copies = world.deployment().ledger.projections
    assert copies is not None
    await copies.write(old, await world.events(job_id))
    await copies.complete(old)
    assert await world.rows() == rows
