"""What an engine with workflows adds to a house: who takes what happens to jobs, and what runs beside.

In: the rooms of the house. Out: rooms of its own. The house knows this port alone; what stands behind it is
settled by whoever opens the house. A house without one knows the outbox engine only.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from lucius.bus.port import Bus
from lucius.core.model import Event, JobRecord
from lucius.core.states import Engine
from lucius.engines.outbox.nudges import Hears
from lucius.engines.outbox.reply_consumer import ReplyConsumer
from lucius.ledger.indexes import Indexes
from lucius.ledger.jobs import JobLedger
from lucius.progress.apply import Applies, Progress
from lucius.progress.heard import Heard
from lucius.progress.tokens import CallbackTokens
from lucius.progress.workflows import Signaller
from lucius.telemetry import Metrics

Check = Callable[[], Awaitable[str | None]]


class Rooms(msgspec.Struct, frozen=True, kw_only=True):
    """Those that an engine builds upon."""

    ledger: JobLedger
    indexes: Indexes
    progress: Progress
    tokens: CallbackTokens
    bus: Bus
    callback_base: str
    look_every_ms: int
    heard: Heard | None = None


class EngineRoom(Protocol):
    @property
    def new_jobs(self) -> Engine:
        """The engine that jobs created here are pinned to."""
        ...

    @property
    def signaller(self) -> Signaller | None:
        """For whoever meets due rows; None: rows of jobs with workflows are left to other processes."""
        ...

    def enter(self, rooms: Rooms) -> Applies:
        """Called once. Says who takes replies and controls from here on."""
        ...

    def replies(self) -> ReplyConsumer | None:
        """Who takes replies from the bus in place of the house's own consumer."""
        ...

    def watch(self, before: JobRecord | None, after: JobRecord, events: Sequence[Event]) -> None: ...

    def connect(self, others: Hears) -> Hears | None:
        """Called once other processes can be told of jobs. Who is to hear of theirs, if anybody."""
        ...

    def loops(self) -> Mapping[str, Coroutine[Any, Any, None]]: ...

    def checks(self) -> Mapping[str, Check]: ...

    def follow(self, metrics: Metrics) -> None:
        """Shows what it counts for itself."""
        ...

    async def close(self) -> None: ...
