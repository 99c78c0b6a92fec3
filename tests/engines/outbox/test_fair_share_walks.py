"""Walks of processes that hand out one lane: fair between tenants and in order within each, whatever comes
when and whichever process starts anew. Bugs that are planted on the way are found.

The rules are stated here anew, from what was submitted and handed out alone:

- Between two tenants that both have work all the time, the counts that one process hands out differ by one
  turn at most, each divided by the tenant's weight. A turn is a quarter of the largest read, rounded up.
- Of a tenant the directive leaves that has the lowest rank: five minutes of waiting are worth a level.
- Every job is handed out once.
"""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from itertools import combinations, count
from typing import Any

import pytest

from lucius.assembly.kernel import Kernel, KernelOptions
from lucius.contracts.envelope import Envelope
from lucius.core.routing import lane_of
from lucius.engines.outbox import fair_share
from lucius.engines.outbox.dispatcher import LedgerDispatcher
from lucius.engines.outbox.fair_share import TenantTurns
from lucius.jobs.admission import InFlightLimits
from lucius.jobs.new_job import NewIds
from lucius.jobs.submit import Submitted
from lucius.jobs.tokens import CallbackTokens, SigningKey
from lucius.ledger import commit_plan, names
from lucius.ledger.memory import MemoryStore
from lucius.registry.builtin import BuiltinRegistry

# LUCIUS_FAIR_WALKS=20000 walks longer.
WALKS = int(os.environ.get("LUCIUS_FAIR_WALKS", "60"))
WALKS_TO_FIND_MAX = 60
START_MS = 1_800_000_000_000
LANE = lane_of("acme")
TENANTS = tuple(name for n in range(200) if lane_of(name := f"tenant {n}") == LANE)[:4]
WEIGHTS = {TENANTS[0]: 3, TENANTS[1]: 1, TENANTS[2]: 1, TENANTS[3]: 2}


class Unfair(Exception):
    pass


class Walk:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now_ms = START_MS
        self.store = MemoryStore(spans=bool(seed % 2))
        self._numbers = count(1)
        self.waiting: dict[str, dict[str, tuple[int, str]]] = {tenant: {} for tenant in TENANTS}
        self.processes = [self.start() for _ in range(1 + seed % 2)]

    def new_ids(self) -> NewIds:
        number = next(self._numbers)
        return NewIds(job_id=f"job_{number:026d}", correlation_id="c", traceparent="00-1-1-01")

    def new_lease_id(self) -> str:
        return f"lease-{next(self._numbers)}"

    def start(self) -> "Process":
        return Process(self)

    async def submit(self, process: "Process", tenant: str) -> None:
        number, priority = next(self._numbers), self.chance.choice((5, 5, 5, 0, 9, 7))
        accepted = await process.kernel.submitter.submit(
            Envelope(
                tenant_id=tenant,
                tenant_norm=tenant,
                request_type="OCR",
                input_ref={"uri": f"s3://in/{number}"},
                output_ref={"uri": f"s3://out/{number}"},
                payload={},
                schema_version="1",
                priority=priority,
            )
        )
        assert isinstance(accepted, Submitted)
        self.waiting[tenant][accepted.job_id] = (
            self.now_ms + (5 - priority) * 300_000,
            accepted.job_id,
        )

    async def go(self, steps: int = 30) -> None:
        for _ in range(steps):
            event, process = self.chance.random(), self.chance.choice(self.processes)
            if event < 0.4:
                tenant = self.chance.choice(TENANTS)
                for _ in range(self.chance.randint(1, 12)):
                    await self.submit(process, tenant)
            elif event < 0.45:
                self.processes[self.processes.index(process)] = self.start()
            elif event < 0.55:
                self.now_ms += self.chance.randint(1, 40 * 60_000)
            else:
                await process.take(self.chance.randint(1, 10))
        while any(self.waiting.values()):
            await self.processes[0].take(8)


