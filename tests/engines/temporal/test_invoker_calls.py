"""What a workflow may ask for, and what it is told: attempt, publish, expire."""

import asyncio
from typing import Any

import pytest
from tests.support.invoker_setup import Deployment, Workflows
from tests.support.publisher_setup import Worker, World, ack, fates

from lucius.bus.memory import PublishFault
from lucius.contracts.internal import AttemptRequest, ExpireRequest, PublishRequest, Verdict
from lucius.core.inputs import Cancel, ExpireReason, Pause, Progress, Result, ResultStatus
from lucius.core.model import StepPolicy
from lucius.core.refusal import Code, Refused
from lucius.core.states import Engine, Fact, JobState, StepState
from lucius.ledger.store import StoreUnavailable

ACK, LEASE, PUBLISH = ExpireReason.ACK_TIMEOUT, ExpireReason.LEASE_EXPIRED, ExpireReason.PUBLISH_FAILED


@pytest.fixture(params=[True, False], ids=["spans", "no-spans"])
def world(request: pytest.FixtureRequest) -> World:
    return World(spans=request.param)


@pytest.fixture
def deployment(world: World) -> Deployment:
    return Deployment(world, Workflows())


def failed(number: int = 1) -> Result:
    return Result(
        step_id="step_01",
        attempt_no=number,
        lease_id=f"L{number}-step_01",
        content=dict,
        status=ResultStatus.FAILED_RETRY,
        error_code="BUSY",
        error_message="later",
    )


async def test_one_call_begins_an_attempt_and_publishes_it(world: World, deployment: Deployment) -> None:
    job_id = await deployment.submit()
    told = await deployment.attempt(job_id)
    at = told.position
    assert (told.verdict, at.step_state, at.attempt_no, at.lease_id) == (
        Verdict.GO,
        StepState.INITIATED,
        1,
        "L1-step_01",
    )
    assert at.published and at.deadline_at_ms == world.clock_ms + 30_000
    directive = await Worker(world).take_one()
    assert (directive["jobId"], directive["lease_id"]) == (job_id, "L1-step_01")
    assert await deployment.states(job_id) == ("QUEUED", "INITIATED")
    assert await deployment.facts(job_id) == [Fact.JOB_CREATED, Fact.ATTEMPT_BEGUN, Fact.DIRECTIVE_PUBLISHED]


async def test_asking_again_is_answered_the_same_and_does_nothing(
    world: World, deployment: Deployment
) -> None:
    job_id = await deployment.submit()
    first = await deployment.attempt(job_id)
    assert await deployment.attempt(job_id) == first
    assert await deployment.publish(job_id) == first
    assert len(await Worker(world).take()) == 1
    assert len(await deployment.events(job_id)) == 3


async def test_the_two_calls_may_come_one_by_one(world: World, deployment: Deployment) -> None:
    job_id = await deployment.submit()
    told = await deployment.attempt(job_id, publish=False)
    assert (told.verdict, told.position.published, told.position.deadline_at_ms) == (Verdict.GO, False, None)
    assert await Worker(world).take() == []
    told = await deployment.publish(job_id)
    assert (told.verdict, told.position.published) == (Verdict.GO, True)


async def test_an_attempt_that_another_has_begun_is_adopted(world: World, deployment: Deployment) -> None:
    job_id = await deployment.submit()
    await deployment.attempt(job_id, lease="first")
    told = await deployment.attempt(job_id, lease="second")
    assert (told.verdict, told.position.lease_id) == (Verdict.MOVED, "first")
    for number in (2, 7):
        assert (await deployment.attempt(job_id, number)).verdict is Verdict.MOVED
    assert (await deployment.publish(job_id, lease="second")).verdict is Verdict.MOVED
    assert (await deployment.expire(job_id, ACK, lease="second")).verdict is Verdict.MOVED
    assert len(await Worker(world).take()) == 1


