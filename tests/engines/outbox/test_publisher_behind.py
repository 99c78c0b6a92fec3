"""A process that was away reads the answers that came meanwhile before it gives attempts up."""

import asyncio

from tests.support import invoker_setup as invoker_deployment
from tests.support.publisher_setup import LANE, Deployment, MovingWorld, Worker, World
from tests.support.virtual_time import virtual

from lucius.bus.memory import MemoryReceiver
from lucius.bus.port import BusUnavailable
from lucius.contracts.internal import Verdict
from lucius.core.inputs import ExpireReason
from lucius.core.states import Fact
from lucius.jobs.reply_backlog import AGAIN_IN_MS, ANSWER_GRACE_MS

LEASE_MS = 900_000
RESULT = {"status": "SUCCEEDED", "output_ref": {"uri": "s3://results/x"}}


async def answered_while_nobody_listens(world: World) -> str:
    """A job whose RESULT came in time, and whose lease has run out since."""
    before = Deployment(world, hints=False)
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
    deployment = Deployment(world)
    assert await deployment.sweeper.sweep() == 1
    assert deployment.sweeper.actions["waiting"] == 1
    async with deployment.consuming():
        record = await deployment.until(job_id, "SUCCEEDED")
    assert record.steps[0].attempt_no == 1
    assert Fact.STEP_RETRYING not in await deployment.facts(job_id)


async def test_a_lane_that_was_found_empty_holds_nobody_up() -> None:
    world = World()
    deployment = Deployment(world, hints=False)
    job_id = await deployment.submit()
    await deployment.look()
    assert deployment.reply_backlog.is_behind(LANE)
    async with deployment.consuming(), asyncio.timeout(5):
        while deployment.reply_backlog.is_behind(LANE):
            await asyncio.sleep(0.002)
    world.clock_ms += 30_000
    assert await deployment.sweeper.sweep() == 1
    assert Fact.STEP_RETRYING in await deployment.facts(job_id)


async def test_a_bus_that_stays_away_does_not_stop_the_clock() -> None:
    world = World()
    job_id = await answered_while_nobody_listens(world)
    deployment = Deployment(world)
    world.clock_ms += ANSWER_GRACE_MS - 1
    await deployment.sweeper.sweep()
    assert Fact.STEP_RETRYING not in await deployment.facts(job_id)
    world.clock_ms += 1
    await deployment.sweeper.sweep()
    assert Fact.STEP_RETRYING in await deployment.facts(job_id)


async def caught_up(deployment: Deployment) -> None:
    async with asyncio.timeout(5):
        while deployment.reply_backlog.is_behind(LANE):
            await asyncio.sleep(0.002)


@virtual
async def test_a_lane_falls_behind_when_the_bus_fails() -> None:
    world = MovingWorld()
    deployment = Deployment(world)
    deployment.reply_backlog.caught_up(LANE)
    open_lane, failures = world.bus.replies, [BusUnavailable("gone for a moment")]

    async def fails_once(lane: int, *, group: str = "lucius") -> MemoryReceiver:
        if lane == LANE and failures:
            raise failures.pop()
        assert lane != LANE or deployment.reply_backlog.is_behind(LANE)
        return await open_lane(lane, group=group)

    world.bus.replies = fails_once  # type: ignore[method-assign]
    async with deployment.consuming():
        async with asyncio.timeout(5):
            while failures:
                await asyncio.sleep(0.002)
        await caught_up(deployment)


async def test_a_lane_falls_behind_when_the_ledger_cannot_take_its_replies() -> None:
    world = World()
    deployment = Deployment(world, hints=False)
    job_id = await deployment.submit()
    await deployment.look()
    worker = Worker(world)
    directive = await worker.take_one()
    async with deployment.consuming():
        await caught_up(deployment)
        world.ledger_down = True
        await worker.reply("RESULT", directive, **RESULT)
        async with asyncio.timeout(5):
            while not deployment.reply_backlog.is_behind(LANE):
                await asyncio.sleep(0.002)
        world.ledger_down = False
        await deployment.until(job_id, "SUCCEEDED")
        await caught_up(deployment)


async def test_a_workflow_that_asks_too_early_after_a_start_is_told_to_ask_again() -> None:
    world = World()
    workflows = invoker_deployment.Workflows()
    before = invoker_deployment.Deployment(world, workflows)
    job_id = await before.submit()
    await before.attempt(job_id)
    worker = Worker(world)
    directive = await worker.take_one()
    await worker.reply("RESULT", directive, **RESULT)
    world.clock_ms += 30_000
    deployment = invoker_deployment.Deployment(world, workflows)
    told = await deployment.expire(job_id, ExpireReason.ACK_TIMEOUT)
    assert (told.verdict, told.again_in_ms) == (Verdict.WAIT, AGAIN_IN_MS)
    running = asyncio.create_task(deployment.consumer.run())
    async with asyncio.timeout(5):
        while (await deployment.states(job_id))[0] != "SUCCEEDED":
            await asyncio.sleep(0.002)
    deployment.consumer.stop()
    await running
    assert Fact.STEP_RETRYING not in await deployment.facts(job_id)
    assert (await deployment.expire(job_id, ExpireReason.ACK_TIMEOUT)).verdict is Verdict.STOP
