"""Flow control in a process: which attempts may leave now, and what the others wait for.

In: the limits of services as they are configured, what is paused, commits, and attempts whose directive could
leave. Out: a grant for each that may leave. What a service has is one small row (`ledger.flow`), replaced
under its ETag before anything leaves, so that processes that share a store overshoot no limit. A service
without limits, pauses and an open breaker costs nothing here: no row is read or written for it.

Nothing leaks. A place names its attempt, and once a service is full its places are compared with the jobs:
those of attempts that are over are given up. A process that took a place and died before its hand-out was
committed leaves an attempt that waits: its place is given up after a while, once no commit of that process
can succeed any more. Over a broker such an attempt keeps its place, for its directive may be out.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

import msgspec
import structlog

from lucius.core.flow import (
    EMPTY_FLOW,
    NO_LIMITS,
    OF_TENANT,
    ActivePause,
    FlowHold,
    FlowReason,
    FlowRequest,
    FlowState,
    FlowWait,
    OpenBreaker,
    Rate,
    ServiceLimits,
    closed,
    hold,
    opened,
    probe_failed,
    probe_given_up,
    release,
    slowed,
    take,
)
from lucius.core.model import Event, JobRecord, Outbox
from lucius.core.replies import is_stopped
from lucius.core.states import STEP_ACTIVE, Fact, JobState, StepState
from lucius.ledger.flow import FlowLedger, FlowPause, PauseKind, StoredFlow
from lucius.ledger.indexes import DispatchEntry
from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.names import tenant_group
from lucius.ledger.store import Conflict, StoreError, Unreadable

ALL_SERVICES: Final = "*"
LOOK_EVERY_SECONDS: Final = 1.0
TRIES_MAX: Final = 50
AGAIN_MS: Final = 200  # until a full service is looked at again: another process may have given a place up
PAUSED_AGAIN_MS: Final = 1_000
HAND_OUT_WITHIN_MS: Final = 5_000
STALE_AFTER_MS: Final = 15_000  # longer than that, by more than the clocks of two hosts differ
RECHECK_EVERY_MS: Final = 2_000
IDLE_RECHECK_MS: Final = 30_000  # where no attempt waits for a place
RECHECKS_MAX: Final = 32
MEASURED_MS: Final = 10_000
UNREADABLE_MS: Final = 60_000
ERROR_LENGTH_MAX: Final = 200
# Where grants of a service with a rate come too late, they are asked for ahead of their time.
LEAD_MS_MAX: Final = 2_000
LEAD_MS_MIN: Final = 20
LEAD_SHARE_OFF: Final = 32

_ENDS: Final = frozenset({Fact.STEP_SUCCEEDED, Fact.STEP_RETRYING, Fact.STEP_FAILED, Fact.STEP_CANCELLED})
_PUBLISHED, _PUBLISH_FAILED = Fact.DIRECTIVE_PUBLISHED, Fact.PUBLISH_FAILED
_ANSWERLESS: Final = frozenset({"ACK_TIMEOUT", "LEASE_EXPIRED"})

log = structlog.get_logger("lucius.flow")

Change = Callable[[FlowState], FlowState]
LimitsByService = Mapping[str, ServiceLimits]


class Grant(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """`leave_at_ms`: when the directive may leave (`await_time`); 0: at once. `not_after_ms`: until when.
    One that is later asks again (`is_late`). `lead_ms`: how long before its time it was asked for."""

    leave_at_ms: int = 0
    not_after_ms: int | None = None
    lead_ms: int = 0
    probe: bool = False


FREE: Final = Grant()


async def await_time(grants: Iterable[Grant], now_ms: Callable[[], int]) -> None:
    """Returns once all of them may leave."""
    leave_at_ms = max((grant.leave_at_ms for grant in grants), default=0)
    if leave_at_ms and (early_ms := leave_at_ms - now_ms()) > 0:
        await asyncio.sleep(early_ms / 1000)


class FlowGate(Protocol):
    """Flow control as those see it who let directives leave."""

    def governs(self, service: str) -> bool:
        """Whether attempts of this service need a grant."""
        ...

    def is_direct(self, service: str) -> bool:
        """Whether directives may leave in the very commit that begins their attempts."""
        ...

    def holds(self, group: str, request_type: str) -> bool:
        """Whether the tenant of this group, or this request type, is paused."""
        ...

    def over(self) -> Callable[[DispatchEntry], bool] | None:
        """Whether the row's request type is paused; None: none is."""
        ...

    def again_in_ms(self, service: str) -> int:
        """0: some may leave now. Else after how long to look again."""
        ...

    def ready(self, service: str) -> Callable[[DispatchEntry], bool] | None:
        """Whether anything holds the row's tenant up; None: nothing holds up any."""
        ...

    async def admit(self, service: str, asks: Sequence[FlowRequest]) -> Mapping[str, Grant]:
        """Grants by lease. Those that are not there wait."""
        ...

    def is_late(self, service: str, grant: Grant) -> bool:
        """Whether it is too late for what was granted to leave."""
        ...


