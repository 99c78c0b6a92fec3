"""A clock that ran ahead and was set right: what it wrote waits for workers and for its own time, but not for
the clock to come to that hour again."""

import pytest
from tests.conformance.ledger_checks import check_always, of_table
from tests.conformance.ledger_setup import DAY_MS, LAYOUTS, Deployment, Died, T, Trial, World, submit, whose
from tests.conformance.ledger_temporal import TemporalWorld
from tests.conformance.test_ledger_audit import audit_of, lose

from lucius.core.draft import Outcome
from lucius.core.inputs import Ack, BeginAttempt, ResultStatus
from lucius.core.states import Fact, StepState
from lucius.engines.outbox.far_rows import FarRows
from lucius.engines.outbox.sweeper import Sweeper
from lucius.jobs.writer import Applied
from lucius.ledger.commit_plan import GRACE_MS
from lucius.ledger.index_audit import IndexAudit, IndexKind
from lucius.ledger.job_ledger import LayoutName
from lucius.ledger.memory import MemoryStore
from lucius.ledger.store import discard

HOUR_MS = 3_600_000
ACK_TIMEOUT_MS = 30_000
LEASE_MS = 900_000


@pytest.fixture(params=[HOUR_MS, 40 * DAY_MS], ids=["an-hour", "40-days"])
def ahead_ms(request: pytest.FixtureRequest) -> int:
    ahead: int = request.param
    return ahead


@pytest.fixture(params=[(layout, spans) for layout in LAYOUTS for spans in (True, False)], ids=str)
def world(request: pytest.FixtureRequest, ahead_ms: int) -> World:
    layout, spans = request.param
    world = World(MemoryStore(spans=spans), LayoutName(layout))
    world.clock.now_ms += ahead_ms
    return world


async def restarted(world: World, ahead_ms: int) -> tuple[Deployment, Sweeper]:
    """The clock is set right, and a new process begins."""
    world.clock.now_ms -= ahead_ms
    deployment = world.deployment()
    far = FarRows(deployment.indexes, now_ms=world.clock, walk_every_ms=1_000)
    sweeper = Sweeper(
        deployment.indexes, deployment.due_handler, now_ms=world.clock, look_every_ms=1_000, far=far
    )
    await sweeper.sweep()
    await check_always(world)
    return deployment, sweeper


async def facts(world: World, job_id: str) -> list[Fact]:
    return [event.type for event in await world.events(job_id)]


async def test_a_job_that_waits_for_a_worker_is_handed_out_at_once(world: World, ahead_ms: int) -> None:
    job_id = await submit(world.deployment())
    world.clock.now_ms -= ahead_ms
    deployment = world.deployment()
    (attempt,) = await deployment.take("ocr")
    assert attempt.job_id == job_id


async def test_jobs_of_the_clock_ahead_are_not_the_last_for_good(world: World, ahead_ms: int) -> None:
    first = await submit(world.deployment(), 1)
    deployment, _ = await restarted(world, ahead_ms)
    world.clock.now_ms += 1_000
    second = await submit(deployment, 2)
    taken = [attempt.job_id for _ in range(2) for attempt in await deployment.take("ocr", directives_max=1)]
    assert taken == [first, second]
    await check_always(world)


async def test_an_attempt_has_its_time_from_when_the_clock_is_right(world: World, ahead_ms: int) -> None:
    before = world.deployment()
    job_id = await submit(before)
    await before.take("ocr")
    _, sweeper = await restarted(world, ahead_ms)
    world.clock.now_ms += ACK_TIMEOUT_MS - 1
    await sweeper.sweep()
    assert Fact.STEP_RETRYING not in await facts(world, job_id)
    world.clock.now_ms += 1
    await sweeper.sweep()
    assert Fact.STEP_RETRYING in await facts(world, job_id)
    await check_always(world)


