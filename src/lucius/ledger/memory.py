"""A table store in this process: for tests, simulation and `memory` deployments.

In: commits, reads. Out: rows, or the port's own errors. Nothing outlives the process; `reopen` gives the same
data to a fresh store, as a restarted process would find it. With `spans=False` it refuses what Azure Tables
refuses, so that code written for that store can be tried without it. The two hooks stand for the moments at
which a process may die: just before a commit takes effect and just after.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from itertools import count

from lucius.ledger.limits import check_commit, check_key, check_limit, check_table
from lucius.ledger.store import Conflict, Op, Row, Scanned, StoreUnavailable, Verb

Hook = Callable[[Sequence[Op]], None]

# Looked up once: an enum's members are slow to reach, and every op asks for them.
_INSERT, _PUT, _DELETE, _DISCARD = Verb.INSERT, Verb.PUT, Verb.DELETE, Verb.DISCARD


class _Partition:
    """Rows by key, and the keys in order."""

    __slots__ = ("keys", "rows")

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.rows: dict[str, Row] = {}

    def remove(self, key: str) -> None:
        if self.rows.pop(key, None) is not None:
            del self.keys[bisect_left(self.keys, key)]


class _Data:
    """What survives a `reopen`: the partitions, the names of each table's in order, and one counter for every
    ETag ever given, so that a row that is deleted and created again never carries an old one."""

    __slots__ = ("etags", "names", "partitions")

    def __init__(self) -> None:
        self.partitions: dict[tuple[str, str], _Partition] = {}
        self.names: dict[str, list[str]] = {}
        self.etags = count(1)


class MemoryStore:
    def __init__(
        self,
        *,
        spans: bool = True,
        before_commit: Hook | None = None,
        after_commit: Hook | None = None,
    ) -> None:
        self._spans = spans
        self._before_commit = before_commit
        self._after_commit = after_commit
        self._data = _Data()
        self._closed = False

    @property
    def spans(self) -> bool:
        return self._spans

    def reopen(self) -> "MemoryStore":
        """A new store, without hooks, over the same data."""
        store = MemoryStore(spans=self._spans)
        store._data = self._data
        return store

    async def get(self, table: str, partition: str, key: str) -> Row | None:
        self._check_open()
        check_table(table)
        check_key(partition)
        check_key(key)
        found = self._data.partitions.get((table, partition))
        return None if found is None else found.rows.get(key)

    async def query(
        self, table: str, partition: str, *, start: str = "", end: str | None = None, limit: int
    ) -> list[Row]:
        self._check_open()
        check_table(table)
        check_key(partition)
        check_limit(limit)
        found = self._data.partitions.get((table, partition))
        if found is None:
            return []
        first = bisect_left(found.keys, start)
        last = len(found.keys) if end is None else bisect_left(found.keys, end)
        return [found.rows[key] for key in found.keys[first : min(last, first + limit)]]

    async def scan(
        self, table: str, *, after: tuple[str, str] | None = None, limit: int, key: str | None = None
    ) -> list[Scanned]:
        self._check_open()
        check_table(table)
        check_limit(limit)
        names, found = self._data.names.get(table, []), list[Scanned]()
        first, last_key = ("", "") if after is None else after
        for at in range(bisect_left(names, first), len(names)):
            name = names[at]
            partition = self._data.partitions[table, name]
            past = last_key if after is not None and name == first else None
            keys = partition.keys if key is None else [key] if key in partition.rows else []
            start = 0 if past is None else bisect_right(keys, past)
            for each in keys[start : start + limit - len(found)]:
                row = partition.rows[each]
                found.append(Scanned(name, each, row.etag, row.body))
            if len(found) >= limit:
                break
        return found

    async def commit(self, ops: Sequence[Op]) -> list[str]:
        self._check_open()
        self._check(ops)
        if self._before_commit is not None:
            self._before_commit(ops)
        # No row is named twice in a commit, so each op may be judged by what was there before it.
        partitions = self._data.partitions
        for index, op in enumerate(ops):
            verb = op.verb
            if verb is not _PUT and verb is not _DISCARD:
                partition = partitions.get((op.table, op.partition))
                row = None if partition is None else partition.rows.get(op.key)
                if (row is not None) if verb is _INSERT else (row is None or row.etag != op.etag):
                    raise Conflict(index, op)
        etags = self._apply(ops)
        if self._after_commit is not None:
            self._after_commit(ops)
        return etags

    async def ping(self) -> None:
        """Raises StoreUnavailable if writes cannot be taken."""
        self._check_open()

    async def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed")

    def _check(self, ops: Sequence[Op]) -> None:
        check_commit(ops, spans=self._spans)

    def _apply(self, ops: Sequence[Op]) -> list[str]:
        partitions, numbers = self._data.partitions, self._data.etags
        etags: list[str] = []
        for op in ops:
            place, key, verb = (op.table, op.partition), op.key, op.verb
            partition = partitions.get(place)
            if verb is _DISCARD or verb is _DELETE:
                if partition is not None:
                    partition.remove(key)
                    if not partition.rows:
                        del partitions[place]
                        names = self._data.names[op.table]
                        del names[bisect_left(names, op.partition)]
                etags.append("")
                continue
            if partition is None:
                partition = partitions[place] = _Partition()
                insort(self._data.names.setdefault(op.table, []), op.partition)
            rows = partition.rows
            if key not in rows:
                insort(partition.keys, key)
            etag = str(next(numbers))
            rows[key] = Row(key, etag, op.body)
            etags.append(etag)
        return etags
