"""The HTTP API of runs, in the style of Lucius: JSON, problem documents with stable codes, keys, idempotency.

In: requests, asked first who sends them. Out: jobs as `codec.plain` shows them. A job of a workspace that the
caller may not see is answered like one that does not exist.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
import structlog
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from lucius.contracts.times import rfc3339
from lucius.core.model import Json
from lucius.lifebook import openapi
from lucius.lifebook.codec import decimal_text, may_be_id, plain
from lucius.lifebook.dead_letters import DeadLetters, Sees
from lucius.lifebook.job import JobSummary, LifebookJob
from lucius.lifebook.keys import EVERY_CALLER, ApiCaller, CallerKeys
from lucius.lifebook.queue import JobQueue
from lucius.lifebook.refusals import PROBLEMS, InputFault, RunCode, RunRefused
from lucius.lifebook.runs import RunRequest, Runs, is_text
from lucius.lifebook.states import Trigger
from lucius.lifebook.table import PAGE_ROWS_MAX, BadCursor, JobTable, TableUnavailable
from lucius.lifebook.triggers import of_webhook
from lucius.lifebook.workflows import BadStepValue, WorkflowRegistry, checked_credits
from lucius.lifebook.writer import Contended

log = structlog.get_logger("lucius.lifebook")

BODY_BYTES_MAX: Final = 64 * 1024
PAGE_ROWS_DEFAULT: Final = 50


class RunBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `POST /v1/runs` takes."""

    workspace_id: str
    user_id: str
    workflow_id: str
    trigger_type: Trigger = Trigger.MANUAL
    input: Any = None
    idempotency_key: str | None = None
    credits_estimate: str | int | float | None = None
    max_attempts: int | None = None


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """What the API speaks to."""

    runs: Runs
    table: JobTable
    queue: JobQueue
    workflows: WorkflowRegistry
    now_ms: Callable[[], int]
    keys: CallerKeys | None
    """None: every caller may do everything."""
    webhook_secret: str | None


Answered = Response | RunRefused
Route = Callable[["_Call"], Awaitable[Answered]]


class _Call:
    """A request whose sender is known."""

    def __init__(self, request: Request, principal: ApiCaller) -> None:
        self.request = request
        self.principal = principal

    def path(self, name: str) -> str:
        return str(self.request.path_params[name])


def make_app(services: Services) -> FastAPI:
    app = FastAPI(title="Lifebook", openapi_url=None, docs_url=None, redoc_url=None)
    runs = _Runs(services)
    guarded: dict[str, Route] = {
        "submitRun": runs.submit,
        "listRuns": runs.page,
        "getRun": runs.show,
        "cancelRun": runs.cancel,
        "redriveRun": runs.redrive,
        "listWorkflows": runs.workflows,
        "listDeadLetters": runs.dlq,
        "redriveDeadLetters": runs.redrive_dlq,
    }

    async def hook(request: Request) -> Response:
        return await _answered(runs.webhook(request), request)

    async def alive() -> Response:
        return _json({"status": "ok"})

    async def described() -> Response:
        return _json(openapi.document())

    unguarded: dict[str, Callable[..., Awaitable[Response]]] = {"startRunByWebhook": hook, "isAlive": alive}
    for each in openapi.RUN_OPERATIONS:
        name = each.operation_id
        call = unguarded[name] if each.role is None else _guarded(services, each.role, guarded[name])
        app.add_api_route(each.path, call, methods=[each.method])
    app.add_api_route(openapi.DOCUMENT_PATH, described, methods=["GET"])

    async def unmatched(request: Request, fault: Exception) -> Response:
        status = fault.status_code if isinstance(fault, HTTPException) else 500
        code = {404: RunCode.NOT_FOUND, 405: RunCode.METHOD_NOT_ALLOWED}.get(status, RunCode.INTERNAL)
        return problem(RunRefused(code, f"{request.method} {request.url.path} is not here."))

    app.add_exception_handler(HTTPException, unmatched)
    return app


def _guarded(services: Services, role: str, route: Route) -> Callable[[Request], Awaitable[Response]]:
    async def call(request: Request) -> Response:
        principal = _principal(services.keys, request)
        if isinstance(principal, RunRefused):
            return problem(principal)
        if role not in principal.roles:
            return problem(RunRefused(RunCode.FORBIDDEN, f"The key {principal.name} lacks the role {role}."))
        return await _answered(route(_Call(request, principal)), request)

    return call


async def _answered(work: Awaitable[Answered], request: Request) -> Response:
    try:
        answer = await work
    except Exception as fault:
        log.exception(
            "request_failed", path=request.url.path, fault=type(fault).__name__, why=str(fault)[:200]
        )
        if isinstance(fault, TableUnavailable | Contended | OSError):
            text = "The table or the queue did not answer; try again shortly."
            answer = RunRefused(RunCode.SYSTEM_SATURATED, text)
        else:
            answer = RunRefused(RunCode.INTERNAL, "Asking again will not help; the log says what is wrong.")
    return problem(answer) if isinstance(answer, RunRefused) else answer


