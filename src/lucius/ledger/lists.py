"""Lists of jobs, newest first: of one tenant, of all tenants, and of the finally failed.

A tenant's jobs lie in one partition a month; those of all tenants in one a lane and month, merged on reading.
Those that failed or were cancelled have lists of their own beside these, and open jobs are found by their
slots, so that the few are not looked for among the many that succeeded.

A page looks at a bounded number of rows: where a filter lets few pass, a page may be short, says that it is
partial, and has a cursor to go on from.
"""

import base64
import binascii
from collections.abc import Collection, Sequence
from enum import StrEnum

import msgspec

from lucius.core.model import Job
from lucius.core.routing import LANES
from lucius.core.states import JOB_OPEN, JobState
from lucius.ledger.commit_plan import LISTED_ENDS
from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.merged_ranges import MergedRanges
from lucius.ledger.name_index import NameIndex
from lucius.ledger.names import (
    HOUR_MS,
    MS_MAX,
    ended_lane_list,
    ended_tenant_list,
    lane_list,
    lane_partition,
    month_before,
    month_of,
    split_time_key,
    tenant_list,
)
from lucius.ledger.quarantine import read_page
from lucius.ledger.rows import ListRow, RowDecoder, decode_list, encode
from lucius.ledger.store import Conflict, Place, Row, Unreadable, insert, replace

LOOK_ROWS_MAX = 2_000
# What it takes to look into a job, in rows of a list.
JOB_READ_ROWS = 4
RECORD_READ_ROWS = 10
OPEN_JOBS_MAX = 10_000
OPEN_MONTH = "000000"  # they are not read by months
SLOT_PAGE_ROWS = 1_000
_OPEN_STATES = frozenset(state.value for state in JOB_OPEN)
_LISTED_ENDS = frozenset(state.value for state in LISTED_ENDS)
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


class ListSource(StrEnum):
    """Which rows a page is read from."""

    LISTS = "lists"
    ENDED = "ended"
    OPEN = "open"


class ListCursor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    month: str
    after: str
    scope: str
    source: ListSource = ListSource.LISTS


class ListFilter(msgspec.Struct, frozen=True, kw_only=True):
    """`states`: any of them; none: all. `service`: that of the step that an open job is at, or at which one
    ended that did not succeed. `job_id_part`: what the id has in it, in small letters."""

    tenant_norm: str | None = None
    states: frozenset[str] = frozenset()
    request_type: str | None = None
    service: str | None = None
    error_code: str | None = None
    created_after_ms: int | None = None
    created_before_ms: int | None = None
    job_id_part: str = ""

    def scope(self) -> str:
        """A cursor goes on only where it came from."""
        return self.tenant_norm if self.tenant_norm is not None else "*"

    @property
    def source(self) -> ListSource:
        if self.states and self.states <= _LISTED_ENDS:
            return ListSource.ENDED
        return ListSource.OPEN if self.states and self.states <= _OPEN_STATES else ListSource.LISTS


class FilterNotServed(Exception):
    """No index serves these filters together; says what to add or to leave out."""


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
    partition: str
    row: Row


