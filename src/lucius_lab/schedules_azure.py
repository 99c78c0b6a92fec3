"""Schedules of the simulation on Azure's tables: the adapter that a deployment runs, on a real Azurite.

In: how many seeds, from which on. Out: what they came to, and exit code 1 if a promise was broken. The faults
are those of every simulation (conflicts, timeouts before and after the commit, errors, crashes, and the
rest), in the deployments whose store cannot span partitions, in both layouts. The same seed is run on the
in-process store as well, and everything but the ETags must come out the same.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from lucius.bus.nats.server import free_port
from lucius_lab.emulators.azurite import Azurite
from lucius_lab.report import summary, summary_text
from lucius_lab.sim.faults import PRESETS
from lucius_lab.sim.fleet import ScheduleTally
from lucius_lab.sim.run import SimOutcome, SimShape, simulate
from lucius_lab.sim.store_azure import AzureTables, SharedAzureStore, azure_tables
from lucius_lab.sim.watch import Violation

JOBS: Final = 4
# Azurite keeps what it was given in memory, and a fresh one starts in a second.
AZURITE_SCHEDULES_MAX: Final = 100
AGAIN: Final = "python -m lucius_lab.schedules_azure --count 1 --tell --seed {seed}"


def on_azure(account: AzureTables, seed: int, shape: SimShape, *, prefix: str) -> SimOutcome:
    """The schedule on Azure's tables. That it runs otherwise than in process is a breach, too."""
    outcome = simulate(seed, shape, store=SharedAzureStore(account, prefix))
    expected = simulate(seed, msgspec.structs.replace(shape, spans=False))
    differing = [
        name
        for name in SimOutcome.__struct_fields__
        if name not in ("acts", "timeline") and getattr(outcome, name) != getattr(expected, name)
    ]
    if not outcome.passed or not differing:
        return outcome
    text = f"the in-process store leads to other {', '.join(differing)}"
    return msgspec.structs.replace(outcome, violations=(Violation("STORE", "", text),))


def run(first: int, count: int, shape: SimShape, *, tell: bool) -> ScheduleTally:
    tally = ScheduleTally()
    for begin in range(first, first + count, AZURITE_SCHEDULES_MAX):
        azurite = Azurite(port=free_port())
        azurite.start()
        try:
            with azure_tables(azurite.connection_string) as account:
                for seed in range(begin, min(begin + AZURITE_SCHEDULES_MAX, first + count)):
                    outcome = on_azure(account, seed, shape, prefix=f"seed{seed}")
                    tally.add(outcome)
                    _passing(tally, count)
                    if tell:
                        sys.stdout.write("\n".join(outcome.timeline) + "\n")
        finally:
            azurite.kill()
    return tally


def _passing(tally: ScheduleTally, count: int) -> None:
    done = tally.schedules
    sys.stderr.write(f"\r{done} of {count} schedules, {tally.failed} failed" + "\n" * (done >= count))
    sys.stderr.flush()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m lucius_lab.schedules_azure", description=__doc__)
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
    tally = run(asked.seed, asked.count, shape, tell=asked.tell)
    found = summary(tally, shape, took_seconds=time.monotonic() - began)
    again = f"{AGAIN} --jobs {asked.jobs} --faults {asked.faults}"
    text = msgspec.json.encode(found).decode() if asked.json else summary_text(found, replay=again)
    sys.stdout.write(text + "\n")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
