"""A workflow for every new job of the temporal engine, as soon as the job is there.

In: commits, as watchers hear of them. Out: workflows. No caller waits for it: a start that fails, is one too
many or still waits when the process ends is made good by repair, which finds the job through its due row.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from contextvars import Context, copy_context

import msgspec
import structlog

from lucius.contracts.internal import Position, position_of
from lucius.core.model import Event, JobRecord
from lucius.core.states import Engine
from lucius.jobs.workflows import WorkflowLabels, WorkflowStarter, WorkflowsUnavailable

STARTS_MAX = 256  # at a time
WAITING_MAX = 10_000

log = structlog.get_logger("lucius.starting")


class _Wanted(msgspec.Struct, frozen=True):
    """What a start needs to know, which is much less than the job. `context`: of the request that created the
    job, so that a log line names that request and no other."""

    job_id: str
    position: Position
    labels: WorkflowLabels
    context: Context


class WorkflowStarts:
    """At most `starts_max` starts are under way, and up to `waiting_max` more wait for a place.

    After a start that failed there is one place, until a start succeeds. If that one fails as well, workflows
    are away, and all that wait are left to repair: none waits for long, and the server gets no storm of
    calls.
    """

    def __init__(
        self, starter: WorkflowStarter, *, starts_max: int = STARTS_MAX, waiting_max: int = WAITING_MAX
    ) -> None:
        self._starter = starter
        self._starts_max = starts_max
        self._waiting_max = waiting_max
        self._waiting: deque[_Wanted] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._away = False
        self._closed = False
        self.outcomes: Counter[str] = Counter()

    def watch(self, before: JobRecord | None, after: JobRecord, events: Sequence[Event]) -> None:
        job = after.job
        if before is not None or job.engine is not Engine.TEMPORAL or job.terminal:
            return
        free = len(self._tasks) < self._places
        if self._closed or (not free and len(self._waiting) >= self._waiting_max):
            self.outcomes["left_to_repair"] += 1
            return
        labels = WorkflowLabels(tenant=job.tenant_norm, request_type=job.request_type, priority=job.priority)
        self._waiting.append(_Wanted(job.job_id, position_of(after), labels, copy_context()))
        self._fill()

    async def idle(self) -> None:
        """Returns once nothing is being started."""
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))

    async def close(self) -> None:
        """Finishes the starts that are under way, and leaves the others to repair."""
        self._closed = True
        self._leave()
        await self.idle()

    @property
    def _places(self) -> int:
        return 1 if self._away else self._starts_max

    def _fill(self) -> None:
        while self._waiting and len(self._tasks) < self._places:
            wanted = self._waiting.popleft()
            task = asyncio.create_task(self._start(wanted, last_try=self._away), context=wanted.context)
            self._tasks.add(task)
            task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._fill()

    def _leave(self) -> None:
        if self._waiting:
            self.outcomes["left_to_repair"] += len(self._waiting)
            self._waiting.clear()

    async def _start(self, wanted: _Wanted, *, last_try: bool) -> None:
        """`last_try`: if this one fails too, those that wait are left to repair."""
        try:
            started = await self._starter.start(wanted.job_id, wanted.position, wanted.labels)
        except WorkflowsUnavailable as fault:
            log.warning("workflow_not_started", jobId=wanted.job_id, error=str(fault))
            self.outcomes["unavailable"] += 1
            self._away = True
            if last_try:
                self._leave()
        else:
            self.outcomes[started.value] += 1
            self._away = False
