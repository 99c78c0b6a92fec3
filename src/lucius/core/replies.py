"""Successes that came too late to count: which they are, and which can still be made to."""

from typing import Final

from lucius.core.attempt import AttemptRef
from lucius.core.draft import Decision, Draft, Outcome
from lucius.core.due import backoff_ms
from lucius.core.inputs import Ack, Progress, Reply, Result, ResultStatus
from lucius.core.model import ATTEMPT_NO_MAX, Event, Job, JobRecord, Json, Step
from lucius.core.routing import normalise
from lucius.core.states import JOB_TERMINAL, STEP_TERMINAL, Fact, JobState, StepState

LATE: Final = frozenset({Fact.REPLY_LATE, Fact.REPLY_STALE})


def is_late_success(event: Event) -> bool:
    """Whether this is evidence of a success that came too late to count."""
    reply = event.data.get("reply")
    return (
        event.type in LATE
        and isinstance(reply, dict)
        and reply.get("type") == "RESULT"
        and reply.get("status") == "SUCCEEDED"
    )


def not_adoptable(record: JobRecord, step_id: str | None) -> str | None:
    """Why a late success of this step cannot be taken over; None if it can: all before it have a result."""
    step = record.step(step_id or "")
    if step is None:
        known = ", ".join(each.step_id for each in record.steps)
        return f"is not a step of the job; it has {known}"
    for earlier in record.steps[: step.step_index]:
        if earlier.state is not StepState.SUCCEEDED:
            return f"needs the result of {earlier.step_id}, which did not succeed"
    return None


# Looked up once: the members of an enum are slow to reach, and every reply asks for these.
_APPLIED, _CANCELLING, _FAILED_RETRY = Outcome.APPLIED, JobState.CANCELLING, StepState.FAILED_RETRY
_PAUSING, _SUCCEEDED = JobState.PAUSING, ResultStatus.SUCCEEDED

STOPPED: Final = "STOPPED"
"""The code of a RESULT of a worker that stopped because it was told to."""

EVIDENCE_MAX = 100
# Signs of life come by the hundred. What is left beyond these is for the RESULT that may come after them: a
# late success can be adopted only if it was kept.
PROGRESS_EVIDENCE_MAX = 90
PROGRESS_EVENT_EVERY_MS = 10_000


def decide_reply(draft: Draft, reply: Reply) -> Decision:
    if is_of_another_tenant(draft.record.job, reply.tenant_id):
        return _refuse(draft, reply)
    step = draft.record.step(reply.step_id)
    outcome = _outcome(draft.record, step, reply)
    if outcome is not _APPLIED or step is None:
        _keep_evidence(draft, outcome, reply)
        current = _attempt(draft, reply).is_current(draft.record)
        return draft.decision(outcome, stop=not current or why_to_stop(draft.record) is not None)
    _imply_ack(draft, step, explicit=isinstance(reply, Ack))
    step = draft.step(step)
    stop = why_to_stop(draft.record) is not None
    match reply:
        case Progress():
            _progress(draft, step, reply)
        case Result():
            _result(draft, step, reply)
    return draft.decision(stop=stop)


def why_to_stop(record: JobRecord) -> str | None:
    """Why the worker of the attempt that is under way is told to stop; None if it is to go on."""
    job, step = record.job, record.current
    if job.state is _CANCELLING:
        return "the job is being cancelled"
    if job.state is _PAUSING and step is not None and _was_asked_to_stop(job, step):
        return "the job is being paused"
    return None


def is_stopped(event: Event) -> bool:
    """Whether an attempt ended because a pause asked its worker to stop: neither side has failed."""
    return event.data.get("stopped") is True


def _was_asked_to_stop(job: Job, step: Step) -> bool:
    """By a pause, which may be over by now: the worker learns of that no more than of the pause."""
    return job.stop_asked_lease is not None and job.stop_asked_lease == step.lease_id


