"""Waiting for a job to end without asking again and again."""

import asyncio
from collections.abc import Sequence

from lucius.api.shares import CallSlots
from lucius.core.model import Event, JobRecord
from lucius.core.refusal import Refused
from lucius.ledger.job_ledger import JobLedger

# This process may not be notified of what others wrote: it looks as well, this often; and where others move
# jobs without a notification, sooner at first, so that an end is not seen much later than it took to come.
LOOK_EVERY_SECONDS = 1.0
LOOK_FIRST_SECONDS = 0.025
LOOK_SHARE = 4
WAITS_MAX = 8_000


class JobWaits:
    def __init__(self, ledger: JobLedger, *, shared: bool = False, waits_max: int = WAITS_MAX) -> None:
        """`shared`: other processes move jobs too, so what this one remembers may be long out of date.
        `waits_max`: of calls that wait for a job's end or for directives."""
        self.places = CallSlots(waits_max)
        self._shared = shared
        self.notified = False  # whether other processes notify of ends (`look_again`), if not of every one
        self._ledger = ledger
        self._waiters: dict[str, set[asyncio.Future[JobRecord | None]]] = {}
        self._closed = False

    def watch(self, before: JobRecord | None, after: JobRecord, events: Sequence[Event]) -> None:
        if after.job.terminal:
            for waiter in self._waiters.get(after.job.job_id, ()):
                if not waiter.done():
                    waiter.set_result(after)

    def look_again(self, job_id: str) -> None:
        """Another process says that this job has moved: the ledger knows whether it has ended."""
        for waiter in self._waiters.get(job_id, ()):
            if not waiter.done():
                waiter.set_result(None)

    async def job(self, job_id: str, wait_ms: int, caller: str | None = None) -> JobRecord | Refused | None:
        """The job as it is when it ends, or when the time is up. `caller`: whose share of the waits it
        takes."""
        if wait_ms <= 0:
            return await self._look(job_id, fresh=True)
        waits: str | None = None
        clock = asyncio.get_running_loop().time
        began = clock()
        until = began + wait_ms / 1000
        waiter = self._enter(job_id)
        fresh = self._shared
        try:
            while True:
                # Enter first, then look: an end in between is not missed. The first look may be at what this
                # process knows, because a later one will be at the ledger.
                record = await self._look(job_id, fresh=fresh)
                now = clock()
                left = until - now
                if record is None or record.job.terminal:
                    return record
                if left <= 0 or self._closed:
                    return record if fresh else await self._look(job_id)
                if waits is None:
                    refused = self.places.refusal(record.job.tenant_norm, caller)
                    if refused is not None:
                        return refused
                    waits = record.job.tenant_norm
                    self.places.enter(waits, caller)
                await asyncio.wait({waiter}, timeout=min(self._pause_seconds(now - began), left))
                if waiter.done():
                    if (ended := waiter.result()) is not None:
                        return ended
                    self._leave(job_id, waiter)
                    waiter = self._enter(job_id)
                fresh = True
        finally:
            self._leave(job_id, waiter)
            if waits is not None:
                self.places.leave(waits, caller)

    def _pause_seconds(self, waited: float) -> float:
        if self.notified or not self._shared:
            return LOOK_EVERY_SECONDS
        return min(LOOK_EVERY_SECONDS, max(LOOK_FIRST_SECONDS, waited / LOOK_SHARE))

    async def _look(self, job_id: str, *, fresh: bool = True) -> JobRecord | None:
        loaded = await self._ledger.load(job_id, fresh=fresh)
        return None if loaded is None else loaded.record

    def close(self) -> None:
        """Ends every wait, with the job as it is."""
        self._closed = True
        for waiters in self._waiters.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _enter(self, job_id: str) -> asyncio.Future[JobRecord | None]:
        waiter: asyncio.Future[JobRecord | None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(job_id, set()).add(waiter)
        return waiter

    def _leave(self, job_id: str, waiter: asyncio.Future[JobRecord | None]) -> None:
        waiters = self._waiters[job_id]
        waiters.discard(waiter)
        if not waiters:
            del self._waiters[job_id]
