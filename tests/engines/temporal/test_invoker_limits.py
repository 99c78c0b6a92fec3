"""The invoker where a service is limited: workflows wait without a clock, and are told when to come again."""

from tests.support.invoker_setup import Deployment, Workflows
from tests.support.publisher_setup import World

from lucius.contracts.internal import Verdict
from lucius.core.flow import BreakerRule, ServiceLimits
from lucius.core.inputs import Result, ResultStatus


async def _succeed(deployment: Deployment, job_id: str) -> None:
    step = (await deployment.record(job_id)).steps[0]
    done = Result(
        step_id=step.step_id,
        attempt_no=step.attempt_no,
        lease_id=step.lease_id or "",
        content=dict,
        status=ResultStatus.SUCCEEDED,
    )
    await deployment.writer.apply(job_id, done)


async def test_a_workflow_waits_for_a_place_of_its_service() -> None:
    world = World()
    deployment = Deployment(world, Workflows())
    deployment.registry.limits["ocr"] = ServiceLimits(concurrency=1)
    first, second = await deployment.submit(), await deployment.submit()
    assert (await deployment.attempt(first)).verdict is Verdict.GO
    told = await deployment.attempt(second)
    assert told.verdict is Verdict.WAIT
    assert told.again_in_ms is not None and told.again_in_ms >= 500
    step = (await deployment.record(second)).steps[0]
    assert step.lease_expires_at_ms is None
    await _succeed(deployment, first)
    world.clock_ms += told.again_in_ms
    assert (await deployment.attempt(second)).verdict is Verdict.GO


async def test_many_that_wait_are_told_to_come_later() -> None:
    world = World()
    deployment = Deployment(world, Workflows())
    deployment.registry.limits["ocr"] = ServiceLimits(concurrency=1)
    await deployment.attempt(await deployment.submit())
    told = [await deployment.attempt(await deployment.submit()) for _ in range(130)]
    assert told[-1].again_in_ms == 1_500


async def test_a_workflow_waits_while_the_breaker_is_open() -> None:
    world = World()
    deployment = Deployment(world, Workflows())
    deployment.registry.limits["ocr"] = ServiceLimits(
        breaker=BreakerRule(failures_max=1, probe_every_ms=10_000)
    )
    first, second = await deployment.submit(), await deployment.submit()
    await deployment.attempt(first)
    step = (await deployment.record(first)).steps[0]
    failed = Result(
        step_id=step.step_id,
        attempt_no=step.attempt_no,
        lease_id=step.lease_id or "",
        content=dict,
        status=ResultStatus.FAILED_RETRY,
    )
    await deployment.writer.apply(first, failed)
    assert (await deployment.attempt(second)).verdict is Verdict.WAIT
    world.clock_ms += 10_000
    assert (await deployment.attempt(second)).verdict is Verdict.GO
    assert (await deployment.record(second)).steps[0].probing
