"""The Azurite that `lucius dev --profile azure-local` brings along: the ledger's tables, on this machine.

In: the data folder, which the caller has to itself. Out: settings that lead to running tables, stopped in the
end. Should this process be killed, Azurite writes down what it has not yet and ends: a successor, which finds
it by the note in the folder, waits for that. One that ends by itself is started again.

The key of its account is in that note, for its owner alone: the one that Azurite has by itself is known to
everybody.
"""

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec
import structlog

from lucius.assembly.own_nats import arguments_of
from lucius.assembly.secrets import new_server_secret
from lucius.bus.nats.server import free_port
from lucius.ledger.store import StoreUnavailable
from lucius.private_files import write_private
from lucius.settings import Settings
from lucius_lab.emulators.azurite import (
    ACCOUNT_KEY,
    HOST,
    STOP_SECONDS_MAX,
    Azurite,
    AzuriteFailed,
    connection_string,
)

FOLDER_NAME: Final = "azurite"
NOTE_NAME: Final = "process.json"
LOOK_SECONDS: Final = 0.25
SEE_OFF_SECONDS_MAX: Final = STOP_SECONDS_MAX + 5.0
END_SECONDS_MAX: Final = 10.0

log = structlog.get_logger("lucius.assembly")


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    port: int
    key: str = ""
    """Empty: it was started with the public key."""


@asynccontextmanager
async def own_azurite(settings: Settings, data: Path) -> AsyncIterator[Settings]:
    """Raises `StoreUnavailable`."""
    tables = _Tables(data)
    try:
        await asyncio.to_thread(tables.begin)
    except (AzuriteFailed, OSError) as fault:
        raise StoreUnavailable(f"cannot start Azurite: {fault}") from None
    keeping = asyncio.create_task(_keep(tables))
    try:
        yield _leading_to(tables, settings)
    finally:
        keeping.cancel()
        await asyncio.wait({keeping})
        await asyncio.to_thread(tables.stop)


def running_azurite(settings: Settings, data: Path) -> Settings | None:
    """Settings that lead to the tables of the `lucius dev` on this folder; None if it runs none."""
    tables = _Tables(data)
    tables.recall()
    return _leading_to(tables, settings) if tables.running else None


def has_azurite(data: Path) -> bool:
    """Whether a ledger in tables was ever kept in this folder."""
    return (data / FOLDER_NAME / NOTE_NAME).exists()


def _leading_to(tables: "_Tables", settings: Settings) -> Settings:
    account = msgspec.structs.replace(
        settings.table_account,
        connection_string=connection_string(tables.note.port, tables.note.key or ACCOUNT_KEY),
        account_url=None,
        own=True,
    )
    return msgspec.structs.replace(settings, table_account=account)


class _Tables:
    """One Azurite, started by this process or by another."""

    def __init__(self, data: Path) -> None:
        self._folder = data.absolute() / FOLDER_NAME
        self._own: Azurite | None = None
        self.note = _Note(pid=0, port=0)

    def begin(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.recall()
        self._see_off()
        if self.running and not self.note.key:
            log.warning("azurite_open_to_others", pid=self.note.pid)
            self._end_other()
        if self.running:
            log.info("azurite_taken_over", pid=self.note.pid)
        else:
            port = self.note.port
            self.start(port if port and _is_free(port) else free_port())

    def _see_off(self) -> None:
        """The folder is ours, so the process that started it is gone, and its guard is about to end it. If
        the guard was killed too, it may go on, and is taken over."""
        until = time.monotonic() + SEE_OFF_SECONDS_MAX
        while self.running and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)

    def recall(self) -> None:
        with suppress(OSError, msgspec.DecodeError):
            self.note = msgspec.json.decode((self._folder / NOTE_NAME).read_bytes(), type=_Note)

    def start(self, port: int) -> None:
        key = self.note.key or new_server_secret()
        azurite = Azurite(port=port, folder=self._folder, key=key)
        azurite.start()
        self._own = azurite
        self.note = _Note(pid=azurite.pid or 0, port=azurite.port, key=key)
        write_private(self._folder / NOTE_NAME, msgspec.json.encode(self.note))

    def start_again(self) -> None:
        """At the address where its clients look for it, and nowhere else."""
        if not _is_free(self.note.port):
            raise AzuriteFailed(f"port {self.note.port} is taken")
        self.start(self.note.port)

    @property
    def running(self) -> bool:
        # The process id may belong to another process by now; the folder is Lucius's.
        return self.note.pid > 0 and str(self._folder) in arguments_of(self.note.pid)

    def _end_other(self) -> None:
        until = time.monotonic() + END_SECONDS_MAX
        with suppress(ProcessLookupError):
            os.kill(self.note.pid, signal.SIGINT)
        while self.running:
            if time.monotonic() > until:
                raise AzuriteFailed(f"one that was left over does not end (process {self.note.pid})")
            time.sleep(LOOK_SECONDS)

    def stop(self) -> None:
        if self._own is not None:
            self._own.stop()
        elif self.running:
            with suppress(ProcessLookupError):
                os.kill(self.note.pid, signal.SIGINT)


async def _keep(tables: _Tables) -> None:
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        if tables.running:
            continue
        log.warning("azurite_ended")
        try:
            await asyncio.to_thread(tables.start_again)
        except (AzuriteFailed, OSError) as fault:
            log.error("azurite_not_started", error=str(fault))  # noqa: TRY400 - no fault of ours


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            probe.bind((HOST, port))
            return True
    return False