class UnlimitedFlow:
    """Lets everything leave."""

    def governs(self, service: str) -> bool:
        return False

    def is_direct(self, service: str) -> bool:
        return True

    def holds(self, group: str, request_type: str) -> bool:
        return False

    def over(self) -> Callable[[DispatchEntry], bool] | None:
        return None

    def again_in_ms(self, service: str) -> int:
        return 0

    def ready(self, service: str) -> Callable[[DispatchEntry], bool] | None:
        return None

    async def admit(self, service: str, asks: Sequence[FlowRequest]) -> Mapping[str, Grant]:
        return {ask.lease_id: FREE for ask in asks}

    def is_late(self, service: str, grant: Grant) -> bool:
        return False


class _ServiceFlow:
    """What this process knows of one service."""

    __slots__ = (
        "blocked_until_ms",
        "changes",
        "ended",
        "etag",
        "failures",
        "first_seen_ms",
        "flushing",
        "known",
        "lead_ms",
        "lock",
        "read_at_ms",
        "rechecked_at_ms",
        "sent",
        "sent_before",
        "sent_since_ms",
        "state",
        "tenants_blocked",
        "unreadable_since_ms",
        "wait",
    )

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.state, self.etag, self.known = EMPTY_FLOW, None, False
        self.read_at_ms = self.rechecked_at_ms = self.blocked_until_ms = self.lead_ms = 0
        self.wait: FlowWait | None = None
        self.unreadable_since_ms: int | None = None
        self.tenants_blocked: dict[str, int] = {}
        self.ended: dict[str, str] = {}
        self.changes: list[Change] = []
        self.failures = 0
        self.first_seen_ms: dict[str, int] = {}  # attempts that waited although they had a place, by lease
        self.sent = self.sent_before = self.sent_since_ms = 0
        self.flushing: asyncio.Task[None] | None = None

    state: FlowState
    etag: str | None

    def take_in(self, stored: StoredFlow, now_ms: int) -> None:
        self.state, self.etag, self.known, self.read_at_ms = stored.state, stored.etag, True, now_ms

    def open_up(self) -> None:
        self.blocked_until_ms = 0
        self.tenants_blocked.clear()

    def ask_earlier(self, lead_ms: int, late_ms: int) -> None:
        self.lead_ms = min(LEAD_MS_MAX, max(self.lead_ms, lead_ms + max(LEAD_MS_MIN, late_ms // 4)))

    @property
    def shown(self) -> FlowState:
        """As it will be once what happened here is written."""
        state = release(self.state, self.ended)
        for change in self.changes:
            state = change(state)
        return state


class ServiceFlowView(msgspec.Struct, frozen=True, kw_only=True):
    """What readers see of a service's flow."""

    limits: ServiceLimits
    in_use: int
    share: float
    breaker: OpenBreaker | None
    pause: FlowPause | None


class FlowControl:
    def __init__(
        self,
        ledger: JobLedger,
        limits: Callable[[], LimitsByService],
        *,
        now_ms: Callable[[], int],
        over_bus: bool = False,
    ) -> None:
        """`limits`: as they are configured at present; `*` stands for services that are not named.
        `over_bus`: a directive may be out although no commit says so."""
        self._ledger = ledger
        self.rows = FlowLedger(ledger.store, ledger.tables.meta, ledger.quarantine)
        self._limits = limits
        self._now_ms = now_ms
        self._over_bus = over_bus
        self._flows: dict[str, _ServiceFlow] = {}
        self._pauses: dict[tuple[PauseKind, str], FlowPause] = {}
        self._paused_groups: frozenset[str] = frozenset()
        self._paused_types: frozenset[str] = frozenset()
        self._tasks: set[asyncio.Task[None]] = set()
        self._looked = False
        self.on_open: list[Callable[[str], None]] = []
        """Called with a service of which more may leave than before."""
        self.outcomes: Counter[tuple[str, str]] = Counter()

    # What may leave

    def limits_of(self, service: str) -> ServiceLimits:
        limits = self._limits()
        if not limits:
            return NO_LIMITS
        return limits.get(service) or limits.get(ALL_SERVICES) or NO_LIMITS

    def governs(self, service: str) -> bool:
        if self._pauses and (PauseKind.SERVICE, service) in self._pauses:
            return True
        flow = self._flows.get(service)
        if not self._limits():
            return flow is not None and (flow.shown if flow.changes else flow.state).slow is not None
        limits = self.limits_of(service)
        if limits.limits or (limits.breaker is not None and not self._looked):
            return True
        if flow is None:
            return False
        state = flow.shown if flow.changes else flow.state
        return (limits.breaker is not None and state.breaker is not None) or state.slow is not None

    def is_direct(self, service: str) -> bool:
        return not self._paused_groups and not self._paused_types and not self.governs(service)

    def holds(self, group: str, request_type: str) -> bool:
        return group in self._paused_groups or request_type in self._paused_types

    def over(self) -> Callable[[DispatchEntry], bool] | None:
        types = self._paused_types
        return None if not types else lambda entry: entry.row.request_type in types

    def again_in_ms(self, service: str) -> int:
        if self._pauses and (PauseKind.SERVICE, service) in self._pauses:
            return PAUSED_AGAIN_MS
        flow = self._flows.get(service)
        if flow is None or not flow.blocked_until_ms:
            return 0
        return max(0, flow.blocked_until_ms - self._now_ms())

    def ready(self, service: str) -> Callable[[DispatchEntry], bool] | None:
        groups, flow = self._paused_groups, self._flows.get(service)
        blocked = {} if flow is None else flow.tenants_blocked
        if not groups and not blocked:
            return None
        now_ms = self._now_ms()
        return lambda entry: entry.group not in groups and blocked.get(entry.group, 0) <= now_ms

    async def admit(self, service: str, asks: Sequence[FlowRequest]) -> Mapping[str, Grant]:
        """Raises `StoreError`: then none may leave."""
        if not asks or (PauseKind.SERVICE, service) in self._pauses:
            return {}
        flow, limits = self._flow(service), self.limits_of(service)
        async with flow.lock:
            try:
                if not flow.known:
                    await self._read(service, flow)
                return await self._take(service, flow, limits, asks)
            except Unreadable:
                flow.blocked_until_ms = self._now_ms() + PAUSED_AGAIN_MS
                return {}

    def is_late(self, service: str, grant: Grant) -> bool:
        late_ms = 0 if grant.not_after_ms is None else self._now_ms() - grant.not_after_ms
        if late_ms <= 0:
            return False
        self._flow(service).ask_earlier(grant.lead_ms, late_ms)
        self.outcomes[service, "late"] += 1
        return True

    async def _take(
        self, service: str, flow: _ServiceFlow, limits: ServiceLimits, asks: Sequence[FlowRequest]
    ) -> Mapping[str, Grant]:
        for _ in range(TRIES_MAX):
            now_ms = self._now_ms()
            lead_ms = flow.lead_ms
            leave_at_ms = now_ms + lead_ms
            ended, changes = dict(flow.ended), len(flow.changes)
            taken = take(flow.shown, limits, asks, now_ms, leave_at_ms=leave_at_ms)
            if taken.waits and not taken.granted and flow.read_at_ms != now_ms and self._may_be_newer(flow):
                await self._read(service, flow)
                continue
            if taken.waits and await self._recheck(service, flow, taken.waits.values()):
                continue
            if taken.state != flow.state:
                written = await self.rows.write(service, taken.state, flow.etag)
                if written is None:
                    await self._read(service, flow)
                    continue
                flow.take_in(written, now_ms)
            self._written(flow, ended, changes)
            self._note_waits(flow, asks, taken.waits, now_ms)
            not_after_ms = None if self._over_bus else now_ms + HAND_OUT_WITHIN_MS
            if taken.granted and taken.late_ms is not None:
                late_at_ms = leave_at_ms + taken.late_ms
                if (late_ms := self._now_ms() - late_at_ms) > 0:
                    flow.ask_earlier(lead_ms, late_ms)
                    self.outcomes[service, "late"] += len(taken.granted)
                    continue
                not_after_ms = late_at_ms if not_after_ms is None else min(not_after_ms, late_at_ms)
            self.outcomes[service, "granted"] += len(taken.granted)
            self.outcomes[service, "held"] += len(taken.waits)
            return {
                lease_id: Grant(
                    leave_at_ms=leave_at_ms, not_after_ms=not_after_ms, lead_ms=lead_ms, probe=probe
                )
                for lease_id, probe in taken.granted.items()
            }
        return {}

    def _may_be_newer(self, flow: _ServiceFlow) -> bool:
        return self._now_ms() - flow.read_at_ms >= AGAIN_MS // 2

    def _note_waits(
        self, flow: _ServiceFlow, asks: Sequence[FlowRequest], waits: Mapping[str, FlowWait], now_ms: int
    ) -> None:
        flow.wait, flow.blocked_until_ms = None, 0
        for ask in asks:
            wait = waits.get(ask.lease_id)
            if wait is None:
                continue
            until_ms = now_ms + (AGAIN_MS if wait.wait_ms is None else min(wait.wait_ms, PAUSED_AGAIN_MS))
            if wait.reason in OF_TENANT:
                flow.tenants_blocked[ask.tenant] = until_ms
            else:
                flow.wait, flow.blocked_until_ms = wait, until_ms

    async def _read(self, service: str, flow: _ServiceFlow) -> None:
        """A row that cannot be read may be put right, and is waited for; then it is written anew."""
        now_ms, since_ms = self._now_ms(), flow.unreadable_since_ms
        anew = since_ms is not None and now_ms - since_ms >= UNREADABLE_MS
        try:
            flow.take_in(await self.rows.read(service, anew=anew), self._now_ms())
        except Unreadable:
            flow.known = False
            if since_ms is None:
                flow.unreadable_since_ms = now_ms
            raise
        flow.unreadable_since_ms = None

    def _flow(self, service: str) -> _ServiceFlow:
        flow = self._flows.get(service)
        if flow is None:
            flow = self._flows[service] = _ServiceFlow()
        return flow

    # What leaks nothing

    async def _recheck(self, service: str, flow: _ServiceFlow, waits: Iterable[FlowWait]) -> bool:
        """Compares places with the jobs, now and then while some wait; whether any was given up."""
        reasons, now_ms = {wait.reason for wait in waits}, self._now_ms()
        if now_ms - flow.rechecked_at_ms < RECHECK_EVERY_MS:
            return False
        flow.rechecked_at_ms = now_ms
        given_up = False
        if reasons & {FlowReason.SLOTS, FlowReason.TENANT_SLOTS}:
            oldest = sorted(flow.shown.slots.items(), key=lambda each: each[1].taken_at_ms)[:RECHECKS_MAX]
            over = await asyncio.gather(
                *(self._is_over(flow, job_id, slot.lease_id) for job_id, slot in oldest)
            )
            for (job_id, slot), is_over in zip(oldest, over, strict=True):
                if is_over:
                    flow.ended[job_id] = slot.lease_id
                    flow.first_seen_ms.pop(slot.lease_id, None)
                    self.outcomes[service, "given_up"] += 1
                    given_up = True
        breaker = flow.shown.breaker
        if breaker is not None and breaker.probe_job_id is not None and breaker.probe_lease_id is not None:
            given_up |= await self._recheck_probe(service, flow, breaker)
        return given_up

    async def _is_over(self, flow: _ServiceFlow, job_id: str, lease_id: str) -> bool:
        now_ms = self._now_ms()
        try:
            loaded = await self._ledger.peek(job_id)
        except Unreadable:
            # A job that stays unreadable takes no room for good from those that can go on.
            return now_ms - flow.first_seen_ms.setdefault(lease_id, now_ms) >= UNREADABLE_MS
        if loaded is None or loaded.record.job.terminal:
            return True
        record, step = loaded.record, loaded.record.current
        if step is None or step.lease_id != lease_id or step.state not in STEP_ACTIVE:
            return True
        if not record.awaits_dispatch(step):
            flow.first_seen_ms.pop(lease_id, None)
            return False
        is_paused = record.job.state is JobState.PAUSED
        # By our own clock alone: the process that took it may have had another.
        since_ms = flow.first_seen_ms.setdefault(lease_id, now_ms)
        if (self._over_bus and not is_paused) or now_ms - since_ms < STALE_AFTER_MS:
            return False
        try:
            # The process that took the place may be at its commit: from here on that one fails, and another
            # is refused, for its time is over.
            await self._ledger.fence(loaded, now_ms)
        except Conflict:
            return False
        return True

    async def _recheck_probe(self, service: str, flow: _ServiceFlow, breaker: OpenBreaker) -> bool:
        job_id, lease_id = breaker.probe_job_id or "", breaker.probe_lease_id or ""
        if not await self._is_over(flow, job_id, lease_id):
            return False
        try:
            loaded = await self._ledger.peek(job_id)
        except Unreadable:
            loaded = None
        record = None if loaded is None else loaded.record
        states = {step.lease_id: step.state for step in record.steps} if record is not None else {}
        match states.get(lease_id):
            case StepState.SUCCEEDED:
                self._change(flow, closed)
            case StepState.FAILED_RETRY | StepState.FAILED_FINAL:
                self._probe_failed(service, flow, lease_id, "")
            case _:
                self._change(flow, lambda state: probe_given_up(state, lease_id))
        return True

    def _probe_failed(self, service: str, flow: _ServiceFlow, lease_id: str, error: str) -> None:
        rule, now_ms = self.limits_of(service).breaker, self._now_ms()
        if rule is not None:
            self._change(flow, lambda state: probe_failed(state, rule, lease_id, error, now_ms))

    # What commits tell

    def watch(self, before: JobRecord | None, after: JobRecord, events: Sequence[Event]) -> None:
        for event in events:
            fact = event.type
            if fact is _PUBLISHED:
                step = after.step(event.step_id or "")
                if step is not None:
                    self._published(self._flows.get(step.service) or self._flow(step.service), event.at_ms)
            elif fact in _ENDS and before is not None:
                if self._limits() or event.data.get("slow_down"):  # else an end changes nothing
                    self._ended(before, event)
            elif fact is _PUBLISH_FAILED and before is not None and before.outbox is not None:
                self._give_up_waiting(before.outbox, after)

    def _give_up_waiting(self, outbox: Outbox, after: JobRecord) -> None:
        """The bus refused the directive: it waits for its backoff, without a place."""
        if self.limits_of(outbox.service).counts_slots:
            self._give_up(outbox.service, after.job.job_id, outbox.lease_id)

    def _published(self, flow: _ServiceFlow, now_ms: int) -> None:
        if flow.lead_ms:
            flow.lead_ms -= -(-flow.lead_ms // LEAD_SHARE_OFF)
        if now_ms - flow.sent_since_ms >= MEASURED_MS:
            recent = now_ms - flow.sent_since_ms < 2 * MEASURED_MS
            flow.sent_before, flow.sent, flow.sent_since_ms = (flow.sent if recent else 0), 0, now_ms
        flow.sent += 1

    def _ended(self, before: JobRecord, event: Event) -> None:
        """An attempt is over. `before` has it as it was handed out: a fallback changes the step's service."""
        step = before.step(event.step_id or "")
        if step is None or step.lease_id is None or step.state not in STEP_ACTIVE:
            return
        service, data = step.service, event.data
        limits, flow = self.limits_of(service), self._flow(service)
        if data.get("slow_down"):
            measured, now_ms = self._measured(flow), self._now_ms()
            self._change(flow, lambda state: slowed(state, limits, measured, now_ms))
            self._flush_soon(service, flow)
        if limits.breaker is not None:
            self._judge(service, flow, limits, step.lease_id, event)
        if limits.counts_slots:
            self._give_up(service, before.job.job_id, step.lease_id)

    def _measured(self, flow: _ServiceFlow) -> Rate:
        """What left in the last seconds, as a rate."""
        span_ms = MEASURED_MS + max(1, min(MEASURED_MS, self._now_ms() - flow.sent_since_ms))
        a_second = max(1, round((flow.sent + flow.sent_before) * 1_000 / span_ms))
        return Rate(tokens=a_second, per_ms=1_000, burst=a_second)

    def _judge(
        self, service: str, flow: _ServiceFlow, limits: ServiceLimits, lease_id: str, event: Event
    ) -> None:
        """What the end of an attempt says about the service: it answers, it fails, or nothing."""
        rule, data = limits.breaker, event.data
        assert rule is not None
        reason = data.get("reason")
        failed = not is_stopped(event) and (
            event.type is Fact.STEP_RETRYING or (event.type is Fact.STEP_FAILED and "exhausted" in data)
        )
        answered = event.type is Fact.STEP_SUCCEEDED or (
            event.type is Fact.STEP_FAILED and reason == "RESULT" and not failed
        )
        is_open = flow.shown.breaker is not None
        if answered:
            flow.failures = 0
            if is_open:
                self._change(flow, closed)
                self._flush_soon(service, flow)
            return
        error = f"{data.get('code') or reason}: {data.get('message') or ''}"[:ERROR_LENGTH_MAX]
        if failed:
            flow.failures += 1
            if is_open:
                self._probe_failed(service, flow, lease_id, error)
                self._flush_soon(service, flow)
            elif flow.failures >= rule.failures_max:
                failures, now_ms = flow.failures, self._now_ms()
                self._change(flow, lambda state: opened(state, rule, failures, error, now_ms))
                self._flush_soon(service, flow)
                log.warning("breaker_opened", service=service, failures=failures, error=error)
        elif is_open:
            self._change(flow, lambda state: probe_given_up(state, lease_id))
            self._flush_soon(service, flow)

    def _give_up(self, service: str, job_id: str, lease_id: str) -> None:
        flow = self._flow(service)
        flow.ended[job_id] = lease_id
        flow.open_up()
        self._flush_soon(service, flow)
        self._opened_up(service)

    def _change(self, flow: _ServiceFlow, change: Change) -> None:
        flow.changes.append(change)
        flow.open_up()

    def _opened_up(self, service: str) -> None:
        for listener in self.on_open:
            listener(service)

    # What is written later

    def _flush_soon(self, service: str, flow: _ServiceFlow) -> None:
        if flow.flushing is None:
            flow.flushing = asyncio.create_task(self._flush(service, flow))
            self._tasks.add(flow.flushing)
            flow.flushing.add_done_callback(self._tasks.discard)

    async def _flush(self, service: str, flow: _ServiceFlow) -> None:
        """The next take writes it, too: often there is nothing left to write."""
        try:
            await asyncio.sleep(0)
            async with flow.lock:
                await self._write_changes(service, flow)
        except StoreError as fault:
            log.warning("flow_not_written", service=service, error=str(fault))  # the next look tries again
        finally:
            flow.flushing = None
        self._opened_up(service)

    async def _write_changes(self, service: str, flow: _ServiceFlow) -> None:
        for _ in range(TRIES_MAX):
            if not flow.ended and not flow.changes:
                return
            if not flow.known:
                await self._read(service, flow)
            ended, changes, state = dict(flow.ended), len(flow.changes), flow.shown
            if state != flow.state:
                written = await self.rows.write(service, state, flow.etag)
                if written is None:
                    await self._read(service, flow)
                    continue
                flow.take_in(written, self._now_ms())
            self._written(flow, ended, changes)

    @staticmethod
    def _written(flow: _ServiceFlow, ended: Mapping[str, str], changes: int) -> None:
        del flow.changes[:changes]
        for job_id, lease_id in ended.items():
            if flow.ended.get(job_id) == lease_id:
                del flow.ended[job_id]

    # What others did

    async def look(self) -> None:
        """A duty: learns what other processes wrote, and writes what could not be written."""
        rows = await self.rows.all()
        now_ms = self._now_ms()
        for service, stored in rows.flows.items():
            flow = self._flow(service)
            if not flow.lock.locked():
                flow.take_in(stored, now_ms)
        self._take_in_pauses(rows.pauses)
        self._looked = True
        for service, flow in tuple(self._flows.items()):
            if flow.state.slots and now_ms - flow.rechecked_at_ms >= IDLE_RECHECK_MS:
                async with flow.lock:
                    await self._recheck(service, flow, [FlowWait(FlowReason.SLOTS)])
            if flow.ended or flow.changes:
                self._flush_soon(service, flow)

    def _take_in_pauses(self, pauses: Iterable[FlowPause]) -> None:
        found = {(pause.kind, pause.name): pause for pause in pauses}
        gone = self._pauses.keys() - found.keys()
        self._pauses = found
        self._paused_groups = frozenset(
            tenant_group(name) for kind, name in found if kind is PauseKind.TENANT
        )
        self._paused_types = frozenset(name for kind, name in found if kind is PauseKind.TYPE)
        for kind, name in gone:
            self._opened_up(name if kind is PauseKind.SERVICE else ALL_SERVICES)

    async def run(self) -> None:
        while True:
            try:
                await self.look()
            except StoreError as fault:
                log.warning("flow_not_read", error=str(fault))
            await asyncio.sleep(LOOK_EVERY_SECONDS)

    # What readers see

    def pause_of(self, kind: PauseKind, name: str) -> FlowPause | None:
        return self._pauses.get((kind, name))

    @property
    def pauses(self) -> list[FlowPause]:
        return [self._pauses[key] for key in sorted(self._pauses)]

    def view_of(self, service: str) -> ServiceFlowView:
        flow, limits, now_ms = self._flows.get(service), self.limits_of(service), self._now_ms()
        state = EMPTY_FLOW if flow is None else flow.shown
        return ServiceFlowView(
            limits=limits,
            in_use=len(state.slots),
            share=1.0 if state.slow is None else state.slow.share_at(now_ms),
            breaker=state.breaker if limits.breaker is not None else None,
            pause=self.pause_of(PauseKind.SERVICE, service),
        )

    def hold_of(self, record: JobRecord) -> FlowHold | None:
        """What keeps an attempt that has begun from leaving, as far as this process knows."""
        step, outbox = record.current, record.outbox
        if step is None or outbox is None or not record.awaits_dispatch(step):
            return None
        job, service = record.job, outbox.service
        for kind, name in (
            (PauseKind.SERVICE, service),
            (PauseKind.TENANT, job.tenant_norm),
            (PauseKind.TYPE, job.request_type),
        ):
            pause = self.pause_of(kind, name)
            if pause is not None:
                active = ActivePause(kind=kind.value, name=name, since_ms=pause.since_ms, reason=pause.reason)
                return FlowHold(reason=FlowReason.PAUSED, service=service, pause=active)
        if not self.governs(service):
            return None
        limits, state, now_ms = self.limits_of(service), self._flow(service).shown, self._now_ms()
        group = tenant_group(job.tenant_norm)
        wait = take(state, limits, [FlowRequest(job.job_id, outbox.lease_id, group)], now_ms).waits.get(
            outbox.lease_id
        )
        wait = wait or self._flow(service).wait
        return None if wait is None else hold(state, limits, service, group, wait, now_ms)

    def service_holds(self) -> dict[str, FlowHold]:
        """What keeps directives of whole services from leaving, by service."""
        found: dict[str, FlowHold] = {}
        for service, flow in self._flows.items():
            if not self.governs(service) or self.pause_of(PauseKind.SERVICE, service) is not None:
                continue
            limits, state, now_ms = self.limits_of(service), flow.shown, self._now_ms()
            wait = take(state, limits, [FlowRequest("", "", "")], now_ms).waits.get("")
            if wait is not None:
                found[service] = hold(state, limits, service, "", wait, now_ms)
        for kind, name in self._pauses:
            if kind is PauseKind.SERVICE:
                pause = self._pauses[kind, name]
                active = ActivePause(kind=kind.value, name=name, since_ms=pause.since_ms, reason=pause.reason)
                found[name] = FlowHold(reason=FlowReason.PAUSED, service=name, pause=active)
        return found
