"""Names the ledger has met: tenants and services. Partitions cannot be listed, so their names are kept."""

from contextlib import suppress

from lucius.ledger.jobs import JobLedger
from lucius.ledger.store import Conflict, insert

PAGE_ROWS_MAX = 1_000
MEMORY_NAMES_MAX = 100_000


class KnownNames:
    def __init__(self, ledger: JobLedger, kind: str) -> None:
        self._store = ledger.store
        self._table = ledger.tables.meta
        self._kind = kind
        self._seen: set[str] = set()

    async def add(self, name: str) -> None:
        """Writes a name down, once."""
        if name in self._seen:
            return
        with suppress(Conflict):
            await self._store.commit([insert(self._table, self._kind, name, b"{}")])
        if len(self._seen) < MEMORY_NAMES_MAX:
            self._seen.add(name)

    async def all(self) -> list[str]:
        names: list[str] = []
        start = ""
        while True:
            rows = await self._store.query(self._table, self._kind, start=start, limit=PAGE_ROWS_MAX)
            names += [row.key for row in rows]
            if len(rows) < PAGE_ROWS_MAX:
                return names
            start = rows[-1].key + "\x00"
