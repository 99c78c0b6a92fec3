"""Why a job is where it is: what it waits for, since when, what happens next and when, and what may be done.

In: a record, the events of its trail, the time, when a worker of the step's service last asked for work, how
many jobs the tenant has in flight, and whether others work on the ledger. Out: an `Explanation`, as fields
and as words for an operator. Pure: nothing here asks a clock or a store. Times inside the words are UTC, with
their date unless it is today's. What should have happened by now is told as overdue, never as yet to come.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from lucius.core.explain_scene import Scene
from lucius.core.hints import (
    BUS_HINT,
    UNBEGUN_AFTER_MS,
    engine_hints,
    is_sla_overdue,
    late_hints,
    limit_hints,
    sla_end_ms,
    sla_hints,
    was_due,
)
from lucius.core.late import LATE
from lucius.core.model import Event, JobRecord, Outbox, Step
from lucius.core.retry import backoff_ms
from lucius.core.states import Engine, Fact, JobState, StepState
from lucius.core.wording import ago, attempt, noted, trouble

# A worker that leases waits up to half a minute for an answer: one that is well asks again within this.
ASKED_LATELY_MS: Final = 60_000


class WaitsFor(StrEnum):
    ENGINE = "ENGINE"
    WORKER = "WORKER"
    PUBLISH = "PUBLISH"
    ACK = "ACK"
    RESULT = "RESULT"
    RETRY = "RETRY"
    RESUME = "RESUME"


class Next(msgspec.Struct, frozen=True, kw_only=True):
    """What happens next if nothing else does. `at_ms` is None where no clock runs, or where it should have
    happened already."""

    what: str
    at_ms: int | None = None


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Once the job has ended nothing is waited for and nothing comes next; `since_ms` is when it ended."""

    job_id: str
    state: JobState
    summary: str
    waiting_for: WaitsFor | None
    since_ms: int
    next: Next | None
    step_id: str
    attempt_no: int
    attempts_max: int
    service: str
    service_asked_at_ms: int | None
    late_answers: tuple[Event, ...]
    tenant_in_flight: int
    tenant_max: int
    hints: tuple[str, ...]


class _Found(msgspec.Struct, frozen=True, kw_only=True):
    """What one situation comes to."""

    summary: str
    since_ms: int
    waiting_for: WaitsFor | None = None
    next: Next | None = None
    hints: tuple[str, ...] = ()
    overdue: bool = False


def explain(
    record: JobRecord,
    events: Sequence[Event],
    *,
    now_ms: int,
    service_asked_at_ms: int | None,
    over_bus: bool,
    tenant_in_flight: int,
    tenant_max: int,
    alone: bool = False,
) -> Explanation:
    """`events` may be the latest part of a long trail; `service_asked_at_ms` None: nobody was seen asking;
    `over_bus`: directives go to a broker, from which most services take them unseen; `alone`: no other
    process works on the ledger, and this one runs the outbox engine only."""
    job, step = record.job, step_in_focus(record)
    scene = Scene(
        record=record,
        step=step,
        events=events,
        now_ms=now_ms,
        asked_at_ms=service_asked_at_ms,
        over_bus=over_bus or job.engine is Engine.TEMPORAL,
    )
    found = _ended(scene) if job.terminal else _open(scene)
    late = tuple(event for event in events if event.type in LATE)
    overdue = found.overdue or is_sla_overdue(job, now_ms)
    stalled = engine_hints(job, alone=alone, overdue=overdue)
    own = (*stalled, *found.hints, *late_hints(record, late), *sla_hints(job, now_ms))
    coming, ends_ms = found.next, sla_end_ms(job)
    if coming is not None and coming.at_ms is not None and ends_ms is not None and ends_ms < coming.at_ms:
        coming = Next(what="the job fails with SLA_EXCEEDED unless it ends before", at_ms=ends_ms)
    return Explanation(
        job_id=job.job_id,
        state=job.state,
        summary=found.summary,
        waiting_for=found.waiting_for,
        since_ms=found.since_ms,
        next=coming,
        step_id=step.step_id,
        attempt_no=step.attempt_no,
        attempts_max=step.policy.max_attempts,
        service=step.service,
        service_asked_at_ms=service_asked_at_ms,
        late_answers=late,
        tenant_in_flight=tenant_in_flight,
        tenant_max=tenant_max,
        hints=(*own, *limit_hints(tenant_in_flight, tenant_max)),
    )