def _principal(keys: CallerKeys | None, request: Request) -> ApiCaller | RunRefused:
    if keys is None:
        return EVERY_CALLER
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    found = keys.principal(key.strip()) if scheme.lower() == "bearer" else None
    return found or RunRefused(
        RunCode.UNAUTHENTICATED, "Send a key of this API as `Authorization: Bearer KEY`."
    )


class _Runs:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._runs = services.runs
        self._dead_letters = DeadLetters(
            queue=services.queue, table=services.table, runs=services.runs, now_ms=services.now_ms
        )

    async def submit(self, call: _Call) -> Answered:
        body = await _body(call.request)
        if isinstance(body, RunRefused):
            return body
        asked = _run_of(body, call.request.headers.get("idempotency-key"))
        if isinstance(asked, RunRefused):
            return asked
        if not call.principal.sees(asked.workspace_id):
            return RunRefused(RunCode.FORBIDDEN, f"The key {call.principal.name} is not for this workspace.")
        return await self._submitted(asked)

    async def webhook(self, request: Request) -> Answered:
        secret = self._services.webhook_secret
        if secret is None:
            return RunRefused(
                RunCode.NOT_FOUND, "No webhooks are taken here: LIFEBOOK_WEBHOOK_SECRET is not set."
            )
        body = await _body(request)
        if isinstance(body, RunRefused):
            return body
        workflow_id = str(request.path_params["workflow_id"])
        asked = of_webhook(workflow_id, body, request.headers, secret=secret)
        return asked if isinstance(asked, RunRefused) else await self._submitted(asked)

    async def _submitted(self, asked: RunRequest) -> Answered:
        submitted = await self._runs.submit(asked)
        if isinstance(submitted, RunRefused):
            return submitted
        job = submitted.job
        headers = {"Location": f"/v1/runs/{job.job_id}"}
        if submitted.duplicate:
            headers["Idempotent-Replayed"] = "true"
        shown = {"job_id": job.job_id, "status": job.status, "duplicate": submitted.duplicate}
        return _json(shown, status=202, headers=headers)

    async def show(self, call: _Call) -> Answered:
        job = await self._seen(call)
        return job if isinstance(job, RunRefused) else _json(plain(job))

    async def page(self, call: _Call) -> Answered:
        asked = call.request.query_params
        workspace_id = asked.get("workspace_id", "")
        if not is_text(workspace_id):
            text = "workspace_id is required, as 1 to 256 printable characters: runs are listed by workspace."
            return RunRefused(RunCode.INVALID_REQUEST, text, (InputFault("/workspace_id", text),))
        if not call.principal.sees(workspace_id):
            return RunRefused(RunCode.FORBIDDEN, f"The key {call.principal.name} is not for this workspace.")
        limit = asked.get("limit", str(PAGE_ROWS_DEFAULT))
        is_number = limit.isascii() and limit.isdigit() and len(limit) < 10
        if not (is_number and 1 <= int(limit) <= PAGE_ROWS_MAX):
            text = f"limit must be from 1 to {PAGE_ROWS_MAX}."
            return RunRefused(RunCode.INVALID_REQUEST, text, (InputFault("/limit", text),))
        try:
            page = await self._services.table.page(
                workspace_id,
                now_ms=self._services.now_ms(),
                rows_max=int(limit),
                cursor=asked.get("cursor") or None,
            )
        except BadCursor as fault:
            return RunRefused(RunCode.INVALID_REQUEST, str(fault), (InputFault("/cursor", str(fault)),))
        return _json({"items": [_row(row) for row in page.rows], "next_cursor": page.cursor})

    async def cancel(self, call: _Call) -> Answered:
        return await self._controlled(call, self._runs.cancel)

    async def redrive(self, call: _Call) -> Answered:
        return await self._controlled(call, self._runs.redrive)

    async def _controlled(
        self, call: _Call, control: Callable[[str], Awaitable[LifebookJob | RunRefused]]
    ) -> Answered:
        seen = await self._seen(call)
        if isinstance(seen, RunRefused):
            return seen
        job = await control(seen.job_id)
        return job if isinstance(job, RunRefused) else _json(plain(job), status=202)

    async def workflows(self, call: _Call) -> Answered:
        registry = self._services.workflows
        known = [each for name in registry.names() if (each := registry.get(name)) is not None]
        items = [
            {
                "workflow_id": each.name,
                "credits_estimate": decimal_text(each.credits),
                "steps": [step.name for step in each.steps],
            }
            for each in known
        ]
        return _json({"items": items, "next_cursor": None})

    async def dlq(self, call: _Call) -> Answered:
        letters = await self._dead_letters.listed(_workspaces_of(call.principal))
        items = [
            {
                "message_id": each.delivery.message_id,
                "job_id": each.job_id,
                "status": None if each.job is None else each.job.status,
                "last_error_code": None if each.job is None else each.job.last_error_code,
                "reason": each.delivery.reason,
            }
            for each in letters
        ]
        return _json({"items": items, "next_cursor": None})

    async def redrive_dlq(self, call: _Call) -> Answered:
        done = await self._dead_letters.redrive(_workspaces_of(call.principal))
        refused = [
            {"job_id": each.job_id, "code": each.refusal.code, "detail": each.refusal.message}
            for each in done.refused
        ]
        shown = {
            "redriven": list(done.redriven),
            "refused": refused,
            "returned": done.returned.messages,
            "task": done.returned.task,
        }
        return _json(shown, status=202)

    async def _seen(self, call: _Call) -> LifebookJob | RunRefused:
        job_id = call.path("job_id")
        if not may_be_id(job_id):
            return RunRefused(RunCode.JOB_NOT_FOUND, "There is no run with such an id.")
        job = await self._services.table.get(job_id, now_ms=self._services.now_ms())
        if job is None or not call.principal.sees(job.workspace_id):
            return RunRefused(RunCode.JOB_NOT_FOUND, f"There is no run {job_id}.")
        return job


