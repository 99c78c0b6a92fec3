"""The worker and the status machine in virtual time, with crashes before and after every call of a port.

In: a seed, or a point at which to crash; a bug to plant, if any. Out: what went wrong, in words; nothing if
the promises held. Processes share a table, a queue, balances and a sink in memory; each call takes a while,
may be the last of its process, and a message may come twice and in any order. `python -m
tests.lifebook.simulation 10000` runs that many schedules, each with its own seed.
"""

import asyncio
import random
import sys
from collections.abc import Callable, Coroutine
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import structlog
from tests.lifebook.virtual import run_virtually

from lucius.lifebook.chores import Chores
from lucius.lifebook.credits import MemoryBalances
from lucius.lifebook.failures import NotYet, StepFailed
from lucius.lifebook.job import AnalyticsEvent, LifebookJob
from lucius.lifebook.machine import WORKER_LOST, Policy
from lucius.lifebook.memory import MemoryTable
from lucius.lifebook.memory_queue import MemoryQueue
from lucius.lifebook.refusals import RunRefused
from lucius.lifebook.runs import RunRequest, Runs
from lucius.lifebook.states import MOVES, TERMINAL, Status
from lucius.lifebook.sweeper import LifebookSweeper
from lucius.lifebook.worker import Worker
from lucius.lifebook.workflows import StepRun, Workflow, WorkflowRegistry, WorkflowStep
from lucius.lifebook.writer import LifebookWriter

START_MS = 1_789_000_000_000
LONGEST_MS = 6 * 3_600_000
GRANTED = Decimal(1_000)
CLOCKS_APART_MS = 1_000
WORKSPACE = "ws_1"
POLICY = Policy(
    lease_ms=30_000,
    skew_ms=2_000,
    backoffs_ms=(1_000, 4_000, 10_000),
    pending_grace_ms=20_000,
    queued_grace_ms=600_000,
    chore_grace_ms=15_000,
    credits_held=True,
)


class Died(BaseException):
    """The process is gone; nothing of it goes on."""


class Wrong(Exception):
    """A promise was broken."""


class Process:
    """One life of a process: its clock is a little off, it may stand still for a while, and one of its calls
    may be its last."""

    def __init__(self, world: "World", name: str, *, crash_at: int | None, after: bool) -> None:
        self.world = world
        self.name = name
        self.dead = False
        self.calls = 0
        self._crash_at = crash_at
        self._after = after
        self._stall_at = world.rng.randint(1, 60) if world.mortal and world.rng.random() < 0.3 else None
        self._stalled_until_ms = 0
        self.offset_ms = world.rng.randint(-500, 500)

    def now_ms(self) -> int:
        return self.world.now_ms() + self.offset_ms

    async def call(self, method: Callable[..., Coroutine[Any, Any, Any]], *args: Any, **named: Any) -> Any:
        self.calls += 1
        last = self.calls == self._crash_at
        if self.calls == self._stall_at:
            self._stalled_until_ms = self.world.now_ms() + self.world.rng.randint(5_000, 120_000)
        await self._pass()
        if self.dead or (last and not self._after):
            self._die()
        answer = await method(*args, **named)
        if last:
            self._die()
        await self._pass()
        if self.dead:
            self._die()
        return answer

    async def _pass(self) -> None:
        """The time that half of a call takes; a process that stands still, stands still with all it does."""
        await asyncio.sleep(self.world.rng.random() * 0.02)
        while self._stalled_until_ms > self.world.now_ms():
            await asyncio.sleep((self._stalled_until_ms - self.world.now_ms()) / 1000)

    def _die(self) -> None:
        self.dead = True
        raise Died


class Port:
    """A port as a process sees it."""

    def __init__(self, process: Process, inner: Any) -> None:
        self._process = process
        self._inner = inner

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        method, process = getattr(self._inner, name), self._process
        return lambda *args, **named: process.call(method, *args, **named)


