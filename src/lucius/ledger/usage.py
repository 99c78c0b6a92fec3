"""What services reported that they used, by tenant, day and service.

In: a row for each RESULT that counts, written in the commit that applies it (where a commit cannot span,
before it, as other announcements are). Its key names the attempt, so it counts once however often it is
written. Out: sums.

The rows of a tenant stand in one partition: the sums of its days, and beside them the results that were not
added to them yet. A duty adds those up a page at a time, in one commit on every store, so that a reader finds
few. The day is the one (UTC) in which the attempt began.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from lucius.core.model import Event, Job, JobRecord
from lucius.core.usage import added
from lucius.ledger.quarantine import Quarantine, read_page
from lucius.ledger.rows import RowDecoder, encode
from lucius.ledger.store import Conflict, Op, Row, TableStore, delete, discard, insert, put, replace

PAGE_ROWS_MAX: Final = 1_000
RESULTS_READ_MAX: Final = 50_000
SUMS_READ_MAX: Final = 20_000
ADDED_AT_ONCE_MAX: Final = 90  # a commit takes a hundred rows of a partition
LOOKS_MAX: Final = 5
_SUM, _RESULT = "s#", "r#"


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """Of one RESULT. `at_ms`: when it was applied."""

    service: str
    at_ms: int
    usage: dict[str, int | float]


class UsageSum(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of one day at one service. `results`: how many reported something."""

    results: int = 0
    usage: dict[str, int | float] = {}

    def plus(self, other: "UsageSum") -> "UsageSum":
        return UsageSum(results=self.results + other.results, usage=added(self.usage, other.usage))


class DailyUsage(msgspec.Struct, frozen=True, kw_only=True):
    """`day`: as 20260127."""

    day: str
    service: str
    sum: UsageSum


_row = RowDecoder(UsageRow)
_sum = RowDecoder(UsageSum)


def row_decoder(key: str) -> Callable[[Row], object] | None:
    """What reads the row of this key."""
    return _sum if key.startswith(_SUM) else _row if key.startswith(_RESULT) else None


def usage_partition(tenant_norm: str) -> str:
    return f"usage#{tenant_norm}"


