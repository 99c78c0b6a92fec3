"""Jobs: read, list, control, run again."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from lucius.api.bodies import read_object
from lucius.api.dependencies import ApiDependencies
from lucius.api.gate import ASK_AGAIN_SECONDS, Principal
from lucius.api.memory import answer_within
from lucius.api.pages import page_of_jobs
from lucius.api.parameters import (
    LIST_PARAMETERS,
    ListQuery,
    idempotency_key,
    is_job_id,
    list_filter,
    number,
    stray,
    whole_number,
)
from lucius.api.problems import answer
from lucius.api.routing import Call, Result
from lucius.api.streams import MayListen, last_event_id, wants_stream
from lucius.contracts.envelope import IDEMPOTENCY_KEY_LENGTH_MAX, text_problem
from lucius.contracts.views import event_view, job_view, step_view
from lucius.core.inputs import Control
from lucius.core.model import JobRecord, Json
from lucius.core.refusal import Code, FieldError, Refused
from lucius.jobs.submit import Submitted
from lucius.ledger.job_search import Search
from lucius.ledger.lists import JobPage
from lucius.ledger.rows import Loaded
from lucius.ledger.store import StoreError

WAIT_SECONDS_MAX = 60
PAGE_ITEMS_MAX = 200
EVENTS_MAX = 1_000
EVENT_SEQ_MAX = 10**8 - 2


async def get_job(call: Call) -> Result:
    request = call.request
    wait = stray(request, "wait") or number(request, "wait", 0, 0, WAIT_SECONDS_MAX)
    if isinstance(wait, Refused):
        return wait
    if not is_job_id(call.path_id):
        return not_found(call.path_id)
    if wait and call.caller.tenants is not None:
        # A caller who may not see the job must not learn from the wait that there is one.
        loaded = await find_job(call)
        if isinstance(loaded, Refused):
            return loaded
    return await _awaited_job(call, wait)


async def _awaited_job(call: Call, wait_seconds: float) -> Result:
    wait = call.deps.waiting.job(call.path_id, round(wait_seconds * 1000), call.caller.holder)
    if wait_seconds <= ASK_AGAIN_SECONDS:
        return _job_answer(call, call.caller, await wait)
    waiting, caller = asyncio.ensure_future(wait), call.caller
    try:
        while not (await asyncio.wait({waiting}, timeout=ASK_AGAIN_SECONDS))[0]:
            still = await call.admit_again()
            if isinstance(still, Refused):
                return still
            caller = still
        return _job_answer(call, caller, waiting.result())
    finally:
        waiting.cancel()


def _job_answer(call: Call, caller: Principal, record: JobRecord | Refused | None) -> Result:
    if isinstance(record, Refused):
        return record
    if record is None or not caller.sees(record.job.tenant_norm):
        return not_found(call.path_id)
    return answer_within(call.request, job_view(record))


async def get_steps(call: Call) -> Result:
    loaded = await find_job(call)
    if isinstance(loaded, Refused):
        return loaded
    steps = [step_view(step) for step in loaded.record.steps]
    return answer_within(call.request, {"items": steps, "next_cursor": None})


async def get_events(call: Call) -> Result:
    request = call.request
    named = "cursor" if "cursor" in request.query_params else "after"
    after = stray(request, "after", "cursor", "limit") or whole_number(request, named, 0, 0, EVENT_SEQ_MAX)
    limit = whole_number(request, "limit", EVENTS_MAX, 1, EVENTS_MAX)
    if isinstance(after, Refused):
        return after
    if isinstance(limit, Refused):
        return limit
    loaded = await find_job(call)
    if isinstance(loaded, Refused):
        return loaded
    if wants_stream(request):
        seen = last_event_id(request, after, EVENT_SEQ_MAX)
        if isinstance(seen, Refused):
            return seen
        may_listen = _may_listen(call, loaded.record.job.tenant_norm)
        return await call.deps.streams.answer(loaded.record, seen, may_listen, call.caller.holder)
    events = await call.deps.ledger.events(call.path_id, after_seq=after, limit=limit)
    more = str(events[-1].seq) if len(events) == limit else None
    return answer_within(request, {"items": [event_view(event) for event in events], "next_cursor": more})


def _may_listen(call: Call, tenant_norm: str) -> MayListen:
    async def may_listen() -> bool:
        try:
            caller = await call.admit_again()
        except StoreError:
            return True  # no refusal is known
        if isinstance(caller, Refused):
            return caller.code not in (Code.UNAUTHENTICATED, Code.FORBIDDEN)
        return caller.sees(tenant_norm)

    return may_listen


async def list_jobs(call: Call) -> Result:
    deps, request = call.deps, call.request
    wanted = stray(request, *LIST_PARAMETERS) or list_filter(
        request.query_params, deps.now_ms(), call.caller.tenants
    )
    limit = whole_number(request, "limit", 50, 1, PAGE_ITEMS_MAX)
    if isinstance(wanted, Refused):
        return wanted
    if isinstance(limit, Refused):
        return limit

    search = search_of(deps, wanted)

    async def find() -> JobPage:
        page = deps.lists.page if search is None else search.page
        return await page(wanted.filter, wanted.cursor, limit, deps.now_ms())

    searched = None if search is None else search.searched(wanted.filter)
    return await page_of_jobs(deps, request, find, wanted.filter.states, searched=searched)


def search_of(deps: ApiDependencies, wanted: ListQuery) -> Search | None:
    return None if wanted.text is None else Search(deps.ledger, deps.lists, wanted.text)


def control(input_type: type[Control]) -> Callable[[Call], Awaitable[Result]]:
    """The handler of a control: `Cancel`, `Pause` or `Resume`."""

    async def apply(call: Call) -> Result:
        loaded = await find_job(call)
        if isinstance(loaded, Refused):
            return loaded
        applied = await call.deps.inputs.apply(call.path_id, input_type())
        if isinstance(applied, Refused):
            return applied
        return answer(job_view(applied.record), status=202)

    return apply


async def rerun(call: Call) -> Result:
    return await run_again(call, call.deps.reruns.rerun)


class StartAgain(Protocol):
    async def __call__(
        self, job_id: str, *, from_step: str | None, key: str | None
    ) -> Submitted | Refused: ...


async def run_again(call: Call, start: StartAgain) -> Result:
    wanted = await read_object(call.request, optional=True)
    if isinstance(wanted, Refused):
        return wanted
    faults = unknown_members(wanted, "from_step")
    from_step = wanted.get("from_step")
    if from_step is not None and not isinstance(from_step, str):
        faults.append(FieldError("/from_step", "must be a step id"))
    key = idempotency_key(call.request)
    if isinstance(key, Refused):
        return key
    faults += key_faults(key)
    if faults:
        return Refused(Code.INVALID_ENVELOPE, "the rerun is not well formed", tuple(faults))
    old = await find_job(call)
    if isinstance(old, Refused):
        return old
    return await new_job(call, await start(call.path_id, from_step=from_step, key=key))


async def new_job(call: Call, made: Submitted | Refused) -> Result:
    """The answer to a rerun, or to the adoption of a late success: the job that came of it."""
    if isinstance(made, Refused):
        return made
    loaded = await call.deps.ledger.load(made.job_id, fresh=True)
    if loaded is None:
        return not_found(made.job_id)
    headers = {"Location": f"/v1/jobs/{made.job_id}"}
    if made.duplicate:
        headers["Idempotent-Replayed"] = "true"
    return answer(job_view(loaded.record), status=202, headers=headers)


def unknown_members(wanted: dict[str, Json], *known: str) -> list[FieldError]:
    return [FieldError(f"/{name}", "is not known here") for name in wanted if name not in known]


def key_faults(key: str | None) -> list[FieldError]:
    """What is wrong with an `Idempotency-Key` header."""
    if key is None:
        return []
    fault = text_problem(key, IDEMPOTENCY_KEY_LENGTH_MAX) or (None if key.strip() else "must not be blank")
    if fault is None:
        return []
    return [FieldError("/idempotency_key", f"the Idempotency-Key header {fault}")]


async def find_job(call: Call) -> Loaded | Refused:
    """The job that the path names. One that the caller may not see is looked up all the same, and then is
    like an absent one."""
    loaded = await call.deps.ledger.load(call.path_id, fresh=True) if is_job_id(call.path_id) else None
    seen = loaded is not None and call.caller.sees(loaded.record.job.tenant_norm)
    return loaded if loaded is not None and seen else not_found(call.path_id)


def not_found(job_id: str) -> Refused:
    return Refused(Code.JOB_NOT_FOUND, f"there is no job {job_id[:80]}")
