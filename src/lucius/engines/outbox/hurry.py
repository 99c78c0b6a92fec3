"""Makes every waiting outbox row due now: for an operator who has mended the bus and will not wait."""

from lucius.core.inputs import DispatchNow
from lucius.core.routing import LANES
from lucius.ledger.indexes import Indexes
from lucius.ledger.known import KnownNames
from lucius.ledger.names import MS_MAX
from lucius.progress.apply import Progress

PAGE_ROWS_MAX = 500


class Hurry:
    def __init__(self, indexes: Indexes, services: KnownNames, progress: Progress) -> None:
        self._indexes = indexes
        self._services = services
        self._progress = progress

    async def all_due(self) -> int:
        """Returns how many rows were waiting."""
        waiting = 0
        for service in await self._services.all():
            for lane in range(LANES):
                waiting += await self._lane(service, lane)
        return waiting

    async def _lane(self, service: str, lane: int) -> int:
        waiting = 0
        start = ""
        while True:
            entries = await self._indexes.dispatch(service, lane, MS_MAX - 1, PAGE_ROWS_MAX, start=start)
            for entry in entries:
                await self._progress.apply(entry.job_id, DispatchNow())
            waiting += len(entries)
            if len(entries) < PAGE_ROWS_MAX:
                return waiting
            start = f"{entries[-1].at_ms:014d}#{entries[-1].job_id}\x00"
