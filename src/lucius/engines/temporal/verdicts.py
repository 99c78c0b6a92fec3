"""What a workflow is told that asked for a move: the ledger's word on it, and where the job stands.

In: the job as it is after the move was made, or was not, and what was asked. Out: a verdict. Pure.
"""

from lucius.contracts.internal import InternalAnswer, Verdict, position_of
from lucius.core.attempt import AttemptRef
from lucius.core.due import deadline_of
from lucius.core.inputs import ExpireReason
from lucius.core.model import JobRecord
from lucius.core.states import STEP_ACTIVE, JobState, StepState

# Two clocks may differ about a moment. A workflow that comes too early by less is asked to come again, and
# not too soon; a moment that is further off was moved, and the position says to when.
EARLY_MS_MAX = 60_000
AGAIN_IN_MS_MAX = 1_000


def answer(record: JobRecord, verdict: Verdict, *, again_in_ms: int | None = None) -> InternalAnswer:
    return InternalAnswer(verdict=verdict, position=position_of(record), again_in_ms=again_in_ms)


def on_attempt(record: JobRecord, asked: AttemptRef, now_ms: int) -> InternalAnswer:
    """Has the attempt begun?"""
    barred = _barred(record)
    if barred is not None:
        return answer(record, barred)
    step = record.current
    if step is not None and asked.is_of(step) and step.state in STEP_ACTIVE:
        return answer(record, Verdict.GO)
    early = step is not None and (step.step_id, step.attempt_no + 1) == (asked.step_id, asked.attempt_no)
    if early and step is not None and step.state is StepState.FAILED_RETRY:
        return _come_again(record, step.next_attempt_at_ms, now_ms)
    return answer(record, Verdict.MOVED)


def on_publish(record: JobRecord, asked: AttemptRef, now_ms: int) -> InternalAnswer:
    """Has the directive left? If the bus would not take it: from when on may it be tried again?"""
    barred = _barred(record)
    if barred is not None:
        return answer(record, barred)
    step, outbox = record.current, record.outbox
    if step is None or outbox is None or not asked.is_of(step) or step.state not in STEP_ACTIVE:
        return answer(record, Verdict.MOVED)
    if record.awaits_dispatch(step):
        return answer(record, Verdict.WAIT, again_in_ms=max(1, outbox.due_at_ms - now_ms))
    return answer(record, Verdict.GO)


def on_expiry(record: JobRecord, asked: AttemptRef, reason: ExpireReason, now_ms: int) -> InternalAnswer:
    """Is the attempt over?"""
    step, deadline = record.current, deadline_of(record)
    if step is not None and asked.is_of(step) and deadline is not None and deadline.reason is reason:
        return _come_again(record, deadline.at_ms, now_ms)
    barred = _barred(record)
    if barred is not None:
        return answer(record, barred)
    over = step is not None and asked.is_of(step) and step.state not in STEP_ACTIVE
    return answer(record, Verdict.GO if over else Verdict.MOVED)


def _barred(record: JobRecord) -> Verdict | None:
    """Whether nothing new may begin, whatever was asked."""
    if record.job.terminal or record.job.state is JobState.CANCELLING:
        return Verdict.STOP
    return Verdict.HOLD if record.job.state is JobState.PAUSED else None


def _come_again(record: JobRecord, at_ms: int | None, now_ms: int) -> InternalAnswer:
    left_ms = (at_ms or now_ms) - now_ms
    if left_ms > EARLY_MS_MAX:
        return answer(record, Verdict.MOVED)
    return answer(record, Verdict.WAIT, again_in_ms=min(max(1, left_ms), AGAIN_IN_MS_MAX))
