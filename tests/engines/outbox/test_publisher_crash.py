"""The publisher when things go wrong between two steps of its own, and when users change their minds."""

import asyncio
from collections.abc import Callable
from functools import partial

import pytest
from tests.support.publisher_setup import LANE, TENANT, Deployment, Out, Worker, World, fates

from lucius.bus.memory import PublishFault
from lucius.core.inputs import Cancel, Pause, Resume
from lucius.core.model import StepPolicy
from lucius.core.states import Fact, OutboxState
from lucius.engines.outbox.publisher import PAGE_ROWS_MAX
from lucius.ledger.commit_plan import GRACE_MS
from lucius.ledger.names import Tables, dispatch_key, dispatch_partition, time_key
from lucius.ledger.rows import DispatchRow, encode
from lucius.ledger.store import Row, put

TABLE, PARTITION = Tables().dispatch, dispatch_partition("ocr", LANE)


async def dispatch_rows(world: "World") -> list[Row]:
    return await world.store.query(TABLE, PARTITION, limit=1_000)


# What a crash leaves


async def test_a_crash_between_publish_and_note_publishes_the_same_attempt_again() -> None:
    world = World()
    deployment = Deployment(world, hints=False)
    job_id = await deployment.submit()
    world.writes_lost = 1
    await deployment.look()
    assert await deployment.states(job_id) == ("DISPATCHING", "DISPATCHING")
    await Deployment(world).look()
    first, second = await Worker(world).take()
    assert first.message_id == second.message_id
    record = await deployment.record(job_id)
    assert await deployment.states(job_id) == ("DISPATCHING", "INITIATED")
    assert (record.steps[0].attempt_no, record.job.attempts_total) == (1, 1)


async def test_a_note_that_failed_is_made_up_for_without_publishing_again() -> None:
    world = World()
    deployment = Deployment(world, hints=False)
    job_id = await deployment.submit()
    world.writes_lost = 1
    await deployment.look()
    assert deployment.publisher.unacked("ocr", LANE) == 1
    await deployment.look()
    assert world.bus.directive_depth("ocr", LANE) == 1
    assert await deployment.states(job_id) == ("DISPATCHING", "INITIATED")


async def test_a_publish_whose_answer_was_lost_is_repeated_under_the_same_id() -> None:
    world = World()
    deployment = Deployment(world, policy=StepPolicy(backoff_publish_ms=(1_000,)))
    world.bus.on_publish = fates(PublishFault.UNANSWERED)
    job_id = await deployment.submit()
    await deployment.publisher.idle()
    await deployment.later(1_000)
    first, second = await Worker(world).take()
    assert first.message_id == second.message_id
    assert await deployment.states(job_id) == ("DISPATCHING", "INITIATED")


async def test_a_row_that_a_crash_left_behind_is_cleared_and_not_sent() -> None:
    world = World(spans=False)
    deployment = Deployment(world, hints=False)
    job_id = await deployment.submit()
    (row,) = await dispatch_rows(world)
    await deployment.look()
    assert await dispatch_rows(world) == []
    await world.store.commit([put(TABLE, PARTITION, row.key, row.body)])
    await deployment.look()
    assert await dispatch_rows(world) == []
    assert world.bus.directive_depth("ocr", LANE) == 1
    assert (await deployment.facts(job_id)).count(Fact.DIRECTIVE_PUBLISHED) == 1


@pytest.mark.parametrize("place", [time_key, partial(dispatch_key, TENANT)], ids=["of before", "of now"])
async def test_rows_whose_jobs_are_still_being_written_hold_no_other_up(
    place: Callable[[int, str], str],
) -> None:
    world = World(spans=False)
    deployment = Deployment(world, hints=False)
    job_id = await deployment.submit()
    announced = DispatchRow(
        version=1, written_at_ms=world.clock_ms, step_id="step_01", attempt_no=1, lease_id="lease"
    )
    for number in range(PAGE_ROWS_MAX + 10):
        key = place(world.clock_ms - 1, f"job_slow_{number}")
        await world.store.commit([put(TABLE, PARTITION, key, encode(announced))])
    await deployment.look()
    assert (await deployment.states(job_id))[1] == "INITIATED"
    assert len(await dispatch_rows(world)) == PAGE_ROWS_MAX + 10
    world.clock_ms += GRACE_MS
    await deployment.look()
    assert await dispatch_rows(world) == []


