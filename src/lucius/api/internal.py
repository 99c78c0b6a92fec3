"""The internal API: what workflows ask for, and the controls that the orchestrator forwards.

Never on the public port. Every call but `/livez` and `/readyz` shows the shared secret; without it nothing
else of a request is looked at. Answers are verdicts with positions, and only what is done has the
status `ok`. Refusals are problem documents, and so is the answer if the bus did not take a directive.
"""

import hmac
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec
import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from lucius.api.bodies import ENVELOPE_BYTES_MAX, read_json, read_object
from lucius.api.gate import bearer_of
from lucius.api.health import alive, ready
from lucius.api.problems import answer, problem, unreadable
from lucius.api.routes import CALLBACK_ROUTES
from lucius.api.routing import Router
from lucius.contracts.internal import (
    AttemptRequest,
    ControlRequest,
    ExpireRequest,
    InternalAnswer,
    PublishRequest,
    Verdict,
)
from lucius.contracts.times import parse_rfc3339
from lucius.core.inputs import Cancel, DispatchNow, Pause, Resume, Wish
from lucius.core.model import Json
from lucius.core.refusal import Code, FieldError, Refused
from lucius.engines.temporal.invoker import Invoker
from lucius.jobs.sizes import UPSTREAM_BYTES_MAX
from lucius.jobs.tokens import CallbackTokens
from lucius.jobs.writer import InputHandler
from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.store import StoreError, Unreadable
from lucius.registry.documents import STEPS_MAX
from lucius.telemetry.context import Subject
from lucius.telemetry.health import Checks

BODY_BYTES_MAX = 64 * 1024
# A whole directive: the largest envelope, and beside it what the steps before this one made.
DIRECTIVE_BYTES_MAX = ENVELOPE_BYTES_MAX + STEPS_MAX * UPSTREAM_BYTES_MAX
CALLS_MAX = 256  # at a time; more are sent away and come again
SECRET_LENGTH_MIN = 16
RETRY_AFTER_SECONDS = 1

log = structlog.get_logger("lucius.internal")

_visible = re.compile(rf"[!-~]{{{SECRET_LENGTH_MIN},}}").fullmatch
_name = re.compile(r"[A-Za-z0-9_-]{1,64}").fullmatch
_CONTROLS: dict[str, type[Wish]] = {
    "cancel": Cancel,
    "pause": Pause,
    "resume": Resume,
    "hurry": DispatchNow,
}

Asked = TypeVar("Asked", AttemptRequest, PublishRequest, ExpireRequest)
Handler = Callable[[Request], Awaitable[Response]]


def make_internal_app(invoker: Invoker, secrets: Sequence[str], checks: Checks) -> Starlette:
    """`secrets`: those that are taken; several while one replaces another."""
    gate = _SecretGate(secrets)

    def told(
        ask: AttemptRequest | PublishRequest | ExpireRequest, result: InternalAnswer | Refused
    ) -> Response:
        """With the job's trace, to which the worker adds its spans."""
        response = _response(result)
        traceparent = None if isinstance(result, Refused) else invoker.traceparent_of(ask.jobId)
        if traceparent is not None:
            response.headers["traceparent"] = traceparent
        return response

    async def attempt(request: Request) -> Response:
        ask = await _read(request, AttemptRequest)
        if isinstance(ask, Refused):
            return _response(ask)
        return told(ask, await invoker.attempt(ask, partial(_gone, request)))

    async def publish(request: Request) -> Response:
        ask = await _read(request, PublishRequest)
        return _response(ask) if isinstance(ask, Refused) else told(ask, await invoker.publish(ask))

    async def expire(request: Request) -> Response:
        ask = await _read(request, ExpireRequest)
        return _response(ask) if isinstance(ask, Refused) else told(ask, await invoker.expire(ask))

    def control(wanted: type[Wish]) -> Handler:
        async def handle(request: Request) -> Response:
            job_id = request.path_params["job_id"]
            if not _name(job_id):
                return problem(Refused(Code.JOB_NOT_FOUND, "there is no such job"))
            ask = await _read_control(request)
            return _response(
                ask if isinstance(ask, Refused) else await invoker.control(job_id, wanted(), ask)
            )

        return handle

    async def livez(request: Request) -> Response:
        return alive()

    async def readyz(request: Request) -> Response:
        return await ready(checks)

    calls: dict[str, Handler] = {
        "/v1/internal/steps/attempt": attempt,
        "/v1/internal/publish": publish,
        "/v1/internal/steps/expire": expire,
        **{f"/v1/internal/jobs/{{job_id}}:{verb}": control(wanted) for verb, wanted in _CONTROLS.items()},
    }
    routes = [Route(path, gate.guarded(handler), methods=["POST"]) for path, handler in calls.items()]
    routes += [Route("/livez", livez), Route("/readyz", readyz)]
    handlers = {StoreError: _store_fault, HTTPException: _no_route, Exception: _fault}
    return Starlette(routes=routes, exception_handlers=handlers)


class _SecretGate:
    def __init__(self, secrets: Sequence[str]) -> None:
        if not secrets or not all(_visible(secret) for secret in secrets):
            # Anything else could never be shown in a header, and would lock every caller out.
            least = f"{SECRET_LENGTH_MIN} visible ASCII characters or more, without spaces"
            raise ValueError(f"the internal API needs a secret of {least}")
        self._secrets = [secret.encode() for secret in secrets]
        self._calls = 0

    def guarded(self, handler: Handler) -> Handler:
        async def handle(request: Request) -> Response:
            if not self._knows(bearer_of(request)):
                return problem(Refused(Code.UNAUTHENTICATED, "this call needs the internal secret"))
            if self._calls >= CALLS_MAX:
                message = f"{CALLS_MAX} calls are being answered already"
                return problem(
                    Refused(Code.SYSTEM_SATURATED, message, retry_after_seconds=RETRY_AFTER_SECONDS)
                )
            self._calls += 1
            try:
                return await handler(request)
            finally:
                self._calls -= 1

        return handle

    def _knows(self, given: str | None) -> bool:
        # All are compared, so that the time taken says nothing.
        shown = (given or "").encode()
        return sum(hmac.compare_digest(shown, secret) for secret in self._secrets) > 0


