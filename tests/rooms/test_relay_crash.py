"""The relay when things go wrong between two steps of its own, and when users change their minds."""

import asyncio
from typing import TYPE_CHECKING

import pytest

from lucius.bus.memory import Fate
from lucius.core.inputs import Cancel, Pause, Resume
from lucius.core.model import StepPolicy
from lucius.core.states import Fact, OutboxState
from lucius.engines.outbox.relay import PAGE_ROWS_MAX
from lucius.ledger.names import Tables, dispatch_partition, time_key
from lucius.ledger.plan import GRACE_MS
from lucius.ledger.rows import DispatchRow, encode
from lucius.ledger.store import Row, put

if TYPE_CHECKING:
    from tests.rooms.relay_house import LANE, House, Out, Worker, World, fates
else:
    from relay_house import LANE, House, Worker, World, fates

TABLE, PARTITION = Tables().dispatch, dispatch_partition("ocr", LANE)


async def dispatch_rows(world: "World") -> list[Row]:
    return await world.store.query(TABLE, PARTITION, limit=1_000)


# What a crash leaves


async def test_a_crash_between_publish_and_note_publishes_the_same_attempt_again() -> None:
    world = World()
    house = House(world, hints=False)
    job_id = await house.submit()
    world.writes_lost = 1
    await house.look()
    assert await house.states(job_id) == ("DISPATCHING", "DISPATCHING")
    await House(world).look()
    first, second = await Worker(world).take()
    assert first.message_id == second.message_id
    record = await house.record(job_id)
    assert await house.states(job_id) == ("DISPATCHING", "INITIATED")
    assert (record.steps[0].attempt_no, record.job.attempts_total) == (1, 1)


async def test_a_note_that_failed_is_made_up_for_without_publishing_again() -> None:
    world = World()
    house = House(world, hints=False)
    job_id = await house.submit()
    world.writes_lost = 1
    await house.look()
    assert house.relay.unacked("ocr", LANE) == 1
    await house.look()
    assert world.bus.directive_depth("ocr", LANE) == 1
    assert await house.states(job_id) == ("DISPATCHING", "INITIATED")


async def test_a_publish_whose_answer_was_lost_is_repeated_under_the_same_id() -> None:
    world = World()
    house = House(world, policy=StepPolicy(backoff_publish_ms=(1_000,)))
    world.bus.on_publish = fates(Fate.UNANSWERED)
    job_id = await house.submit()
    await house.relay.idle()
    await house.later(1_000)
    first, second = await Worker(world).take()
    assert first.message_id == second.message_id
    assert await house.states(job_id) == ("DISPATCHING", "INITIATED")


async def test_a_row_that_a_crash_left_behind_is_cleared_and_not_sent() -> None:
    world = World(spans=False)
    house = House(world, hints=False)
    job_id = await house.submit()
    (row,) = await dispatch_rows(world)
    await house.look()
    assert await dispatch_rows(world) == []
    await world.store.commit([put(TABLE, PARTITION, row.key, row.body)])
    await house.look()
    assert await dispatch_rows(world) == []
    assert world.bus.directive_depth("ocr", LANE) == 1
    assert (await house.facts(job_id)).count(Fact.DIRECTIVE_PUBLISHED) == 1


async def test_rows_whose_jobs_are_still_being_written_hold_nobody_up() -> None:
    world = World(spans=False)
    house = House(world, hints=False)
    job_id = await house.submit()
    announced = DispatchRow(
        version=1, written_at_ms=world.clock_ms, step_id="step_01", attempt_no=1, lease_id="lease"
    )
    for number in range(PAGE_ROWS_MAX + 10):
        key = time_key(world.clock_ms - 1, f"job_slow_{number}")
        await world.store.commit([put(TABLE, PARTITION, key, encode(announced))])
    await house.look()
    assert (await house.states(job_id))[1] == "INITIATED"
    assert len(await dispatch_rows(world)) == PAGE_ROWS_MAX + 10
    world.clock_ms += GRACE_MS
    await house.look()
    assert await dispatch_rows(world) == []


