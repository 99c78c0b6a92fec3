"""How many attempts a service may have: at once, in a time, and while it fails.

In: what a service has by now (`FlowState`), what it may have (`ServiceLimits`), and who asks for a place.
Out: who gets one, what the service has then, and what the others wait for. Pure: where the state is kept, and
how several processes agree on it, is not known here.

A place belongs to one attempt, from before its directive leaves until the ledger says that the attempt is
over. Rates are counted as the time at which the next directive would be due if they left evenly (GCRA): one
number holds a bucket of any size.

What was granted leaves a moment later, when others may have been granted more. So a grant of a service
with a rate is good for a short time only, and directives are granted as much more slowly: in any second no
more than the rate and one burst leave, however late each of them does.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from lucius.core.due import AHEAD_MS

SECOND_MS: Final = 1_000
# A service that asks for less gets half of what it had, down to a sixteenth, and twice as much again after
# each of these spans in which it does not ask.
SLOW_STEP_MS: Final = 30_000
SLOW_SHARE_MIN: Final = 1 / 16
# How late a directive may leave after it was granted: at least that, where its service has a rate.
LATE_MS: Final = 50
# How much of what may leave is waited for at least, so that directives leave in groups.
BATCH_MS: Final = 20
PROBE_WAIT_TIMES_MAX: Final = 6


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """`burst`: how many may leave at one moment after a pause."""

    tokens: int
    per_ms: int
    burst: int

    @property
    def text(self) -> str:
        unit = {SECOND_MS: "second", 60 * SECOND_MS: "minute"}.get(self.per_ms, f"{self.per_ms} ms")
        return f"{self.tokens:,} a {unit}"


class BreakerRule(msgspec.Struct, frozen=True, kw_only=True):
    """Opens after so many failures in a row; then one attempt each `probe_every_ms` looks."""

    failures_max: int
    probe_every_ms: int


class ServiceLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a service may have; None: as much as there is."""

    concurrency: int | None = None
    rate: Rate | None = None
    tenant_concurrency: int | None = None
    tenant_rate: Rate | None = None
    breaker: BreakerRule | None = None

    @property
    def counts_slots(self) -> bool:
        return self.concurrency is not None or self.tenant_concurrency is not None

    @property
    def limits(self) -> bool:
        return self.counts_slots or self.rate is not None or self.tenant_rate is not None


NO_LIMITS: Final = ServiceLimits()


