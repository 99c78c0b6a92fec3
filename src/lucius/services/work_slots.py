"""Places for the work of the reference services: how much of it there is at one time, and whose.

In: the name of a tenant. Out: a place, when there is one. A place comes before the document is read, so that
neither documents nor the processes that work on them ever hold more memory than the places allow. A tenant
has half of them at most, so that its documents, however long they take, do not keep those of others waiting.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec

PLACES_MAX = 4


class _SlotWaiter(msgspec.Struct, eq=False):
    tenant: str
    turn: "asyncio.Future[None]"


class WorkSlots:
    """Served in order of arrival, but for tenants who have their share."""

    def __init__(self, places_max: int = PLACES_MAX) -> None:
        self._places_max = places_max
        self._share_max = max(1, places_max // 2)
        self._taken: Counter[str] = Counter()
        self._waiters: list[_SlotWaiter] = []

    @asynccontextmanager
    async def place(self, tenant: str) -> AsyncIterator[None]:
        if self._is_free(tenant):
            self._taken[tenant] += 1
        else:
            await self._wait(tenant)
        try:
            yield
        finally:
            self._leave(tenant)

    def _is_free(self, tenant: str) -> bool:
        return self._taken.total() < self._places_max and self._taken[tenant] < self._share_max

    async def _wait(self, tenant: str) -> None:
        waiter = _SlotWaiter(tenant, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        try:
            await waiter.turn
        except asyncio.CancelledError:
            if waiter.turn.done() and not waiter.turn.cancelled():
                self._leave(tenant)  # its turn came while it was being cancelled
            with suppress(ValueError):
                self._waiters.remove(waiter)
            raise

    def _leave(self, tenant: str) -> None:
        self._taken[tenant] -= 1
        if not self._taken[tenant]:
            del self._taken[tenant]
        for waiter in list(self._waiters):
            if waiter.turn.cancelled() or waiter.turn.get_loop().is_closed():
                self._waiters.remove(waiter)
            elif self._is_free(waiter.tenant):
                self._waiters.remove(waiter)
                self._taken[waiter.tenant] += 1
                waiter.turn.set_result(None)