class JobPage(msgspec.Struct, frozen=True, kw_only=True):
    """`partial`: the page is short because it looked at as many rows as one page may; back to
    `looked_back_to_ms`, where it is known."""

    jobs: tuple[ListedJob, ...]
    next_cursor: str | None
    partial: bool = False
    looked_back_to_ms: int | None = None

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
    def __init__(self, ledger: JobLedger, tenants: NameIndex) -> None:
        """`tenants`: those that have open jobs are among them."""
        self._ledger = ledger
        self._tenants = tenants
        self._store = ledger.store
        self._t = ledger.tables
        self._announced: set[str] = set()

    async def record_time(self, now_ms: int, *, imported: Collection[str] = ()) -> None:
        """Says in which month jobs are created from now on: at the start of a process, which may be the first
        of this ledger, and at least once an hour, so that it is known before the month begins. `imported`:
        months in which jobs were created that came from another ledger."""
        months = {month_of(now_ms), month_of(now_ms + ANNOUNCED_AHEAD_MS), *imported}
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
        """Raises `FilterNotServed`."""
        self.check_served(wanted)
        if cursor is not None and cursor.source is not wanted.source:
            cursor = None
        if wanted.source is ListSource.OPEN:
            return await self._page_of_open(wanted, cursor, limit)
        return await self._page_of_rows(wanted, cursor, limit, now_ms)

    @staticmethod
    def check_served(wanted: ListFilter) -> None:
        """Raises `FilterNotServed`."""
        source = wanted.source
        if wanted.error_code is not None and source is not ListSource.ENDED:
            raise FilterNotServed(
                f"error_code goes with state={JobState.FAILED_FINAL.value}: leave out the other states"
            )
        if wanted.service is not None and source is ListSource.LISTS:
            ends = " or ".join(sorted(_LISTED_ENDS))
            raise FilterNotServed(
                f"service goes with state: add open states ({', '.join(sorted(_OPEN_STATES))}) for the jobs "
                f"whose step is at this service now, or {ends} for those that ended there; not both kinds"
            )

    async def _page_of_rows(
        self, wanted: ListFilter, cursor: ListCursor | None, limit: int, now_ms: int
    ) -> JobPage:
        found: list[ListedJob] = []
        months = await self._months(now_ms)
        last_month = max(months.last, month_of(max(0, wanted.created_after_ms or 0)))
        month, after = _starting_place(wanted, cursor, months)
        looked = 0
        while month >= last_month:
            rows = self._rows(wanted, month, after, limit)
            # An empty month costs its queries too: a walk through many of them goes on with the next page.
            looked += LANES if wanted.tenant_norm is None else 1
            while (entry := await rows.next()) is not None:
                looked += 1
                after = entry.row.key
                if wanted.created_after_ms is not None and _created_ms(after) <= wanted.created_after_ms:
                    return JobPage(jobs=tuple(found), next_cursor=None)
                passes, rows_read = await self._passes(entry, wanted)
                looked += rows_read
                if passes:
                    found.append(ListedJob(_job_id(after), _cursor(wanted, month, after)))
                if len(found) == limit:
                    return JobPage(jobs=tuple(found), next_cursor=_cursor(wanted, month, after))
                if looked >= LOOK_ROWS_MAX:
                    return _partial(found, wanted, month, after)
            month, after = months.before(month), ""
            if looked >= LOOK_ROWS_MAX and month >= last_month:
                return _partial(found, wanted, month, after)
        return JobPage(jobs=tuple(found), next_cursor=None)

    async def _page_of_open(self, wanted: ListFilter, cursor: ListCursor | None, limit: int) -> JobPage:
        """Ids begin with the time, so that the order of ids is that of creation."""
        found: list[ListedJob] = []
        looked, after = 0, "" if cursor is None else cursor.after
        for job_id in sorted(await self._open_jobs(wanted), reverse=True):
            if after and job_id >= after:
                continue
            after = job_id
            if wanted.job_id_part not in job_id:
                continue
            job = await self._job(job_id)
            looked += JOB_READ_ROWS
            if job is not None and fits(job, wanted):
                if wanted.service is not None:
                    looked += RECORD_READ_ROWS
                if await self.is_at_service(job_id, wanted):
                    found.append(ListedJob(job_id, _cursor(wanted, OPEN_MONTH, job_id)))
            if len(found) == limit:
                return JobPage(jobs=tuple(found), next_cursor=_cursor(wanted, OPEN_MONTH, job_id))
            if looked >= LOOK_ROWS_MAX:
                at_ms = None if job is None else job.created_at_ms
                return _partial(found, wanted, OPEN_MONTH, job_id, at_ms)
        return JobPage(jobs=tuple(found), next_cursor=None)

    async def _open_jobs(self, wanted: ListFilter) -> list[str]:
        if wanted.tenant_norm is not None:
            tenants = [wanted.tenant_norm]
        else:
            tenants = await self._tenants.all()
        found: list[str] = []
        for tenant in tenants:
            start = ""
            while True:
                rows = await self._store.query(self._t.inflight, tenant, start=start, limit=SLOT_PAGE_ROWS)
                found += [row.key for row in rows]
                if len(found) > OPEN_JOBS_MAX:
                    advice = (
                        "add tenant_id" if wanted.tenant_norm is None else "filter by time or request type"
                    )
                    raise FilterNotServed(
                        f"more than {OPEN_JOBS_MAX} jobs are open, too many to be sorted by state: {advice}, "
                        "or leave out state"
                    )
                if len(rows) < SLOT_PAGE_ROWS:
                    break
                start = f"{rows[-1].key}\x00"
        return found

    async def dlq(self, after: str, limit: int, wanted: DlqFilter = ALL_DLQ) -> list[tuple[str, ListRow]]:
        """The next rows in the filter's span of time; the rest of it is `passes_dlq`."""
        end = None
        if wanted.failed_before_ms is not None:
            after = max(after, f"{MS_MAX - wanted.failed_before_ms:014d}$")
        if wanted.failed_after_ms is not None:
            end = f"{MS_MAX - wanted.failed_after_ms:014d}"
            if after >= end:
                return []

        async def read(partition: str, start: str, rows: int) -> list[tuple[str, tuple[str, ListRow]]]:
            return [(found[0], found) for found in await self._failed(partition, start, end, rows)]

        first_rows = _share(limit, LANES)
        start, lanes = f"{after}\x00" if after else "", [lane_partition(lane) for lane in range(LANES)]
        rows = MergedRanges(read, lanes, start, first_rows=first_rows, rows_max=limit)
        page: list[tuple[str, ListRow]] = []
        while len(page) < limit and (failed := await rows.next()) is not None:
            page.append(failed)
        return page

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

    async def _failed(
        self, partition: str, start: str, end: str | None, limit: int
    ) -> list[tuple[str, ListRow]]:
        return await read_page(
            self._store,
            self._ledger.quarantine,
            self._t.dlq,
            partition,
            lambda row: (row.key, decode_list(row)),
            start=start,
            end=end,
            limit=limit,
        )

    def _rows(self, wanted: ListFilter, month: str, after: str, limit: int) -> MergedRanges[_Entry]:
        """The rows of a month from there on."""
        if wanted.created_before_ms is not None:
            after = max(after, f"{MS_MAX - wanted.created_before_ms:014d}$")
        partitions = _partitions(wanted, month)
        # A part of an id is looked for in as many rows as a page may look at.
        first_rows = _share(LOOK_ROWS_MAX if wanted.job_id_part else limit, len(partitions))
        start = f"{after}\x00" if after else ""
        return MergedRanges(self._range, partitions, start, first_rows=first_rows, rows_max=PAGE_ROWS_MAX)

    async def _range(self, partition: str, start: str, limit: int) -> list[tuple[str, _Entry]]:
        rows = await self._store.query(self._t.job_index, partition, start=start, limit=limit)
        return [(row.key, _Entry(partition, row)) for row in rows]

    async def _passes(self, entry: _Entry, wanted: ListFilter) -> tuple[bool, int]:
        """Also how many rows were read to know it."""
        if wanted.job_id_part and wanted.job_id_part not in _job_id(entry.row.key):
            return False, 0
        try:
            listed = decode_list(entry.row)
        except Unreadable as fault:
            # Its job is missed in the list, and found by its id.
            self._ledger.quarantine.note(Place(self._t.job_index, entry.partition, entry.row.key), fault)
            return False, 0
        if not _has_type(listed.request_type, wanted):
            return False, 0
        if wanted.error_code is not None and listed.error_code != wanted.error_code:
            return False, 0
        if wanted.service is not None:
            return await self.is_at_service(listed.job_id, wanted), RECORD_READ_ROWS
        if not wanted.states or listed.state is not None:
            return not wanted.states or listed.state in wanted.states, 0
        job = await self._job(listed.job_id)
        return job is not None and job.state.value in wanted.states, JOB_READ_ROWS

    async def _job(self, job_id: str) -> Job | None:
        try:
            return await self._ledger.layout.job(self._store, job_id)
        except Unreadable:
            return None  # in no known state

    async def is_at_service(self, job_id: str, wanted: ListFilter) -> bool:
        if wanted.service is None:
            return True
        try:
            loaded = await self._ledger.peek(job_id)
        except Unreadable:
            return False
        if loaded is None:
            return False
        record = loaded.record
        step = record.step(record.job.current_step_id or "") or record.current
        return step is not None and step.service == wanted.service

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


