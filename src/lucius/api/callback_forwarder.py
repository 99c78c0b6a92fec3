"""Callbacks that reach the orchestrator are forwarded to the invoker, which alone writes.

In: any application. Out: the same, whose calls below `/v1/callbacks/` are answered by the invoker: its status
and its words. A service need not know which of the two it talks to, and one address serves all. Only paths
known by name are forwarded: no path that a caller makes up may lead to the internal calls.
"""

import ssl

import httpx2
import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from lucius.api.access import ROUTE_KEY
from lucius.api.bodies import ENVELOPE_BYTES_MAX, read_body
from lucius.api.problems import problem
from lucius.api.routes import CALLBACK_ROUTES
from lucius.core.refusal import Code, Refused
from lucius.engines.temporal.controls import CONNECTIONS_MAX, IDLE_SECONDS_MAX

PREFIX = "/v1/callbacks/"
PATHS = frozenset(route.path for route in CALLBACK_ROUTES)
CALL_SECONDS_MAX = 15.0  # the invoker writes, and signals the workflow
RETRY_AFTER_SECONDS = 1

_ASKED = ("authorization", "content-type", "x-correlation-id")
_ANSWERED = ("content-type", "retry-after", "allow", "www-authenticate")

log = structlog.get_logger("lucius.passing")


class CallbackForwarder:
    def __init__(self, app: ASGIApp, invoker: httpx2.AsyncClient) -> None:
        """`invoker` must not show the secret: callers show tokens of their own (see `callback_client`)."""
        self._app = app
        self._invoker = invoker

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(PREFIX):
            await self._app(scope, receive, send)
            return
        if scope["path"] in PATHS:
            scope[ROUTE_KEY] = scope["path"]
            response = await self._forward(Request(scope, receive))
        else:
            response = problem(Refused(Code.NOT_FOUND, "there is no such callback"))
        await response(scope, receive, send)

    async def _forward(self, request: Request) -> Response:
        body = await read_body(request, ENVELOPE_BYTES_MAX)
        if isinstance(body, Refused):
            return problem(body)
        headers = {name: request.headers[name] for name in _ASKED if name in request.headers}
        try:
            answer = await self._invoker.request(
                request.method, request.scope["path"], content=body, headers=headers
            )
        except (httpx2.HTTPError, httpx2.InvalidURL, ssl.SSLError) as fault:
            log.warning("callback_not_passed_on", path=request.scope["path"], error=type(fault).__name__)
            message = "the invoker gave no answer; send it again, which does no harm"
            return problem(Refused(Code.SYSTEM_SATURATED, message, retry_after_seconds=RETRY_AFTER_SECONDS))
        kept = {name: answer.headers[name] for name in _ANSWERED if name in answer.headers}
        return Response(answer.content, status_code=answer.status_code, headers=kept)


def callback_client(url: str, tls: ssl.SSLContext | None = None) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        base_url=url.rstrip("/"),
        timeout=CALL_SECONDS_MAX,
        limits=httpx2.Limits(
            max_connections=CONNECTIONS_MAX,
            max_keepalive_connections=CONNECTIONS_MAX,
            keepalive_expiry=IDLE_SECONDS_MAX,
        ),
        verify=True if tls is None else tls,
        trust_env=False,
        follow_redirects=False,
    )
