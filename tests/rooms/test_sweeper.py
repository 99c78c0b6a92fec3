"""The sweeper: when it looks, and what it says about lanes whose deadlines it could not read."""

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from lucius.core.states import Fact
from lucius.engines.outbox.sweeper import Sweeper
from lucius.ledger.indexes import DueEntry, Indexes
from lucius.ledger.store import StoreUnavailable
from lucius.progress.due import DueOutcome
from lucius.progress.heard import PATIENCE_MS

if TYPE_CHECKING:
    from tests.rooms.relay_house import House, MovingWorld, World
    from tests.rooms.virtual import virtual
else:
    from relay_house import House, MovingWorld, World
    from virtual import virtual

ACK_TIMEOUT_SECONDS = 30.0


class Idle:
    async def meet(self, entry: DueEntry) -> DueOutcome:
        return DueOutcome.WAITING


@virtual
async def test_it_looks_by_the_clock_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on the wall that stands still, or is set back, keeps nobody asleep."""
    world = World()
    house = House(world)
    sweeper = Sweeper(Indexes(house.ledger), Idle(), now_ms=world.now_ms, look_every_ms=1_000)
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
    house = House(world)
    job_id = await house.submit()
    await house.look()

    async def away(*_: object, **__: object) -> Any:
        raise StoreUnavailable("the partition does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(Indexes, "due", away)
        await asyncio.sleep(ACK_TIMEOUT_SECONDS + 1)
        assert await house.sweeper.sweep() == 0
    assert await house.sweeper.sweep() == 1
    assert Fact.STEP_RETRYING not in await house.facts(job_id)
    await asyncio.sleep(PATIENCE_MS / 1000)
    await house.sweeper.sweep()
    assert Fact.STEP_RETRYING in await house.facts(job_id)
