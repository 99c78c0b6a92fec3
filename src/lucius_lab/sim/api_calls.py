"""The doors of a simulated Lucius: what its routes do once a request is read, for callers in other processes.

`ApiCalls` knows which orchestrator processes are there and lets others call them. `answer_callback` is the
way of a reply that comes over HTTP: token, message, attempt, and then the job writer.
"""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from lucius.contracts.messages import parse_reply
from lucius.core.attempt import AttemptRef
from lucius.core.draft import Outcome
from lucius.core.model import Json
from lucius.core.refusal import Code, Refused
from lucius.ledger.store import StoreError
from lucius.sdk.directive import Directive
from lucius.sdk.ports import DeliveryFailed, ReplyAnswer
from lucius_lab.sim.context import PeerUnreachable, SimContext
from lucius_lab.sim.deployment import SimParts
from lucius_lab.sim.loop import Process

T = TypeVar("T")

RETRY_SECONDS = 0.7
TRIES_MAX = {"ACK": 3, "PROGRESS": 1, "RESULT": 30}


class ApiCalls:
    def __init__(self, context: SimContext) -> None:
        self.context = context
        self._open: dict[str, SimParts] = {}

    def opened(self, parts: SimParts) -> None:
        self._open[parts.process.name] = parts

    def closed(self, process: Process) -> None:
        parts = self._open.get(process.name)
        if parts is not None and parts.process is process:
            del self._open[process.name]

    async def call(
        self, caller: Process, chance: int, serve: Callable[[SimParts], Coroutine[Any, Any, T]]
    ) -> T:
        """Calls any of them: `PeerUnreachable` or `StoreError` if that did not go well."""
        if not self._open:
            raise PeerUnreachable("no process is up")
        names = list(self._open)
        parts = self._open[names[chance % len(names)]]
        return await self.context.call(caller, parts.process, lambda: serve(parts))


async def answer_callback(parts: SimParts, token: str, message: dict[str, Json]) -> ReplyAnswer:
    opened = parts.tokens.read(token)
    if opened is None:
        return ReplyAnswer("refused", stop=True)
    parsed = parse_reply(message, expected=message["type"])
    if isinstance(parsed, Refused):
        return ReplyAnswer("refused", stop=True)
    job_id, reply = parsed
    named = AttemptRef(
        job_id=job_id, step_id=reply.step_id, attempt_no=reply.attempt_no, lease_id=reply.lease_id
    )
    if named != opened:
        return ReplyAnswer("refused", stop=True)
    applied = await parts.writer.apply(job_id, reply)
    if isinstance(applied, Refused):
        return ReplyAnswer("refused", stop=applied.code is Code.JOB_NOT_FOUND)
    return ReplyAnswer(applied.outcome.value, stop=applied.stop or applied.outcome is Outcome.STALE)


class ApiTransport:
    """How a worker in a process of its own leases and answers over HTTP."""

    def __init__(self, api_calls: ApiCalls, service: str, process: Process) -> None:
        self._api_calls = api_calls
        self._service = service
        self._process = process
        self._tokens: dict[tuple[str, str, int, str], str] = {}

    async def lease(self, *, max_directives: int, wait_seconds: float) -> list[dict[str, Json]]:
        async def serve(parts: SimParts) -> list[dict[str, Json]]:
            return await parts.dispatcher.lease(
                self._service, directives_max=max_directives, wait_ms=round(wait_seconds * 1000)
            )

        try:
            return await self._api_calls.call(self._process, 0, serve)
        except (PeerUnreachable, StoreError) as fault:
            raise DeliveryFailed(str(fault)) from None

    async def reply(self, directive: Directive, message: dict[str, Json]) -> ReplyAnswer:
        token = directive.callback_token or ""
        for _ in range(TRIES_MAX[message["type"]]):
            try:
                return await self._api_calls.call(
                    self._process, 0, lambda parts: answer_callback(parts, token, message)
                )
            except (PeerUnreachable, StoreError):
                await self._api_calls.context.loop.pause(RETRY_SECONDS)
        raise DeliveryFailed("no process took the reply")