class Process:
    """One that hands out, and how far its counts have gone apart, of each pair of tenants."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self.kernel = Kernel(
            walk.store,
            KernelOptions(
                registry=BuiltinRegistry(),
                limits=InFlightLimits(tenant_max=10**6, total_max=10**6),
                tenant_weights=WEIGHTS,
            ),
            now_ms=lambda: walk.now_ms,
            ids=walk,
        )
        self._dispatcher = LedgerDispatcher(
            self.kernel.fair_share,
            self.kernel.writer,
            self.kernel.due_handler,
            CallbackTokens([SigningKey(kid="1", secret="s" * 32)]),
            callback_base="http://lucius.test",
            now_ms=lambda: walk.now_ms,
            look_every_ms=0,
        )
        self.kernel.listeners.add(self._dispatcher.watch)
        self.courses: dict[tuple[str, str], list[Fraction]] = {}
        self._turn = 1

    async def take(self, directives_max: int) -> None:
        walk = self._walk
        taken = await self._dispatcher.take("ocr", directives_max=directives_max, wait_ms=0)
        tenants = [self._handed_out(one.record.job.tenant_norm, one.record.job.job_id) for one in taken]
        if not taken and any(walk.waiting.values()):
            raise Unfair("work waits and is not handed out")
        self._turn = max(self._turn, -(-directives_max // fair_share.TURNS_A_READ))
        for pair in combinations(TENANTS, 2):
            course = self.courses.setdefault(pair, [Fraction(0)])
            gained = [Fraction(tenants.count(tenant), WEIGHTS[tenant]) for tenant in pair]
            course.append(course[-1] + gained[0] - gained[1])
        for process in walk.processes:
            process.forget_idle()
        for pair, course in self.courses.items():
            if max(course) - min(course) > self._turn:
                raise Unfair(f"{pair} went {course} apart with turns of {self._turn}")

    def _handed_out(self, tenant: str, job_id: str) -> str:
        waiting = self._walk.waiting[tenant]
        if job_id not in waiting:
            raise Unfair(f"{job_id} is handed out twice")
        if waiting[job_id] != min(waiting.values()):
            raise Unfair(f"{job_id} leaves before one of its tenant that stands before it")
        del waiting[job_id]
        return tenant

    def forget_idle(self) -> None:
        """A tenant without work has no share to make up for."""
        for pair in self.courses:
            if not all(self._walk.waiting[tenant] for tenant in pair):
                self.courses[pair] = [Fraction(0)]


@pytest.mark.timeout(100 * WALKS)
async def test_every_walk_is_fair() -> None:
    for seed in range(WALKS):
        await Walk(seed).go()


@contextmanager
def _as(owner: Any, name: str, value: object) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


BUGS: dict[str, Callable[[], Any]] = {
    "a turn is a whole read": lambda: _as(
        fair_share._Round,
        "_share_of",
        lambda self, group, share: self._limit * self._weights.get(group, 1),
    ),
    "a turn goes by the read it falls into": lambda: _as(
        fair_share._Round, "_round_share", lambda self, group: self._fresh
    ),
    "every read begins with the first tenant": lambda: _as(TenantTurns, "start", lambda self: ""),
    "weights do not count": lambda: _as(fair_share._Round, "_share_of", lambda self, group, share: share),
    "lanes are worked off by arrival": lambda: _as(names, "tenant_group", lambda tenant: "t00000000"),
    "nothing ages": lambda: _as(
        commit_plan, "rank_ms", lambda job, outbox: (9 - job.priority) * 10**12 + outbox.due_at_ms % 10**12
    ),
    "priority does not count": lambda: _as(commit_plan, "rank_ms", lambda job, outbox: outbox.due_at_ms),
}


@pytest.mark.parametrize("bug", BUGS)
async def test_a_planted_bug_is_found(bug: str) -> None:
    with BUGS[bug](), pytest.raises(Unfair):
        for seed in range(WALKS_TO_FIND_MAX):
            await Walk(seed).go()
