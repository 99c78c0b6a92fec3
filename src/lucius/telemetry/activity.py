"""What happened lately, by tenant, request type and service: the figures of an overview.

In: commits (through `watch`). Out: a `Tally` for each tenant since the last look. On the way of a commit it
only counts; a duty adds the tallies up and keeps them. Names are bounded: what comes after the first
hundred of a kind is counted under one name.

Spans of time are kept as counts of steps that grow by the square root of two: 54 of them reach a day, and a
percentile read from them is off by a fifth at most.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from lucius.core.model import Event, JobRecord
from lucius.core.replies import is_stopped
from lucius.core.states import Fact, JobState

NAMES_MAX: Final = 100
OTHER: Final = "other"
STEPS_MAX: Final = 60

# Looked up once: the members of an enum are slow to reach.
_SUCCEEDED, _STEP_SUCCEEDED, _STEP_FAILED = JobState.SUCCEEDED, Fact.STEP_SUCCEEDED, Fact.STEP_FAILED

Spread = dict[int, int]
"""How many spans of time fell into each step."""


class TypeTally(msgspec.Struct, gc=False, omit_defaults=True):
    """Jobs of one request type. `errors`: finally failed ones by error code."""

    accepted: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    errors: dict[str, int] = {}

    def add(self, other: "TypeTally") -> None:
        self.accepted += other.accepted
        self.succeeded += other.succeeded
        self.failed += other.failed
        self.cancelled += other.cancelled
        for code, count in other.errors.items():
            self.errors[_bounded(self.errors, code)] = self.errors.get(_bounded(self.errors, code), 0) + count


class ServiceTally(msgspec.Struct, gc=False, omit_defaults=True):
    """Attempts at one service. `ack`: from hand-out to ACK; `work`: from hand-out to the result."""

    step_type: str = ""
    succeeded: int = 0
    failed: int = 0
    retried: int = 0
    seen_at_ms: int = 0
    ack: Spread = {}
    work: Spread = {}

    def add(self, other: "ServiceTally") -> None:
        self.step_type = other.step_type or self.step_type
        self.succeeded += other.succeeded
        self.failed += other.failed
        self.retried += other.retried
        self.seen_at_ms = max(self.seen_at_ms, other.seen_at_ms)
        add_spread(self.ack, other.ack)
        add_spread(self.work, other.work)


class Tally(msgspec.Struct, gc=False, omit_defaults=True):
    types: dict[str, TypeTally] = {}
    services: dict[str, ServiceTally] = {}

    def type_of(self, name: str) -> TypeTally:
        found = self.types.get(name)
        if found is None:
            name = _bounded(self.types, name)
            found = self.types.setdefault(name, TypeTally())
        return found

    def service_of(self, name: str) -> ServiceTally:
        found = self.services.get(name)
        if found is None:
            name = _bounded(self.services, name)
            found = self.services.setdefault(name, ServiceTally())
        return found

    def add(self, other: "Tally") -> None:
        for name, jobs in other.types.items():
            self.type_of(name).add(jobs)
        for name, attempts in other.services.items():
            self.service_of(name).add(attempts)


def _bounded(known: Mapping[str, object], name: str) -> str:
    return name if name in known or len(known) < NAMES_MAX else OTHER


def add_spread(spread: Spread, other: Spread) -> None:
    for step, count in other.items():
        spread[step] = spread.get(step, 0) + count


def step_of(span_ms: int) -> int:
    """Step n holds the spans from the nth power of the square root of two to the next."""
    return 0 if span_ms < 1 else min(STEPS_MAX, (span_ms * span_ms).bit_length())


def percentile_ms(spread: Spread, share: float) -> int | None:
    """The span that this share of all stays below; None where there is none."""
    total = sum(spread.values())
    if not total:
        return None
    wanted, below = share * total, 0
    for step in sorted(spread):
        count = spread[step]
        if below + count >= wanted:
            if step == 0:
                return 0
            low, high = 2 ** ((step - 1) / 2), 2 ** (step / 2)
            return round(low + (high - low) * (wanted - below) / count)
        below += count
    return None


class Activity:
    """What this process has committed since the last `taken`."""

    def __init__(self) -> None:
        self._fresh: dict[str, Tally] = {}
        self._attempts: dict[tuple[str, str], ServiceTally] = {}  # the same, by tenant and service
        self._handlers = {
            Fact.JOB_CREATED: self._created,
            Fact.JOB_SUCCEEDED: self._ended,
            Fact.JOB_FAILED: self._ended,
            Fact.JOB_CANCELLED: self._ended,
            Fact.STEP_ACKED: self._acked,
            Fact.STEP_SUCCEEDED: self._answered,
            Fact.STEP_FAILED: self._answered,
            Fact.STEP_RETRYING: self._answered,
        }

    def watch(self, before: JobRecord | None, after: JobRecord, events: Sequence[Event]) -> None:
        handlers = self._handlers
        for event in events:
            handler = handlers.get(event.type)
            if handler is not None:
                handler(before, after, event)

    def taken(self) -> dict[str, Tally]:
        """By tenant, what happened since this was asked last."""
        fresh, self._fresh, self._attempts = self._fresh, {}, {}
        return fresh

    def _tally(self, after: JobRecord) -> Tally:
        tenant = after.job.tenant_norm
        return self._fresh.get(tenant) or self._fresh.setdefault(tenant, Tally())

    def _new_attempts_of(self, after: JobRecord, service: str) -> ServiceTally:
        found = self._attempts[after.job.tenant_norm, service] = self._tally(after).service_of(service)
        return found

    def _created(self, before: JobRecord | None, after: JobRecord, event: Event) -> None:
        self._tally(after).type_of(after.job.request_type).accepted += 1

    def _ended(self, before: JobRecord | None, after: JobRecord, event: Event) -> None:
        job = after.job
        jobs = self._tally(after).type_of(job.request_type)
        if job.state is _SUCCEEDED:
            jobs.succeeded += 1
        elif job.state is JobState.CANCELLED:
            jobs.cancelled += 1
        else:
            jobs.failed += 1
            code = _bounded(jobs.errors, job.error_code or OTHER)
            jobs.errors[code] = jobs.errors.get(code, 0) + 1

    def _acked(self, before: JobRecord | None, after: JobRecord, event: Event) -> None:
        step = after.step(event.step_id or "")
        if step is None:
            return
        attempts = self._attempts.get((after.job.tenant_norm, step.service))
        if attempts is None:
            attempts = self._new_attempts_of(after, step.service)
        attempts.seen_at_ms = event.at_ms
        outbox = after.outbox
        if outbox is not None and outbox.step_id == event.step_id and outbox.attempt_no == event.attempt_no:
            sent_at_ms = outbox.sent_at_ms  # nearly always: taking is an ACK where the service runs here
        else:
            sent_at_ms = _sent_at_ms(before, after, event)
        if sent_at_ms is not None:
            place = step_of(event.at_ms - sent_at_ms)
            attempts.ack[place] = attempts.ack.get(place, 0) + 1

    def _answered(self, before: JobRecord | None, after: JobRecord, event: Event) -> None:
        step = after.step(event.step_id or "")
        if step is None:
            return
        attempts = self._attempts.get((after.job.tenant_norm, step.service))
        if attempts is None:
            attempts = self._new_attempts_of(after, step.service)
        attempts.step_type = step.step_type
        if event.type is _STEP_SUCCEEDED:
            attempts.succeeded += 1
        elif event.type is _STEP_FAILED:
            attempts.failed += 1
        elif not is_stopped(event):
            attempts.retried += 1
        sent_at_ms = _sent_at_ms(before, after, event)
        if sent_at_ms is not None:
            attempts.seen_at_ms = max(attempts.seen_at_ms, sent_at_ms)
            place = step_of(event.at_ms - sent_at_ms)
            attempts.work[place] = attempts.work.get(place, 0) + 1


def _sent_at_ms(before: JobRecord | None, after: JobRecord, event: Event) -> int | None:
    """When the directive of the event's attempt left. In one commit a step may end and the next one begin:
    the row of the attempt is then the one of the record before."""
    for record in (after, before):
        outbox = None if record is None else record.outbox
        if outbox is None or outbox.step_id != event.step_id:
            continue
        if event.attempt_no in (None, outbox.attempt_no):
            return outbox.sent_at_ms
    return None
