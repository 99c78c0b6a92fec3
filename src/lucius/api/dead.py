"""The list of finally failed jobs, as much of it as a caller may see.

The rows of all tenants lie together, so a caller who is limited to some is shown what is left of each look. A
page looks at a bounded number of rows and may be short. A cursor is a place in time: it may name a job that
the caller has seen, never one that they have not.
"""

import re
from typing import Final

from lucius.api.gate import Principal
from lucius.api.parameters import refuse
from lucius.core.refusal import Refused
from lucius.ledger.lists import Lists, Page

LOOK_ROWS_MAX: Final = 2_000
LOOK_ROWS: Final = 200

_match_cursor = re.compile(r"[0-9]{14}(?:\$|#[\x21-\x7e]{1,128})?").fullmatch
_TIME_LENGTH: Final = 14


async def dead_jobs(lists: Lists, caller: Principal, cursor: str, limit: int) -> Page | Refused:
    if cursor and not _match_cursor(cursor):
        return refuse("cursor", "is not one that this list gave out")
    found: list[str] = []
    after, looked = cursor, 0
    while looked < LOOK_ROWS_MAX:
        wanted = limit if caller.tenants is None else LOOK_ROWS
        rows = await lists.dlq(after, wanted)
        for key, row in rows:
            if caller.sees(row.tenant_norm):
                found.append(row.job_id)
                if len(found) == limit:
                    return Page(job_ids=tuple(found), next_cursor=key)
        if len(rows) < wanted:
            return Page(job_ids=tuple(found), next_cursor=None)
        looked, after = looked + len(rows), rows[-1][0]
    return Page(job_ids=tuple(found), next_cursor=_place(after, cursor))


def _place(key: str, before: str) -> str:
    """Where to go on after a row that must not be named: at its instant, or after that if no nearer."""
    at = key[:_TIME_LENGTH]
    return at if at > before else f"{at}$"