def _may_stop(job: Job, step: Step) -> bool:
    """Whether this attempt may end without being counted."""
    may_follow = job.state is not _CANCELLING and step.attempt_no < ATTEMPT_NO_MAX
    return may_follow and _was_asked_to_stop(job, step)


def is_of_another_tenant(job: Job, named: str | None) -> bool:
    # Nearly all spell it as their directive did.
    return named is not None and named != job.tenant_id and normalise(named) != job.tenant_norm


def _refuse(draft: Draft, reply: Reply) -> Decision:
    """Its content is not kept: it may be another tenant's, and this job's readers may not see that."""
    if draft.record.job.evidence_count < PROGRESS_EVIDENCE_MAX:
        draft.note(
            Fact.REPLY_REFUSED,
            step_id=reply.step_id,
            attempt_no=reply.attempt_no,
            reason="TENANT_MISMATCH",
            reply={
                "type": type(reply).__name__.upper(),
                "stepId": reply.step_id,
                "attempt_no": reply.attempt_no,
                "lease_id": reply.lease_id,
            },
        )
    return draft.decision(Outcome.OTHER_TENANT, stop=True)


def _attempt(draft: Draft, reply: Reply) -> AttemptRef:
    return AttemptRef(
        job_id=draft.record.job.job_id,
        step_id=reply.step_id,
        attempt_no=reply.attempt_no,
        lease_id=reply.lease_id,
    )


def _outcome(record: JobRecord, step: Step | None, reply: Reply) -> Outcome:
    if step is None or (step.attempt_no, step.lease_id) != (reply.attempt_no, reply.lease_id):
        return Outcome.STALE
    if (isinstance(reply, Ack) and step.acked) or (isinstance(reply, Result) and step.resulted):
        return Outcome.DUPLICATE
    if record.job.state in JOB_TERMINAL or step.state in STEP_TERMINAL:
        return Outcome.RECORDED
    if step.state is _FAILED_RETRY:
        return Outcome.STALE
    return _APPLIED


_EVIDENCE_FACTS = {
    Outcome.DUPLICATE: Fact.REPLY_DUPLICATE,
    Outcome.RECORDED: Fact.REPLY_LATE,
    Outcome.STALE: Fact.REPLY_STALE,
}


def evidence_max(kind: str) -> int:
    """A reply of this kind is kept as evidence while a job has less of it."""
    return PROGRESS_EVIDENCE_MAX if kind == "PROGRESS" else EVIDENCE_MAX


def _keep_evidence(draft: Draft, outcome: Outcome, reply: Reply) -> None:
    if draft.record.job.evidence_count >= evidence_max("PROGRESS" if isinstance(reply, Progress) else ""):
        return
    draft.note(
        _EVIDENCE_FACTS[outcome], attempt_no=reply.attempt_no, step_id=reply.step_id, reply=reply.content()
    )


def _imply_ack(draft: Draft, step: Step, *, explicit: bool) -> None:
    """A reply proves that the directive left and was picked up, even if an earlier failure to send it was
    recorded."""
    policy = step.policy
    if draft.record.awaits_dispatch(step):
        deadline_at_ms = draft.now_ms + policy.ack_timeout_ms
        draft.note(Fact.DIRECTIVE_PUBLISHED, step, deadline_at_ms=deadline_at_ms, implied=True)
    if not step.acked:
        data: dict[str, Json] = {"deadline_at_ms": draft.now_ms + policy.lease_ms}
        if not explicit:
            data["implied"] = True
        draft.note(Fact.STEP_ACKED, step, **data)


