"""`python -m lucius_lab.peers.run`: all contenders by turns, round after round, and what came of it."""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Final

import msgspec

from lucius.cli.children import ChildFailed
from lucius.cli.exits import EXIT_INTERRUPTED
from lucius.telemetry import configure_logging
from lucius_lab.bench.load import Count
from lucius_lab.emulators.postgres import PostgresFailed
from lucius_lab.peers.contenders import CONTENDERS, Contender, PeerFault, PeerFolders, run_load
from lucius_lab.peers.process_tree import below, cpu_seconds, memory_mb
from lucius_lab.peers.report import PeerRound, chart, judged, put_into_page, table

SCRIPTS: Final = Path("lab/peers")
ENVIRONMENTS: Final = Path(".venv-peers")
OUT: Final = Path("build/peers")
PAGE: Final = "performance.md"
CHART: Final = "peers.svg"
LOG: Final = "processes.log"
WARM_SHARE: Final = 0.1
WARM_JOBS_MIN: Final = 16


class PeerSizes(msgspec.Struct, frozen=True, kw_only=True):
    jobs: int
    in_flight: int
    lone: int
    rounds: int


async def measure(contender: Contender, sizes: PeerSizes, folders: PeerFolders) -> PeerRound:
    """One round of one contender, from nothing. Raises `PeerFault` and what its servers raise."""
    jobs = max(sizes.in_flight, round(sizes.jobs * contender.share))
    warm = max(WARM_JOBS_MIN, round(jobs * WARM_SHARE))
    async with contender.running(folders) as load:

        async def count(number: int, in_flight: int, first: int) -> Count:
            return msgspec.json.decode(await run_load(load, number, in_flight, first), type=Count)

        await count(warm, sizes.in_flight, 1)
        own = os.getpid()
        before = cpu_seconds(below(own)) + _reaped_seconds()
        crowd = await count(jobs, sizes.in_flight, 1_000_000)
        there = below(own)
        spent = cpu_seconds(there) + _reaped_seconds() - before
        memory = memory_mb(there)
        lone = await count(sizes.lone, 1, 2_000_000)
    return PeerRound(
        key=contender.key,
        per_second=crowd.per_second,
        lone_p50_ms=lone.percentile_ms(0.5),
        lone_p99_ms=lone.percentile_ms(0.99),
        cpu_ms=spent / jobs * 1000,
        memory_mb=memory,
    )


def _reaped_seconds() -> float:
    """Of children that have ended."""
    times = os.times()
    return times.children_user + times.children_system


async def measure_all(
    contenders: list[Contender], sizes: PeerSizes, scripts: Path, environments: Path
) -> tuple[list[PeerRound], dict[str, str]]:
    """The rounds, and why contenders are missing."""
    rounds: list[PeerRound] = []
    missing: dict[str, str] = {}
    for number in range(sizes.rounds):
        turn = number % len(contenders)
        for contender in (*contenders[turn:], *contenders[:turn]):  # no one is always after the same
            if contender.key in missing:
                continue
            with tempfile.TemporaryDirectory(prefix="lucius-peers-") as home:
                folders = PeerFolders(scripts=scripts, environments=environments, home=Path(home))
                try:
                    found = await measure(contender, sizes, folders)
                except (PeerFault, ChildFailed, PostgresFailed, OSError, TimeoutError) as fault:
                    missing[contender.key] = str(fault) or type(fault).__name__
                    _say(f"round {number + 1}: {contender.name}: not measured: {fault}")
                    continue
            rounds.append(found)
            _say(
                f"round {number + 1}: {contender.name}: {found.per_second:,.0f} jobs/s, lone p50 "
                f"{found.lone_p50_ms:.1f} ms, {found.cpu_ms:.2f} ms CPU a job"
            )
    return rounds, missing


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _put_aside(log: Path) -> None:
    """What the processes beside this one say on stderr goes to a file; what this one says does not."""
    own = os.fdopen(os.dup(2), "w", buffering=1)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    sys.stderr = own


async def _until_interrupted(
    contenders: list[Contender], sizes: PeerSizes, scripts: Path, environments: Path
) -> tuple[list[PeerRound], dict[str, str]]:
    if (this := asyncio.current_task()) is not None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, this.cancel)
    return await measure_all(contenders, sizes, scripts, environments)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m lucius_lab.peers.run", description=__doc__)
    parser.add_argument("--jobs", type=int, default=4_000, help="of the fastest; others do a share of them")
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--lone", type=int, default=50, help="jobs that run alone")
    parser.add_argument("--rounds", type=int, default=3)
    keys = ",".join(each.key for each in CONTENDERS)
    parser.add_argument("--only", default="", help=f"some of them: {keys}")
    parser.add_argument("--scripts", type=Path, default=SCRIPTS, help="the folder of the peers' scripts")
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS, help="where peers are installed")
    parser.add_argument("--out", type=Path, default=OUT, help="for the table, the chart and the figures")
    parser.add_argument("--docs", type=Path, help=f"the folder of {PAGE}, to put table and chart there, too")
    asked = parser.parse_args(arguments)
    wanted = set(filter(None, asked.only.split(",")))
    if unknown := wanted - {each.key for each in CONTENDERS}:
        parser.error(f"--only {','.join(sorted(unknown))}: there are {keys}")
    contenders = [each for each in CONTENDERS if not wanted or each.key in wanted]
    sizes = PeerSizes(jobs=asked.jobs, in_flight=asked.in_flight, lone=asked.lone, rounds=asked.rounds)
    configure_logging("error", plain=True)
    asked.out.mkdir(parents=True, exist_ok=True)
    _put_aside(asked.out / LOG)
    try:
        rounds, missing = asyncio.run(
            _until_interrupted(contenders, sizes, asked.scripts.resolve(), asked.environments.absolute())
        )
    except (asyncio.CancelledError, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    if not rounds:
        _say("Nothing was measured.")
        return 1
    by_key: defaultdict[str, list[PeerRound]] = defaultdict(list)
    for found in rounds:
        by_key[found.key].append(found)
    (asked.out / "rounds.json").write_bytes(msgspec.json.format(msgspec.json.encode(rounds)) + b"\n")
    text, drawn = table(contenders, by_key, sizes.in_flight), chart(contenders, by_key, sizes.in_flight)
    (asked.out / "table.md").write_text(text)
    (asked.out / CHART).write_text(drawn)
    if asked.docs is not None:
        (asked.docs / CHART).write_text(drawn)
        put_into_page(asked.docs / PAGE, text)
    sys.stdout.write(f"\n{text}\n")
    for verdict in judged(by_key):
        sys.stdout.write(f"{verdict}\n")
    for key, why in missing.items():
        sys.stdout.write(f"not measured: {key}: {why}\n")
    _say(f"Written to {asked.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
