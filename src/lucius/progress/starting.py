"""A workflow for every new job of the temporal engine, as soon as the job is there.

In: commits, as watchers hear of them. Out: workflows. Nobody waits for it: a start that fails, or is one too
many, is made good by repair, which finds the job through its due row.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence

import structlog

from lucius.contracts.internal import position_of
from lucius.core.model import Event, JobRecord
from lucius.core.states import Engine
from lucius.progress.workflows import Labels, Starter, WorkflowsUnavailable

STARTS_MAX = 256  # at a time

log = structlog.get_logger("lucius.starting")


class Starting:
    def __init__(self, starter: Starter, *, starts_max: int = STARTS_MAX) -> None:
        self._starter = starter
        self._starts_max = starts_max
        self._tasks: set[asyncio.Task[None]] = set()
        self.outcomes: Counter[str] = Counter()

    def watch(self, before: JobRecord | None, after: JobRecord, events: Sequence[Event]) -> None:
        if before is not None or after.job.engine is not Engine.TEMPORAL or after.job.terminal:
            return
        if len(self._tasks) >= self._starts_max:
            self.outcomes["left_to_repair"] += 1
            return
        task = asyncio.create_task(self._start(after))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def idle(self) -> None:
        """Returns once nothing is being started."""
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))

    async def _start(self, record: JobRecord) -> None:
        job = record.job
        labels = Labels(tenant=job.tenant_norm, request_type=job.request_type)
        try:
            started = await self._starter.start(job.job_id, position_of(record), labels)
        except WorkflowsUnavailable as fault:
            log.warning("workflow_not_started", jobId=job.job_id, error=str(fault))
            self.outcomes["unavailable"] += 1
        else:
            self.outcomes[started.value] += 1
