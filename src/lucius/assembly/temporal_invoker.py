"""The invoker's side of the temporal engine: the only one who writes after creation, and who signals."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

from lucius.assembly.engine_room import Check, Rooms
from lucius.assembly.temporal_orchestrator import workflows_check
from lucius.chance import now_ms
from lucius.core.model import Event, JobRecord
from lucius.core.states import Engine
from lucius.engines.outbox.nudges import Hears
from lucius.engines.outbox.reply_consumer import ConsumerLimits, ReplyConsumer
from lucius.invoker.directives import Directives
from lucius.invoker.invoker import Invoker, InvokerLimits
from lucius.invoker.questions import QuestionLimits, Questions
from lucius.invoker.replies import make_reply_consumer
from lucius.invoker.telling import Telling
from lucius.invoker.window import Window, WindowLimits
from lucius.progress.apply import Applies
from lucius.progress.workflows import Signaller
from lucius.telemetry import Metrics

Ping = Callable[[], Awaitable[None]]


class InvokerRoom:
    invoker: Invoker
    telling: Telling
    _window: Window
    _replies: ReplyConsumer

    def __init__(self, signaller: Signaller, ping: Ping, *, signal_acks: bool) -> None:
        """`ping` raises `WorkflowsUnavailable`."""
        self._signaller = signaller
        self._ping = ping
        self._signal_acks = signal_acks

    @property
    def new_jobs(self) -> Engine:
        return Engine.TEMPORAL

    @property
    def signaller(self) -> Signaller | None:
        return self._signaller

    def enter(self, rooms: Rooms) -> Applies:
        self.telling = Telling(
            rooms.progress,
            self._signaller,
            questions=Questions(rooms.ledger, QuestionLimits(), now_ms=now_ms),
            signal_acks=self._signal_acks,
        )
        self._window = Window(rooms.ledger, WindowLimits(), now_ms=now_ms)
        self.invoker = Invoker(
            rooms.ledger,
            rooms.progress,
            self.telling,
            rooms.bus,
            Directives(rooms.tokens, callback_base=rooms.callback_base),
            self._window,
            InvokerLimits(),
            now_ms=now_ms,
            heard=rooms.heard,
        )
        self._replies = make_reply_consumer(
            rooms.bus,
            rooms.progress,
            ConsumerLimits(),
            tell=self.telling.tell_in_time,
            ping_ledger=rooms.ledger.store.ping,
            ping_workflows=self._ping,
            heard=rooms.heard,
        )
        return self.telling

    def replies(self) -> ReplyConsumer | None:
        return self._replies

    def watch(self, before: JobRecord | None, after: JobRecord, events: Sequence[Event]) -> None:
        self._window.watch(before, after, events)

    def connect(self, others: Hears) -> Hears | None:
        questions, self.telling.others = self.telling.questions, others
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
            lambda: list(self.telling.signals.items()),
        )
        metrics.follow(
            "internal_calls",
            "Calls of workflows and controls by the verdict they were given",
            ("call", "verdict"),
            lambda: list(self.invoker.verdicts.items()),
        )

    async def close(self) -> None:
        """Nothing is held open here."""
