"""What the workflow does next, from where the job stands: a pure choice, without Temporal.

States are plain words here. A position may come from an invoker that is newer than this worker and speak of
states that it does not know; then it waits to hear more, or asks and lets the ledger answer.
"""

from enum import StrEnum

import msgspec

from lucius.contracts.internal import Verdict
from lucius.core.inputs import ExpireReason
from lucius.core.states import JobState, StepState

IN_VAIN_FIRST_MS = 1_000
IN_VAIN_MOST_MS = 30_000


class WorkflowPosition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A `Position` as a workflow reads it: the same members, and no word that could be unknown."""

    version: int
    job_state: str
    stepId: str | None = None  # noqa: N815
    step_state: str | None = None
    attempt_no: int = 0
    lease_id: str | None = None
    published: bool = False
    deadline_at_ms: int | None = None
    next_attempt_at_ms: int | None = None

    @property
    def terminal(self) -> bool:
        return self.stepId is None


class ReceivedSignal(msgspec.Struct, frozen=True, kw_only=True):
    """What a workflow reads of a signal."""

    position: WorkflowPosition
    stepId: str | None = None  # noqa: N815
    attempt_no: int = 0
    alarm: bool = False


class InvokerReply(msgspec.Struct, frozen=True, kw_only=True):
    """What a workflow reads of the invoker's answer."""

    verdict: str
    position: WorkflowPosition
    again_in_ms: int | None = None


class MoveKind(StrEnum):
    BEGIN = "begin"
    PUBLISH = "publish"
    EXPIRE = "expire"


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """What to ask for, and from when on; without an `ask` only news help."""

    ask: MoveKind | None = None
    from_ms: int = 0
    reason: ExpireReason | None = None


NOTHING = Move()


def next_move(at: WorkflowPosition) -> Move:
    if at.terminal or at.job_state == JobState.PAUSED:
        return NOTHING
    match at.step_state:
        case StepState.PENDING | StepState.FAILED_RETRY:
            return Move(ask=MoveKind.BEGIN, from_ms=at.next_attempt_at_ms or 0)
        case StepState.INITIATED if not at.published:
            return _publish(at)
        case StepState.INITIATED:
            return _expire(at, ExpireReason.ACK_TIMEOUT)
        case StepState.PROCESSING:
            return _expire(at, ExpireReason.LEASE_EXPIRED)
    return NOTHING


def _publish(at: WorkflowPosition) -> Move:
    """A directive that could not leave has a time from which on it is given up."""
    publish = Move(ask=MoveKind.PUBLISH, from_ms=at.next_attempt_at_ms or 0)
    given_up = _expire(at, ExpireReason.PUBLISH_FAILED)
    return given_up if given_up.ask and given_up.from_ms <= publish.from_ms else publish


def _expire(at: WorkflowPosition, reason: ExpireReason) -> Move:
    if at.deadline_at_ms is None:
        return NOTHING
    return Move(ask=MoveKind.EXPIRE, from_ms=at.deadline_at_ms, reason=reason)


def pause_after_ms(asked: WorkflowPosition, answer: InvokerReply, *, in_vain: int) -> int:
    """How long to let things be before the next question; 0 if the answer brought something new.

    An answer that changes nothing must not be asked for in a circle: two clocks may differ about a deadline,
    and a ledger may know better in a way that a position cannot say.
    """
    if answer.verdict == Verdict.WAIT:
        return max(1, IN_VAIN_FIRST_MS if answer.again_in_ms is None else answer.again_in_ms)
    if answer.position.version > asked.version:
        return 0
    # The shift has a bound of its own: a job may be refused for weeks.
    return min(IN_VAIN_MOST_MS, IN_VAIN_FIRST_MS << min(in_vain, 10))
