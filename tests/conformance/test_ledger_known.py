"""A job that is read anew is decoded only if somebody changed it since: its ETag tells."""

from tests.conformance.ledger_setup import World, submit

from lucius.core.inputs import Pause
from lucius.core.states import JobState


async def test_what_nobody_changed_is_not_decoded_again(world: World) -> None:
    deployment = world.deployment()
    await deployment.warm()
    job_id = await submit(deployment)
    known, fresh = await deployment.ledger.load(job_id), await deployment.ledger.load(job_id, fresh=True)
    assert known is not None and fresh is not None
    assert fresh.record is known.record
    assert (known.cached, fresh.cached) == (True, False)
    assert fresh.etag == known.etag


async def test_what_another_changed_is_seen(world: World) -> None:
    deployment, other = world.deployment(), world.deployment()
    await deployment.warm()
    job_id = await submit(deployment)
    known = await deployment.ledger.load(job_id)
    await other.writer.apply(job_id, Pause())
    fresh = await deployment.ledger.load(job_id, fresh=True)
    assert known is not None and fresh is not None
    assert fresh.record.job.state is JobState.PAUSED
    assert fresh.record == (await world.records())[job_id]
    assert fresh.etag != known.etag
