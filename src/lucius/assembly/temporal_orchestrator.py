"""The orchestrator's side of the temporal engine: it creates jobs, starts their workflows, and sees to it
that every open job has one. Later inputs are forwarded to the invoker, which alone writes."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

import httpx2

from lucius.assembly.clock_and_ids import now_ms
from lucius.assembly.workflow_engine import Check, EngineDependencies
from lucius.core.model import Event, JobRecord
from lucius.core.states import Engine
from lucius.engines.notifications import NotificationListener
from lucius.engines.outbox.sweeper import Sweeper
from lucius.engines.reply_consumer import ReplyConsumer
from lucius.engines.temporal.controls import RemoteControls
from lucius.engines.temporal.repair import WorkflowRepair
from lucius.engines.temporal.workflow_starts import WorkflowStarts
from lucius.jobs.workflows import WorkflowSignaller, WorkflowStarter, WorkflowsUnavailable
from lucius.jobs.writer import InputHandler
from lucius.telemetry import Metrics

Ping = Callable[[], Awaitable[None]]


class OrchestratorEngine:
    def __init__(
        self, starter: WorkflowStarter, ping: Ping, invoker: httpx2.AsyncClient, *, new_jobs: Engine
    ) -> None:
        """`ping` raises `WorkflowsUnavailable`. `invoker`: knows its address and shows the secret."""
        self._starter = starter
        self._ping = ping
        self._invoker = invoker
        self._new_jobs = new_jobs
        self.starting = WorkflowStarts(starter)
        self._repairer: Sweeper | None = None

    @property
    def new_jobs(self) -> Engine:
        return self._new_jobs

    @property
    def signaller(self) -> WorkflowSignaller | None:
        return None

    def enter(self, dependencies: EngineDependencies) -> InputHandler:
        kernel = dependencies.kernel
        repair = WorkflowRepair(kernel.ledger, self._starter, now_ms=now_ms)
        self._repairer = Sweeper(
            kernel.indexes, repair, now_ms=now_ms, look_every_ms=dependencies.look_every_ms
        )
        return RemoteControls(kernel.ledger, kernel.writer, self._invoker)

    def replies(self) -> ReplyConsumer | None:
        return None

    def watch(self, before: JobRecord | None, after: JobRecord, events: Sequence[Event]) -> None:
        self.starting.watch(before, after, events)

    def connect(self, others: NotificationListener) -> NotificationListener | None:
        """It moves no job, and calls that wait here wait for ends, which `JobWaits` hears of."""
        return None

    def loops(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        return {} if self._repairer is None else {"repair": self._repairer.run()}

    def checks(self) -> Mapping[str, Check]:
        return {"temporal": workflows_check(self._ping), "invoker": invoker_check(self._invoker)}

    def follow(self, metrics: Metrics) -> None:
        metrics.follow(
            "workflow_starts",
            "Workflows of new jobs by what became of their start",
            ("outcome",),
            lambda: [((outcome,), count) for outcome, count in self.starting.outcomes.items()],
        )
        metrics.follow(
            "repair_actions",
            "Due rows of jobs with workflows by what repair did about them",
            ("action",),
            lambda: [] if self._repairer is None else _counts(self._repairer),
        )

    async def close(self) -> None:
        await self.starting.close()
        await self._invoker.aclose()


def workflows_check(ping: Ping) -> Check:
    async def check() -> str | None:
        try:
            await ping()
        except WorkflowsUnavailable as fault:
            return str(fault)
        return None

    return check


def invoker_check(client: httpx2.AsyncClient) -> Check:
    """Whether it is there and well: what it lacks itself, it tells in its own words."""

    async def check() -> str | None:
        try:
            response = await client.get("/livez")
        except httpx2.HTTPError as fault:
            return f"no answer: {type(fault).__name__}"
        return None if response.status_code == 200 else f"it answered {response.status_code}"

    return check


def _counts(sweeper: Sweeper) -> list[tuple[tuple[str, ...], float]]:
    return [((action,), count) for action, count in sweeper.actions.items()]
