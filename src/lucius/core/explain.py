"""How times, spans, attempts and errors are put into words for an operator. Times are UTC."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

import msgspec

from lucius.core.due import backoff_ms
from lucius.core.flow import FlowHold, FlowReason
from lucius.core.model import PRIORITY_USUAL, Event, Job, JobRecord, Outbox, Step
from lucius.core.priority import LEVEL_MS
from lucius.core.replies import LATE, is_late_success, not_adoptable, why_to_stop
from lucius.core.states import Engine, Fact, JobState, StepState

NOTE_SHOWN_MAX = 200


def attempt(step: Step, number: int) -> str:
    return f"attempt {number} of {attempts_max(step)}"


def attempts_max(step: Step) -> int:
    """The number of the last attempt at the service that is asked now."""
    return step.attempts_forgiven + step.policy.max_attempts


def trouble(code: str | None, message: str | None) -> str:
    return ": ".join(part for part in (code, message) if part) or "no reason was given"


Clock = Callable[[int], str]


def clock_at(now_ms: int, *, instants: bool = False) -> Clock:
    """How a time is written: without its day where that is today; `instants`: as RFC 3339, which a page can
    show in the time zone of its reader."""
    today = _moment(now_ms).date()

    def written(at_ms: int) -> str:
        at = _moment(at_ms)
        if instants:
            return at.strftime("%Y-%m-%dT%H:%M:%SZ")
        return at.strftime("%H:%M:%S" if at.date() == today else "%Y-%m-%d %H:%M:%S")

    return written


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms // 1000, UTC)


def ago(span_ms: int) -> str:
    """A span in a unit of which it has at least two."""
    seconds = max(0, span_ms) // 1000
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def noted(note: str | None) -> str:
    """What the service said last, where one line can hold it."""
    return f": {note[:NOTE_SHOWN_MAX]}" if note and note.isprintable() else ""


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """What every explanation is made from. `step` is the one the job is at, or its last."""

    record: JobRecord
    step: Step
    events: Sequence[Event]
    now_ms: int
    asked_at_ms: int | None
    over_bus: bool
    clock: Clock
    hold: FlowHold | None = None

    @property
    def job(self) -> Job:
        return self.record.job

    def is_overdue(self, at_ms: int) -> bool:
        return is_overdue(at_ms, self.now_ms)

    @property
    def missed_ms(self) -> int | None:
        """The deadline of a step under way, if it has passed and the engine has not acted on it."""
        at_ms = self.step.lease_expires_at_ms
        return at_ms if at_ms is not None and self.is_overdue(at_ms) else None

    @property
    def waits_since_ms(self) -> int:
        """Since when an attempt that has begun might have left: not while the job was paused."""
        step = self.step
        begun_ms = self.last(Fact.ATTEMPT_BEGUN) or step.attempt_began_at_ms or step.updated_at_ms
        return max(begun_ms, self.last(Fact.JOB_RESUMED) or 0)

    def last(self, fact: Fact) -> int | None:
        """When this was last true of the job, or of the step's present attempt where it speaks of a step."""
        found = (
            event.at_ms
            for event in reversed(self.events)
            if event.type is fact
            and event.step_id in (None, self.step.step_id)
            and event.attempt_no in (None, self.step.attempt_no)
        )
        return next(found, None)


HINTED_ANSWERS_MAX: Final = 5
# Timers, retries and answers on their way make what is due a little late on a system that is well.
OVERDUE_AFTER_MS: Final = 5_000
UNBEGUN_AFTER_MS: Final = 30_000

BUS_HINT: Final = "is the bus up? retry the outbox to try every waiting directive at once"

