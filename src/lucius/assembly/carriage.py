"""A broker's part in the house: what goes out over the bus, what comes back, and who else takes from it."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import structlog

from lucius.assembly.over_bus import OverBus
from lucius.assembly.parts import Part
from lucius.assembly.running import Stoppable
from lucius.bus.port import Bus, BusError
from lucius.chance import now_ms, wall_ms
from lucius.core.model import Event, JobRecord
from lucius.engines.outbox.broker_leases import BrokerLeases, Messages
from lucius.engines.outbox.nudges import Hears, NudgeBus, Nudges
from lucius.engines.outbox.relay import Relay, RelayLimits
from lucius.engines.outbox.reply_consumer import ConsumerLimits, ReplyConsumer
from lucius.ledger.indexes import Indexes
from lucius.ledger.jobs import JobLedger
from lucius.ledger.known import KnownNames
from lucius.progress.apply import Progress
from lucius.progress.due import DueKeeper
from lucius.progress.heard import Heard
from lucius.progress.tokens import CallbackTokens
from lucius.settings import Settings

log = structlog.get_logger("lucius.assembly")

NO_LANES: frozenset[int] = frozenset()


class Carriage:
    """Directives are published from the outbox, and replies applied. Owns the bus."""

    def __init__(
        self,
        bus: Bus,
        ledger: JobLedger,
        indexes: Indexes,
        services: KnownNames,
        progress: Progress,
        keeper: DueKeeper,
        tokens: CallbackTokens,
        messages: Messages,
        settings: Settings,
        *,
        callback_base: str,
        lanes: Callable[[], frozenset[int]],
        part: Part,
        shared: bool,
        replies: ReplyConsumer | None = None,
        heard: Heard | None = None,
    ) -> None:
        """`messages`: makes directives for those who lease them over HTTP. `replies`: who takes replies, if
        not a consumer that only applies them, and tells `heard` how far it got."""
        self._bus, self._ledger, self._part = bus, ledger, part
        self.relay = Relay(
            bus,
            ledger,
            indexes,
            services,
            progress,
            keeper,
            tokens,
            RelayLimits(look_every_ms=settings.look_every_ms),
            callback_base=callback_base,
            now_ms=now_ms,
            lanes=lanes,
        )
        self.replies = replies or ReplyConsumer(
            bus, progress, ConsumerLimits(), ping_ledger=ledger.store.ping, heard=heard
        )
        self.leases = BrokerLeases(
            bus, ledger, services, messages, now_ms=wall_ms, look_every_ms=settings.look_every_ms
        )
        own_lanes = lanes if part.reconciles else _no_lanes
        self._nudges: Nudges | None = None
        if shared and isinstance(bus, NudgeBus):
            self._nudges = Nudges(bus, own_lanes=own_lanes, now_ms=now_ms)
        self._transports: list[OverBus] = []

    def watch(self, before: JobRecord | None, after: JobRecord, events: Sequence[Event]) -> None:
        if self._part.reconciles:  # an API would publish what the reconcilers publish too
            self.relay.watch(before, after, events)
        if self._nudges is not None:
            self._nudges.watch(before, after, events)

    async def begin(self, hears: Hears) -> Hears | None:
        """`hears` is told of jobs in other processes, and what is returned tells them. None: nobody tells."""
        if self._nudges is None:
            return None
        try:
            await self._nudges.listen(self.relay.nudge if self._part.reconciles else _no_relay, hears)
        except BusError as fault:
            log.warning("nudges_not_heard", error=str(fault))  # the regular look finds the same
            return None
        return self._nudges

    def loops(self) -> dict[str, Coroutine[Any, Any, None]]:
        return {} if self._nudges is None else {"nudges": self._nudges.run()}

    def duties(self) -> dict[str, Stoppable]:
        return {"relay": self.relay, "replies": self.replies} if self._part.reconciles else {}

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


def _no_lanes() -> frozenset[int]:
    return NO_LANES


def _no_relay(service: str, lane: int) -> None:
    """An API leaves the lanes to the reconcilers."""
