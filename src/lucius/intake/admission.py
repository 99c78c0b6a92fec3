"""Who may come in: limits on the jobs in flight, of a tenant, of BURST, of all.

In: who asks, in which mode, and when. Out: a slot, or a refusal that says when one is likely to be free.
Counts are caches. A slot is reserved here before the job is created and given back when the job ends; the
rows in the ledger are the truth, and counting them again repairs every drift. Where other processes share
the store, counting again is also how their jobs are heard of.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Sequence

import msgspec

from lucius.core.model import Event, JobRecord
from lucius.core.refusal import Code, Refused
from lucius.core.states import JOB_TERMINAL, Mode
from lucius.ledger.known import KnownNames
from lucius.ledger.slots import SlotCount, Slots

# What is said while too little has ended to tell how fast jobs end.
RETRY_AFTER_TENANT_SECONDS = 5
RETRY_AFTER_SYSTEM_SECONDS = 10
RETRY_AFTER_SECONDS_MIN = 1
RETRY_AFTER_SECONDS_MAX = 60

ENDS_KEPT_MAX = 32
TENANTS_KEPT_MAX = 10_000
COUNT_TRIES_MAX = 3


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    tenant_max: int = 1_000
    total_max: int = 50_000
    burst_max: int = 10_000


class InFlight(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs are in flight: of one tenant, of all, and of those the BURST ones."""

    tenant: int
    total: int
    burst: int


