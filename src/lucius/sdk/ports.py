"""What the runner needs from outside: a way to the orchestrator, a place for artifacts, a memory, a log."""

from enum import Enum
from typing import Protocol

import msgspec

from lucius.sdk.directive import Directive, Json, Key

_NOT_OURS = frozenset({"stale", "recorded", "refused"})


class ReplyAnswer(msgspec.Struct, frozen=True):
    """What the orchestrator made of a reply.

    `outcome`: `applied`, `duplicate`, `recorded` (too late to matter), `stale` (not the current attempt) or
    `refused` (no such job, or a token that does not fit). `stop`: this attempt no longer counts.
    """

    outcome: str
    stop: bool = False

    @property
    def not_ours(self) -> bool:
        """After this answer a RESULT would be ignored."""
        return self.outcome in _NOT_OURS


class DeliveryFailed(Exception):
    """The orchestrator could not be reached in time."""

    def __init__(self, reason: str, *, retry_after_seconds: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after_seconds = retry_after_seconds


class Transport(Protocol):
    """The way to the orchestrator and back.

    `lease` waits up to `wait_seconds` for work. It may be cancelled while it waits, and then either returns
    nothing or returns what it has taken. `reply` keeps trying as long as the kind of message deserves, and
    raises `DeliveryFailed` when it gives up.
    """

    async def lease(self, *, max_directives: int, wait_seconds: float) -> list[dict[str, Json]]: ...

    async def reply(self, directive: Directive, message: dict[str, Json]) -> ReplyAnswer: ...


class Workspace(Protocol):
    """Artifacts by URI.

    Faults are Python's own: `FileNotFoundError`, `PermissionError` (not allowed), `FileExistsError` (other
    bytes were there before), any other `OSError` (cannot be used now), `ValueError` (too many bytes).
    """

    def artifact_uri(self, workspace_uri: str, step_type: str, attempt_no: int, name: str) -> str: ...

    async def read(self, uri: str) -> bytes: ...

    async def write_new(self, uri: str, data: bytes) -> None: ...

    async def write(self, uri: str, data: bytes) -> None: ...


class DirectiveSeen(Enum):
    NEW = "new"
    RUNNING = "running"


class UndeliveredResult(msgspec.Struct, frozen=True, kw_only=True):
    """A RESULT that was kept and, as far as is known, not delivered; and what is needed to send it."""

    directive: Directive
    result: dict[str, Json]


class Dedupe(Protocol):
    """Which directives were seen, and how they ended.

    `begin` marks a new one, or says that it runs already, or how it ended. `finish` keeps a RESULT before it
    is sent, and answers with the one to send: the first that was kept for this piece of work. `forget` takes
    the mark back. `undelivered` are those kept and not yet `delivered`, also by an earlier process if the
    store outlives one. A fault of the store may be raised by any of them; the work goes on without.
    """

    async def begin(self, key: Key) -> DirectiveSeen | dict[str, Json]: ...

    async def finish(self, directive: Directive, result: dict[str, Json]) -> dict[str, Json]: ...

    async def forget(self, key: Key) -> None: ...

    async def delivered(self, key: Key) -> None: ...

    async def undelivered(self, undelivered_max: int) -> list[UndeliveredResult]: ...


class ResultStore(Protocol):
    """Where `KeptDedupe` lays RESULTs down: bytes under a key, in a place that outlives the process.

    `keep` never replaces: it answers with what lies there afterwards. `reply_to` is gone after `settle`.
    `sweep` removes up to `entries_max` of those kept before a time. Several processes may share one.
    """

    async def find(self, key: Key) -> bytes | None: ...

    async def keep(self, key: Key, result: bytes, reply_to: bytes, *, at_ms: int) -> bytes: ...

    async def settle(self, key: Key) -> None: ...

    async def undelivered(self, undelivered_max: int) -> list[tuple[bytes, bytes]]:
        """Pairs of `reply_to` and RESULT."""
        ...

    async def sweep(self, *, before_ms: int, entries_max: int) -> None: ...

    async def close(self) -> None: ...


class AttemptListener(Protocol):
    """Told of what becomes of directives. It answers at once, and must not fail.

    `began`: an attempt is taken up; the answer is the `traceparent` of its span, None to keep the given one.
    `ended`: `succeeded`, `failed_retry`, `failed_final`, `stopped`, `shut_down`, `not_ours` (the answer to
    its ACK was that it no longer counts) or `lost` (cancelled, or a fault of the runner). `left`: not begun,
    because it is `running`, was done before (`repeated`), or was `overtaken`.
    """

    def began(self, directive: Directive) -> str | None: ...

    def ended(self, directive: Directive, outcome: str, code: str | None) -> None: ...

    def left(self, directive: Directive, reason: str) -> None: ...

    def undelivered(self, directive: Directive, kind: str) -> None: ...


class Log(Protocol):
    def info(self, event: str, **fields: object) -> object: ...

    def warning(self, event: str, **fields: object) -> object: ...
