"""Whether answers can get in: the API processes beside a reconciler that takes none itself.

In: the ledger. Out: the startup grace is told when no API process is there, and when one is again.
Without a broker every answer comes over HTTP, so while no API process runs (they are being restarted, or
stand still) no answer can come, and no other worker could take the attempt either: its deadline waits.

Each API process changes a row of its own every second. A reconciler goes by whether rows change, and by no
time that they name: clocks differ.
"""

import asyncio
from collections.abc import Callable

import msgspec
import structlog

from lucius.jobs.reply_backlog import StartupGrace
from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.rows import encode
from lucius.ledger.store import StoreError, discard, put

PARTITION = "doors"
EVERY_SECONDS = 1.0
OPEN_MS = 3_500
KEPT_MS = 900_000  # longer than any answer is sent again
DOORS_MAX = 1_000

log = structlog.get_logger("lucius.doors")


class OpenedAt(msgspec.Struct, frozen=True):
    beats: int


class ApiHeartbeat:
    """Says of an API process that it is there."""

    def __init__(self, ledger: JobLedger, name: str) -> None:
        """`name` must be new: a successor is another process."""
        self._store, self._table, self._name = ledger.store, ledger.tables.meta, name
        self._beats = 0

    async def beat(self) -> None:
        self._beats += 1
        await self._store.commit([put(self._table, PARTITION, self._name, encode(OpenedAt(self._beats)))])

    async def run(self) -> None:
        while True:
            try:
                await self.beat()
            except StoreError as fault:
                log.warning("door_not_shown", error=str(fault))
            await asyncio.sleep(EVERY_SECONDS)


class _SeenHeartbeat(msgspec.Struct, frozen=True):
    etag: str
    since_ms: int  # by our clock


class ApiHeartbeats:
    """Watches the API processes for a reconciler."""

    def __init__(self, ledger: JobLedger, grace: StartupGrace, *, now_ms: Callable[[], int]) -> None:
        self._store, self._table = ledger.store, ledger.tables.meta
        self._grace = grace
        self._now_ms = now_ms
        self._seen: dict[str, _SeenHeartbeat] = {}

    async def look(self) -> None:
        now_ms = self._now_ms()
        rows = await self._store.query(self._table, PARTITION, limit=DOORS_MAX)
        before, self._seen = self._seen, {}
        for row in rows:
            seen = before.get(row.key)
            if seen is None or seen.etag != row.etag:
                seen = _SeenHeartbeat(row.etag, now_ms)
            self._seen[row.key] = seen
            if now_ms - seen.since_ms >= KEPT_MS:
                await self._store.commit([discard(self._table, PARTITION, row.key)])
        if any(now_ms - seen.since_ms < OPEN_MS for seen in self._seen.values()):
            self._grace.opened()
        elif self._seen:
            self._grace.shut()

    async def run(self) -> None:
        while True:
            try:
                await self.look()
            except StoreError as fault:
                log.warning("doors_not_seen", error=str(fault))
            await asyncio.sleep(EVERY_SECONDS)
