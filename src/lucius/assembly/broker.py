"""Opens the bus that a process was told to use, or says in plain words why it cannot be had."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from lucius.assembly.clock_and_ids import wall_ms
from lucius.bus.port import Bus, BusError
from lucius.settings import NatsSettings, ServiceBusSettings, Settings

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
        from lucius.assembly.azure_identity import NoIdentity, make_identity
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
