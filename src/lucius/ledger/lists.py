"""Lists of jobs, newest first: of one tenant, of all tenants, and of the finally failed.

A tenant's jobs lie in one partition a month; those of all tenants in one a lane and month, merged on reading.
A page looks at a bounded number of rows: where a filter lets few pass, a page may be short and still have a
cursor to go on from.
"""

import base64
import binascii
from heapq import merge

import msgspec

from lucius.core.model import Job
from lucius.core.routing import LANES
from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.names import (
    HOUR_MS,
    MS_MAX,
    lane_list,
    lane_partition,
    month_before,
    month_of,
    tenant_list,
)
from lucius.ledger.quarantine import read_page
from lucius.ledger.rows import ListRow, RowDecoder, decode_list, encode
from lucius.ledger.store import Conflict, Place, Row, Unreadable, insert, replace

LOOK_ROWS_MAX = 2_000
PAGE_ROWS_MAX = 250
CLOCK_SKEW_MAX_MS = 86_400_000
ANNOUNCED_AHEAD_MS = HOUR_MS
MONTHS_MAX = 100
TRIES_MAX = 10
BIRTH = ("birth", "birth")


class ListPosition(msgspec.Struct, frozen=True):
    """How far back the months go, and those outside of that: a clock that ran ahead or behind may have
    created jobs in months that are still to come, or before the first."""

    at_ms: int
    months: tuple[str, ...] = ()


_birth = RowDecoder(ListPosition)


class ListCursor(msgspec.Struct, frozen=True, kw_only=True):
    month: str
    after: str
    scope: str


class ListFilter(msgspec.Struct, frozen=True, kw_only=True):
    tenant_norm: str | None = None
    state: str | None = None
    request_type: str | None = None
    created_after_ms: int | None = None
    created_before_ms: int | None = None

    def scope(self) -> str:
        """A cursor goes on only where it came from."""
        return self.tenant_norm if self.tenant_norm is not None else "*"


class DlqFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which of the finally failed jobs; the times are those of their failing, by which the rows lie."""

    tenant_norm: str | None = None
    request_type: str | None = None
    error_code: str | None = None
    failed_after_ms: int | None = None
    failed_before_ms: int | None = None

    @property
    def of_rows(self) -> bool:
        """Whether rows must be looked at one by one; times are a range of keys."""
        return (self.tenant_norm, self.request_type, self.error_code) != (None, None, None)


ALL_DLQ = DlqFilter()


class ListedJob(msgspec.Struct, frozen=True):
    job_id: str
    cursor: str  # where a caller goes on that takes no more than up to this one


class _Entry(msgspec.Struct, frozen=True):
    """`listed` None: a row that cannot be read. Its job is missed in the list, and found by its id."""

    key: str
    listed: ListRow | None


class JobPage(msgspec.Struct, frozen=True, kw_only=True):
    jobs: tuple[ListedJob, ...]
    next_cursor: str | None

    @property
    def job_ids(self) -> tuple[str, ...]:
        return tuple(job.job_id for job in self.jobs)


def opaque(place: bytes) -> str:
    """A cursor has no meaning for the client, and goes into a URL as it is."""
    return base64.urlsafe_b64encode(place).decode().rstrip("=")


def place_in(cursor: str) -> bytes | None:
    try:
        return base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        return None


def encode_cursor(cursor: ListCursor) -> str:
    return opaque(msgspec.json.encode(cursor))


def decode_cursor(text: str) -> ListCursor | None:
    raw = place_in(text)
    if raw is None:
        return None
    try:
        cursor = msgspec.json.decode(raw, type=ListCursor)
    except msgspec.MsgspecError:
        return None
    return cursor if len(cursor.month) == 6 and cursor.month.isdecimal() else None


class Lists:
    def __init__(self, ledger: JobLedger) -> None:
        self._ledger = ledger
        self._store = ledger.store
        self._t = ledger.tables
        self._announced: set[str] = set()

    async def record_time(self, now_ms: int) -> None:
        """Says in which month jobs are created from now on: at the start of a process, which may be the first
        of this ledger, and at least once an hour, so that it is known before the month begins."""
        months = {month_of(now_ms), month_of(now_ms + ANNOUNCED_AHEAD_MS)}
        if months <= self._announced:
            return
        for _ in range(TRIES_MAX):
            row = await self._store.get(self._t.meta, *BIRTH)
            try:
                if row is None:
                    birth = ListPosition(now_ms, tuple(sorted(months)))
                    await self._store.commit([insert(self._t.meta, *BIRTH, encode(birth))])
                elif (known := self._known(row)) is None:
                    return  # months are looked through from the first one on: no job is missed
                else:
                    # The others are found by counting back.
                    first, latest = _first_month(known), month_of(now_ms)
                    kept = [m for m in {*known.months, *months} if not first <= m < latest]
                    birth = ListPosition(known.at_ms, tuple(sorted(kept)[-MONTHS_MAX:]))
                    if birth != known:
                        await self._store.commit([replace(self._t.meta, *BIRTH, encode(birth), row.etag)])
            except Conflict:
                continue  # another process has said something
            self._announced = months
            return

    def _known(self, row: Row) -> ListPosition | None:
        try:
            return _birth(row)
        except Unreadable as fault:
            self._ledger.quarantine.note(Place(self._t.meta, *BIRTH), fault)
            return None

    async def page(self, wanted: ListFilter, cursor: ListCursor | None, limit: int, now_ms: int) -> JobPage:
        found: list[ListedJob] = []
        months = await self._months(now_ms)
        last_month = max(months.last, month_of(max(0, wanted.created_after_ms or 0)))
        month, after = _starting_place(wanted, cursor, months)
        looked = 0
        while month >= last_month:
            rows, exhausted = await self._rows(wanted, month, after)
            # An empty month costs its queries too: a walk through many of them goes on with the next page.
            looked += LANES if wanted.tenant_norm is None else 1
            for row in rows:
                looked += 1
                after, listed = row.key, row.listed
                if listed is None:
                    if looked >= LOOK_ROWS_MAX:
                        return JobPage(jobs=tuple(found), next_cursor=_cursor(wanted, month, after))
                    continue
                if wanted.created_after_ms is not None and listed.created_at_ms <= wanted.created_after_ms:
                    return JobPage(jobs=tuple(found), next_cursor=None)
                if await self._passes(listed, wanted):
                    found.append(ListedJob(listed.job_id, _cursor(wanted, month, after)))
                if len(found) == limit or looked >= LOOK_ROWS_MAX:
                    return JobPage(jobs=tuple(found), next_cursor=_cursor(wanted, month, after))
            if exhausted:
                month, after = months.before(month), ""
            if looked >= LOOK_ROWS_MAX and month >= last_month:
                return JobPage(jobs=tuple(found), next_cursor=_cursor(wanted, month, after))
        return JobPage(jobs=tuple(found), next_cursor=None)

    async def dlq(self, after: str, limit: int, wanted: DlqFilter = ALL_DLQ) -> list[tuple[str, ListRow]]:
        """The next rows in the filter's span of time; the rest of it is `passes_dlq`."""
        end = None
        if wanted.failed_before_ms is not None:
            after = max(after, f"{MS_MAX - wanted.failed_before_ms:014d}$")
        if wanted.failed_after_ms is not None:
            end = f"{MS_MAX - wanted.failed_after_ms:014d}"
            if after >= end:
                return []
        pages = [await self._failed(lane, after, end, limit) for lane in range(LANES)]
        return list(merge(*pages, key=lambda found: found[0]))[:limit]

    async def passes_dlq(self, row: ListRow, wanted: DlqFilter) -> bool:
        if wanted.tenant_norm is not None and row.tenant_norm != wanted.tenant_norm:
            return False
        if wanted.request_type is not None and row.request_type.strip() != wanted.request_type.strip():
            return False
        if wanted.error_code is None:
            return True
        if row.error_code is not msgspec.UNSET:
            return row.error_code == wanted.error_code
        job = await self._job(row.job_id)
        return job is not None and job.error_code == wanted.error_code

    async def _failed(self, lane: int, after: str, end: str | None, limit: int) -> list[tuple[str, ListRow]]:
        return await read_page(
            self._store,
            self._ledger.quarantine,
            self._t.dlq,
            lane_partition(lane),
            lambda row: (row.key, decode_list(row)),
            start=f"{after}\x00" if after else "",
            end=end,
            limit=limit,
        )

    def _entry(self, partition: str, row: Row) -> _Entry:
        try:
            return _Entry(row.key, decode_list(row))
        except Unreadable as fault:
            self._ledger.quarantine.note(Place(self._t.job_index, partition, row.key), fault)
            return _Entry(row.key, None)

    async def _rows(self, wanted: ListFilter, month: str, after: str) -> tuple[list[_Entry], bool]:
        """The next rows of a month, and whether they are its last."""
        if wanted.created_before_ms is not None:
            after = max(after, f"{MS_MAX - wanted.created_before_ms:014d}$")
        if wanted.tenant_norm is not None:
            partition = tenant_list(wanted.tenant_norm, month)
            rows = await self._range(partition, after)
            return rows, len(rows) < PAGE_ROWS_MAX
        partitions = [lane_list(lane, month) for lane in range(LANES)]
        pages = [await self._range(partition, after) for partition in partitions]
        merged = list(merge(*pages, key=lambda row: row.key))
        full = [page[-1].key for page in pages if len(page) == PAGE_ROWS_MAX]
        if not full:
            return merged, True
        # Beyond the end of a full page nothing is known of its lane: stop there and come again.
        return [row for row in merged if row.key <= min(full)], False

    async def _range(self, partition: str, after: str) -> list[_Entry]:
        start = f"{after}\x00" if after else ""
        rows = await self._store.query(self._t.job_index, partition, start=start, limit=PAGE_ROWS_MAX)
        return [self._entry(partition, row) for row in rows]

    async def _passes(self, row: ListRow, wanted: ListFilter) -> bool:
        # A command may name its type with spaces around it, and keeps them.
        if wanted.request_type is not None and row.request_type.strip() != wanted.request_type.strip():
            return False
        if wanted.state is None:
            return True
        if row.state is not None:
            return row.state == wanted.state
        job = await self._job(row.job_id)
        return job is not None and job.state.value == wanted.state

    async def _job(self, job_id: str) -> Job | None:
        try:
            loaded = await self._ledger.load(job_id, fresh=True)
        except Unreadable:
            return None  # in no known state
        return None if loaded is None else loaded.record.job

    async def _months(self, now_ms: int) -> "_Months":
        row = await self._store.get(self._t.meta, *BIRTH)
        newest = month_of(now_ms + CLOCK_SKEW_MAX_MS)
        if row is None:
            return _Months(first="197001", newest=newest, others=())
        if (birth := self._known(row)) is None:
            return _Months(first="197001", newest=newest, others=())
        return _Months(first=_first_month(birth), newest=newest, others=birth.months)


