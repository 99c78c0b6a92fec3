"""A Lifebook in memory and virtual time: one table, one queue, any number of workers."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
from tests.lifebook.simulation import ListSink
from tests.lifebook.virtual import run_virtually

from lucius.lifebook.chores import Chores
from lucius.lifebook.credits import MemoryBalances
from lucius.lifebook.job import LifebookJob
from lucius.lifebook.machine import Policy
from lucius.lifebook.memory import MemoryTable
from lucius.lifebook.memory_queue import MemoryQueue
from lucius.lifebook.queue import JobDelivery
from lucius.lifebook.runs import AcceptedRun, RunRequest, Runs
from lucius.lifebook.sweeper import LifebookSweeper
from lucius.lifebook.worker import DeliveryOutcome, Worker
from lucius.lifebook.workflows import StepRun, WorkflowRegistry, workflow_of
from lucius.lifebook.writer import LifebookWriter

START_MS = 1_789_000_000_000
POLICY = Policy(credits_held=True)


class SpyQueue(MemoryQueue):
    """Notes which visibility was set when."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self.set: list[tuple[int, int]] = []

    async def set_visibility(self, delivery: JobDelivery, visibility_ms: int) -> None:
        self.set.append((self._now_ms() - START_MS, visibility_ms))
        await super().set_visibility(delivery, visibility_ms)


class Stage:
    def __init__(self, cls: type[Any], policy: Policy = POLICY) -> None:
        chance = random.Random(3)
        self.table = MemoryTable()
        self.queue = SpyQueue(now_ms=self.now_ms, chance=chance.random)
        self.balances = MemoryBalances()
        self.sink = ListSink()
        self.workflows = WorkflowRegistry([workflow_of(cls, "w")])
        self.new_id: Callable[[], str] = lambda: str(UUID(int=chance.getrandbits(128), version=4))
        self.writer = LifebookWriter(table=self.table, policy=policy, now_ms=self.now_ms)
        self.chores = Chores(writer=self.writer, balances=self.balances, sink=self.sink)
        self.runs = Runs(
            writer=self.writer,
            queue=self.queue,
            chores=self.chores,
            workflows=self.workflows,
            new_id=self.new_id,
            max_attempts=5,
            credits_max=Decimal(1_000),
        )
        self.sweeper = LifebookSweeper(
            writer=self.writer, queue=self.queue, runs=self.runs, chores=self.chores
        )
        self.worker = self.another("w1")

    def now_ms(self) -> int:
        return START_MS + round(asyncio.get_running_loop().time() * 1000)

    def another(self, name: str) -> Worker:
        return Worker(
            writer=self.writer,
            queue=self.queue,
            chores=self.chores,
            workflows=self.workflows,
            new_id=self.new_id,
            step_timeout_ms=900_000,
            name=name,
        )

    async def submit(self, **named: Any) -> LifebookJob:
        await self.balances.grant("ws", Decimal(100))
        told = await self.runs.submit(
            RunRequest(workspace_id="ws", user_id="user_7", workflow_id="w", **named)
        )
        assert isinstance(told, AcceptedRun), told
        return told.job

    async def delivery(self, wait_seconds: int = 4_000) -> JobDelivery:
        (found,) = await self.queue.receive(
            messages_max=1, wait_seconds=wait_seconds, visibility_ms=self.worker.visibility_ms
        )
        return found

    async def once(self, worker: Worker | None = None, *, deadline_ms: int | None = None) -> DeliveryOutcome:
        """The next delivery, handled and settled."""
        delivery = await self.delivery()
        outcome = await (worker or self.worker).handle(delivery, deadline_ms=deadline_ms)
        await self.worker.settle(delivery, outcome)
        return outcome

    def job(self) -> LifebookJob:
        (job,) = self.table.jobs.values()
        return job


def play(
    cls: type[Any],
    setup: Callable[[Stage], Coroutine[Any, Any, None]],
    policy: Policy = POLICY,
    **changes: Any,
) -> None:
    """Plays a scene on a stage of its own."""

    async def main() -> None:
        await setup(Stage(cls, msgspec.structs.replace(policy, **changes)))

    run_virtually(main())


__all__ = ["START_MS", "Stage", "StepRun", "play"]
