"""One Azurite for all tests of a process, started by the first who asks; each store has tables of its own."""

import atexit
from itertools import count

import pytest

from lucius.bus.nats.server import free_port
from lucius.ledger.azure_tables.store import AzureTablesStore
from lucius_lab.emulators.azurite import Azurite

AZURITE = pytest.param("azurite", marks=pytest.mark.xdist_group("azurite"))

_running: list[Azurite] = []
_numbers = count(1)
_writes = count(1)


def azurite() -> Azurite:
    if not _running:
        server = Azurite(port=free_port())
        server.start()
        _running.append(server)
        atexit.register(stop)
    return _running[0]


def stop() -> None:
    while _running:
        _running.pop().kill()


def new_write_id() -> str:
    return f"{next(_writes):016x}"


def new_prefix() -> str:
    return f"t{next(_numbers)}"


async def open_store(
    *, connection_string: str | None = None, prefix: str | None = None, patience_seconds_max: float = 60.0
) -> AzureTablesStore:
    """A machine that runs everything at once may let Azurite wait for long, hence the patience."""
    return await AzureTablesStore.open(
        connection_string=connection_string or azurite().connection_string,
        new_write_id=new_write_id,
        prefix=prefix or new_prefix(),
        patience_seconds_max=patience_seconds_max,
    )
