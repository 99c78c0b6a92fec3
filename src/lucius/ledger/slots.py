"""In-flight slots: one row a (tenant, job). What others know of them is a cache, rebuilt by reading."""

import msgspec

from lucius.core.states import Mode
from lucius.ledger.jobs import JobLedger
from lucius.ledger.rows import SlotRow

PAGE_ROWS_MAX = 1_000

_row = msgspec.json.Decoder(SlotRow)


class Slots:
    def __init__(self, ledger: JobLedger) -> None:
        self._store = ledger.store
        self._t = ledger.tables

    async def of(self, tenant_norm: str) -> dict[str, Mode]:
        """The tenant's jobs in flight, by id."""
        found: dict[str, Mode] = {}
        start = ""
        while True:
            rows = await self._store.query(self._t.inflight, tenant_norm, start=start, limit=PAGE_ROWS_MAX)
            for row in rows:
                burst = _row.decode(row.body).mode == Mode.BURST
                found[row.key] = Mode.BURST if burst else Mode.DEFAULT
            if len(rows) < PAGE_ROWS_MAX:
                return found
            start = rows[-1].key + "\x00"
