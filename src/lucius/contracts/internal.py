"""What the workflow and the invoker say to each other: questions, verdicts, and where a job stands.

The workflow proposes a move; the ledger compares it with what is true and says `go`, or why not. Every
verdict carries the job's present position, and so does every signal: the workflow adopts whichever is newest.
So it may begin in the middle of a job, and never repeats what was done behind its back.
"""

from enum import StrEnum

import msgspec

from lucius.core.due import deadline_of
from lucius.core.inputs import ExpireReason
from lucius.core.model import JobRecord
from lucius.core.states import JobState, OutboxState, StepState

__all__ = [
    "AttemptRequest",
    "ControlRequest",
    "ExpireReason",
    "ExpireRequest",
    "InternalAnswer",
    "InvokerProblem",
    "JobDefaults",
    "Position",
    "PublishRequest",
    "StepSignal",
    "Verdict",
    "position_of",
    "read_problem",
]


class Verdict(StrEnum):
    GO = "go"  # it is so now, by this call or by an earlier one that asked the same
    WAIT = "wait"  # too many unacknowledged directives on this lane: ask again a little later
    HOLD = "hold"  # the job is paused
    STOP = "stop"  # the job has ended or is ending
    MOVED = "moved"  # the job stands elsewhere: see the position


class Position(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a job stands. The step fields speak of the first step that is not finished; they are empty once
    the job is terminal. `version` is the job row's: of two positions the one with the higher is newer.
    `deadline_at_ms` is when the attempt has had its time: for its ACK, for its RESULT, or for its directive,
    while that cannot be published."""

    version: int
    job_state: JobState
    stepId: str | None = None  # noqa: N815
    step_index: int | None = None
    step_state: StepState | None = None
    attempt_no: int = 0
    lease_id: str | None = None
    published: bool = False
    deadline_at_ms: int | None = None
    next_attempt_at_ms: int | None = None

    @property
    def terminal(self) -> bool:
        return self.stepId is None


class JobDefaults(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a process's variables say of steps whose protocol says nothing; None: nothing."""

    max_attempts: int | None = None
    step_result_timeout_seconds: float | None = None


class AttemptRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Begin this attempt under this lease; with `publish`, send its directive too. With `wait`, the answer
    may take a moment and report the attempt's end. `tenant_id`, here and in the others, is compared with the
    job's; workflows from before it was sent do not know it. `lease_expires_at`: what the caller expects; it
    is recorded and shown until the directive leaves, which sets the deadline that counts. `created_with`: the
    settings of the orchestrator that started the workflow."""

    jobId: str  # noqa: N815
    stepId: str  # noqa: N815
    attempt_no: int
    lease_id: str
    tenant_id: str | None = None
    lease_expires_at: str | None = None
    created_with: JobDefaults | None = None
    publish: bool = False
    wait: bool = False


class PublishRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Send the directive of this attempt. The invoker builds it from the ledger, where all that is in it is
    pinned. A caller may send the full directive all the same: that it means this job and this lane is
    compared, and its other members are not needed."""

    jobId: str  # noqa: N815
    stepId: str  # noqa: N815
    attempt_no: int
    lease_id: str
    tenant_id: str | None = None
    lane: int | None = None


class ExpireRequest(msgspec.Struct, frozen=True, kw_only=True):
    """This attempt has had its time."""

    jobId: str  # noqa: N815
    stepId: str  # noqa: N815
    attempt_no: int
    lease_id: str
    reason: ExpireReason
    tenant_id: str | None = None


class ControlRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What may come with a control."""

    tenant_id: str | None = None


class InternalAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    verdict: Verdict
    position: Position
    again_in_ms: int | None = None  # with `wait`


class StepSignal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What `step_ack`, `step_result`, `pause`, `resume` and `cancel` carry. `alarm`: nothing happened, but a
    time came, and the position was read for that: it counts though the workflow knows a later one."""

    jobId: str  # noqa: N815
    position: Position
    stepId: str | None = None  # noqa: N815
    attempt_no: int = 0
    lease_id: str | None = None
    status: str | None = None
    error_code: str | None = None
    error_message: str | None = None
    alarm: bool = False


def position_of(record: JobRecord) -> Position:
    job, step = record.job, record.current
    if job.terminal or step is None:
        return Position(version=job.version, job_state=job.state)
    outbox, deadline = record.outbox, deadline_of(record)
    published = outbox is not None and outbox.lease_id == step.lease_id and outbox.state is OutboxState.SENT
    return Position(
        version=job.version,
        job_state=job.state,
        stepId=step.step_id,
        step_index=step.step_index,
        step_state=step.state,
        attempt_no=step.attempt_no,
        lease_id=step.lease_id,
        published=published,
        deadline_at_ms=None if deadline is None else deadline.at_ms,
        next_attempt_at_ms=step.next_attempt_at_ms,
    )


class InvokerProblem(msgspec.Struct, frozen=True):
    """What its callers read of the invoker's problem document."""

    code: str = ""
    detail: str = ""


def read_problem(body: bytes) -> InvokerProblem:
    """An empty one where the body is no problem document: a proxy may have answered."""
    try:
        return msgspec.json.decode(body, type=InvokerProblem)
    except msgspec.MsgspecError:
        return InvokerProblem()
