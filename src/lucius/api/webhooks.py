"""For operators: webhooks that their receivers did not take, and sending one again.

Dead letters of all tenants lie together: a caller who is limited to some is shown what is left of each look.
A page looks at a bounded number of rows and may be short. A cursor is a place in time: it may name a job that
the caller has seen, never one that they have not.
"""

from typing import Final

from lucius.api.dependencies import ApiDependencies
from lucius.api.gate import Principal
from lucius.api.jobs import PAGE_ITEMS_MAX, find_job
from lucius.api.pages import cursor_at, place_after, place_at
from lucius.api.parameters import stray, whole_number
from lucius.api.problems import answer
from lucius.api.routing import Call, Result
from lucius.contracts.times import rfc3339
from lucius.core.model import Json
from lucius.core.refusal import Code, Refused
from lucius.ledger.webhooks import WebhookDead, webhook_url

LOOK_ROWS_MAX: Final = 2_000
LOOK_ROWS: Final = 200


async def list_dead(call: Call) -> Result:
    request = call.request
    limit = stray(request, "cursor", "limit") or whole_number(request, "limit", 50, 1, PAGE_ITEMS_MAX)
    if isinstance(limit, Refused):
        return limit
    place = place_at(request.query_params.get("cursor"))
    if isinstance(place, Refused):
        return place
    items, more = await _page(call.deps, call.caller, place, limit)
    return answer({"items": items, "next_cursor": None if more is None else cursor_at(more)})


async def redeliver(call: Call) -> Result:
    loaded = await find_job(call)
    if isinstance(loaded, Refused):
        return loaded
    job = loaded.record.job
    if webhook_url(job) is None:
        return Refused(Code.NOT_FOUND, "the job's command asked for no webhook")
    if not job.terminal:
        return Refused(Code.JOB_NOT_TERMINAL, "a webhook is sent once the job has ended")
    state = await call.deps.webhooks.redeliver(job)
    return answer({"jobId": job.job_id, "webhook": state.phase.value}, status=202)


async def _page(
    deps: ApiDependencies, caller: Principal, place: str, limit: int
) -> tuple[list[dict[str, Json]], str | None]:
    """The items, and the place to go on from."""
    found: list[dict[str, Json]] = []
    after, looked = place, 0
    while looked < LOOK_ROWS_MAX:
        wanted = limit if caller.tenants is None else LOOK_ROWS
        letters = await deps.webhooks.dead(after, wanted)
        for key, letter in letters:
            if caller.sees(letter.tenant_norm):
                found.append(_view(letter))
                if len(found) == limit:
                    return found, key
        if len(letters) < wanted:
            return found, None
        looked, after = looked + len(letters), letters[-1][0]
    return found, place_after(after, place)


def _view(letter: WebhookDead) -> dict[str, Json]:
    return {
        "jobId": letter.job_id,
        "tenant_id": letter.tenant_norm,
        "url": letter.url,
        "attempts": letter.attempts,
        "last_problem": letter.last_problem,
        "dead_at": rfc3339(letter.dead_at_ms),
    }
