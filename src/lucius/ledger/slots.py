"""In-flight slots: one row a (tenant, job). Counts are caches, rebuilt by counting."""

import msgspec

from lucius.ledger.jobs import JobLedger
from lucius.ledger.rows import SlotRow

PAGE_ROWS_MAX = 1_000


class SlotCount(msgspec.Struct, frozen=True, kw_only=True):
    total: int
    burst: int


class Slots:
    def __init__(self, ledger: JobLedger) -> None:
        self._store = ledger.store
        self._t = ledger.tables

    async def count(self, tenant_norm: str) -> SlotCount:
        total = burst = 0
        start = ""
        while True:
            rows = await self._store.query(self._t.inflight, tenant_norm, start=start, limit=PAGE_ROWS_MAX)
            total += len(rows)
            burst += sum(msgspec.json.decode(row.body, type=SlotRow).mode == "BURST" for row in rows)
            if len(rows) < PAGE_ROWS_MAX:
                return SlotCount(total=total, burst=burst)
            start = rows[-1].key + "\x00"
