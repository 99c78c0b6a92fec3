"""What an engine with workflows adds to a process: what handles replies and controls, and what runs beside.

In: the kernel of the process. Out: parts of its own. `Embedded` knows this port alone; the command that opens
the process brings the engine. A process without one knows the outbox engine only.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from lucius.assembly.kernel import Kernel
from lucius.bus.port import Bus
from lucius.core.model import Event, JobRecord
from lucius.core.states import Engine
from lucius.engines.notifications import NotificationListener
from lucius.engines.reply_consumer import ReplyConsumer
from lucius.jobs.reply_backlog import ReplyBacklog
from lucius.jobs.tokens import CallbackTokens
from lucius.jobs.workflows import WorkflowSignaller
from lucius.jobs.writer import InputHandler
from lucius.telemetry import Metrics

Check = Callable[[], Awaitable[str | None]]


class EngineDependencies(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine builds upon."""

    kernel: Kernel
    tokens: CallbackTokens
    bus: Bus
    callback_base: str
    look_every_ms: int
    heard: ReplyBacklog | None = None


class WorkflowEngine(Protocol):
    @property
    def new_jobs(self) -> Engine:
        """The engine that jobs created here are pinned to."""
        ...

    @property
    def signaller(self) -> WorkflowSignaller | None:
        """For the due handler; None: rows of jobs with workflows are left to other processes."""
        ...

    def enter(self, dependencies: EngineDependencies) -> InputHandler:
        """Called once. Returns what handles replies and controls from here on."""
        ...

    def replies(self) -> ReplyConsumer | None:
        """Consumes replies from the bus in place of the process's own consumer."""
        ...

    def watch(self, before: JobRecord | None, after: JobRecord, events: Sequence[Event]) -> None: ...

    def connect(self, others: NotificationListener) -> NotificationListener | None:
        """Called once other processes can be told of jobs. Returns what is to hear of theirs, if anything."""
        ...

    def loops(self) -> Mapping[str, Coroutine[Any, Any, None]]: ...

    def checks(self) -> Mapping[str, Check]: ...

    def follow(self, metrics: Metrics) -> None:
        """Shows what it counts for itself."""
        ...

    async def close(self) -> None: ...
