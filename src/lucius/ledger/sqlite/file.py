"""The SQLite file: how it is opened, what lies in it, and the SQL of every verb.

In: a path, table names. Out: connections that are ready to use, statement texts, faults by kind.
Knows sqlite3; knows nothing of loops, threads or groups.

A logical table is one SQLite table of the same name, keyed (pk, rk). Text compares by its UTF-8 bytes, which
is the order of code points. `_store` holds the one counter from which ETags are given.
"""

import os
import re
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import msgspec

from lucius.ledger.checksums import table_sum
from lucius.ledger.columns import RowKind
from lucius.ledger.limits import check_table
from lucius.private_files import close_to_others, create_private

# A row of more than a quarter of a page spills into pages of its own: 8 KiB keeps 2 KB rows whole.
PAGE_BYTES = 8192
CACHE_KIB = 16_384
MMAP_BYTES = 268_435_456
WAL_CHECKPOINT_PAGES = 1_000  # 8 MB: a checkpoint then holds a commit up for about 10 ms
WAL_KEPT_BYTES = 67_108_864
OPEN_RETRY_MS = 20
STATEMENTS_CACHED_MAX = 1_024

VIEW_NAMES = frozenset(RowKind)  # a table and a view cannot share a name

CREATE_STORE = 'CREATE TABLE IF NOT EXISTS "_store" (name TEXT PRIMARY KEY, value INTEGER) WITHOUT ROWID'
CREATE_COUNTER = "INSERT OR IGNORE INTO \"_store\" VALUES ('etag', 1)"
RESERVE_ETAGS = "UPDATE \"_store\" SET value = value + ? WHERE name = 'etag'"
READ_COUNTER = "SELECT value FROM \"_store\" WHERE name = 'etag'"
HAS_TABLE = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"


class Statements(msgspec.Struct, frozen=True, kw_only=True):
    """The texts for one table. They never vary, so the connection's statement cache always hits."""

    name: str
    table_sum: int  # what the checksums of its rows begin with
    create: str
    insert: str
    replace: str
    delete: str
    put: str
    discard: str
    get: str
    query: str
    query_to_end: str
    scan: str
    scan_key: str


_TEXTS = {
    "create": (
        "CREATE TABLE IF NOT EXISTS {table} (pk TEXT NOT NULL, rk TEXT NOT NULL, etag TEXT NOT NULL,"
        " body BLOB NOT NULL, PRIMARY KEY (pk, rk)) WITHOUT ROWID"
    ),
    "insert": "INSERT INTO {table} (etag, body, pk, rk) VALUES (?, ?, ?, ?) ON CONFLICT (pk, rk) DO NOTHING",
    "replace": "UPDATE {table} SET etag = ?, body = ? WHERE pk = ? AND rk = ? AND etag = ?",
    "delete": "DELETE FROM {table} WHERE pk = ? AND rk = ? AND etag = ?",
    "put": (
        "INSERT INTO {table} (etag, body, pk, rk) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (pk, rk) DO UPDATE SET etag = excluded.etag, body = excluded.body"
    ),
    "discard": "DELETE FROM {table} WHERE pk = ? AND rk = ?",
    "get": "SELECT etag, body FROM {table} WHERE pk = ? AND rk = ?",
    "query": "SELECT rk, etag, body FROM {table} WHERE pk = ? AND rk >= ? AND rk < ? ORDER BY rk LIMIT ?",
    "query_to_end": "SELECT rk, etag, body FROM {table} WHERE pk = ? AND rk >= ? ORDER BY rk LIMIT ?",
    "scan": "SELECT pk, rk, etag, body FROM {table} WHERE (pk, rk) >= (?, ?) ORDER BY pk, rk LIMIT ?",
    # From partition to partition, past the rows between: each step is one look into the key.
    "scan_key": (
        "WITH RECURSIVE parts (pk) AS (SELECT (SELECT pk FROM {table} WHERE pk >= ? ORDER BY pk LIMIT 1)"
        " UNION ALL SELECT (SELECT t.pk FROM {table} AS t WHERE t.pk > parts.pk ORDER BY t.pk LIMIT 1)"
        " FROM parts WHERE parts.pk IS NOT NULL)"
        " SELECT t.pk, t.rk, t.etag, t.body FROM parts CROSS JOIN {table} AS t"
        " ON t.pk = parts.pk AND t.rk = ? LIMIT ?"
    ),
}


