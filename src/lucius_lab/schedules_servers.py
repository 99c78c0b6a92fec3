"""Schedules of the simulation on a store of a deployment: its adapter, on a real PostgreSQL or Azurite.

In: which store, how many seeds, from which on. Out: what they came to, and exit code 1 if a promise was
broken. The faults are those of every simulation (conflicts, timeouts before and after the commit, errors,
crashes, and the rest), in the deployments that the store is for, in both layouts. The same seed is run on the
in-process store as well, and everything but the ETags must come out the same: but for limits on jobs in
flight over several processes, which PostgreSQL alone keeps.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from lucius.bus.nats.server import free_port
from lucius_lab.emulators.azurite import Azurite
from lucius_lab.emulators.postgres import PostgresServer
from lucius_lab.report import summary, summary_text
from lucius_lab.sim.constraints import Constraint
from lucius_lab.sim.faults import PRESETS
from lucius_lab.sim.fleet import ScheduleTally
from lucius_lab.sim.run import SimOutcome, SimShape, simulate
from lucius_lab.sim.store import SharedStoreLike
from lucius_lab.sim.store_azure import AzureTables, SharedAzureStore, azure_tables
from lucius_lab.sim.store_postgres import PostgresDatabases, postgres_databases
from lucius_lab.sim.watch import Violation

JOBS: Final = 4
# Azurite keeps what it was given in memory, and a fresh one starts in a second.
SCHEDULES_A_SERVER_MAX: Final = 100
AGAIN: Final = "python -m lucius_lab.schedules_servers --store {store} --count 1 --tell --seed {{seed}}"

Play = Callable[[int, SimShape], SimOutcome]
"""A schedule, given its seed."""


def on_azure(account: AzureTables, seed: int, shape: SimShape, *, prefix: str) -> SimOutcome:
    """The schedule on Azure's tables. That it runs otherwise than in process is a breach, too."""
    return _beside(SharedAzureStore(account, prefix), seed, shape)


def on_postgres(databases: PostgresDatabases, seed: int, shape: SimShape) -> SimOutcome:
    """The same on PostgreSQL."""
    with databases.store() as store:
        outcome = simulate(seed, shape, store=store)
        if outcome.constraint is Constraint.SLOTS:
            return outcome
    return _compared(outcome, seed, shape)


def _beside(store: SharedStoreLike, seed: int, shape: SimShape) -> SimOutcome:
    return _compared(simulate(seed, shape, store=store), seed, shape)


def _compared(outcome: SimOutcome, seed: int, shape: SimShape) -> SimOutcome:
    expected = simulate(seed, msgspec.structs.replace(shape, spans=outcome.spans))
    differing = [
        name
        for name in SimOutcome.__struct_fields__
        if name not in ("acts", "timeline") and getattr(outcome, name) != getattr(expected, name)
    ]
    if not outcome.passed or not differing:
        return outcome
    text = f"the in-process store leads to other {', '.join(differing)}"
    return msgspec.structs.replace(outcome, violations=(Violation("STORE", "", text),))


@contextmanager
def _azure() -> Iterator[Play]:
    azurite = Azurite(port=free_port())
    azurite.start()
    try:
        with azure_tables(azurite.connection_string) as account:
            yield lambda seed, shape: on_azure(account, seed, shape, prefix=f"seed{seed}")
    finally:
        azurite.kill()


@contextmanager
def _postgres() -> Iterator[Play]:
    # The server runs as another user where this process is root's, and must reach its folder.
    folder = Path(tempfile.mkdtemp(prefix="lucius-schedules-pg-"))
    server = PostgresServer(folder, settings={"fsync": "off"})
    try:
        server.start()
        with postgres_databases(server) as databases:
            yield lambda seed, shape: on_postgres(databases, seed, shape)
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)


SERVERS: Final = {"azure": _azure, "postgres": _postgres}


def run(store: str, first: int, count: int, shape: SimShape, *, tell: bool) -> ScheduleTally:
    tally = ScheduleTally()
    for begin in range(first, first + count, SCHEDULES_A_SERVER_MAX):
        with SERVERS[store]() as play:
            for seed in range(begin, min(begin + SCHEDULES_A_SERVER_MAX, first + count)):
                outcome = play(seed, shape)
                tally.add(outcome)
                _passing(tally, count)
                if tell:
                    sys.stdout.write("\n".join(outcome.timeline) + "\n")
    return tally


def _passing(tally: ScheduleTally, count: int) -> None:
    done = tally.schedules
    sys.stderr.write(f"\r{done} of {count} schedules, {tally.failed} failed" + "\n" * (done >= count))
    sys.stderr.flush()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m lucius_lab.schedules_servers", description=__doc__)
    parser.add_argument("--store", choices=sorted(SERVERS), required=True, help="where the rows are")
    parser.add_argument("--count", type=int, default=20, help="how many schedules")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=JOBS, help="jobs in each schedule")
    parser.add_argument("--faults", choices=sorted(PRESETS), default="default", help="how much goes wrong")
    parser.add_argument("--tell", action="store_true", help="print who did what when")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    asked = parser.parse_args(arguments)
    if asked.count < 1 or asked.seed < 0 or asked.jobs < 1:
        parser.error("--count and --jobs must be at least 1, --seed at least 0")
    shape = SimShape(jobs=asked.jobs, faults=asked.faults, record=asked.tell)
    began = time.monotonic()
    tally = run(asked.store, asked.seed, asked.count, shape, tell=asked.tell)
    found = summary(tally, shape, took_seconds=time.monotonic() - began)
    again = f"{AGAIN.format(store=asked.store)} --jobs {asked.jobs} --faults {asked.faults}"
    text = msgspec.json.encode(found).decode() if asked.json else summary_text(found, replay=again)
    sys.stdout.write(text + "\n")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
