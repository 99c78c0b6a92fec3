"""How far silent progress may lead: to `max_duration`, or to the deadline that stood already."""

import msgspec
import pytest
from tests.conformance.ledger_setup import DAY_MS, Deployment, submit
from tests.lab.watched_simulation import KIND_IDS, KINDS, WatchedWorld

from lucius.core.inputs import Progress
from lucius.core.model import JobRecord, Step
from lucius.ledger.job_ledger import LayoutName
from lucius_lab.sim.watch import Violation

replace = msgspec.structs.replace
every_kind = pytest.mark.parametrize(("layout", "spans"), KINDS, ids=KIND_IDS)


async def first_step(deployment: Deployment, job_id: str) -> Step:
    loaded = await deployment.ledger.load(job_id, fresh=True)
    assert loaded is not None
    return loaded.record.steps[0]


async def acknowledged_late(world: WatchedWorld, deployment: Deployment) -> tuple[str, Progress]:
    """An attempt whose ACK, a second before `max_duration`, led beyond it; the first progress is an event."""
    job_id = await submit(deployment)
    (attempt,) = await deployment.take("ocr")
    world.clock.now_ms += DAY_MS - 1_000
    await deployment.ack(attempt)
    given = Progress(
        step_id=attempt.step_id,
        attempt_no=attempt.attempt_no,
        lease_id=attempt.lease_id,
        content={"type": "PROGRESS"}.copy,
        progress=10,
        note=None,
    )
    await deployment.writer.apply(job_id, given)
    world.clock.now_ms += 1_000
    return job_id, given


@every_kind
async def test_a_deadline_that_the_ack_gave_may_stay(layout: LayoutName, spans: bool) -> None:
    world = WatchedWorld(layout, spans)
    deployment = world.deployment()
    job_id, given = await acknowledged_late(world, deployment)
    before = await first_step(deployment, job_id)
    await deployment.writer.apply(job_id, given)
    after = await first_step(deployment, job_id)
    assert after.updated_at_ms == before.updated_at_ms + 1_000
    assert after.lease_expires_at_ms == before.lease_expires_at_ms
    assert (after.lease_expires_at_ms or 0) > (after.attempt_began_at_ms or 0) + after.policy.max_duration_ms


@every_kind
async def test_i10_a_deadline_beyond_both_is_told(layout: LayoutName, spans: bool) -> None:
    world = WatchedWorld(layout, spans)
    deployment = world.deployment()
    job_id, _ = await acknowledged_late(world, deployment)
    loaded = await deployment.ledger.load(job_id, fresh=True)
    assert loaded is not None
    plan = deployment.ledger.planner.change(loaded, _renewed(loaded.record), (), world.clock.now_ms)
    with pytest.raises(Violation, match="I10"):
        world.watch.committed(
            [*plan.first, *plan.truth, *plan.then], now_ms=world.clock.now_ms, by="somebody"
        )


def _renewed(record: JobRecord) -> JobRecord:
    (step,) = record.steps
    return replace(record, steps=(replace(step, lease_expires_at_ms=(step.lease_expires_at_ms or 0) + 1),))
