"""The invoker's side of the temporal engine: it alone writes jobs after their creation, and signals."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

from lucius.assembly.clock_and_ids import now_ms
from lucius.assembly.temporal_orchestrator import workflows_check
from lucius.assembly.workflow_engine import Check, EngineDependencies
from lucius.core.model import Event, JobRecord
from lucius.core.states import Engine
from lucius.engines.notifications import NotificationListener
from lucius.engines.reply_consumer import ConsumerLimits, ReplyConsumer
from lucius.engines.temporal.held_calls import HeldCallLimits, HeldCalls
from lucius.engines.temporal.invoker import DirectiveBuilder, Invoker, InvokerLimits
from lucius.engines.temporal.lane_window import LaneWindow, WindowLimits
from lucius.engines.temporal.notifier import WorkflowNotifier
from lucius.engines.temporal.replies import make_reply_consumer
from lucius.jobs.workflows import WorkflowSignaller
from lucius.jobs.writer import InputHandler
from lucius.telemetry import Metrics

Ping = Callable[[], Awaitable[None]]


class InvokerEngine:
    invoker: Invoker
    notifier: WorkflowNotifier
    _window: LaneWindow
    _replies: ReplyConsumer

    def __init__(self, signaller: WorkflowSignaller, ping: Ping, *, signal_acks: bool) -> None:
        """`ping` raises `WorkflowsUnavailable`."""
        self._signaller = signaller
        self._ping = ping
        self._signal_acks = signal_acks

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
            heard=dependencies.heard,
        )
        self._replies = make_reply_consumer(
            dependencies.bus,
            kernel.writer,
            ConsumerLimits(),
            tell=self.notifier.tell_in_time,
            ping_ledger=kernel.ledger.store.ping,
            ping_workflows=self._ping,
            heard=dependencies.heard,
        )
        return self.notifier

    def replies(self) -> ReplyConsumer | None:
        return self._replies

    def watch(self, before: JobRecord | None, after: JobRecord, events: Sequence[Event]) -> None:
        self._window.watch(before, after, events)

    def connect(self, others: NotificationListener) -> NotificationListener | None:
        questions, self.notifier.others = self.notifier.questions, others
        questions.told = True
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