@pytest.mark.parametrize("published", [True, False])
async def test_a_ledger_that_is_down_costs_no_attempt(published: bool) -> None:
    world = World()
    deployment = Deployment(world, hints=False)
    job_id = await deployment.submit()
    world.bus.down = not published
    world.ledger_down = True
    await deployment.look()
    world.ledger_down = world.bus.down = False
    await deployment.look()
    record = await deployment.record(job_id)
    assert record.outbox is not None and record.outbox.failures == 0
    assert await deployment.states(job_id) == ("DISPATCHING", "INITIATED")
    assert world.bus.directive_depth("ocr", LANE) == 1


async def test_stopping_finishes_what_is_on_its_way() -> None:
    world = World()
    deployment = Deployment(world)
    began, let_go = asyncio.Event(), asyncio.Event()

    async def slow(out: "Out") -> PublishFault:
        began.set()
        await let_go.wait()
        return PublishFault.KEPT

    world.bus.on_publish = slow
    async with deployment.relaying():
        job_id = await deployment.submit()
        await began.wait()
        deployment.publisher.stop()
        late = await deployment.submit()
        asyncio.get_running_loop().call_later(0.05, let_go.set)
    assert (await deployment.states(job_id))[1] == "INITIATED"
    assert (await deployment.states(late))[1] == "DISPATCHING"
    assert world.bus.directive_depth("ocr", LANE) == 1


async def test_a_running_publisher_retries_by_itself() -> None:
    world = World()
    deployment = Deployment(world, hints=False, policy=StepPolicy(backoff_publish_ms=(1_000,)))
    world.bus.down = True
    job_id = await deployment.submit()
    async with deployment.relaying(), asyncio.timeout(5):
        while Fact.PUBLISH_FAILED not in await deployment.facts(job_id):
            await asyncio.sleep(0.002)
        world.bus.down = False
        world.clock_ms += 1_000
        while (await deployment.states(job_id))[1] != "INITIATED":
            await asyncio.sleep(0.002)
    assert world.bus.directive_depth("ocr", LANE) == 1


# Controls


async def test_a_pause_holds_a_waiting_row_and_resume_lets_it_go() -> None:
    world = World()
    deployment = Deployment(world, policy=StepPolicy(backoff_publish_ms=(1_000,)))
    world.bus.down = True
    job_id = await deployment.submit()
    await deployment.publisher.idle()
    lease_id = (await deployment.record(job_id)).steps[0].lease_id
    await deployment.apply(job_id, Pause())
    world.bus.down = False
    await deployment.later(10_000)
    assert await deployment.states(job_id) == ("PAUSED", "DISPATCHING")
    assert world.bus.directive_depth("ocr", LANE) == 0
    await deployment.apply(job_id, Resume())
    await deployment.look()
    directive = await Worker(world).take_one()
    assert (directive["attempt_no"], directive["lease_id"]) == (1, lease_id)


async def test_a_cancel_closes_a_waiting_row() -> None:
    world = World()
    deployment = Deployment(world)
    world.bus.down = True
    job_id = await deployment.submit()
    await deployment.publisher.idle()
    await deployment.apply(job_id, Cancel())
    world.bus.down = False
    await deployment.later(3_600_000)
    record = await deployment.record(job_id)
    assert await deployment.states(job_id) == ("CANCELLED", "CANCELLED")
    assert record.outbox is not None and record.outbox.state is OutboxState.CANCELLED
    assert world.bus.directive_depth("ocr", LANE) == 0


async def test_a_cancel_that_meets_a_publish_on_its_way_wins() -> None:
    world = World()
    deployment = Deployment(world)
    began, let_go = asyncio.Event(), asyncio.Event()

    async def slow(out: "Out") -> PublishFault:
        began.set()
        await let_go.wait()
        return PublishFault.KEPT

    world.bus.on_publish = slow
    job_id = await deployment.submit()
    await began.wait()
    await deployment.apply(job_id, Cancel())
    let_go.set()
    await deployment.publisher.idle()
    assert await deployment.states(job_id) == ("CANCELLED", "CANCELLED")
    assert deployment.publisher.unacked("ocr", LANE) == 0
