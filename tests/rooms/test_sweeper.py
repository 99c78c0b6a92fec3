"""The sweeper: what it says about lanes whose deadlines it could not read."""

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from lucius.core.states import Fact
from lucius.ledger.indexes import Indexes
from lucius.ledger.store import StoreUnavailable
from lucius.progress.heard import PATIENCE_MS

if TYPE_CHECKING:
    from tests.rooms.relay_house import House, MovingWorld
    from tests.rooms.virtual import virtual
else:
    from relay_house import House, MovingWorld
    from virtual import virtual

ACK_TIMEOUT_SECONDS = 30.0


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
