"""The doors of a simulated Lucius: what its routes do once a request is read, for callers in other processes.

`Doors` knows which orchestrator processes are there and lets others call them. `answer_callback` is the way
of a reply that comes over HTTP: token, message, attempt, and then `progress`.
"""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from lucius.contracts.messages import parse_reply
from lucius.core.draft import Outcome
from lucius.core.model import Json
from lucius.core.refusal import Code, Refused
from lucius.lab.sim.house import Rooms
from lucius.lab.sim.loop import Process
from lucius.lab.sim.scene import Scene, Unreachable
from lucius.ledger.store import StoreError
from lucius.progress.tokens import Attempt
from lucius.sdk.directive import Directive
from lucius.sdk.ports import Answer, Undelivered

T = TypeVar("T")

RETRY_SECONDS = 0.7
TRIES_MAX = {"ACK": 3, "PROGRESS": 1, "RESULT": 30}


class Doors:
    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self._open: dict[str, Rooms] = {}

    def opened(self, rooms: Rooms) -> None:
        self._open[rooms.process.name] = rooms

    def closed(self, process: Process) -> None:
        rooms = self._open.get(process.name)
        if rooms is not None and rooms.process is process:
            del self._open[process.name]

    async def call(self, caller: Process, chance: int, serve: Callable[[Rooms], Coroutine[Any, Any, T]]) -> T:
        """Calls any of them: `Unreachable` or `StoreError` if that did not go well."""
        if not self._open:
            raise Unreachable("nobody is there")
        names = list(self._open)
        rooms = self._open[names[chance % len(names)]]
        return await self.scene.call(caller, rooms.process, lambda: serve(rooms))


async def answer_callback(rooms: Rooms, token: str, message: dict[str, Json]) -> Answer:
    opened = rooms.tokens.read(token)
    if opened is None:
        return Answer("refused", stop=True)
    parsed = parse_reply(message, expected=message["type"])
    if isinstance(parsed, Refused):
        return Answer("refused", stop=True)
    job_id, reply = parsed
    named = Attempt(
        job_id=job_id, step_id=reply.step_id, attempt_no=reply.attempt_no, lease_id=reply.lease_id
    )
    if named != opened:
        return Answer("refused", stop=True)
    applied = await rooms.progress.apply(job_id, reply)
    if isinstance(applied, Refused):
        return Answer("refused", stop=applied.code is Code.JOB_NOT_FOUND)
    return Answer(applied.outcome.value, stop=applied.stop or applied.outcome is Outcome.STALE)


class DoorTransport:
    """How a worker in a process of its own leases and answers over HTTP."""

    def __init__(self, doors: Doors, service: str, process: Process) -> None:
        self._doors = doors
        self._service = service
        self._process = process
        self._tokens: dict[tuple[str, str, int, str], str] = {}

    async def lease(self, *, max_directives: int, wait_seconds: float) -> list[dict[str, Json]]:
        async def serve(rooms: Rooms) -> list[dict[str, Json]]:
            return await rooms.handouts.lease(
                self._service, directives_max=max_directives, wait_ms=round(wait_seconds * 1000)
            )

        try:
            return await self._doors.call(self._process, 0, serve)
        except (Unreachable, StoreError) as fault:
            raise Undelivered(str(fault)) from None

    async def reply(self, directive: Directive, message: dict[str, Json]) -> Answer:
        token = directive.callback_token or ""
        for _ in range(TRIES_MAX[message["type"]]):
            try:
                return await self._doors.call(
                    self._process, 0, lambda rooms: answer_callback(rooms, token, message)
                )
            except (Unreachable, StoreError):
                await self._doors.scene.loop.pause(RETRY_SECONDS)
        raise Undelivered("nobody took the reply")
