"""Answers that came in time while the ledger was away count, though their time is over when it is back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support.publisher_setup import LANE, TENANT, Deployment, Message, MovingWorld, Worker
from tests.support.virtual_time import virtual

from lucius.core.inputs import Input
from lucius.core.routing import lane_of
from lucius.core.states import Fact
from lucius.engines.reply_consumer import ConsumerLimits, ReplyConsumer
from lucius.jobs.reply_backlog import ANSWER_GRACE_MS
from lucius.jobs.writer import Applied
from lucius.ledger.store import StoreUnavailable

LEASE_SECONDS = 900.0
RESULT = {"status": "SUCCEEDED", "output_ref": {"uri": "s3://results/x"}}
OTHER = next(name for n in range(100) if lane_of(name := f"other {n}") != LANE)


@asynccontextmanager
async def consuming() -> AsyncIterator[tuple[MovingWorld, Deployment]]:
    """A deployment that nobody nudges, and its world, while it reads replies."""
    world = MovingWorld()
    deployment = Deployment(world, hints=False, wait_ms=1_000)
    async with deployment.consuming():
        yield world, deployment


async def under_way(deployment: Deployment, tenant_id: str = TENANT) -> tuple[str, Worker, Message]:
    """A job whose service is at work, and has acknowledged it."""
    job_id = await deployment.submit(tenant_id=tenant_id)
    await deployment.look()
    worker = Worker(deployment.world, lane=lane_of(tenant_id))
    directive = await worker.take_one()
    await worker.reply("ACK", directive)
    await deployment.until(job_id, "IN_PROGRESS")
    return job_id, worker, directive


async def all_caught_up(deployment: Deployment) -> None:
    while not deployment.reply_backlog.complete:
        await asyncio.sleep(0.01)


@virtual
async def test_an_answer_that_met_a_ledger_which_was_away_for_long_counts() -> None:
    async with consuming() as (world, deployment):
        job_id, worker, directive = await under_way(deployment)
        await all_caught_up(deployment)
        world.ledger_down = True
        await worker.reply("RESULT", directive, **RESULT)
        await asyncio.sleep(LEASE_SECONDS + 1)
        world.ledger_down = False
        assert await deployment.sweeper.sweep() == 1
        await deployment.until(job_id, "SUCCEEDED")
        await all_caught_up(deployment)
    assert Fact.STEP_RETRYING not in await deployment.facts(job_id)


@virtual
async def test_an_answer_on_a_lane_that_nobody_read_meanwhile_counts() -> None:
    """Its lane had nothing to do with the ledger when it went away, and fetches nothing since."""
    async with consuming() as (world, deployment):
        job_id, worker, directive = await under_way(deployment)
        _, other, others = await under_way(deployment, OTHER)
        await all_caught_up(deployment)
        world.ledger_down = True
        await other.reply("RESULT", others, **RESULT)
        await asyncio.sleep(3)
        await worker.reply("RESULT", directive, **RESULT)
        await asyncio.sleep(LEASE_SECONDS)
        world.ledger_down = False
        await deployment.sweeper.sweep()
        record = await deployment.until(job_id, "SUCCEEDED")
    assert record.steps[0].attempt_no == 1
    assert Fact.STEP_RETRYING not in await deployment.facts(job_id)


@virtual
async def test_after_the_outage_answers_have_their_time_and_no_more() -> None:
    """The bus is away too, and stays so when the ledger is back."""
    async with consuming() as (world, deployment):
        job_id, worker, directive = await under_way(deployment)
        await all_caught_up(deployment)
        world.ledger_down = True
        await worker.reply("RESULT", directive, **RESULT)
        await asyncio.sleep(LEASE_SECONDS + 1)
        world.bus.down = True
        world.ledger_down = False
        await asyncio.sleep(ANSWER_GRACE_MS / 1000 - 1)
        await deployment.sweeper.sweep()
        assert Fact.STEP_RETRYING not in await deployment.facts(job_id)
        await asyncio.sleep(2)
        await deployment.sweeper.sweep()
        assert Fact.STEP_RETRYING in await deployment.facts(job_id)
        world.bus.down = False


@virtual
async def test_an_answer_that_can_never_be_applied_does_not_stop_the_clock_of_its_lane(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ledger answers every ping, and fails for this job alone."""
    async with consuming() as (_, deployment):
        broken, worker, directive = await under_way(deployment)
        job_id, _, _ = await under_way(deployment)
        await all_caught_up(deployment)
        apply = deployment.writer.apply

        async def fails(job: str, given: Input) -> Any:
            if job == broken:
                raise StoreUnavailable("its partition does not answer")
            return await apply(job, given)

        monkeypatch.setattr(deployment.writer, "apply", fails)
        await asyncio.sleep(LEASE_SECONDS - 1)
        await worker.reply("RESULT", directive, **RESULT)
        await asyncio.sleep(1 + ANSWER_GRACE_MS / 1000)
        await deployment.sweeper.sweep()
        assert Fact.STEP_RETRYING in await deployment.facts(job_id)
        monkeypatch.undo()


