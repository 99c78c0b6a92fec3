"""RESULTs in a SQLite file: for a service process with a folder of its own, or several on one machine.

In: bytes under a key. Out: the same after a restart. Writes that come together share a transaction, in a
thread; a look is a point read in the loop's thread. A write is safe from the end of the process, not from a
power cut: then the attempt's lease runs out as it does for every machine that is gone.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from lucius.sdk.directive import Key

BUSY_TIMEOUT_MS = 5_000
OPEN_RETRY_MS = 20
FILE_MODE = 0o600  # it holds callback tokens until their RESULTs are delivered

_CREATE = (
    "CREATE TABLE IF NOT EXISTS results (key BLOB PRIMARY KEY, at_ms INTEGER NOT NULL, result BLOB NOT NULL,"
    " reply_to BLOB) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS results_by_age ON results (at_ms)",
    "CREATE INDEX IF NOT EXISTS results_owed ON results (at_ms) WHERE reply_to IS NOT NULL",
)
_FIND = "SELECT result FROM results WHERE key = ?"
_KEEP = "INSERT INTO results VALUES (?, ?, ?, ?) ON CONFLICT (key) DO NOTHING"
_SETTLE = "UPDATE results SET reply_to = NULL WHERE key = ? AND reply_to IS NOT NULL"
_UNDELIVERED = "SELECT reply_to, result FROM results WHERE reply_to IS NOT NULL ORDER BY at_ms LIMIT ?"
_SWEEP = "DELETE FROM results WHERE key IN (SELECT key FROM results WHERE at_ms < ? ORDER BY at_ms LIMIT ?)"

_Write = Callable[[sqlite3.Connection], Any]


class SqliteResultStore:
    def __init__(self, writer: sqlite3.Connection, reader: sqlite3.Connection) -> None:
        """Use `open`."""
        self._writer = writer
        self._reader = reader
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lucius-results")
        self._pending: list[tuple[_Write, asyncio.Future[Any]]] = []
        self._writing: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, path: Path, *, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> "SqliteResultStore":
        """Raises `OSError` or `sqlite3.Error`."""
        return cls(*await asyncio.to_thread(_connect, path, busy_timeout_ms))

    async def find(self, key: Key) -> bytes | None:
        rows = self._reader.execute(_FIND, (_name(key),)).fetchall()
        return rows[0][0] if rows else None

    async def keep(self, key: Key, result: bytes, reply_to: bytes, *, at_ms: int) -> bytes:
        name = _name(key)

        def write(connection: sqlite3.Connection) -> bytes:
            if connection.execute(_KEEP, (name, at_ms, result, reply_to)).rowcount:
                return result
            kept: bytes = connection.execute(_FIND, (name,)).fetchone()[0]
            return kept

        kept: bytes = await self._written(write)
        return kept

    async def settle(self, key: Key) -> None:
        # No caller waits for it: a RESULT whose mark was lost is delivered twice, which does no harm.
        name = _name(key)
        self._written(lambda connection: connection.execute(_SETTLE, (name,)))

    async def undelivered(self, undelivered_max: int) -> list[tuple[bytes, bytes]]:
        return self._reader.execute(_UNDELIVERED, (undelivered_max,)).fetchall()

    async def sweep(self, *, before_ms: int, entries_max: int) -> None:
        await self._written(lambda connection: connection.execute(_SWEEP, (before_ms, entries_max)))

    async def close(self) -> None:
        """Finishes what is to be written."""
        if self._writing is not None:
            await self._writing
        self._thread.shutdown()
        self._reader.close()
        self._writer.close()

    def _written(self, write: _Write) -> "asyncio.Future[Any]":
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        done.add_done_callback(lambda _: done.cancelled() or done.exception())  # some are not waited for
        self._pending.append((write, done))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all())
        return done

    async def _write_all(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._pending:
                batch, self._pending = self._pending, []
                writes = [write for write, _ in batch]
                outcome = await loop.run_in_executor(self._thread, _commit, self._writer, writes)
                for number, (_, done) in enumerate(batch):
                    if done.done():
                        continue
                    if isinstance(outcome, list):
                        done.set_result(outcome[number])
                    else:
                        done.set_exception(outcome)
        finally:
            self._writing = None


def _commit(connection: sqlite3.Connection, writes: list[_Write]) -> list[Any] | sqlite3.Error:
    """All of them or none."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        outcomes = [write(connection) for write in writes]
        connection.execute("COMMIT")
    except sqlite3.Error as fault:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        return fault
    return outcomes


def _connect(path: Path, busy_timeout_ms: int) -> tuple[sqlite3.Connection, sqlite3.Connection]:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.touch(mode=FILE_MODE)
    writer = sqlite3.connect(
        path, timeout=busy_timeout_ms / 1000, isolation_level=None, check_same_thread=False
    )
    try:
        _prepare_in_turn(writer, tries_max=1 + busy_timeout_ms // OPEN_RETRY_MS)
        # It holds the loop while it waits, and a reader waits only while the log is recovered.
        reader = sqlite3.connect(path, timeout=0.25, isolation_level=None, check_same_thread=False)
    except BaseException:
        writer.close()
        raise
    return writer, reader


def _prepare_in_turn(connection: sqlite3.Connection, *, tries_max: int) -> None:
    """Processes that create one file at once meet here, and not for every statement SQLite itself waits."""
    for tries_left in range(tries_max - 1, -1, -1):
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
            connection.execute("PRAGMA synchronous = NORMAL")
            for text in _CREATE:
                connection.execute(text)
        except sqlite3.OperationalError as fault:
            code = getattr(fault, "sqlite_errorcode", 0)
            if tries_left == 0 or code & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            time.sleep(OPEN_RETRY_MS / 1000)
        else:
            return


def _name(key: Key) -> bytes:
    return msgspec.json.encode(key)