class _Months(msgspec.Struct, frozen=True, kw_only=True):
    """Where jobs may stand: every month from `first` to `newest`, and `others`."""

    first: str
    newest: str
    others: tuple[str, ...]

    @property
    def last(self) -> str:
        """The one to look at last."""
        return min((self.first, *self.others))

    def has(self, month: str) -> bool:
        return self.first <= month <= self.newest or month in self.others

    def before(self, month: str) -> str:
        """The one to look at after this one; empty after the last."""
        if self.first < month <= self.newest:
            return month_before(month)
        earlier = [other for other in self.others if other < month]
        if month > self.newest >= self.first:
            earlier.append(self.newest)
        return max(earlier, default="")


def _first_month(birth: ListPosition) -> str:
    # A clock that ran a little behind may have created jobs before the birth: look one month further.
    return month_before(month_of(birth.at_ms))


def _starting_place(wanted: ListFilter, cursor: ListCursor | None, months: _Months) -> tuple[str, str]:
    """The month to begin with, and the key to go on after."""
    if cursor is not None and months.has(cursor.month):
        return cursor.month, cursor.after
    # Months are counted back: from one of a far future a walk would not arrive.
    latest, before_ms = max((months.newest, *months.others)), wanted.created_before_ms
    month = latest if before_ms is None or cursor is not None else min(latest, month_of(max(0, before_ms)))
    return (month if months.has(month) else months.before(month)), ""


def _cursor(wanted: ListFilter, month: str, after: str) -> str:
    return encode_cursor(ListCursor(month=month, after=after, scope=wanted.scope()))
