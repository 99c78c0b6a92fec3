"""In-flight slots: one row a (tenant, job). What others know of them is a cache, rebuilt by reading."""

from lucius.core.states import Mode
from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.rows import decode_slot
from lucius.ledger.store import Place, Row, Unreadable

PAGE_ROWS_MAX = 1_000


class Slots:
    def __init__(self, ledger: JobLedger) -> None:
        self._store = ledger.store
        self._quarantine = ledger.quarantine
        self._t = ledger.tables

    async def page(self, tenant_norm: str, start: str = "") -> tuple[dict[str, Mode], str | None]:
        """Some of the tenant's jobs in flight, by id, and where to go on; None if that is all."""
        rows = await self._store.query(self._t.inflight, tenant_norm, start=start, limit=PAGE_ROWS_MAX)
        found: dict[str, Mode] = {}
        for row in rows:
            found[row.key] = self._mode(tenant_norm, row)
        return found, rows[-1].key + "\x00" if len(rows) == PAGE_ROWS_MAX else None

    def _mode(self, tenant_norm: str, row: Row) -> Mode:
        """A slot that cannot be read is taken all the same: its key says by which job. Whether it is one of
        the few for BURST is not known, and a limit had better be met early than overshot."""
        try:
            burst = decode_slot(row).mode == Mode.BURST
        except Unreadable as fault:
            self._quarantine.note(Place(self._t.inflight, tenant_norm, row.key), fault)
            burst = True
        return Mode.BURST if burst else Mode.DEFAULT
