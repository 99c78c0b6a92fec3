"""Forgets terminal jobs after a while: key, events, steps, job, and the list rows last, so that a job can be
found as long as anything of it is there."""

import asyncio
from collections.abc import Callable

import structlog

from lucius.engines.lane_leases import all_lanes
from lucius.ledger.job_deletion import JobDeletion
from lucius.ledger.store import StoreError

JOBS_PER_PAGE_MAX = 200
LOOK_EVERY_SECONDS = 60.0

log = structlog.get_logger("lucius.retention")


class Retention:
    def __init__(
        self,
        job_deletion: JobDeletion,
        *,
        now_ms: Callable[[], int],
        keep_ms: int,
        lanes: Callable[[], frozenset[int]] = all_lanes,
    ) -> None:
        self._lanes = lanes
        self._job_deletion = job_deletion
        self._now_ms = now_ms
        self._keep_ms = keep_ms
        self.forgotten = 0

    async def run(self) -> None:
        while True:
            try:
                forgotten = await self.look()
                if forgotten:
                    log.info("jobs_forgotten", count=forgotten)
            except StoreError as fault:
                log.warning("retention_failed", error=str(fault))
            await asyncio.sleep(LOOK_EVERY_SECONDS)

    async def look(self) -> int:
        until_ms = self._now_ms() - self._keep_ms
        forgotten = 0
        for lane in sorted(self._lanes()):
            put_off: tuple[int, str] | None = None
            while ended := await self._job_deletion.ended(lane, until_ms, JOBS_PER_PAGE_MAX, put_off):
                for at_ms, job_id in ended:
                    if await self._job_deletion.forget(lane, at_ms, job_id):
                        forgotten += 1
                    else:
                        put_off = (at_ms, job_id)
        self.forgotten += forgotten
        return forgotten
