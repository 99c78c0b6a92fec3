"""`decide(record, given, now_ms, lease_id)`: what becomes true when this happens to that job.

Reads the record, chooses the facts, touches nothing. A wish that cannot be granted is `Refused`; everything
else is a `Decision`, and one whose outcome is UNCHANGED needs no commit. What a workflow asks for is compared
with the record: what does not fit, or no longer, changes nothing, and the record says where the job stands.
"""

from lucius.core.draft import Decision, Draft, Outcome
from lucius.core.due import backoff_ms, deadline_of, next_due_ms
from lucius.core.inputs import (
    Ack,
    BeginAttempt,
    Cancel,
    DispatchNow,
    Expire,
    ExpireReason,
    HandOut,
    Input,
    Pause,
    Progress,
    Published,
    PublishFailed,
    Result,
    Resume,
    Tick,
)
from lucius.core.model import Job, JobRecord, Json, Step
from lucius.core.refusal import Code, Refused
from lucius.core.replies import decide_reply, is_of_another_tenant, retry_or_fail
from lucius.core.states import JOB_AGEING, JOB_TERMINAL, Engine, Fact, JobState, OutboxState, StepState

__all__ = ["create", "decide", "is_dispatchable", "is_publishable", "next_due_ms"]

PUBLISH_AGAIN_MS_MIN = 1_000
OTHER_TENANTS_JOB = Refused(Code.JOB_NOT_FOUND, "this tenant has no such job")

# Looked up once: the members of an enum are slow to reach, and every commit asks for these many times.
_OUTBOX, _PENDING, _PAUSED = Engine.OUTBOX, OutboxState.PENDING, JobState.PAUSED


def decide(record: JobRecord, given: Input, *, now_ms: int, lease_id: str) -> Decision | Refused:
    draft = Draft(record, now_ms=now_ms, lease_id=lease_id)
    match given:
        case Ack() | Progress() | Result():
            return decide_reply(draft, given)
        case HandOut():
            return _hand_out(draft, given)
        case Published():
            return _published(draft, given)
        case PublishFailed():
            return _publish_failed(draft, given)
        case DispatchNow():
            return _dispatch_now(draft)
        case Cancel():
            return _cancel(draft)
        case Pause():
            return _pause(draft)
        case Resume():
            return _resume(draft)
        case BeginAttempt():
            return _begin_attempt(draft, given)
        case Expire():
            return _expire(draft, given)
        case Tick():
            return _tick(draft, given.passed_ms)


def create(
    job: Job,
    steps: tuple[Step, ...],
    *,
    now_ms: int,
    lease_id: str,
    adopted: dict[str, Json] | None = None,
) -> Decision:
    """A job is born, and on the outbox engine its first attempt with it.

    `adopted` names the late success that one of its steps begins with. A job of which nothing is left to run
    is born and ends in the same decision.
    """
    draft = Draft(JobRecord(job=job, steps=steps), now_ms=now_ms, lease_id=lease_id)
    taken_over = None if adopted is None else adopted["stepId"]
    done = [step.step_id for step in steps if step.state is StepState.SUCCEEDED]
    reused = [step_id for step_id in done if step_id != taken_over]
    data: dict[str, Json] = {
        "request_type": job.request_type,
        "protocol_id": job.protocol_id,
        "engine": job.engine.value,
        "steps": [step.step_type for step in steps],
    }
    if job.rerun_of is not None:
        data.update(rerun_of=job.rerun_of, reused=reused)
    if adopted is not None:
        data["adopted"] = adopted
    draft.note(Fact.JOB_CREATED, **data)
    draft.settle()
    return draft.decision()


def is_dispatchable(record: JobRecord) -> bool:
    """Whether the outbox engine may send the open outbox row. Rows of other engines are not its own."""
    job, outbox = record.job, record.outbox
    return (
        outbox is not None
        and outbox.state is _PENDING
        and job.engine is _OUTBOX
        and job.state is not _PAUSED
        and job.state not in JOB_TERMINAL
    )


def is_publishable(record: JobRecord) -> bool:
    """Whether the open outbox row may leave: a paused job's is held."""
    outbox = record.outbox
    return (
        outbox is not None
        and outbox.state is _PENDING
        and not record.job.terminal
        and record.job.state is not _PAUSED
    )


