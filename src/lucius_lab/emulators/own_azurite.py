"""The Azurite that `lucius dev --profile azure-local` brings along: the ledger's tables and a container for
what services make, on this machine.

In: the data folder, which the caller has to itself. Out: settings that lead to both, stopped in the end.
Should this process be killed, Azurite writes down what it has not yet and ends: a successor, which finds it
by the note in the folder, waits for that. One that ends by itself is started again.

The key of its account is in that note, for its owner alone: the one that Azurite has by itself is known to
every reader of its source.
"""

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
import structlog

from lucius.assembly.own_servers.nats import arguments_of
from lucius.assembly.secrets import new_server_secret
from lucius.bus.nats.server import free_port
from lucius.ledger.store import StoreUnavailable
from lucius.private_files import write_private
from lucius.settings import Settings
from lucius.workspace import blob_account_of
from lucius_lab.emulators.azurite import (
    ACCOUNT_KEY,
    HOST,
    STOP_SECONDS_MAX,
    Azurite,
    AzuriteFailed,
    blob_connection_string,
    connection_string,
    create_container,
)

FOLDER_NAME: Final = "azurite"
CONTAINER: Final = "workspace"
NOTE_NAME: Final = "process.json"
LOOK_SECONDS: Final = 0.25
SEE_OFF_SECONDS_MAX: Final = STOP_SECONDS_MAX + 5.0
END_SECONDS_MAX: Final = 10.0

log = structlog.get_logger("lucius.assembly")


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    port: int
    blob_port: int = 0
    """0: it was started without blobs."""
    key: str = ""
    """Empty: it was started with the public key."""


@asynccontextmanager
async def own_azurite(settings: Settings, data: Path) -> AsyncIterator[Settings]:
    """Raises `StoreUnavailable`."""
    server = _Server(data)
    try:
        await asyncio.to_thread(server.begin)
    except (AzuriteFailed, OSError) as fault:
        raise StoreUnavailable(f"cannot start Azurite: {fault}") from None
    keeping = asyncio.create_task(_keep(server))
    try:
        yield _leading_to(server, settings)
    finally:
        keeping.cancel()
        await asyncio.wait({keeping})
        await asyncio.to_thread(server.stop)


def running_azurite(settings: Settings, data: Path) -> Settings | None:
    """Settings that lead to the tables of the `lucius dev` on this folder; None if it runs none."""
    server = _Server(data)
    server.recall()
    return _leading_to(server, settings) if server.running else None


def has_azurite(data: Path) -> bool:
    """Whether a ledger in tables was ever kept in this folder."""
    return (data / FOLDER_NAME / NOTE_NAME).exists()


def _leading_to(server: "_Server", settings: Settings) -> Settings:
    account = msgspec.structs.replace(
        settings.table_account,
        connection_string=connection_string(server.note.port, server.note.key or ACCOUNT_KEY),
        account_url=None,
        own=True,
    )
    settings = msgspec.structs.replace(settings, table_account=account)
    if settings.workspace_root is not None or settings.blob_account is not None:
        return settings
    blob = blob_account_of(blob_connection_string(server.note.blob_port, server.note.key or ACCOUNT_KEY))
    return msgspec.structs.replace(settings, blob_account=blob, workspace_root=f"az://{CONTAINER}")


class _Server:
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
        if self.running and not self.note.blob_port:
            self._end_other()
        if self.running:
            log.info("azurite_taken_over", pid=self.note.pid)
        else:
            self.start(_free_again(self.note.port), _free_again(self.note.blob_port))

    def _see_off(self) -> None:
        """The folder is ours, so the process that started it is gone, and its guard is about to end it. If
        the guard was killed too, it may go on, and is taken over."""
        until = time.monotonic() + SEE_OFF_SECONDS_MAX
        while self.running and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)

    def recall(self) -> None:
        with suppress(OSError, msgspec.DecodeError):
            self.note = msgspec.json.decode((self._folder / NOTE_NAME).read_bytes(), type=_Note)

    def start(self, port: int, blob_port: int) -> None:
        key = self.note.key or new_server_secret()
        azurite = Azurite(port=port, blob_port=blob_port, folder=self._folder, key=key)
        azurite.start()
        try:
            create_container(blob_port, CONTAINER, now=datetime.now(UTC), key=key)
        except AzuriteFailed:
            azurite.stop()
            raise
        self._own = azurite
        self.note = _Note(pid=azurite.pid or 0, port=port, blob_port=blob_port, key=key)
        write_private(self._folder / NOTE_NAME, msgspec.json.encode(self.note))

    def start_again(self) -> None:
        """At the address where its clients look for it, and nowhere else."""
        for port in (self.note.port, self.note.blob_port):
            if not _is_free(port):
                raise AzuriteFailed(f"port {port} is taken")
        self.start(self.note.port, self.note.blob_port)

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


async def _keep(server: _Server) -> None:
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        if server.running:
            continue
        log.warning("azurite_ended")
        try:
            await asyncio.to_thread(server.start_again)
        except (AzuriteFailed, OSError) as fault:
            log.error("azurite_not_started", error=str(fault))  # noqa: TRY400 - no fault of ours


def _free_again(port: int) -> int:
    """The same port as before, if it can be had."""
    return port if port and _is_free(port) else free_port()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            probe.bind((HOST, port))
            return True
    return False
