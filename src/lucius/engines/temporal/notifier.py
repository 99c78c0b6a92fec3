"""What happens to a job, applied to the ledger and then told to the job's workflow.

In: replies and controls, as the job writer takes them. Out: what became of them, once the ledger and the
workflow both know. A reply whose workflow cannot be told is a fault: its sender brings it again, and
then it is a duplicate that changes nothing and is told again. A control needs no such thing: its commit left
a due row, and the process that meets that tells the workflow. Jobs of the outbox engine have no workflow and
are only applied.

Every signal costs the workflow a task of its own, and an ACK moves no workflow. So an ACK that no call waits
for is told a moment later, and not at all if the workflow has heard something newer by then: of a step that
is done within that moment it hears once. A workflow whose question is still open hears of a reply by the
answer, and needs no signal (see `questions`).
"""

import asyncio
from collections import Counter

import structlog

from lucius.contracts.internal import StepSignal, position_of
from lucius.core.draft import Outcome
from lucius.core.inputs import Ack, Cancel, DispatchNow, Input, Pause, Progress, Result, Resume
from lucius.core.model import JobRecord
from lucius.core.refusal import Refused
from lucius.core.states import Engine, StepState
from lucius.engines.notifications import NotificationListener
from lucius.engines.temporal.held_calls import HeldCalls
from lucius.jobs.workflows import SignalName, WorkflowSignaller, WorkflowsUnavailable
from lucius.jobs.writer import Applied, InputHandler
from lucius.telemetry.context import Subject

log = structlog.get_logger("lucius.telling")

ACK_PATIENCE_SECONDS = 1.0

_CONTROLS: dict[type, SignalName] = {
    Cancel: SignalName.CANCEL,
    Pause: SignalName.PAUSE,
    Resume: SignalName.RESUME,
    DispatchNow: SignalName.RESUME,
}


class WorkflowNotifier:
    def __init__(
        self,
        writer: InputHandler,
        signaller: WorkflowSignaller,
        *,
        questions: HeldCalls,
        signal_acks: bool = True,
        ack_patience_seconds: float = ACK_PATIENCE_SECONDS,
    ) -> None:
        """`signal_acks`: an ACK moves no workflow; one that is not told finds out at its next question. Where
        that would be too late it is told all the same."""
        self.writer = writer
        self.questions = questions
        self.others: NotificationListener | None = None
        """Other processes, which may have the question to a reply that comes here, or the other way round."""
        self._signaller = signaller
        self._signal_acks = signal_acks
        self._ack_patience_seconds = ack_patience_seconds
        self._patient: dict[str, list[tuple[int, asyncio.Event]]] = {}  # by job: versions not told yet
        self.signals: Counter[tuple[str, str]] = Counter()
        """How often which signal was heard, found no workflow, could not be sent, was overtaken by a newer,
        or was not needed since its workflow had asked and was answered."""

    async def apply(self, job_id: str, given: Input) -> Applied | Refused:
        """Raises `WorkflowsUnavailable` if a reply was applied and its workflow could not be told."""
        applied = await self.writer.apply(job_id, given)
        if isinstance(applied, Refused):
            return applied
        try:
            await self.notify(job_id, given, applied)
        except WorkflowsUnavailable:
            if type(given) not in _CONTROLS:
                raise
        return applied

    def take_over(self, job_id: str) -> None:
        """A workflow asks about this job that did not begin the attempt by this call: whatever question is
        open about it, here or elsewhere, is that of a call that failed or of a workflow that is no more."""
        self.questions.give_up(job_id)
        if self.others is not None:
            self.others.asked(job_id)

    async def notify_in_time(self, job_id: str, given: Input, applied: Applied) -> None:
        """As `notify`, for a caller that can wait: an ACK may be overtaken by what comes after it."""
        if self._may_wait(given, applied) and await self._overtaken(job_id, applied.record.job.version):
            self.signals[SignalName.STEP_ACK.value, "overtaken"] += 1
        else:
            await self.notify(job_id, given, applied)

    async def notify(self, job_id: str, given: Input, applied: Applied) -> None:
        """Raises `WorkflowsUnavailable`."""
        name = self._name(given, applied)
        if name is None:
            return
        answered = self.questions.answer(applied.record)
        if answered and type(given) not in _CONTROLS:
            self.signals[name.value, "answered"] += 1
        else:
            await self._announce(name, applied.record, given)
        for version, notified in self._patient.get(job_id, ()):
            if version < applied.record.job.version:
                notified.set()

    async def _announce(self, name: SignalName, record: JobRecord, given: Input) -> None:
        """To the workflow, and to the process that holds back a question of it."""
        job_id = record.job.job_id
        if self.others is not None:
            self.others.moved(job_id)
        try:
            await self._signal(name, record, given)
        except WorkflowsUnavailable as fault:
            ids = Subject(job_id, given, record.job).ids()
            log.warning("workflow_not_told", **ids, signal=name.value, error=str(fault))
            raise

    def _may_wait(self, given: Input, applied: Applied) -> bool:
        return (
            isinstance(given, Ack)
            and self._name(given, applied) is not None
            and not _comes_nearer(applied.record, given)
        )

    async def _overtaken(self, job_id: str, version: int) -> bool:
        """Whether the workflow hears of something newer while we have patience."""
        waiting = (version, asyncio.Event())
        self._patient.setdefault(job_id, []).append(waiting)
        try:
            async with asyncio.timeout(self._ack_patience_seconds):
                return await waiting[1].wait()
        except TimeoutError:
            return False
        finally:
            self._patient[job_id].remove(waiting)
            if not self._patient[job_id]:
                del self._patient[job_id]

    def _name(self, given: Input, applied: Applied) -> SignalName | None:
        outcome = applied.outcome
        if applied.record.job.engine is not Engine.TEMPORAL:
            return None
        if outcome in (Outcome.STALE, Outcome.OTHER_TENANT):
            return None  # whatever ended that attempt was told, and what was refused moves nothing
        if isinstance(given, Result):
            return SignalName.STEP_RESULT
        if isinstance(given, Ack | Progress):
            notified = self._signal_acks and isinstance(given, Ack)
            return SignalName.STEP_ACK if notified or _comes_nearer(applied.record, given) else None
        return None if outcome is Outcome.UNCHANGED else _CONTROLS.get(type(given))

    async def _signal(self, name: SignalName, record: JobRecord, given: Input) -> None:
        job_id, outcome = record.job.job_id, "unavailable"
        try:
            found = await self._signaller.signal(job_id, name.value, _content(record, given))
            outcome = "heard" if found else "nobody"
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
        error_message=None if result is None else result.error_message,
    )
