"""The SQLite file of a ledger, opened for reading alone: by `lucius doctor`, beside a server or without one.

In: a path. Out: a table store that refuses every commit, and SQLite's own verdict on the file. A server that
writes meanwhile is not held up: a reader of a write-ahead log takes no lock that a writer wants.

Where no log lies beside the file, its last user closed it. To open it as usual would leave a log and an index
of it behind, of whoever runs the command: it is opened as a file that nobody changes.
"""

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lucius.ledger.limits import check_key, check_limit
from lucius.ledger.sqlite_file import HAS_TABLE, Statements, statements
from lucius.ledger.sqlite_writer import unavailable
from lucius.ledger.store import Op, Row, Scanned, StoreUnavailable

BUSY_TIMEOUT_SECONDS = 5.0
FAULTS_MAX = 20  # as many as SQLite is asked for
MMAP_BYTES = 268_435_456


class ReadOnlySqlite:
    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        """Use `open`."""
        self._path = path
        self._connection = connection
        self._tables: dict[str, Statements] = {}

    @classmethod
    def open(cls, path: Path) -> "ReadOnlySqlite":
        """Raises `StoreUnavailable`."""
        try:
            return cls(path, _connect(path))
        except sqlite3.Error as fault:
            raise unavailable(fault) from fault

    @property
    def spans(self) -> bool:
        return True

    async def get(self, table: str, partition: str, key: str) -> Row | None:
        check_key(partition)
        check_key(key)
        texts = self._texts(table)
        rows = [] if texts is None else self._read(texts.get, (partition, key))
        return Row(key, rows[0][0], rows[0][1]) if rows else None

    async def query(
        self, table: str, partition: str, *, start: str = "", end: str | None = None, limit: int
    ) -> list[Row]:
        check_key(partition)
        check_limit(limit)
        texts = self._texts(table)
        if texts is None:
            return []
        if end is None:
            rows = self._read(texts.query_to_end, (partition, start, limit))
        else:
            rows = self._read(texts.query, (partition, start, end, limit))
        return [Row(*row) for row in rows]

    async def scan(
        self, table: str, *, after: tuple[str, str] | None = None, limit: int, key: str | None = None
    ) -> list[Scanned]:
        check_limit(limit)
        texts = self._texts(table)
        if texts is None:
            return []
        partition, last_key = ("", "") if after is None else (after[0], f"{after[1]}\x00")
        if key is None:
            rows = self._read(texts.scan, (partition, last_key, limit))
        else:
            passed = after is not None and key <= after[1]
            rows = self._read(texts.scan_key, (f"{partition}\x00" if passed else partition, key, limit))
        return [Scanned(*row) for row in rows]

    async def commit(self, ops: Sequence[Op]) -> list[str]:
        raise StoreUnavailable("the ledger was opened for reading alone")

    async def ping(self) -> None:
        raise StoreUnavailable("the ledger was opened for reading alone")

    async def integrity(self) -> list[str]:
        """What SQLite finds wrong with the file; nothing if it is sound. On a connection of its own, in a
        thread."""
        return await asyncio.to_thread(_quick_check, self._path)

    async def close(self) -> None:
        self._connection.close()

    def _texts(self, table: str) -> Statements | None:
        texts = self._tables.get(table)
        if texts is None:
            texts = statements(table)
            if not self._read(HAS_TABLE, (texts.name,)):
                return None
            self._tables[table] = texts
        return texts

    def _read(self, text: str, values: tuple[str | int, ...]) -> list[Any]:
        try:
            return self._connection.execute(text, values).fetchall()
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