def _progress(draft: Draft, step: Step, reply: Progress) -> None:
    policy, now_ms = step.policy, draft.now_ms
    began_at_ms = step.attempt_began_at_ms or now_ms
    # The ACK's lease may reach beyond `max_duration`: a worker that sends PROGRESS must not have less time
    # than one that sends none.
    latest_ms = max(began_at_ms + policy.max_duration_ms, step.lease_expires_at_ms or 0)
    deadline_at_ms = min(now_ms + policy.lease_ms, latest_ms)
    progress, note = step.progress, step.progress_note
    if reply.progress is None or progress is None or reply.progress >= progress:
        progress = progress if reply.progress is None else reply.progress
        note = note if reply.note is None else reply.note
    recorded_at_ms = step.progress_event_at_ms
    in_trail = recorded_at_ms is None or now_ms - recorded_at_ms >= PROGRESS_EVENT_EVERY_MS
    draft.progressed(
        step,
        in_trail=in_trail,
        progress=progress,
        note=note,
        deadline_at_ms=deadline_at_ms,
        recorded_at_ms=now_ms if in_trail else recorded_at_ms,
    )


def _result(draft: Draft, step: Step, reply: Result) -> None:
    if reply.status is _SUCCEEDED:
        asked: dict[str, Json] = {"slow_down": True} if reply.slow_down else {}
        draft.note(Fact.STEP_SUCCEEDED, step, output_ref=reply.output_ref, **asked, **_used(reply))
        draft.settle()
        return
    code = reply.error_code or "UNSPECIFIED"
    message = reply.error_message or "the service gave no reason"
    if reply.status is ResultStatus.FAILED_FINAL:
        draft.fail(step, reason="RESULT", code=code, message=message, **_used(reply))
    elif code == STOPPED and _may_stop(draft.record.job, step):
        _stopped(draft, step, message, _used(reply))
    else:
        backoffs_ms = step.policy.backoff_result_ms
        if reply.retry_after_ms is not None:
            backoffs_ms = (reply.retry_after_ms,)
        more: dict[str, Json] = {"slow_down": True} if reply.slow_down else {}
        retry_or_fail(draft, step, "RESULT", backoffs_ms, code, message, more=more | _used(reply))


def _used(reply: Result) -> dict[str, Json]:
    return {"usage": reply.usage} if reply.usage else {}


PARKED: Final = "EXHAUSTED"


def _stopped(draft: Draft, step: Step, message: str, more: dict[str, Json]) -> None:
    """As a pause asked: the next attempt comes with the resume, at once, and this one takes none away."""
    draft.note(
        Fact.STEP_RETRYING,
        step,
        reason="RESULT",
        code=STOPPED,
        message=message,
        stopped=True,
        forgiven=step.attempts_forgiven + 1,
        next_attempt_at_ms=draft.now_ms,
        **more,
    )
    draft.settle()


def retry_or_fail(
    draft: Draft,
    step: Step,
    reason: str,
    backoffs_ms: tuple[int, ...],
    code: str,
    message: str,
    *,
    more: dict[str, Json] | None = None,
) -> None:
    """A failure that another attempt may mend, at this service or at the one that stands in for it. `more`:
    what else is to be noted of it."""
    why: dict[str, Json] = {"reason": reason, "code": code, "message": message, **(more or {})}
    if draft.record.job.state is _CANCELLING:
        draft.note(Fact.STEP_CANCELLED, step, **why)
        draft.settle()
        return
    if not step.is_last_attempt:
        if step.probing:
            why["forgiven"] = step.attempts_forgiven + 1
        wait_ms = backoff_ms(backoffs_ms, max(1, step.attempts_counted))
        draft.note(Fact.STEP_RETRYING, step, **why, next_attempt_at_ms=draft.now_ms + wait_ms)
    elif step.attempt_no >= ATTEMPT_NO_MAX or not (step.fallback or step.policy.parks_exhausted):
        draft.fail(step, **why, exhausted=True)
        return
    else:
        why |= {"next_attempt_at_ms": draft.now_ms, "forgiven": step.attempt_no}
        if step.fallback:
            draft.note(Fact.STEP_RETRYING, step, **why, service=step.fallback[0])
        else:
            draft.note(Fact.STEP_RETRYING, step, **why)
            draft.note(Fact.JOB_PAUSED, reason=PARKED, code=code, message=message)
    draft.settle()
