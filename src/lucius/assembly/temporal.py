"""The temporal engine in a process: what an orchestrator and an invoker add to the kernel.

The orchestrator creates jobs, starts their workflows, and sees to it that every open job has one. The invoker
alone writes jobs after their creation, and signals their workflows. This module and `temporal_worker` know
Temporal, so they are imported only where that engine is asked for.
"""

import ssl
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

import httpx2

from lucius.assembly.clock_and_ids import now_ms
from lucius.assembly.workflow_engine import Check, EngineDependencies
from lucius.contracts.internal import JobDefaults
from lucius.core.model import Event, JobRecord
from lucius.core.states import Engine
from lucius.engines.notifications import NotificationListener
from lucius.engines.outbox.sweeper import Sweeper
from lucius.engines.reply_consumer import ConsumerLimits, ReplyConsumer
from lucius.engines.temporal.client import (
    StartOptions,
    TemporalLink,
    TemporalSignaller,
    TemporalStarter,
    TemporalTarget,
)
from lucius.engines.temporal.controls import RemoteControls, invoker_client
from lucius.engines.temporal.held_calls import HeldCallLimits, HeldCalls
from lucius.engines.temporal.invoker import DirectiveBuilder, Invoker, InvokerLimits
from lucius.engines.temporal.lane_window import LaneWindow, WindowLimits
from lucius.engines.temporal.notifier import WorkflowNotifier
from lucius.engines.temporal.repair import WorkflowRepair
from lucius.engines.temporal.replies import make_reply_consumer
from lucius.engines.temporal.workflow_starts import WorkflowStarts
from lucius.jobs.workflows import WorkflowSignaller, WorkflowStarter, WorkflowsUnavailable
from lucius.jobs.writer import InputHandler
from lucius.settings import TemporalSettings
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
        except (httpx2.HTTPError, ssl.SSLError) as fault:
            return f"no answer: {type(fault).__name__}"
        return None if response.status_code == 200 else f"it answered {response.status_code}"

    return check


def _counts(sweeper: Sweeper) -> list[tuple[tuple[str, ...], float]]:
    return [((action,), count) for action, count in sweeper.actions.items()]


class InvokerEngine:
    invoker: Invoker
    notifier: WorkflowNotifier
    _window: LaneWindow
    _replies: ReplyConsumer

    def __init__(
        self,
        signaller: WorkflowSignaller,
        ping: Ping,
        *,
        signal_acks: bool,
        own_defaults: JobDefaults | None = None,
    ) -> None:
        """`ping` raises `WorkflowsUnavailable`."""
        self._signaller = signaller
        self._ping = ping
        self._signal_acks = signal_acks
        self._own_defaults = own_defaults

    @property
    def new_jobs(self) -> Engine:
        return Engine.TEMPORAL

    @property
    def signaller(self) -> WorkflowSignaller | None:
        return self._signaller

    def enter(self, dependencies: EngineDependencies) -> InputHandler:
        kernel = dependencies.kernel
        self.notifier = WorkflowNotifier(
            kernel.writer,
            self._signaller,
            questions=HeldCalls(kernel.ledger, HeldCallLimits(), now_ms=now_ms),
            signal_acks=self._signal_acks,
        )
        self._window = LaneWindow(kernel.ledger, WindowLimits(), now_ms=now_ms)
        self.invoker = Invoker(
            kernel.ledger,
            kernel.writer,
            self.notifier,
            dependencies.bus,
            DirectiveBuilder(dependencies.tokens, callback_base=dependencies.callback_base),
            self._window,
            InvokerLimits(),
            now_ms=now_ms,
            reply_backlog=dependencies.reply_backlog,
            own_defaults=self._own_defaults,
            flow=kernel.flow,
        )
        self._replies = make_reply_consumer(
            dependencies.bus,
            kernel.writer,
            ConsumerLimits(),
            notify=self.notifier.notify_in_time,
            ping_ledger=kernel.ledger.store.ping,
            ping_workflows=self._ping,
            reply_backlog=dependencies.reply_backlog,
            tokens=dependencies.tokens if dependencies.reply_tokens_required else None,
        )
        return self.notifier

    def replies(self) -> ReplyConsumer | None:
        return self._replies

    def watch(self, before: JobRecord | None, after: JobRecord, events: Sequence[Event]) -> None:
        self._window.watch(before, after, events)

    def connect(self, others: NotificationListener) -> NotificationListener | None:
        questions, self.notifier.others = self.notifier.questions, others
        questions.notified = True
        return questions

    def loops(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        return {}

    def checks(self) -> Mapping[str, Check]:
        return {"temporal": workflows_check(self._ping)}

    def follow(self, metrics: Metrics) -> None:
        metrics.follow(
            "workflow_signals",
            "Signals to workflows by whether they were heard",
            ("signal", "outcome"),
            lambda: list(self.notifier.signals.items()),
        )
        metrics.follow(
            "internal_calls",
            "Calls of workflows and controls by the verdict they were given",
            ("call", "verdict"),
            lambda: list(self.invoker.verdicts.items()),
        )

    async def close(self) -> None:
        """Nothing is held open here."""


def target_of(asked: TemporalSettings) -> TemporalTarget:
    return TemporalTarget(
        address=asked.address or TemporalTarget().address,
        namespace=asked.namespace,
        task_queue=asked.task_queue,
        tls=asked.tls,
        api_key=asked.api_key,
    )


def orchestrator_engine(asked: TemporalSettings, tls: ssl.SSLContext | None = None) -> OrchestratorEngine:
    """`tls`: for calls of the invoker; None: as usual."""
    link = TemporalLink(target_of(asked))
    timeout_ms = asked.execution_timeout_ms
    options = StartOptions(
        execution_timeout_seconds=None if timeout_ms is None else timeout_ms / 1000,
        created_with=asked.job_defaults,
    )
    return OrchestratorEngine(
        TemporalStarter(link, options),
        link.ping,
        invoker_client(asked.invoker_url, asked.secrets[0], tls),
        new_jobs=Engine.OUTBOX if asked.enabled is False else Engine.TEMPORAL,
    )


def invoker_engine(asked: TemporalSettings) -> InvokerEngine:
    link = TemporalLink(target_of(asked))
    return InvokerEngine(
        TemporalSignaller(link),
        link.ping,
        signal_acks=asked.signal_acks,
        own_defaults=asked.job_defaults_set,
    )
