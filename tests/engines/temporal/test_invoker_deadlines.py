"""A workflow that is not told of ACKs still asks in time: those that bring a deadline nearer it is told."""

from tests.support.invoker_setup import Deployment, Workflows
from tests.support.publisher_setup import World

from lucius.contracts.internal import Verdict
from lucius.core.inputs import Ack, Progress
from lucius.core.model import StepPolicy
from lucius.jobs.workflows import SignalName

LEASE = "L1-step_01"
SHORT_LEASE = StepPolicy(ack_timeout_ms=60_000, lease_ms=5_000)
TOLD = SignalName.STEP_ACK.value


async def published(policy: StepPolicy, *, signal_acks: bool = False) -> tuple[Deployment, str]:
    deployment = Deployment(World(), Workflows(), policy=policy, signal_acks=signal_acks)
    job_id = await deployment.submit()
    assert (await deployment.attempt(job_id)).verdict is Verdict.GO
    return deployment, job_id


def ack() -> Ack:
    return Ack(step_id="step_01", attempt_no=1, lease_id=LEASE, content=dict)


def progress() -> Progress:
    return Progress(step_id="step_01", attempt_no=1, lease_id=LEASE, content=dict, progress=10)


async def test_an_ack_that_leaves_more_time_is_not_told() -> None:
    deployment, job_id = await published(StepPolicy())
    await deployment.apply(job_id, ack())
    await deployment.apply(job_id, progress())
    assert deployment.workflows.names(job_id) == []


async def test_an_ack_that_leaves_less_time_is_told() -> None:
    deployment, job_id = await published(SHORT_LEASE)
    await deployment.apply(job_id, ack())
    assert deployment.workflows.names(job_id) == [TOLD]
    deadline_at_ms = (await deployment.record(job_id)).steps[0].lease_expires_at_ms
    assert deployment.workflows.newest(job_id).deadline_at_ms == deadline_at_ms


async def test_a_progress_that_implies_its_ack_is_told_likewise() -> None:
    deployment, job_id = await published(SHORT_LEASE, signal_acks=True)
    await deployment.apply(job_id, progress())
    assert deployment.workflows.names(job_id) == [TOLD]
    _, signal = deployment.workflows.sent[job_id][0]
    assert (signal.stepId, signal.attempt_no, signal.lease_id) == ("step_01", 1, LEASE)


async def test_an_ack_that_could_not_be_told_is_told_when_it_comes_again() -> None:
    deployment, job_id = await published(SHORT_LEASE)
    await deployment.writer.apply(job_id, ack())
    await deployment.apply(job_id, ack())
    assert deployment.workflows.names(job_id) == [TOLD]


async def test_a_renewal_that_meets_the_longest_duration_is_told() -> None:
    deployment, job_id = await published(StepPolicy(lease_ms=60_000, max_duration_ms=90_000))
    await deployment.apply(job_id, ack())
    deployment.world.clock_ms += 20_000
    await deployment.apply(job_id, progress())
    assert deployment.workflows.names(job_id) == []
    deployment.world.clock_ms += 20_000
    await deployment.apply(job_id, progress())
    assert deployment.workflows.names(job_id) == [TOLD]
