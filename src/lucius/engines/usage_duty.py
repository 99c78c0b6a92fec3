"""Keeps the sums of what services report short to read.

In: commits, which say whose results reported something. Out: results added to the sums of their days, and
sums that expired removed. What another process wrote and did not get to is found by a walk over all tenants
now and then, where this process does that.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from lucius.core.model import Event, JobRecord
from lucius.ledger.name_index import NameIndex
from lucius.ledger.store import StoreError
from lucius.ledger.usage import UsageSums

EVERY_SECONDS: Final = 10.0
WALK_EVERY_MS: Final = 3_600_000
# Where commits cannot span, a row is there before its commit, which may come again after a fault.
SETTLED_AFTER_MS: Final = 600_000
KEPT_MS: Final = 400 * 86_400_000

log = structlog.get_logger("lucius.usage")


class UsageDuty:
    def __init__(
        self, sums: UsageSums, tenants: NameIndex, *, now_ms: Callable[[], int], spans: bool, walks: bool
    ) -> None:
        """`spans`: whether the rows were written in the commits that they are of. `walks`: whether to look
        for those of other processes."""
        self._sums = sums
        self._tenants = tenants
        self._now_ms = now_ms
        self._settled_after_ms = 0 if spans else SETTLED_AFTER_MS
        self._walks = walks
        self._walk_at_ms = now_ms()
        self._fresh: dict[str, int] = {}  # since when a tenant has rows of this process

    def watch(self, before: JobRecord | None, after: JobRecord, events: Sequence[Event]) -> None:
        if before is not None and after.job.usage is not before.job.usage:
            self._fresh.setdefault(after.job.tenant_norm, self._now_ms())

    async def run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            try:
                await self.look()
            except StoreError as fault:
                log.warning("usage_not_added_up", error=str(fault))

    async def look(self) -> int:
        """How many results were added to sums."""
        now_ms = self._now_ms()
        until_ms, together = now_ms - self._settled_after_ms, 0
        for tenant, since_ms in tuple(self._fresh.items()):
            if since_ms > until_ms:
                continue
            del self._fresh[tenant]  # what is applied from here on comes again
            try:
                together += await self._sums.add_up(tenant, until_ms)
            except BaseException:
                self._fresh.setdefault(tenant, since_ms)
                raise
            if await self._sums.has_results(tenant):
                self._fresh.setdefault(tenant, now_ms)
        if self._walks and now_ms >= self._walk_at_ms:
            self._walk_at_ms = now_ms + WALK_EVERY_MS
            async for page in self._tenants.pages():
                for row in page:
                    together += await self._sums.add_up(row.key, until_ms)
                    await self._sums.expire(row.key, now_ms - KEPT_MS)
        return together