async def _read(request: Request, kind: type[Asked]) -> Asked | Refused:
    """The question. A publish may come as the full directive, whose own members name the attempt."""
    document = await read_json(request, DIRECTIVE_BYTES_MAX if kind is PublishRequest else BODY_BYTES_MAX)
    if kind is PublishRequest and not isinstance(document, Refused):
        document = _directive_in(document)
    if isinstance(document, Refused):
        return document
    try:
        ask = msgspec.convert(document, kind)
    except msgspec.ValidationError as fault:
        return Refused(Code.INVALID_ENVELOPE, str(fault))
    if not all(_name(word) for word in (ask.jobId, ask.stepId, ask.lease_id)) or ask.attempt_no < 1:
        message = "jobId, stepId and lease_id are 1 to 64 letters, digits, _ or -; attempt_no counts from 1"
        return Refused(Code.INVALID_ENVELOPE, message)
    request.state.subject = Subject(ask.jobId, _AttemptNames(ask))
    expected = ask.lease_expires_at if isinstance(ask, AttemptRequest) else None
    if expected is not None and parse_rfc3339(expected) is None:
        return _member_refused("lease_expires_at", "must be a time such as 2027-01-15T08:00:00Z")
    return ask


def _directive_in(document: Json) -> Json | Refused:
    """`{lane, directive}` as the members of the directive; both may name the lane."""
    if not isinstance(document, dict) or "directive" not in document:
        return document
    directive = document["directive"]
    if not isinstance(directive, dict) or directive.get("type", "DIRECTIVE") != "DIRECTIVE":
        return _member_refused("directive", "must be a message of type DIRECTIVE")
    lane = document.get("lane", directive.get("lane"))
    if directive.get("lane", lane) != lane:
        return _member_refused("lane", "is not the lane of the directive")
    return {**directive, "lane": lane}


def _member_refused(name: str, message: str) -> Refused:
    return Refused(Code.INVALID_ENVELOPE, f"{name} {message}", (FieldError(f"/{name}", message),))


async def _read_control(request: Request) -> ControlRequest | Refused:
    document = await read_object(request, optional=True)
    if isinstance(document, Refused):
        return document
    try:
        return msgspec.convert(document, ControlRequest)
    except msgspec.ValidationError as fault:
        return Refused(Code.INVALID_ENVELOPE, str(fault))


class _AttemptNames:
    """What a question names, as log lines spell it."""

    def __init__(self, ask: AttemptRequest | PublishRequest | ExpireRequest) -> None:
        self.step_id, self.attempt_no, self.lease_id = ask.stepId, ask.attempt_no, ask.lease_id
        self.tenant_id = ask.tenant_id


def _ids(request: Request) -> dict[str, Json]:
    subject: Subject | None = getattr(request.state, "subject", None)
    return {} if subject is None else subject.ids()


async def _gone(request: Request) -> None:
    """Returns when the connection of a request that was read is closed."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _response(result: InternalAnswer | Refused) -> Response:
    if isinstance(result, Refused):
        return problem(result)
    status = "ok" if result.verdict is Verdict.GO else result.verdict.value
    document: dict[str, Json] = {"status": status, **msgspec.to_builtins(result)}
    return answer(document)


async def _store_fault(request: Request, fault: Exception) -> Response:
    if isinstance(fault, Unreadable):
        return problem(unreadable(fault))
    log.warning("store_fault", path=request.url.path, **_ids(request), error=str(fault))
    message = "the ledger cannot take this now"
    return problem(Refused(Code.SYSTEM_SATURATED, message, retry_after_seconds=RETRY_AFTER_SECONDS))


async def _no_route(request: Request, fault: Exception) -> Response:
    if isinstance(fault, HTTPException) and fault.status_code == 405:
        return problem(Refused(Code.METHOD_NOT_ALLOWED, "this address does not take that method"))
    return problem(Refused(Code.NOT_FOUND, "there is nothing here"))


async def _fault(request: Request, fault: Exception) -> Response:
    log.error("request_failed", path=request.url.path, **_ids(request), exc_info=fault)
    return problem(Refused(Code.INTERNAL, "something went wrong; the log has it"))


class CallbackServices(msgspec.Struct, frozen=True, kw_only=True):
    """`inputs` notifies workflows too."""

    tokens: CallbackTokens
    inputs: InputHandler
    ledger: JobLedger


def make_callback_app(services: CallbackServices) -> ASGIApp:
    """For a port that services reach. Each call opens nothing but the attempt that its token names."""
    return Router(CALLBACK_ROUTES, services)


CALLBACKS = "/v1/callbacks/"
HEALTH = frozenset({"/livez", "/readyz", "/metrics"})


class InvokerApp:
    def __init__(self, internal: ASGIApp, callbacks: ASGIApp, health: ASGIApp) -> None:
        self._internal = internal
        self._callbacks = callbacks
        self._health = health

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._internal
        if scope["type"] == "http":
            path: str = scope["path"]
            if path.startswith(CALLBACKS):
                app = self._callbacks
            elif path in HEALTH:
                app = self._health
        await app(scope, receive, send)
