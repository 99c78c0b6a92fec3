"""Whether jobs of the temporal engine lie open on a ledger that nobody runs that engine on."""

import msgspec

from lucius.core.routing import LANES
from lucius.core.states import Engine
from lucius.ledger.indexes import Indexes
from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.names import MS_MAX
from lucius.ledger.store import Unreadable

# Jobs that nobody moves are overdue, so that they lie in front.
LANE_ROWS_MAX = 32


class LeftOpen(msgspec.Struct, frozen=True):
    jobs: int
    more: bool  # there may be, where it was not looked

    @property
    def words(self) -> str:
        number = f"at least {self.jobs}" if self.more else str(self.jobs)
        jobs = "1 open job is" if (self.jobs, self.more) == (1, False) else f"{number} open jobs are"
        return (
            f"{jobs} of the temporal engine, which does not run here: to let them go on, stop this and start "
            "`lucius dev --engine temporal` on this folder"
        )


async def temporal_jobs_left(ledger: JobLedger) -> LeftOpen:
    """Looks at the front of the due index, in which every open job stands. Raises `StoreError`."""
    indexes, found, more = Indexes(ledger), 0, False
    for lane in range(LANES):
        entries = await indexes.due(lane, MS_MAX - 1, LANE_ROWS_MAX)
        more = more or len(entries) == LANE_ROWS_MAX
        for job_id in {entry.job_id for entry in entries}:
            try:
                loaded = await ledger.peek(job_id)
            except Unreadable:
                continue  # readiness tells of it
            if loaded is not None and not loaded.record.job.terminal:
                found += loaded.record.job.engine is Engine.TEMPORAL
    return LeftOpen(found, more)
