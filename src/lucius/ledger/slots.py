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

    async def page(self, tenant_norm: str, start: str = "") -> tuple[dict[str, Mode], str | None]:
        """Some of the tenant's jobs in flight, by id, and where to go on; None if that is all."""
        rows = await self._store.query(self._t.inflight, tenant_norm, start=start, limit=PAGE_ROWS_MAX)
        found: dict[str, Mode] = {}
        for row in rows:
            burst = _row.decode(row.body).mode == Mode.BURST
            found[row.key] = Mode.BURST if burst else Mode.DEFAULT
        return found, rows[-1].key + "\x00" if len(rows) == PAGE_ROWS_MAX else None
