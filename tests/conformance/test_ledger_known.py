"""A job that is read anew is decoded only if somebody changed it since: its ETag tells."""

from typing import TYPE_CHECKING

from lucius.core.inputs import Pause
from lucius.core.states import JobState

if TYPE_CHECKING:
    from tests.conformance.ledger_house import World, submit
else:
    from ledger_house import World, submit


async def test_what_nobody_changed_is_not_decoded_again(world: World) -> None:
    house = world.house()
    await house.warm()
    job_id = await submit(house)
    known, fresh = await house.ledger.load(job_id), await house.ledger.load(job_id, fresh=True)
    assert known is not None and fresh is not None
    assert fresh.record is known.record
    assert (known.cached, fresh.cached) == (True, False)
    assert fresh.etag == known.etag


async def test_what_another_changed_is_seen(world: World) -> None:
    house, other = world.house(), world.house()
    await house.warm()
    job_id = await submit(house)
    known = await house.ledger.load(job_id)
    await other.progress.apply(job_id, Pause())
    fresh = await house.ledger.load(job_id, fresh=True)
    assert known is not None and fresh is not None
    assert fresh.record.job.state is JobState.PAUSED
    assert fresh.record == (await world.records())[job_id]
    assert fresh.etag != known.etag
