"""Whether both engines have the same outcome: scripts played on each, on a real Temporal server, and
compared.

In: scripts. Out: a report; of each script whose rows, trails or answers differ a unified diff, and the script
itself. Ids and times are normalised, and so is `DISPATCHING`, which one of the engines does not have.
"""

import asyncio
import difflib
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from pathlib import Path

import msgspec

from lucius.engines.temporal.client import TemporalTarget
from lucius.engines.temporal.dev_server import dev_server
from lucius.ledger.memory import MemoryStore
from lucius.ledger.store import TableStore
from lucius_lab.equivalence.player import Played, Player
from lucius_lab.equivalence.script import Script, script_lines
from lucius_lab.equivalence.side import OutboxSide
from lucius_lab.equivalence.temporal import TemporalSide, Workflows, workflows

AT_ONCE_MAX = 32
CONTEXT_LINES = 6

Report = Callable[[int, int], None]
"""How many scripts were played, and how many differed."""

StoreMaker = Callable[[], Awaitable[TableStore]]
"""Opens an empty store, which is closed once a script was played on it."""


async def _in_memory() -> TableStore:
    return MemoryStore()


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    script: Script
    lines: tuple[str, ...]


class EquivalenceReport(msgspec.Struct, frozen=True, kw_only=True):
    scenarios: int
    seconds: float
    moves: int
    jobs: int
    events: int
    differences: tuple[Difference, ...]


async def compare(
    scripts: Sequence[Script],
    *,
    real_ms: Callable[[], int],
    at_once: int = AT_ONCE_MAX,
    report: Report = lambda played, differed: None,
) -> EquivalenceReport:
    """Starts a Temporal server for as long as it takes. Raises `NoTemporalProgram` or
    `WorkflowsUnavailable`."""
    with tempfile.TemporaryDirectory(prefix="lucius-equivalence-") as folder:
        async with dev_server(Path(folder) / "temporal.db") as target:
            return await compare_on(target, scripts, real_ms=real_ms, at_once=at_once, report=report)


async def compare_on(
    target: TemporalTarget,
    scripts: Sequence[Script],
    *,
    real_ms: Callable[[], int],
    at_once: int = AT_ONCE_MAX,
    report: Report = lambda played, differed: None,
    new_store: StoreMaker = _in_memory,
) -> EquivalenceReport:
    """On a server that is there."""
    began_ms = real_ms()
    async with workflows(target, real_ms=real_ms, numbers=count(1)) as shared:
        race = _Race(shared, scripts, report, new_store)
        async with asyncio.TaskGroup() as group:
            for _ in range(min(at_once, len(scripts))):
                group.create_task(race.run())
    return EquivalenceReport(
        scenarios=len(scripts),
        seconds=(real_ms() - began_ms) / 1000,
        moves=sum(len(script.moves) for script in scripts),
        jobs=race.jobs,
        events=race.events,
        differences=tuple(race.differences),
    )


class _Race:
    """Scripts, taken one after the other by several at once."""

    def __init__(
        self, shared: Workflows, scripts: Sequence[Script], report: Report, new_store: StoreMaker
    ) -> None:
        self._shared = shared
        self._new_store = new_store
        self._left = iter(scripts)
        self._report = report
        self._played = 0
        self.jobs = 0
        self.events = 0
        self.differences: list[Difference] = []

    async def run(self) -> None:
        for script in self._left:
            outbox, temporal = await asyncio.gather(
                self._played_on(OutboxSide, script), self._played_on(TemporalSide, script)
            )
            lines = difference(outbox, temporal)
            if lines:
                self.differences.append(Difference(script=script, lines=tuple(lines)))
            self._played += 1
            self.jobs += len(outbox.jobs)
            self.events += sum(len(job.events) for job in outbox.jobs)
            self._report(self._played, len(self.differences))

    async def _played_on(self, side: type[OutboxSide] | type[TemporalSide], script: Script) -> Played:
        store = await self._new_store()
        try:
            return await Player(side(self._shared, script, store)).play()
        finally:
            await store.close()


def difference(outbox: Played, temporal: Played) -> list[str]:
    """A unified diff of what was played; empty if it was the same, and nothing went wrong on either."""
    sides = _lines(outbox), _lines(temporal)
    lines = list(difflib.unified_diff(*sides, "outbox", "temporal", lineterm="", n=CONTEXT_LINES))
    if not lines and (outbox.faults or temporal.faults):
        return [*outbox.faults, *temporal.faults]
    return lines


def report_text(report: EquivalenceReport) -> str:
    lines: list[str] = []
    for found in report.differences:
        lines += [*script_lines(found.script), *found.lines]
        if found.script.seed is not None:
            lines.append(f"lucius lab equivalence --no-scripted --generated 1 --seed {found.script.seed}")
        lines.append("")
    size = f"{report.moves:,} moves, {report.jobs:,} jobs, {report.events:,} events in {report.seconds:.1f} s"
    lines.append(f"{report.scenarios:,} scenarios, {len(report.differences):,} differences ({size})")
    return "\n".join(lines)


def _lines(played: Played) -> list[str]:
    plain = msgspec.json.encode(played, order="sorted")
    return msgspec.json.format(plain, indent=1).decode().splitlines()
