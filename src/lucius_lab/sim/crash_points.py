"""Crash at every point: one scenario, run once for each moment at which a process may die.

The points are found, not listed: a first run without faults notes every step of every process (the code
between two awaits) and every place where it reaches the store, the bus or another process. Then the scenario
is run again for each of them, with the process dying there: before that step, or just before or just after
that commit, publish, receive or settle. In these runs every read and commit waits, so that none is missed.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations

import msgspec

from lucius_lab.sim.context import SimContext
from lucius_lab.sim.faults import SITES, FaultKind, FaultPlan, Faults, Site
from lucius_lab.sim.loop import Process
from lucius_lab.sim.run import SimOutcome, SimShape, simulate

_AT_SITES = frozenset({Site.COMMIT, Site.PUBLISH, Site.RECEIVE, Site.SETTLE})
_BEFORE_AND_AFTER = (FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER)


class CrashPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A moment in the life of a process: before its step of this number, or around a decision at a site."""

    process: str
    step: int | None = None
    decision: int | None = None
    kind: FaultKind | None = None

    def __str__(self) -> str:
        if self.step is not None:
            return f"{self.process} before its step {self.step}"
        return f"{self.process}: {self.kind} decision {self.decision}"


class _Forced(Faults):
    """Nothing goes wrong by chance. Notes who came by where; lets a process die at the given decisions."""

    def __init__(self, seed: int, plan: FaultPlan, points: Sequence[CrashPoint]) -> None:
        super().__init__(seed, plan)
        self._points = {point.decision: point.kind for point in points if point.decision is not None}
        self.visited: list[CrashPoint] = []

    def at(self, site: int, process: Process) -> FaultKind | None:
        super().at(site, process)
        if site == Site.COMMIT:
            self.entropy = self.entropy & ~7 | 1  # waits before and after
        elif site == Site.READ:
            self.entropy &= ~7  # waits
        if site not in _AT_SITES or not process.mortal:
            return None
        place = site * 64 + process.index
        self.number = place << 24 | self._counts[place]
        for kind in _BEFORE_AND_AFTER:
            if kind in SITES[site]:
                self.visited.append(CrashPoint(process=process.name, decision=self.number, kind=kind))
        return self._points.get(self.number)


class _Killer:
    """Counts the steps of each process over all its lives, and kills at the given ones."""

    def __init__(self, context: SimContext, points: Sequence[CrashPoint]) -> None:
        self._context = context
        self._kills = {(point.process, point.step) for point in points if point.step is not None}
        self.steps: dict[str, int] = {}

    def before_step(self, process: Process) -> None:
        if not process.mortal:
            return
        step = self.steps.get(process.name, 0) + 1
        self.steps[process.name] = step
        if (process.name, step) in self._kills:
            self._context.fault(FaultKind.CRASH_BEFORE, process, f"step {step}", step)
            self._context.kill(process)


class Explored(msgspec.Struct, frozen=True, kw_only=True):
    points: tuple[CrashPoint, ...]
    outcome: SimOutcome


def explore(seed: int, shape: SimShape) -> Explored:
    """The scenario without a crash, and every point at which one may happen."""
    outcome, forced, killer = _run(seed, shape, ())
    steps = [
        CrashPoint(process=name, step=step)
        for name, count in sorted(killer.steps.items())
        for step in range(1, count + 1)
    ]
    return Explored(points=(*steps, *forced.visited), outcome=outcome)


def crash_at(seed: int, shape: SimShape, points: Sequence[CrashPoint]) -> SimOutcome:
    return _run(seed, shape, points)[0]


def pairs(points: Sequence[CrashPoint]) -> Iterator[tuple[CrashPoint, CrashPoint]]:
    return combinations(points, 2)


def _run(seed: int, shape: SimShape, points: Sequence[CrashPoint]) -> tuple[SimOutcome, _Forced, _Killer]:
    made: list[tuple[_Forced, _Killer]] = []

    def prepare(context: SimContext) -> None:
        forced = _Forced(seed, FaultPlan(rates={}, quiet_at_seconds=shape.quiet_at_seconds), points)
        context.faults = forced
        killer = _Killer(context, points)
        context.loop.before_step = killer.before_step
        made.append((forced, killer))

    outcome = simulate(seed, shape, prepare=prepare)
    ((forced, killer),) = made
    return outcome, forced, killer
