"""What a process adds to its kernel for a broker: the publisher, the reply consumer, and HTTP leases."""

from collections.abc import Callable, Sequence

from lucius.assembly.clock_and_ids import now_ms, wall_ms
from lucius.assembly.kernel import Kernel
from lucius.assembly.process import Part, Stoppable
from lucius.assembly.service_transports import OverBus
from lucius.bus.port import Bus, BusError
from lucius.core.model import Event, JobRecord
from lucius.engines.outbox.bus_leases import BusLeases, Messages
from lucius.engines.outbox.publisher import BusPublisher, PublisherLimits
from lucius.engines.reply_consumer import ConsumerLimits, ReplyConsumer
from lucius.jobs.reply_backlog import ReplyBacklog
from lucius.jobs.tokens import CallbackTokens
from lucius.settings import Settings
from lucius.telemetry import Metrics


class BusWiring:
    """Publishes directives from the outbox, and applies replies. Owns the bus."""

    def __init__(
        self,
        bus: Bus,
        kernel: Kernel,
        tokens: CallbackTokens,
        messages: Messages,
        settings: Settings,
        *,
        callback_base: str,
        lanes: Callable[[], frozenset[int]],
        part: Part,
        replies: ReplyConsumer | None = None,
        reply_backlog: ReplyBacklog | None = None,
    ) -> None:
        """`messages`: makes directives for workers that lease them over HTTP. `replies`: consumes replies in
        place of a consumer that only applies them; both tell `reply_backlog` how far they got."""
        ledger = kernel.ledger
        self._bus, self._ledger, self._part = bus, ledger, part
        self.publisher = BusPublisher(
            bus,
            ledger,
            kernel.fair_share,
            kernel.services,
            kernel.writer,
            kernel.due_handler,
            tokens,
            PublisherLimits(look_every_ms=settings.look_every_ms),
            callback_base=callback_base,
            now_ms=now_ms,
            lanes=lanes,
            flow=kernel.flow,
        )
        kernel.flow.on_open.append(self.publisher.flow_opened)
        self.replies = replies or ReplyConsumer(
            bus,
            kernel.writer,
            ConsumerLimits(),
            ping_ledger=ledger.store.ping,
            reply_backlog=reply_backlog,
            tokens=tokens if settings.reply_tokens_required else None,
        )
        self.leases = BusLeases(
            bus, ledger, kernel.services, messages, now_ms=wall_ms, look_every_ms=settings.look_every_ms
        )
        self._transports: list[OverBus] = []

    def watch(self, before: JobRecord | None, after: JobRecord, events: Sequence[Event]) -> None:
        if self._part.reconciles:  # an API would publish what the reconcilers publish too
            self.publisher.watch(before, after, events)

    def follow(self, metrics: Metrics) -> None:
        if self._part.reconciles:
            metrics.follow(
                "bus_replies",
                "Replies taken from the bus by what became of their messages",
                ("outcome",),
                lambda: [((outcome,), count) for outcome, count in self.replies.outcomes.items()],
            )

    def work_waits(self, service: str, lane: int) -> None:
        """Another process says so. An API leaves the lanes to the reconcilers."""
        if self._part.reconciles:
            self.publisher.nudge(service, lane)

    def duties(self) -> dict[str, Stoppable]:
        return {"relay": self.publisher, "replies": self.replies} if self._part.reconciles else {}

    def transport(self, service: str) -> OverBus:
        """For a service that runs in this process."""
        self._transports.append(OverBus(self._bus, service, self._ledger))
        return self._transports[-1]

    async def check(self) -> str | None:
        try:
            await self._bus.ping()
        except BusError as fault:
            return str(fault)
        return None

    def let_go(self) -> None:
        self.leases.close()

    async def close(self) -> None:
        for transport in self._transports:
            await transport.aclose()
        await self.leases.end()
        await self._bus.close()
