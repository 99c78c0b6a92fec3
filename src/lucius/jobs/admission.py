"""Who may come in: limits on the jobs in flight, of a tenant, of each mode, of all.

In: who asks, for which job, in which mode, and when. Out: a slot, or a refusal that says when one is likely
to be free. What is known here is a cache, by job id, so that nothing is counted or given back twice. A slot
is reserved here before the job is created and given back when the job ends; the rows in the ledger are the
truth, and reading them again repairs every drift. Where other processes share the store, that is also how
their jobs are heard of. A store that counts rows in its commits (PostgreSQL) has the last word: there the
limits hold over all processes.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from lucius.core.model import Event, JobRecord
from lucius.core.refusal import Code, Refused
from lucius.core.states import JOB_TERMINAL, Mode
from lucius.ledger.name_index import NameIndex
from lucius.ledger.slots import Slots
from lucius.ledger.store import Bound, RowScope, StoreError

# What is said while too little has ended to tell how fast jobs end.
RETRY_AFTER_TENANT_SECONDS = 5
RETRY_AFTER_SYSTEM_SECONDS = 10
RETRY_AFTER_SECONDS_MIN = 1
RETRY_AFTER_SECONDS_MAX = 60

ENDS_KEPT_MAX = 32
TENANTS_KEPT_MAX = 10_000
# How often a tenant's rows are read because a command is to be refused, and of how many in doubt at once.
LOOK_EVERY_MS = 1_000
DOUBTS_MAX = 8
# A store may answer without ever waiting: after so many rows, about a millisecond, the event loop goes on
# with other work. To ask for a tenant takes as long as to read some rows.
SLICE_ROWS_MAX = 500
TENANT_ROWS = 6


class InFlightLimits(msgspec.Struct, frozen=True, kw_only=True):
    tenant_max: int = 1_000
    total_max: int = 50_000
    default_max: int = 50_000
    burst_max: int = 10_000

    def mode_max(self, mode: Mode) -> int:
        return self.burst_max if mode is Mode.BURST else self.default_max

    def bounds(self, mode: Mode, tenant_max: int | None = None) -> tuple[Bound, ...]:
        """For a store that counts rows: how many slots there may be, with that of a new job. `tenant_max`:
        the tenant's own."""
        own = self.tenant_max if tenant_max is None else tenant_max
        bounds = (Bound(RowScope.PARTITION, own), Bound(RowScope.TABLE, self.total_max))
        if mode is not Mode.BURST and self.default_max >= self.total_max:
            return bounds  # each count costs the commit a row that it locks
        return (*bounds, Bound(RowScope.BODY, self.mode_max(mode)))


class InFlightCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs are in flight: of one tenant, of all, and of those the BURST ones."""

    tenant: int
    total: int
    burst: int

    @property
    def default(self) -> int:
        return self.total - self.burst


class CompletionRate:
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


class _Slices:
    """Cuts a long piece of work, so that other work is done in between."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows = 0

    async def did(self, rows: int) -> None:
        self._rows += rows
        if self._rows >= SLICE_ROWS_MAX:
            self._rows = 0
            await asyncio.sleep(0)


class _Count:
    """A tenant's jobs as far as their rows were read, with what came and went meanwhile."""

    __slots__ = ("bursts", "found", "rows", "went")

    def __init__(self) -> None:
        self.found: dict[str, Mode] = {}
        self.bursts = 0
        self.rows = 0
        self.went: set[str] = set()

    def read(self, page: dict[str, Mode]) -> None:
        self.rows += len(page)
        for job_id, mode in page.items():
            if job_id not in self.went:
                self._add(job_id, mode)

    def came(self, job_id: str, mode: Mode) -> None:
        self.went.discard(job_id)
        self._add(job_id, mode)

    def gone(self, job_id: str) -> None:
        self.went.add(job_id)
        self.bursts -= self.found.pop(job_id, None) is Mode.BURST

    def _add(self, job_id: str, mode: Mode) -> None:
        if job_id not in self.found:
            self.found[job_id] = mode
            self.bursts += mode is Mode.BURST


