"""What an event does to a record.

`fold(record, event)` is the only place where a job, a step or an outbox row changes. `decide` uses it to
build the record that it commits, so the rows are by construction what the trail of events says they are.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from lucius.core.model import Event, Job, JobRecord, Outbox, Step
from lucius.core.states import (
    JOB_TABLES,
    STEP_TABLES,
    Fact,
    JobState,
    OutboxState,
)
from lucius.core.usage import added

replace = msgspec.structs.replace

# Looked up once: the members of an enum are slow to reach.
_PAUSED, _PENDING, _SENT = JobState.PAUSED, OutboxState.PENDING, OutboxState.SENT

Changes = dict[str, Any]


class IllegalMove(Exception):
    """An event that the tables do not allow: a fault of the caller, never of a user."""


def fold(record: JobRecord, event: Event) -> JobRecord:
    job, steps, outbox = record.job, record.steps, record.outbox
    fact, engine, at_ms = event.type, job.engine, event.at_ms
    step, step_moves = None, STEP_TABLES[engine].get(fact)
    if step_moves is not None:
        step = record.step(event.step_id or "")
        if step is None:
            raise IllegalMove(f"{event.type} speaks of {event.step_id}, which this job does not have")
    targets = JOB_TABLES[engine][fact].get(job.state)
    if targets is None:
        raise IllegalMove(f"{event.type} cannot happen to a job in {job.state}")
    state = targets[0] if len(targets) == 1 else _chosen_target(job, event, targets)
    more: Changes = {}  # what changes of the job beside what always does
    paused_ms = 0
    if job.paused_at_ms is not None and state is not _PAUSED:
        paused_ms = _count_pause(job, job.paused_at_ms, more, event)
    step_changes: Changes = {}
    if step is not None and step_moves is not None:
        target = step_moves.get(step.state)
        if target is None:
            raise IllegalMove(f"{event.type} cannot happen to a step in {step.state}")
        step_changes = {"state": target, "updated_at_ms": at_ms}
    effect = _EFFECTS.get(fact)
    if effect is not None:
        outbox = effect(record, step, event, more, step_changes)
    if paused_ms and outbox is not None and outbox.first_failed_at_ms is not None:
        outbox = replace(outbox, first_failed_at_ms=outbox.first_failed_at_ms + paused_ms)
    if step is not None:
        index = step.step_index
        steps = (*steps[:index], replace(step, **step_changes), *steps[index + 1 :])
    if more:
        job = replace(job, state=state, seq=event.seq, updated_at_ms=at_ms, **more)
    else:
        job = replace(job, state=state, seq=event.seq, updated_at_ms=at_ms)
    return JobRecord(job=job, steps=steps, outbox=outbox)


def _chosen_target(job: Job, event: Event, targets: tuple[JobState, ...]) -> JobState:
    chosen = JobState(event.data["to"])
    if chosen not in targets:
        raise IllegalMove(f"{event.type} cannot take a job from {job.state} to {chosen}")
    return chosen


def _count_pause(job: Job, paused_at_ms: int, changes: Changes, event: Event) -> int:
    """Time spent in PAUSED counts neither towards the SLA nor towards giving up on a publish."""
    paused_ms = max(0, event.at_ms - paused_at_ms)
    changes["paused_total_ms"] = job.paused_total_ms + paused_ms
    changes["paused_at_ms"] = None
    if job.paused_reason is not None:
        changes["paused_reason"] = None
    return paused_ms


def _attempt_begun(
    record: JobRecord, step: Step | None, event: Event, job: Changes, changes: Changes
) -> Outbox | None:
    assert step is not None and event.attempt_no is not None
    job["attempts_total"] = record.job.attempts_total + 1
    if record.job.stop_asked_lease is not None:
        job["stop_asked_lease"] = None
    job["current_step_id"] = step.step_id
    job["current_step_index"] = step.step_index
    lease_id = event.data["lease_id"]
    changes.update(
        attempt_no=event.attempt_no,
        lease_id=lease_id,
        attempt_began_at_ms=event.at_ms,
        lease_expires_at_ms=None,
        lease_expected_at_ms=event.data.get("lease_expected_at_ms"),
        next_attempt_at_ms=None,
        acked=False,
        resulted=False,
        progress=None,
        progress_note=None,
        progress_event_at_ms=None,
    )
    return Outbox(
        outbox_id=f"{record.job.job_id}.{step.step_index:02d}.{event.attempt_no:03d}",
        step_id=step.step_id,
        step_index=step.step_index,
        service=step.service,
        lane=step.routing.lane,
        attempt_no=event.attempt_no,
        lease_id=lease_id,
        created_at_ms=event.at_ms,
        updated_at_ms=event.at_ms,
        due_at_ms=event.at_ms,
    )


def _published(
    record: JobRecord, step: Step | None, event: Event, job: Changes, changes: Changes
) -> Outbox | None:
    changes["lease_expires_at_ms"] = event.data["deadline_at_ms"]
    changes["next_attempt_at_ms"] = None
    # max_duration counts from here: waiting for a worker takes nothing from the attempt.
    changes["attempt_began_at_ms"] = event.at_ms
    if "probe" in event.data:
        changes["probing"] = True
    if record.job.state is _PAUSED:  # the pause overtook the note, and finds a worker after all
        _ask_to_stop(step, job)
    return _close(record.outbox, _SENT, event.at_ms)


def _publish_failed(
    record: JobRecord, step: Step | None, event: Event, job: Changes, changes: Changes
) -> Outbox | None:
    due_at_ms = event.data["next_attempt_at_ms"]
    changes["next_attempt_at_ms"] = due_at_ms
    _keep_error(changes, event)
    outbox = record.outbox
    assert outbox is not None
    first = outbox.first_failed_at_ms
    return replace(
        outbox,
        due_at_ms=due_at_ms,
        failures=outbox.failures + 1,
        first_failed_at_ms=event.at_ms if first is None else first,
        updated_at_ms=event.at_ms,
    )


def _publish_hurried(
    record: JobRecord, step: Step | None, event: Event, job: Changes, changes: Changes
) -> Outbox | None:
    changes["next_attempt_at_ms"] = None
    outbox = record.outbox
    assert outbox is not None
    return replace(outbox, due_at_ms=event.at_ms, updated_at_ms=event.at_ms)


def _acked(
    record: JobRecord, step: Step | None, event: Event, job: Changes, changes: Changes
) -> Outbox | None:
    changes["acked"] = True
    changes["lease_expires_at_ms"] = event.data["deadline_at_ms"]
    if record.job.resume_to is not None:
        job["resume_to"] = JobState.IN_PROGRESS
    return record.outbox


def _progressed(
    record: JobRecord, step: Step | None, event: Event, job: Changes, changes: Changes
) -> Outbox | None:
    data = event.data
    changes["lease_expires_at_ms"] = data["deadline_at_ms"]
    changes["progress"] = data["progress"]
    changes["progress_note"] = data["note"]
    changes["progress_event_at_ms"] = data["recorded_at_ms"]
    return record.outbox


def _step_succeeded(
    record: JobRecord, step: Step | None, event: Event, job: Changes, changes: Changes
) -> Outbox | None:
    _end_attempt(record, step, event, job, changes)
    changes.update(result_ref=event.data["output_ref"], resulted=True, completed_at_ms=event.at_ms)
    return record.outbox


def _step_retrying(
    record: JobRecord, step: Step | None, event: Event, job: Changes, changes: Changes
) -> Outbox | None:
    _end_attempt(record, step, event, job, changes)
    _keep_error(changes, event)
    data = event.data
    changes["next_attempt_at_ms"] = data["next_attempt_at_ms"]
    if "forgiven" in data:
        changes["attempts_forgiven"] = data["forgiven"]
    if "service" in data:
        assert step is not None
        changes.update(service=data["service"], fallback=step.fallback[1:], tried=(*step.tried, step.service))
    return record.outbox


def _step_failed(
    record: JobRecord, step: Step | None, event: Event, job: Changes, changes: Changes
) -> Outbox | None:
    _end_attempt(record, step, event, job, changes)
    _keep_error(changes, event)
    changes["completed_at_ms"] = event.at_ms
    return _close(record.outbox, OutboxState.FAILED_FINAL, event.at_ms)


def _step_cancelled(
    record: JobRecord, step: Step | None, event: Event, job: Changes, changes: Changes
) -> Outbox | None:
    _end_attempt(record, step, event, job, changes)
    _keep_error(changes, event)
    changes["completed_at_ms"] = event.at_ms
    return _close(record.outbox, OutboxState.CANCELLED, event.at_ms)


def _job_succeeded(
    record: JobRecord, step: Step | None, event: Event, job: Changes, changes: Changes
) -> Outbox | None:
    job.update(completed_at_ms=event.at_ms, final_output=event.data["final_output"], resume_to=None)
    return record.outbox


def _job_failed(
    record: JobRecord, step: Step | None, event: Event, job: Changes, changes: Changes
) -> Outbox | None:
    job.update(
        completed_at_ms=event.at_ms,
        error_code=event.data["code"],
        error_message=event.data["message"],
        resume_to=None,
    )
    return record.outbox


def _job_cancelling(
    record: JobRecord, step: Step | None, event: Event, job: Changes, changes: Changes
) -> Outbox | None:
    job["resume_to"] = None
    return record.outbox


def _job_cancelled(
    record: JobRecord, step: Step | None, event: Event, job: Changes, changes: Changes
) -> Outbox | None:
    job.update(completed_at_ms=event.at_ms, resume_to=None)
    return record.outbox


def _job_pausing(
    record: JobRecord, step: Step | None, event: Event, job: Changes, changes: Changes
) -> Outbox | None:
    job["resume_to"] = record.job.state
    _ask_to_stop(record.current, job)
    return record.outbox


def _job_paused(
    record: JobRecord, step: Step | None, event: Event, job: Changes, changes: Changes
) -> Outbox | None:
    job["paused_at_ms"] = event.at_ms
    if record.job.state is not JobState.PAUSING:
        job["resume_to"] = record.job.state
    if "reason" in event.data:
        data = event.data
        parts = (data.get(name) for name in ("reason", "code", "message"))
        job["paused_reason"] = ": ".join(text for text in parts if text)
    return record.outbox


def _job_resumed(
    record: JobRecord, step: Step | None, event: Event, job: Changes, changes: Changes
) -> Outbox | None:
    job["resume_to"] = None
    return record.outbox


def _escalated(
    record: JobRecord, step: Step | None, event: Event, job: Changes, changes: Changes
) -> Outbox | None:
    job["escalated_at_ms"] = event.at_ms
    return record.outbox


def _evidence(
    record: JobRecord, step: Step | None, event: Event, job: Changes, changes: Changes
) -> Outbox | None:
    job["evidence_count"] = record.job.evidence_count + 1
    return record.outbox


def _ask_to_stop(step: Step | None, job: Changes) -> None:
    if step is not None and step.stop_on_pause:
        job["stop_asked_lease"] = step.lease_id


def _end_attempt(record: JobRecord, step: Step | None, event: Event, job: Changes, changes: Changes) -> None:
    usage = event.data.get("usage")
    if usage and step is not None:
        changes["usage"] = added(step.usage, usage)
        job["usage"] = added(record.job.usage, usage)
    changes["lease_expires_at_ms"] = None
    changes["probing"] = False
    changes["next_attempt_at_ms"] = None
    if event.data.get("reason") == "RESULT":
        changes["resulted"] = True


def _keep_error(changes: Changes, event: Event) -> None:
    if "code" in event.data:
        changes["last_error_code"] = event.data["code"]
        changes["last_error_message"] = event.data["message"]


def _close(outbox: Outbox | None, state: OutboxState, at_ms: int) -> Outbox | None:
    """An outbox row is closed once; what is closed stays as it is."""
    if outbox is None or outbox.state is not _PENDING:
        return outbox
    sent_at_ms = at_ms if state is _SENT else None
    return replace(outbox, state=state, sent_at_ms=sent_at_ms, updated_at_ms=at_ms)


_Effect = Callable[[JobRecord, Step | None, Event, Changes, Changes], Outbox | None]

_EFFECTS: dict[Fact, _Effect] = {
    Fact.ATTEMPT_BEGUN: _attempt_begun,
    Fact.DIRECTIVE_PUBLISHED: _published,
    Fact.PUBLISH_FAILED: _publish_failed,
    Fact.PUBLISH_HURRIED: _publish_hurried,
    Fact.STEP_ACKED: _acked,
    Fact.STEP_PROGRESSED: _progressed,
    Fact.STEP_SUCCEEDED: _step_succeeded,
    Fact.STEP_RETRYING: _step_retrying,
    Fact.STEP_FAILED: _step_failed,
    Fact.STEP_CANCELLED: _step_cancelled,
    Fact.JOB_SUCCEEDED: _job_succeeded,
    Fact.JOB_FAILED: _job_failed,
    Fact.JOB_CANCELLING: _job_cancelling,
    Fact.JOB_CANCELLED: _job_cancelled,
    Fact.JOB_PAUSING: _job_pausing,
    Fact.JOB_PAUSED: _job_paused,
    Fact.JOB_RESUMED: _job_resumed,
    Fact.SLA_ESCALATED: _escalated,
    Fact.REPLY_DUPLICATE: _evidence,
    Fact.REPLY_LATE: _evidence,
    Fact.REPLY_STALE: _evidence,
    Fact.REPLY_REFUSED: _evidence,
}
