"""The store as a simulated process sees it: a real one, with latency and faults in between.

`SharedStoreLike` is the data that all processes share, mostly a `SharedStore` (for those on a server see
`store_server`); each process has a `SimStore` of its own, which knows whose it is: what a dead process still
tries does not reach the data. After each commit that took effect the watch gets it. A conflict that is
invented here is a true one by the port's contract: nothing was written.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

from lucius.ledger.limits import check_commit
from lucius.ledger.memory import MemoryStore
from lucius.ledger.store import (
    Conflict,
    Op,
    Row,
    Scanned,
    StoreError,
    StoreUnavailable,
    TableStore,
    Verb,
)
from lucius_lab.sim.context import LATENCIES, ProcessGone, SimContext
from lucius_lab.sim.faults import FaultKind, Site
from lucius_lab.sim.loop import Process
from lucius_lab.sim.watch import StoreReader

# Looked up once: the members of an enum are slow to reach, and every call asks for some.
_READ, _COMMIT = Site.READ, Site.COMMIT
_UNREADABLE = FaultKind.ROW_UNREADABLE
_AFTER, _CRASH = FaultKind.STORE_TIMEOUT_AFTER, FaultKind.CRASH_AFTER


class SharedStoreLike(TableStore, StoreReader, Protocol):
    """The store that all processes share. Whatever it is asked, it answers before anything else happens."""

    def row(self, table: str, partition: str, key: str) -> Row | None:
        """What `get` answers."""
        ...

    def between(self, table: str, partition: str, start: str, end: str | None, limit: int) -> list[Row]:
        """What `query` answers."""
        ...

    def is_empty(self, tables: Sequence[str]) -> bool: ...


class SharedStore(MemoryStore):
    """The in-process store, which the lab may look into without asking."""

    def partitions(self, table: str) -> list[str]:
        return sorted(partition for name, partition in self._data.partitions if name == table)

    def rows(self, table: str, partition: str) -> list[Row]:
        found = self._data.partitions.get((table, partition))
        return [] if found is None else [found.rows[key] for key in found.keys]

    def row(self, table: str, partition: str, key: str) -> Row | None:
        found = self._data.partitions.get((table, partition))
        return None if found is None else found.rows.get(key)

    def between(self, table: str, partition: str, start: str, end: str | None, limit: int) -> list[Row]:
        found = self._data.partitions.get((table, partition))
        if found is None:
            return []
        keys, rows = found.keys, found.rows
        first = bisect_left(keys, start) if start else 0
        last = len(keys) if end is None else bisect_left(keys, end)
        return [rows[key] for key in keys[first : min(last, first + limit)]]

    def _check(self, ops: Sequence[Op]) -> None:
        """What an order of events may bring to light, and nothing else: how long keys are and what they are
        made of does not depend on it."""
        count = len(ops)
        if count > 1 and not self._spans:
            check_commit(ops, spans=False)
            return
        # Mostly the keys alone show that all are different.
        if count == 1 or len({op.key for op in ops}) == count:
            return
        if len({(op.table, op.partition, op.key) for op in ops}) != count:
            raise ValueError("the same row is named twice in one commit")

    def is_empty(self, tables: Sequence[str]) -> bool:
        return {table for table, _ in self._data.partitions}.isdisjoint(tables)


class SimStore:
    def __init__(self, context: SimContext, inner: SharedStoreLike, process: Process) -> None:
        self._context = context
        self._faults = context.faults
        self._loop = context.loop
        self._inner = inner
        self._process = process

    @property
    def spans(self) -> bool:
        return self._inner.spans

    async def get(self, table: str, partition: str, key: str) -> Row | None:
        if self._process.dead:
            raise ProcessGone
        kind = self._faults.at(_READ, self._process)
        strike = (self._faults.entropy, self._faults.number) if kind is _UNREADABLE else None
        if kind is not None or not self._faults.entropy & 7:
            await self._slow_read(table, kind)
        row = self._inner.row(table, partition, key)
        if row is None or (strike is None and not self._context.damage.any):
            return row
        (seen,) = self._damaged(table, partition, [row], strike)
        return seen

    async def query(
        self, table: str, partition: str, *, start: str = "", end: str | None = None, limit: int
    ) -> list[Row]:
        if self._process.dead:
            raise ProcessGone
        kind = self._faults.at(_READ, self._process)
        strike = (self._faults.entropy, self._faults.number) if kind is _UNREADABLE else None
        if kind is not None or not self._faults.entropy & 7:
            await self._slow_read(table, kind)
        rows = self._inner.between(table, partition, start, end, limit)
        if not rows or (strike is None and not self._context.damage.any):
            return rows
        return self._damaged(table, partition, rows, strike)

    def _damaged(
        self, table: str, partition: str, rows: list[Row], strike: tuple[int, int] | None
    ) -> list[Row]:
        """The rows as they are read. `strike`: one of them is damaged from now on, as this chance says."""
        damage, now = self._context.damage, self._loop.now
        if strike is not None:
            chance, number = strike
            row = rows[(chance >> 4) % len(rows)]
            damage.strike(table, partition, row, now, (chance >> 14 & 1023) / 1023)
            self._context.fault(_UNREADABLE, self._process, f"{table}/{partition}/{row.key}", number)
        return damage.seen(table, partition, rows, now)

    async def scan(
        self, table: str, *, after: tuple[str, str] | None = None, limit: int, key: str | None = None
    ) -> list[Scanned]:
        if self._process.dead:
            raise ProcessGone
        kind = self._faults.at(_READ, self._process)
        await self._slow_read(table, kind)
        return await self._inner.scan(table, after=after, limit=limit, key=key)

    async def _slow_read(self, table: str, kind: FaultKind | None) -> None:
        """A read that takes time, fails, or both."""
        chance, number = self._faults.entropy, self._faults.number
        if chance & 7 == 0:
            await self._loop.pause(LATENCIES[chance >> 3 & 1023])
        if kind is not None and kind is not _UNREADABLE:
            self._context.fault(kind, self._process, f"reading {table}", number)
            raise StoreUnavailable("the store did not answer")

    async def commit(self, ops: Sequence[Op]) -> list[str]:
        process, faults = self._process, self._faults
        if process.dead:
            raise ProcessGone
        kind = faults.at(_COMMIT, process)
        chance, number = faults.entropy, faults.number
        if chance & 1:
            await self._loop.pause(LATENCIES[chance >> 3 & 1023])
        if kind is not None:
            await self._struck_before(kind, number, ops)
        etags = await self._inner.commit(ops)
        self._context.committed(process, ops)
        if chance & 6 == 0:
            await self._loop.pause(LATENCIES[chance >> 13 & 1023])
        if kind is None:
            return etags
        if kind is _AFTER:
            self._context.fault(kind, process, _place(ops), number)
            raise StoreError("the store did not answer in time")
        if kind is _CRASH:
            await self._context.crash_here(kind, process, _place(ops), number)
        return etags

    async def _struck_before(self, kind: FaultKind, number: int, ops: Sequence[Op]) -> None:
        context, process = self._context, self._process
        if kind is FaultKind.CRASH_BEFORE:
            await context.crash_here(kind, process, _place(ops), number)
        elif kind is FaultKind.STORE_TIMEOUT_BEFORE:
            context.fault(kind, process, _place(ops), number)
            raise StoreError("the store did not answer in time")
        elif kind is FaultKind.STORE_UNAVAILABLE:
            context.fault(kind, process, _place(ops), number)
            raise StoreUnavailable("the store takes no writes now")
        elif kind is FaultKind.STORE_CONFLICT:
            # Only the truth is written by several processes at any time. A writer that is refused elsewhere
            # may rightly conclude that another writer was there, and there was none.
            op = ops[0]
            if op.verb is Verb.REPLACE and (op.key == "JOB" or op.key.startswith("job_")):
                context.fault(kind, process, _place((op,)), number)
                raise Conflict(0, op)

    async def ping(self) -> None:
        if self._process.dead:
            raise ProcessGone
        kind = self._faults.at(_READ, self._process)
        await self._slow_read("ping", kind)

    async def close(self) -> None:
        pass


def _place(ops: Sequence[Op]) -> str:
    more = f" and {len(ops) - 1} more" if len(ops) > 1 else ""
    return f"{ops[0].verb.value} {ops[0].table}/{ops[0].partition}/{ops[0].key}{more}" if ops else "nothing"