def _awaiting_dispatch(record: JobRecord, given: HandOut | Published | PublishFailed) -> Step | None:
    step = record.step(given.step_id)
    if step is None or record.job.state in JOB_TERMINAL or not record.awaits_dispatch(step):
        return None
    current = step.attempt_no == given.attempt_no and step.lease_id == given.lease_id
    return step if current else None


def _hand_out(draft: Draft, given: HandOut) -> Decision | Refused:
    step = _awaiting_dispatch(draft.record, given)
    if step is None or not is_dispatchable(draft.record):
        return Refused(Code.STALE_ATTEMPT, "this attempt does not wait to be handed out")
    if given.not_after_ms is not None and draft.now_ms > given.not_after_ms:
        return Refused(Code.STALE_ATTEMPT, "the time in which it might leave is over")
    _leave(draft, step, probe=given.probe)
    if given.picked_up:
        draft.note(Fact.STEP_ACKED, step, deadline_at_ms=draft.now_ms + step.policy.lease_ms)
    return draft.decision()


def _published(draft: Draft, given: Published) -> Decision:
    step = _awaiting_dispatch(draft.record, given)
    if step is None:
        return draft.decision(Outcome.UNCHANGED)
    _leave(draft, step, probe=given.probe)
    return draft.decision()


def _leave(draft: Draft, step: Step, *, probe: bool) -> None:
    data: dict[str, Json] = {"deadline_at_ms": draft.now_ms + step.policy.ack_timeout_ms}
    if probe:
        data["probe"] = True
    draft.note(Fact.DIRECTIVE_PUBLISHED, step, **data)


def _publish_failed(draft: Draft, given: PublishFailed) -> Decision:
    step, outbox = _awaiting_dispatch(draft.record, given), draft.record.outbox
    if step is None or outbox is None:
        return draft.decision(Outcome.UNCHANGED)
    failures = outbox.failures + 1
    first_ms = draft.now_ms if outbox.first_failed_at_ms is None else outbox.first_failed_at_ms
    policy = step.policy
    exhausted = 0 < policy.publish_attempts_max <= failures
    if exhausted or draft.now_ms >= first_ms + policy.dispatch_timeout_ms:
        draft.fail(step, reason="PUBLISH", code="PUBLISH_FAILED", message=given.error_message)
        return draft.decision()
    # The first may be tried again at once. What goes on failing is not tried in a circle: each is an event.
    least_ms = 0 if failures == 1 else PUBLISH_AGAIN_MS_MIN
    draft.note(
        Fact.PUBLISH_FAILED,
        step,
        code="PUBLISH_FAILED",
        message=given.error_message,
        failures=failures,
        next_attempt_at_ms=draft.now_ms + max(least_ms, backoff_ms(policy.backoff_publish_ms, failures)),
    )
    return draft.decision()


def _dispatch_now(draft: Draft) -> Decision:
    outbox = draft.record.outbox
    if outbox is None or not is_publishable(draft.record) or outbox.due_at_ms <= draft.now_ms:
        return draft.decision(Outcome.UNCHANGED)
    draft.note(Fact.PUBLISH_HURRIED, draft.record.steps[outbox.step_index])
    return draft.decision()


def _cancel(draft: Draft) -> Decision | Refused:
    job, current = draft.record.job, draft.record.current
    if job.state in (JobState.CANCELLED, JobState.CANCELLING):
        return draft.decision(Outcome.UNCHANGED)
    if job.terminal:
        return Refused(Code.JOB_TERMINAL, f"the job has already ended: {job.state}")
    if current is not None and draft.record.is_under_way(current):
        draft.note(Fact.JOB_CANCELLING)
    else:
        draft.cancel_rest()
    return draft.decision()


def _pause(draft: Draft) -> Decision | Refused:
    job, current = draft.record.job, draft.record.current
    if job.terminal:
        return Refused(Code.JOB_TERMINAL, f"the job has already ended: {job.state}")
    if job.state is JobState.CANCELLING:
        return Refused(Code.JOB_CANCELLING, "the job is being cancelled")
    if job.state in (JobState.PAUSED, JobState.PAUSING):
        return draft.decision(Outcome.UNCHANGED)
    under_way = current is not None and draft.record.is_under_way(current)
    draft.note(Fact.JOB_PAUSING if under_way else Fact.JOB_PAUSED)
    return draft.decision()