async def test_a_retry_is_not_begun_early(world: World, deployment: Deployment) -> None:
    job_id = await deployment.submit()
    await deployment.attempt(job_id)
    await deployment.apply(job_id, failed())
    told = await deployment.attempt(job_id, 2)
    assert (told.verdict, told.again_in_ms) == (Verdict.WAIT, 1_000)
    assert told.position.next_attempt_at_ms == world.clock_ms + 30_000
    world.clock_ms += 29_990
    assert (await deployment.attempt(job_id, 2)).again_in_ms == 10
    world.clock_ms += 10
    assert (await deployment.attempt(job_id, 2)).verdict is Verdict.GO
    await deployment.apply(job_id, failed(2))
    assert (await deployment.attempt(job_id, 3)).verdict is Verdict.MOVED, (
        "two minutes are not a matter of clocks"
    )


async def test_nothing_begins_while_the_job_is_paused_or_over(deployment: Deployment) -> None:
    job_id = await deployment.submit()
    await deployment.control(job_id, Pause())
    assert (await deployment.attempt(job_id)).verdict is Verdict.HOLD
    assert (await deployment.publish(job_id)).verdict is Verdict.HOLD
    await deployment.control(job_id, Cancel())
    told = await deployment.attempt(job_id)
    assert (told.verdict, told.position.terminal) == (Verdict.STOP, True)
    assert (await deployment.expire(job_id, ACK)).verdict is Verdict.STOP


async def test_a_directive_that_waits_is_held_by_a_pause_and_dropped_by_a_cancel(
    world: World, deployment: Deployment
) -> None:
    job_id = await deployment.submit()
    await deployment.attempt(job_id, publish=False)
    await deployment.control(job_id, Pause())
    assert (await deployment.attempt(job_id)).verdict is Verdict.HOLD
    assert await deployment.states(job_id) == ("PAUSED", "INITIATED")
    await deployment.control(job_id, Cancel())
    assert await deployment.states(job_id) == ("CANCELLED", "CANCELLED")
    assert await Worker(world).take() == []


async def test_jobs_that_are_not_there_or_not_ours_are_refused(world: World, deployment: Deployment) -> None:
    outbox = Deployment(world, Workflows(), engine=Engine.OUTBOX)
    there = await outbox.submit()
    names: dict[str, Any] = {"stepId": "step_01", "attempt_no": 1, "lease_id": "L"}
    for job_id, code in (("job_nowhere", Code.JOB_NOT_FOUND), (there, Code.STALE_ATTEMPT)):
        for told in (
            await deployment.invoker.attempt(AttemptRequest(jobId=job_id, **names)),
            await deployment.invoker.publish(PublishRequest(jobId=job_id, **names)),
            await deployment.invoker.expire(ExpireRequest(jobId=job_id, **names, reason=ACK)),
        ):
            assert isinstance(told, Refused) and told.code is code


async def test_a_bus_that_is_away_costs_the_publish_backoff(world: World, deployment: Deployment) -> None:
    job_id = await deployment.submit()
    world.bus.on_publish = fates(PublishFault.REFUSED)
    failed = await deployment.publish_in_vain(job_id)
    assert (failed.code, failed.retry_after_seconds) == (Code.PUBLISH_FAILED, 30)
    assert deployment.invoker.verdicts["attempt", "PUBLISH_FAILED"] == 1
    told = await deployment.attempt(job_id)
    assert (told.verdict, told.again_in_ms) == (Verdict.WAIT, 30_000), "it is not tried before that"
    assert told.position.next_attempt_at_ms == world.clock_ms + 30_000
    assert told.position.deadline_at_ms == world.clock_ms + 86_400_000, "from then on it is given up"
    world.clock_ms += 20_000
    assert (await deployment.publish(job_id)).again_in_ms == 10_000
    world.clock_ms += 10_000
    assert (await deployment.publish(job_id)).verdict is Verdict.GO
    facts = await deployment.facts(job_id)
    assert facts.count(Fact.PUBLISH_FAILED) == facts.count(Fact.ATTEMPT_BEGUN) == 1


