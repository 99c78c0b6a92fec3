"""Pages of lists: where one goes on, and how much one answer holds.

A page of jobs ends at its limit or once it is large: jobs hold the payloads of all their steps, and hundreds
of large ones at once would keep everybody else waiting.
"""

import asyncio
import re
from typing import Final

import msgspec
from starlette.responses import Response

from lucius.api.house import House
from lucius.api.parameters import refuse
from lucius.api.problems import answer
from lucius.contracts.views import job_view
from lucius.core.refusal import Refused
from lucius.ledger.lists import Page, opaque, place_in
from lucius.ledger.rows import Loaded
from lucius.ledger.store import Unreadable

PAGE_BYTES_MAX: Final = 4_194_304
LOADS_AT_ONCE: Final = 16
TIME_LENGTH: Final = 14

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


async def _readable(house: House, job_id: str) -> Loaded | None:
    """A job that cannot be read is missed in a list, and readiness tells of it."""
    try:
        return await house.ledger.load(job_id, fresh=True)
    except Unreadable:
        return None


async def page_of_jobs(house: House, page: Page, state: str | None = None) -> Response:
    """As many of them as one answer holds; the rest is for the next page. `state`: who was found in it and
    has left it meanwhile is not shown."""
    items: list[msgspec.Raw] = []
    bytes_total = 0
    for first in range(0, len(page.jobs), LOADS_AT_ONCE):
        jobs = page.jobs[first : first + LOADS_AT_ONCE]
        loaded = await asyncio.gather(*(_readable(house, job.job_id) for job in jobs))
        for job, found in zip(jobs, loaded, strict=True):
            if found is None or (state is not None and found.record.job.state.value != state):
                continue
            item = msgspec.json.encode(job_view(found.record))
            items.append(msgspec.Raw(item))
            bytes_total += len(item)
            if bytes_total >= PAGE_BYTES_MAX and job is not page.jobs[-1]:
                return answer({"items": items, "next_cursor": job.cursor})
    return answer({"items": items, "next_cursor": page.next_cursor})
