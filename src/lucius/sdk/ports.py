"""What the runner needs from outside: a way to the orchestrator, a place for artifacts, a memory, a log."""

from enum import Enum
from typing import Protocol

import msgspec

from lucius.sdk.directive import Directive, Json, Key


class Answer(msgspec.Struct, frozen=True):
    """What the orchestrator made of a reply.

    `outcome`: `applied`, `duplicate`, `recorded` (too late to matter), `stale` (not the current attempt) or
    `refused` (no such job, or a token that does not fit). `stop`: nobody waits for this attempt any more.
    """

    outcome: str
    stop: bool = False


class Undelivered(Exception):
    """The orchestrator could not be reached in time."""

    def __init__(self, reason: str, *, retry_after_seconds: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after_seconds = retry_after_seconds


class Transport(Protocol):
    """The way to the orchestrator and back.

    `lease` waits up to `wait_seconds` for work. It may be cancelled while it waits, and then either hands out
    nothing or returns what it has taken. `reply` keeps trying as long as the kind of message deserves, and
    raises `Undelivered` when it gives up.
    """

    async def lease(self, *, max_directives: int, wait_seconds: float) -> list[dict[str, Json]]: ...

    async def reply(self, directive: Directive, message: dict[str, Json]) -> Answer: ...


class Workspace(Protocol):
    """Artifacts by URI.

    Faults are Python's own: `FileNotFoundError`, `PermissionError` (not allowed), `FileExistsError` (other
    bytes were there before), any other `OSError` (cannot be used now), `ValueError` (too many bytes).
    """

    def artifact_uri(self, workspace_uri: str, step_type: str, attempt_no: int, name: str) -> str: ...

    async def read(self, uri: str) -> bytes: ...

    async def write_new(self, uri: str, data: bytes) -> None: ...

    async def write(self, uri: str, data: bytes) -> None: ...


class Mark(Enum):
    NEW = "new"
    RUNNING = "running"


class Dedupe(Protocol):
    """Which directives were seen. `begin` marks a new one, or says that it runs already, or how it ended."""

    async def begin(self, key: Key) -> Mark | dict[str, Json]: ...

    async def finish(self, key: Key, result: dict[str, Json]) -> None: ...

    async def forget(self, key: Key) -> None: ...


class Log(Protocol):
    def info(self, event: str, **fields: object) -> object: ...

    def warning(self, event: str, **fields: object) -> object: ...