class Admission:
    def __init__(
        self,
        slots: Slots,
        tenants: NameIndex,
        limits: InFlightLimits,
        tenant_limits: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """`tenant_limits`: of tenants that have one of their own, asked for each command."""
        self._slots = slots
        self._names = tenants
        self.limits = limits
        self._tenant_limits = tenant_limits
        self._jobs: dict[str, dict[str, Mode]] = {}  # of each tenant, by id
        # Of each tenant: reserved, and the row not yet seen to be written.
        self._pending: dict[str, dict[str, Mode]] = {}
        self._bursts: dict[str, int] = {}  # of each tenant that has any
        self._total = 0
        self._burst = 0
        self._counting: dict[str, list[_Count]] = {}
        # Tenants of whom more may be counted than there is: a caller could not learn what became of a job.
        self._doubted: dict[str, None] = {}
        self._looks: dict[str, asyncio.Future[None]] = {}
        self._looked_ms: dict[str, int] = {}
        self._pace = CompletionRate()
        self._mode_paces = {mode: CompletionRate() for mode in Mode}
        self._tenant_paces: OrderedDict[str, CompletionRate] = OrderedDict()

    @property
    def by_tenant(self) -> dict[str, int]:
        return {tenant: len(jobs) for tenant, jobs in self._jobs.items()}

    def tenant_max(self, tenant_norm: str) -> int:
        return self._tenant_limits().get(tenant_norm, self.limits.tenant_max)

    def in_flight(self, tenant_norm: str) -> InFlightCounts:
        tenant = len(self._jobs.get(tenant_norm, ()))
        return InFlightCounts(tenant=tenant, total=self._total, burst=self._burst)

    async def recount(self) -> None:
        """Reads the rows, tenant by tenant, and believes them, but for what changes meanwhile. It keeps the
        event loop for no more than a slice."""
        self._looked_ms.clear()
        slices = _Slices()
        async for page in self._names.pages():
            await slices.did(len(page))
            for row in page:
                tenant = row.key
                if not await self._count(tenant, slices) and tenant not in self._jobs:
                    await self._names.forget(row)

    async def _count(self, tenant: str, slices: _Slices) -> int:
        """How many rows there are."""
        count = _Count()
        counting = self._counting.setdefault(tenant, [])
        counting.append(count)
        doubted = tenant in self._doubted
        self._doubted.pop(tenant, None)  # who doubts from here on is heard the next time
        start: str | None = ""
        try:
            while start is not None:
                page, start = await self._slots.page(tenant, start)
                count.read(page)
                await slices.did(TENANT_ROWS + len(page))
        except BaseException:
            if doubted:
                self._doubted[tenant] = None
            raise
        finally:
            counting.remove(count)
            if not counting:
                self._counting.pop(tenant, None)
        for job_id, mode in self._pending.get(tenant, {}).items():
            if job_id not in count.went:
                count.came(job_id, mode)
        await _taken_apart(self._set(tenant, count), slices)
        return count.rows

    async def reserve(self, tenant_norm: str, job_id: str, mode: Mode, now_ms: int) -> Refused | None:
        """Takes a slot, or says why not; a job that has one needs no other. One that no job was created for
        is given back with `release`; where it is not known whether one was, `doubt` says so."""
        if job_id in self._jobs.get(tenant_norm, ()):
            return None
        refused = self.refusal(tenant_norm, mode, now_ms)
        if refused is not None:
            await self._look_again(tenant_norm, refused, now_ms)
            refused = self.refusal(tenant_norm, mode, now_ms)
        if refused is not None:
            return refused
        self._pending.setdefault(tenant_norm, {})[job_id] = mode
        self._take(tenant_norm, job_id, mode)
        try:
            await self._names.add(tenant_norm)
        except BaseException:
            self.release(tenant_norm, job_id)
            raise
        return None

    async def _look_again(self, tenant_norm: str, refused: Refused, now_ms: int) -> None:
        """No command is refused for an end that was not heard of, or a job that was never created: the rows
        say how many there are. They are looked at now and then, and where they cannot be, the refusal
        stands."""
        tenants = [tenant_norm] if refused.code is Code.TENANT_LIMIT else [*self._doubted][:DOUBTS_MAX]
        for tenant in tenants:
            await self._look(tenant, now_ms)

    async def _look(self, tenant: str, now_ms: int) -> None:
        if (other := self._looks.get(tenant)) is not None:
            await asyncio.wait({other})
            return
        looked_ms = self._looked_ms.get(tenant)
        if looked_ms is not None and 0 <= now_ms - looked_ms < LOOK_EVERY_MS and tenant not in self._doubted:
            return
        self._looked_ms[tenant] = now_ms
        over = self._looks[tenant] = asyncio.get_running_loop().create_future()
        try:
            with suppress(StoreError):
                await self._count(tenant, _Slices())
        finally:
            del self._looks[tenant]
            over.set_result(None)

    def refusal(self, tenant_norm: str, mode: Mode, now_ms: int) -> Refused | None:
        """Why a command would not be taken now; None if it would."""
        counts = self.in_flight(tenant_norm)
        if counts.tenant >= self.tenant_max(tenant_norm):
            return self._refused(RowScope.PARTITION, tenant_norm, mode, now_ms)
        if counts.total >= self.limits.total_max:
            return self._refused(RowScope.TABLE, tenant_norm, mode, now_ms)
        of_mode = counts.burst if mode is Mode.BURST else counts.default
        if of_mode >= self.limits.mode_max(mode):
            return self._refused(RowScope.BODY, tenant_norm, mode, now_ms)
        return None

    async def refused_by(
        self, bound: Bound, tenant_norm: str, job_id: str, mode: Mode, now_ms: int
    ) -> Refused:
        """The store knows of more jobs than this process: its refusal, for a slot that was reserved."""
        self.release(tenant_norm, job_id)
        if bound.scope is RowScope.PARTITION:
            await self._look(tenant_norm, now_ms)
        return self._refused(bound.scope, tenant_norm, mode, now_ms)

    def _refused(self, scope: RowScope, tenant_norm: str, mode: Mode, now_ms: int) -> Refused:
        limits = self.limits
        if scope is RowScope.TABLE:
            return _saturated(f"{limits.total_max} jobs are in flight, the limit", self._pace, now_ms)
        if scope is RowScope.BODY:
            message = f"{limits.mode_max(mode)} {mode.value} jobs are in flight, the limit"
            return _saturated(message, self._mode_paces[mode], now_ms)
        pace = self._tenant_paces.get(tenant_norm) or CompletionRate()
        return Refused(
            Code.TENANT_LIMIT,
            f"the tenant has {self.tenant_max(tenant_norm)} jobs in flight, its limit",
            retry_after_seconds=pace.retry_after_seconds(now_ms, RETRY_AFTER_TENANT_SECONDS),
        )

    def release(self, tenant_norm: str, job_id: str) -> None:
        """Gives a slot back that was reserved in vain."""
        self._settle(tenant_norm, job_id)
        self._drop(tenant_norm, job_id)

    def doubt(self, tenant_norm: str, job_id: str) -> None:
        """It is not known whether the job was created that a slot was reserved for. It counts until the rows
        are read again: to admit too many would break the limit, and before a command is refused they are
        read."""
        self._settle(tenant_norm, job_id)
        self._doubted[tenant_norm] = None

    def watch(self, before: JobRecord | None, after: JobRecord, events: Sequence[Event]) -> None:
        job = after.job
        ended = job.state in JOB_TERMINAL
        if before is None:
            self._settle(job.tenant_norm, job.job_id)
            if not ended:
                self._take(job.tenant_norm, job.job_id, job.mode)
        if ended and (before is None or before.job.state not in JOB_TERMINAL):
            self._drop(job.tenant_norm, job.job_id)
            self._ended(job.tenant_norm, job.mode, job.completed_at_ms or job.updated_at_ms)

    def _ended(self, tenant_norm: str, mode: Mode, at_ms: int) -> None:
        pace = self._tenant_paces.setdefault(tenant_norm, CompletionRate())
        self._tenant_paces.move_to_end(tenant_norm)
        if len(self._tenant_paces) > TENANTS_KEPT_MAX:
            self._tenant_paces.popitem(last=False)
        pace.ended(at_ms)
        self._pace.ended(at_ms)
        self._mode_paces[mode].ended(at_ms)

    def _settle(self, tenant_norm: str, job_id: str) -> None:
        """It is known, or in doubt, and no longer only reserved."""
        pending = self._pending.get(tenant_norm)
        if pending is not None:
            pending.pop(job_id, None)
            if not pending:
                del self._pending[tenant_norm]

    def _take(self, tenant_norm: str, job_id: str, mode: Mode) -> None:
        for count in self._counting.get(tenant_norm, ()):
            count.came(job_id, mode)
        jobs = self._jobs.setdefault(tenant_norm, {})
        if job_id not in jobs:
            jobs[job_id] = mode
            self._total += 1
            if mode is Mode.BURST:
                self._add_bursts(tenant_norm, 1)

    def _drop(self, tenant_norm: str, job_id: str) -> None:
        for count in self._counting.get(tenant_norm, ()):
            count.gone(job_id)
        jobs = self._jobs.get(tenant_norm, {})
        mode = jobs.pop(job_id, None)
        if mode is not None:
            self._total -= 1
            if mode is Mode.BURST:
                self._add_bursts(tenant_norm, -1)
            if not jobs:
                del self._jobs[tenant_norm]

    def _set(self, tenant_norm: str, count: _Count) -> dict[str, Mode]:
        """What was known before."""
        known = self._jobs.pop(tenant_norm, {})
        if count.found:
            self._jobs[tenant_norm] = count.found
        self._total += len(count.found) - len(known)
        self._add_bursts(tenant_norm, count.bursts - self._bursts.get(tenant_norm, 0))
        return known

    def _add_bursts(self, tenant_norm: str, bursts: int) -> None:
        if bursts:
            self._burst += bursts
            self._bursts[tenant_norm] = self._bursts.get(tenant_norm, 0) + bursts
            if not self._bursts[tenant_norm]:
                del self._bursts[tenant_norm]


async def _taken_apart(jobs: dict[str, Mode], slices: _Slices) -> None:
    """To let go of a large dictionary at once takes as long as to read it."""
    while len(jobs) > SLICE_ROWS_MAX:
        for _ in range(SLICE_ROWS_MAX):
            jobs.popitem()
        await slices.did(SLICE_ROWS_MAX)


def _saturated(message: str, pace: CompletionRate, now_ms: int) -> Refused:
    seconds = pace.retry_after_seconds(now_ms, RETRY_AFTER_SYSTEM_SECONDS)
    return Refused(Code.SYSTEM_SATURATED, message, retry_after_seconds=seconds)
