"""The calls of a platform service, answered as Lucius answers them: leases, callbacks, and whether an attempt
still counts.

In: HTTP requests of the service. Out: directives from a queue of its own, and the transcript's answers. Calls
that Lucius would refuse are refused here with the same codes, and written down.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lucius.api.bodies import ENVELOPE_BYTES_MAX, read_body
from lucius.api.problems import problem
from lucius.certify.transcript import ObservedAttempt, Transcript
from lucius.certify.values import Json
from lucius.contracts.schemas import is_service_name
from lucius.core.refusal import Refused
from lucius.core.routing import LANES

DIRECTIVES_MAX = 100
WAIT_SECONDS_MAX = 30

_encode = msgspec.json.encode


class _LeaseRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    service: str
    max: int | None = None
    wait_seconds: float | None = None
    lanes: list[int] | None = None


class Queued(msgspec.Struct, frozen=True, kw_only=True):
    message: Json
    attempt: ObservedAttempt | None  # None: nothing that could be answered


class HttpSide:
    """A queue of directives for one service, with long polling; and the doors for its replies."""

    def __init__(self, transcript: Transcript, service: str) -> None:
        self._transcript = transcript
        self._service = service
        self._queue: deque[Queued] = deque()
        self._changed = asyncio.Condition()
        self._shift = 0  # polls of an earlier one are answered with nothing
        self._closed = False
        self.polls = 0
        self._open = 0

    def app(self) -> Starlette:
        doors = [
            Route(f"/v1/callbacks/{kind}", self._reply(kind.upper()), methods=["POST"])
            for kind in ("ack", "progress", "result")
        ]
        return Starlette(
            routes=[
                Route("/v1/directives:lease", self._lease, methods=["POST"]),
                Route("/v1/callbacks/attempt", self._attempt, methods=["GET"]),
                *doors,
            ],
        )

    # -- what the certifier does ---------------------------------------------------------------------------

    async def send(self, attempt: ObservedAttempt) -> None:
        await self._put(Queued(message=attempt.directive, attempt=attempt))

    async def send_poison(self, message: Json) -> None:
        await self._put(Queued(message=message, attempt=None))

    async def withdraw(self) -> None:
        """Nothing that was not taken yet is handed out any more."""
        self._queue.clear()

    async def end_polls(self) -> None:
        """Polls that wait now end empty: the service that made them may be gone."""
        async with self._changed:
            self._shift += 1
            self._changed.notify_all()

    async def close(self) -> None:
        """From now on no poll waits."""
        self._closed = True
        await self.end_polls()

    async def until_polled(self, seconds: float) -> bool:
        """Whether the service asks for work, from now on, in time."""
        seen = self.polls
        return await self._until(lambda: self.polls > seen, seconds)

    async def until_unpolled(self, seconds: float) -> bool:
        """Whether no poll waits for work any more, in time."""
        return await self._until(lambda: not self._open, seconds)

    async def until_taken(self, seconds: float) -> bool:
        """Whether the queue is empty in time."""
        return await self._until(lambda: not self._queue, seconds)

    async def _until(self, holds: Callable[[], bool], seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(holds)
        except TimeoutError:
            return holds()
        return True

    async def _put(self, queued: Queued) -> None:
        async with self._changed:
            self._queue.append(queued)
            self._changed.notify_all()

    # -- what the service asks for -------------------------------------------------------------------------

    async def _lease(self, request: Request) -> Response:
        body = await read_body(request, ENVELOPE_BYTES_MAX)
        if isinstance(body, Refused):
            self._transcript.stray(f"a lease that Lucius refuses: {body.message}")
            return problem(body)
        wanted = self._wanted(body)
        if isinstance(wanted, str):
            self._transcript.stray(f"a lease that Lucius refuses: {wanted}")
            return _problem(422, "INVALID_ENVELOPE", wanted)
        if wanted.service != self._service:
            # Lucius would have nothing for it either.
            self._transcript.stray(f"a lease for the service {wanted.service!r} instead of {self._service!r}")
        self._open += 1
        try:
            taken = await self._taken_unless_gone(wanted, request)
        finally:
            self._open -= 1
        async with self._changed:
            self._changed.notify_all()
        return _answer(200, {"directives": [queued.message for queued in taken]})

    async def _taken_unless_gone(self, wanted: _LeaseRequest, request: Request) -> list[Queued]:
        taking = asyncio.create_task(self._take(wanted))
        gone = asyncio.ensure_future(request.receive())
        await asyncio.wait({taking, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not taking.done():
            taking.cancel()
            await asyncio.wait({taking})
        return [] if taking.cancelled() else taking.result()

    def _wanted(self, body: bytes) -> _LeaseRequest | str:
        try:
            wanted = msgspec.json.decode(body, type=_LeaseRequest)
        except msgspec.DecodeError as fault:
            return str(fault)
        if not is_service_name(wanted.service):
            return "/service: must be the name of a service"
        if wanted.max is not None and not 1 <= wanted.max <= DIRECTIVES_MAX:
            return f"/max: must be a whole number from 1 to {DIRECTIVES_MAX}"
        if wanted.wait_seconds is not None and not 0 <= wanted.wait_seconds <= WAIT_SECONDS_MAX:
            return f"/wait_seconds: must be a number from 0 to {WAIT_SECONDS_MAX}"
        if wanted.lanes is not None and not all(0 <= lane < LANES for lane in wanted.lanes):
            return f"/lanes: must be an array of lanes, 0 to {LANES - 1}"
        return wanted

    async def _take(self, wanted: _LeaseRequest) -> list[Queued]:
        try:
            async with asyncio.timeout(wanted.wait_seconds or 0.001), self._changed:
                self.polls += 1
                self._changed.notify_all()
                shift = self._shift
                ours = wanted.service == self._service
                await self._changed.wait_for(lambda: self._over(shift) or (ours and self._queue))
                if self._over(shift):
                    return []
                count = min(wanted.max or 1, len(self._queue))
                taken = [self._queue.popleft() for _ in range(count)]
                self._changed.notify_all()
        except TimeoutError:
            return []
        for queued in taken:
            if queued.attempt is not None:
                await self._transcript.handed(queued.attempt)
        return taken

    def _over(self, shift: int) -> bool:
        return self._closed or self._shift != shift

    def _reply(self, kind: str) -> Callable[[Request], Awaitable[Response]]:
        async def reply(request: Request) -> Response:
            attempt = self._opened(request)
            body = await read_body(request, ENVELOPE_BYTES_MAX)
            if isinstance(body, Refused):
                self._transcript.stray(
                    f"a body at the address of the {kind} that Lucius refuses: {body.message}"
                )
                return problem(body)
            try:
                message = msgspec.json.decode(body)
            except msgspec.DecodeError:
                self._transcript.stray(f"a body at the address of the {kind} that is not JSON")
                return _problem(400, "MALFORMED_JSON", "the body is not JSON")
            if attempt is None:
                self._transcript.stray(f"a {kind} without the callback_token of a directive")
                return _problem(401, "UNAUTHENTICATED", "a callback needs the callback_token")
            if not isinstance(message, dict):
                self._transcript.stray(f"a {kind} that is not an object")
                return _problem(422, "INVALID_ENVELOPE", "the message must be a JSON object")
            header = request.headers.get("traceparent")
            answer = await self._transcript.record_reply(attempt, message, side=kind, trace_header=header)
            if answer.status == 200:
                return _answer(200, {"outcome": answer.outcome, "stop": answer.stop})
            code = {409: "STALE_ATTEMPT", 422: "INVALID_ENVELOPE"}.get(answer.status, "SYSTEM_SATURATED")
            return _problem(answer.status, code, "so says the certificate", stop=answer.stop)

        return reply

    async def _attempt(self, request: Request) -> Response:
        attempt = self._opened(request)
        if attempt is None:
            self._transcript.stray("a question about an attempt without the callback_token of a directive")
            return _problem(401, "UNAUTHENTICATED", "a callback needs the callback_token")
        return _answer(200, await self._transcript.asked(attempt))

    def _opened(self, request: Request) -> ObservedAttempt | None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        return self._transcript.attempts.get(token.strip()) if scheme.lower() == "bearer" else None


def _answer(status: int, document: Json) -> Response:
    return Response(_encode(document), status_code=status, media_type="application/json")


def _problem(status: int, code: str, detail: str, **more: Json) -> Response:
    document = {"type": "about:blank", "title": code, "status": status, "code": code, "detail": detail}
    return Response(_encode({**document, **more}), status_code=status, media_type="application/problem+json")