def day_of(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y%m%d")


def usage_puts(table: str, before: JobRecord, job: Job, events: Sequence[Event]) -> list[Op]:
    """The rows of what a commit reports. `before`: the record when the results came."""
    ops = []
    for event in events:
        usage, step = event.data.get("usage"), before.step(event.step_id or "")
        if not usage or step is None:
            continue
        day = day_of(step.attempt_began_at_ms or event.at_ms)
        key = f"{_RESULT}{day}#{step.service}#{job.job_id}#{step.step_id}#{event.attempt_no or 0:03d}"
        row = UsageRow(service=step.service, at_ms=event.at_ms, usage=usage)
        ops.append(put(table, usage_partition(job.tenant_norm), key, encode(row)))
    return ops


class UsageSums:
    def __init__(self, store: TableStore, table: str, quarantine: Quarantine) -> None:
        self._store = store
        self._table = table
        self._quarantine = quarantine

    async def read(self, tenant_norm: str, first_day: str, last_day: str) -> list[DailyUsage]:
        """Of each day and service. Results that are added to a sum while it is read count once."""
        for _ in range(LOOKS_MAX):
            sums = await self._sums(tenant_norm, first_day, last_day)
            results = await self._results(tenant_norm, first_day, last_day)
            if await self._sums(tenant_norm, first_day, last_day) == sums:
                break
        found = {place: each for place, (each, _) in sums.items()}
        for key, row in results:
            place = (_day_in(key), row.service)
            one = UsageSum(results=1, usage=row.usage)
            found[place] = found.get(place, UsageSum()).plus(one)
        return [
            DailyUsage(day=day, service=service, sum=each) for (day, service), each in sorted(found.items())
        ]

    async def _sums(
        self, tenant_norm: str, first_day: str, last_day: str
    ) -> dict[tuple[str, str], tuple[UsageSum, str]]:
        rows = await self._pages(tenant_norm, f"{_SUM}{first_day}", f"{_SUM}{last_day}$", SUMS_READ_MAX)
        found: dict[tuple[str, str], tuple[UsageSum, str]] = {}
        for row in rows:
            day, _, service = row.key.removeprefix(_SUM).partition("#")
            found[day, service] = (_sum(row), row.etag)
        return found

    async def _results(self, tenant_norm: str, first_day: str, last_day: str) -> list[tuple[str, UsageRow]]:
        rows = await self._pages(
            tenant_norm, f"{_RESULT}{first_day}", f"{_RESULT}{last_day}$", RESULTS_READ_MAX
        )
        return [(row.key, _row(row)) for row in rows]

    async def _pages(self, tenant_norm: str, start: str, end: str, rows_max: int) -> list[Row]:
        """Rows that can be read; the others are in quarantine."""
        found: list[Row] = []
        decode = _sum if start.startswith(_SUM) else _row
        while len(found) < rows_max:
            page = await read_page(
                self._store,
                self._quarantine,
                self._table,
                usage_partition(tenant_norm),
                lambda row: (decode(row), row)[1],
                start=start,
                end=end,
                limit=PAGE_ROWS_MAX,
            )
            found += page
            if len(page) < PAGE_ROWS_MAX:
                break
            start = f"{page[-1].key}\x00"
        return found

    async def tenants(self) -> list[str]:
        """Those that have used something, whether or not they have jobs any more."""
        found: list[str] = []
        after = (usage_partition(""), "")
        while rows := await self._store.scan(self._table, after=after, limit=1):
            partition = rows[0].partition
            if not partition.startswith(usage_partition("")):
                break
            found.append(partition.removeprefix(usage_partition("")))
            after = (f"{partition}\x00", "")  # past the rest of this one
        return found

    async def bring(self, tenant_norm: str, daily: DailyUsage) -> bool:
        """Writes a sum that comes from another ledger; False if there is one."""
        key = f"{_SUM}{daily.day}#{daily.service}"
        op = insert(self._table, usage_partition(tenant_norm), key, encode(daily.sum))
        try:
            await self._store.commit([op])
        except Conflict:
            return False
        return True

    async def add_up(self, tenant_norm: str, until_ms: int) -> int:
        """Adds results that were applied by then to the sums of their days; how many. Another process may do
        the same: one of both is refused."""
        partition, together = usage_partition(tenant_norm), 0
        start, end = _RESULT, "r$"
        while True:
            page = await read_page(
                self._store,
                self._quarantine,
                self._table,
                partition,
                lambda row: (row, _row(row)),
                start=start,
                end=end,
                limit=ADDED_AT_ONCE_MAX,
            )
            groups: dict[tuple[str, str], list[tuple[Row, UsageRow]]] = {}
            for row, result in page:
                if result.at_ms <= until_ms:
                    groups.setdefault((_day_in(row.key), result.service), []).append((row, result))
            for (day, service), results in groups.items():
                together += await self._add(partition, f"{_SUM}{day}#{service}", results)
            if len(page) < ADDED_AT_ONCE_MAX:
                return together
            start = f"{page[-1][0].key}\x00"

    async def has_results(self, tenant_norm: str) -> bool:
        """Whether there are any that no sum has yet."""
        rows = await self._store.query(
            self._table, usage_partition(tenant_norm), start=_RESULT, end="r$", limit=1
        )
        return bool(rows)

    async def expire(self, tenant_norm: str, until_ms: int) -> None:
        """Removes some sums of days before that."""
        partition, end = usage_partition(tenant_norm), f"{_SUM}{day_of(max(0, until_ms))}"
        rows = await self._store.query(self._table, partition, start=_SUM, end=end, limit=ADDED_AT_ONCE_MAX)
        if rows:
            await self._store.commit([discard(self._table, partition, row.key) for row in rows])

    async def _add(self, partition: str, key: str, results: Sequence[tuple[Row, UsageRow]]) -> int:
        there = await self._store.get(self._table, partition, key)
        total = UsageSum() if there is None else _sum(there)
        for _, result in results:
            total = total.plus(UsageSum(results=1, usage=result.usage))
        body = encode(total)
        write = (
            insert(self._table, partition, key, body)
            if there is None
            else replace(self._table, partition, key, body, there.etag)
        )
        gone = [delete(self._table, partition, row.key, row.etag) for row, _ in results]
        try:
            await self._store.commit([write, *gone])
        except Conflict:
            return 0
        return len(results)


def _day_in(key: str) -> str:
    return key.removeprefix(_RESULT).partition("#")[0]
