"""Which lanes this reconciler looks after, where several share a ledger.

In: the ledger, a name of its own. Out: lanes. Each reconciler keeps a row that says until when it is alive,
and renews it; the lanes are dealt out evenly over those who are alive, in the order of their names. So
every process that sees the same rows comes to the same shares, and the lanes of one that died are dealt out
again once its row has run out.

Clocks differ, so what a row says is believed only until there is something to see: a row that changes is that
of a living one, and one that has not changed for as long as a row lasts is that of a dead one, whatever time
it names.

Nothing depends on it but work: two that both look after a lane for a moment do some things twice, and the
version of each job lets one of them through.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import msgspec
import structlog

from lucius.core.routing import LANES
from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.rows import RowDecoder, encode
from lucius.ledger.store import Conflict, Place, Row, StoreError, Unreadable, delete, discard, put

PARTITION = "reconcilers"
ALIVE_MS = 6_000
RENEW_EVERY_SECONDS = 2.0
RECONCILERS_MAX = 1_000

ALL_LANES = frozenset(range(LANES))

log = structlog.get_logger("lucius.lanes")


def all_lanes() -> frozenset[int]:
    return ALL_LANES


class LaneHolder(msgspec.Struct, frozen=True):
    until_ms: int


_alive = RowDecoder(LaneHolder)


class _SeenClaim(msgspec.Struct, frozen=True):
    etag: str
    since_ms: int  # by our clock


class LaneLeases:
    def __init__(
        self, ledger: JobLedger, name: str, *, now_ms: Callable[[], int], partition: str = PARTITION
    ) -> None:
        """`name` must be new: a successor is another process. `partition`: those among whom it is shared."""
        self._partition = partition
        self._store = ledger.store
        self._quarantine = ledger.quarantine
        self._table = ledger.tables.meta
        self._name = name
        self._now_ms = now_ms
        self._lanes: frozenset[int] = frozenset()
        self._seen: dict[str, _SeenClaim] = {}

    def lanes(self) -> frozenset[int]:
        return self._lanes

    async def run(self) -> None:
        while True:
            await asyncio.sleep(RENEW_EVERY_SECONDS)
            try:
                await self.renew()
            except StoreError as fault:
                # The share stays what it was: better twice than not at all.
                log.warning("lanes_not_renewed", error=str(fault))

    async def renew(self) -> None:
        """Says that this one is alive, and looks who else is."""
        now_ms = self._now_ms()
        alive_row = encode(LaneHolder(now_ms + ALIVE_MS))
        await self._store.commit([put(self._table, self._partition, self._name, alive_row)])
        rows = await self._store.query(self._table, self._partition, limit=RECONCILERS_MAX)
        before, self._seen = self._seen, {}
        alive = []
        for row in rows:
            seen = before.get(row.key)
            if seen is None or seen.etag != row.etag:
                self._seen[row.key] = _SeenClaim(row.etag, now_ms)
            else:
                self._seen[row.key] = seen
            if self._is_alive(row, seen, now_ms):
                alive.append(row.key)
            elif seen is not None:
                with suppress(Conflict):  # it was only slow, and has renewed its row
                    await self._store.commit([delete(self._table, self._partition, row.key, row.etag)])
        self._take(share_of(self._name, alive))

    def _is_alive(self, row: Row, seen: _SeenClaim | None, now_ms: int) -> bool:
        if seen is not None and seen.etag != row.etag:
            return True
        try:
            lasts = _alive(row).until_ms > now_ms
        except Unreadable as fault:
            self._quarantine.note(Place(self._table, self._partition, row.key), fault)
            return False
        return lasts and (seen is None or now_ms - seen.since_ms < ALIVE_MS)

    async def leave(self) -> None:
        """Gives its lanes up at once, so that no process waits for its row to run out."""
        self._lanes = frozenset()
        await self._store.commit([discard(self._table, self._partition, self._name)])

    def _take(self, lanes: frozenset[int]) -> None:
        if lanes != self._lanes:
            log.info("lanes_shared", lanes=sorted(lanes))
            self._lanes = lanes


def share_of(name: str, alive: list[str]) -> frozenset[int]:
    """Every so-many-th lane. A process that is not among the living takes all: it alone knows that it
    lives."""
    if name not in alive:
        return ALL_LANES
    place, count = sorted(alive).index(name), len(alive)
    return frozenset(range(place, LANES, count))
