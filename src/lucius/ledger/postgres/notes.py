"""Notes between the processes that share a database, which may get lost: LISTEN and NOTIFY.

In: notes of this process. Out: those of the others. One connection listens and sends. It is opened again
whenever it breaks; what is said meanwhile is not heard.

A note is a transaction of its own that waits for no flush of the log. PostgreSQL lets transactions that
notify commit one after the other: with NOTIFY inside it, the commit of a job would wait for the flushes of
all others.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import structlog

from lucius.ledger.postgres.connection import (
    FAULTS,
    CallFailed,
    Connection,
    PostgresAddress,
    call_failed,
)
from lucius.ledger.store import StoreUnavailable

CHANNEL: Final = "lucius"
NOTE_BYTES_MAX: Final = 7_900  # PostgreSQL takes less than 8,000
# A connection whose other end is gone says nothing, which looks like a connection with nothing to say.
LOOK_EVERY_SECONDS: Final = 5.0
PAUSE_SECONDS: Final = 0.5
_SEND: Final = f"SELECT pg_notify('{CHANNEL}', $1)"

log = structlog.get_logger("lucius.store")


class PostgresNotes:
    def __init__(self, address: PostgresAddress) -> None:
        self._address = address
        self._listener: Callable[[bytes], None] | None = None
        self._connection: Connection | None = None
        self._own_pid = 0
        self._broken = asyncio.Event()
        self._turn = asyncio.Lock()  # a connection takes one call at a time
        self._task: asyncio.Task[None] | None = None

    async def send(self, note: bytes) -> None:
        """Raises `StoreUnavailable`."""
        connection = self._connection
        if connection is None:
            raise StoreUnavailable("no connection listens")
        try:
            async with self._turn:
                await connection.fetch(_SEND, note.decode())
        except CallFailed as failed:
            raise StoreUnavailable(failed.reason) from None

    async def listen(self, on_note: Callable[[bytes], None]) -> None:
        """`on_note` is called with every note of other processes, until the end. A database that cannot be
        reached now is tried again."""
        self._listener = on_note
        with suppress(CallFailed):
            await self._open()
        self._task = asyncio.create_task(self._keep_open(), name="lucius notes")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _keep_open(self) -> None:
        while True:
            try:
                if self._connection is None:
                    await self._open()
                    log.info("notes_heard_again")
                await self._until_broken(self._connection)
            except CallFailed as failed:
                log.warning("notes_not_heard", error=failed.reason)
            if self._connection is not None:
                self._connection.abort()
                self._connection = None
            await asyncio.sleep(PAUSE_SECONDS)

    async def _open(self) -> None:
        connection = await Connection.open(self._address)
        session = connection.session
        try:
            await connection.run("SET synchronous_commit = off")
            await session.add_listener(CHANNEL, self._on_note)
        except FAULTS as fault:
            connection.abort()
            raise call_failed(fault) from None
        self._broken.clear()
        session.add_termination_listener(self._on_end)
        self._own_pid = session.get_server_pid()
        self._connection = connection

    async def _until_broken(self, connection: Connection | None) -> None:
        while connection is not None and not connection.closed and not self._broken.is_set():
            try:
                async with asyncio.timeout(LOOK_EVERY_SECONDS):
                    await self._broken.wait()
            except TimeoutError:
                async with self._turn:
                    await connection.fetch("SELECT 1")

    def _on_note(self, session: Any, pid: int, channel: str, note: str) -> None:
        if pid != self._own_pid and self._listener is not None:
            self._listener(note.encode())

    def _on_end(self, session: Any) -> None:
        self._broken.set()
