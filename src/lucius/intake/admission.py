"""Who may come in: limits on the jobs in flight, of a tenant, of BURST, of all.

Counts are caches. A slot is reserved here before the job is created and given back when the job ends; the
rows in the ledger are the truth, and counting them again repairs every drift.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec

from lucius.core.model import Event, JobRecord
from lucius.core.refusal import Code, Refused
from lucius.core.states import Mode
from lucius.ledger.known import KnownNames
from lucius.ledger.slots import Slots

RETRY_AFTER_TENANT_SECONDS = 5
RETRY_AFTER_SYSTEM_SECONDS = 10


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    tenant_max: int = 1_000
    total_max: int = 50_000
    burst_max: int = 10_000


class Admission:
    def __init__(self, slots: Slots, tenants: KnownNames, limits: Limits) -> None:
        self._slots = slots
        self._names = tenants
        self.limits = limits
        self._tenants: Counter[str] = Counter()
        self._total = 0
        self._burst = 0
        self._changes = 0

    @property
    def by_tenant(self) -> dict[str, int]:
        return {tenant: count for tenant, count in self._tenants.items() if count > 0}

    async def recount(self) -> None:
        """Counts the rows. What changes while it counts makes it count again, up to a few times."""
        for _ in range(3):
            changes = self._changes
            tenants: Counter[str] = Counter()
            burst = 0
            for tenant in await self._names.all():
                count = await self._slots.count(tenant)
                if count.total:
                    tenants[tenant] = count.total
                    burst += count.burst
            if changes == self._changes:
                self._tenants, self._burst, self._total = tenants, burst, tenants.total()
                return

    async def reserve(self, tenant_norm: str, mode: Mode) -> Refused | None:
        """Takes a slot, or says why not. A reserved slot is given back with `release`."""
        await self._names.add(tenant_norm)
        refused = self.refusal(tenant_norm, mode)
        if refused is None:
            self._add(tenant_norm, mode, 1)
        return refused

    def refusal(self, tenant_norm: str, mode: Mode) -> Refused | None:
        limits = self.limits
        if self._tenants[tenant_norm] >= limits.tenant_max:
            return Refused(
                Code.TENANT_LIMIT,
                f"the tenant has {limits.tenant_max} jobs in flight, its limit",
                retry_after_seconds=RETRY_AFTER_TENANT_SECONDS,
            )
        if self._total >= limits.total_max:
            return _saturated(f"{limits.total_max} jobs are in flight, the limit")
        if mode is Mode.BURST and self._burst >= limits.burst_max:
            return _saturated(f"{limits.burst_max} BURST jobs are in flight, the limit")
        return None

    def release(self, tenant_norm: str, mode: Mode) -> None:
        self._add(tenant_norm, mode, -1)

    def watch(self, before: JobRecord | None, after: JobRecord, events: Sequence[Event]) -> None:
        if before is not None and after.job.terminal and not before.job.terminal:
            self.release(after.job.tenant_norm, after.job.mode)

    def _add(self, tenant_norm: str, mode: Mode, count: int) -> None:
        self._changes += 1
        self._total = max(0, self._total + count)
        left = self._tenants[tenant_norm] + count
        if left > 0:
            self._tenants[tenant_norm] = left
        else:
            self._tenants.pop(tenant_norm, None)
        if mode is Mode.BURST:
            self._burst = max(0, self._burst + count)


def _saturated(message: str) -> Refused:
    return Refused(Code.SYSTEM_SATURATED, message, retry_after_seconds=RETRY_AFTER_SYSTEM_SECONDS)
