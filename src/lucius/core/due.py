"""How long to wait before trying again."""

from collections.abc import Sequence
from typing import Final

import msgspec

from lucius.core.inputs import ExpireReason
from lucius.core.model import Event, Job, JobRecord, Outbox, Step
from lucius.core.states import JOB_TERMINAL, STEP_UNDER_WAY, Engine, Fact, JobState, StepState


def backoff_ms(backoffs_ms: tuple[int, ...], failures: int) -> int:
    """The wait after the n-th failure, counted from 1; the last one repeats."""
    return backoffs_ms[min(failures, len(backoffs_ms)) - 1]


# Looked up once: the members of an enum are slow to reach.
_TEMPORAL, _PAUSED, _CANCELLING = Engine.TEMPORAL, JobState.PAUSED, JobState.CANCELLING
_INITIATED, _FAILED_RETRY = StepState.INITIATED, StepState.FAILED_RETRY
_ACK_TIMEOUT, _LEASE_EXPIRED = ExpireReason.ACK_TIMEOUT, ExpireReason.LEASE_EXPIRED

PAUSED_RECHECK_MS: Final = 3_600_000
# How late a workflow may be before the reconciler checks it. An alarm that changes nothing is repeated after
# as long as the job has been waiting by then, so that many jobs in a long queue do not raise alarms all the
# time.
ALARM_AFTER_MS: Final = 30_000
ALARM_EVERY_MS_MAX: Final = 3_600_000
# The clocks of hosts differ by less than this. A time that lies further ahead than any policy explains was
# written by a clock that ran ahead, and has been set right since.
AHEAD_MS: Final = 60_000

# What a user did. A workflow that waits for nothing else must be notified of it, or it never learns of it.
CONTROL_FACTS: Final = frozenset(
    {Fact.JOB_CANCELLING, Fact.JOB_CANCELLED, Fact.JOB_PAUSING, Fact.JOB_PAUSED, Fact.JOB_RESUMED}
)


class Deadline(msgspec.Struct, frozen=True, gc=False):
    reason: ExpireReason
    at_ms: int


def deadline_of(record: JobRecord) -> Deadline | None:
    """What the present attempt's time will run out for. None: no clock runs for it."""
    step = record.current
    return None if step is None or record.job.terminal else _deadline(record, step)


def _deadline(record: JobRecord, step: Step) -> Deadline | None:
    if record.awaits_dispatch(step):
        if record.job.state is _PAUSED:
            return None
        reason, at_ms = ExpireReason.PUBLISH_FAILED, _publish_given_up_ms(record.outbox, step)
    elif step.state in STEP_UNDER_WAY:
        reason = _ACK_TIMEOUT if step.state is _INITIATED else _LEASE_EXPIRED
        at_ms = step.lease_expires_at_ms
    else:
        return None
    return None if at_ms is None else Deadline(reason, at_ms)


def ran_ahead(written_at_ms: int, now_ms: int) -> bool:
    """Whether this was written by a clock that ran ahead of ours: the times beside it are as far off."""
    return written_at_ms > now_ms + AHEAD_MS


def pulled_in_ms(record: JobRecord, now_ms: int) -> int | None:
    """When the current attempt has had the time that it was given by a clock that ran ahead, if it is given
    that time from now on. None: no such clock set its deadline."""
    step, deadline = record.current, deadline_of(record)
    if step is None or deadline is None or not ran_ahead(step.updated_at_ms, now_ms):
        return None
    return now_ms + max(0, deadline.at_ms - step.updated_at_ms)


def pulled_in_due(record: JobRecord, step: Step, now_ms: int, at_ms: int) -> tuple[int, int | None]:
    """When to look at a job whose current step a clock that ran ahead has written, instead of at `at_ms`; and
    the deadline that is over then, though it lies further ahead."""
    if step.state is _FAILED_RETRY:
        is_temporal = record.job.engine is _TEMPORAL
        return min(at_ms, now_ms + (ALARM_AFTER_MS if is_temporal else 0)), None
    deadline, pulled_ms = deadline_of(record), pulled_in_ms(record, now_ms)
    if deadline is None or pulled_ms is None or pulled_ms >= at_ms:
        return at_ms, None
    return pulled_ms, deadline.at_ms


def is_backoff_over(step: Step, now_ms: int) -> bool:
    """Whether the next attempt may begin. A backoff that was counted by a clock that ran ahead is not waited
    for: it would last for as long as that clock was ahead."""
    at_ms = step.next_attempt_at_ms
    return at_ms is None or at_ms <= now_ms or ran_ahead(step.updated_at_ms, now_ms)


def next_due_ms(record: JobRecord, now_ms: int) -> int | None:
    """When the engine must look at the job next, at the latest; None once the job is terminal."""
    job = record.job
    if job.state in JOB_TERMINAL:
        return None
    step, at_ms = record.current, None
    if step is not None:
        at_ms = _alarm_ms(record, step, now_ms) if job.engine is _TEMPORAL else _tick_ms(record, step)
    if job.state is not _CANCELLING:
        sla_ms = _sla_due_ms(job, now_ms)
        return sla_ms if at_ms is None else min(sla_ms, at_ms)
    # A cancelling job does not age: only its step's deadline counts.
    if at_ms is None:
        raise ValueError(f"{job.job_id} is being cancelled and waits for nothing")
    return at_ms


def is_due_at_once(job: Job, events: Sequence[Event]) -> bool:
    """Whether the job's workflow must be notified of these events, even if the process that wrote them
    dies."""
    return job.engine is _TEMPORAL and any(event.type in CONTROL_FACTS for event in events)


def _tick_ms(record: JobRecord, step: Step) -> int | None:
    deadline = _deadline(record, step)
    if deadline is not None:
        return deadline.at_ms
    retries = step.state is _FAILED_RETRY and record.job.state is not _PAUSED
    return step.next_attempt_at_ms if retries else None


def _alarm_ms(record: JobRecord, step: Step, now_ms: int) -> int | None:
    if record.job.state is _PAUSED:
        return None
    awaited_ms = _awaited_ms(record, step)
    if awaited_ms + ALARM_AFTER_MS > now_ms:
        return awaited_ms + ALARM_AFTER_MS
    return now_ms + min(max(now_ms - awaited_ms, ALARM_AFTER_MS), ALARM_EVERY_MS_MAX)


def _awaited_ms(record: JobRecord, step: Step) -> int:
    """When the job's workflow should ask for something next."""
    at_ms: int | None = None
    if record.awaits_dispatch(step):
        at_ms = None if record.outbox is None else record.outbox.due_at_ms
    elif step.state is _FAILED_RETRY:
        at_ms = step.next_attempt_at_ms
    elif record.is_under_way(step):
        at_ms = step.lease_expires_at_ms
    return record.job.updated_at_ms if at_ms is None else at_ms


def _sla_due_ms(job: Job, now_ms: int) -> int:
    if job.state is _PAUSED:
        return now_ms + PAUSED_RECHECK_MS
    spans = 1 if job.escalated_at_ms is None else 2
    return job.created_at_ms + job.paused_total_ms + spans * job.sla_ms


def _publish_given_up_ms(outbox: Outbox | None, step: Step) -> int | None:
    if outbox is None or outbox.first_failed_at_ms is None:
        return None
    return outbox.first_failed_at_ms + step.policy.dispatch_timeout_ms
