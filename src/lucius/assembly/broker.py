"""Opens the bus that a process was told to use, or says in plain words why it cannot be had."""

from pathlib import Path

from lucius.bus.port import Bus, BusError
from lucius.chance import now_ms
from lucius.settings import NatsSettings, Settings

MEMORY = "memory"
NATS = "nats"


class NoBus(Exception):
    """The bus cannot be used. The text names no password."""


def address_fault(name: str, settings: Settings) -> str | None:
    """What is missing to find the bus; None if nothing is."""
    if name == MEMORY or settings.nats.servers:
        return None
    return "--bus nats needs LUCIUS_NATS_URL, for example nats://127.0.0.1:4222."


async def open_bus(name: str, settings: Settings) -> Bus | None:
    """None for `memory`: in one process directives are handed out from the ledger. Raises `NoBus`."""
    if name == MEMORY:
        return None
    if (fault := address_fault(name, settings)) is not None:
        raise NoBus(fault)
    return await _open_nats(settings.nats)


async def _open_nats(asked: NatsSettings) -> Bus:
    try:
        from lucius.bus.nats import NatsBus, NatsLimits
    except ModuleNotFoundError as fault:
        raise _missing(fault) from None
    _check_credentials(asked.credentials_file)
    try:
        return await NatsBus.open(
            asked.servers,
            now_ms=now_ms,
            limits=NatsLimits(replicas=asked.replicas),
            prefix=asked.prefix,
            credentials_file=asked.credentials_file,
            user=asked.user,
            password=asked.password,
        )
    except BusError as fault:
        raise NoBus(f"Cannot use NATS at {asked.places}: {fault}.") from None


def _check_credentials(file: str | None) -> None:
    if file is not None and not Path(file).is_file():
        raise NoBus("LUCIUS_NATS_CREDENTIALS names no file.")


def _missing(fault: ModuleNotFoundError) -> Exception:
    if (fault.name or "").partition(".")[0] != NATS:
        return fault
    return NoBus("--bus nats needs the package nats-py: install lucius[nats].")
