"""Priority on every store: the order of a tenant's directives, and the rows that stand for it."""

import pytest
from tests.conformance.ledger_checks import check_always, check_at_rest, of_table
from tests.conformance.ledger_setup import TENANT, Deployment, T, World, submit

from lucius.core.inputs import Cancel, Pause, PublishFailed, ResultStatus, Resume
from lucius.core.priority import LEVEL_MS
from lucius.jobs.submit import Submitted


@pytest.fixture
async def deployment(world: World) -> Deployment:
    ready = world.deployment()
    await ready.warm()
    return ready


async def order(deployment: Deployment) -> list[str]:
    """Which jobs leave, one after another."""
    found: list[str] = []
    while taken := await deployment.take("ocr", directives_max=1):
        found += [attempt.job_id for attempt in taken]
    return found


async def test_the_higher_leaves_first_and_the_older_among_equals(
    world: World, deployment: Deployment
) -> None:
    jobs = {}
    for number, priority in enumerate((5, 0, 9, 5, 7, 9)):
        world.clock.now_ms += 1
        jobs[number] = await submit(deployment, number, priority=priority)
        await check_always(world)
    assert await order(deployment) == [jobs[number] for number in (2, 5, 4, 0, 3, 1)]
    await check_at_rest(world)


async def test_waiting_makes_up_for_a_low_priority(world: World, deployment: Deployment) -> None:
    low = await submit(deployment, 1, priority=0)
    world.clock.now_ms += 9 * LEVEL_MS - 1
    high = await submit(deployment, 2, priority=9)
    world.clock.now_ms += 2
    later = await submit(deployment, 3, priority=9)
    assert await order(deployment) == [high, low, later]


async def test_priority_gives_a_tenant_nothing_of_anothers_share(
    world: World, deployment: Deployment
) -> None:
    mine = [await submit(deployment, number, priority=9) for number in range(8)]
    other = await submit(deployment, 9, priority=0, tenant="tenant_b")
    taken = [attempt.job_id for attempt in await deployment.take("ocr", directives_max=8)]
    assert other in taken and len(set(taken) & set(mine)) == 7


async def test_rows_go_with_their_jobs(world: World, deployment: Deployment) -> None:
    paused = await submit(deployment, 1, priority=9)
    cancelled = await submit(deployment, 2, priority=2)
    for job_id, given in ((paused, Pause()), (cancelled, Cancel())):
        await deployment.writer.apply(job_id, given)
        await check_always(world)
    assert await of_table(world, T.dispatch) == []
    await deployment.writer.apply(paused, Resume())
    assert await order(deployment) == [paused]
    await check_at_rest(world)


async def test_a_directive_that_was_refused_leaves_after_its_backoff(
    world: World, deployment: Deployment
) -> None:
    job_id = await submit(deployment, 1, priority=9)
    ready = await submit(deployment, 2, priority=0)
    loaded = await deployment.ledger.load(job_id)
    assert loaded is not None and loaded.record.outbox is not None
    row = loaded.record.outbox
    refused = PublishFailed(
        step_id=row.step_id, attempt_no=row.attempt_no, lease_id=row.lease_id, error_message="no"
    )
    await deployment.writer.apply(job_id, refused)
    await check_always(world)
    entries = await deployment.indexes.dispatch("ocr", row.lane, 10)
    assert [entry.job_id for entry in entries] == [ready, job_id], "none waits for the backoff of another"
    assert entries[1].at_ms == world.clock.now_ms + 30_000
    assert await order(deployment) == [ready, job_id]
    await check_at_rest(world)


async def test_a_retry_and_a_rerun_keep_the_priority(world: World, deployment: Deployment) -> None:
    job_id = await submit(deployment, 1, priority=8)
    (attempt,) = await deployment.take("ocr")
    await deployment.result(attempt, ResultStatus.FAILED_FINAL, "BROKEN")
    assert isinstance(await deployment.reruns.rerun(job_id, from_step=None, key=None), Submitted)
    records = await world.records()
    assert [record.job.priority for record in records.values()] == [8, 8]
    assert {record.job.tenant_norm for record in records.values()} == {TENANT}
