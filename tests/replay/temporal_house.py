"""A house for one workflow test: a real Temporal server, a worker, and a desk that plays the invoker."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import msgspec
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError

from lucius.contracts.internal import Position
from lucius.engines.temporal.activities import InvokerCalls
from lucius.engines.temporal.client import (
    StartOptions,
    TemporalLink,
    TemporalSignaller,
    TemporalStarter,
    TemporalTarget,
)
from lucius.engines.temporal.worker import TemporalWorker, WorkerLimits
from lucius.lab.temporal_book import Book, Patience
from lucius.lab.temporal_desk import Desk
from lucius.progress.workflows import Labels, Started

END_SECONDS_MAX = 30
LABELS = Labels(tenant="tenant_a", request_type="OCR")
_queues = count()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class House:
    def __init__(self, link: TemporalLink, desk: Desk, client: Client) -> None:
        self.link = link
        self.desk = desk
        self.client = client
        self.name = link.target.task_queue

    async def begin(
        self,
        *,
        patience: Patience | None = None,
        options: StartOptions | None = None,
        position: Position | None = None,
        labels: Labels | None = None,
    ) -> Book:
        """A job and its workflow."""
        book = self.desk.create(f"job_{self.name}", patience or Patience(steps=1))
        await self.start(book, options=options, position=position, labels=labels)
        return book

    async def start(
        self,
        book: Book,
        *,
        options: StartOptions | None = None,
        position: Position | None = None,
        labels: Labels | None = None,
    ) -> Started:
        starter = TemporalStarter(self.link, options or StartOptions())
        return await starter.start(book.job_id, position or book.position(), labels)

    def handle(self, book: Book) -> WorkflowHandle[object, str]:
        return self.client.get_workflow_handle(book.job_id, result_type=str)

    async def end(self, book: Book) -> str:
        """How the workflow ended: the job's state, or the type of the failure."""
        try:
            async with asyncio.timeout(END_SECONDS_MAX):
                return await self.handle(book).result()
        except WorkflowFailureError as fault:
            assert isinstance(fault.cause, ApplicationError), fault.cause
            return str(fault.cause.type)


@asynccontextmanager
async def open_house(server: TemporalTarget, *, limits: WorkerLimits | None = None) -> AsyncIterator[House]:
    target = msgspec.structs.replace(server, task_queue=f"{server.task_queue}_{next(_queues)}_{now_ms()}")
    link = TemporalLink(target)
    async with Desk(TemporalSignaller(link), now_ms, secret="hush") as desk:
        calls = InvokerCalls(desk.url, "hush")
        worker = TemporalWorker(link, calls, limits or WorkerLimits(), build_id="test")
        running = asyncio.create_task(worker.run())
        try:
            yield House(link, desk, await link.client())
        finally:
            worker.stop()
            await running
            await calls.close()
        assert desk.faults == []