async def test_a_publish_that_never_succeeds_is_given_up(world: World) -> None:
    deployment = Deployment(world, Workflows(), policy=StepPolicy(publish_attempts_max=1))
    job_id = await deployment.submit()
    world.bus.on_publish = fates(PublishFault.REFUSED)
    assert (await deployment.publish_in_vain(job_id)).code is Code.PUBLISH_FAILED
    told = await deployment.attempt(job_id)
    assert (told.verdict, told.position.job_state) == (Verdict.STOP, JobState.FAILED_FINAL)
    slow = Deployment(world, Workflows())
    job_id = await slow.submit()
    world.bus.on_publish = fates(PublishFault.REFUSED)
    await slow.publish_in_vain(job_id)
    given_up_ms = (await slow.attempt(job_id)).position.deadline_at_ms
    assert given_up_ms is not None
    world.clock_ms = given_up_ms
    told = await slow.expire(job_id, PUBLISH)
    assert (told.verdict, told.position.job_state) == (Verdict.STOP, JobState.FAILED_FINAL)


async def test_a_crash_after_the_publish_publishes_the_same_attempt_again(
    world: World, deployment: Deployment
) -> None:
    job_id = await deployment.submit()
    await deployment.attempt(job_id, publish=False)
    world.writes_lost = 1
    with pytest.raises(StoreUnavailable):
        await deployment.publish(job_id)
    told = await Deployment(world, deployment.workflows).publish(job_id)
    assert (told.verdict, told.position.published) == (Verdict.GO, True)
    ids = {delivery.message_id for delivery in await Worker(world).take()}
    assert len(ids) == 1
    assert (await deployment.facts(job_id)).count(Fact.DIRECTIVE_PUBLISHED) == 1


async def test_an_attempt_expires_when_its_time_is_over(world: World, deployment: Deployment) -> None:
    job_id = await deployment.submit()
    await deployment.attempt(job_id)
    world.clock_ms += 29_999
    early = await deployment.expire(job_id, ACK)
    assert (early.verdict, early.again_in_ms) == (Verdict.WAIT, 1)
    world.clock_ms += 1
    over = await deployment.expire(job_id, ACK)
    assert (over.verdict, over.position.step_state) == (Verdict.GO, StepState.FAILED_RETRY)
    assert over.position.next_attempt_at_ms == world.clock_ms + 60_000
    assert await deployment.expire(job_id, ACK) == over, "asking again is answered the same"


async def test_what_was_acknowledged_or_extended_is_not_expired(world: World, deployment: Deployment) -> None:
    job_id = await deployment.submit()
    await deployment.attempt(job_id)
    await deployment.apply(job_id, ack(await Worker(world).take_one()))
    world.clock_ms += 30_000
    told = await deployment.expire(job_id, ACK)
    assert (told.verdict, told.position.step_state) == (Verdict.MOVED, StepState.PROCESSING)
    world.clock_ms += 800_000
    report = Progress(step_id="step_01", attempt_no=1, lease_id="L1-step_01", content=dict, progress=10)
    await deployment.apply(job_id, report)
    world.clock_ms += 70_000
    told = await deployment.expire(job_id, LEASE)
    assert (told.verdict, told.position.deadline_at_ms) == (Verdict.MOVED, world.clock_ms + 830_000)
    world.clock_ms += 829_999
    assert (await deployment.expire(job_id, LEASE)).verdict is Verdict.WAIT
    world.clock_ms += 1
    assert (await deployment.expire(job_id, LEASE)).position.step_state is StepState.FAILED_RETRY


async def test_a_cancelling_job_ends_with_its_steps_deadline(world: World, deployment: Deployment) -> None:
    job_id = await deployment.submit()
    await deployment.attempt(job_id)
    assert (await deployment.control(job_id, Cancel())).position.job_state is JobState.CANCELLING
    world.clock_ms += 29_999
    assert (await deployment.expire(job_id, ACK)).verdict is Verdict.WAIT
    world.clock_ms += 1
    told = await deployment.expire(job_id, ACK)
    assert (told.verdict, told.position.job_state) == (Verdict.STOP, JobState.CANCELLED)


async def test_several_invokers_at_once_begin_one_attempt(world: World) -> None:
    deployments = [Deployment(world, Workflows()) for _ in range(4)]
    job_id = await deployments[0].submit()
    told = await asyncio.gather(*(each.attempt(job_id, lease=f"L{n}") for n, each in enumerate(deployments)))
    verdicts = sorted(each.verdict.value for each in told)
    assert verdicts == ["go", "moved", "moved", "moved"]
    assert len({each.position.lease_id for each in told}) == 1
    assert len(await Worker(world).take()) == 1
    assert (await deployments[0].record(job_id)).job.attempts_total == 1