class Pace:
    """How often jobs end, from the last few that did."""

    __slots__ = ("_ends_ms",)

    def __init__(self) -> None:
        self._ends_ms: deque[int] = deque(maxlen=ENDS_KEPT_MAX)

    def ended(self, at_ms: int) -> None:
        self._ends_ms.append(at_ms)

    def retry_after_seconds(self, now_ms: int, unknown_seconds: int) -> int:
        """How long until the next one ends, by the mean of the recent gaps; silence since then counts too."""
        if len(self._ends_ms) < 2:
            return unknown_seconds
        gap_ms = (max(now_ms, self._ends_ms[-1]) - self._ends_ms[0]) / (len(self._ends_ms) - 1)
        return min(max(-int(-gap_ms // 1000), RETRY_AFTER_SECONDS_MIN), RETRY_AFTER_SECONDS_MAX)


class Admission:
    def __init__(self, slots: Slots, tenants: KnownNames, limits: Limits) -> None:
        self._slots = slots
        self._names = tenants
        self.limits = limits
        self._tenants: Counter[str] = Counter()
        self._bursts: Counter[str] = Counter()
        # Reserved, and the row not yet seen to be written.
        self._pending: Counter[tuple[str, Mode]] = Counter()
        self._total = 0
        self._burst = 0
        # The tenants whose counts changed while one of them is being counted.
        self._touched: set[str] = set()
        # Tenants of whom more may be counted than there is: somebody could not learn what became of a job.
        self._doubted: set[str] = set()
        self._pace = Pace()
        self._burst_pace = Pace()
        self._tenant_paces: OrderedDict[str, Pace] = OrderedDict()

    @property
    def by_tenant(self) -> dict[str, int]:
        return {tenant: count for tenant, count in self._tenants.items() if count > 0}

    def in_flight(self, tenant_norm: str) -> InFlight:
        return InFlight(tenant=self._tenants[tenant_norm], total=self._total, burst=self._burst)

    async def recount(self) -> None:
        """Counts the rows, tenant by tenant, and takes each count as it comes: one that changes all the time
        is at most off by what changed while it was counted, and right again after the next count."""
        for row in await self._names.rows():
            tenant = row.key
            count = await self._counted(tenant)
            if not count.total and tenant not in self._tenants:
                await self._names.forget(row)
        self._touched.clear()

    async def _counted(self, tenant: str) -> SlotCount:
        doubted = tenant in self._doubted
        self._doubted.discard(tenant)  # who doubts from here on is heard the next time
        try:
            for _ in range(COUNT_TRIES_MAX):
                self._touched.discard(tenant)
                count = await self._slots.count(tenant)
                if tenant not in self._touched:
                    break
        except BaseException:
            if doubted:
                self._doubted.add(tenant)
            raise
        self._set(tenant, count)
        return count

    async def reserve(self, tenant_norm: str, mode: Mode, now_ms: int) -> Refused | None:
        """Takes a slot, or says why not. One that no job was created for is given back with `release`; where
        nobody knows whether one was, `doubt` says so. Nobody is refused for a doubt."""
        refused = self.refusal(tenant_norm, mode, now_ms)
        while refused is not None and self._doubted:
            await self._counted(next(iter(self._doubted)))
            refused = self.refusal(tenant_norm, mode, now_ms)
        if refused is not None:
            return refused
        self._pending[tenant_norm, mode] += 1
        self._add(tenant_norm, mode, 1)
        try:
            await self._names.add(tenant_norm)
        except BaseException:
            self.release(tenant_norm, mode)
            raise
        return None

    def refusal(self, tenant_norm: str, mode: Mode, now_ms: int) -> Refused | None:
        """Why a command would not be taken now; None if it would."""
        limits = self.limits
        if self._tenants[tenant_norm] >= limits.tenant_max:
            pace = self._tenant_paces.get(tenant_norm) or Pace()
            return Refused(
                Code.TENANT_LIMIT,
                f"the tenant has {limits.tenant_max} jobs in flight, its limit",
                retry_after_seconds=pace.retry_after_seconds(now_ms, RETRY_AFTER_TENANT_SECONDS),
            )
        if self._total >= limits.total_max:
            return _saturated(f"{limits.total_max} jobs are in flight, the limit", self._pace, now_ms)
        if mode is Mode.BURST and self._burst >= limits.burst_max:
            message = f"{limits.burst_max} BURST jobs are in flight, the limit"
            return _saturated(message, self._burst_pace, now_ms)
        return None

    def release(self, tenant_norm: str, mode: Mode) -> None:
        """Gives a slot back that was reserved in vain."""
        self._written(tenant_norm, mode)
        self._add(tenant_norm, mode, -1)

    def doubt(self, tenant_norm: str, mode: Mode) -> None:
        """Nobody knows whether the job was created that a slot was reserved for. It counts until the rows are
        counted again: to admit too many would break the limit, and to refuse somebody for it is avoided."""
        self._written(tenant_norm, mode)
        self._doubted.add(tenant_norm)

    def watch(self, before: JobRecord | None, after: JobRecord, events: Sequence[Event]) -> None:
        job = after.job
        if before is None:
            self._written(job.tenant_norm, job.mode)
        if job.state in JOB_TERMINAL and (before is None or before.job.state not in JOB_TERMINAL):
            self._add(job.tenant_norm, job.mode, -1)
            self._ended(job.tenant_norm, job.mode, job.completed_at_ms or job.updated_at_ms)

    def _ended(self, tenant_norm: str, mode: Mode, at_ms: int) -> None:
        pace = self._tenant_paces.setdefault(tenant_norm, Pace())
        self._tenant_paces.move_to_end(tenant_norm)
        if len(self._tenant_paces) > TENANTS_KEPT_MAX:
            self._tenant_paces.popitem(last=False)
        pace.ended(at_ms)
        self._pace.ended(at_ms)
        if mode is Mode.BURST:
            self._burst_pace.ended(at_ms)

    def _written(self, tenant_norm: str, mode: Mode) -> None:
        self._touched.add(tenant_norm)
        left = self._pending[tenant_norm, mode] - 1
        if left > 0:
            self._pending[tenant_norm, mode] = left
        else:
            self._pending.pop((tenant_norm, mode), None)

    def _set(self, tenant_norm: str, count: SlotCount) -> None:
        # What is reserved may have its row already, where rows are written one by one, or not: a job must
        # not be counted twice, and what is known here says which it is.
        pending_burst = self._pending[tenant_norm, Mode.BURST]
        pending = pending_burst + self._pending[tenant_norm, Mode.DEFAULT]
        total = min(max(self._tenants[tenant_norm], count.total), count.total + pending)
        burst = min(max(self._bursts[tenant_norm], count.burst), count.burst + pending_burst)
        self._total += total - self._tenants[tenant_norm]
        self._burst += burst - self._bursts[tenant_norm]
        _keep(self._tenants, tenant_norm, total)
        _keep(self._bursts, tenant_norm, burst)

    def _add(self, tenant_norm: str, mode: Mode, change: int) -> None:
        self._touched.add(tenant_norm)
        total = max(0, self._tenants[tenant_norm] + change)
        self._total += total - self._tenants[tenant_norm]
        _keep(self._tenants, tenant_norm, total)
        if mode is Mode.BURST:
            burst = max(0, self._bursts[tenant_norm] + change)
            self._burst += burst - self._bursts[tenant_norm]
            _keep(self._bursts, tenant_norm, burst)


def _keep(counts: Counter[str], name: str, count: int) -> None:
    """Names that count nothing are forgotten, so that a counter holds no more names than there are jobs."""
    if count > 0:
        counts[name] = count
    else:
        counts.pop(name, None)


def _saturated(message: str, pace: Pace, now_ms: int) -> Refused:
    seconds = pace.retry_after_seconds(now_ms, RETRY_AFTER_SYSTEM_SECONDS)
    return Refused(Code.SYSTEM_SATURATED, message, retry_after_seconds=seconds)
