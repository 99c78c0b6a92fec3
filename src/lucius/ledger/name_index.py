"""Names the ledger has met: tenants and services. Partitions cannot be listed, so their names are kept.

Services stay. A tenant without work for a while is removed, so that a process which counts the slots of
all tenants does not ask about every tenant there ever was: its name is written anew while it is used, each
`AGAIN_MS`, and only one that was not for `IDLE_MS` may go, under its ETag.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import msgspec

from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.rows import RowDecoder, encode
from lucius.ledger.store import Conflict, Place, Row, Unreadable, delete, insert, put

PAGE_ROWS_MAX = 1_000
MEMORY_NAMES_MAX = 100_000
AGAIN_MS = 300_000
IDLE_MS = 3_600_000  # far more, whatever clocks say


class _Used(msgspec.Struct, frozen=True):
    at_ms: int = 0


_used = RowDecoder(_Used)


class NameIndex:
    def __init__(self, ledger: JobLedger, kind: str, *, now_ms: Callable[[], int] | None = None) -> None:
        """`now_ms`: of names that may be removed."""
        self._store = ledger.store
        self._quarantine = ledger.quarantine
        self._table = ledger.tables.meta
        self._kind = kind
        self._now_ms = now_ms
        self._written: dict[str, int] = {}  # by us, and when

    async def add(self, name: str) -> None:
        """Writes a name down: once, or again after a while."""
        now_ms = 0 if self._now_ms is None else self._now_ms()
        written_ms = self._written.get(name)
        if written_ms is not None and now_ms - written_ms < AGAIN_MS:
            return
        if self._now_ms is None:
            with suppress(Conflict):
                await self._store.commit([insert(self._table, self._kind, name, b"{}")])
        else:
            await self._store.commit([put(self._table, self._kind, name, encode(_Used(now_ms)))])
        if len(self._written) < MEMORY_NAMES_MAX or name in self._written:
            self._written[name] = now_ms

    async def all(self) -> list[str]:
        return [row.key for row in await self.rows()]

    async def rows(self) -> list[Row]:
        return [row async for page in self.pages() for row in page]

    async def pages(self) -> AsyncIterator[list[Row]]:
        start = ""
        while True:
            rows = await self._store.query(self._table, self._kind, start=start, limit=PAGE_ROWS_MAX)
            yield rows
            if len(rows) < PAGE_ROWS_MAX:
                return
            start = rows[-1].key + "\x00"

    async def forget(self, row: Row) -> None:
        """A name that nothing is kept under; it stays if it was in use lately."""
        try:
            at_ms = _used(row).at_ms
        except Unreadable as fault:
            self._quarantine.note(Place(self._table, self._kind, row.key), fault)
            return
        if self._now_ms is None or self._now_ms() - at_ms < IDLE_MS:
            return
        with suppress(Conflict):
            await self._store.commit([delete(self._table, self._kind, row.key, row.etag)])