def _workspaces_of(caller: ApiCaller) -> Sees | None:
    return None if caller.workspaces is None else caller.sees


async def _body(request: Request) -> bytes | RunRefused:
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > BODY_BYTES_MAX:
            return RunRefused(RunCode.BODY_TOO_LARGE, f"The body has more than {BODY_BYTES_MAX} bytes.")
        chunks.append(chunk)
    return b"".join(chunks)


def _run_of(body: bytes, key: str | None) -> RunRequest | RunRefused:
    try:
        asked = msgspec.json.decode(body, type=RunBody)
    except msgspec.ValidationError as fault:
        text, _, place = str(fault).partition(" - at `$")
        pointer = place.rstrip("`").replace(".", "/")
        return RunRefused(RunCode.INVALID_REQUEST, text, (InputFault(pointer, text),))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return RunRefused(RunCode.MALFORMED_JSON, "The body is not JSON.")
    if key is not None and asked.idempotency_key not in (None, key):
        text = "The header Idempotency-Key and the member idempotency_key disagree."
        return RunRefused(RunCode.INVALID_REQUEST, text, (InputFault("/idempotency_key", text),))
    if asked.max_attempts is not None and not 1 <= asked.max_attempts <= 100:
        text = "max_attempts must be from 1 to 100."
        return RunRefused(RunCode.INVALID_REQUEST, text, (InputFault("/max_attempts", text),))
    estimate = asked.credits_estimate
    try:
        credits_ = None if estimate is None else checked_credits(str(estimate), "credits_estimate")
    except BadStepValue as fault:
        return RunRefused(RunCode.INVALID_REQUEST, str(fault), (InputFault("/credits_estimate", str(fault)),))
    return RunRequest(
        workspace_id=asked.workspace_id,
        user_id=asked.user_id,
        workflow_id=asked.workflow_id,
        trigger_type=asked.trigger_type,
        input=asked.input,
        idempotency_key=asked.idempotency_key if key is None else key,
        credits_estimate=credits_,
        max_attempts=asked.max_attempts,
    )


def _row(row: JobSummary) -> dict[str, Json]:
    return {
        "job_id": row.job_id,
        "workspace_id": row.workspace_id,
        "created_at": rfc3339(row.created_at),
        "status": row.status,
        "workflow_id": row.workflow_id,
        "trigger_type": row.trigger_type,
        "credits_estimate": decimal_text(row.credits_estimate),
    }


def _json(content: Json, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    body = msgspec.json.encode(content)
    return Response(body, status_code=status, headers=headers, media_type="application/json")


def problem(refused: RunRefused) -> Response:
    status, title = PROBLEMS[refused.code]
    document: dict[str, Json] = {
        "type": openapi.problem_type(refused.code),
        "title": title,
        "status": status,
        "code": refused.code.value,
        "detail": refused.message,
    }
    if refused.errors:
        document["errors"] = [{"pointer": each.pointer, "message": each.message} for each in refused.errors]
    headers = {}
    if refused.code is RunCode.UNAUTHENTICATED:
        headers["WWW-Authenticate"] = "Bearer"
    if refused.code is RunCode.SYSTEM_SATURATED:
        headers["Retry-After"] = "2"
    return Response(
        msgspec.json.encode(document), status_code=status, headers=headers, media_type=openapi.PROBLEM_TYPE
    )
