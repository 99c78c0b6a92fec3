"""Many seeds at once: over all cores, counted together.

In: seeds and a shape. Out: sums that stay small however many seeds there were, and the seeds that failed.
"""

import gc
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection, get_context, parent_process
from typing import Final

import msgspec

from lucius_lab.sim.faults import FaultKind
from lucius_lab.sim.run import SimOutcome, SimShape, simulate

CHUNK_SEEDS: Final = 10
FAILURES_KEPT_MAX: Final = 20
SECONDS_KEPT_MAX: Final = 200_000


class ScheduleProcessDied(Exception):
    """One of the processes is gone, and what it was at with it: killed perhaps, for want of memory."""


class FailedSchedule(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    violation: str
    faults: int


class ScheduleTally(msgspec.Struct, kw_only=True):
    """What many schedules came to."""

    schedules: int = 0
    jobs: int = 0
    commits: int = 0
    steps: int = 0
    attempts: int = 0
    virtual_seconds: float = 0.0
    ended: Counter[str] = msgspec.field(default_factory=Counter)
    ended_of: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)  # by protocol and state
    failed_at: Counter[tuple[str, int, str]] = msgspec.field(default_factory=Counter)  # protocol, step, code
    faults: Counter[str] = msgspec.field(default_factory=Counter)
    deployments: Counter[str] = msgspec.field(default_factory=Counter)
    scarce: Counter[str] = msgspec.field(default_factory=Counter)
    seconds: list[float] = msgspec.field(default_factory=list)
    failures: list[FailedSchedule] = msgspec.field(default_factory=list)
    failed: int = 0
    slowest: tuple[float, int, str] = (0.0, 0, "")  # a job's virtual seconds, its seed, its id

    def add(self, outcome: SimOutcome) -> None:
        self.schedules += 1
        self.jobs += len(outcome.jobs)
        self.commits += outcome.commits
        self.steps += outcome.steps
        self.virtual_seconds += outcome.virtual_seconds
        self.faults.update(outcome.fault_counts)
        store = "spans" if outcome.spans else "does not span"
        self.deployments[f"{outcome.topology.value}, {outcome.layout.value}, store {store}"] += 1
        self.scarce[outcome.constraint.value] += 1
        for job in outcome.jobs:
            self.ended[job.state] += 1
            self.ended_of[job.protocol_id, job.state] += 1
            if job.state == "FAILED_FINAL":
                self.failed_at[job.protocol_id, job.step_index or 0, job.error_code or ""] += 1
            self.attempts += job.attempts
            if job.seconds is not None:
                if len(self.seconds) < SECONDS_KEPT_MAX:
                    self.seconds.append(job.seconds)
                self.slowest = max(self.slowest, (job.seconds, outcome.seed, job.job_id))
        if not outcome.passed:
            self._failed(outcome)

    def _failed(self, outcome: SimOutcome) -> None:
        self.failed += 1
        if len(self.failures) < FAILURES_KEPT_MAX:
            violation = str(outcome.violations[0])
            self.failures.append(
                FailedSchedule(seed=outcome.seed, violation=violation, faults=len(outcome.faults))
            )

    def merge(self, other: "ScheduleTally") -> None:
        self.schedules += other.schedules
        self.jobs += other.jobs
        self.commits += other.commits
        self.steps += other.steps
        self.attempts += other.attempts
        self.virtual_seconds += other.virtual_seconds
        self.ended.update(other.ended)
        self.ended_of.update(other.ended_of)
        self.failed_at.update(other.failed_at)
        self.faults.update(other.faults)
        self.deployments.update(other.deployments)
        self.scarce.update(other.scarce)
        self.seconds.extend(other.seconds[: max(0, SECONDS_KEPT_MAX - len(self.seconds))])
        self.failures.extend(other.failures)
        self.failures.sort(key=lambda failure: failure.seed)
        del self.failures[FAILURES_KEPT_MAX:]
        self.failed += other.failed
        self.slowest = max(self.slowest, other.slowest)

    def never_injected(self, shape: SimShape) -> list[FaultKind]:
        """Kinds of faults that the shape asks for and that no run injected."""
        return [kind for kind in shape.kinds() if not self.faults[kind.value]]


def run_seeds(first: int, count: int, shape: SimShape) -> ScheduleTally:
    """In this process, one after the other."""
    tally, shape = ScheduleTally(), msgspec.structs.replace(shape, hashed=False)
    for seed in range(first, first + count):
        tally.add(simulate(seed, shape))
    return tally


def run_fleet(
    first: int,
    count: int,
    shape: SimShape,
    *,
    processes: int,
    report: Callable[[ScheduleTally], None] | None = None,
    failures_max: int | None = None,
) -> ScheduleTally:
    """`report` gets the tally after each part. With `failures_max`, no new part is begun after so many.
    Raises `ScheduleProcessDied`."""
    total = ScheduleTally()
    if processes <= 1:
        for begin, size in _chunks(first, count):
            total.merge(run_seeds(begin, size, shape))
            if report is not None:
                report(total)
            if failures_max is not None and total.failed >= failures_max:
                break
        return total
    chunks = _chunks(first, count)
    with ProcessPoolExecutor(processes, mp_context=get_context(_way()), initializer=_settle) as pool:
        running: set[Future[ScheduleTally]] = set()
        while True:
            while len(running) < 2 * processes and (chunk := next(chunks, None)) is not None:
                running.add(pool.submit(run_seeds, *chunk, shape))
            if not running:
                return total
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for part in done:
                try:
                    total.merge(part.result())
                except BrokenProcessPool as fault:
                    raise ScheduleProcessDied(
                        f"a process died after {total.schedules:,} schedules"
                    ) from fault
            if report is not None:
                report(total)
            if failures_max is not None and total.failed >= failures_max:
                chunks = iter(())


def _way() -> str:
    """A copy of this process has loaded everything already, but would lack whatever threads it has, and not
    the locks they hold. Elsewhere than on Linux system libraries begin some of their own."""
    return "fork" if sys.platform == "linux" and threading.active_count() == 1 else "spawn"


def _settle() -> None:
    """What a process has loaded by now stays: no collection need look at it again. It ends with the one that
    began it, however that ends."""
    gc.collect()
    gc.freeze()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _chunks(first: int, count: int) -> Iterator[tuple[int, int]]:
    for begin in range(first, first + count, CHUNK_SEEDS):
        yield begin, min(CHUNK_SEEDS, first + count - begin)
