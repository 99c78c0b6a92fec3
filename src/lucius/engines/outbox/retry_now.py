"""Makes every waiting outbox row due now: for an operator who has mended the bus and will not wait.

Rows of the outbox engine stand in the dispatch index. Those of jobs with workflows do not, since workflows
send them: they are found by a walk over the due index, in which every open job stands.
"""

from collections.abc import Callable
from contextlib import suppress

from lucius.core.decide import is_publishable
from lucius.core.inputs import DispatchNow
from lucius.core.routing import LANES
from lucius.core.states import Engine
from lucius.jobs.writer import InputHandler
from lucius.ledger.indexes import Indexes
from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.name_index import NameIndex
from lucius.ledger.names import MS_MAX
from lucius.ledger.store import Unreadable

PAGE_ROWS_MAX = 500


class RetryNow:
    def __init__(
        self,
        indexes: Indexes,
        services: NameIndex,
        writer: InputHandler,
        workflows: "RetryWorkflowsNow | None" = None,
    ) -> None:
        """`workflows`: where there may be jobs that have some."""
        self._indexes = indexes
        self._services = services
        self._writer = writer
        self._workflows = workflows

    async def all_due(self) -> int:
        """Returns how many rows were waiting."""
        waiting = 0
        for service in await self._services.all():
            for lane in range(LANES):
                waiting += await self._lane(service, lane)
        return waiting if self._workflows is None else waiting + await self._workflows.all_due()

    async def _lane(self, service: str, lane: int) -> int:
        waiting = 0
        start = ""
        while True:
            entries = await self._indexes.dispatch(service, lane, PAGE_ROWS_MAX, start=start)
            for entry in entries:
                with suppress(Unreadable):  # the quarantine tells of it
                    await self._writer.apply(entry.job_id, DispatchNow())
            waiting += len(entries)
            if len(entries) < PAGE_ROWS_MAX:
                return waiting
            start = f"{entries[-1].key}\x00"


class RetryWorkflowsNow:
    def __init__(
        self, ledger: JobLedger, indexes: Indexes, controls: InputHandler, *, now_ms: Callable[[], int]
    ) -> None:
        """`controls`: who writes, and tells the workflow."""
        self._ledger = ledger
        self._indexes = indexes
        self._controls = controls
        self._now_ms = now_ms

    async def all_due(self) -> int:
        return sum([await self._lane(lane) for lane in range(LANES)])

    async def _lane(self, lane: int) -> int:
        waiting: set[str] = set()  # a job may have several rows
        start = ""
        while True:
            entries = await self._indexes.due(lane, MS_MAX - 1, PAGE_ROWS_MAX, start=start)
            for entry in entries:
                if entry.job_id not in waiting and await self._retry_now(entry.job_id):
                    waiting.add(entry.job_id)
            if len(entries) < PAGE_ROWS_MAX:
                return len(waiting)
            start = f"{entries[-1].key}\x00"

    async def _retry_now(self, job_id: str) -> bool:
        """Whether its directive waits to leave."""
        try:
            loaded = await self._ledger.load(job_id, fresh=True)
        except Unreadable:
            return False  # the quarantine tells of it
        if loaded is None or loaded.record.job.engine is not Engine.TEMPORAL:
            return False
        record = loaded.record
        if record.outbox is None or not is_publishable(record):
            return False
        if record.outbox.due_at_ms > self._now_ms():
            await self._controls.apply(job_id, DispatchNow())
        return True
