"""Answers that came in time while the ledger was away count, though their time is over when it is back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from lucius.core.inputs import Input
from lucius.core.routing import lane_of
from lucius.core.states import Fact
from lucius.engines.outbox.reply_consumer import ConsumerLimits, ReplyConsumer
from lucius.ledger.store import StoreUnavailable
from lucius.progress.apply import Applied
from lucius.progress.heard import PATIENCE_MS

if TYPE_CHECKING:
    from tests.rooms.relay_house import LANE, TENANT, House, Message, MovingWorld, Worker
    from tests.rooms.virtual import virtual
else:
    from relay_house import LANE, TENANT, House, Message, MovingWorld, Worker
    from virtual import virtual

LEASE_SECONDS = 900.0
RESULT = {"status": "SUCCEEDED", "output_ref": {"uri": "s3://results/x"}}
OTHER = next(name for n in range(100) if lane_of(name := f"other {n}") != LANE)


@asynccontextmanager
async def consuming() -> AsyncIterator[tuple[MovingWorld, House]]:
    """A house that nobody nudges, and its world, while it reads replies."""
    world = MovingWorld()
    house = House(world, hints=False, wait_ms=1_000)
    async with house.consuming():
        yield world, house


async def under_way(house: House, tenant_id: str = TENANT) -> tuple[str, Worker, Message]:
    """A job whose service is at work, and has acknowledged it."""
    job_id = await house.submit(tenant_id=tenant_id)
    await house.look()
    worker = Worker(house.world, lane=lane_of(tenant_id))
    directive = await worker.take_one()
    await worker.reply("ACK", directive)
    await house.until(job_id, "IN_PROGRESS")
    return job_id, worker, directive


async def all_caught_up(house: House) -> None:
    while not house.heard.complete:
        await asyncio.sleep(0.01)


@virtual
async def test_an_answer_that_met_a_ledger_which_was_away_for_long_counts() -> None:
    async with consuming() as (world, house):
        job_id, worker, directive = await under_way(house)
        await all_caught_up(house)
        world.ledger_down = True
        await worker.reply("RESULT", directive, **RESULT)
        await asyncio.sleep(LEASE_SECONDS + 1)
        world.ledger_down = False
        assert await house.sweeper.sweep() == 1
        await house.until(job_id, "SUCCEEDED")
        await all_caught_up(house)
    assert Fact.STEP_RETRYING not in await house.facts(job_id)


@virtual
async def test_an_answer_on_a_lane_that_nobody_read_meanwhile_counts() -> None:
    """Its lane had nothing to do with the ledger when it went away, and fetches nothing since."""
    async with consuming() as (world, house):
        job_id, worker, directive = await under_way(house)
        _, other, others = await under_way(house, OTHER)
        await all_caught_up(house)
        world.ledger_down = True
        await other.reply("RESULT", others, **RESULT)
        await asyncio.sleep(3)
        await worker.reply("RESULT", directive, **RESULT)
        await asyncio.sleep(LEASE_SECONDS)
        world.ledger_down = False
        await house.sweeper.sweep()
        record = await house.until(job_id, "SUCCEEDED")
    assert record.steps[0].attempt_no == 1
    assert Fact.STEP_RETRYING not in await house.facts(job_id)


@virtual
async def test_after_the_outage_answers_have_their_time_and_no_more() -> None:
    """The bus is away too, and stays so when the ledger is back."""
    async with consuming() as (world, house):
        job_id, worker, directive = await under_way(house)
        await all_caught_up(house)
        world.ledger_down = True
        await worker.reply("RESULT", directive, **RESULT)
        await asyncio.sleep(LEASE_SECONDS + 1)
        world.bus.down = True
        world.ledger_down = False
        await asyncio.sleep(PATIENCE_MS / 1000 - 1)
        await house.sweeper.sweep()
        assert Fact.STEP_RETRYING not in await house.facts(job_id)
        await asyncio.sleep(2)
        await house.sweeper.sweep()
        assert Fact.STEP_RETRYING in await house.facts(job_id)
        world.bus.down = False


@virtual
async def test_an_answer_that_can_never_be_applied_does_not_stop_the_clock_of_its_lane(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ledger answers every ping, and fails for this job alone."""
    async with consuming() as (_, house):
        broken, worker, directive = await under_way(house)
        job_id, _, _ = await under_way(house)
        await all_caught_up(house)
        apply = house.progress.apply

        async def fails(job: str, given: Input) -> Any:
            if job == broken:
                raise StoreUnavailable("its partition does not answer")
            return await apply(job, given)

        monkeypatch.setattr(house.progress, "apply", fails)
        await asyncio.sleep(LEASE_SECONDS - 1)
        await worker.reply("RESULT", directive, **RESULT)
        await asyncio.sleep(1 + PATIENCE_MS / 1000)
        await house.sweeper.sweep()
        assert Fact.STEP_RETRYING in await house.facts(job_id)
        monkeypatch.undo()


