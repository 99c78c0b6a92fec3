"""A workflow that is not told of ACKs still asks in time: those that bring a deadline nearer it is told."""

from typing import TYPE_CHECKING

from lucius.contracts.internal import Verdict
from lucius.core.inputs import Ack, Progress
from lucius.core.model import StepPolicy
from lucius.progress.workflows import SignalName

if TYPE_CHECKING:
    from tests.rooms.invoker_house import House, Workflows
    from tests.rooms.relay_house import World
else:
    from invoker_house import House, Workflows
    from relay_house import World

LEASE = "L1-step_01"
SHORT_LEASE = StepPolicy(ack_timeout_ms=60_000, lease_ms=5_000)
TOLD = SignalName.STEP_ACK.value


async def published(policy: StepPolicy, *, signal_acks: bool = False) -> tuple[House, str]:
    house = House(World(), Workflows(), policy=policy, signal_acks=signal_acks)
    job_id = await house.submit()
    assert (await house.attempt(job_id)).verdict is Verdict.GO
    return house, job_id


def ack() -> Ack:
    return Ack(step_id="step_01", attempt_no=1, lease_id=LEASE, content=dict)


def progress() -> Progress:
    return Progress(step_id="step_01", attempt_no=1, lease_id=LEASE, content=dict, progress=10)


async def test_an_ack_that_leaves_more_time_is_not_told() -> None:
    house, job_id = await published(StepPolicy())
    await house.apply(job_id, ack())
    await house.apply(job_id, progress())
    assert house.workflows.names(job_id) == []


async def test_an_ack_that_leaves_less_time_is_told() -> None:
    house, job_id = await published(SHORT_LEASE)
    await house.apply(job_id, ack())
    assert house.workflows.names(job_id) == [TOLD]
    deadline_at_ms = (await house.record(job_id)).steps[0].lease_expires_at_ms
    assert house.workflows.newest(job_id).deadline_at_ms == deadline_at_ms


async def test_a_progress_that_implies_its_ack_is_told_likewise() -> None:
    house, job_id = await published(SHORT_LEASE, signal_acks=True)
    await house.apply(job_id, progress())
    assert house.workflows.names(job_id) == [TOLD]
    _, signal = house.workflows.told[job_id][0]
    assert (signal.stepId, signal.attempt_no, signal.lease_id) == ("step_01", 1, LEASE)


async def test_an_ack_that_could_not_be_told_is_told_when_it_comes_again() -> None:
    house, job_id = await published(SHORT_LEASE)
    await house.progress.apply(job_id, ack())
    await house.apply(job_id, ack())
    assert house.workflows.names(job_id) == [TOLD]


async def test_a_renewal_that_meets_the_longest_duration_is_told() -> None:
    house, job_id = await published(StepPolicy(lease_ms=60_000, max_duration_ms=90_000))
    await house.apply(job_id, ack())
    house.world.clock_ms += 20_000
    await house.apply(job_id, progress())
    assert house.workflows.names(job_id) == []
    house.world.clock_ms += 20_000
    await house.apply(job_id, progress())
    assert house.workflows.names(job_id) == [TOLD]
