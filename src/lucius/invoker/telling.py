"""What happens to a job, applied to the ledger and then told to the job's workflow.

In: replies and controls, as `progress` takes them. Out: what became of them, once the ledger and the
workflow both know. A reply whose workflow cannot be told is a fault: whoever brought it brings it again, and
then it is a duplicate that changes nothing and is told again. A control needs no such thing: its commit left
a due row, and whoever meets that tells the workflow. Jobs of the outbox engine have no workflow and are only
applied.
"""

from collections import Counter

import structlog

from lucius.contracts.internal import StepSignal, position_of
from lucius.core.draft import Outcome
from lucius.core.inputs import Ack, Cancel, Input, Pause, Progress, Result, Resume
from lucius.core.model import JobRecord
from lucius.core.refusal import Refused
from lucius.core.states import Engine, StepState
from lucius.progress.apply import Applied, Applies
from lucius.progress.workflows import Signaller, SignalName, WorkflowsUnavailable

log = structlog.get_logger("lucius.telling")

_CONTROLS: dict[type, SignalName] = {
    Cancel: SignalName.CANCEL,
    Pause: SignalName.PAUSE,
    Resume: SignalName.RESUME,
}


class Telling:
    def __init__(self, progress: Applies, signaller: Signaller, *, signal_acks: bool = True) -> None:
        """`signal_acks`: an ACK moves no workflow; one that is not told finds out at its next question. Where
        that would be too late it is told all the same."""
        self._progress = progress
        self._signaller = signaller
        self._signal_acks = signal_acks
        self.signals: Counter[tuple[str, str]] = Counter()
        """How often which signal was heard, found nobody, or could not be sent."""

    async def apply(self, job_id: str, given: Input) -> Applied | Refused:
        """Raises `WorkflowsUnavailable` if a reply was applied and its workflow could not be told."""
        applied = await self._progress.apply(job_id, given)
        if isinstance(applied, Refused) or applied.record.job.engine is not Engine.TEMPORAL:
            return applied
        name = self._name(given, applied)
        if name is None:
            return applied
        try:
            await self._signal(name, applied.record, given)
        except WorkflowsUnavailable as fault:
            log.warning("workflow_not_told", jobId=job_id, signal=name.value, error=str(fault))
            if type(given) not in _CONTROLS:
                raise
        return applied

    def _name(self, given: Input, applied: Applied) -> SignalName | None:
        outcome = applied.outcome
        if outcome is Outcome.STALE:
            return None  # whatever ended that attempt was told
        if isinstance(given, Result):
            return SignalName.STEP_RESULT
        if isinstance(given, Ack | Progress):
            told = self._signal_acks and isinstance(given, Ack)
            return SignalName.STEP_ACK if told or _comes_nearer(applied.record, given) else None
        return None if outcome is Outcome.UNCHANGED else _CONTROLS.get(type(given))

    async def _signal(self, name: SignalName, record: JobRecord, given: Input) -> None:
        job_id, outcome = record.job.job_id, "unavailable"
        try:
            heard = await self._signaller.signal(job_id, name.value, _content(record, given))
            outcome = "heard" if heard else "nobody"
        finally:
            self.signals[name.value, outcome] += 1


def _comes_nearer(record: JobRecord, given: Ack | Progress) -> bool:
    """Whether the attempt's time may be over before its workflow, which knows nothing of this reply, asks:
    the lease is shorter than what was left of the ACK timeout, or no longer renewed in full."""
    step, outbox = record.step(given.step_id), record.outbox
    if step is None or outbox is None or step.state is not StepState.PROCESSING:
        return False
    policy, deadline_at_ms = step.policy, step.lease_expires_at_ms
    if deadline_at_ms is None or outbox.sent_at_ms is None:
        return False
    believed_at_ms = max(outbox.sent_at_ms + policy.ack_timeout_ms, step.updated_at_ms + policy.lease_ms)
    return deadline_at_ms < believed_at_ms


def _content(record: JobRecord, given: Input) -> StepSignal:
    job_id, position = record.job.job_id, position_of(record)
    if not isinstance(given, Ack | Progress | Result):
        return StepSignal(jobId=job_id, position=position)
    result = given if isinstance(given, Result) else None
    return StepSignal(
        jobId=job_id,
        position=position,
        stepId=given.step_id,
        attempt_no=given.attempt_no,
        lease_id=given.lease_id,
        status=None if result is None else result.status.value,
        error_code=None if result is None else result.error_code,
    )
