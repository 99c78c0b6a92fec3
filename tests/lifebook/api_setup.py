"""The API of Lifebook in memory, with a client, and a worker that runs when it is asked to."""

import asyncio
import random
import time
from decimal import Decimal
from typing import Any
from uuid import uuid4

import httpx2
import msgspec
from tests.lifebook.flows import Told
from tests.lifebook.simulation import ListSink
from tests.support.api_document import Document

from lucius.lifebook import keys, openapi
from lucius.lifebook.api import Services, make_app
from lucius.lifebook.chores import Chores
from lucius.lifebook.credits import MemoryBalances
from lucius.lifebook.machine import Policy
from lucius.lifebook.memory import MemoryTable
from lucius.lifebook.memory_queue import MemoryQueue
from lucius.lifebook.runs import Runs
from lucius.lifebook.sweeper import LifebookSweeper
from lucius.lifebook.worker import Worker
from lucius.lifebook.workflows import WorkflowRegistry, workflow_of
from lucius.lifebook.writer import LifebookWriter

SECRET = "whsec_" + "c2VjcmV0LXNlY3JldC1zZWNyZXQtMTIz"
BACKOFFS_MS = (1, 1, 1)


# Every answer of the API in a test is held against what the document announces.
DOCUMENT = Document(openapi.document())


class Doc(msgspec.Struct):
    n: int = 0


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Deployment:
    """The API in memory, with a client, and a worker that runs when it is asked to."""

    def __init__(
        self, known: keys.CallerKeys | None = None, workflows: WorkflowRegistry | None = None
    ) -> None:
        chance = random.Random(1).random
        self.table, self.balances = MemoryTable(), MemoryBalances()
        self.queue = MemoryQueue(now_ms=wall_ms, chance=chance)
        policy = Policy(credits_held=True, backoffs_ms=BACKOFFS_MS)
        writer = LifebookWriter(table=self.table, policy=policy, now_ms=wall_ms)
        chores = Chores(writer=writer, balances=self.balances, sink=ListSink())
        registry = workflows or WorkflowRegistry(
            [workflow_of(Told, "told"), workflow_of(Told, "typed", max_attempts=2, input_type=Doc)]
        )
        new_id = lambda: str(uuid4())  # noqa: E731
        runs = Runs(
            writer=writer,
            queue=self.queue,
            chores=chores,
            workflows=registry,
            new_id=new_id,
            max_attempts=5,
            credits_max=Decimal(100),
        )
        self.worker = Worker(
            writer=writer,
            queue=self.queue,
            chores=chores,
            workflows=registry,
            new_id=new_id,
            step_timeout_ms=10_000,
            name="w",
        )
        self.sweeper = LifebookSweeper(writer=writer, queue=self.queue, runs=runs, chores=chores)
        self.app = make_app(
            Services(
                runs=runs,
                table=self.table,
                queue=self.queue,
                workflows=registry,
                now_ms=wall_ms,
                keys=known,
                webhook_secret=SECRET,
            )
        )
        self.client = httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=self.app), base_url="http://127.0.0.1"
        )

    async def ask(self, method: str, path: str, status: int, **more: Any) -> Any:
        answer = await self.client.request(method, path, **more)
        assert answer.status_code == status, answer.text
        if DOCUMENT.find(method, answer.request.url.path) is not None:
            DOCUMENT.check(answer)
        if status >= 400:
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["status"] == status
        return answer.json()

    async def work(self) -> None:
        for _ in range(40):
            found = await self.queue.receive(messages_max=10, wait_seconds=0, visibility_ms=60_000)
            for each in found:
                await self.worker.settle(each, await self.worker.handle(each))
            await asyncio.sleep(0.002)
