"""A table store in one SQLite file: the embedded default.

In: commits, reads. Out: rows, or the port's own errors. Several processes may use one file at once. A store
belongs to the event loop that opened it.

Writes go through the group writer. Reads run in the loop's thread on a connection of their own: a reader of
a write-ahead log never waits for the writer, and a point read takes less time than a hop to another thread.
They see what is committed and nothing else.
"""

import asyncio
import sqlite3
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lucius.ledger.checksums import partition_sum
from lucius.ledger.limits import Places, check_commit, check_key, check_limit
from lucius.ledger.sqlite.file import (
    HAS_TABLE,
    FileIdentity,
    Statements,
    connect_reader,
    connect_writer,
    statements,
)
from lucius.ledger.sqlite.integrity import DAMAGE, file_findings, read_damaged_text, read_row, text_of
from lucius.ledger.sqlite.views import refresh_views
from lucius.ledger.sqlite.write_lock import WriteLock
from lucius.ledger.sqlite.writer import GroupWriter, unavailable
from lucius.ledger.store import Op, Row, Scanned, StoreUnavailable

BUSY_TIMEOUT_MS = 5_000
# A reader meets a lock only while another process recovers or removes the log, and it holds the loop.
READ_BUSY_TIMEOUT_MS = 250


class SqliteStore:
    def __init__(self, path: Path, *, reader: sqlite3.Connection, writer: GroupWriter) -> None:
        """Use `open`."""
        self.path = path
        self._reader = reader
        self._writer = writer
        self._tables: dict[str, Statements] = {}
        self._closed = False

    @classmethod
    async def open(cls, path: Path | str, *, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> "SqliteStore":
        """Opens the file, creating it where there is none. `busy_timeout_ms` is how long a commit waits while
        another process holds the write lock."""
        path = Path(path)
        try:
            connection = await asyncio.to_thread(
                connect_writer, path, busy_timeout_ms=busy_timeout_ms, prepare_more=refresh_views
            )
            reader = connect_reader(path, busy_timeout_ms=READ_BUSY_TIMEOUT_MS)
            write_lock, mark = WriteLock(path), FileIdentity(path)
        except (*DAMAGE, OSError) as fault:
            raise unavailable(fault) from fault
        reconnect = partial(connect_writer, path, busy_timeout_ms=0)
        writer = GroupWriter(
            connection, reconnect=reconnect, write_lock=write_lock, mark=mark, busy_timeout_ms=busy_timeout_ms
        )
        return cls(path, reader=reader, writer=writer)

    @property
    def spans(self) -> bool:
        return True

    @property
    def group_sizes(self) -> Mapping[int, int]:
        """How many transactions carried how many commits."""
        return self._writer.group_sizes

    async def get(self, table: str, partition: str, key: str) -> Row | None:
        check_key(partition)
        check_key(key)
        texts = self._texts(table)
        if texts is None:
            return None
        rows = self._read(texts.get, (partition, key))
        if not rows:
            return None
        etag, body = rows[0]
        return read_row(partition_sum(table, partition), key, etag, body)

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
        place = partition_sum(table, partition) if rows else 0
        return [read_row(place, *row) for row in rows]

    async def scan(
        self, table: str, *, after: tuple[str, str] | None = None, limit: int, key: str | None = None
    ) -> list[Scanned]:
        check_limit(limit)
        texts = self._texts(table)
        if texts is None:
            return []
        # Nothing lies between a text and the same with a zero added.
        partition, last_key = ("", "") if after is None else (after[0], f"{after[1]}\x00")
        if key is None:
            rows = self._read(texts.scan, (partition, last_key, limit))
        else:
            passed = after is not None and key <= after[1]
            rows = self._read(texts.scan_key, (f"{partition}\x00" if passed else partition, key, limit))
        return [_scanned(table, *row) for row in rows]

    async def commit(self, ops: Sequence[Op]) -> list[str]:
        return await self._written(ops, check_commit(ops, spans=True))

    async def ping(self) -> None:
        """Raises StoreUnavailable if writes cannot be taken."""
        await self._written((), set())

    async def integrity(self) -> list[str]:
        """What is wrong with the file, and with which rows; nothing, if it is sound. Reads all of it, on a
        connection and in a thread of its own."""
        try:
            return await asyncio.to_thread(file_findings, self.path, in_use=True)
        except (*DAMAGE, OSError) as fault:
            raise unavailable(fault) from fault

    async def close(self) -> None:
        """Finishes what is queued; refuses whatever comes after."""
        await self._writer.close()
        self._closed = True
        self._reader.close()

    async def _written(self, ops: Sequence[Op], places: Places) -> list[str]:
        # The writer answers with values, so that a refusal whose caller has gone is not a lost exception.
        outcome = await self._writer.submit(ops, places)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _texts(self, table: str) -> Statements | None:
        """The table's statements, or None until it is created."""
        texts = self._tables.get(table)
        if texts is None:
            texts = statements(table)
            if not self._read(HAS_TABLE, (texts.name,)):
                return None
            self._tables[table] = texts
        return texts

    def _read(self, text: str, values: tuple[str | int, ...]) -> list[Any]:
        if self._closed:
            raise StoreUnavailable("the store is closed")
        try:
            # All rows at once: a statement left open would hold an old view of the file.
            return self._reader.execute(text, values).fetchall()
        except sqlite3.OperationalError as fault:
            if "Could not decode" not in str(fault):
                raise unavailable(fault) from fault
        except DAMAGE as fault:
            raise unavailable(fault) from fault
        try:
            return read_damaged_text(self._reader, text, values)
        except DAMAGE as fault:
            raise unavailable(fault) from fault


def _scanned(table: str, partition: Any, key: Any, etag: Any, body: Any) -> Scanned:
    place = text_of(partition)
    row = read_row(partition_sum(table, place), key, etag, body)
    return Scanned(place, row.key, row.etag, row.body, row.damage)