def step_in_focus(record: JobRecord) -> Step:
    """The step to speak of: the first open one; of an ended job the one it ended at."""
    if not record.job.terminal and record.current is not None:
        return record.current
    index = record.job.current_step_index
    return record.steps[-1 if index is None else index]


def _ended(scene: Scene) -> _Found:
    job = scene.job
    at_ms = job.completed_at_ms or job.updated_at_ms
    at = scene.clock(at_ms)
    if job.state is JobState.SUCCEEDED:
        return _Found(summary=f"succeeded at {at}; the result is at {job.final_output}", since_ms=at_ms)
    if job.state is JobState.CANCELLED:
        done = all(step.state is StepState.SUCCEEDED for step in scene.record.steps)
        how = " and from_step, for all its steps had succeeded" if done else ""
        return _Found(summary=f"cancelled at {at}; run it again with :rerun{how}", since_ms=at_ms)
    why = trouble(job.error_code, job.error_message)
    lost = f"finally failed: {why} ({scene.step.step_id}, at {at})"
    return _Found(summary=f"{lost}; run it again with :redrive or :rerun", since_ms=at_ms)


def _open(scene: Scene) -> _Found:
    state, step = scene.job.state, scene.step
    if state is JobState.PAUSED:
        return _paused(scene)
    if scene.record.is_under_way(step):
        if state is JobState.CANCELLING:
            return _cancelling(scene)
        if state is JobState.PAUSING:
            return _pausing(scene)
        return _under_way(scene)
    if scene.record.awaits_dispatch(step):
        outbox = scene.record.outbox
        if outbox is not None and outbox.failures:
            return _publishing(scene, outbox)
        return _unpublished(scene) if scene.over_bus else _unclaimed(scene)
    if step.state is StepState.FAILED_RETRY:
        return _backing_off(scene)
    since_ms = max(step.created_at_ms, scene.job.updated_at_ms)
    return _Found(
        summary=f"waiting for the engine to begin {step.step_id} since {scene.clock(since_ms)}",
        since_ms=since_ms,
        waiting_for=WaitsFor.ENGINE,
        next=Next(what=f"the engine begins {attempt(step, 1)}"),
        overdue=scene.now_ms - since_ms > UNBEGUN_AFTER_MS,
    )


def _paused(scene: Scene) -> _Found:
    job, step = scene.job, scene.step
    since_ms = job.paused_at_ms or job.updated_at_ms
    return _Found(
        summary=f"paused since {scene.clock(since_ms)}; `resume` goes on with {step.step_id}",
        since_ms=since_ms,
        waiting_for=WaitsFor.RESUME,
        next=Next(what=f"somebody resumes the job, and it goes on with {step.step_id}"),
        hints=("resume it with :resume, or cancel it with :cancel; a paused job does not age",),
    )


def _unclaimed(scene: Scene) -> _Found:
    step, service, since_ms = scene.step, scene.step.service, scene.waits_since_ms
    hint = f"start a worker of {service}: it leases its work with POST /v1/directives:lease"
    seen = f"nobody has asked for directives of service {service} since this process started"
    if scene.asked_at_ms is not None:
        silent_ms = scene.now_ms - scene.asked_at_ms
        seen = f"the last one asked {ago(silent_ms)} ago"
        if silent_ms < ASKED_LATELY_MS:
            hint = f"workers of {service} are there: they are busy, or do not lease lane {step.routing.lane}"
        else:
            seen = f"nobody leases directives of service {service}; {seen}"
    since = scene.clock(since_ms)
    return _Found(
        summary=f"waiting for a worker of {service} to take {step.step_id} since {since}; {seen}",
        since_ms=since_ms,
        waiting_for=WaitsFor.WORKER,
        next=Next(what=f"a worker of {service} takes {attempt(step, step.attempt_no)}; {_no_clock(scene)}"),
        hints=(hint,),
    )


