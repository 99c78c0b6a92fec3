"""`decide(record, given, now_ms, lease_id)`: what becomes true when this happens to that job.

Reads the record, chooses the facts, touches nothing. A wish that cannot be granted is `Refused`; everything
else is a `Decision`, and one whose outcome is UNCHANGED needs no commit.
"""

from lucius.core.draft import Decision, Draft, Outcome
from lucius.core.inputs import (
    Ack,
    Cancel,
    DispatchNow,
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
from lucius.core.model import Job, JobRecord, Json, Outbox, Step
from lucius.core.refusal import Code, Refused
from lucius.core.replies import decide_reply, retry_or_fail
from lucius.core.retry import backoff_ms
from lucius.core.states import (
    STEP_UNDER_WAY,
    Fact,
    JobState,
    OutboxState,
    StepState,
)


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
        case Tick():
            return _tick(draft)


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


def next_due_ms(record: JobRecord, now_ms: int) -> int | None:
    """When `Tick` will next have something to do; None once the job is terminal."""
    job, step = record.job, record.current
    if job.terminal:
        return None
    # A cancelling job does not age (see `_check_sla`): only its step's deadline counts.
    due = [] if job.state is JobState.CANCELLING else [_sla_due_ms(job, now_ms)]
    if step is not None:
        if step.state in STEP_UNDER_WAY and step.lease_expires_at_ms is not None:
            due.append(step.lease_expires_at_ms)
        elif job.state is not JobState.PAUSED:
            if step.state is StepState.FAILED_RETRY and step.next_attempt_at_ms is not None:
                due.append(step.next_attempt_at_ms)
            elif step.state is StepState.DISPATCHING:
                given_up = _publish_given_up_ms(record.outbox, step)
                if given_up is not None:
                    due.append(given_up)
    return min(due)


def is_dispatchable(record: JobRecord) -> bool:
    """Whether the open outbox row may leave: a paused job's is held."""
    outbox = record.outbox
    return (
        outbox is not None
        and outbox.state is OutboxState.PENDING
        and not record.job.terminal
        and record.job.state is not JobState.PAUSED
    )


PAUSED_RECHECK_MS = 3_600_000


def _sla_due_ms(job: Job, now_ms: int) -> int:
    if job.state is JobState.PAUSED:
        return now_ms + PAUSED_RECHECK_MS
    spans = 1 if job.escalated_at_ms is None else 2
    return job.created_at_ms + job.paused_total_ms + spans * job.sla_ms


def _publish_given_up_ms(outbox: Outbox | None, step: Step) -> int | None:
    if outbox is None or outbox.first_failed_at_ms is None:
        return None
    return outbox.first_failed_at_ms + step.policy.dispatch_timeout_ms


def _awaiting_dispatch(record: JobRecord, given: HandOut | Published | PublishFailed) -> Step | None:
    step = record.step(given.step_id)
    if step is None or record.job.terminal or step.state is not StepState.DISPATCHING:
        return None
    current = step.attempt_no == given.attempt_no and step.lease_id == given.lease_id
    return step if current else None


def _hand_out(draft: Draft, given: HandOut) -> Decision | Refused:
    step = _awaiting_dispatch(draft.record, given)
    if step is None or not is_dispatchable(draft.record):
        return Refused(Code.STALE_ATTEMPT, "this attempt does not wait to be handed out")
    _leave(draft, step)
    if given.picked_up:
        draft.note(Fact.STEP_ACKED, step, deadline_at_ms=draft.now_ms + step.policy.lease_ms)
    return draft.decision()


def _published(draft: Draft, given: Published) -> Decision:
    step = _awaiting_dispatch(draft.record, given)
    if step is None:
        return draft.decision(Outcome.UNCHANGED)
    _leave(draft, step)
    return draft.decision()


def _leave(draft: Draft, step: Step) -> None:
    deadline_at_ms = draft.now_ms + step.policy.ack_timeout_ms
    draft.note(Fact.DIRECTIVE_PUBLISHED, step, deadline_at_ms=deadline_at_ms)


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
    draft.note(
        Fact.PUBLISH_FAILED,
        step,
        code="PUBLISH_FAILED",
        message=given.error_message,
        failures=failures,
        next_attempt_at_ms=draft.now_ms + backoff_ms(policy.backoff_publish_ms, failures),
    )
    return draft.decision()


def _dispatch_now(draft: Draft) -> Decision:
    outbox = draft.record.outbox
    if outbox is None or not is_dispatchable(draft.record) or outbox.due_at_ms <= draft.now_ms:
        return draft.decision(Outcome.UNCHANGED)
    draft.note(Fact.PUBLISH_HURRIED, draft.record.steps[outbox.step_index])
    return draft.decision()


def _cancel(draft: Draft) -> Decision | Refused:
    job, current = draft.record.job, draft.record.current
    if job.state in (JobState.CANCELLED, JobState.CANCELLING):
        return draft.decision(Outcome.UNCHANGED)
    if job.terminal:
        return Refused(Code.JOB_TERMINAL, f"the job has already ended: {job.state}")
    if current is not None and current.state in STEP_UNDER_WAY:
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
    under_way = current is not None and current.state in STEP_UNDER_WAY
    draft.note(Fact.JOB_PAUSING if under_way else Fact.JOB_PAUSED)
    return draft.decision()


def _resume(draft: Draft) -> Decision | Refused:
    job = draft.record.job
    if job.state is JobState.CANCELLING:
        return Refused(Code.JOB_CANCELLING, "the job is being cancelled")
    if job.state not in (JobState.PAUSED, JobState.PAUSING):
        return draft.decision(Outcome.UNCHANGED)
    draft.note(Fact.JOB_RESUMED, to=(job.resume_to or JobState.IN_PROGRESS).value)
    draft.settle()
    return draft.decision()


def _tick(draft: Draft) -> Decision:
    if not draft.record.job.terminal:
        _check_deadlines(draft)
        _check_sla(draft)
        draft.settle()
    return draft.decision(Outcome.APPLIED if draft.events else Outcome.UNCHANGED)


def _check_deadlines(draft: Draft) -> None:
    step, now_ms = draft.record.current, draft.now_ms
    if step is None:
        return
    deadline = step.lease_expires_at_ms
    if step.state in STEP_UNDER_WAY and deadline is not None and now_ms >= deadline:
        policy = step.policy
        if step.state is StepState.INITIATED:
            message = f"no ACK within {policy.ack_timeout_ms / 1000:g} s of publishing"
            retry_or_fail(draft, step, "ACK_TIMEOUT", policy.backoff_ack_ms, "ACK_TIMEOUT", message)
        else:
            message = "the lease ran out before a RESULT came"
            retry_or_fail(draft, step, "LEASE_EXPIRED", policy.backoff_result_ms, "LEASE_EXPIRED", message)
    elif step.state is StepState.DISPATCHING and draft.record.job.state is not JobState.PAUSED:
        given_up = _publish_given_up_ms(draft.record.outbox, step)
        if given_up is not None and now_ms >= given_up:
            message = step.last_error_message or "the directive could not be published"
            draft.fail(step, reason="PUBLISH", code="PUBLISH_FAILED", message=message)


def _check_sla(draft: Draft) -> None:
    job, step = draft.record.job, draft.record.current
    # A cancelling job ends with its step's deadline; a paused one does not age.
    if job.terminal or step is None or job.state in (JobState.CANCELLING, JobState.PAUSED):
        return
    open_ms = draft.now_ms - job.created_at_ms - job.paused_total_ms
    if open_ms >= 2 * job.sla_ms:
        message = f"open for more than twice its SLA of {job.sla_ms // 1000} s"
        draft.fail(step, reason="SLA", code="SLA_EXCEEDED", message=message)
    elif open_ms >= job.sla_ms and job.escalated_at_ms is None:
        draft.note(Fact.SLA_ESCALATED, open_ms=open_ms)
