"""Index rows that were lost come back: every kind, whatever the job waits for, on every store and layout."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from tests.conformance.ledger_checks import check_at_rest, run_out
from tests.conformance.ledger_setup import DAY_MS, Deployment, T, Trial, TriedStore, World, envelope, submit

from lucius.core.inputs import Cancel, Pause, ResultStatus
from lucius.core.states import Engine
from lucius.engines.index_audit import IndexAuditor
from lucius.ledger.commit_plan import GRACE_MS
from lucius.ledger.index_audit import IndexAudit, IndexKind
from lucius.ledger.job_ledger import LayoutName
from lucius.ledger.store import discard, put

Setup = Callable[[World, Deployment], Awaitable[str]]


def audit_of(deployment: Deployment, *, kinds: frozenset[IndexKind] = frozenset(IndexKind)) -> IndexAuditor:
    audit = IndexAudit(deployment.ledger, now_ms=deployment.clock, kinds=kinds)
    return IndexAuditor(audit, rows_per_second=1_000_000, pass_every_seconds=0.01)


async def lose(world: World, *tables: str, partition: str = "") -> int:
    """Removes all rows of these tables, behind everybody's back."""
    lost = 0
    for table, where, key in await world.rows():
        if table in tables and where.startswith(partition):
            await world.store.commit([discard(table, where, key)])
            lost += 1
    return lost


async def waiting(world: World, deployment: Deployment) -> str:
    return await submit(deployment, len(world.ids.jobs) + 1)


async def handed_out(world: World, deployment: Deployment) -> str:
    job_id = await submit(deployment, len(world.ids.jobs) + 1)
    await deployment.take("ocr")
    return job_id


async def under_lease(world: World, deployment: Deployment) -> str:
    job_id = await submit(deployment, len(world.ids.jobs) + 1)
    (attempt,) = await deployment.take("ocr")
    await deployment.ack(attempt)
    return job_id


async def retrying(world: World, deployment: Deployment) -> str:
    job_id = await submit(deployment, len(world.ids.jobs) + 1)
    (attempt,) = await deployment.take("ocr")
    await deployment.result(attempt, ResultStatus.FAILED_RETRY, "BUSY")
    return job_id


async def paused(world: World, deployment: Deployment) -> str:
    job_id = await submit(deployment, len(world.ids.jobs) + 1)
    await deployment.writer.apply(job_id, Pause())
    return job_id


async def cancelling(world: World, deployment: Deployment) -> str:
    job_id = await under_lease(world, deployment)
    await deployment.writer.apply(job_id, Cancel())
    return job_id


async def past_its_sla(world: World, deployment: Deployment) -> str:
    """Escalated, and waiting for a worker still."""
    job_id = await submit(deployment, len(world.ids.jobs) + 1)
    world.clock.now_ms += 8 * DAY_MS
    await deployment.sweeper.sweep()
    return job_id


SCENES: tuple[Setup, ...] = (
    waiting,
    handed_out,
    under_lease,
    retrying,
    paused,
    cancelling,
    past_its_sla,
)


@pytest.mark.parametrize("setup", SCENES, ids=lambda setup: setup.__name__)
async def test_a_job_whose_index_rows_were_all_lost_goes_on(world: World, setup: Setup) -> None:
    deployment = world.deployment()
    job_id = await setup(world, deployment)
    before = await world.rows()
    assert await lose(world, T.due, T.dispatch, T.inflight, T.job_index) >= 4
    audit = audit_of(world.deployment())
    assert await audit.look() >= 4
    assert {(index, fault) for index, fault in audit.repairs if fault != "lost"} == set()
    after = await world.rows()
    assert after.keys() == before.keys()
    assert await audit_of(world.deployment()).look() == 0
    await check_at_rest(world)
    await run_out(world)
    assert (await check_at_rest(world))[job_id].job.terminal