def _unpublished(scene: Scene) -> _Found:
    step, since_ms = scene.step, scene.waits_since_ms
    what = f"the directive of {attempt(step, step.attempt_no)}"
    return _Found(
        summary=f"waiting for {what} at {step.step_id} to be published since {scene.clock(since_ms)}",
        since_ms=since_ms,
        waiting_for=WaitsFor.PUBLISH,
        next=Next(what=f"{what} is published; {_no_clock(scene)}"),
        hints=(
            f"is lane {step.routing.lane} of {step.service} full of directives that nobody acknowledges?",
        ),
    )


def _no_clock(scene: Scene) -> str:
    ends_ms = sla_end_ms(scene.job)
    if ends_ms is None:
        return "no clock runs until then"
    return f"no clock runs until then but the SLA's, which fails the job at {scene.clock(ends_ms)}"


def _publishing(scene: Scene, outbox: Outbox) -> _Found:
    step = scene.step
    since_ms = outbox.first_failed_at_ms or outbox.updated_at_ms
    times = "once" if outbox.failures == 1 else f"{outbox.failures} times"
    what = f"the directive of {attempt(step, step.attempt_no)} is published again"
    given_up_ms = since_ms + step.policy.dispatch_timeout_ms
    given_up = f"the job fails at {scene.clock(given_up_ms)} if none succeeds"
    if step.policy.publish_attempts_max:
        given_up = f"the job fails after {step.policy.publish_attempts_max} failures"
    elif scene.is_overdue(given_up_ms):
        given_up = f"the job's end {was_due(given_up_ms, scene.now_ms)}"
    overdue = scene.is_overdue(outbox.due_at_ms)
    again = f"is at {scene.clock(outbox.due_at_ms)}, and"
    coming = Next(what=what, at_ms=None if overdue else outbox.due_at_ms)
    if overdue:
        again = f"{was_due(outbox.due_at_ms, scene.now_ms)};"
    elif scene.now_ms <= given_up_ms < outbox.due_at_ms:
        again, given_up = "would come too late:", f"the job fails at {scene.clock(given_up_ms)}"
        coming = Next(what="the job fails, for its directive could not be published", at_ms=given_up_ms)
    return _Found(
        summary=(
            f"publishing to {step.service} failed {times} since {scene.clock(since_ms)}: "
            f"{step.last_error_message}; the next try {again} {given_up}"
        ),
        since_ms=since_ms,
        waiting_for=WaitsFor.PUBLISH,
        next=coming,
        hints=(BUS_HINT,),
        overdue=overdue,
    )


def _backing_off(scene: Scene) -> _Found:
    step = scene.step
    at_ms = step.next_attempt_at_ms or scene.now_ms
    why = trouble(step.last_error_code, step.last_error_message)
    again = attempt(step, step.attempt_no + 1)
    overdue = scene.is_overdue(at_ms)
    begins = was_due(at_ms, scene.now_ms) if overdue else f"begins at {scene.clock(at_ms)}"
    return _Found(
        summary=(
            f"attempt {step.attempt_no} of {step.policy.max_attempts} at {step.step_id} failed at "
            f"{scene.clock(step.updated_at_ms)}: {why}; {again} {begins}"
        ),
        since_ms=step.updated_at_ms,
        waiting_for=WaitsFor.RETRY,
        next=Next(what=f"{again} begins", at_ms=None if overdue else at_ms),
        overdue=overdue,
    )


def _under_way(scene: Scene) -> _Found:
    what, since_ms, waiting = _work(scene)
    missing = "none" if waiting is WaitsFor.ACK else "no RESULT"
    then, at_ms = _if_silent(scene, waiting)
    if scene.missed_ms is not None:
        return _Found(
            summary=f"{what}; {then} once somebody does",
            since_ms=since_ms,
            waiting_for=waiting,
            next=Next(what=f"{then} once somebody acts on the deadline"),
            overdue=True,
        )
    return _Found(
        summary=f"{what}; {then} at {scene.clock(at_ms)} if {missing} comes",
        since_ms=since_ms,
        waiting_for=waiting,
        next=Next(what=f"{then} if {missing} comes", at_ms=at_ms),
    )


