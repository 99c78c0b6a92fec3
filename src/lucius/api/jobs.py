"""Jobs: read, list, control, run again."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response

from lucius.api.bodies import read_object
from lucius.api.describe import body, json_of, object_schema, page_of, problems, query
from lucius.api.house import House
from lucius.api.parameters import header_text, is_job_id, list_filter, number, whole_number
from lucius.api.problems import answer, problem
from lucius.contracts.envelope import IDEMPOTENCY_KEY_LENGTH_MAX, text_problem
from lucius.contracts.views import event_view, job_view, step_view
from lucius.core.inputs import Cancel, Control, Pause, Resume
from lucius.core.refusal import Code, FieldError, Refused
from lucius.ledger.rows import Loaded

WAIT_SECONDS_MAX = 60
PAGE_ITEMS_MAX = 200
EVENTS_MAX = 1_000
EVENT_SEQ_MAX = 10**8 - 2

_WAIT = query("wait", {"type": "number", "minimum": 0, "maximum": WAIT_SECONDS_MAX}, "Hold until it ends")


def routes(house: House) -> APIRouter:
    router = APIRouter(tags=["jobs"])
    _read_routes(router, house)
    _list_routes(router, house)
    _control_routes(router, house)
    return router


def _read_routes(router: APIRouter, house: House) -> None:
    @router.get(
        "/v1/jobs/{job_id}",
        operation_id="getJob",
        summary="The job with its steps",
        response_class=Response,
        responses={**json_of("job", 200, "The job"), **problems(401, 404, 422)},
        openapi_extra={"parameters": [_WAIT]},
    )
    async def get_job(job_id: str, request: Request) -> Response:
        wait = number(request, "wait", 0, 0, WAIT_SECONDS_MAX)
        if isinstance(wait, Refused):
            return problem(wait)
        if not is_job_id(job_id):
            return problem(not_found(job_id))
        record = await house.waiting.job(job_id, round(wait * 1000))
        return problem(not_found(job_id)) if record is None else answer(job_view(record))

    @router.get(
        "/v1/jobs/{job_id}/steps",
        operation_id="getSteps",
        summary="The job's steps",
        response_class=Response,
        responses={**page_of("step", "The steps"), **problems(401, 404)},
    )
    async def get_steps(job_id: str) -> Response:
        loaded = await find_job(house, job_id)
        if isinstance(loaded, Refused):
            return problem(loaded)
        return answer({"items": [step_view(step) for step in loaded.record.steps], "next_cursor": None})

    @router.get(
        "/v1/jobs/{job_id}/events",
        operation_id="getEvents",
        summary="The job's audit trail",
        response_class=Response,
        responses={**page_of("event", "The events"), **problems(401, 404, 422)},
        openapi_extra={
            "parameters": [
                query("after", {"type": "integer", "minimum": 0}, "Only events with a higher seq"),
                query("cursor", {"type": "string"}, "Where the page before ended"),
                query("limit", {"type": "integer", "minimum": 1, "maximum": EVENTS_MAX}, "Events a page"),
            ]
        },
    )
    async def get_events(job_id: str, request: Request) -> Response:
        named = "cursor" if "cursor" in request.query_params else "after"
        after = whole_number(request, named, 0, 0, EVENT_SEQ_MAX)
        limit = whole_number(request, "limit", EVENTS_MAX, 1, EVENTS_MAX)
        if isinstance(after, Refused):
            return problem(after)
        if isinstance(limit, Refused):
            return problem(limit)
        loaded = await find_job(house, job_id)
        if isinstance(loaded, Refused):
            return problem(loaded)
        events = await house.ledger.events(job_id, after_seq=after, limit=limit)
        more = str(events[-1].seq) if len(events) == limit else None
        return answer({"items": [event_view(event) for event in events], "next_cursor": more})


def _list_routes(router: APIRouter, house: House) -> None:
    text: dict[str, Any] = {"type": "string"}

    @router.get(
        "/v1/jobs",
        operation_id="listJobs",
        summary="Jobs, the newest first",
        response_class=Response,
        responses={**page_of("job", "A page of jobs"), **problems(401, 403, 422)},
        openapi_extra={
            "parameters": [
                query("tenant_id", text, "Only this tenant's"),
                query("state", text, "Only jobs in this state"),
                query("request_type", text, "Only of this type"),
                query("created_after", {"type": "string", "format": "date-time"}, "Created later than"),
                query("created_before", {"type": "string", "format": "date-time"}, "Created earlier than"),
                query("cursor", text, "Where the page before ended"),
                query("limit", {"type": "integer", "minimum": 1, "maximum": PAGE_ITEMS_MAX}, "Jobs a page"),
            ]
        },
    )
    async def list_jobs(request: Request) -> Response:
        wanted = list_filter(request, house.now_ms())
        limit = whole_number(request, "limit", 50, 1, PAGE_ITEMS_MAX)
        if isinstance(wanted, Refused):
            return problem(wanted)
        if isinstance(limit, Refused):
            return problem(limit)
        page = await house.lists.page(wanted.filter, wanted.cursor, limit, house.now_ms())
        loaded = await asyncio.gather(*(house.ledger.load(job_id, fresh=True) for job_id in page.job_ids))
        items = [job_view(one.record) for one in loaded if one is not None]
        return answer({"items": items, "next_cursor": page.next_cursor})


def _control_routes(router: APIRouter, house: House) -> None:
    controls: tuple[tuple[str, str, type[Control]], ...] = (
        ("cancel", "Cancel the job", Cancel),
        ("pause", "Pause the job before its next step", Pause),
        ("resume", "Resume a paused job", Resume),
    )
    for verb, summary, control in controls:
        router.post(
            f"/v1/jobs/{{job_id}}:{verb}",
            operation_id=f"{verb}Job",
            summary=summary,
            status_code=202,
            response_class=Response,
            responses={**json_of("job", 202, "The job"), **problems(401, 404, 409, 503)},
        )(_control(house, control))

    @router.post(
        "/v1/jobs/{job_id}:rerun",
        operation_id="rerunJob",
        summary="Run an ended job again, as a new job",
        status_code=202,
        response_class=Response,
        responses={**json_of("job", 202, "The new job"), **problems(400, 401, 404, 409, 413, 422, 429, 503)},
        openapi_extra=body(object_schema({"from_step": {"type": "string"}}), required=False),
    )
    async def rerun(job_id: str, request: Request) -> Response:
        return await rerun_answer(house, job_id, request)


def _control(house: House, control: type[Control]) -> Any:
    async def apply(job_id: str) -> Response:
        if not is_job_id(job_id):
            return problem(not_found(job_id))
        applied = await house.progress.apply(job_id, control())
        if isinstance(applied, Refused):
            return problem(applied)
        return answer(job_view(applied.record), status=202)

    return apply


async def rerun_answer(house: House, job_id: str, request: Request) -> Response:
    wish = await read_object(request, optional=True)
    if isinstance(wish, Refused):
        return problem(wish)
    unknown = [FieldError(f"/{name}", "is not known here") for name in wish if name != "from_step"]
    from_step = wish.get("from_step")
    if from_step is not None and not isinstance(from_step, str):
        unknown.append(FieldError("/from_step", "must be a step id"))
    key = header_text(request, "idempotency-key")
    if key is not None and (fault := _key_problem(key)) is not None:
        unknown.append(FieldError("/idempotency_key", f"the Idempotency-Key header {fault}"))
    if unknown:
        return problem(Refused(Code.INVALID_ENVELOPE, "the rerun is not well formed", tuple(unknown)))
    if not is_job_id(job_id):
        return problem(not_found(job_id))
    accepted = await house.reruns.rerun(job_id, from_step=from_step, key=key)
    if isinstance(accepted, Refused):
        return problem(accepted)
    loaded = await house.ledger.load(accepted.job_id, fresh=True)
    headers = {"Location": f"/v1/jobs/{accepted.job_id}"}
    if accepted.duplicate:
        headers["Idempotent-Replayed"] = "true"
    if loaded is None:
        return problem(not_found(accepted.job_id))
    return answer(job_view(loaded.record), status=202, headers=headers)


def _key_problem(key: str) -> str | None:
    return text_problem(key, IDEMPOTENCY_KEY_LENGTH_MAX) or (None if key.strip() else "must not be blank")


async def find_job(house: House, job_id: str) -> Loaded | Refused:
    loaded = await house.ledger.load(job_id, fresh=True) if is_job_id(job_id) else None
    return not_found(job_id) if loaded is None else loaded


def not_found(job_id: str) -> Refused:
    return Refused(Code.JOB_NOT_FOUND, f"there is no job {job_id[:80]}")
