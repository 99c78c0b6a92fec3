"""A world whose every commit is watched: the real rooms over the in-process store, `Invariants` beside."""

from collections.abc import Callable, Sequence

from tests.conformance.ledger_setup import T, World

from lucius.ledger.job_ledger import LayoutName
from lucius.ledger.memory import MemoryStore
from lucius.ledger.store import Op, Row
from lucius_lab.sim.invariants import Invariants

KINDS = [(layout, spans) for layout in LayoutName for spans in (True, False)]
KIND_IDS = [f"{layout.value}-{'spans' if spans else 'no-spans'}" for layout, spans in KINDS]

Tamper = Callable[[Sequence[Op]], Sequence[Op]]


class WatchedStore(MemoryStore):
    """Tells a watch of each commit; `tamper` changes what is really written."""

    def __init__(self, watch: Invariants, now_ms: Callable[[], int]) -> None:
        super().__init__(spans=watch.spans)
        self.watch = watch
        self.now_ms = now_ms
        self.tamper: Tamper = lambda ops: ops

    async def commit(self, ops: Sequence[Op]) -> list[str]:
        written = self.tamper(ops)
        etags = await super().commit(written)
        self.watch.committed(written, now_ms=self.now_ms(), by="house")
        return etags

    def partitions(self, table: str) -> list[str]:
        return sorted(partition for name, partition in self._data.partitions if name == table)

    def rows(self, table: str, partition: str) -> list[Row]:
        found = self._data.partitions.get((table, partition))
        return [] if found is None else [found.rows[key] for key in found.keys]


class WatchedWorld(World):
    def __init__(self, layout: LayoutName, spans: bool) -> None:
        self.watch = Invariants(layout, T, spans)
        self.watched = WatchedStore(self.watch, lambda: self.clock.now_ms)
        super().__init__(self.watched, layout)