def _pausing(scene: Scene) -> _Found:
    what, _, waiting = _work(scene)
    since_ms = scene.last(Fact.JOB_PAUSING) or scene.job.updated_at_ms
    step, overdue = scene.step, scene.missed_ms is not None
    pauses = "pauses unless it succeeded" if step is scene.record.steps[-1] else "pauses"
    if step.attempt_no >= step.policy.max_attempts:
        pauses += "; if no answer comes, the job fails"
    return _Found(
        summary=f"pausing since {scene.clock(since_ms)}, once {step.step_id} ends: {what}",
        since_ms=since_ms,
        waiting_for=waiting,
        next=Next(
            what=f"{step.step_id} ends, and the job {pauses}",
            at_ms=None if overdue else step.lease_expires_at_ms,
        ),
        hints=("undo it with :resume",),
        overdue=overdue,
    )


def _cancelling(scene: Scene) -> _Found:
    step = scene.step
    _, _, waiting = _work(scene)
    since_ms = scene.last(Fact.JOB_CANCELLING) or scene.job.updated_at_ms
    at_ms, missed_ms = step.lease_expires_at_ms, scene.missed_ms
    latest = "" if at_ms is None else f", or at {scene.clock(at_ms)} if it keeps silent"
    ends = "its time runs out"
    if missed_ms is not None:
        latest = f"; its time was over at {scene.clock(missed_ms)}, and nobody has acted on it"
        at_ms, ends = None, "somebody acts on the deadline"
    return _Found(
        summary=(
            f"cancelling since {scene.clock(since_ms)}: {step.service} has {step.step_id} and is told to "
            f"stop; the job is cancelled when it answers{latest}"
        ),
        since_ms=since_ms,
        waiting_for=waiting,
        next=Next(what=f"{step.service} answers or {ends}, and the job is cancelled", at_ms=at_ms),
        overdue=missed_ms is not None,
    )


def _work(scene: Scene) -> tuple[str, int, WaitsFor]:
    """What a service does with the step that is under way, since when, and what is waited for."""
    step, missed_ms = scene.step, scene.missed_ms
    if step.state is StepState.INITIATED:
        sent_ms = scene.last(Fact.DIRECTIVE_PUBLISHED) or step.attempt_began_at_ms or step.updated_at_ms
        what = f"waiting for an ACK from {step.service} since {scene.clock(sent_ms)}"
        late = "" if missed_ms is None else f"; it {was_due(missed_ms, scene.now_ms)}"
        return f"{what}{late}", sent_ms, WaitsFor.ACK
    acked_ms = scene.last(Fact.STEP_ACKED) or step.attempt_began_at_ms or step.updated_at_ms
    done = "" if step.progress is None else f" ({step.progress} % done{noted(step.progress_note)})"
    lease = f"; its lease runs out at {scene.clock(step.lease_expires_at_ms or scene.now_ms)}"
    if missed_ms is not None:
        lease = f"; its lease ran out at {scene.clock(missed_ms)}, and nobody has acted on it"
    what = f"{step.service} works on {step.step_id} since {scene.clock(acked_ms)}{done}{lease}"
    return what, acked_ms, WaitsFor.RESULT


def _if_silent(scene: Scene, waiting: WaitsFor) -> tuple[str, int]:
    """What the deadline of a step under way leads to, and when."""
    step, policy = scene.step, scene.step.policy
    deadline_ms = step.lease_expires_at_ms or scene.now_ms
    if step.attempt_no >= policy.max_attempts:
        return "the job fails", deadline_ms
    backoffs_ms = policy.backoff_ack_ms if waiting is WaitsFor.ACK else policy.backoff_result_ms
    again_ms = deadline_ms + backoff_ms(backoffs_ms, step.attempt_no)
    return f"{attempt(step, step.attempt_no + 1)} begins", again_ms
