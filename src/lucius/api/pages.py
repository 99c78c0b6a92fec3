"""Pages of lists: where one goes on, and how much one answer holds.

A page of jobs ends at its limit or once it is large: jobs hold the payloads of all their steps, and hundreds
of large ones at once would keep every other caller waiting. It is read and sent in pieces: a client that does
not take the first costs no second one.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lucius.api.dependencies import ApiDependencies
from lucius.api.gate import Principal
from lucius.api.memory import MEMORY_TAKEN, RequestMemory, memory_refusal
from lucius.api.parameters import refuse
from lucius.api.problems import answer
from lucius.contracts.times import rfc3339_or_none
from lucius.contracts.views import job_view
from lucius.core.model import Json
from lucius.core.refusal import Code, Refused
from lucius.ledger.lists import FilterNotServed, JobPage, opaque, place_in
from lucius.ledger.rows import Loaded
from lucius.ledger.store import StoreError, Unreadable

PAGE_BYTES_MAX: Final = 4_194_304
PIECE_BYTES: Final = 131_072
FOUND_BYTES: Final = 65_536  # the ids of a page's jobs, and where the list goes on behind each
LOADS_AT_ONCE: Final = 16
LOADS_FIRST: Final = 8
TIME_LENGTH: Final = 14
LOOK_ROWS_MAX: Final = 2_000
LOOK_ROWS: Final = 200

log = structlog.get_logger("lucius.api")

# A row of a list that is sorted by time, or an instant: before its rows, or after them.
_match_place = re.compile(rf"[0-9]{{{TIME_LENGTH}}}(?:\$|#[\x21-\x7e]{{1,128}})?").fullmatch


def cursor_at(place: str) -> str:
    return opaque(place.encode())


def place_at(cursor: str | None) -> str | Refused:
    """Where a cursor leads: without one, to the beginning."""
    if not cursor:
        return ""
    place = (place_in(cursor) or b"").decode("ascii", "replace")
    return place if _match_place(place) else refuse("cursor", "is not one that this list gave out")


def place_after(key: str, before: str) -> str:
    """Where to go on after a row that must not be named: at its instant, or after that if no nearer."""
    at = key[:TIME_LENGTH]
    return at if at > before else f"{at}$"


class OwnedRow(Protocol):
    @property
    def tenant_norm(self) -> str: ...


Row = TypeVar("Row", bound=OwnedRow)


async def visible_rows(
    read: Callable[[str, int], Awaitable[list[tuple[str, Row]]]],
    caller: Principal,
    place: str,
    limit: int,
    passes: Callable[[Row], Awaitable[bool]] | None = None,
) -> tuple[list[tuple[str, Row]], str | None]:
    """Of a list in which the rows of all tenants lie together, those that the caller may see and that pass,
    each with its place, and the place to go on from; None: the list has ended.

    One page looks at a bounded number of rows and may be short. A place may name a row that the caller has
    seen, never one that they have not."""
    found: list[tuple[str, Row]] = []
    after, looked = place, 0
    while looked < LOOK_ROWS_MAX:
        wanted = limit if caller.tenants is None and passes is None else LOOK_ROWS
        rows = await read(after, wanted)
        for key, row in rows:
            if caller.sees(row.tenant_norm) and (passes is None or await passes(row)):
                found.append((key, row))
                if len(found) == limit:
                    return found, key
        if len(rows) < wanted:
            return found, None
        looked, after = looked + len(rows), rows[-1][0]
    return found, place_after(after, place)


async def _readable(deps: ApiDependencies, job_id: str) -> Loaded | None:
    """A job that cannot be read is missing in a list, and readiness reports it."""
    try:
        return await deps.ledger.load(job_id, fresh=True)
    except Unreadable:
        return None


async def page_of_jobs(
    deps: ApiDependencies,
    request: Request,
    find: Callable[[], Awaitable[JobPage]],
    states: frozenset[str] = frozenset(),
    **more: Json,
) -> Response | Refused:
    """As many of them as one answer holds; the rest is for the next page. `states`: a job that was found in
    one of them and has left it meanwhile is not shown. `more`: what the answer says beside."""
    # HTTP/1.0 knows no answers in pieces.
    piece_bytes = PAGE_BYTES_MAX if request.scope.get("http_version") == "1.0" else PIECE_BYTES
    async with deps.page_reads:
        # Memory for what was found comes first: many may ask at once.
        if memory_refusal(request, piece_bytes) is not None or not RequestMemory(request).reach(FOUND_BYTES):
            return MEMORY_TAKEN
        try:
            page = await find()
        except FilterNotServed as fault:
            return Refused(Code.FILTER_NOT_SERVED, str(fault))
        jobs = _Jobs(deps, request, page, states, more)
        first = await jobs.read(piece_bytes)
    if isinstance(first, Refused):
        return first
    if jobs.left:
        return _PageInPieces(jobs, first)
    return answer({"items": [msgspec.Raw(item) for item in first], **jobs.rest})


class _Jobs:
    """The jobs of one page, which are read a piece at a time. `left`: whether more belong to this answer."""

    def __init__(
        self,
        deps: ApiDependencies,
        request: Request,
        page: JobPage,
        states: frozenset[str],
        more: dict[str, Json],
    ) -> None:
        self.deps = deps
        self._request = request
        self._page = page
        self._states = states
        self._more = more
        self._done = 0
        self._bytes = 0
        self.left = bool(page.jobs)

    @property
    def next_cursor(self) -> str | None:
        """Where the list goes on behind what was read."""
        if self._done == len(self._page.jobs):
            return self._page.next_cursor
        return self._page.jobs[self._done - 1].cursor

    @property
    def rest(self) -> dict[str, Json]:
        """What the answer says behind its items."""
        page, ended = self._page, self._done == len(self._page.jobs)
        return {
            "next_cursor": self.next_cursor,
            "partial": page.partial and ended,
            "looked_back_to": rfc3339_or_none(page.looked_back_to_ms) if ended else None,
            **self._more,
        }

    async def read(self, bytes_max: int) -> list[bytes] | Refused:
        """The next jobs, of about so many bytes."""
        items: list[bytes] = []
        until = self._bytes + bytes_max
        while self.left and self._bytes < until:
            refused = memory_refusal(self._request, until - self._bytes)
            if refused is not None:
                return refused
            items += await self._read_some(until - self._bytes)
        return items

    async def _read_some(self, bytes_wanted: int) -> list[bytes]:
        usual_bytes = self._bytes // self._done if self._done else bytes_wanted // LOADS_FIRST
        count = min(LOADS_AT_ONCE, max(1, bytes_wanted // max(1, usual_bytes)))
        jobs = self._page.jobs[self._done : self._done + count]
        loaded = await asyncio.gather(*(_readable(self.deps, job.job_id) for job in jobs))
        items: list[bytes] = []
        for found in loaded:
            self._done += 1
            if found is None or (self._states and found.record.job.state.value not in self._states):
                continue
            items.append(msgspec.json.encode(job_view(found.record)))
            self._bytes += len(items[-1])
            if self._bytes >= PAGE_BYTES_MAX:
                break
        self.left = self._done < len(self._page.jobs) and self._bytes < PAGE_BYTES_MAX
        return items


class _PageInPieces(Response):
    """A page that is read while it is sent: the next piece once the client has taken the last. If it cannot
    be read to its end, the page ends sooner, and says where to go on."""

    def __init__(self, jobs: _Jobs, first: list[bytes]) -> None:
        super().__init__(media_type="application/json")
        # The length is not known beforehand.
        self.raw_headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]
        self._jobs = jobs
        self._first = first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        left = asyncio.create_task(_until_left(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._send_items(send, left)
            end = b"]," + msgspec.json.encode(self._jobs.rest)[1:]
            await send({"type": "http.response.body", "body": end})
        finally:
            left.cancel()

    async def _send_items(self, send: Send, left: asyncio.Task[None]) -> None:
        items: list[bytes] | Refused = self._first
        self._first = []
        before = b'{"items":['
        while not isinstance(items, Refused):
            piece = before + b",".join(items)
            before = b"," if items else before if before == b"," else b""
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            items, piece = [], b""
            # Sent once nearly all of the piece is taken: nothing is read before that.
            await send({"type": "http.response.body", "body": b"", "more_body": True})
            if left.done() or not self._jobs.left:
                return
            try:
                async with self._jobs.deps.page_reads:
                    items = await self._jobs.read(PIECE_BYTES)
            except StoreError as fault:
                log.warning("page_cut_short", error=str(fault))
                return


async def _until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
