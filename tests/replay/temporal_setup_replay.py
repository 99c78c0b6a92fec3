"""What one workflow test needs: a real Temporal server, a worker, and a server that plays the invoker."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from secrets import token_hex

import msgspec
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.runtime import MetricBuffer

from lucius.contracts.internal import JobDefaults, Position
from lucius.engines.temporal.activities import InvokerCalls
from lucius.engines.temporal.client import (
    StartOptions,
    TemporalLink,
    TemporalSignaller,
    TemporalStarter,
    TemporalTarget,
)
from lucius.engines.temporal.worker import TemporalWorker, WorkerLimits
from lucius.jobs.workflows import StartOutcome, WorkflowLabels
from lucius.telemetry.traces import Span
from lucius_lab.bench.stand_in_invoker import StandInInvoker
from lucius_lab.bench.stand_in_ledger import StandInLedger, StandInTimeouts

END_SECONDS_MAX = 30
LABELS = WorkflowLabels(tenant="tenant_a", request_type="OCR")
_queues = count()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Deployment:
    def __init__(self, link: TemporalLink, invoker: StandInInvoker, client: Client) -> None:
        self.link = link
        self.invoker = invoker
        self.client = client
        self.name = link.target.task_queue

    async def begin(
        self,
        *,
        timeouts: StandInTimeouts | None = None,
        options: StartOptions | None = None,
        position: Position | None = None,
        labels: WorkflowLabels | None = None,
    ) -> StandInLedger:
        """A job and its workflow."""
        stand_in = self.invoker.create(f"job_{self.name}", timeouts or StandInTimeouts(steps=1))
        await self.start(stand_in, options=options, position=position, labels=labels)
        return stand_in

    async def start(
        self,
        stand_in: StandInLedger,
        *,
        options: StartOptions | None = None,
        position: Position | None = None,
        labels: WorkflowLabels | None = None,
    ) -> StartOutcome:
        starter = TemporalStarter(self.link, options or StartOptions())
        return await starter.start(stand_in.job_id, position or stand_in.position(), labels)

    def handle(self, stand_in: StandInLedger) -> WorkflowHandle[object, str]:
        return self.client.get_workflow_handle(stand_in.job_id, result_type=str)

    async def end(self, stand_in: StandInLedger) -> str:
        """How the workflow ended: the job's state, or the type of the failure."""
        try:
            async with asyncio.timeout(END_SECONDS_MAX):
                return await self.handle(stand_in).result()
        except WorkflowFailureError as fault:
            assert isinstance(fault.cause, ApplicationError), fault.cause
            return str(fault.cause.type)


@asynccontextmanager
async def open_deployment(
    server: TemporalTarget,
    *,
    limits: WorkerLimits | None = None,
    metrics: MetricBuffer | None = None,
    own_defaults: JobDefaults | None = None,
    take: Callable[[Span], None] | None = None,
) -> AsyncIterator[Deployment]:
    """`take`: gets the spans of the worker's calls."""
    target = msgspec.structs.replace(server, task_queue=f"{server.task_queue}_{next(_queues)}_{now_ms()}")
    link = TemporalLink(target, metrics=metrics)
    async with StandInInvoker(TemporalSignaller(link), now_ms, secret="hush") as invoker:
        calls = InvokerCalls(
            invoker.url, "hush", own_defaults=own_defaults, take=take, now_ms=now_ms, new_id=token_hex
        )
        worker = TemporalWorker(link, calls, limits or WorkerLimits(), build_id="test")
        running = asyncio.create_task(worker.run())
        try:
            yield Deployment(link, invoker, await link.client())
        finally:
            worker.stop()
            await running
            await calls.close()
        assert invoker.faults == []
