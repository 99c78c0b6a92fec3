"""The figures of the last day and of the last months, kept so that a restart loses none of them.

In: what happened in this process (`Activity`), every few seconds. Out: rows that any process reads, and that
expire. A row holds what one process counted for one tenant in one step of time, and is written again while
the step lasts; readers add the rows of all processes up. There are three lengths of step: fine ones for the
last hour, coarse ones for a day, and days. A partition holds the rows of one length and period, so that a
window is one or two ranges, and what has expired is removed a partition at a time.

A process that dies loses the seconds since its last write.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import structlog

from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.quarantine import read_page
from lucius.ledger.rows import RowDecoder, encode
from lucius.ledger.store import Op, StoreError, discard, put
from lucius.telemetry.activity import Activity, Tally

EVERY_SECONDS: Final = 5.0
PUTS_MAX: Final = 90  # a commit takes a hundred of a partition
REMOVALS_MAX: Final = 90
TENANTS_MAX: Final = 500  # of one write; those after them are counted among all tenants alone
PAGE_ROWS_MAX: Final = 1_000
ROWS_READ_MAX: Final = 20_000
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
ALL_TENANTS: Final = ""
PERIODS: Final = "activity periods"

log = structlog.get_logger("lucius.activity")


class StepLength(msgspec.Struct, frozen=True, kw_only=True):
    """How long a step is, how much of time one partition holds, and how long that is kept."""

    name: str
    step_ms: int
    period_ms: int
    kept_ms: int

    def partition(self, at_ms: int) -> str:
        return f"activity#{self.name}#{at_ms // self.period_ms:08d}"

    def begins_ms(self, at_ms: int) -> int:
        return at_ms - at_ms % self.step_ms


FINE: Final = StepLength(name="fine", step_ms=15_000, period_ms=HOUR_MS, kept_ms=2 * HOUR_MS)
COARSE: Final = StepLength(name="coarse", step_ms=300_000, period_ms=DAY_MS, kept_ms=2 * DAY_MS)
DAILY: Final = StepLength(name="day", step_ms=DAY_MS, period_ms=30 * DAY_MS, kept_ms=400 * DAY_MS)
LENGTHS: Final = (FINE, COARSE, DAILY)


class TallyRow(msgspec.Struct, frozen=True, kw_only=True):
    tenant: str
    begins_at_ms: int
    tally: Tally


class _Nothing(msgspec.Struct, frozen=True):
    pass


class _Step:
    """What this process counted in the step that lasts."""

    def __init__(self, begins_at_ms: int) -> None:
        self.begins_at_ms = begins_at_ms
        self.by_tenant: dict[str, Tally] = {}


_decode = RowDecoder(TallyRow)


def _key(tenant: str, begins_at_ms: int, process: str = "") -> str:
    return f"{tenant}#{begins_at_ms:014d}#{process}"


class ActivityRows:
    def __init__(
        self, ledger: JobLedger, activity: Activity, process: str, *, now_ms: Callable[[], int]
    ) -> None:
        """`process`: a name that no other process has, nor had."""
        self._store, self._table, self._quarantine = ledger.store, ledger.tables.meta, ledger.quarantine
        self._activity = activity
        self._process = process
        self._now_ms = now_ms
        self._steps: dict[str, _Step] = {}
        self._periods: set[tuple[str, str]] = set()
        self._began_ms = now_ms()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            try:
                await self.write()
            except StoreError as fault:
                log.warning("activity_not_written", error=str(fault))

    async def write(self) -> None:
        """Writes what happened since the last time, into the step that lasted then."""
        fresh, at_ms, self._began_ms = self._activity.taken(), self._began_ms, self._now_ms()
        if fresh:
            together = Tally()
            for tally in fresh.values():
                together.add(tally)
            named = dict(list(fresh.items())[:TENANTS_MAX])
            for length in LENGTHS:
                await self._write(length, at_ms, {ALL_TENANTS: together, **named})
        await self._expire()

    async def _write(self, length: StepLength, at_ms: int, fresh: dict[str, Tally]) -> None:
        begins_at_ms, partition = length.begins_ms(at_ms), length.partition(at_ms)
        step = self._steps.get(length.name)
        if step is None or step.begins_at_ms != begins_at_ms:
            step = self._steps[length.name] = _Step(begins_at_ms)
        ops: list[Op] = []
        for tenant, tally in fresh.items():
            step.by_tenant.setdefault(tenant, Tally()).add(tally)
            row = TallyRow(tenant=tenant, begins_at_ms=begins_at_ms, tally=step.by_tenant[tenant])
            key = _key(tenant, begins_at_ms, self._process)
            ops.append(put(self._table, partition, key, encode(row)))
        if (length.name, partition) not in self._periods:
            # Partitions cannot be listed: what is to be removed one day is written down first.
            await self._store.commit([put(self._table, PERIODS, f"{partition}", encode(_Nothing()))])
            self._periods.add((length.name, partition))
        for first in range(0, len(ops), PUTS_MAX):
            await self._store.commit(ops[first : first + PUTS_MAX])

    async def _expire(self) -> None:
        """Removes some of what nothing asks for any more."""
        now_ms = self._now_ms()
        for length in LENGTHS:
            oldest = length.partition(max(0, now_ms - length.kept_ms))
            start = f"activity#{length.name}#"
            rows = await self._store.query(self._table, PERIODS, start=start, end=oldest, limit=1)
            for row in rows:
                old = await self._store.query(self._table, row.key, limit=REMOVALS_MAX)
                ops = [discard(self._table, row.key, each.key) for each in old]
                await self._store.commit(ops or [discard(self._table, PERIODS, row.key)])

    async def read(self, length: StepLength, tenant: str, from_ms: int, to_ms: int) -> list[TallyRow]:
        """The rows of one tenant, or of all together, whose step begins in this time; with what this process
        has counted and not yet written."""
        found: list[TallyRow] = []
        period_ms = from_ms - from_ms % length.period_ms
        while period_ms <= to_ms and len(found) < ROWS_READ_MAX:
            start, end = _key(tenant, max(0, from_ms)), _key(tenant, to_ms + 1)
            partition = length.partition(period_ms)
            while True:
                rows = await read_page(
                    self._store,
                    self._quarantine,
                    self._table,
                    partition,
                    lambda row: (row.key, _decode(row)),
                    start=start,
                    end=end,
                    limit=PAGE_ROWS_MAX,
                )
                found += [row for _, row in rows if row.tenant == tenant]
                if len(rows) < PAGE_ROWS_MAX or len(found) >= ROWS_READ_MAX:
                    break
                start = f"{rows[-1][0]}\x00"
            period_ms += length.period_ms
        return found

    async def sums(self, length: StepLength, tenants: Sequence[str], from_ms: int, to_ms: int) -> Tally:
        together = Tally()
        for tenant in tenants:
            for row in await self.read(length, tenant, from_ms, to_ms):
                together.add(row.tally)
        return together