@virtual
async def test_an_answer_that_could_not_be_sent_while_the_bus_was_away_counts() -> None:
    async with consuming() as (world, house):
        job_id, worker, directive = await under_way(house)
        await all_caught_up(house)
        await asyncio.sleep(LEASE_SECONDS - 1)
        world.bus.down = True
        await asyncio.sleep(4)
        world.bus.down = False
        await asyncio.sleep(1)  # by then its lane was found empty
        assert await house.sweeper.sweep() == 1
        await worker.reply("RESULT", directive, **RESULT)
        record = await house.until(job_id, "SUCCEEDED")
        await all_caught_up(house)
    assert record.steps[0].attempt_no == 1
    assert Fact.STEP_RETRYING not in await house.facts(job_id)


@virtual
async def test_who_sends_nothing_soon_after_the_bus_is_back_is_given_up() -> None:
    async with consuming() as (world, house):
        job_id, _, _ = await under_way(house)
        await all_caught_up(house)
        await asyncio.sleep(LEASE_SECONDS - 1)
        world.bus.down = True
        await asyncio.sleep(4)
        world.bus.down = False
        await asyncio.sleep(3)
        assert house.heard.complete
        await house.sweeper.sweep()
        assert Fact.STEP_RETRYING in await house.facts(job_id)


@virtual
async def test_a_lane_is_behind_while_a_slow_ledger_takes_what_was_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with consuming() as (_, house):
        slow, worker, directive = await under_way(house)
        job_id, _, answered = await under_way(house)
        await all_caught_up(house)
        apply, taken = house.progress.apply, asyncio.Event()

        async def waits(job: str, given: Input) -> Any:
            if job == slow:
                await taken.wait()
            return await apply(job, given)

        monkeypatch.setattr(house.progress, "apply", waits)
        await asyncio.sleep(LEASE_SECONDS - 4)
        await worker.reply("RESULT", directive, **RESULT)
        await asyncio.sleep(1)
        await worker.reply("RESULT", answered, **RESULT)  # nobody looks at it
        await asyncio.sleep(4)
        await house.sweeper.sweep()
        taken.set()
        await house.until(job_id, "SUCCEEDED")
        await house.until(slow, "SUCCEEDED")
        await all_caught_up(house)
    assert Fact.STEP_RETRYING not in await house.facts(job_id)


@virtual
async def test_lanes_are_behind_while_too_many_wait_to_be_told() -> None:
    world = MovingWorld()
    house = House(world, hints=False, wait_ms=1_000)
    told = asyncio.Event()

    async def tell(job_id: str, reply: Input, applied: Applied) -> None:
        await told.wait()

    limits = ConsumerLimits(wait_ms=20, untold_max=0)
    house.consumer = ReplyConsumer(
        world.bus, house.progress, limits, ping_ledger=world.ping_ledger, tell=tell, heard=house.heard
    )
    async with house.consuming():
        await all_caught_up(house)
        await under_way(house)
        await asyncio.sleep(0.1)
        assert house.heard.is_behind(LANE)
        told.set()
        await all_caught_up(house)


@virtual
async def test_a_lane_that_falls_behind_once_more_still_waits_for_a_reply_to_come_again() -> None:
    heard = House(MovingWorld()).heard
    heard.behind(LANE, for_ms=1_000)
    heard.behind(LANE)
    heard.caught_up(LANE)
    assert heard.is_behind(LANE)
    await asyncio.sleep(1)
    heard.caught_up(LANE)
    assert not heard.is_behind(LANE)
