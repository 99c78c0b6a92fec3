"""What holds for every call, in front of all routes: a correlation id, a count, a log line, a time limit for
the body.

In: any ASGI application. Out: the same, whose answers carry `X-Correlation-Id`, whose requests are counted by
route, method and status, and whose bodies must arrive in time. Knows nothing of what the routes do. Every
call comes through here, so what a log line needs is put together only when one is written.
"""

import asyncio
import re
from collections.abc import Callable
from typing import Any, Final

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lucius.telemetry import Metrics
from lucius.telemetry.context import REQUEST, RequestIds
from lucius.telemetry.logs import request_log

CORRELATION_HEADER = b"x-correlation-id"
REQUEST_ID_HEADER = b"x-request-id"
# Only what can do no harm in a header, a log line or a shell is taken over from a caller.
_safe_id = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:@/+=-]{0,127}").fullmatch

ROUTE_KEY: Final = "lucius.route"
UNMATCHED: Final = "unmatched"
ABORTED = "aborted"
BODILESS = frozenset({"GET", "HEAD", "OPTIONS"})
LOOKS_PER_BODY_TIME = 8
LOOK_SECONDS_MAX = 1.0

_GONE: Message = {"type": "http.disconnect"}
_CLOSE = (b"connection", b"close")


class AccessOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`access_log`: writes a line for each request. `body_seconds_max`: how long a body may take."""

    access_log: bool = False
    body_seconds_max: float = 30.0


class AccessObserver(msgspec.Struct, frozen=True):
    """What the middleware needs. `clock` counts seconds from anywhere, and never back."""

    metrics: Metrics
    options: AccessOptions
    clock: Callable[[], float]
    new_id: Callable[[], str]


class AccessMiddleware:
    def __init__(self, app: ASGIApp, watching: AccessObserver) -> None:
        """`app` writes the path of the route that a request has found into its scope (`ROUTE_KEY`)."""
        self._app = app
        self._clock = watching.clock
        self._new_id = watching.new_id
        self._metrics = watching.metrics
        self._log = request_log() if watching.options.access_log else None
        self._bodies = BodyWatch(watching.options.body_seconds_max)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = self._clock()
        given = _given_id(scope["headers"])
        correlation_id = self._new_id() if given is None else given.decode()
        header = (CORRELATION_HEADER, correlation_id.encode() if given is None else given)
        body = None if scope["method"] in BODILESS else self._bodies.body(receive)
        status = ABORTED

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
                headers = [*message.get("headers", ()), header]
                if body is not None and body.late:
                    headers.append(_CLOSE)
                message["headers"] = headers
            await send(message)

        named = REQUEST.set(RequestIds(correlation_id, scope["path"]))
        try:
            await self._app(scope, receive if body is None else body.receive, send_on)
        finally:
            if body is not None:
                body.leave()
            seconds = self._clock() - began
            route = scope.get(ROUTE_KEY, UNMATCHED)
            self._metrics.request(route, scope["method"], status, seconds)
            if self._log is not None:
                self._write(correlation_id, route, scope["method"], status, seconds)
            REQUEST.reset(named)

    def _write(self, correlation_id: str, route: str, method: str, status: str, seconds: float) -> None:
        log: Any = self._log
        log.info(
            "request",
            correlation_id=correlation_id,
            method=method[:16],
            path=route,
            status=int(status) if status.isdecimal() else status,
            duration_ms=round(seconds * 1000, 3),
        )


def _given_id(headers: list[tuple[bytes, bytes]]) -> bytes | None:
    """The caller's id for this request, if it sent one that is safe to repeat."""
    found = None
    for name, value in headers:
        if name == CORRELATION_HEADER and _safe_id(value):
            return value
        if name == REQUEST_ID_HEADER and found is None and _safe_id(value):
            found = value
    return found


class BodyWatch:
    """Bodies that are on their way, and a look at them now and then while there are any.

    A timer for each request would cost more than most requests' bodies do, which are there at once.
    """

    def __init__(self, seconds_max: float) -> None:
        self._seconds_max = seconds_max
        self._look_seconds = min(LOOK_SECONDS_MAX, seconds_max / LOOKS_PER_BODY_TIME)
        self._bodies: dict[_Body, float] = {}
        self._looking: asyncio.TimerHandle | None = None

    def body(self, receive: Receive) -> "_Body":
        return _Body(self, receive)

    def wait_for(self, body: "_Body") -> None:
        loop = asyncio.get_running_loop()
        self._bodies[body] = loop.time() + self._seconds_max
        if self._looking is None:
            self._looking = loop.call_later(self._look_seconds, self._look, loop)

    def leave(self, body: "_Body") -> None:
        self._bodies.pop(body, None)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        # They came in the order of their deadlines.
        for body, deadline in list(self._bodies.items()):
            if deadline > now:
                break
            body.give_up()
        self._looking = loop.call_later(self._look_seconds, self._look, loop) if self._bodies else None


class _Body:
    """A request's `receive`, for as long as its body is not complete; then, and for whatever comes after it,
    the server's own."""

    __slots__ = ("_receive", "_task", "_watch", "complete", "late")

    def __init__(self, watch: BodyWatch, receive: Receive) -> None:
        self._watch = watch
        self._receive = receive
        self._task: asyncio.Task[Any] | None = None
        self.complete = False
        self.late = False
        watch.wait_for(self)

    async def receive(self) -> Message:
        if self.complete:
            return await self._receive()
        if self.late:
            return _GONE
        self._task = asyncio.current_task()
        try:
            message = await self._receive()
        except asyncio.CancelledError:
            # Woken by the watch: to the reader, a body that does not come is a sender that went away.
            if not self.late or self._task is None or self._task.uncancel() > 0:
                raise
            return _GONE
        finally:
            self._task = None
        if not message.get("more_body", False):
            self.complete = True
            self._watch.leave(self)
        return message

    def give_up(self) -> None:
        self.late = True
        self._watch.leave(self)
        if self._task is not None:
            self._task.cancel()

    def leave(self) -> None:
        if not self.complete:
            self._watch.leave(self)