NOT_RUN_HERE: Final = (
    "this job runs on the temporal engine, which does not run here: start `lucius dev --engine temporal` on "
    "this folder, and the job goes on"
)
# A pause stops the job's clock. After a cancel only the deadline of the running step counts.
_AGELESS: Final = frozenset({JobState.PAUSED, JobState.CANCELLING})
_ENGINE_IDLE: Final = {
    Engine.OUTBOX: "no reconciler seems to run: is `lucius reconciler` (or `lucius invoker`) up?",
    Engine.TEMPORAL: (
        "no worker or invoker of the temporal engine seems to run: are `lucius worker`, `lucius invoker` and "
        "Temporal up?"
    ),
}


def is_overdue(at_ms: int, now_ms: int) -> bool:
    return now_ms - at_ms > OVERDUE_AFTER_MS


def was_due(at_ms: int, clock: Clock) -> str:
    return f"was due at {clock(at_ms)}, and no process has acted on it"


def engine_hints(job: Job, *, alone: bool, overdue: bool) -> list[str]:
    """Hints about which process can move the job. `alone`: no other process is, and this one runs the outbox
    engine only; what is late there waits for this process itself."""
    if job.terminal:
        return []
    if alone:
        return [NOT_RUN_HERE] if job.engine is Engine.TEMPORAL else []
    return [_ENGINE_IDLE[job.engine]] if overdue else []


def fallback_hints(step: Step) -> list[str]:
    """Which services were asked before the one that is asked now."""
    if not step.tried:
        return []
    before = ", ".join(step.tried)
    return [f"{step.service} stands in for {before}, whose attempts at {step.step_id} are used"]


def missed_successes(record: JobRecord, late: Sequence[Event]) -> list[Event]:
    """Successes that came too late, of which a new job could make use."""
    missed = [event for event in late if is_late_success(event) and _is_missed(record, event.step_id)]
    return missed[-HINTED_ANSWERS_MAX:]


def late_hints(record: JobRecord, missed: Sequence[Event], again: "RunAgain") -> list[str]:
    can = (
        "its result can be adopted"
        if record.job.terminal
        else "its result can be adopted once the job has ended"
    )
    return [
        f"attempt {event.attempt_no} at {event.step_id} succeeded too late (event {event.seq}): {can}"
        for event in missed
        if again.adopted_as(event) is None
    ]


def _is_missed(record: JobRecord, step_id: str | None) -> bool:
    step = record.step(step_id or "")
    return (
        step is not None and step.state is not StepState.SUCCEEDED and not_adoptable(record, step_id) is None
    )


def sla_hints(job: Job, now_ms: int, clock: Clock) -> list[str]:
    if job.terminal or job.escalated_at_ms is None:
        return []
    long = f"the job is open longer than its SLA of {ago(job.sla_ms)}"
    if (fails_ms := sla_end_ms(job)) is None:
        return [long]
    if is_overdue(fails_ms, now_ms):
        return [f"{long}; its end with SLA_EXCEEDED {was_due(fails_ms, clock)}"]
    return [f"{long}; unless it ends or is paused it fails at {clock(fails_ms)} with SLA_EXCEEDED"]


def is_sla_overdue(job: Job, now_ms: int) -> bool:
    ends_ms = sla_end_ms(job)
    return ends_ms is not None and is_overdue(ends_ms, now_ms)


def sla_end_ms(job: Job) -> int | None:
    """When it fails though nothing else ends it; None where no such clock runs."""
    if job.terminal or job.state in _AGELESS:
        return None
    return job.created_at_ms + job.paused_total_ms + 2 * job.sla_ms


def limit_hints(in_flight: int, in_flight_max: int) -> list[str]:
    if in_flight < in_flight_max:
        return []
    return [f"the tenant has {in_flight:,} jobs in flight, its limit: new commands are refused"]


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
    LIMIT = "LIMIT"
    BREAKER = "BREAKER"
    PAUSE = "PAUSE"


class ActionName(StrEnum):
    """What a person may do about a job."""

    RESUME = "resume"
    CANCEL = "cancel"
    RERUN = "rerun"
    REDRIVE = "redrive"
    ADOPT = "adopt"
    RETRY_OUTBOX = "retry_outbox"


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """`step_id` and `seq`: the success that is adopted. `from_step`: whether a rerun has to name a step."""

    name: ActionName
    step_id: str | None = None
    seq: int | None = None
    from_step: bool = False