@pytest.mark.parametrize(
    ("table", "kind", "setup"),
    [
        (T.due, "due", under_lease),
        (T.due, "due", retrying),
        (T.due, "due", paused),
        (T.due, "due", past_its_sla),
        (T.dispatch, "dispatch", waiting),
        (T.job_index, "list", waiting),
        (T.inflight, "slot", under_lease),
    ],
)
async def test_a_lost_row_is_put_back_and_counted(world: World, table: str, kind: str, setup: Setup) -> None:
    await setup(world, world.deployment())
    before = await world.rows()
    lost = await lose(world, table, partition="lane#" if kind == "list" else "")
    assert lost == 1
    audit = audit_of(world.deployment())
    assert await audit.look() == 1
    assert audit.repairs == {(kind, "lost"): 1}
    assert (await world.rows()).keys() == before.keys()
    await run_out(world)
    await check_at_rest(world)


async def test_nothing_is_put_right_where_nothing_is_wrong(world: World) -> None:
    deployment = world.deployment()
    await submit(deployment)
    (attempt,) = await deployment.take("ocr")
    await deployment.result(attempt, ResultStatus.FAILED_FINAL, "BROKEN")
    for setup in (handed_out, under_lease, cancelling, retrying, paused, waiting):
        await setup(world, deployment)
    world.clock.now_ms += GRACE_MS
    before = await world.rows()
    audit = audit_of(world.deployment())
    assert await audit.look() == 0
    assert (audit.passes, audit.repairs) == (1, {})
    assert await world.rows() == before


async def test_what_the_end_of_a_job_wrote_is_put_back(world: World) -> None:
    deployment = world.deployment()
    job_id = await submit(deployment, len(world.ids.jobs) + 1)
    (attempt,) = await deployment.take("ocr")
    await deployment.result(attempt, ResultStatus.FAILED_FINAL, "BROKEN")
    world.clock.now_ms += GRACE_MS
    before = await world.rows()
    assert await lose(world, T.dlq, T.retention, T.job_index) >= 4
    # A slot that was left behind, too, as a crash on a store that cannot span may leave one.
    await world.store.commit([put(T.inflight, "tenant_a", job_id, b'{"v":1,"mode":"DEFAULT"}')])
    assert await audit_of(world.deployment()).look() >= 5
    assert (await world.rows()).keys() == before.keys()
    await check_at_rest(world)


async def test_a_dead_letter_that_was_taken_up_stays_away(world: World) -> None:
    deployment = world.deployment()
    job_id = await submit(deployment, len(world.ids.jobs) + 1)
    (attempt,) = await deployment.take("ocr")
    await deployment.result(attempt, ResultStatus.FAILED_FINAL, "BROKEN")
    await deployment.reruns.rerun(job_id, from_step=None, key=None)
    world.clock.now_ms += GRACE_MS
    assert await audit_of(world.deployment()).look() == 0
    await check_at_rest(world)


async def test_rows_of_no_job_go_when_they_were_met_twice(world: World) -> None:
    deployment = world.deployment()
    job_id = await submit(deployment, len(world.ids.jobs) + 1)
    records = await world.records()
    ghost = msgspec.structs.replace(records[job_id].job, job_id="job_ghost", version=1)
    outbox = records[job_id].outbox
    assert outbox is not None
    planner = deployment.ledger.planner
    now_ms = world.clock.now_ms
    for op in (
        planner.slot_put(ghost),
        *planner.list_puts(ghost),
        *planner.search_puts(ghost),
        planner.dispatch_put(ghost, outbox, now_ms),
    ):
        await deployment.store.commit([op])
    audit = audit_of(world.deployment())
    assert await audit.look() == 0  # its job may just be coming
    world.clock.now_ms += 2 * GRACE_MS
    assert await audit.look() == 5
    assert audit.repairs == {
        ("slot", "orphan"): 1,
        ("list", "orphan"): 2,
        ("search", "orphan"): 1,
        ("dispatch", "orphan"): 1,
    }
    await check_at_rest(world)


async def test_rows_that_say_something_else_are_mended(world: World) -> None:
    deployment = world.deployment()
    await under_lease(world, deployment)
    await submit(deployment, 2)
    for table, partition, key in await world.rows():
        if table in (T.due, T.dispatch, T.inflight) or (table == T.job_index and partition[:4] != "job#"):
            await world.store.commit([put(table, partition, key, b"{}")])
    audit = audit_of(world.deployment())
    assert await audit.look() == 11
    assert {fault for _, fault in audit.repairs} == {"wrong"}
    await check_at_rest(world)
    await run_out(world)