@lru_cache(maxsize=1024)
def statements(table: str) -> Statements:
    check_table(table)  # the name goes into the texts: nothing but letters, digits, '-' and '_' may
    name = re.sub("([A-Z])", r"^\1", table)  # to SQLite Jobs and jobs are one name, to the port they are two
    if table in VIEW_NAMES:
        name = f"{table}^"
    texts = {verb: text.format(table=f'"{name}"') for verb, text in _TEXTS.items()}
    return Statements(name=name, table_sum=table_sum(table), **texts)


def logical_name(name: str) -> str:
    """The table that is kept under this name."""
    return name.replace("^", "")


class FileIdentity:
    """Recognises the file. What is written to a file that was removed or moved is lost to processes that open
    the path later, and SQLite does not notice."""

    def __init__(self, path: Path) -> None:
        self._path = str(path.absolute())
        self._inode = self._look()

    @property
    def words(self) -> str:
        return f"{self._path} was removed or replaced while it was in use: stop Lucius, and start it again"

    def holds(self) -> bool:
        return self._inode == self._look()

    def _look(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._path)  # noqa: PTH116 - for every group
        except OSError:
            return None
        return found.st_dev, found.st_ino


def is_busy(fault: sqlite3.Error) -> bool:
    """Whether another connection holds the lock: the one fault that waiting may cure."""
    code = getattr(fault, "sqlite_errorcode", None)
    return code is not None and code & 0xFF == sqlite3.SQLITE_BUSY


Prepare = Callable[[sqlite3.Connection], None]


def connect_writer(
    path: Path, *, busy_timeout_ms: int, prepare_more: Prepare | None = None
) -> sqlite3.Connection:
    """Opens, and where needed creates, the file, for its owner alone, as SQLite then creates those beside it.
    Waits up to the timeout for others that do the same; after that the connection never waits: its user
    decides how to wait. `prepare_more`: what else is to be there before the first commit."""
    with suppress(OSError):  # SQLite reports it later
        create_private(path)
        for suffix in ("", "-wal", "-shm"):
            close_to_others(path.with_name(path.name + suffix))
    connection = _connect(path, busy_timeout_ms=busy_timeout_ms)
    try:
        tries_max = 1 + busy_timeout_ms // OPEN_RETRY_MS
        _prepare_in_turn(connection, _prepare, tries_max=tries_max)
        if prepare_more is not None:
            _prepare_in_turn(connection, prepare_more, tries_max=tries_max)
        connection.execute("PRAGMA busy_timeout = 0")
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare_in_turn(connection: sqlite3.Connection, prepare: Prepare, *, tries_max: int) -> None:
    """Processes that create one file at once meet here, and not for every statement SQLite itself waits."""
    for tries_left in range(tries_max - 1, -1, -1):
        try:
            prepare(connection)
        except sqlite3.OperationalError as fault:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if tries_left == 0 or not is_busy(fault):
                raise
            time.sleep(OPEN_RETRY_MS / 1000)
        else:
            return


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")  # only ever matters to a new file
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_CHECKPOINT_PAGES}")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_KEPT_BYTES}")
    # Savepoints keep the pages they may have to restore here, never in a temporary file.
    connection.execute("PRAGMA temp_store = MEMORY")
    # Zeroes what is deleted only where the page is written anyway.
    connection.execute("PRAGMA secure_delete = FAST")
    if not _has_counter(connection):
        # Both or neither: a process that finds the table relies on the counter.
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(CREATE_STORE)
        connection.execute(CREATE_COUNTER)
        connection.execute("COMMIT")


def _has_counter(connection: sqlite3.Connection) -> bool:
    known = connection.execute(HAS_TABLE, ("_store",)).fetchall()
    return bool(known and connection.execute(READ_COUNTER).fetchall())


def connect_reader(path: Path, *, busy_timeout_ms: int) -> sqlite3.Connection:
    connection = _connect(path, busy_timeout_ms=busy_timeout_ms)
    try:
        connection.execute(f"PRAGMA mmap_size = {MMAP_BYTES}")
        connection.execute("PRAGMA query_only = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(path: Path, *, busy_timeout_ms: int) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path,
        timeout=busy_timeout_ms / 1000,
        isolation_level=None,  # transactions are begun and ended by name
        check_same_thread=False,  # handed over between threads, never used by two at once
        cached_statements=STATEMENTS_CACHED_MAX,
    )
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    return connection
