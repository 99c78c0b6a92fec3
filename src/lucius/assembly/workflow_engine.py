"""What an engine with workflows adds to a process: what handles replies and controls, and what runs beside.

In: the kernel of the process. Out: parts of its own. `Embedded` knows this port alone; the command that opens
the process brings the engine. A process without one knows the outbox engine only; `temporal_jobs_left` says
whether its ledger holds open jobs of the other.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from lucius.assembly.kernel import Kernel
from lucius.bus.port import Bus
from lucius.core.model import Event, JobRecord
from lucius.core.routing import LANES
from lucius.core.states import Engine
from lucius.engines.notifications import NotificationListener
from lucius.engines.reply_consumer import ReplyConsumer
from lucius.jobs.reply_backlog import ReplyBacklog
from lucius.jobs.tokens import CallbackTokens
from lucius.jobs.workflows import WorkflowSignaller
from lucius.jobs.writer import InputHandler
from lucius.ledger.indexes import Indexes
from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.names import MS_MAX
from lucius.ledger.store import Unreadable
from lucius.telemetry import Metrics

Check = Callable[[], Awaitable[str | None]]


class EngineDependencies(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine builds upon."""

    kernel: Kernel
    tokens: CallbackTokens
    bus: Bus
    callback_base: str
    look_every_ms: int
    reply_backlog: ReplyBacklog | None = None
    reply_tokens_required: bool = False


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


# Jobs that no process moves are overdue, so that they lie in front.
LANE_ROWS_MAX = 32


class LeftOpen(msgspec.Struct, frozen=True):
    jobs: int
    more: bool  # there may be, where it was not looked

    @property
    def words(self) -> str:
        number = f"at least {self.jobs}" if self.more else str(self.jobs)
        jobs = "1 open job is" if (self.jobs, self.more) == (1, False) else f"{number} open jobs are"
        return (
            f"{jobs} of the temporal engine, which does not run here: to let them go on, stop this and start "
            "`lucius dev --engine temporal` on this folder"
        )


async def temporal_jobs_left(ledger: JobLedger) -> LeftOpen:
    """Looks at the front of the due index, in which every open job stands. Raises `StoreError`."""
    indexes, found, more = Indexes(ledger), 0, False
    for lane in range(LANES):
        entries = await indexes.due(lane, MS_MAX - 1, LANE_ROWS_MAX)
        more = more or len(entries) == LANE_ROWS_MAX
        for job_id in {entry.job_id for entry in entries}:
            try:
                loaded = await ledger.peek(job_id)
            except Unreadable:
                continue  # readiness tells of it
            if loaded is not None and not loaded.record.job.terminal:
                found += loaded.record.job.engine is Engine.TEMPORAL
    return LeftOpen(found, more)
