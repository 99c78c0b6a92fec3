"""What goes wrong in a simulation, decided by the seed alone.

At each place where something may go wrong (a `Site`) a process asks, and the answer depends on the seed, the
place, the process and how often that process was there before: on nothing else. So a fault that is taken out
(`Plan.only`) leaves the others where they were, as far as the processes still come by there. Every fault that
happens is written down under a number that names its decision for ever.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Final

import msgspec

from lucius.lab.sim.loop import Process

SCALE = 65_536
MASK = (1 << 62) - 1
PROCESSES_MAX = 64
DECISIONS_MAX = 1 << 24  # of one process at one site


class Kind(StrEnum):
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
    TAKEN: Final = 9  # a worker has a directive in its hands
    WORK: Final = 10
    REPLY: Final = 11
    COMMAND: Final = 12
    STRANGER: Final = 13
    INDEXES: Final = 14
    BIRTH: Final = 20  # a life of a process begins


SITES: Mapping[int, tuple[Kind, ...]] = {
    Site.COMMIT: (
        Kind.STORE_CONFLICT,
        Kind.STORE_UNAVAILABLE,
        Kind.STORE_TIMEOUT_BEFORE,
        Kind.STORE_TIMEOUT_AFTER,
        Kind.CRASH_BEFORE,
        Kind.CRASH_AFTER,
    ),
    Site.READ: (Kind.STORE_READ_ERROR, Kind.ROW_UNREADABLE),
    Site.PUBLISH: (
        Kind.BUS_DROP,
        Kind.BUS_DUPLICATE,
        Kind.BUS_DELAY,
        Kind.BUS_REORDER,
        Kind.BUS_UNAVAILABLE_BEFORE,
        Kind.BUS_UNAVAILABLE_AFTER,
        Kind.CRASH_BEFORE,
        Kind.CRASH_AFTER,
    ),
    Site.RECEIVE: (Kind.BUS_UNAVAILABLE_BEFORE, Kind.BUS_UNAVAILABLE_AFTER, Kind.CRASH_AFTER),
    Site.SETTLE: (
        Kind.BUS_UNAVAILABLE_BEFORE,
        Kind.BUS_UNAVAILABLE_AFTER,
        Kind.CRASH_BEFORE,
        Kind.CRASH_AFTER,
    ),
    Site.CALL: (Kind.CALL_LOST,),
    Site.ANSWER: (Kind.ANSWER_LOST,),
    Site.NEMESIS: (Kind.CLOCK_JUMP, Kind.CLOCK_SKEW, Kind.PROCESS_FREEZE),
    Site.TAKEN: (Kind.WORKER_SILENT,),
    Site.WORK: (Kind.WORKER_SLOW, Kind.WORKER_RETRYABLE, Kind.WORKER_FINAL, Kind.CRASH_BEFORE),
    Site.REPLY: (Kind.WORKER_TWICE,),
    Site.COMMAND: (Kind.CONTROL, Kind.COMMAND_DUPLICATE, Kind.KEY_REUSED),
    Site.STRANGER: (Kind.HOSTILE,),
    Site.INDEXES: (Kind.INDEX_LOST,),
    Site.BIRTH: (Kind.CLOCK_AHEAD, Kind.CLOCK_SKEW),
}

SITES_MAX = max(SITES) + 1

_CRASHES = frozenset({Kind.CRASH_BEFORE, Kind.CRASH_AFTER})

_DEFAULT: Mapping[Kind, float] = {
    Kind.BUS_DROP: 0.05,
    Kind.BUS_DUPLICATE: 0.08,
    Kind.BUS_DELAY: 0.08,
    Kind.BUS_REORDER: 0.15,
    Kind.BUS_UNAVAILABLE_BEFORE: 0.015,
    Kind.BUS_UNAVAILABLE_AFTER: 0.015,
    Kind.STORE_CONFLICT: 0.01,
    Kind.STORE_UNAVAILABLE: 0.01,
    Kind.STORE_TIMEOUT_BEFORE: 0.01,
    Kind.STORE_TIMEOUT_AFTER: 0.015,
    Kind.STORE_READ_ERROR: 0.003,
    Kind.ROW_UNREADABLE: 0.003,
    Kind.CRASH_BEFORE: 0.004,
    Kind.CRASH_AFTER: 0.006,
    Kind.CALL_LOST: 0.04,
    Kind.ANSWER_LOST: 0.06,
    Kind.PROCESS_FREEZE: 0.08,
    Kind.CLOCK_JUMP: 0.08,
    Kind.CLOCK_SKEW: 0.1,
    Kind.CLOCK_AHEAD: 0.05,
    Kind.WORKER_SILENT: 0.04,
    Kind.WORKER_SLOW: 0.04,
    Kind.WORKER_TWICE: 0.1,
    Kind.WORKER_RETRYABLE: 0.1,
    Kind.WORKER_FINAL: 0.015,
    Kind.HOSTILE: 0.6,
    Kind.CONTROL: 0.4,
    Kind.COMMAND_DUPLICATE: 0.3,
    Kind.KEY_REUSED: 0.1,
    Kind.INDEX_LOST: 0.5,
}

_ASKED = frozenset({Kind.CONTROL, Kind.COMMAND_DUPLICATE, Kind.KEY_REUSED})  # wishes, of which each has one


def _scaled(factor: float) -> dict[Kind, float]:
    return {kind: rate if kind in _ASKED else min(0.6, rate * factor) for kind, rate in _DEFAULT.items()}


PRESETS: Mapping[str, Mapping[Kind, float]] = {
    "none": {},
    "light": _scaled(0.25),
    "default": _DEFAULT,
    "heavy": _scaled(2.5),
}


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How much goes wrong, until when, and (to look for the fault that matters) which decisions count."""

    rates: Mapping[Kind, float]
    quiet_at_seconds: float
    only: frozenset[int] | None = None


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    kind: Kind
    number: int
    at_ms: int  # since the simulation began
    process: str
    what: str = ""


class Faults:
    def __init__(self, seed: int, plan: Plan) -> None:
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

    def at(self, site: int, process: Process) -> Kind | None:
        """What goes wrong here and now, if anything does. Whoever lets it happen says so with `note`."""
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

    def note(self, kind: Kind, process: Process, what: str, number: int | None) -> Fault:
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

    def counts(self) -> dict[Kind, int]:
        found: dict[Kind, int] = {}
        for fault in self.happened:
            found[fault.kind] = found.get(fault.kind, 0) + 1
        return {kind: found[kind] for kind in Kind if kind in found}


@lru_cache(maxsize=64)
def _tables(rates: tuple[tuple[Kind, float], ...]) -> tuple[tuple[tuple[int, Kind], ...], ...]:
    """By site: up to which number drawn what goes wrong."""
    found = dict(rates)
    return tuple(_thresholds(SITES.get(site, ()), found) for site in range(SITES_MAX))


def _thresholds(kinds: Iterable[Kind], rates: Mapping[Kind, float]) -> tuple[tuple[int, Kind], ...]:
    found: list[tuple[int, Kind]] = []
    total = 0
    for kind in kinds:
        share = round(rates.get(kind, 0.0) * SCALE)
        if share:
            total += share
            found.append((total, kind))
    return tuple(found)
