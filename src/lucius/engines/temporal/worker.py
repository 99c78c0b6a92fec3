"""The worker: runs workflows and the calls they make, on one task queue.

The workflow runs without the SDK's sandbox: its module may import core and contracts alone, which the linter
checks, and recorded histories are replayed with the sandbox and without. The sandbox would load every module
again for each workflow; `docs/explanation/performance.md` has what that costs.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec
import structlog
from temporalio.client import Client
from temporalio.worker import (
    PollerBehaviorSimpleMaximum,
    UnsandboxedWorkflowRunner,
    Worker,
    WorkflowRunner,
)
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from lucius.engines.temporal.activities import InvokerCalls
from lucius.engines.temporal.client import TemporalLink
from lucius.engines.temporal.workflow import JobWorkflow
from lucius.jobs.workflows import WorkflowsUnavailable

log = structlog.get_logger("lucius.worker")


class WorkerLimits(msgspec.Struct, frozen=True, kw_only=True):
    workflows_cached_max: int = 2_000
    workflow_tasks_max: int = 192  # more than two invokers hold questions back at a time
    calls_max: int = 192
    workflow_pollers: int = 5
    activity_pollers: int = 2  # only calls that the invoker did not answer at once come this way
    drain_seconds: float = 10.0
    reconnect_seconds: float = 2.0
    sandboxed: bool = False


def build_worker(
    client: Client,
    task_queue: str,
    activities: list[Callable[..., Any]],
    limits: WorkerLimits,
    *,
    build_id: str,
) -> Worker:
    return Worker(
        client,
        task_queue=task_queue,
        workflows=[JobWorkflow],
        activities=activities,
        workflow_runner=runner(sandboxed=limits.sandboxed),
        build_id=build_id,
        max_cached_workflows=limits.workflows_cached_max,
        max_concurrent_workflow_tasks=limits.workflow_tasks_max,
        max_concurrent_activities=limits.calls_max,
        max_concurrent_local_activities=limits.calls_max,
        workflow_task_poller_behavior=PollerBehaviorSimpleMaximum(maximum=limits.workflow_pollers),
        activity_task_poller_behavior=PollerBehaviorSimpleMaximum(maximum=limits.activity_pollers),
        graceful_shutdown_timeout=timedelta(seconds=limits.drain_seconds),
    )


def runner(*, sandboxed: bool) -> WorkflowRunner:
    return SandboxedWorkflowRunner() if sandboxed else UnsandboxedWorkflowRunner()


class TemporalWorker:
    """A worker that waits for Temporal, and begins again if it is thrown out."""

    def __init__(
        self, link: TemporalLink, calls: InvokerCalls, limits: WorkerLimits, *, build_id: str
    ) -> None:
        self._link = link
        self._calls = calls
        self._limits = limits
        self._build_id = build_id
        self._stopping = asyncio.Event()
        self.polling = asyncio.Event()  # set while it takes work

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> None:
        """Works until `stop`; what it has in hand by then is finished first, for a while."""
        while not self._stopping.is_set():
            try:
                client = await self._link.connected()
            except WorkflowsUnavailable as fault:
                log.warning("temporal_unavailable", error=str(fault))
            else:
                await self._work(client)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self._limits.reconnect_seconds)

    async def _work(self, client: Client) -> None:
        queue = self._link.target.task_queue
        worker = build_worker(client, queue, self._calls.activities(), self._limits, build_id=self._build_id)
        try:
            async with worker:
                self.polling.set()
                log.info("worker_polls", task_queue=queue)
                await self._stopping.wait()
        except Exception:
            # A namespace that is gone, a fault of the library: jobs wait for a worker, so it tries again.
            log.exception("worker_failed", task_queue=queue)
        finally:
            self.polling.clear()
