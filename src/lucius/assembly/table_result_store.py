"""RESULTs of services in a table store: the sdk's shelf, over the ledger's port.

In: bytes under a key. Out: the same after a restart, and for every process of the service. One partition a
service, so that each write is one commit on every store:

    R#<name>             the RESULT; inserted, never replaced
    O#<name>             while it is not delivered: the RESULT, and where it goes
    T#<time>#<name>      when it was kept, for the sweep
"""

from lucius.ledger.store import OPS_MAX, Conflict, Op, TableStore, discard, insert, put
from lucius.sdk.directive import Key
from lucius.sdk.result_stores.entry import name_of, pack_undelivered, unpack_undelivered

ROWS_AN_ENTRY = 3
TIME_DIGITS = 15


class TableResultStore:
    """The store stays its owner's to close."""

    def __init__(self, store: TableStore, table: str, service: str) -> None:
        self._store = store
        self._table = table
        self._partition = f"results#{service}"

    async def find(self, key: Key) -> bytes | None:
        row = await self._store.get(self._table, self._partition, f"R#{name_of(key)}")
        return None if row is None or row.damage else row.body

    async def keep(self, key: Key, result: bytes, reply_to: bytes, *, at_ms: int) -> bytes:
        name = name_of(key)
        ops = [
            insert(self._table, self._partition, f"R#{name}", result),
            put(self._table, self._partition, f"O#{name}", pack_undelivered(reply_to, result)),
            put(self._table, self._partition, f"T#{_time(at_ms)}#{name}", b"{}"),
        ]
        try:
            await self._store.commit(ops)
        except Conflict:
            kept = await self.find(key)
            if kept is None:
                raise  # it was swept away between the two
            return kept
        return result

    async def settle(self, key: Key) -> None:
        await self._store.commit([self._discard(f"O#{name_of(key)}")])

    async def undelivered(self, undelivered_max: int) -> list[tuple[bytes, bytes]]:
        rows = await self._store.query(
            self._table, self._partition, start="O#", end="O$", limit=undelivered_max
        )
        return [unpack_undelivered(row.body) for row in rows if not row.damage]

    async def sweep(self, *, before_ms: int, entries_max: int) -> None:
        limit = min(entries_max, OPS_MAX // ROWS_AN_ENTRY)
        rows = await self._store.query(
            self._table, self._partition, start="T#", end=f"T#{_time(before_ms)}", limit=limit
        )
        names = [row.key.rpartition("#")[2] for row in rows]
        ops = [self._discard(row.key) for row in rows]
        ops += [self._discard(f"{kind}#{name}") for name in names for kind in "RO"]
        if ops:
            await self._store.commit(ops)

    async def close(self) -> None:
        """Nothing of its own is open."""

    def _discard(self, key: str) -> Op:
        return discard(self._table, self._partition, key)


def _time(at_ms: int) -> str:
    return f"{max(0, at_ms):0{TIME_DIGITS}d}"
