"""Bugs to plant: each a mistake that a tired engineer could make, in the real code, at one seam.

`planted(bug)` puts one in place and takes it out again. The product knows nothing of this, and a simulation
that runs meanwhile has to find it. A bug that it does not find, it would not find in the product either.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from enum import StrEnum
from typing import Any, Final

import msgspec

from lucius.bus.port import Delivery, Receiver
from lucius.core import decide as deciding
from lucius.core import flow as flowing
from lucius.core import fold as folding
from lucius.core import replies
from lucius.core.clock import SteadyClock
from lucius.core.draft import Decision, Draft, Outcome
from lucius.core.inputs import Reply
from lucius.core.model import Event, JobRecord, Outbox, Step
from lucius.core.refusal import Refused
from lucius.core.routing import route
from lucius.core.states import JOB_MOVES, JOB_TERMINAL, Fact, JobState, Mode, StepState
from lucius.engines.flow_control import FlowControl
from lucius.engines.flow_control import _ServiceFlow as ServiceFlow
from lucius.engines.outbox import fair_share
from lucius.engines.outbox.far_rows import FarRows
from lucius.engines.reply_consumer import ReplyConsumer
from lucius.jobs import writer as applying
from lucius.jobs.reply_backlog import StandstillClock
from lucius.ledger.commit_plan import CommitPlan, CommitPlanner
from lucius.ledger.flow import StoredFlow
from lucius.ledger.idempotency import KeyClaim, KeyTaken
from lucius.ledger.index_audit import IndexAudit, IndexKind
from lucius.ledger.indexes import DueEntry, Indexes
from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.rows import Loaded
from lucius.ledger.store import Conflict, Op, StoreError


class Bug(StrEnum):
    NO_LEASE_CHECK = "replies count whatever their lease"
    KEY_LAST = "the idempotency key is claimed after the job is created"
    SETTLED_FIRST = "a reply is settled on the bus before its commit"
    SAME_LEASE = "a retry keeps the lease of the attempt before it"
    SLOT_TWICE = "a slot is released with each step, and again with the job"
    TIMER_LAST = "the due row is written after the fact that it announces"
    NO_TERMINAL_GUARD = "a job that has ended is written to, and cancelled, like an open one"
    SWEEPER_IGNORES_PAUSE = "the sweeper begins attempts of paused jobs"
    ROUTED_AGAIN = "a retry is routed by today's configuration"
    EVENT_SKIPPED = "a publish is not written into the trail"
    AUDIT_BLIND = "the audit does not look at the dispatch index"
    WALL_CLOCK = "deadlines go by a clock that can be set"
    NOT_PULLED_IN = "rows that a clock ahead has written are due when it said"
    NO_BACKLOG = "a process that stood still counts deadlines before it reads what came"
    UNREADABLE_ENDS_SWEEP = "a row that cannot be read ends the sweeper"
    PLACE_GIVEN_UP_EARLY = "a place at a service is given up as soon as its worker answers"
    PLACES_NOT_ADDED = "places that are given in one go do not count for each other"
    PLACE_LEAKS = "places of attempts that are over are kept"
    RATE_NOT_COUNTED = "what leaves is not counted against the rate of its service"
    RATE_OF_EACH = "each process counts the rate of a service by itself"
    FIRST_TENANT_FIRST = "every look at a lane begins with the first tenant"
    TURN_WITHOUT_END = "a tenant's turn lasts as long as it has directives"
    PROBE_COSTS = "a probe of a service that is down costs its step an attempt"


FITTING: Final[Mapping[Bug, frozenset[str]]] = {
    Bug.NO_LEASE_CHECK: frozenset({"I6", "I7", "I11", "I13"}),
    Bug.KEY_LAST: frozenset({"I3"}),
    Bug.SETTLED_FIRST: frozenset({"I11"}),
    Bug.SAME_LEASE: frozenset({"I7"}),
    Bug.SLOT_TWICE: frozenset({"I5"}),
    Bug.TIMER_LAST: frozenset({"I6"}),
    Bug.NO_TERMINAL_GUARD: frozenset({"I1"}),
    Bug.SWEEPER_IGNORES_PAUSE: frozenset({"I12"}),
    Bug.ROUTED_AGAIN: frozenset({"I8"}),
    Bug.EVENT_SKIPPED: frozenset({"I10"}),
    Bug.AUDIT_BLIND: frozenset({"I17"}),
    Bug.WALL_CLOCK: frozenset({"I4", "I15"}),  # set back it stops what waits, set ahead it ends it
    Bug.NOT_PULLED_IN: frozenset({"I4"}),
    Bug.NO_BACKLOG: frozenset({"I16"}),
    Bug.UNREADABLE_ENDS_SWEEP: frozenset({"I4", "UNEXPECTED"}),
    Bug.PLACE_GIVEN_UP_EARLY: frozenset({"I18"}),
    Bug.PLACES_NOT_ADDED: frozenset({"I18"}),
    Bug.PLACE_LEAKS: frozenset({"I4"}),
    Bug.RATE_NOT_COUNTED: frozenset({"I19"}),
    Bug.RATE_OF_EACH: frozenset({"I19"}),
    Bug.FIRST_TENANT_FIRST: frozenset({"I20"}),
    Bug.TURN_WITHOUT_END: frozenset({"I20"}),
    Bug.PROBE_COSTS: frozenset({"I7", "I13"}),
}
"""The invariants that name the mistake, where others would only notice that something is wrong."""


@contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """The code has this bug while the context lasts."""
    with ExitStack() as stack:
        for patch in _PLANTS[bug]():
            stack.enter_context(patch)
        yield


Patch = AbstractContextManager[None]


@contextmanager
def _attribute(owner: object, name: str, value: object) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def _entry(table: Any, key: object, value: object) -> Iterator[None]:
    before = table[key]
    table[key] = value
    try:
        yield
    finally:
        table[key] = before


def _no_lease_check() -> list[Patch]:
    right = replies._outcome

    def outcome(record: JobRecord, step: Step | None, reply: Reply) -> Outcome:
        if step is not None and step.lease_id is not None:
            reply = msgspec.structs.replace(reply, attempt_no=step.attempt_no, lease_id=step.lease_id)
        return right(record, step, reply)

    return [_attribute(replies, "_outcome", outcome)]


def _key_last() -> list[Patch]:
    async def create(self: JobLedger, decision: Decision, claim: KeyClaim, now_ms: int) -> Loaded:
        plan = self.planner.creation(decision.record, decision.events, now_ms)
        if self.store.spans:
            etags = await self.store.commit((*plan.truth, *plan.first, *plan.then))
            loaded = self._created(plan, etags[0])
        else:
            await self._announce(self._without_dispatch(plan.first))
            loaded = await self._finish_creation(plan)
        try:
            await self.store.commit([self._claim_op(claim, plan.record)])
        except Conflict as conflict:
            raise KeyTaken from conflict
        return loaded

    return [_attribute(JobLedger, "create", create)]


def _settled_first() -> list[Patch]:
    async def handle(
        self: ReplyConsumer, receiver: Receiver, delivery: Delivery, job_id: str, reply: Reply
    ) -> None:
        await receiver.complete(delivery)
        with suppress(StoreError):
            await self._writer.apply(job_id, reply)

    return [_attribute(ReplyConsumer, "_handle", handle)]


def _same_lease() -> list[Patch]:
    right = Draft.note

    def note(self: Draft, fact: Fact, step: Step | None = None, **more: Any) -> None:
        if fact is Fact.ATTEMPT_BEGUN and step is not None and step.lease_id is not None:
            more["lease_id"] = step.lease_id
        right(self, fact, step, **more)

    return [_attribute(Draft, "note", note)]


def _slot_twice() -> list[Patch]:
    right = CommitPlanner.change

    def change(
        self: CommitPlanner,
        before: Loaded,
        after: JobRecord,
        events: Sequence[Event],
        now_ms: int,
        **more: bool,
    ) -> CommitPlan:
        plan = right(self, before, after, events, now_ms, **more)
        job = plan.record.job
        if job.terminal or not any(event.type is Fact.STEP_SUCCEEDED for event in events):
            return plan
        return msgspec.structs.replace(
            plan, then=(*plan.then, self.slot_discard(job.tenant_norm, job.job_id))
        )

    return [_attribute(CommitPlanner, "change", change)]


def _timer_last() -> list[Patch]:
    right = JobLedger._execute

    async def execute(self: JobLedger, plan: CommitPlan, events: Sequence[Event]) -> Loaded:
        if self.store.spans:
            return await right(self, plan, events)
        due = [op for op in plan.first if op.table == self.tables.due]
        rest = tuple(op for op in plan.first if op.table != self.tables.due)
        loaded = await right(self, msgspec.structs.replace(plan, first=rest), events)
        await self._announce(due)
        return loaded

    return [_attribute(JobLedger, "_execute", execute)]


def _no_terminal_guard() -> list[Patch]:
    right = deciding._cancel

    def cancel(draft: Draft) -> Decision | Refused:
        if draft.record.job.state not in (JobState.SUCCEEDED, JobState.FAILED_FINAL):
            return right(draft)
        draft.cancel_rest()
        return draft.decision()

    moves = dict(JOB_MOVES[Fact.JOB_CANCELLED]) | dict.fromkeys(JOB_TERMINAL, (JobState.CANCELLED,))
    return [
        _attribute(deciding, "_cancel", cancel),
        _attribute(applying, "_EVIDENCE", frozenset()),
        _entry(JOB_MOVES, Fact.JOB_CANCELLED, moves),
    ]


def _sweeper_ignores_pause() -> list[Patch]:
    right = deciding._tick

    def tick(draft: Draft, passed_ms: int) -> Decision:
        decision = right(draft, passed_ms)
        step = draft.record.current
        if draft.record.job.state is not JobState.PAUSED or step is None:
            return decision
        waits = step.state is StepState.FAILED_RETRY and (step.next_attempt_at_ms or 0) <= draft.now_ms
        if waits or step.state is StepState.PENDING:
            draft.note(Fact.ATTEMPT_BEGUN, step, attempt_no=step.attempt_no + 1, lease_id=draft.lease_id)
        return draft.decision(Outcome.APPLIED if draft.events else Outcome.UNCHANGED)

    moves = {**JOB_MOVES[Fact.ATTEMPT_BEGUN], JobState.PAUSED: (JobState.PAUSED,)}
    return [_attribute(deciding, "_tick", tick), _entry(JOB_MOVES, Fact.ATTEMPT_BEGUN, moves)]


def _routed_again() -> list[Patch]:
    right = folding._EFFECTS[Fact.ATTEMPT_BEGUN]

    def attempt_begun(
        record: JobRecord,
        step: Step | None,
        event: Event,
        job: dict[str, Any],
        changes: dict[str, Any],
    ) -> Outbox | None:
        outbox = right(record, step, event, job, changes)
        if step is None or outbox is None or step.attempt_no == 0:
            return outbox
        routing = route(
            tenant_id=record.job.tenant_id,
            doc_id=record.job.doc_id or record.job.job_id,
            mode=Mode.BURST,
            decision_source="GLOBAL_CONFIG",
            decision_reason="default",
        )
        changes["routing"] = routing
        return msgspec.structs.replace(outbox, lane=routing.lane)

    return [_entry(folding._EFFECTS, Fact.ATTEMPT_BEGUN, attempt_begun)]


def _event_skipped() -> list[Patch]:
    right = Draft.note

    def note(self: Draft, fact: Fact, step: Step | None = None, **more: Any) -> None:
        right(self, fact, step, **more)
        if fact is Fact.DIRECTIVE_PUBLISHED:
            self.events.pop()

    return [_attribute(Draft, "note", note)]


def _audit_blind() -> list[Patch]:
    right = IndexAudit._open_checks

    def checks(self: IndexAudit, record: JobRecord) -> list[tuple[IndexKind, Op]]:
        return [(kind, op) for kind, op in right(self, record) if kind is not IndexKind.DISPATCH]

    return [_attribute(IndexAudit, "_open_checks", checks)]


def _wall_clock() -> list[Patch]:
    def now_ms(self: SteadyClock) -> int:
        return self._wall_ns() // 1_000_000

    return [_attribute(SteadyClock, "now_ms", now_ms)]


def _not_pulled_in() -> list[Patch]:
    async def page(self: FarRows, lane: int) -> list[DueEntry]:
        return []

    return [_attribute(FarRows, "page", page)]


def _no_backlog() -> list[Patch]:
    return [_attribute(StandstillClock, "look", lambda self: None)]


def _unreadable_ends_sweep() -> list[Patch]:
    right = Indexes.due

    async def due(self: Indexes, lane: int, *rest: Any, **more: Any) -> list[DueEntry]:
        """Reads as before there was a quarantine: the first row that does not decode is a fault of all."""
        before = len(self._quarantine)
        entries = await right(self, lane, *rest, **more)
        if len(self._quarantine) > before:
            raise ValueError("a due row does not decode")
        return entries

    return [_attribute(Indexes, "due", due)]


def _place_given_up_early() -> list[Patch]:
    right = FlowControl.watch

    def watch(self: FlowControl, before: JobRecord | None, after: JobRecord, events: Sequence[Event]) -> None:
        right(self, before, after, events)
        step = after.current
        if step is not None and step.acked and step.lease_id is not None and not after.job.terminal:
            self._give_up(step.service, after.job.job_id, step.lease_id)

    return [_attribute(FlowControl, "watch", watch)]


def _places_not_added() -> list[Patch]:
    right = flowing._Taking._full

    def full(self: flowing._Taking, ask: flowing.FlowRequest) -> flowing.FlowWait | None:
        slots, self._slots = self._slots, dict(self._state.slots)
        wait = right(self, ask)
        self._slots = slots
        return wait

    return [_attribute(flowing._Taking, "_full", full)]


def _place_leaks() -> list[Patch]:
    async def recheck(self: FlowControl, *_: object) -> bool:
        return False

    return [
        _attribute(FlowControl, "_give_up", lambda *_: None),
        _attribute(FlowControl, "_recheck", recheck),
    ]


def _rate_not_counted() -> list[Patch]:
    return [_attribute(flowing._Taking, "_paid", lambda self, due_us, bucket: due_us)]


def _rate_of_each() -> list[Patch]:
    right = ServiceFlow.take_in

    def take_in(self: ServiceFlow, stored: StoredFlow, now_ms: int) -> None:
        own = msgspec.structs.replace(stored.state, due_us=self.state.due_us)
        right(self, StoredFlow(own, stored.etag), now_ms)

    return [_attribute(ServiceFlow, "take_in", take_in)]


def _first_tenant_first() -> list[Patch]:
    return [_attribute(fair_share.TenantTurns, "start", lambda self: "")]


def _turn_without_end() -> list[Patch]:
    return [_attribute(fair_share._Round, "_share_of", lambda self, group, share: 1_000)]


def _probe_costs() -> list[Patch]:
    right = folding._EFFECTS[Fact.STEP_RETRYING]

    def retrying(
        record: JobRecord, step: Step | None, event: Event, job: dict[str, Any], changes: dict[str, Any]
    ) -> Outbox | None:
        outbox = right(record, step, event, job, changes)
        if step is not None and step.probing:
            changes["attempts_forgiven"] = step.attempts_forgiven
        return outbox

    return [_entry(folding._EFFECTS, Fact.STEP_RETRYING, retrying)]


_PLANTS: Final[Mapping[Bug, Callable[[], list[Patch]]]] = {
    Bug.NO_LEASE_CHECK: _no_lease_check,
    Bug.KEY_LAST: _key_last,
    Bug.SETTLED_FIRST: _settled_first,
    Bug.SAME_LEASE: _same_lease,
    Bug.SLOT_TWICE: _slot_twice,
    Bug.TIMER_LAST: _timer_last,
    Bug.NO_TERMINAL_GUARD: _no_terminal_guard,
    Bug.SWEEPER_IGNORES_PAUSE: _sweeper_ignores_pause,
    Bug.ROUTED_AGAIN: _routed_again,
    Bug.EVENT_SKIPPED: _event_skipped,
    Bug.AUDIT_BLIND: _audit_blind,
    Bug.WALL_CLOCK: _wall_clock,
    Bug.NOT_PULLED_IN: _not_pulled_in,
    Bug.NO_BACKLOG: _no_backlog,
    Bug.UNREADABLE_ENDS_SWEEP: _unreadable_ends_sweep,
    Bug.PLACE_GIVEN_UP_EARLY: _place_given_up_early,
    Bug.PLACES_NOT_ADDED: _places_not_added,
    Bug.PLACE_LEAKS: _place_leaks,
    Bug.RATE_NOT_COUNTED: _rate_not_counted,
    Bug.RATE_OF_EACH: _rate_of_each,
    Bug.FIRST_TENANT_FIRST: _first_tenant_first,
    Bug.TURN_WITHOUT_END: _turn_without_end,
    Bug.PROBE_COSTS: _probe_costs,
}