class WatchedTable(MemoryTable):
    """Looks at every write of a job: what was true once must stay true."""

    def __init__(self, world: "World") -> None:
        super().__init__()
        self._world = world

    async def replace(
        self, before: LifebookJob, after: LifebookJob, *, event: AnalyticsEvent | None = None
    ) -> bool:
        stood = self.jobs.get(before.job_id)
        held = await super().replace(before, after, event=event)
        if held and stood is not None and stood != after:
            self._world.check_write(stood, self.jobs[after.job_id])
        return held


class ListSink:
    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []

    async def send(self, event: AnalyticsEvent) -> None:
        self.bodies.append(msgspec.json.decode(event.body))


class World:
    def __init__(self, seed: int, *, mortal: bool = True, crash: tuple[int, bool] | None = None) -> None:
        self.rng = random.Random(seed)
        self.table = WatchedTable(self)
        self.queue = MemoryQueue(now_ms=self.now_ms, chance=self.rng.random, doubled=0.05 if mortal else 0.0)
        self.balances = MemoryBalances()
        self.sink = ListSink()
        self.mortal = mortal
        self.crash = crash
        self.crashes = 0
        self.calls = 0
        self.ended: dict[tuple[str, int], Status] = {}
        self.steps: tuple[WorkflowStep, ...] = ()
        self.over = False
        self.faults: list[str] = []

    def now_ms(self) -> int:
        return START_MS + round(asyncio.get_running_loop().time() * 1000)

    def new_id(self) -> str:
        return str(UUID(int=self.rng.getrandbits(128), version=4))

    # -- what is checked at every write and every step

    def check_write(self, before: LifebookJob, after: LifebookJob) -> None:
        name = f"{before.job_id[:8]} {before.status} -> {after.status}"
        if after.version != before.version + 1:
            self.wrong(f"{name}: version {before.version} -> {after.version}")
        if after.step_cursor < before.step_cursor:
            self.wrong(f"{name}: the cursor went back to {after.step_cursor}")
        if after.credits_spent < before.credits_spent or after.credits_spent > after.credits_reserved:
            self.wrong(f"{name}: spent {after.credits_spent} of {after.credits_reserved}")
        if len(after.results) != after.step_cursor:
            self.wrong(f"{name}: {len(after.results)} results at cursor {after.step_cursor}")
        if not _reachable(before.status, after.status):
            self.wrong(f"{name}: no moves lead there")
        if after.attempts > after.max_attempts:
            self.wrong(f"{name}: {after.attempts} attempts of {after.max_attempts}")
        failed = after.status in (Status.FAILED, Status.DEAD) and after.attempts > before.attempts
        if failed and after.last_error_code == WORKER_LOST.code:
            held_ms = (before.lease_expires_at or 0) - self.now_ms()
            if before.lease_owner is not None and held_ms > CLOCKS_APART_MS:
                self.wrong(f"{name}: the lease was taken away {held_ms} ms before it ran out")
        if after.status in TERMINAL and before.status not in TERMINAL:
            life = (after.job_id, after.redrives)
            if life in self.ended:
                self.wrong(f"{name}: ended twice")
            self.ended[life] = after.status
        if (after.ttl_at is not None) != (after.status in TERMINAL):
            self.wrong(f"{name}: ttl_at on an open job, or none on one that ended")

    def step_begins(self, run: StepRun) -> None:
        job = self.table.jobs[run.job_id]
        if run.index < job.step_cursor:
            self.wrong(f"step {run.index} of {run.job_id[:8]} runs again at cursor {job.step_cursor}")
        if run.token != f"{run.job_id}:{run.index}":
            self.wrong(f"token {run.token}")

    def wrong(self, text: str) -> None:
        self.faults.append(text)

    # -- processes

    def process(self, name: str) -> Process:
        crash_at, after = None, False
        if self.crash is not None:
            # One crash in all, at a given call of the first process of this kind.
            if name == "worker" and self.crashes == 0:
                crash_at, after = self.crash
        elif self.mortal and self.rng.random() < 0.7:
            crash_at, after = self.rng.randint(1, 60), self.rng.random() < 0.5
        return Process(self, name, crash_at=crash_at, after=after)

    def parts(self, process: Process) -> tuple[Worker, Runs, LifebookSweeper]:
        queue: Any = Port(process, self.queue)
        balances: Any = Port(process, self.balances)
        table: Any = Port(process, self.table)
        sink: Any = Port(process, self.sink)
        writer = LifebookWriter(table=table, policy=POLICY, now_ms=process.now_ms)
        chores = Chores(writer=writer, balances=balances, sink=sink)
        workflows = WorkflowRegistry([self.workflow()])
        runs = Runs(
            writer=writer,
            queue=queue,
            chores=chores,
            workflows=workflows,
            new_id=self.new_id,
            max_attempts=4,
            credits_max=Decimal(100),
        )
        worker = Worker(
            writer=writer,
            queue=queue,
            chores=chores,
            workflows=workflows,
            new_id=self.new_id,
            step_timeout_ms=90_000,
            name=process.name,
        )
        return worker, runs, LifebookSweeper(writer=writer, queue=queue, runs=runs, chores=chores)

    def workflow(self) -> Workflow:
        steps = tuple(
            WorkflowStep(name=f"s{index}", credits=Decimal("0.25"), timeout_ms=None, call=self._step)
            for index in range(self.rng.randint(2, 4) if self.mortal else 3)
        )
        self.steps = self.steps or steps
        return Workflow(name="w", steps=self.steps, max_attempts=None, owner=None)

    async def _step(self, run: StepRun) -> Any:
        self.step_begins(run)
        luck = self.rng.random()
        if not self.mortal:
            await asyncio.sleep(0.5)
            return run.index
        await asyncio.sleep(40 * self.rng.random() ** 4)
        if luck < 0.06:
            raise StepFailed("UNLUCKY", "no luck", final=luck < 0.01)
        if luck < 0.09:
            raise ValueError("no luck")
        if luck < 0.12:
            raise NotYet(self.rng.random() * 30)
        if luck < 0.15:
            return object()
        if luck < 0.3:
            await run.keep({"at": run.index})
        if luck < 0.4:
            run.spend(Decimal("0.125"))
        if luck > 0.99:
            await asyncio.sleep(200)
        return {"index": run.index}

    async def working(self) -> None:
        """A worker process, again and again after it died."""
        while not self.over:
            process = self.process("worker")
            worker, _, sweeper = self.parts(process)
            try:
                while not self.over:
                    await self._work_once(worker, process, sweeper)
            except Died:
                self.crashes += 1
                await asyncio.sleep(self.rng.random() * 5)
            finally:
                self.calls += process.calls

    async def _work_once(self, worker: Worker, process: Process, sweeper: LifebookSweeper) -> None:
        queue: Any = Port(process, self.queue)
        found = await queue.receive(messages_max=3, wait_seconds=1, visibility_ms=worker.visibility_ms)
        outcomes = await asyncio.gather(*(worker.handle(each) for each in found), return_exceptions=True)
        for delivery, outcome in zip(found, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                raise outcome
            await worker.settle(delivery, outcome)
        if self.rng.random() < 0.2:
            await sweeper.sweep()
        if not found:
            await asyncio.sleep(2)

    async def asking(self, key: str) -> None:
        """A client: asks for a run until it is told, cancels some, redrives what is dead."""
        estimate = Decimal(self.rng.choice(("1", "1", "1.125", "2", "0.5")) if self.mortal else "1")
        while True:
            process = self.process("api")
            _, runs, _ = self.parts(process)
            try:
                told = await runs.submit(
                    RunRequest(
                        workspace_id=WORKSPACE,
                        user_id="u",
                        workflow_id="w",
                        idempotency_key=key,
                        credits_estimate=estimate,
                    )
                )
                if isinstance(told, RunRefused):
                    self.wrong(f"refused: {told}")
                    return
                await self._control(runs, told.job)
            except Died:
                await asyncio.sleep(self.rng.random() * 20)
                continue
            return

    async def _control(self, runs: Runs, job: LifebookJob) -> None:
        if not self.mortal:
            return
        luck = self.rng.random()
        if luck < 0.15:
            await asyncio.sleep(self.rng.random() * 60)
            await runs.cancel(job.job_id)
        for _ in range(40):
            await asyncio.sleep(15)
            now = self.table.jobs[job.job_id]
            if now.status is Status.DEAD and now.redrives == 0 and luck > 0.4:
                await runs.redrive(job.job_id)
                return
            if now.terminal:
                return

    async def run(self, jobs: int, workers: int) -> None:
        await self.balances.grant(WORKSPACE, GRANTED)
        clients = [self.asking(f"k{number}") for number in range(jobs)]
        if self.mortal:
            clients.append(self.asking("k0x"))
        working = [asyncio.ensure_future(self.working()) for _ in range(workers)]
        await asyncio.gather(*clients)
        # From here on nothing crashes, so that everything can come to its end.
        mortal, self.mortal = self.mortal, False
        until_ms = self.now_ms() + LONGEST_MS
        while not self.quiet() and self.now_ms() < until_ms:
            await asyncio.sleep(20)
        self.over = True
        await asyncio.gather(*working, return_exceptions=True)
        self.mortal = mortal
        await self.check_end()

    def quiet(self) -> bool:
        jobs = self.table.jobs.values()
        if any(job.sweep_at is not None for job in jobs) or not jobs:
            return False
        return all(event.sent_at is not None for event in self.table.events.values()) and not list(
            self.queue.bodies()
        )

    async def check_end(self) -> None:
        jobs = list(self.table.jobs.values())
        if len({job.idempotency_key for job in jobs}) != len(jobs):
            self.wrong("two jobs have one key")
        for job in jobs:
            if not job.terminal:
                self.wrong(f"{job.job_id[:8]} never ended: {job.status}, {job.last_error_code}")
            if job.status is Status.COMPLETED and job.step_cursor != job.steps_total:
                self.wrong(f"{job.job_id[:8]} completed at step {job.step_cursor} of {job.steps_total}")
            if job.status is Status.DEAD and not any(job.job_id in body for body in self.queue.dead_bodies()):
                self.wrong(f"{job.job_id[:8]} is dead and not in the dead-letter queue")
        self._check_events()
        account = await self.balances.balance(WORKSPACE)
        spent = sum((job.credits_spent for job in jobs), Decimal(0))
        if (account.spent, account.held, account.available) != (spent, Decimal(0), GRANTED - spent):
            self.wrong(f"credits: {account}, jobs spent {spent}")

    def _check_events(self) -> None:
        ids = [body["event_id"] for body in self.sink.bodies]
        lives = {(body["job_id"], body["redrives"]): body for body in self.sink.bodies}
        if len(set(ids)) != len(lives) or set(lives) != set(self.ended):
            self.wrong(f"{len(set(ids))} events for {len(self.ended)} ends")
        for life, body in lives.items():
            ended = self.ended.get(life)
            if body["success"] is not (ended is Status.COMPLETED):
                self.wrong(f"event of {life} says success {body['success']}, it is {ended}")


def _reachable(before: Status, after: Status) -> bool:
    """In one write: by one move, or by two."""
    once = {row[before] for row in MOVES.values() if before in row}
    twice = {row[status] for status in once for row in MOVES.values() if status in row}
    return after in once | twice


def quiet_logs() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))


def faults_of(seed: int, *, jobs: int | None = None) -> list[str]:
    """What went wrong in the schedule of this seed."""

    async def main() -> list[str]:
        world = World(seed)
        await world.run(jobs or world.rng.randint(1, 3), world.rng.randint(1, 3))
        return world.faults

    return run_virtually(main())


def faults_of_crash(at: int, *, after: bool) -> tuple[list[str], int]:
    """One job, two workers, one crash at this call of a worker; and how many calls there were."""

    async def main() -> tuple[list[str], int]:
        world = World(7, mortal=False, crash=(at, after))
        await world.run(1, 2)
        return world.faults, world.crashes

    return run_virtually(main())


def main(arguments: list[str]) -> int:
    quiet_logs()
    schedules = int(arguments[0]) if arguments else 1_000
    first = int(arguments[1]) if len(arguments) > 1 else 1
    found = 0
    for seed in range(first, first + schedules):
        for text in faults_of(seed):
            found += 1
            sys.stdout.write(f"seed {seed}: {text}\n")
    sys.stdout.write(f"{schedules} schedules, {found} faults\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