async def test_an_answer_counts_and_its_lease_is_one_of_the_right_clock(world: World, ahead_ms: int) -> None:
    before = world.deployment()
    job_id = await submit(before)
    (attempt,) = await before.take("ocr")
    deployment, sweeper = await restarted(world, ahead_ms)
    await deployment.writer.apply(job_id, Ack(**whose(attempt)))
    world.clock.now_ms += LEASE_MS - 1
    await sweeper.sweep()
    assert Fact.STEP_RETRYING not in await facts(world, job_id)
    world.clock.now_ms += 1
    await sweeper.sweep()
    assert Fact.STEP_RETRYING in await facts(world, job_id)


async def test_an_attempt_that_was_pulled_in_and_answered_goes_on(world: World, ahead_ms: int) -> None:
    before = world.deployment()
    job_id = await submit(before)
    (attempt,) = await before.take("ocr")
    await before.ack(attempt)
    deployment, sweeper = await restarted(world, ahead_ms)
    await deployment.result(attempt)
    for _ in range(4):
        world.clock.now_ms += LEASE_MS
        await sweeper.sweep()
    assert Fact.JOB_SUCCEEDED in await facts(world, job_id)
    assert await of_table(world, T.due) == []


async def test_a_backoff_that_the_clock_ahead_counted_is_over(world: World, ahead_ms: int) -> None:
    before = world.deployment()
    await submit(before)
    (attempt,) = await before.take("ocr")
    await before.ack(attempt)
    await before.result(attempt, ResultStatus.FAILED_RETRY)
    deployment, sweeper = await restarted(world, ahead_ms)
    await sweeper.sweep()
    (again,) = await deployment.take("ocr")
    assert again.attempt_no == 2
    await check_always(world)


async def test_a_lost_row_of_the_clock_ahead_is_put_back_as_one(world: World, ahead_ms: int) -> None:
    before = world.deployment()
    job_id = await submit(before)
    await before.take("ocr")
    assert await lose(world, T.due) == 1
    world.clock.now_ms -= ahead_ms
    assert await audit_of(world.deployment()).look() == 1
    world.clock.now_ms += ahead_ms
    _, sweeper = await restarted(world, ahead_ms)
    world.clock.now_ms += ACK_TIMEOUT_MS
    await sweeper.sweep()
    assert Fact.STEP_RETRYING in await facts(world, job_id)


async def test_a_job_that_was_never_created_is_cleared_after_its_grace(world: World, ahead_ms: int) -> None:
    if world.store.spans:
        return  # one commit leaves nothing half done
    deployment = world.deployment(
        Trial(at=lambda ops: any(op.table == T.idempotency for op in ops), dies_before=True)
    )
    await deployment.warm()
    with pytest.raises(Died):
        await submit(deployment)
    assert await of_table(world, T.due) and await of_table(world, T.inflight)
    _, sweeper = await restarted(world, ahead_ms)
    assert await of_table(world, T.inflight), "whoever announced it may still be at it"
    world.clock.now_ms += GRACE_MS
    await sweeper.sweep()
    assert await of_table(world, T.due) == [] and await of_table(world, T.inflight) == []


async def put_back_due_rows(world: World) -> None:
    """All due rows vanish, and the audit puts them back."""
    before = await of_table(world, T.due)
    for partition, key in before:
        await world.store.commit([discard(T.due, partition, key)])
    audit = IndexAudit(world.deployment().ledger, now_ms=world.clock, kinds=frozenset({IndexKind.DUE}))
    for row in await audit.jobs(None, 100):
        compared = await audit.compare(row)
        assert compared is not None
        await audit.mend(compared)
    assert await of_table(world, T.due) == before


async def test_a_lost_row_of_the_clock_ahead_is_still_one_when_it_is_back(
    world: World, ahead_ms: int
) -> None:
    before = world.deployment()
    job_id = await submit(before)
    (attempt,) = await before.take("ocr")
    await before.ack(attempt)
    world.clock.now_ms -= ahead_ms
    await put_back_due_rows(world)
    world.clock.now_ms += ahead_ms
    _, sweeper = await restarted(world, ahead_ms)
    world.clock.now_ms += LEASE_MS - 1
    await sweeper.sweep()
    assert Fact.STEP_RETRYING not in await facts(world, job_id)
    world.clock.now_ms += 1
    await sweeper.sweep()
    assert Fact.STEP_RETRYING in await facts(world, job_id)
    await check_always(world)


