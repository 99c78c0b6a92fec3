"""The bus of a process: it is opened as the settings say, and the outbox engine is connected to it.

In: the settings, and the kernel of the process. Out: a bus, or in plain words why it cannot be had; and
what a process adds to its kernel for it: the publisher, the reply consumer, and leases over HTTP.
"""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from lucius.assembly.clock_and_ids import now_ms, wall_ms
from lucius.assembly.kernel import Kernel
from lucius.assembly.process import Part, Stoppable
from lucius.assembly.services import OverBus
from lucius.bus.port import Bus, BusError
from lucius.core.model import Event, JobRecord
from lucius.engines.outbox.bus_leases import BusLeases, Messages
from lucius.engines.outbox.publisher import BusPublisher, PublisherLimits
from lucius.engines.reply_consumer import ConsumerLimits, ReplyConsumer
from lucius.jobs.reply_backlog import ReplyBacklog
from lucius.jobs.tokens import CallbackTokens
from lucius.settings import NatsSettings, ServiceBusSettings, Settings
from lucius.telemetry import Metrics

if TYPE_CHECKING:
    from azure.core.credentials_async import AsyncTokenCredential

MEMORY = "memory"
NATS = "nats"
SERVICE_BUS = "servicebus"
SERVICE_BUS_EMULATOR = "servicebus-emulator"

CREDENTIALS_BYTES_MAX = 64 * 1024
CREDENTIALS_PARTS = (b"BEGIN NATS USER JWT", b"BEGIN USER NKEY SEED")
CREDENTIALS_EXAMPLE = "Name the .creds file of a user, such as /etc/lucius/nats.creds."


class NoBus(Exception):
    """The bus cannot be used. The text names no password."""


def address_fault(name: str, settings: Settings) -> str | None:
    """What is missing to find the bus; None if nothing is."""
    if name == NATS and not settings.nats.servers:
        return "--bus nats needs LUCIUS_NATS_URL, for example nats://127.0.0.1:4222."
    if name in (SERVICE_BUS, SERVICE_BUS_EMULATOR) and not settings.service_bus.wanted:
        return f"--bus {name} needs LUCIUS_SERVICEBUS_CONNECTION or LUCIUS_SERVICEBUS_NAMESPACE."
    return credentials_fault(name, settings)


def unbrought_fault(name: str, settings: Settings) -> str | None:
    """The same for `lucius dev`, which brings an emulator along, and NATS where no address names one."""
    brought = name == SERVICE_BUS_EMULATOR or (name == NATS and not settings.nats.servers)
    return None if brought else address_fault(name, settings)


def credentials_fault(name: str, settings: Settings) -> str | None:
    """Why the file that lets us in to the NATS that is named cannot be used; None if nothing is wrong. The
    library would look for it only once it is connected, and read on for ever in a file of another kind."""
    file = settings.nats.credentials_file
    if name != NATS or file is None or not settings.nats.servers:
        return None
    try:
        with Path(file).open("rb") as opened:
            text = opened.read(CREDENTIALS_BYTES_MAX)
    except (OSError, ValueError):
        return f"LUCIUS_NATS_CREDENTIALS names no file that can be read: {file}. {CREDENTIALS_EXAMPLE}"
    if not all(part in text for part in CREDENTIALS_PARTS):
        return f"LUCIUS_NATS_CREDENTIALS names a file without a user's JWT and seed. {CREDENTIALS_EXAMPLE}"
    if find_spec("nkeys") is None:
        return "LUCIUS_NATS_CREDENTIALS needs the package nkeys: pip install 'lucius[nats]'."
    return None


def bus_place(name: str | None, settings: Settings) -> str | None:
    """Which bus, and where, without a password; None for `memory`."""
    if name == NATS:
        return f"nats at {settings.nats.places}"
    if name in (SERVICE_BUS, SERVICE_BUS_EMULATOR):
        return f"{name} at {settings.service_bus.place}"
    return None


async def open_bus(
    name: str, settings: Settings, *, credential: "AsyncTokenCredential | None" = None
) -> Bus | None:
    """None for `memory`: in one process directives are handed out from the ledger. `credential`: who we are
    to Azure, if that is known already. Raises `NoBus`."""
    if name == MEMORY:
        return None
    if (fault := address_fault(name, settings)) is not None:
        raise NoBus(fault)
    if name == NATS:
        return await _open_nats(settings.nats)
    return await _open_service_bus(settings, settings.service_bus, credential)


async def _open_nats(asked: NatsSettings) -> Bus:
    try:
        from lucius.bus.nats.bus import NatsBus
        from lucius.bus.nats.names import NatsLimits
    except ModuleNotFoundError as fault:
        raise _missing(fault) from None
    try:
        return await NatsBus.open(
            asked.servers,
            now_ms=wall_ms,  # as the locks of a broker do
            limits=NatsLimits(replicas=asked.replicas),
            prefix=asked.prefix,
            credentials_file=asked.credentials_file,
            user=asked.user,
            password=asked.password,
        )
    except BusError as fault:
        raise NoBus(f"Cannot use NATS at {asked.places}: {fault}.") from None


async def _open_service_bus(
    settings: Settings, asked: ServiceBusSettings, credential: "AsyncTokenCredential | None"
) -> Bus:
    try:
        from lucius.bus.service_bus.bus import ServiceBusBus
        from lucius.bus.service_bus.connection import NamespaceAccess
        from lucius.bus.service_bus.names import ServiceBusLimits
    except ModuleNotFoundError as fault:
        raise _missing_azure(fault) from None
    owned = credential is None and asked.connection_string is None
    if owned:
        credential = _identity(settings)
    try:
        return await ServiceBusBus.open(
            NamespaceAccess(
                connection_string=asked.connection_string,
                namespace=asked.namespace,
                credential=credential,
                owned=owned,
            ),
            now_ms=wall_ms,  # as the locks of a broker do
            limits=ServiceBusLimits(
                deliveries_max=asked.deliveries_max,
                largest_message_bytes=asked.largest_message_bytes,
                partition_keys=asked.partition_keys,
                sessions=asked.sessions,
            ),
            reply_subscriptions={"lucius": asked.reply_subscription},
        )
    except (BusError, ValueError) as fault:
        raise NoBus(f"Cannot use Service Bus at {asked.place}: {fault}.") from None


def _identity(settings: Settings) -> "AsyncTokenCredential":
    try:
        from lucius.assembly.azure.identity import NoIdentity, make_identity
    except ModuleNotFoundError as fault:
        raise _missing_azure(fault) from None
    try:
        return make_identity(settings.identity)
    except NoIdentity as fault:
        raise NoBus(f"Cannot use Service Bus: {fault}.") from None


def _missing(fault: ModuleNotFoundError) -> Exception:
    if (fault.name or "").partition(".")[0] != NATS:
        return fault
    return NoBus("--bus nats needs the package nats-py: install lucius[nats].")


def _missing_azure(fault: ModuleNotFoundError) -> Exception:
    if (fault.name or "").partition(".")[0] != "azure":
        return fault
    return NoBus("--bus servicebus needs Microsoft's packages: install lucius[azure].")


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