@virtual
async def test_an_answer_that_could_not_be_sent_while_the_bus_was_away_counts() -> None:
    async with consuming() as (world, deployment):
        job_id, worker, directive = await under_way(deployment)
        await all_caught_up(deployment)
        await asyncio.sleep(LEASE_SECONDS - 1)
        world.bus.down = True
        await asyncio.sleep(4)
        world.bus.down = False
        await asyncio.sleep(1)  # by then its lane was found empty
        assert await deployment.sweeper.sweep() == 1
        await worker.reply("RESULT", directive, **RESULT)
        record = await deployment.until(job_id, "SUCCEEDED")
        await all_caught_up(deployment)
    assert record.steps[0].attempt_no == 1
    assert Fact.STEP_RETRYING not in await deployment.facts(job_id)


@virtual
async def test_who_sends_nothing_soon_after_the_bus_is_back_is_given_up() -> None:
    async with consuming() as (world, deployment):
        job_id, _, _ = await under_way(deployment)
        await all_caught_up(deployment)
        await asyncio.sleep(LEASE_SECONDS - 1)
        world.bus.down = True
        await asyncio.sleep(4)
        world.bus.down = False
        await asyncio.sleep(3)
        assert deployment.reply_backlog.complete
        await deployment.sweeper.sweep()
        assert Fact.STEP_RETRYING in await deployment.facts(job_id)


@virtual
async def test_a_lane_is_behind_while_a_slow_ledger_takes_what_was_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with consuming() as (_, deployment):
        slow, worker, directive = await under_way(deployment)
        job_id, _, answered = await under_way(deployment)
        await all_caught_up(deployment)
        apply, taken = deployment.writer.apply, asyncio.Event()

        async def waits(job: str, given: Input) -> Any:
            if job == slow:
                await taken.wait()
            return await apply(job, given)

        monkeypatch.setattr(deployment.writer, "apply", waits)
        await asyncio.sleep(LEASE_SECONDS - 4)
        await worker.reply("RESULT", directive, **RESULT)
        await asyncio.sleep(1)
        await worker.reply("RESULT", answered, **RESULT)  # nobody looks at it
        await asyncio.sleep(4)
        await deployment.sweeper.sweep()
        taken.set()
        await deployment.until(job_id, "SUCCEEDED")
        await deployment.until(slow, "SUCCEEDED")
        await all_caught_up(deployment)
    assert Fact.STEP_RETRYING not in await deployment.facts(job_id)


@virtual
async def test_lanes_are_behind_while_too_many_wait_to_be_told() -> None:
    world = MovingWorld()
    deployment = Deployment(world, hints=False, wait_ms=1_000)
    told = asyncio.Event()

    async def tell(job_id: str, reply: Input, applied: Applied) -> None:
        await told.wait()

    limits = ConsumerLimits(wait_ms=20, unnotified_max=0)
    deployment.consumer = ReplyConsumer(
        world.bus,
        deployment.writer,
        limits,
        ping_ledger=world.ping_ledger,
        notify=tell,
        reply_backlog=deployment.reply_backlog,
    )
    async with deployment.consuming():
        await all_caught_up(deployment)
        await under_way(deployment)
        await asyncio.sleep(0.1)
        assert deployment.reply_backlog.is_behind(LANE)
        told.set()
        await all_caught_up(deployment)


@virtual
async def test_a_lane_that_falls_behind_once_more_still_waits_for_a_reply_to_come_again() -> None:
    reply_backlog = Deployment(MovingWorld()).reply_backlog
    reply_backlog.behind(LANE, for_ms=1_000)
    reply_backlog.behind(LANE)
    reply_backlog.caught_up(LANE)
    assert reply_backlog.is_behind(LANE)
    await asyncio.sleep(1)
    reply_backlog.caught_up(LANE)
    assert not reply_backlog.is_behind(LANE)
