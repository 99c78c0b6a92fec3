"""The list of finally failed jobs, as much of it as a caller may see.

The rows of all tenants lie together, so a caller who is limited to some is shown what is left of each look. A
page looks at a bounded number of rows and may be short. A cursor is a place in time: it may name a job that
the caller has seen, never one that they have not.
"""

from typing import Final

from lucius.api.gate import Principal
from lucius.api.pages import cursor_at, place_after, place_at
from lucius.core.refusal import Refused
from lucius.ledger.lists import JobPage, ListedJob, Lists

LOOK_ROWS_MAX: Final = 2_000
LOOK_ROWS: Final = 200


async def dead_jobs(lists: Lists, caller: Principal, cursor: str | None, limit: int) -> JobPage | Refused:
    place = place_at(cursor)
    if isinstance(place, Refused):
        return place
    found: list[ListedJob] = []
    after, looked = place, 0
    while looked < LOOK_ROWS_MAX:
        wanted = limit if caller.tenants is None else LOOK_ROWS
        rows = await lists.dlq(after, wanted)
        for key, row in rows:
            if caller.sees(row.tenant_norm):
                found.append(ListedJob(row.job_id, cursor_at(key)))
                if len(found) == limit:
                    return JobPage(jobs=tuple(found), next_cursor=found[-1].cursor)
        if len(rows) < wanted:
            return JobPage(jobs=tuple(found), next_cursor=None)
        looked, after = looked + len(rows), rows[-1][0]
    return JobPage(jobs=tuple(found), next_cursor=cursor_at(place_after(after, place)))
