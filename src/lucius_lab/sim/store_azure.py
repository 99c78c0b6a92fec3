"""Azure's tables as the store that a simulation shares: the real adapter, on a real Azurite.

In: the calls that `SimStore` makes of the store behind it. Out: what the adapter answers. The simulation has
its own clock and loop, which know nothing of sockets; the adapter runs in a thread with a loop of asyncio's,
and while it is at work the simulated time stands still. So a seed decides everything here as well, hours pass
in seconds, and each call is one act that no other runs beside: how the adapter fares when calls do run side
by side is for the tests of the port.
"""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from threading import Thread
from typing import Any, Final, TypeVar

from lucius.ledger.azure_tables.entity import row_of
from lucius.ledger.azure_tables.names import key_from_azure, table_to_azure
from lucius.ledger.azure_tables.store import AzureTablesStore
from lucius.ledger.azure_tables.wire import TableWire, Token, WirePage
from lucius.ledger.store import Op, Row, Scanned, StoreUnavailable

T = TypeVar("T")

PAGE_ROWS: Final = 1_000
ROWS_MAX: Final = 100_000
CALL_SECONDS_MAX: Final = 120.0
PATIENCE_SECONDS_MAX: Final = 60.0
_ALL: Final = "PartitionKey ge ''"


class AzureTables:
    """One account, and the thread that talks to it."""

    def __init__(self, connection_string: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="azure tables", daemon=True)
        self._thread.start()
        self.wire = self.now(TableWire.to_connection_string(connection_string))

    def now(self, coro: Coroutine[Any, Any, T]) -> T:
        """Its result, for which the caller's whole thread waits."""
        return asyncio.run_coroutine_threadsafe(coro, self._loop).result(CALL_SECONDS_MAX)

    def close(self) -> None:
        self.now(self.wire.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def azure_tables(connection_string: str) -> Iterator[AzureTables]:
    account = AzureTables(connection_string)
    try:
        yield account
    finally:
        account.close()


class SharedAzureStore:
    """A store under a prefix of its own, which the lab may read directly."""

    spans = False

    def __init__(self, account: AzureTables, prefix: str) -> None:
        self._account = account
        self._prefix = prefix
        self._writes = 0
        self._inner = AzureTablesStore(
            account.wire,
            prefix=prefix,
            new_write_id=self._new_write_id,
            patience_seconds_max=PATIENCE_SECONDS_MAX,
        )

    # The port, for checks at rest

    async def get(self, table: str, partition: str, key: str) -> Row | None:
        return self.row(table, partition, key)

    async def query(
        self, table: str, partition: str, *, start: str = "", end: str | None = None, limit: int
    ) -> list[Row]:
        return self.between(table, partition, start, end, limit)

    async def scan(
        self, table: str, *, after: tuple[str, str] | None = None, limit: int, key: str | None = None
    ) -> list[Scanned]:
        return self._account.now(self._inner.scan(table, after=after, limit=limit, key=key))

    async def commit(self, ops: Sequence[Op]) -> list[str]:
        return self._account.now(self._inner.commit(ops))

    async def ping(self) -> None:
        self._account.now(self._inner.ping())

    async def close(self) -> None:
        """The account outlives it."""

    # What the lab looks into

    def row(self, table: str, partition: str, key: str) -> Row | None:
        return self._account.now(self._inner.get(table, partition, key))

    def between(self, table: str, partition: str, start: str, end: str | None, limit: int) -> list[Row]:
        return self._account.now(self._inner.query(table, partition, start=start, end=end, limit=limit))

    def rows(self, table: str, partition: str) -> list[Row]:
        return self.between(table, partition, "", None, ROWS_MAX)

    def partitions(self, table: str) -> list[str]:
        return sorted({partition for partition, _ in self._account.now(self._scan(table, ROWS_MAX))})

    def is_empty(self, tables: Sequence[str]) -> bool:
        return not any(self._account.now(self._scan(table, 1)) for table in tables)

    async def _scan(self, table: str, rows_max: int) -> list[tuple[str, Row]]:
        """Whatever stands in a table, in whichever partition: the adapter itself never asks for that."""
        found: list[tuple[str, Row]] = []
        token: Token | None = None
        while True:
            page = await self._account.wire.page(
                table_to_azure(self._prefix, table), _ALL, rows_max=min(rows_max, PAGE_ROWS), token=token
            )
            if not isinstance(page, WirePage):
                raise StoreUnavailable(f"{table} cannot be read: {page}")
            for each, etag in page.entities:
                partition = key_from_azure(each["PartitionKey"])
                found.append((partition, row_of(table, partition, each, etag)))
            token = page.token
            if token is None or len(found) >= rows_max:
                return found

    def _new_write_id(self) -> str:
        self._writes += 1
        return f"{self._writes:016x}"
