"""What goes wrong in a simulation, decided by the seed alone.

At each place where something may go wrong (a `Site`) a process asks, and the answer depends on the seed, the
place, the process and how often that process was there before: on nothing else. So a fault that is taken out
(`FaultPlan.only`) leaves the others where they were, as far as the processes still come by there. Every
fault that happens is written down under a number that names its decision for ever.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Final

import msgspec

from lucius_lab.sim.loop import Process

SCALE = 65_536
MASK = (1 << 62) - 1
PROCESSES_MAX = 64
DECISIONS_MAX = 1 << 24  # of one process at one site


class FaultKind(StrEnum):
    BUS_DROP = "bus drop"
    BUS_DUPLICATE = "bus duplicate"
    BUS_DELAY = "bus delay"
    BUS_REORDER = "bus reorder"
    BUS_UNAVAILABLE_BEFORE = "bus unavailable before"
    BUS_UNAVAILABLE_AFTER = "bus unavailable after"
    STORE_CONFLICT = "store conflict"
    STORE_UNAVAILABLE = "store unavailable"
    STORE_TIMEOUT_BEFORE = "store timeout before"
    STORE_TIMEOUT_AFTER = "store timeout after"
    STORE_READ_ERROR = "store read error"
    ROW_UNREADABLE = "row unreadable"
    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"
    CALL_LOST = "call lost"
    ANSWER_LOST = "answer lost"
    PROCESS_FREEZE = "process freeze"
    CLOCK_JUMP = "clock jump"
    CLOCK_SKEW = "clock skew"
    CLOCK_AHEAD = "clock ahead"
    WORKER_SILENT = "worker silent"
    WORKER_SLOW = "worker slow"
    WORKER_TWICE = "worker twice"
    WORKER_RETRYABLE = "worker retryable"
    WORKER_FINAL = "worker final"
    HOSTILE = "hostile"
    CONTROL = "control"
    COMMAND_DUPLICATE = "command duplicate"
    KEY_REUSED = "key reused"
    INDEX_LOST = "index rows lost"


class Site:
    """Where something may go wrong: plain numbers, as each is asked for hundreds of times."""

    COMMIT: Final = 1
    READ: Final = 2
    PUBLISH: Final = 3
    RECEIVE: Final = 4
    SETTLE: Final = 5
    CALL: Final = 6
    ANSWER: Final = 7
    NEMESIS: Final = 8
    TAKEN: Final = 9  # a worker holds a directive
    WORK: Final = 10
    REPLY: Final = 11
    COMMAND: Final = 12
    STRANGER: Final = 13
    INDEXES: Final = 14
    BIRTH: Final = 20  # a life of a process begins


SITES: Mapping[int, tuple[FaultKind, ...]] = {
    Site.COMMIT: (
        FaultKind.STORE_CONFLICT,
        FaultKind.STORE_UNAVAILABLE,
        FaultKind.STORE_TIMEOUT_BEFORE,
        FaultKind.STORE_TIMEOUT_AFTER,
        FaultKind.CRASH_BEFORE,
        FaultKind.CRASH_AFTER,
    ),
    Site.READ: (FaultKind.STORE_READ_ERROR, FaultKind.ROW_UNREADABLE),
    Site.PUBLISH: (
        FaultKind.BUS_DROP,
        FaultKind.BUS_DUPLICATE,
        FaultKind.BUS_DELAY,
        FaultKind.BUS_REORDER,
        FaultKind.BUS_UNAVAILABLE_BEFORE,
        FaultKind.BUS_UNAVAILABLE_AFTER,
        FaultKind.CRASH_BEFORE,
        FaultKind.CRASH_AFTER,
    ),
    Site.RECEIVE: (FaultKind.BUS_UNAVAILABLE_BEFORE, FaultKind.BUS_UNAVAILABLE_AFTER, FaultKind.CRASH_AFTER),
    Site.SETTLE: (
        FaultKind.BUS_UNAVAILABLE_BEFORE,
        FaultKind.BUS_UNAVAILABLE_AFTER,
        FaultKind.CRASH_BEFORE,
        FaultKind.CRASH_AFTER,
    ),
    Site.CALL: (FaultKind.CALL_LOST,),
    Site.ANSWER: (FaultKind.ANSWER_LOST,),
    Site.NEMESIS: (FaultKind.CLOCK_JUMP, FaultKind.CLOCK_SKEW, FaultKind.PROCESS_FREEZE),
    Site.TAKEN: (FaultKind.WORKER_SILENT,),
    Site.WORK: (
        FaultKind.WORKER_SLOW,
        FaultKind.WORKER_RETRYABLE,
        FaultKind.WORKER_FINAL,
        FaultKind.CRASH_BEFORE,
    ),
    Site.REPLY: (FaultKind.WORKER_TWICE,),
    Site.COMMAND: (FaultKind.CONTROL, FaultKind.COMMAND_DUPLICATE, FaultKind.KEY_REUSED),
    Site.STRANGER: (FaultKind.HOSTILE,),
    Site.INDEXES: (FaultKind.INDEX_LOST,),
    Site.BIRTH: (FaultKind.CLOCK_AHEAD, FaultKind.CLOCK_SKEW),
}

SITES_MAX = max(SITES) + 1

_CRASHES = frozenset({FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER})

_DEFAULT: Mapping[FaultKind, float] = {
    FaultKind.BUS_DROP: 0.05,
    FaultKind.BUS_DUPLICATE: 0.08,
    FaultKind.BUS_DELAY: 0.08,
    FaultKind.BUS_REORDER: 0.15,
    FaultKind.BUS_UNAVAILABLE_BEFORE: 0.015,
    FaultKind.BUS_UNAVAILABLE_AFTER: 0.015,
    FaultKind.STORE_CONFLICT: 0.01,
    FaultKind.STORE_UNAVAILABLE: 0.01,
    FaultKind.STORE_TIMEOUT_BEFORE: 0.01,
    FaultKind.STORE_TIMEOUT_AFTER: 0.015,
    FaultKind.STORE_READ_ERROR: 0.003,
    FaultKind.ROW_UNREADABLE: 0.003,
    FaultKind.CRASH_BEFORE: 0.004,
    FaultKind.CRASH_AFTER: 0.006,
    FaultKind.CALL_LOST: 0.04,
    FaultKind.ANSWER_LOST: 0.06,
    FaultKind.PROCESS_FREEZE: 0.08,
    FaultKind.CLOCK_JUMP: 0.08,
    FaultKind.CLOCK_SKEW: 0.1,
    FaultKind.CLOCK_AHEAD: 0.05,
    FaultKind.WORKER_SILENT: 0.04,
    FaultKind.WORKER_SLOW: 0.04,
    FaultKind.WORKER_TWICE: 0.1,
    FaultKind.WORKER_RETRYABLE: 0.1,
    FaultKind.WORKER_FINAL: 0.015,
    FaultKind.HOSTILE: 0.6,
    FaultKind.CONTROL: 0.4,
    FaultKind.COMMAND_DUPLICATE: 0.3,
    FaultKind.KEY_REUSED: 0.1,
    FaultKind.INDEX_LOST: 0.5,
}

_ASKED = frozenset(
    {FaultKind.CONTROL, FaultKind.COMMAND_DUPLICATE, FaultKind.KEY_REUSED}
)  # wishes, of which each has one


def _scaled(factor: float) -> dict[FaultKind, float]:
    return {kind: rate if kind in _ASKED else min(0.6, rate * factor) for kind, rate in _DEFAULT.items()}


PRESETS: Mapping[str, Mapping[FaultKind, float]] = {
    "none": {},
    "light": _scaled(0.25),
    "default": _DEFAULT,
    "heavy": _scaled(2.5),
}


class FaultPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How much goes wrong, until when, and (to look for the fault that matters) which decisions count."""

    rates: Mapping[FaultKind, float]
    quiet_at_seconds: float
    only: frozenset[int] | None = None


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    kind: FaultKind
    number: int
    at_ms: int  # since the simulation began
    process: str
    what: str = ""


