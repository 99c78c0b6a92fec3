"""A process that was away reads the answers that came meanwhile before it gives attempts up."""

import asyncio
from typing import TYPE_CHECKING

from lucius.bus.memory import MemoryReceiver
from lucius.bus.port import BusUnavailable
from lucius.contracts.internal import Verdict
from lucius.core.inputs import ExpireReason
from lucius.core.states import Fact
from lucius.progress.heard import AGAIN_IN_MS, PATIENCE_MS

if TYPE_CHECKING:
    from tests.rooms import invoker_house
    from tests.rooms.relay_house import LANE, House, MovingWorld, Worker, World
    from tests.rooms.virtual import virtual
else:
    import invoker_house
    from relay_house import LANE, House, MovingWorld, Worker, World
    from virtual import virtual

LEASE_MS = 900_000
RESULT = {"status": "SUCCEEDED", "output_ref": {"uri": "s3://results/x"}}


async def answered_while_nobody_listens(world: World) -> str:
    """A job whose RESULT came in time, and whose lease has run out since."""
    before = House(world, hints=False)
    job_id = await before.submit()
    await before.look()
    worker = Worker(world)
    directive = await worker.take_one()
    await worker.reply("ACK", directive)
    async with before.consuming():
        await before.until(job_id, "IN_PROGRESS")
    await worker.reply("RESULT", directive, **RESULT)
    world.clock_ms += LEASE_MS + 60_000
    return job_id


async def test_an_answer_that_waited_on_the_bus_counts_though_its_time_is_over_by_now() -> None:
    world = World()
    job_id = await answered_while_nobody_listens(world)
    house = House(world)
    assert await house.sweeper.sweep() == 1
    assert house.sweeper.actions["waiting"] == 1
    async with house.consuming():
        record = await house.until(job_id, "SUCCEEDED")
    assert record.steps[0].attempt_no == 1
    assert Fact.STEP_RETRYING not in await house.facts(job_id)


async def test_a_lane_that_was_found_empty_holds_nobody_up() -> None:
    world = World()
    house = House(world, hints=False)
    job_id = await house.submit()
    await house.look()
    assert house.heard.is_behind(LANE)
    async with house.consuming(), asyncio.timeout(5):
        while house.heard.is_behind(LANE):
            await asyncio.sleep(0.002)
    world.clock_ms += 30_000
    assert await house.sweeper.sweep() == 1
    assert Fact.STEP_RETRYING in await house.facts(job_id)


async def test_a_bus_that_stays_away_does_not_stop_the_clock() -> None:
    world = World()
    job_id = await answered_while_nobody_listens(world)
    house = House(world)
    world.clock_ms += PATIENCE_MS - 1
    await house.sweeper.sweep()
    assert Fact.STEP_RETRYING not in await house.facts(job_id)
    world.clock_ms += 1
    await house.sweeper.sweep()
    assert Fact.STEP_RETRYING in await house.facts(job_id)


async def caught_up(house: House) -> None:
    async with asyncio.timeout(5):
        while house.heard.is_behind(LANE):
            await asyncio.sleep(0.002)


@virtual
async def test_a_lane_falls_behind_when_the_bus_fails() -> None:
    world = MovingWorld()
    house = House(world)
    house.heard.caught_up(LANE)
    open_lane, failures = world.bus.replies, [BusUnavailable("gone for a moment")]

    async def fails_once(lane: int, *, group: str = "lucius") -> MemoryReceiver:
        if lane == LANE and failures:
            raise failures.pop()
        assert lane != LANE or house.heard.is_behind(LANE)
        return await open_lane(lane, group=group)

    world.bus.replies = fails_once  # type: ignore[method-assign]
    async with house.consuming():
        async with asyncio.timeout(5):
            while failures:
                await asyncio.sleep(0.002)
        await caught_up(house)


async def test_a_lane_falls_behind_when_the_ledger_cannot_take_its_replies() -> None:
    world = World()
    house = House(world, hints=False)
    job_id = await house.submit()
    await house.look()
    worker = Worker(world)
    directive = await worker.take_one()
    async with house.consuming():
        await caught_up(house)
        world.ledger_down = True
        await worker.reply("RESULT", directive, **RESULT)
        async with asyncio.timeout(5):
            while not house.heard.is_behind(LANE):
                await asyncio.sleep(0.002)
        world.ledger_down = False
        await house.until(job_id, "SUCCEEDED")
        await caught_up(house)


async def test_a_workflow_that_asks_too_early_after_a_start_is_told_to_ask_again() -> None:
    world = World()
    workflows = invoker_house.Workflows()
    before = invoker_house.House(world, workflows)
    job_id = await before.submit()
    await before.attempt(job_id)
    worker = Worker(world)
    directive = await worker.take_one()
    await worker.reply("RESULT", directive, **RESULT)
    world.clock_ms += 30_000
    house = invoker_house.House(world, workflows)
    told = await house.expire(job_id, ExpireReason.ACK_TIMEOUT)
    assert (told.verdict, told.again_in_ms) == (Verdict.WAIT, AGAIN_IN_MS)
    running = asyncio.create_task(house.consumer.run())
    async with asyncio.timeout(5):
        while (await house.states(job_id))[0] != "SUCCEEDED":
            await asyncio.sleep(0.002)
    house.consumer.stop()
    await running
    assert Fact.STEP_RETRYING not in await house.facts(job_id)
    assert (await house.expire(job_id, ExpireReason.ACK_TIMEOUT)).verdict is Verdict.STOP
