"""Hundreds of schedules, each with its own faults: not one breaks a promise.

A schedule is eight jobs of three steps with the default faults, in a deployment that the seed chooses.
`make test` runs 20,000 others beside this suite (`make schedules`), `make soak` many more; `lucius lab replay
SEED` tells the story of one that fails.
"""

from collections.abc import Callable

import pytest
from tests.sizes import SOAKING, size

from lucius_lab.sim.faults import FaultKind
from lucius_lab.sim.fleet import run_seeds
from lucius_lab.sim.run import SimShape, simulate

FIRST = 1_000_000  # none that `make schedules` runs
SCHEDULES = size(400, 20_000)
FORGETFUL_SCHEDULES = size(240, 40_000)


@pytest.mark.timeout(900)
def test_every_promise_is_kept(record_property: Callable[[str, object], None]) -> None:
    tally = run_seeds(FIRST, SCHEDULES, SimShape())
    record_property("schedules", tally.schedules)
    record_property("faults", sum(tally.faults.values()))
    assert [(failure.seed, failure.violation) for failure in tally.failures] == []
    assert tally.schedules == SCHEDULES
    assert tally.jobs >= 8 * SCHEDULES
    # Each kind of fault was met, and each house lived in.
    assert [kind for kind in FaultKind if not tally.faults[kind.value]] == []
    assert len(tally.deployments) == 12


@pytest.mark.timeout(0 if SOAKING else 900)
@pytest.mark.parametrize("seconds", [5.0, 30.0])
def test_every_promise_is_kept_where_jobs_are_forgotten_soon(seconds: float) -> None:
    """On stores that cannot span, where forgetting is many writes and anybody may come in between."""
    count = FORGETFUL_SCHEDULES // 2
    tally = run_seeds(round(seconds) * 1_000_000, count, SimShape(spans=False, retention_seconds=seconds))
    assert [(failure.seed, failure.violation) for failure in tally.failures] == []
    assert tally.ended["FORGOTTEN"] > 7 * count


def test_a_schedule_is_the_same_wherever_it_runs() -> None:
    hashes = {seed: simulate(seed).trace_hash for seed in range(3)}
    assert {seed: simulate(seed).trace_hash for seed in (2, 0, 1)} == hashes
    assert len(set(hashes.values())) == 3
