"""What Lucius wants of workflows: that a job has one, and that it hears where the job stands.

In: job ids and positions. Out: whether a workflow is there. The ports and their fault; an engine fulfils
them, and this package does not know which.
"""

from enum import StrEnum
from typing import Protocol

import msgspec

from lucius.contracts.internal import Position, StepSignal, position_of
from lucius.core.due import is_backoff_over
from lucius.core.model import PRIORITY_USUAL, JobRecord
from lucius.core.states import JobState


class WorkflowsUnavailable(Exception):
    """They could not be asked: nothing is known, and asking again later may help."""


class InvokerUnavailable(WorkflowsUnavailable):
    """The invoker, which writes for this process, gave no answer that makes sense. `message`: what a caller
    may know of it."""

    def __init__(self, fault: str, *, message: str) -> None:
        super().__init__(fault)
        self.message = message


class StartOutcome(StrEnum):
    STARTED = "started"
    RUNNING = "running"  # the job has its workflow already, or, unless it is open for certain, had one


class WorkflowLabels(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator may search a workflow by, and the priority of its job."""

    tenant: str
    request_type: str
    priority: int = PRIORITY_USUAL


class WorkflowStarter(Protocol):
    async def start(
        self, job_id: str, position: Position, labels: WorkflowLabels | None = None, *, is_open: bool = False
    ) -> StartOutcome:
        """Sees to it that the job has a workflow. `is_open`: the ledger says that the job has not ended, so
        one that ended, well or badly, is not its workflow any more. Raises `WorkflowsUnavailable`."""
        ...


class SignalName(StrEnum):
    STEP_ACK = "step_ack"
    STEP_RESULT = "step_result"
    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"


class WorkflowSignaller(Protocol):
    async def signal(self, job_id: str, name: str, signal: StepSignal) -> bool:
        """True once it is certain that the job's workflow will see it; False if none is open, which is no
        error. Raises `WorkflowsUnavailable`."""
        ...


def name_of(record: JobRecord) -> SignalName:
    """Which signal fits where a job stands, when no reply or control of the moment names it."""
    match record.job.state:
        case JobState.CANCELLING | JobState.CANCELLED:
            return SignalName.CANCEL
        case JobState.PAUSING | JobState.PAUSED:
            return SignalName.PAUSE
        case JobState.SUCCEEDED | JobState.FAILED_FINAL:
            return SignalName.STEP_RESULT
        case _:
            return SignalName.RESUME


async def signal_position(signaller: WorkflowSignaller, record: JobRecord, *, now_ms: int) -> bool:
    """Says to the job's workflow where the job stands; False if there is none. Raises as `signal` does.

    A backoff that was counted by a clock that ran ahead is over: the workflow is told so, or it waits on."""
    position, step = position_of(record), record.current
    if step is not None and position.next_attempt_at_ms is not None and is_backoff_over(step, now_ms):
        position = msgspec.structs.replace(
            position, next_attempt_at_ms=min(now_ms, position.next_attempt_at_ms)
        )
    signal = StepSignal(jobId=record.job.job_id, position=position, alarm=True)
    return await signaller.signal(record.job.job_id, name_of(record).value, signal)
