"""Index rows that vanish: what a damaged file, a table that was restored by itself or a person may take away.

In: the store that all processes share. Out: rows that are no longer there, which only the watch knows of.
Rows of open jobs vanish from the due and dispatch indexes, the slots and the lists; the jobs themselves stay.
"""

from collections.abc import Iterator

from lucius.core.states import JobState
from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.store import Row, discard
from lucius_lab.sim.deployment import SimWorld
from lucius_lab.sim.faults import FaultKind, Site
from lucius_lab.sim.loop import Process

EVERY_SECONDS = 2.0

Place = tuple[str, str, str]


class RowLoss:
    def __init__(self, world: SimWorld, process: Process) -> None:
        self._world = world
        self._process = process
        self._ledger = JobLedger(world.store, world.deployment_settings.layout, world.tables)
        self.rows_taken = 0

    async def run(self) -> None:
        context = self._world.context
        while context.loop.time() < context.faults.quiet_at:
            await context.loop.pause(EVERY_SECONDS)
            kind = context.faults.at(Site.INDEXES, self._process)
            if kind is not None:
                await self._take(kind, context.faults.entropy, context.faults.number)

    async def _take(self, kind: FaultKind, chance: int, number: int) -> None:
        """One row of one index, or all rows around one job."""
        t = self._world.tables
        tables = (t.due, t.dispatch, t.inflight, t.job_index)
        if chance & 7 == 0:
            places = [place for table in tables for place in self._rows(table)]
        else:
            places = list(self._rows(tables[chance >> 3 & 3]))
        if not places:
            return
        chosen = places[(chance >> 5) % len(places)]
        job_id = self._job_of(chosen)
        loaded = await self._ledger.load(job_id, fresh=True)
        if loaded is None or loaded.record.job.state in _ENDED:
            return
        taken = [place for place in places if self._job_of(place) == job_id] if chance & 7 == 0 else [chosen]
        context = self._world.context
        context.fault(kind, self._process, ", ".join("/".join(place) for place in taken), number)
        for table, partition, key in taken:
            await self._world.store.commit([discard(table, partition, key)])
            self.rows_taken += 1
            if context.watch is not None:
                context.watch.lost(table, partition, key, now_ms=context.loop.now_ms())

    def _rows(self, table: str) -> Iterator[Place]:
        store = self._world.store
        for partition in store.partitions(table):
            if partition.startswith("job#"):
                continue
            rows: list[Row] = store.rows(table, partition)
            for row in rows:
                yield table, partition, row.key

    def _job_of(self, place: Place) -> str:
        return place[2].rpartition("#")[2]


_ENDED = frozenset({JobState.SUCCEEDED, JobState.FAILED_FINAL, JobState.CANCELLED})
