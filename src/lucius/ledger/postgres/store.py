"""A table store in a PostgreSQL database (14 or later), shared by processes on any number of machines.

In: commits, reads. Out: rows, or the port's own errors. A commit spans partitions and tables, and is one
round trip, alone or together with those of other callers; a read is one. A store belongs to the event loop
that opened it. See docs/guides/postgresql.md for how to run it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import structlog

from lucius.ledger.checksums import DAMAGED, partition_sum
from lucius.ledger.limits import check_commit, check_key, check_limit, check_table
from lucius.ledger.names import Tables
from lucius.ledger.postgres.connection import (
    CallFailed,
    Connection,
    Outage,
    PostgresAddress,
    ReaderPool,
    RetryPause,
)
from lucius.ledger.postgres.keys import key_from_text, key_to_text
from lucius.ledger.postgres.notes import NOTE_BYTES_MAX, PostgresNotes
from lucius.ledger.postgres.schema import check_schema
from lucius.ledger.postgres.writer import PostgresWriter, TableNumbers, sum_of
from lucius.ledger.store import Op, Row, Scanned, StoreUnavailable

_NO_TABLE_STATE: Final = "42P01"
_GET: Final = 'SELECT rk, etag, sum, body FROM lucius_store."{table}" WHERE pk = $1 AND rk = $2'
_QUERY: Final = (
    'SELECT rk, etag, sum, body FROM lucius_store."{table}"'
    " WHERE pk = $1 AND rk >= $2 AND rk < $3 ORDER BY rk LIMIT $4"
)
_QUERY_TO_END: Final = (
    'SELECT rk, etag, sum, body FROM lucius_store."{table}" WHERE pk = $1 AND rk >= $2 ORDER BY rk LIMIT $3'
)
_SCAN: Final = (
    'SELECT pk, rk, etag, sum, body FROM lucius_store."{table}"'
    " WHERE (pk, rk) > ($1, $2) ORDER BY pk, rk LIMIT $3"
)
_SCAN_FIRST: Final = 'SELECT pk, rk, etag, sum, body FROM lucius_store."{table}" ORDER BY pk, rk LIMIT $1'
_CLOCK: Final = "SELECT floor(1000 * extract(epoch FROM clock_timestamp()))::bigint"
# From partition to partition, past the rows between: each step is one look into the key.
_SCAN_KEY: Final = (
    "WITH RECURSIVE parts (pk) AS ("
    '(SELECT pk FROM lucius_store."{table}" WHERE pk >= $1 ORDER BY pk LIMIT 1)'
    ' UNION ALL SELECT (SELECT t.pk FROM lucius_store."{table}" AS t WHERE t.pk > parts.pk ORDER BY t.pk'
    " LIMIT 1) FROM parts WHERE parts.pk IS NOT NULL)"
    " SELECT t.pk, t.rk, t.etag, t.sum, t.body FROM parts CROSS JOIN LATERAL"
    ' (SELECT * FROM lucius_store."{table}" AS u WHERE u.pk = parts.pk AND u.rk = $2) AS t LIMIT $3'
)

log = structlog.get_logger("lucius.store")


class PostgresStore:
    def __init__(
        self, readers: ReaderPool, writer: PostgresWriter, address: PostgresAddress, tables: TableNumbers
    ) -> None:
        """Use `open`."""
        self.address = address
        self._readers = readers
        self._writer = writer
        self._notes = PostgresNotes(address)
        self._numbers = tables
        self._closed = False

    @classmethod
    async def open(
        cls, address: PostgresAddress, *, tables: Tables | None = None, creates: bool = True
    ) -> "PostgresStore":
        """`creates`: a schema that is missing is made, if the role may. A server that cannot be
        reached now is tried again for as long as `address` says. Raises `StoreUnavailable`."""
        pause, warned = RetryPause(address.patience_seconds_max), False
        while True:
            numbers = TableNumbers()
            try:
                await _check(address, tables or Tables(), numbers, creates=creates)
                break
            except CallFailed as failed:
                if failed.outage is Outage.LASTING:
                    raise StoreUnavailable(failed.reason) from None
                if not warned:
                    log.warning("store_not_reached", error=failed.reason)
                    warned = True
                if not await pause.wait():
                    raise StoreUnavailable(failed.reason) from None
        return cls(ReaderPool(address), PostgresWriter(address, numbers), address, numbers)

    @property
    def spans(self) -> bool:
        return True

    @property
    def keeps_bounds(self) -> bool:
        return True

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def group_sizes(self) -> Mapping[int, int]:
        """How many transactions carried how many commits."""
        return self._writer.group_sizes

    async def get(self, table: str, partition: str, key: str) -> Row | None:
        check_table(table)
        check_key(partition)
        check_key(key)
        values = key_to_text(partition), key_to_text(key)
        found = await self._read(table, _GET, *values)
        return _row(table, partition, found[0]) if found else None

    async def query(
        self, table: str, partition: str, *, start: str = "", end: str | None = None, limit: int
    ) -> list[Row]:
        check_table(table)
        check_key(partition)
        check_limit(limit)
        first = key_to_text(partition), key_to_text(start)
        if end is None:
            found = await self._read(table, _QUERY_TO_END, *first, limit)
        else:
            found = await self._read(table, _QUERY, *first, key_to_text(end), limit)
        return [_row(table, partition, row) for row in found]

    async def scan(
        self, table: str, *, after: tuple[str, str] | None = None, limit: int, key: str | None = None
    ) -> list[Scanned]:
        check_table(table)
        check_limit(limit)
        partition, last_key = ("", "") if after is None else after
        if key is not None:
            # Nothing lies between a text and the same with a zero added.
            passed = after is not None and key <= last_key
            first = f"{partition}\x00" if passed else partition
            found = await self._read(table, _SCAN_KEY, key_to_text(first), key_to_text(key), limit)
        elif after is None:
            found = await self._read(table, _SCAN_FIRST, limit)
        else:
            place = key_to_text(partition), key_to_text(last_key)
            found = await self._read(table, _SCAN, *place, limit)
        return [_scanned(table, row) for row in found]

    async def commit(self, ops: Sequence[Op]) -> list[str]:
        check_commit(ops, spans=True)
        return await self._written(ops) if ops else []

    async def ping(self) -> None:
        """Raises StoreUnavailable if writes cannot be taken."""
        await self._written(())

    @property
    def note_bytes_max(self) -> int:
        return NOTE_BYTES_MAX

    async def nudge(self, note: bytes) -> None:
        """Reaches the processes that listen now, and none later: for notes that may be lost. Raises
        `StoreUnavailable`."""
        await self._notes.send(note)

    async def on_nudge(self, on_note: Callable[[bytes], None]) -> None:
        """`on_note` is called with every note of other processes, until the store is closed."""
        await self._notes.listen(on_note)

    async def close(self) -> None:
        """Finishes what is queued; refuses whatever comes after."""
        if not self._closed:
            self._closed = True
            await self._notes.close()
            await self._writer.close()
            await self._readers.close()

    async def _written(self, ops: Sequence[Op]) -> list[str]:
        # The writer answers with values, so that a refusal whose caller has gone is not a lost exception.
        outcome = await self._writer.submit(ops)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def server_clock_ms(self) -> int:
        (row,) = await self._read("", _CLOCK)
        return int(row[0])

    async def _read(self, table: str, text: str, *values: str | int) -> Sequence[Any]:
        if self._closed:
            raise StoreUnavailable("the store is closed")
        try:
            return await self._readers.fetch(text.format(table=table), *values)
        except CallFailed as failed:
            if failed.state == _NO_TABLE_STATE:
                return ()
            raise StoreUnavailable(failed.reason) from None


async def _check(address: PostgresAddress, tables: Tables, numbers: TableNumbers, *, creates: bool) -> None:
    """Reads which tables there are. Raises `CallFailed`, and `UnusableDatabase`."""
    connection = await Connection.open(address, plans=False)
    try:
        await check_schema(connection, tables, creates=creates)
        await numbers.read(connection)
    finally:
        await connection.close()


def _row(table: str, partition: str, found: Any) -> Row:
    rk, etag, stored, body = found
    key = key_from_text(rk)
    if stored != sum_of(etag, partition_sum(table, partition), key, body):
        return Row(key, str(etag), b"", DAMAGED)
    return Row(key, str(etag), body)


def _scanned(table: str, found: Any) -> Scanned:
    partition = key_from_text(found[0])
    row = _row(table, partition, found[1:])
    return Scanned(partition, row.key, row.etag, row.body, row.damage)
