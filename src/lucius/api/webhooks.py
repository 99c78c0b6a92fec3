"""For operators: webhooks that their receivers did not take, and sending one again."""

from lucius.api.jobs import PAGE_ITEMS_MAX, find_job
from lucius.api.pages import cursor_at, place_at, visible_rows
from lucius.api.parameters import stray, whole_number
from lucius.api.problems import answer
from lucius.api.routing import Call, Result
from lucius.contracts.times import rfc3339
from lucius.core.model import Json
from lucius.core.refusal import Code, Refused
from lucius.ledger.webhooks import WebhookDead, webhook_url


async def list_dead(call: Call) -> Result:
    request = call.request
    limit = stray(request, "cursor", "limit") or whole_number(request, "limit", 50, 1, PAGE_ITEMS_MAX)
    if isinstance(limit, Refused):
        return limit
    place = place_at(request.query_params.get("cursor"))
    if isinstance(place, Refused):
        return place
    letters, more = await visible_rows(call.deps.webhooks.dead, call.caller, place, limit)
    items = [_view(letter) for _, letter in letters]
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


def _view(letter: WebhookDead) -> dict[str, Json]:
    return {
        "jobId": letter.job_id,
        "tenant_id": letter.tenant_norm,
        "url": letter.url,
        "attempts": letter.attempts,
        "last_problem": letter.last_problem,
        "dead_at": rfc3339(letter.dead_at_ms),
    }
