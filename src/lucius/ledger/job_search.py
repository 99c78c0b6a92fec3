"""Jobs by what people have of them: an id or a part of one, the id of a document, an idempotency key.

In: a text, and the filters of a list. Out: a page of jobs. Names are found by their rows, whole or by their
beginning; a job id whole, or by its beginning, which says when the job was created. Any other part of a job
id is looked for through the lists, a bounded number of rows a page.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from heapq import merge
from typing import Final

import msgspec

from lucius.core.canonical import key_hash
from lucius.core.model import Job
from lucius.core.routing import LANES
from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.lists import (
    OPEN_MONTH,
    JobPage,
    ListCursor,
    ListedJob,
    ListFilter,
    Lists,
    encode_cursor,
    fits,
)
from lucius.ledger.names import MS_MAX, search_name, search_partition
from lucius.ledger.quarantine import read_page
from lucius.ledger.rows import ListRow, decode_list
from lucius.ledger.store import Unreadable

PART_LENGTH_MIN: Final = 4
ID_LENGTH: Final = 26
LANE_ROWS_MAX: Final = 100
JOBS_READ_MAX: Final = 500
CREATED_WITHIN_MS: Final = 3_600_000
"""How far apart the time in a job's id and that of its creation may be."""
_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_ID_PREFIX: Final = "job_"
_LAST: Final = "\U0010ffff"
_is_id_part = re.compile(rf"[{_ALPHABET}]{{{PART_LENGTH_MIN},{ID_LENGTH}}}").fullmatch


class Searched(StrEnum):
    JOB_ID = "job_id"
    DOC_ID = "doc_id"
    CORRELATION_ID = "correlation_id"
    IDEMPOTENCY_KEY = "idempotency_key"


class Search:
    def __init__(self, ledger: JobLedger, lists: Lists, text: str) -> None:
        self._ledger = ledger
        self._lists = lists
        self._text = text.strip()
        self._lower = self._text.lower()

    def searched(self, wanted: ListFilter) -> list[Searched]:
        """What the text is looked for in: a key is only known together with its tenant."""
        found = [Searched.DOC_ID, Searched.CORRELATION_ID]
        if _is_id_part(self._lower.removeprefix(_ID_PREFIX)):
            found.insert(0, Searched.JOB_ID)
        if wanted.tenant_norm is not None:
            found.append(Searched.IDEMPOTENCY_KEY)
        return found

    async def page(self, wanted: ListFilter, cursor: ListCursor | None, limit: int, now_ms: int) -> JobPage:
        """Raises `FilterNotServed`."""
        walk = self._walk(wanted)
        self._lists.check_served(wanted)
        if cursor is not None:
            return await self._lists.page(walk or wanted, cursor, limit, now_ms)
        hits, more = await self._hits(wanted, limit)
        if walk is None or more or len(hits) == limit:
            return JobPage(jobs=hits, next_cursor=None, partial=more)
        rest = await self._lists.page(walk, None, limit - len(hits), now_ms)
        known = {hit.job_id for hit in hits}
        others = tuple(job for job in rest.jobs if job.job_id not in known)
        return msgspec.structs.replace(rest, jobs=(*hits, *others))

    def _walk(self, wanted: ListFilter) -> ListFilter | None:
        """Where the text may be a part of a job's id: the filter of those that have it."""
        part = self._lower.removeprefix(_ID_PREFIX)
        if not _is_id_part(part) or len(part) == ID_LENGTH:
            return None
        if part == self._lower:
            return msgspec.structs.replace(wanted, job_id_part=part)
        first_ms = _time_in(part.ljust(ID_LENGTH, _ALPHABET[0])) - CREATED_WITHIN_MS
        last_ms = _time_in(part.ljust(ID_LENGTH, _ALPHABET[-1])) + CREATED_WITHIN_MS
        after_ms, before_ms = wanted.created_after_ms, wanted.created_before_ms
        return msgspec.structs.replace(
            wanted,
            job_id_part=self._lower,
            created_after_ms=max(0, first_ms if after_ms is None else max(first_ms, after_ms)),
            created_before_ms=min(MS_MAX, last_ms if before_ms is None else min(last_ms, before_ms)),
        )

    async def _hits(self, wanted: ListFilter, limit: int) -> tuple[tuple[ListedJob, ...], bool]:
        """Those that are named so, and whether there are more."""
        begin = ListCursor(month=OPEN_MONTH, after="", scope=wanted.scope(), source=wanted.source)
        cursor, hits = encode_cursor(begin), dict[str, ListedJob]()
        for job_id in [*self._ids(), *await self._key_holder(wanted)]:
            if await self._fits(job_id, wanted) is not None:
                hits[job_id] = ListedJob(job_id, cursor)
        for read, row in enumerate(await self._named(wanted)):
            if len(hits) == limit or read == JOBS_READ_MAX:
                return tuple(hits.values()), True
            job = await self._fits(row.job_id, wanted)
            if job is not None and self._names(job):
                hits[row.job_id] = ListedJob(row.job_id, cursor)
        return tuple(hits.values())[:limit], False

    def _ids(self) -> list[str]:
        if len(self._lower) == ID_LENGTH and _is_id_part(self._lower):
            return [f"{_ID_PREFIX}{self._lower}"]
        return [self._lower] if self._lower.startswith(_ID_PREFIX) else []

    async def _key_holder(self, wanted: ListFilter) -> list[str]:
        if wanted.tenant_norm is None:
            return []
        try:
            holder = await self._ledger.key_holder(
                wanted.tenant_norm, key_hash(wanted.tenant_norm, self._text)
            )
        except Unreadable:
            return []
        return [] if holder is None else [holder.row.job_id]

    async def _named(self, wanted: ListFilter) -> Iterable[ListRow]:
        name = search_name(self._text)
        pages = [
            await read_page(
                self._ledger.store,
                self._ledger.quarantine,
                self._ledger.tables.job_index,
                search_partition(lane),
                lambda row: (row.key, decode_list(row)),
                start=name,
                end=f"{name}{_LAST}",
                limit=LANE_ROWS_MAX,
            )
            for lane in range(LANES)
        ]
        rows = (row for _, row in merge(*pages, key=lambda found: found[0]))
        return [row for row in rows if wanted.tenant_norm in (None, row.tenant_norm)]

    def _names(self, job: Job) -> bool:
        """A row has the beginning of a name alone."""
        return (job.doc_id or "").strip().lower().startswith(self._lower) or (
            job.correlation_id.strip().lower().startswith(self._lower)
        )

    async def _fits(self, job_id: str, wanted: ListFilter) -> Job | None:
        try:
            job = await self._ledger.layout.job(self._ledger.store, job_id)
        except Unreadable:
            return None
        if job is None or not fits(job, wanted) or not await self._lists.is_at_service(job_id, wanted):
            return None
        return job


def _time_in(job_id: str) -> int:
    """The time with which an id begins: 48 bits of its 130 are milliseconds."""
    number = 0
    for letter in job_id:
        number = number << 5 | _ALPHABET.index(letter)
    return min(number >> 80, MS_MAX)
