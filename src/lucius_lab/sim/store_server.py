"""A store on a real server as the one that a simulation shares: the adapter of a deployment, over the wire.

In: the calls that `SimStore` makes of the store behind it. Out: what the adapter answers. The simulation has
its own clock and loop, which know nothing of sockets; the adapter runs in a thread with a loop of asyncio's,
and while it is at work the simulated time stands still. So a seed decides everything here as well, hours pass
in seconds, and each call is one act that no other runs beside: how the adapter fares when calls do run side
by side is for the tests of the port.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from threading import Thread
from typing import Any, Final, TypeVar

from lucius.ledger.store import Op, Row, Scanned, TableStore

T = TypeVar("T")

PAGE_ROWS: Final = 1_000
ROWS_MAX: Final = 100_000
CALL_SECONDS_MAX: Final = 120.0


class ServerThread:
    """The thread that talks to a server."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def now(self, coro: Coroutine[Any, Any, T]) -> T:
        """Its result, for which the caller's whole thread waits."""
        return asyncio.run_coroutine_threadsafe(coro, self._loop).result(CALL_SECONDS_MAX)

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class SharedServerStore:
    """A store that begins empty, and that the lab may read directly."""

    def __init__(self, thread: ServerThread, inner: TableStore) -> None:
        """`inner`: belongs to the thread's loop."""
        self._thread = thread
        self._inner = inner

    @property
    def spans(self) -> bool:
        return self._inner.spans

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
        return self._thread.now(self._inner.scan(table, after=after, limit=limit, key=key))

    async def commit(self, ops: Sequence[Op]) -> list[str]:
        return self._thread.now(self._inner.commit(ops))

    async def ping(self) -> None:
        self._thread.now(self._inner.ping())

    async def close(self) -> None:
        """The server outlives it."""

    # What the lab looks into

    def row(self, table: str, partition: str, key: str) -> Row | None:
        return self._thread.now(self._inner.get(table, partition, key))

    def between(self, table: str, partition: str, start: str, end: str | None, limit: int) -> list[Row]:
        return self._thread.now(self._inner.query(table, partition, start=start, end=end, limit=limit))

    def rows(self, table: str, partition: str) -> list[Row]:
        return self.between(table, partition, "", None, ROWS_MAX)

    def partitions(self, table: str) -> list[str]:
        return sorted({row.partition for row in self._thread.now(self._scanned(table))})

    def is_empty(self, tables: Sequence[str]) -> bool:
        return not any(self._thread.now(self._inner.scan(table, limit=1)) for table in tables)

    async def _scanned(self, table: str) -> list[Scanned]:
        found: list[Scanned] = []
        while True:
            after = (found[-1].partition, found[-1].key) if found else None
            page = await self._inner.scan(table, after=after, limit=PAGE_ROWS)
            found += page
            if len(page) < PAGE_ROWS:
                return found
