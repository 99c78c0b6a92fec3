"""The SQLite file of a ledger, opened for reading alone: by `lucius doctor`, beside a server or without one.

In: a path. Out: a table store that refuses every commit, and SQLite's own verdict on the file. A server that
writes meanwhile is not held up: a reader of a write-ahead log takes no lock that a writer wants.

Where no log lies beside the file, its last user closed it. To open it as usual would leave a log and its
index behind, owned by the user who runs the command. So it is opened as a file that does not change.
"""

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from lucius.ledger.sqlite.file import Statements
from lucius.ledger.sqlite.store import SqliteStore
from lucius.ledger.sqlite.writer import unavailable
from lucius.ledger.store import Op, StoreUnavailable

BUSY_TIMEOUT_SECONDS = 5.0
FAULTS_MAX = 20  # as many as SQLite is asked for
MMAP_BYTES = 268_435_456
REFUSAL = "the ledger was opened for reading alone"


class ReadOnlySqlite(SqliteStore):
    """Reads as the store of a server does, and has no writer."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        """Use `open_read_only`."""
        self.path = path
        self._reader = connection
        self._tables: dict[str, Statements] = {}
        self._closed = False

    async def commit(self, ops: Sequence[Op]) -> list[str]:
        raise StoreUnavailable(REFUSAL)

    async def ping(self) -> None:
        raise StoreUnavailable(REFUSAL)

    async def integrity(self) -> list[str]:
        """What SQLite finds wrong with the file; nothing if it is sound. On a connection of its own, in a
        thread."""
        return await asyncio.to_thread(_quick_check, self.path)

    async def close(self) -> None:
        self._closed = True
        self._reader.close()


def open_read_only(path: Path) -> ReadOnlySqlite:
    """Raises `StoreUnavailable`."""
    try:
        return ReadOnlySqlite(path, _connect(path))
    except sqlite3.Error as fault:
        raise unavailable(fault) from fault


def _connect(path: Path) -> sqlite3.Connection:
    alone = not path.with_name(f"{path.name}-wal").exists()
    address = f"file:{quote(str(path.absolute()))}?mode=ro{'&immutable=1' if alone else ''}"
    connection = sqlite3.connect(
        address, uri=True, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute(f"PRAGMA mmap_size = {MMAP_BYTES}")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def _quick_check(path: Path) -> list[str]:
    try:
        connection = _connect(path)
    except sqlite3.Error as fault:
        return [str(fault)]
    try:
        found = [str(row[0]) for row in connection.execute(f"PRAGMA quick_check({FAULTS_MAX})")]
    except sqlite3.Error as fault:
        return [str(fault)]
    finally:
        connection.close()
    return [] if found == ["ok"] else found