async def test_a_row_of_a_later_version_is_left_alone(world: World) -> None:
    await under_lease(world, world.deployment())
    for table, partition, key in await world.rows():
        if table in (T.due, T.inflight):
            await world.store.commit([put(table, partition, key, b'{"v":2,"mode":"FROZEN"}')])
    before = await world.rows()
    assert await audit_of(world.deployment()).look() == 0
    assert await world.rows() == before


async def test_jobs_of_other_lanes_are_left_to_others(world: World) -> None:
    job_id = await submit(world.deployment())
    lane = (await world.records())[job_id].job.lane
    await lose(world, T.due)
    audit = IndexAudit(world.deployment().ledger, now_ms=world.clock)
    others = frozenset(range(16)) - {lane}
    assert await IndexAuditor(audit, rows_per_second=1_000_000, lanes=lambda: others).look() == 0
    assert await IndexAuditor(audit, rows_per_second=1_000_000, lanes=lambda: frozenset({lane})).look() == 1


async def test_a_job_that_ends_while_it_is_mended_keeps_no_slot(world: World) -> None:
    """The last worker's answer comes between the look and the repair."""
    first, second = world.deployment(), world.deployment()
    await submit(first)
    (attempt,) = await first.take("ocr")
    await first.ack(attempt)
    await lose(world, T.inflight)
    await lose(world, T.job_index, partition="tenant#")

    async def ends() -> None:
        await second.result(attempt)

    trial = Trial(at=0, sleeps=ends)
    await audit_of(world.deployment(trial)).look()
    world.clock.now_ms += GRACE_MS
    await audit_of(world.deployment()).look()
    await run_out(world)
    await check_at_rest(world)


async def test_an_audit_that_dies_at_any_write_leaves_nothing_behind(world: World) -> None:
    for at in range(4):
        deployment = world.deployment()
        await submit(deployment, at)
        await lose(world, T.due, T.dispatch, T.inflight)
        dying = world.deployment(Trial(at=at, dies_after=True))
        try:
            await audit_of(dying).look()
        except BaseException as death:
            assert type(death).__name__ == "Died"
        await audit_of(world.deployment()).look()
        await check_at_rest(world)
    await run_out(world)
    await check_at_rest(world)


async def test_a_pass_reads_no_more_than_it_may_in_a_second(world: World) -> None:
    deployment = world.deployment()
    for number in range(3):
        await submit(deployment, number)
    audit = IndexAudit(deployment.ledger, now_ms=world.clock)
    duty = IndexAuditor(audit, rows_per_second=200)
    began = asyncio.get_running_loop().time()
    await duty.look()
    seconds = asyncio.get_running_loop().time() - began
    assert audit.rows_read - 2 * 50 <= 200 * seconds


async def test_temporal_jobs_are_mended_as_well(world: World) -> None:
    store = TriedStore(world.store, world.places)
    deployment = Deployment(store, world.layout, world.clock, world.ids, engine=Engine.TEMPORAL)
    await deployment.submitter.submit(envelope(1))
    before = await world.rows()
    lost = await lose(world, T.due, T.inflight, T.job_index)
    assert await audit_of(deployment).look() == lost
    assert (await world.rows()).keys() == before.keys()


async def test_a_key_that_was_lost_finds_its_job_again(world: World) -> None:
    deployment = world.deployment()
    job_id = await submit(deployment, key="once")
    await lose(world, T.idempotency)
    audit = audit_of(world.deployment())
    assert await audit.look() == 1
    assert audit.repairs == {("key", "lost"): 1}
    assert await submit(world.deployment(), key="once") == job_id


async def test_copies_that_were_lost_are_written_again(world: World) -> None:
    """Where the `table` layout keeps the truth in one table and the others are copies."""
    if world.layout is not LayoutName.TABLE or world.store.spans:
        return
    await under_lease(world, world.deployment())
    await lose(world, T.jobs, T.outbox, T.events)
    world.clock.now_ms += GRACE_MS
    audit = audit_of(world.deployment())
    assert await audit.look() == 1
    assert audit.repairs == {("copy", "lost"): 1}
    await check_at_rest(world)