def _resume(draft: Draft) -> Decision | Refused:
    job = draft.record.job
    if job.terminal:
        return Refused(Code.JOB_TERMINAL, f"the job has already ended: {job.state}")
    if job.state is JobState.CANCELLING:
        return Refused(Code.JOB_CANCELLING, "the job is being cancelled")
    if job.state not in (JobState.PAUSED, JobState.PAUSING):
        return draft.decision(Outcome.UNCHANGED)
    draft.note(Fact.JOB_RESUMED, to=(job.resume_to or JobState.IN_PROGRESS).value)
    draft.settle()
    return draft.decision()


def _begin_attempt(draft: Draft, given: BeginAttempt) -> Decision | Refused:
    job, step = draft.record.job, draft.record.current
    if is_of_another_tenant(job, given.tenant_id):
        return OTHER_TENANTS_JOB
    if job.engine is not Engine.TEMPORAL:
        return Refused(Code.STALE_ATTEMPT, "the outbox engine begins attempts by itself")
    fits = (
        step is not None
        and (step.step_id, step.attempt_no + 1) == (given.step_id, given.attempt_no)
        and job.state in (JobState.QUEUED, JobState.IN_PROGRESS)
        and draft.is_time_to_begin(step)
        # A lease that was in use before would let answers of the past count.
        and all(given.lease_id != each.lease_id for each in draft.record.steps)
    )
    if step is None or not fits:
        return draft.decision(Outcome.UNCHANGED)
    draft.begin(step, given.lease_id, lease_expected_at_ms=given.lease_expires_at_ms)
    return draft.decision()


def _expire(draft: Draft, given: Expire) -> Decision | Refused:
    step, deadline = draft.record.current, deadline_of(draft.record)
    if is_of_another_tenant(draft.record.job, given.tenant_id):
        return OTHER_TENANTS_JOB
    if draft.record.job.engine is not Engine.TEMPORAL:
        return Refused(Code.STALE_ATTEMPT, "the outbox engine keeps the time by itself")
    fits = (
        step is not None
        and (step.step_id, step.attempt_no, step.lease_id)
        == (given.step_id, given.attempt_no, given.lease_id)
        and deadline is not None
        and deadline.reason is given.reason
        and draft.now_ms >= deadline.at_ms
    )
    if step is None or not fits:
        return draft.decision(Outcome.UNCHANGED)
    _run_out(draft, step, given.reason)
    return draft.decision()


def _tick(draft: Draft, passed_ms: int) -> Decision:
    if not draft.record.job.terminal:
        # On the temporal engine the workflow asks. It goes by the deadline that it knows, which one that is
        # over by our own count cannot be.
        if draft.record.job.engine is _OUTBOX or passed_ms:
            _check_deadline(draft, max(draft.now_ms, passed_ms))
        _check_sla(draft)
        draft.settle()
    return draft.decision(Outcome.APPLIED if draft.events else Outcome.UNCHANGED)


def _check_deadline(draft: Draft, until_ms: int) -> None:
    step, deadline = draft.record.current, deadline_of(draft.record)
    if step is not None and deadline is not None and deadline.at_ms <= until_ms:
        _run_out(draft, step, deadline.reason)


def _run_out(draft: Draft, step: Step, reason: ExpireReason) -> None:
    """An attempt's time is over."""
    policy = step.policy
    match reason:
        case ExpireReason.ACK_TIMEOUT:
            message = f"no ACK within {policy.ack_timeout_ms / 1000:g} s of publishing"
            retry_or_fail(draft, step, reason.value, policy.backoff_ack_ms, reason.value, message)
        case ExpireReason.LEASE_EXPIRED:
            message = "the lease ran out before a RESULT came"
            retry_or_fail(draft, step, reason.value, policy.backoff_result_ms, reason.value, message)
        case ExpireReason.PUBLISH_FAILED:
            message = step.last_error_message or "the directive could not be published"
            draft.fail(step, reason="PUBLISH", code=reason.value, message=message)


def _check_sla(draft: Draft) -> None:
    job, step = draft.record.job, draft.record.current
    if step is None or job.state not in JOB_AGEING:
        return
    open_ms = draft.now_ms - job.created_at_ms - job.paused_total_ms
    if open_ms >= 2 * job.sla_ms:
        message = f"open for more than twice its SLA of {job.sla_ms // 1000} s"
        draft.fail(step, reason="SLA", code="SLA_EXCEEDED", message=message)
    elif open_ms >= job.sla_ms and job.escalated_at_ms is None:
        draft.note(Fact.SLA_ESCALATED, open_ms=open_ms)