class RunAgain(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an ended job: the job that runs it again, and those that adopted late successes, by step
    and event; those that came to nothing are left out. `listed`: a failed job is still on the list of the
    finally failed."""

    listed: bool = True
    job_id: str | None = None
    adoptions: Mapping[tuple[str, int], str] = {}

    def adopted_as(self, event: Event) -> str | None:
        return self.adoptions.get((event.step_id or "", event.seq))


NOT_RUN_AGAIN: Final = RunAgain()


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
    actions: tuple[Action, ...]
    again: RunAgain


class _Found(msgspec.Struct, frozen=True, kw_only=True):
    """What one situation comes to."""

    summary: str
    since_ms: int
    waiting_for: WaitsFor | None = None
    next: Next | None = None
    hints: tuple[str, ...] = ()
    actions: tuple[Action, ...] = ()
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
    instants: bool = False,
    again: RunAgain = NOT_RUN_AGAIN,
    hold: FlowHold | None = None,
) -> Explanation:
    """`events` may be the latest part of a long trail; `service_asked_at_ms` None: no worker was seen asking;
    `over_bus`: directives go to a broker, from which most services take them unseen; `alone`: no other
    process works on the ledger, and this one runs the outbox engine only; `instants`: times in the words are
    written as RFC 3339; `again`: what became of it after its end; `hold`: what keeps its directive from
    leaving."""
    clock = clock_at(now_ms, instants=instants)
    job, step = record.job, step_in_focus(record)
    situation = Situation(
        record=record,
        step=step,
        events=events,
        now_ms=now_ms,
        asked_at_ms=service_asked_at_ms,
        over_bus=over_bus or job.engine is Engine.TEMPORAL,
        clock=clock,
        hold=hold,
    )
    found = _ended(situation, again) if job.terminal else _open(situation)
    late = tuple(event for event in events if event.type in LATE)
    overdue = found.overdue or is_sla_overdue(job, now_ms)
    stalled = engine_hints(job, alone=alone, overdue=overdue)
    missed = missed_successes(record, late)
    own = (*stalled, *found.hints, *fallback_hints(step))
    own = (*own, *late_hints(record, missed, again), *sla_hints(job, now_ms, clock))
    adopts = [
        Action(name=ActionName.ADOPT, step_id=event.step_id, seq=event.seq)
        for event in missed
        if job.terminal and again.adopted_as(event) is None
    ]
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
        attempts_max=attempts_max(step),
        service=step.service,
        service_asked_at_ms=service_asked_at_ms,
        late_answers=late,
        tenant_in_flight=tenant_in_flight,
        tenant_max=tenant_max,
        hints=(*own, *limit_hints(tenant_in_flight, tenant_max)),
        actions=(*adopts, *found.actions),
        again=again,
    )


def step_in_focus(record: JobRecord) -> Step:
    """The step to speak of: the first open one; of an ended job the one it ended at."""
    if not record.job.terminal and record.current is not None:
        return record.current
    index = record.job.current_step_index
    return record.steps[-1 if index is None else index]


def _ended(situation: Situation, again: RunAgain) -> _Found:
    job = situation.job
    at_ms = job.completed_at_ms or job.updated_at_ms
    at = situation.clock(at_ms)
    if job.state is JobState.SUCCEEDED:
        return _Found(summary=f"succeeded at {at}; the result is at {job.final_output}", since_ms=at_ms)
    if job.state is JobState.CANCELLED:
        done = all(step.state is StepState.SUCCEEDED for step in situation.record.steps)
        how = ", from a step, for all of them had succeeded" if done else ""
        actions = (Action(name=ActionName.RERUN, from_step=done),)
        return _once_more(f"cancelled at {at}", at_ms, again, actions, how)
    why = trouble(job.error_code, job.error_message)
    lost = f"finally failed: {why} ({situation.step.step_id}, at {at})"
    redrive = (Action(name=ActionName.REDRIVE),) if again.listed else ()
    return _once_more(lost, at_ms, again, (*redrive, Action(name=ActionName.RERUN)))


def _once_more(ended: str, at_ms: int, again: RunAgain, actions: tuple[Action, ...], how: str = "") -> _Found:
    if again.job_id is not None:
        return _Found(summary=f"{ended}; it was run again as {again.job_id}", since_ms=at_ms)
    return _Found(summary=f"{ended}; it can be run again{how}", since_ms=at_ms, actions=actions)


def _open(situation: Situation) -> _Found:
    state, step = situation.job.state, situation.step
    if state is JobState.PAUSED:
        return _paused(situation)
    if situation.record.is_under_way(step):
        if state is JobState.CANCELLING:
            return _cancelling(situation)
        if state is JobState.PAUSING:
            return _pausing(situation)
        return _under_way(situation)
    if situation.record.awaits_dispatch(step):
        outbox = situation.record.outbox
        if outbox is not None and outbox.failures:
            return _publishing(situation, outbox)
        if situation.hold is not None:
            return _held(situation, situation.hold)
        return _unpublished(situation) if situation.over_bus else _unclaimed(situation)
    if step.state is StepState.FAILED_RETRY:
        return _backing_off(situation)
    since_ms = max(step.created_at_ms, situation.job.updated_at_ms)
    return _Found(
        summary=f"waiting for the engine to begin {step.step_id} since {situation.clock(since_ms)}",
        since_ms=since_ms,
        waiting_for=WaitsFor.ENGINE,
        next=Next(what=f"the engine begins {attempt(step, 1)}"),
        overdue=situation.now_ms - since_ms > UNBEGUN_AFTER_MS,
    )


def _paused(situation: Situation) -> _Found:
    job, step = situation.job, situation.step
    since_ms = job.paused_at_ms or job.updated_at_ms
    if job.paused_reason is not None:
        since, why = situation.clock(since_ms), trouble(step.last_error_code, step.last_error_message)
        return _Found(
            summary=f"parked since {since}: the attempts of {step.step_id} at {step.service} are used: {why}",
            since_ms=since_ms,
            waiting_for=WaitsFor.RESUME,
            next=Next(what=f"a client resumes the job, and {step.step_id} has fresh attempts"),
            hints=("resume it once the cause is mended, or cancel it; a paused job does not age",),
            actions=(Action(name=ActionName.RESUME), Action(name=ActionName.CANCEL)),
        )
    return _Found(
        summary=f"paused since {situation.clock(since_ms)}; once resumed it goes on with {step.step_id}",
        since_ms=since_ms,
        waiting_for=WaitsFor.RESUME,
        next=Next(what=f"a client resumes the job, and it goes on with {step.step_id}"),
        hints=("resume it, or cancel it; a paused job does not age",),
        actions=(Action(name=ActionName.RESUME), Action(name=ActionName.CANCEL)),
    )


def _unclaimed(situation: Situation) -> _Found:
    step, service, since_ms = situation.step, situation.step.service, situation.waits_since_ms
    hint = f"start a worker of {service}: it asks for its work here"
    seen = f"no worker has asked for directives of service {service} since this process started"
    if situation.asked_at_ms is not None:
        silent_ms = situation.now_ms - situation.asked_at_ms
        seen = f"the last one asked {ago(silent_ms)} ago"
        if silent_ms < ASKED_LATELY_MS:
            hint = f"workers of {service} are there: they are busy, or do not lease lane {step.routing.lane}"
        else:
            seen = f"no worker leases directives of service {service}; {seen}"
    since = situation.clock(since_ms)
    return _Found(
        summary=f"waiting for a worker of {service} to take {step.step_id} since {since}; {seen}",
        since_ms=since_ms,
        waiting_for=WaitsFor.WORKER,
        next=Next(
            what=f"a worker of {service} takes {attempt(step, step.attempt_no)}; {_no_clock(situation)}"
        ),
        hints=(hint, *_priority_hints(situation.job)),
    )


def _priority_hints(job: Job) -> tuple[str, ...]:
    levels = job.priority - PRIORITY_USUAL
    if not levels:
        return ()
    side = "earlier" if levels > 0 else "later"
    return (
        f"its priority is {job.priority}: among the tenant's jobs it leaves as if it had begun to wait "
        f"{ago(abs(levels) * LEVEL_MS)} {side}",
    )


_HELD_BY: Final = {FlowReason.BREAKER: WaitsFor.BREAKER, FlowReason.PAUSED: WaitsFor.PAUSE}


def _held(situation: Situation, hold: FlowHold) -> _Found:
    """A limit, a breaker or a pause keeps the directive from leaving."""
    step, since_ms = situation.step, situation.waits_since_ms
    what, then, hints = _hold_words(situation, hold)
    before = ""
    if hold.before is not None:
        before = f"; {hold.before:,}{' or more' if hold.more else ''} before it"
    coming = f"{attempt(step, step.attempt_no)} leaves {then}; {_no_clock(situation)}"
    at_ms = None if hold.breaker is None else hold.breaker.probe_at_ms
    return _Found(
        summary=f"{what}{before}; {step.step_id} waits since {situation.clock(since_ms)}",
        since_ms=since_ms,
        waiting_for=_HELD_BY.get(hold.reason, WaitsFor.LIMIT),
        next=Next(
            what=coming,
            at_ms=at_ms if hold.reason is FlowReason.BREAKER and (at_ms or 0) > situation.now_ms else None,
        ),
        hints=hints,
    )


def _hold_words(situation: Situation, hold: FlowHold) -> tuple[str, str, tuple[str, ...]]:
    """What is waited for, until what, and what may be done."""
    service, clock = hold.service, situation.clock
    if hold.reason is FlowReason.PAUSED and hold.pause is not None:
        pause = hold.pause
        why = "" if pause.reason is None else f" ({pause.reason})"
        what = f"waits, for the {pause.kind} `{pause.name}` is paused since {clock(pause.since_ms)}{why}"
        return what, "once it is resumed", (f"lucius resume {pause.kind} {pause.name}",)
    if hold.reason is FlowReason.BREAKER and hold.breaker is not None:
        breaker = hold.breaker
        what = (
            f"waits for `{service}` to answer again: {breaker.failures} attempts in a row failed, "
            f"the breaker is open since {clock(breaker.opened_at_ms)} ({breaker.error})"
        )
        probe = f"one attempt looks at {clock(breaker.probe_at_ms)} whether it does"
        if breaker.probe_lease_id is not None:
            probe = "one attempt looks now whether it does"
        return what, "once it does", (probe,)
    if hold.reason in (FlowReason.RATE, FlowReason.TENANT_RATE) and hold.rate is not None:
        of_tenant = " of its tenant" if hold.reason is FlowReason.TENANT_RATE else ""
        less = "" if hold.share >= 1 else f", {hold.share:.0%} of it for now, as the service asked for less"
        return f"waits for the rate{of_tenant} at `{service}`: {hold.rate.text}{less}", "in its turn", ()
    of_tenant = " of its tenant" if hold.reason is FlowReason.TENANT_SLOTS else ""
    what = f"waits for a slot{of_tenant} at `{service}`: {hold.in_use} of {hold.limit} in use"
    return what, "once an attempt ends", ()


def _unpublished(situation: Situation) -> _Found:
    step, since_ms = situation.step, situation.waits_since_ms
    what = f"the directive of {attempt(step, step.attempt_no)}"
    return _Found(
        summary=f"waiting for {what} at {step.step_id} to be published since {situation.clock(since_ms)}",
        since_ms=since_ms,
        waiting_for=WaitsFor.PUBLISH,
        next=Next(what=f"{what} is published; {_no_clock(situation)}"),
        hints=(
            f"is lane {step.routing.lane} of {step.service} full of directives that no worker acknowledges?",
            *(_priority_hints(situation.job) if situation.job.engine is Engine.OUTBOX else ()),
        ),
    )


def _no_clock(situation: Situation) -> str:
    ends_ms = sla_end_ms(situation.job)
    if ends_ms is None:
        return "no clock runs until then"
    return f"no clock runs until then but the SLA's, which fails the job at {situation.clock(ends_ms)}"


def _publishing(situation: Situation, outbox: Outbox) -> _Found:
    step = situation.step
    since_ms = outbox.first_failed_at_ms or outbox.updated_at_ms
    times = "once" if outbox.failures == 1 else f"{outbox.failures} times"
    what = f"the directive of {attempt(step, step.attempt_no)} is published again"
    given_up_ms = since_ms + step.policy.dispatch_timeout_ms
    given_up = f"the job fails at {situation.clock(given_up_ms)} if none succeeds"
    if step.policy.publish_attempts_max:
        given_up = f"the job fails after {step.policy.publish_attempts_max} failures"
    elif situation.is_overdue(given_up_ms):
        given_up = f"the job's end {was_due(given_up_ms, situation.clock)}"
    overdue = situation.is_overdue(outbox.due_at_ms)
    again = f"is at {situation.clock(outbox.due_at_ms)}, and"
    coming = Next(what=what, at_ms=None if overdue else outbox.due_at_ms)
    if overdue:
        again = f"{was_due(outbox.due_at_ms, situation.clock)};"
    elif situation.now_ms <= given_up_ms < outbox.due_at_ms:
        again, given_up = "would come too late:", f"the job fails at {situation.clock(given_up_ms)}"
        coming = Next(what="the job fails, for its directive could not be published", at_ms=given_up_ms)
    return _Found(
        summary=(
            f"publishing to {step.service} failed {times} since {situation.clock(since_ms)}: "
            f"{step.last_error_message}; the next try {again} {given_up}"
        ),
        since_ms=since_ms,
        waiting_for=WaitsFor.PUBLISH,
        next=coming,
        hints=(BUS_HINT,),
        actions=(Action(name=ActionName.RETRY_OUTBOX),),
        overdue=overdue,
    )


def _backing_off(situation: Situation) -> _Found:
    step = situation.step
    at_ms = step.next_attempt_at_ms or situation.now_ms
    why = trouble(step.last_error_code, step.last_error_message)
    again = attempt(step, step.attempt_no + 1)
    overdue = situation.is_overdue(at_ms)
    begins = was_due(at_ms, situation.clock) if overdue else f"begins at {situation.clock(at_ms)}"
    return _Found(
        summary=(
            f"attempt {step.attempt_no} of {attempts_max(step)} at {step.step_id} failed at "
            f"{situation.clock(step.updated_at_ms)}: {why}; {again} {begins}"
        ),
        since_ms=step.updated_at_ms,
        waiting_for=WaitsFor.RETRY,
        next=Next(what=f"{again} begins", at_ms=None if overdue else at_ms),
        overdue=overdue,
    )


def _under_way(situation: Situation) -> _Found:
    what, since_ms, waiting = _work(situation)
    missing = "none" if waiting is WaitsFor.ACK else "no RESULT"
    then, at_ms = _if_silent(situation, waiting)
    if situation.missed_ms is not None:
        return _Found(
            summary=f"{what}; {then} once a process does",
            since_ms=since_ms,
            waiting_for=waiting,
            next=Next(what=f"{then} once a process acts on the deadline"),
            overdue=True,
        )
    return _Found(
        summary=f"{what}; {then} at {situation.clock(at_ms)} if {missing} comes",
        since_ms=since_ms,
        waiting_for=waiting,
        next=Next(what=f"{then} if {missing} comes", at_ms=at_ms),
    )


def _pausing(situation: Situation) -> _Found:
    what, _, waiting = _work(situation)
    reason = why_to_stop(situation.record)
    what += "" if reason is None else f"; {situation.step.service} is told to stop"
    since_ms = situation.last(Fact.JOB_PAUSING) or situation.job.updated_at_ms
    step, overdue = situation.step, situation.missed_ms is not None
    pauses = "pauses unless it succeeded" if step is situation.record.steps[-1] else "pauses"
    if step.is_last_attempt and not (step.fallback or step.policy.parks_exhausted):
        pauses += "; if no answer comes, the job fails"
    return _Found(
        summary=f"pausing since {situation.clock(since_ms)}, once {step.step_id} ends: {what}",
        since_ms=since_ms,
        waiting_for=waiting,
        next=Next(
            what=f"{step.step_id} ends, and the job {pauses}",
            at_ms=None if overdue else step.lease_expires_at_ms,
        ),
        hints=("resume the job to undo the pause",),
        actions=(Action(name=ActionName.RESUME),),
        overdue=overdue,
    )


def _cancelling(situation: Situation) -> _Found:
    step = situation.step
    _, _, waiting = _work(situation)
    since_ms = situation.last(Fact.JOB_CANCELLING) or situation.job.updated_at_ms
    at_ms, missed_ms = step.lease_expires_at_ms, situation.missed_ms
    latest = "" if at_ms is None else f", or at {situation.clock(at_ms)} if it keeps silent"
    ends = "its time runs out"
    if missed_ms is not None:
        latest = f"; its time was over at {situation.clock(missed_ms)}, and no process has acted on it"
        at_ms, ends = None, "a process acts on the deadline"
    return _Found(
        summary=(
            f"cancelling since {situation.clock(since_ms)}: {step.service} has {step.step_id} and is told to "
            f"stop; the job is cancelled when it answers{latest}"
        ),
        since_ms=since_ms,
        waiting_for=waiting,
        next=Next(what=f"{step.service} answers or {ends}, and the job is cancelled", at_ms=at_ms),
        overdue=missed_ms is not None,
    )


def _work(situation: Situation) -> tuple[str, int, WaitsFor]:
    """What a service does with the step that is under way, since when, and what is waited for."""
    step, missed_ms = situation.step, situation.missed_ms
    if step.state is StepState.INITIATED:
        sent_ms = situation.last(Fact.DIRECTIVE_PUBLISHED) or step.attempt_began_at_ms or step.updated_at_ms
        what = f"waiting for an ACK from {step.service} since {situation.clock(sent_ms)}"
        late = "" if missed_ms is None else f"; it {was_due(missed_ms, situation.clock)}"
        return f"{what}{late}", sent_ms, WaitsFor.ACK
    acked_ms = situation.last(Fact.STEP_ACKED) or step.attempt_began_at_ms or step.updated_at_ms
    done = "" if step.progress is None else f" ({step.progress} % done{noted(step.progress_note)})"
    lease = f"; its lease runs out at {situation.clock(step.lease_expires_at_ms or situation.now_ms)}"
    if missed_ms is not None:
        lease = f"; its lease ran out at {situation.clock(missed_ms)}, and no process has acted on it"
    what = f"{step.service} works on {step.step_id} since {situation.clock(acked_ms)}{done}{lease}"
    return what, acked_ms, WaitsFor.RESULT


def _if_silent(situation: Situation, waiting: WaitsFor) -> tuple[str, int]:
    """What the deadline of a step under way leads to, and when."""
    step, policy = situation.step, situation.step.policy
    deadline_ms = step.lease_expires_at_ms or situation.now_ms
    if step.is_last_attempt:
        if step.fallback:
            return f"{step.fallback[0]} is asked instead", deadline_ms
        return "the job is parked" if policy.parks_exhausted else "the job fails", deadline_ms
    backoffs_ms = policy.backoff_ack_ms if waiting is WaitsFor.ACK else policy.backoff_result_ms
    again_ms = deadline_ms + backoff_ms(backoffs_ms, max(1, step.attempts_counted))
    return f"{attempt(step, step.attempt_no + 1)} begins", again_ms