class Slot(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One attempt's place. `tenant`: as the dispatch index groups tenants."""

    lease_id: str
    tenant: str
    taken_at_ms: int


class OpenBreaker(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`probe_at_ms`: when the next attempt may look; `probe_job_id` and `probe_lease_id`: of the one that
    looks now."""

    opened_at_ms: int
    failures: int
    probe_at_ms: int
    error: str = ""
    probes: int = 0
    probe_job_id: str | None = None
    probe_lease_id: str | None = None


class SlowDown(msgspec.Struct, frozen=True, kw_only=True):
    """The service asked for less. `rate`: what it had before, where no limit says so."""

    share: float
    since_ms: int
    rate: Rate

    def share_at(self, now_ms: int) -> float:
        if self.since_ms > now_ms + AHEAD_MS:  # by a clock that ran far ahead
            return 1.0
        steps = max(0, now_ms - self.since_ms) // SLOW_STEP_MS
        return min(1.0, self.share * 2.0 ** min(steps, 10))


class FlowState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a service has. `slots`: by job, for a job has one attempt at a time. `due_us`: when the next
    directive would be due, in microseconds; of tenants, too."""

    slots: dict[str, Slot] = {}
    due_us: int = 0
    tenant_due_us: dict[str, int] = {}
    slow: SlowDown | None = None
    breaker: OpenBreaker | None = None


EMPTY_FLOW: Final = FlowState()


class FlowReason(StrEnum):
    SLOTS = "SLOTS"
    TENANT_SLOTS = "TENANT_SLOTS"
    RATE = "RATE"
    TENANT_RATE = "TENANT_RATE"
    BREAKER = "BREAKER"
    PAUSED = "PAUSED"


OF_TENANT: Final = frozenset({FlowReason.TENANT_SLOTS, FlowReason.TENANT_RATE})


class FlowRequest(msgspec.Struct, frozen=True, gc=False):
    """An attempt whose directive could leave."""

    job_id: str
    lease_id: str
    tenant: str


class FlowWait(msgspec.Struct, frozen=True, gc=False):
    """Why a place is not to be had. `wait_ms`: after which it may be; None: once another is given up."""

    reason: FlowReason
    wait_ms: int | None = None


class Taken(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """`granted`: by lease, and whether each is a probe; `waits`: for what the others wait, by lease.
    `late_ms`: how long after their time those that were granted may leave; None: no rate holds."""

    state: FlowState
    granted: Mapping[str, bool]
    waits: Mapping[str, FlowWait]
    late_ms: int | None
    changed: bool


def take(
    state: FlowState,
    limits: ServiceLimits,
    asks: Sequence[FlowRequest],
    now_ms: int,
    *,
    leave_at_ms: int | None = None,
) -> Taken:
    """Gives places in the order in which they are asked for. `leave_at_ms`: when what is granted leaves, for
    the rates; now unless given."""
    return _Taking(state, limits, now_ms, now_ms if leave_at_ms is None else leave_at_ms).go(asks)


class _Bucket(msgspec.Struct, frozen=True, gc=False):
    """What a rate comes to. A directive may leave until `late_ms` after its time: that is covered by what
    one second may have beside the burst, or else by a rate that is a little less, by a twentieth at most."""

    every_us: int
    burst: int
    late_ms: int

    @classmethod
    def of(cls, rate: Rate, share: float) -> "_Bucket":
        every_us, burst = round(rate.per_ms * 1_000 / (rate.tokens * share)), max(1, int(rate.burst * share))
        second_us, late_us = SECOND_MS * 1_000, LATE_MS * 1_000
        if every_us >= late_us:
            return cls(every_us, burst, every_us // 1_000)
        return cls(-(-every_us * (second_us + late_us) // (second_us + every_us)), burst, LATE_MS)

    def bounded(self, due_us: int, now_us: int) -> int:
        """What a clock that ran far ahead has written is not waited for."""
        most_us = self.burst * self.every_us + AHEAD_MS * 1_000
        return now_us if due_us - now_us > most_us else due_us


class _Taking:
    def __init__(self, state: FlowState, limits: ServiceLimits, now_ms: int, leave_at_ms: int) -> None:
        self._state, self._limits, self._now_ms = state, limits, now_ms
        self._leave_us = leave_at_ms * 1_000
        self._slots = dict(state.slots)
        self._due_us, self._tenant_due_us = state.due_us, dict(state.tenant_due_us)
        self._breaker = state.breaker
        self._tenants: dict[str, int] = {}
        for slot in state.slots.values():
            self._tenants[slot.tenant] = self._tenants.get(slot.tenant, 0) + 1
        rate, share = effective_rate(state, limits, now_ms)
        self._bucket = None if rate is None else _Bucket.of(rate, share)
        self._of_tenant = None if limits.tenant_rate is None else _Bucket.of(limits.tenant_rate, 1.0)

    def go(self, asks: Sequence[FlowRequest]) -> Taken:
        granted: dict[str, bool] = {}
        waits: dict[str, FlowWait] = {}
        for ask in asks:
            wait = self._barred(ask)
            if wait is None:
                # One that has its place already left nothing behind that says when it left.
                wait = (None if self._holds(ask) else self._full(ask)) or self._too_fast(ask)
            if wait is not None:
                waits[ask.lease_id] = wait
                continue
            granted[ask.lease_id] = self._grant(ask)
        slow = self._state.slow
        state = FlowState(
            slots=self._slots,
            due_us=self._due_us,
            tenant_due_us=self._tenants_due(),
            slow=None if slow is None or slow.share_at(self._now_ms) >= 1 else slow,
            breaker=self._breaker,
        )
        buckets = [bucket for bucket in (self._bucket, self._of_tenant) if bucket is not None]
        return Taken(
            state=state,
            granted=granted,
            waits=waits,
            late_ms=min((bucket.late_ms for bucket in buckets), default=None),
            changed=state != self._state,
        )

    def _barred(self, ask: FlowRequest) -> FlowWait | None:
        breaker = self._breaker
        if breaker is None or self._limits.breaker is None:
            return None
        if breaker.probe_lease_id == ask.lease_id:
            return None
        if breaker.probe_lease_id is not None:
            return FlowWait(FlowReason.BREAKER)
        left_ms = breaker.probe_at_ms - self._now_ms
        # What a clock that ran far ahead has written is not waited for.
        most_ms = PROBE_WAIT_TIMES_MAX * self._limits.breaker.probe_every_ms + AHEAD_MS
        return None if not 0 < left_ms <= most_ms else FlowWait(FlowReason.BREAKER, left_ms)

    def _holds(self, ask: FlowRequest) -> bool:
        slot = self._slots.get(ask.job_id)
        return slot is not None and slot.lease_id == ask.lease_id

    def _full(self, ask: FlowRequest) -> FlowWait | None:
        limits = self._limits
        taken = len(self._slots) - (ask.job_id in self._slots)  # its attempt before is over
        if limits.concurrency is not None and taken >= limits.concurrency:
            return FlowWait(FlowReason.SLOTS)
        of_tenant = limits.tenant_concurrency
        if of_tenant is not None and self._tenants.get(ask.tenant, 0) >= of_tenant:
            return FlowWait(FlowReason.TENANT_SLOTS)
        return None

    def _too_fast(self, ask: FlowRequest) -> FlowWait | None:
        wait_ms = self._wait_ms(self._due_us, self._bucket)
        if wait_ms:
            return FlowWait(FlowReason.RATE, wait_ms)
        wait_ms = self._wait_ms(self._tenant_due_us.get(ask.tenant, 0), self._of_tenant)
        return FlowWait(FlowReason.TENANT_RATE, wait_ms) if wait_ms else None

    def _wait_ms(self, due_us: int, bucket: _Bucket | None) -> int:
        if bucket is None:
            return 0
        every_us, burst = bucket.every_us, bucket.burst
        ahead_us = bucket.bounded(due_us, self._leave_us) - self._leave_us
        if ahead_us <= (burst - 1) * every_us:
            return 0
        group = min(burst, max(1, BATCH_MS * 1_000 // every_us))
        return max(1, -(-(ahead_us - (burst - group) * every_us) // 1_000))

    def _grant(self, ask: FlowRequest) -> bool:
        now_ms, limits = self._now_ms, self._limits
        held = self._holds(ask)
        if limits.counts_slots:
            if not held and ask.job_id in self._slots:
                self._drop(ask.job_id)
            if not held:
                self._tenants[ask.tenant] = self._tenants.get(ask.tenant, 0) + 1
            self._slots[ask.job_id] = Slot(ask.lease_id, ask.tenant, now_ms)
        if self._bucket is not None:
            self._due_us = self._paid(self._due_us, self._bucket)
        if self._of_tenant is not None:
            due_us = self._tenant_due_us.get(ask.tenant, 0)
            self._tenant_due_us[ask.tenant] = self._paid(due_us, self._of_tenant)
        breaker = self._breaker
        if breaker is None or limits.breaker is None:
            return False
        self._breaker = msgspec.structs.replace(breaker, probe_job_id=ask.job_id, probe_lease_id=ask.lease_id)
        return True

    def _paid(self, due_us: int, bucket: _Bucket) -> int:
        return max(self._leave_us, bucket.bounded(due_us, self._leave_us)) + bucket.every_us

    def _drop(self, job_id: str) -> None:
        slot = self._slots.pop(job_id)
        self._tenants[slot.tenant] -= 1

    def _tenants_due(self) -> dict[str, int]:
        """Without those that have waited long enough to be as good as new."""
        now_us = self._now_ms * 1_000
        return {tenant: due_us for tenant, due_us in self._tenant_due_us.items() if due_us > now_us}


def effective_rate(state: FlowState, limits: ServiceLimits, now_ms: int) -> tuple[Rate | None, float]:
    """The rate that holds, and which share of it a service gets that asked for less."""
    slow = state.slow
    share = 1.0 if slow is None else slow.share_at(now_ms)
    if slow is None or share >= 1:
        return limits.rate, 1.0
    return limits.rate or slow.rate, share


def release(state: FlowState, ended: Mapping[str, str]) -> FlowState:
    """Gives up the places of attempts that are over: leases by job."""
    gone = [job_id for job_id, slot in state.slots.items() if ended.get(job_id) == slot.lease_id]
    if not gone:
        return state
    slots = {job_id: slot for job_id, slot in state.slots.items() if job_id not in gone}
    return msgspec.structs.replace(state, slots=slots)


def slowed(state: FlowState, limits: ServiceLimits, measured: Rate, now_ms: int) -> FlowState:
    """The service asked for less. `measured`: what it had lately, for one that has no rate."""
    rate, share = effective_rate(state, limits, now_ms)
    less = SlowDown(share=max(SLOW_SHARE_MIN, share / 2), since_ms=now_ms, rate=rate or measured)
    return msgspec.structs.replace(state, slow=less)


def opened(state: FlowState, rule: BreakerRule, failures: int, error: str, now_ms: int) -> FlowState:
    if state.breaker is not None:
        return state
    breaker = OpenBreaker(
        opened_at_ms=now_ms, failures=failures, probe_at_ms=now_ms + rule.probe_every_ms, error=error
    )
    return msgspec.structs.replace(state, breaker=breaker)


def probe_failed(state: FlowState, rule: BreakerRule, lease_id: str, error: str, now_ms: int) -> FlowState:
    """The next probe is due after twice the span, up to a bound."""
    breaker = state.breaker
    if breaker is None or breaker.probe_lease_id != lease_id:
        return state
    times = min(2 ** min(breaker.probes + 1, 8), PROBE_WAIT_TIMES_MAX)
    after = msgspec.structs.replace(
        breaker,
        failures=breaker.failures + 1,
        probes=breaker.probes + 1,
        probe_at_ms=now_ms + times * rule.probe_every_ms,
        probe_job_id=None,
        probe_lease_id=None,
        error=error or breaker.error,
    )
    return msgspec.structs.replace(state, breaker=after)


def probe_given_up(state: FlowState, lease_id: str) -> FlowState:
    """It ended without an answer of the service: the next attempt looks instead."""
    breaker = state.breaker
    if breaker is None or breaker.probe_lease_id != lease_id:
        return state
    after = msgspec.structs.replace(breaker, probe_job_id=None, probe_lease_id=None)
    return msgspec.structs.replace(state, breaker=after)


def closed(state: FlowState) -> FlowState:
    return state if state.breaker is None else msgspec.structs.replace(state, breaker=None)


class ActivePause(msgspec.Struct, frozen=True, kw_only=True):
    """A pause of a service, a tenant or a request type."""

    kind: str
    name: str
    since_ms: int
    reason: str | None = None


class FlowHold(msgspec.Struct, frozen=True, kw_only=True):
    """What keeps one attempt from leaving. `in_use` of `limit` places; `rate`, and how many `before` it wait
    in its lane, where that is known (`more`: or more)."""

    reason: FlowReason
    service: str
    in_use: int = 0
    limit: int = 0
    rate: Rate | None = None
    share: float = 1.0
    breaker: OpenBreaker | None = None
    pause: ActivePause | None = None
    before: int | None = None
    more: bool = False


def hold(
    state: FlowState, limits: ServiceLimits, service: str, tenant: str, wait: FlowWait, now_ms: int
) -> FlowHold:
    reason = wait.reason
    rate, share = effective_rate(state, limits, now_ms)
    of_tenant = reason is FlowReason.TENANT_SLOTS
    in_use = sum(not of_tenant or slot.tenant == tenant for slot in state.slots.values())
    return FlowHold(
        reason=reason,
        service=service,
        in_use=in_use,
        limit=(limits.tenant_concurrency if of_tenant else limits.concurrency) or 0,
        rate=limits.tenant_rate if reason is FlowReason.TENANT_RATE else rate,
        share=1.0 if reason is FlowReason.TENANT_RATE else share,
        breaker=state.breaker,
    )