def _share(rows: int, partitions: int) -> int:
    """What to read of each of several partitions for so many rows: twice what falls to each."""
    return rows if partitions == 1 else 2 * -(-rows // partitions)


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
    return encode_cursor(ListCursor(month=month, after=after, scope=wanted.scope(), source=wanted.source))


def _partial(
    found: Sequence[ListedJob], wanted: ListFilter, month: str, after: str, at_ms: int | None = None
) -> JobPage:
    if at_ms is None and after and wanted.source is not ListSource.OPEN:
        at_ms = _created_ms(after)
    return JobPage(
        jobs=tuple(found), next_cursor=_cursor(wanted, month, after), partial=True, looked_back_to_ms=at_ms
    )


def _created_ms(key: str) -> int:
    return MS_MAX - split_time_key(key)[0]


def _job_id(key: str) -> str:
    return key.partition("#")[2]


def _partitions(wanted: ListFilter, month: str) -> list[str]:
    tenant = wanted.tenant_norm
    if wanted.source is ListSource.ENDED:
        if tenant is not None:
            return [ended_tenant_list(state, tenant, month) for state in sorted(wanted.states)]
        return [ended_lane_list(state, lane, month) for state in wanted.states for lane in range(LANES)]
    return (
        [lane_list(lane, month) for lane in range(LANES)] if tenant is None else [tenant_list(tenant, month)]
    )


def _has_type(request_type: str, wanted: ListFilter) -> bool:
    # A command may name its type with spaces around it, and keeps them.
    return wanted.request_type is None or request_type.strip() == wanted.request_type.strip()


def fits(job: Job, wanted: ListFilter) -> bool:
    """What is known by a job's own row."""
    after_ms, before_ms = wanted.created_after_ms, wanted.created_before_ms
    return (
        (wanted.tenant_norm is None or job.tenant_norm == wanted.tenant_norm)
        and (not wanted.states or job.state.value in wanted.states)
        and _has_type(job.request_type, wanted)
        and (wanted.error_code is None or job.error_code == wanted.error_code)
        and (after_ms is None or job.created_at_ms > after_ms)
        and (before_ms is None or job.created_at_ms < before_ms)
    )
