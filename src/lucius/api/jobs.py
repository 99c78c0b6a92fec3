"""Jobs: read, list, control, run again."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response

from lucius.api.bodies import read_object
from lucius.api.dependencies import ApiDependencies
from lucius.api.gate import ASK_AGAIN_SECONDS, Principal
from lucius.api.memory import answer_within
from lucius.api.pages import page_of_jobs
from lucius.api.parameters import (
    LIST_PARAMETERS,
    idempotency_key,
    is_job_id,
    list_filter,
    number,
    stray,
    whole_number,
)
from lucius.api.problems import answer, problem
from lucius.api.streams import MayListen, last_event_id, wants_stream
from lucius.contracts.envelope import IDEMPOTENCY_KEY_LENGTH_MAX, text_problem
from lucius.contracts.keys import Role
from lucius.contracts.views import event_view, job_view, step_view
from lucius.core.inputs import Cancel, Control, Pause, Resume
from lucius.core.model import JobRecord
from lucius.core.refusal import Code, FieldError, Refused
from lucius.ledger.lists import JobPage
from lucius.ledger.rows import Loaded
from lucius.ledger.store import StoreError

WAIT_SECONDS_MAX = 60
PAGE_ITEMS_MAX = 200
EVENTS_MAX = 1_000
EVENT_SEQ_MAX = 10**8 - 2


def routes(deps: ApiDependencies) -> APIRouter:
    router = APIRouter()
    _read_routes(router, deps)
    _event_routes(router, deps)
    _list_routes(router, deps)
    _control_routes(router, deps)
    return router


def _read_routes(router: APIRouter, deps: ApiDependencies) -> None:
    @router.get("/v1/jobs/{job_id}", operation_id="getJob")
    async def get_job(job_id: str, request: Request) -> Response:
        caller = await deps.gate.admit(request, Role.READ)
        if isinstance(caller, Refused):
            return problem(caller)
        wait = stray(request, "wait") or number(request, "wait", 0, 0, WAIT_SECONDS_MAX)
        if isinstance(wait, Refused):
            return problem(wait)
        if not is_job_id(job_id):
            return problem(not_found(job_id))
        if wait and caller.tenants is not None:
            # Whoever may not see the job must not learn from the wait that there is one.
            loaded = await find_job(deps, job_id, caller)
            if isinstance(loaded, Refused):
                return problem(loaded)
        return await _awaited(deps, job_id, request, caller, wait)

    @router.get("/v1/jobs/{job_id}/steps", operation_id="getSteps")
    async def get_steps(job_id: str, request: Request) -> Response:
        caller = await deps.gate.admit(request, Role.READ)
        if isinstance(caller, Refused):
            return problem(caller)
        loaded = await find_job(deps, job_id, caller)
        if isinstance(loaded, Refused):
            return problem(loaded)
        steps = [step_view(step) for step in loaded.record.steps]
        return answer_within(request, {"items": steps, "next_cursor": None})


async def _awaited(
    deps: ApiDependencies, job_id: str, request: Request, caller: Principal, wait_seconds: float
) -> Response:
    if wait_seconds <= ASK_AGAIN_SECONDS:
        record = await deps.waiting.job(job_id, round(wait_seconds * 1000), caller.holder)
        return _told(record, job_id, request, caller)
    waiting = asyncio.ensure_future(deps.waiting.job(job_id, round(wait_seconds * 1000), caller.holder))
    try:
        while not (await asyncio.wait({waiting}, timeout=ASK_AGAIN_SECONDS))[0]:
            still = await deps.gate.admit(request, Role.READ)
            if isinstance(still, Refused):
                return problem(still)
            caller = still
        return _told(waiting.result(), job_id, request, caller)
    finally:
        waiting.cancel()


def _told(record: JobRecord | Refused | None, job_id: str, request: Request, caller: Principal) -> Response:
    if isinstance(record, Refused):
        return problem(record)
    if record is None or not caller.sees(record.job.tenant_norm):
        return problem(not_found(job_id))
    return answer_within(request, job_view(record))


def _event_routes(router: APIRouter, deps: ApiDependencies) -> None:
    @router.get("/v1/jobs/{job_id}/events", operation_id="getEvents")
    async def get_events(job_id: str, request: Request) -> Response:
        caller = await deps.gate.admit(request, Role.READ)
        if isinstance(caller, Refused):
            return problem(caller)
        named = "cursor" if "cursor" in request.query_params else "after"
        after = stray(request, "after", "cursor", "limit") or whole_number(
            request, named, 0, 0, EVENT_SEQ_MAX
        )
        limit = whole_number(request, "limit", EVENTS_MAX, 1, EVENTS_MAX)
        if isinstance(after, Refused):
            return problem(after)
        if isinstance(limit, Refused):
            return problem(limit)
        loaded = await find_job(deps, job_id, caller)
        if isinstance(loaded, Refused):
            return problem(loaded)
        if wants_stream(request):
            seen = last_event_id(request, after, EVENT_SEQ_MAX)
            if isinstance(seen, Refused):
                return problem(seen)
            tenant_norm = loaded.record.job.tenant_norm
            listener = _listener(deps, request, tenant_norm)
            return await deps.streams.answer(loaded.record, seen, listener, caller.holder)
        events = await deps.ledger.events(job_id, after_seq=after, limit=limit)
        more = str(events[-1].seq) if len(events) == limit else None
        return answer_within(request, {"items": [event_view(event) for event in events], "next_cursor": more})


def _listener(deps: ApiDependencies, request: Request, tenant_norm: str) -> MayListen:
    async def may_listen() -> bool:
        try:
            caller = await deps.gate.admit(request, Role.READ)
        except StoreError:
            return True  # nobody said no
        if isinstance(caller, Refused):
            return caller.code not in (Code.UNAUTHENTICATED, Code.FORBIDDEN)
        return caller.sees(tenant_norm)

    return may_listen


def _list_routes(router: APIRouter, deps: ApiDependencies) -> None:
    @router.get("/v1/jobs", operation_id="listJobs")
    async def list_jobs(request: Request) -> Response:
        caller = await deps.gate.admit(request, Role.READ)
        if isinstance(caller, Refused):
            return problem(caller)
        wanted = stray(request, *LIST_PARAMETERS) or list_filter(request, deps.now_ms(), caller.tenants)
        limit = whole_number(request, "limit", 50, 1, PAGE_ITEMS_MAX)
        if isinstance(wanted, Refused):
            return problem(wanted)
        if isinstance(limit, Refused):
            return problem(limit)

        async def find() -> JobPage:
            return await deps.lists.page(wanted.filter, wanted.cursor, limit, deps.now_ms())

        return await page_of_jobs(deps, request, find, wanted.filter.state)


def _control_routes(router: APIRouter, deps: ApiDependencies) -> None:
    controls: tuple[tuple[str, type[Control]], ...] = (
        ("cancel", Cancel),
        ("pause", Pause),
        ("resume", Resume),
    )
    for verb, control in controls:
        router.post(f"/v1/jobs/{{job_id}}:{verb}", operation_id=f"{verb}Job")(_control(deps, control))

    @router.post("/v1/jobs/{job_id}:rerun", operation_id="rerunJob")
    async def rerun(job_id: str, request: Request) -> Response:
        caller = await deps.gate.admit(request, Role.CONTROL)
        if isinstance(caller, Refused):
            return problem(caller)
        return await rerun_answer(deps, job_id, request, caller)


def _control(deps: ApiDependencies, control: type[Control]) -> Any:
    async def apply(job_id: str, request: Request) -> Response:
        caller = await deps.gate.admit(request, Role.CONTROL)
        if isinstance(caller, Refused):
            return problem(caller)
        loaded = await find_job(deps, job_id, caller)
        if isinstance(loaded, Refused):
            return problem(loaded)
        applied = await deps.progress.apply(job_id, control())
        if isinstance(applied, Refused):
            return problem(applied)
        return answer(job_view(applied.record), status=202)

    return apply


async def rerun_answer(deps: ApiDependencies, job_id: str, request: Request, caller: Principal) -> Response:
    wanted = await read_object(request, optional=True)
    if isinstance(wanted, Refused):
        return problem(wanted)
    unknown = [FieldError(f"/{name}", "is not known here") for name in wanted if name != "from_step"]
    from_step = wanted.get("from_step")
    if from_step is not None and not isinstance(from_step, str):
        unknown.append(FieldError("/from_step", "must be a step id"))
    key = idempotency_key(request)
    if isinstance(key, Refused):
        return problem(key)
    if key is not None and (fault := _key_problem(key)) is not None:
        unknown.append(FieldError("/idempotency_key", f"the Idempotency-Key header {fault}"))
    if unknown:
        return problem(Refused(Code.INVALID_ENVELOPE, "the rerun is not well formed", tuple(unknown)))
    old = await find_job(deps, job_id, caller)
    if isinstance(old, Refused):
        return problem(old)
    accepted = await deps.reruns.rerun(job_id, from_step=from_step, key=key)
    if isinstance(accepted, Refused):
        return problem(accepted)
    loaded = await deps.ledger.load(accepted.job_id, fresh=True)
    headers = {"Location": f"/v1/jobs/{accepted.job_id}"}
    if accepted.duplicate:
        headers["Idempotent-Replayed"] = "true"
    if loaded is None:
        return problem(not_found(accepted.job_id))
    return answer(job_view(loaded.record), status=202, headers=headers)


def _key_problem(key: str) -> str | None:
    return text_problem(key, IDEMPOTENCY_KEY_LENGTH_MAX) or (None if key.strip() else "must not be blank")


async def find_job(deps: ApiDependencies, job_id: str, caller: Principal) -> Loaded | Refused:
    """The job. One that the caller may not see is looked up all the same, and then is like an absent one."""
    loaded = await deps.ledger.load(job_id, fresh=True) if is_job_id(job_id) else None
    seen = loaded is not None and caller.sees(loaded.record.job.tenant_norm)
    return loaded if loaded is not None and seen else not_found(job_id)


def not_found(job_id: str) -> Refused:
    return Refused(Code.JOB_NOT_FOUND, f"there is no job {job_id[:80]}")
