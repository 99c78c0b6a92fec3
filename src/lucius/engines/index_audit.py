"""The audit: goes through all jobs slowly, for ever, and puts right what the indexes lack or have too much.

A pass reads every job and the rows it should have, then every row of the indexes and the job it names. It is
paced by the rows it reads, so that it takes a known share of a store, and its length follows from how many
there are. What it mends is counted by kind. Nothing waits for it: where no row was ever lost it finds
nothing.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

import structlog

from lucius.engines.lane_leases import all_lanes
from lucius.ledger.index_audit import IndexAudit, IndexFinding, Place
from lucius.ledger.store import StoreError, StoreUnavailable
from lucius.telemetry import Metrics

PAGE_ROWS_MAX = 100
STRETCH_ROWS_MAX = 50  # read in one go: a store that answers at once holds the loop meanwhile
PASS_EVERY_SECONDS = 60.0
# A store whose commits may not span is out there, and each row is a request.
ROWS_PER_SECOND_HERE = 2_000
ROWS_PER_SECOND_REMOTE = 100

log = structlog.get_logger("lucius.audit")


class IndexAuditor:
    def __init__(
        self,
        audit: IndexAudit,
        *,
        rows_per_second: int,
        pass_every_seconds: float = PASS_EVERY_SECONDS,
        lanes: Callable[[], frozenset[int]] = all_lanes,
    ) -> None:
        """`rows_per_second`: 0 turns it off."""
        self._audit = audit
        self._rows_per_second = rows_per_second
        self._pass_every_seconds = pass_every_seconds
        self._lanes = lanes
        self._paced_rows = 0
        self.repairs: Counter[tuple[str, str]] = Counter()
        """By index, and what was wrong with it."""
        self.passes = 0
        self.unreadable = 0

    @property
    def rows_read(self) -> int:
        return self._audit.rows_read

    async def run(self) -> None:
        while self._rows_per_second > 0:
            await asyncio.sleep(self._pass_every_seconds)
            try:
                await self.look()
            except StoreError as fault:
                log.warning("audit_failed", error=str(fault))
            except Exception:
                log.exception("audit_failed")  # a row that was not foreseen ends this pass, not the duty
        await asyncio.Event().wait()

    async def look(self) -> int:
        """One pass; how many rows it put right."""
        before = self.repairs.total()
        await self._look_at_jobs()
        for table in self._audit.index_tables:
            await self._look_at_index(table)
        self.passes += 1
        return self.repairs.total() - before

    async def _look_at_jobs(self) -> None:
        after: Place | None = None
        while rows := await self._audit.jobs(after, PAGE_ROWS_MAX):
            for row in rows:
                try:
                    compared = await self._audit.compare(row, self._lanes())
                    while compared is not None:
                        self._note(await self._audit.mend(compared))
                        compared = await self._audit.compare_job(compared.job_id) if compared.hid else None
                except StoreUnavailable:
                    raise
                except Exception as fault:
                    # A job that cannot be read must not hide those behind it.
                    self.unreadable += 1
                    log.warning("job_not_compared", partition=row.partition, key=row.key, error=str(fault))
                await self._pace()
            if len(rows) < PAGE_ROWS_MAX:
                return
            after = rows[-1].place

    async def _look_at_index(self, table: str) -> None:
        after: Place | None = None
        while True:
            found, after = await self._audit.orphans(table, after, PAGE_ROWS_MAX, self._lanes())
            for finding in found:
                if await self._audit.remove(finding):
                    self._note([finding])
            await self._pace()
            if after is None:
                return

    def _note(self, findings: Sequence[IndexFinding]) -> None:
        for finding in findings:
            self.repairs[finding.kind.value, finding.fault.value] += 1
            log.warning(
                "index_row_repaired",
                jobId=finding.job_id,
                index=finding.kind.value,
                fault=finding.fault.value,
                place=finding.place,
            )

    async def _pace(self) -> None:
        undelivered = self._audit.rows_read - self._paced_rows
        if undelivered >= STRETCH_ROWS_MAX:
            self._paced_rows = self._audit.rows_read
            await asyncio.sleep(undelivered / self._rows_per_second if self._rows_per_second else 0)


def audit_rows_per_second(wanted: int | None, *, spans: bool) -> int:
    """The setting, or what suits the store."""
    if wanted is not None:
        return wanted
    return ROWS_PER_SECOND_HERE if spans else ROWS_PER_SECOND_REMOTE


def follow_audit(metrics: Metrics, audit: IndexAuditor) -> None:
    metrics.follow(
        "index_repairs",
        "Index rows that the audit put right, by index and what was wrong",
        ("index", "fault"),
        lambda: list(audit.repairs.items()),
    )
    for name, help_text, figure in (
        ("audit_rows", "Rows that the audit read", lambda: audit.rows_read),
        ("audit_passes", "Times that the audit went through all jobs", lambda: audit.passes),
        ("audit_unreadable", "Jobs that the audit could not read", lambda: audit.unreadable),
    ):
        metrics.follow(name, help_text, (), lambda figure=figure: [((), figure())])  # type: ignore[misc]
