"""The sweeper: when it looks, and what it says about lanes whose deadlines it could not read."""

import asyncio
from typing import Any

import pytest
from tests.support.publisher_setup import Deployment, MovingWorld, World
from tests.support.virtual_time import virtual

from lucius.core.states import Fact
from lucius.engines.outbox.sweeper import Sweeper
from lucius.jobs.due import DueOutcome
from lucius.jobs.reply_backlog import ANSWER_GRACE_MS
from lucius.ledger.indexes import DueEntry, Indexes
from lucius.ledger.store import StoreUnavailable

ACK_TIMEOUT_SECONDS = 30.0


class Idle:
    async def meet(self, entry: DueEntry) -> DueOutcome:
        return DueOutcome.WAITING


@virtual
async def test_it_looks_by_the_clock_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on the wall that stands still, or is set back, keeps nobody asleep."""
    world = World()
    deployment = Deployment(world)
    sweeper = Sweeper(Indexes(deployment.ledger), Idle(), now_ms=world.now_ms, look_every_ms=1_000)
    looks: list[float] = []

    async def look() -> int:
        looks.append(asyncio.get_running_loop().time())
        return 0

    monkeypatch.setattr(sweeper, "sweep", look)
    running = asyncio.create_task(sweeper.run())
    await asyncio.sleep(3.5)
    running.cancel()
    assert looks == pytest.approx([0, 1, 2, 3])


@virtual
async def test_answers_have_their_time_once_the_deadlines_of_a_lane_can_be_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody reads the replies here, as after a start without a bus."""
    world = MovingWorld()
    deployment = Deployment(world)
    job_id = await deployment.submit()
    await deployment.look()

    async def away(*_: object, **__: object) -> Any:
        raise StoreUnavailable("the partition does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(Indexes, "due", away)
        await asyncio.sleep(ACK_TIMEOUT_SECONDS + 1)
        assert await deployment.sweeper.sweep() == 0
    assert await deployment.sweeper.sweep() == 1
    assert Fact.STEP_RETRYING not in await deployment.facts(job_id)
    await asyncio.sleep(ANSWER_GRACE_MS / 1000)
    await deployment.sweeper.sweep()
    assert Fact.STEP_RETRYING in await deployment.facts(job_id)