async def test_a_row_that_was_lost_once_it_was_pulled_in_gives_the_attempt_its_time_anew(
    world: World, ahead_ms: int
) -> None:
    """Which deadline is over with it was known to the row alone."""
    before = world.deployment()
    job_id = await submit(before)
    (attempt,) = await before.take("ocr")
    await before.ack(attempt)
    _, sweeper = await restarted(world, ahead_ms)
    await put_back_due_rows(world)
    world.clock.now_ms += LEASE_MS
    await sweeper.sweep()
    assert Fact.STEP_RETRYING not in await facts(world, job_id)
    world.clock.now_ms += LEASE_MS
    await sweeper.sweep()
    assert Fact.STEP_RETRYING in await facts(world, job_id)
    await check_always(world)


# The same on the temporal engine, where workflows keep the time and rows are alarms.


@pytest.fixture(params=[(layout, spans) for layout in LAYOUTS for spans in (True, False)], ids=str)
def temporal(request: pytest.FixtureRequest, ahead_ms: int) -> TemporalWorld:
    layout, spans = request.param
    world = TemporalWorld(MemoryStore(spans=spans), LayoutName(layout))
    world.clock.now_ms += ahead_ms
    return world


async def restarted_invoker(world: TemporalWorld, ahead_ms: int) -> tuple[Deployment, Sweeper]:
    world.clock.now_ms -= ahead_ms
    deployment = world.deployment()
    far = FarRows(deployment.indexes, now_ms=world.clock, walk_every_ms=1_000)
    sweeper = Sweeper(
        deployment.indexes, deployment.due_handler, now_ms=world.clock, look_every_ms=1_000, far=far
    )
    await sweeper.sweep()
    return deployment, sweeper


async def test_a_workflow_that_sleeps_for_the_clock_ahead_is_told_of_the_end(
    temporal: TemporalWorld, ahead_ms: int
) -> None:
    before = temporal.deployment()
    job_id = await submit(before)
    await before.take("ocr")
    _, sweeper = await restarted_invoker(temporal, ahead_ms)
    temporal.clock.now_ms += ACK_TIMEOUT_MS - 1
    await sweeper.sweep()
    assert Fact.STEP_RETRYING not in await facts(temporal, job_id)
    temporal.clock.now_ms += 1
    await sweeper.sweep()
    assert Fact.STEP_RETRYING in await facts(temporal, job_id)
    assert temporal.signals.last[job_id].position.step_state is StepState.FAILED_RETRY


async def test_a_workflow_that_waits_out_a_backoff_of_the_clock_ahead_is_told_to_go_on(
    temporal: TemporalWorld, ahead_ms: int
) -> None:
    before = temporal.deployment()
    job_id = await submit(before)
    (attempt,) = await before.take("ocr")
    await before.ack(attempt)
    await before.result(attempt, ResultStatus.FAILED_RETRY)
    deployment, _ = await restarted_invoker(temporal, ahead_ms)
    told = temporal.signals.last[job_id].position
    assert told.next_attempt_at_ms == temporal.clock.now_ms
    again = BeginAttempt(step_id="step_01", attempt_no=2, lease_id="another")
    applied = await deployment.writer.apply(job_id, again)
    assert isinstance(applied, Applied) and applied.outcome is Outcome.APPLIED


async def test_a_lost_alarm_of_the_clock_ahead_is_still_one_when_it_is_back(
    temporal: TemporalWorld, ahead_ms: int
) -> None:
    before = temporal.deployment()
    job_id = await submit(before)
    await before.take("ocr")
    temporal.clock.now_ms -= ahead_ms
    await put_back_due_rows(temporal)
    temporal.clock.now_ms += ahead_ms
    _, sweeper = await restarted_invoker(temporal, ahead_ms)
    temporal.clock.now_ms += ACK_TIMEOUT_MS
    await sweeper.sweep()
    assert Fact.STEP_RETRYING in await facts(temporal, job_id)