class Faults:
    def __init__(self, seed: int, plan: FaultPlan) -> None:
        self.happened: list[Fault] = []
        self.entropy = 0
        """Chance that came with the last answer: what else the asker lets the seed decide, such as how long
        something takes. It does not disturb the answers of others."""
        self.seed = seed
        self.quiet_at = plan.quiet_at_seconds
        """Nothing goes wrong from here on."""
        self._only = plan.only
        self._counts = [0] * (PROCESSES_MAX * SITES_MAX)
        self._tables = _tables(tuple(plan.rates.items()))
        self._limits = [table[-1][0] if table else 0 for table in self._tables]
        self.number = 0
        """Names the last decision for something to go wrong."""

    def at(self, site: int, process: Process) -> FaultKind | None:
        """The fault to inject here and now, if any. The caller that injects it records that with `note`."""
        place = site * PROCESSES_MAX + process.index
        counts = self._counts
        counts[place] = count = counts[place] + 1
        # Tuples of numbers hash alike everywhere; what follows the count stirs it well.
        mixed = hash((count, self.seed, place, 7)) & MASK
        self.entropy = mixed >> 17
        drawn = mixed & 0xFFFF
        if drawn >= self._limits[site] or process.loop.now >= self.quiet_at:
            return None
        self.number = place << 24 | count
        if self._only is not None and self.number not in self._only:
            return None
        for threshold, kind in self._tables[site]:
            if drawn < threshold:
                return None if kind in _CRASHES and not process.mortal else kind
        raise AssertionError

    def note(self, kind: FaultKind, process: Process, what: str, number: int | None) -> Fault:
        """The fault that `at` answered with happens; without its number it is the last answer's."""
        fault = Fault(
            kind=kind,
            number=self.number if number is None else number,
            at_ms=round(process.loop.time() * 1000),
            process=process.name,
            what=what,
        )
        self.happened.append(fault)
        return fault

    def counts(self) -> dict[FaultKind, int]:
        found: dict[FaultKind, int] = {}
        for fault in self.happened:
            found[fault.kind] = found.get(fault.kind, 0) + 1
        return {kind: found[kind] for kind in FaultKind if kind in found}


@lru_cache(maxsize=64)
def _tables(rates: tuple[tuple[FaultKind, float], ...]) -> tuple[tuple[tuple[int, FaultKind], ...], ...]:
    """By site: up to which number drawn what goes wrong."""
    found = dict(rates)
    return tuple(_thresholds(SITES.get(site, ()), found) for site in range(SITES_MAX))


def _thresholds(
    kinds: Iterable[FaultKind], rates: Mapping[FaultKind, float]
) -> tuple[tuple[int, FaultKind], ...]:
    found: list[tuple[int, FaultKind]] = []
    total = 0
    for kind in kinds:
        lane_leases = round(rates.get(kind, 0.0) * SCALE)
        if lane_leases:
            total += lane_leases
            found.append((total, kind))
    return tuple(found)