@pytest.mark.parametrize("published", [True, False])
async def test_a_ledger_that_is_down_costs_no_attempt(published: bool) -> None:
    world = World()
    house = House(world, hints=False)
    job_id = await house.submit()
    world.bus.down = not published
    world.ledger_down = True
    await house.look()
    world.ledger_down = world.bus.down = False
    await house.look()
    record = await house.record(job_id)
    assert record.outbox is not None and record.outbox.failures == 0
    assert await house.states(job_id) == ("DISPATCHING", "INITIATED")
    assert world.bus.directive_depth("ocr", LANE) == 1


async def test_stopping_finishes_what_is_on_its_way() -> None:
    world = World()
    house = House(world)
    began, let_go = asyncio.Event(), asyncio.Event()

    async def slow(out: "Out") -> Fate:
        began.set()
        await let_go.wait()
        return Fate.KEPT

    world.bus.on_publish = slow
    async with house.relaying():
        job_id = await house.submit()
        await began.wait()
        house.relay.stop()
        late = await house.submit()
        asyncio.get_running_loop().call_later(0.05, let_go.set)
    assert (await house.states(job_id))[1] == "INITIATED"
    assert (await house.states(late))[1] == "DISPATCHING"
    assert world.bus.directive_depth("ocr", LANE) == 1


async def test_a_running_relay_retries_by_itself() -> None:
    world = World()
    house = House(world, hints=False, policy=StepPolicy(backoff_publish_ms=(1_000,)))
    world.bus.down = True
    job_id = await house.submit()
    async with house.relaying(), asyncio.timeout(5):
        while Fact.PUBLISH_FAILED not in await house.facts(job_id):
            await asyncio.sleep(0.002)
        world.bus.down = False
        world.clock_ms += 1_000
        while (await house.states(job_id))[1] != "INITIATED":
            await asyncio.sleep(0.002)
    assert world.bus.directive_depth("ocr", LANE) == 1


# Controls


async def test_a_pause_holds_a_waiting_row_and_resume_lets_it_go() -> None:
    world = World()
    house = House(world, policy=StepPolicy(backoff_publish_ms=(1_000,)))
    world.bus.down = True
    job_id = await house.submit()
    await house.relay.idle()
    lease_id = (await house.record(job_id)).steps[0].lease_id
    await house.apply(job_id, Pause())
    world.bus.down = False
    await house.later(10_000)
    assert await house.states(job_id) == ("PAUSED", "DISPATCHING")
    assert world.bus.directive_depth("ocr", LANE) == 0
    await house.apply(job_id, Resume())
    await house.look()
    directive = await Worker(world).take_one()
    assert (directive["attempt_no"], directive["lease_id"]) == (1, lease_id)


async def test_a_cancel_closes_a_waiting_row() -> None:
    world = World()
    house = House(world)
    world.bus.down = True
    job_id = await house.submit()
    await house.relay.idle()
    await house.apply(job_id, Cancel())
    world.bus.down = False
    await house.later(3_600_000)
    record = await house.record(job_id)
    assert await house.states(job_id) == ("CANCELLED", "CANCELLED")
    assert record.outbox is not None and record.outbox.state is OutboxState.CANCELLED
    assert world.bus.directive_depth("ocr", LANE) == 0


async def test_a_cancel_that_meets_a_publish_on_its_way_wins() -> None:
    world = World()
    house = House(world)
    began, let_go = asyncio.Event(), asyncio.Event()

    async def slow(out: "Out") -> Fate:
        began.set()
        await let_go.wait()
        return Fate.KEPT

    world.bus.on_publish = slow
    job_id = await house.submit()
    await began.wait()
    await house.apply(job_id, Cancel())
    let_go.set()
    await house.relay.idle()
    assert await house.states(job_id) == ("CANCELLED", "CANCELLED")
    assert house.relay.unacked("ocr", LANE) == 0
