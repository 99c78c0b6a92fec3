"""Schedules over several processes: the same sums, whichever way the processes begin."""

import sys
import threading

import pytest

from lucius.lab.sim import fleet
from lucius.lab.sim.run import Shape

SEEDS = 30


def _sums(tally: fleet.Tally) -> dict[str, object]:
    return {
        "schedules": tally.schedules,
        "jobs": tally.jobs,
        "commits": tally.commits,
        "faults": tally.faults,
        "houses": tally.houses,
        "slowest": tally.slowest,
        "seconds": sorted(tally.seconds),
    }


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_several_processes_find_what_one_finds(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "_way", lambda: way)
    told: list[int] = []
    several = fleet.run_fleet(
        0, SEEDS, Shape(jobs=2), processes=2, told=lambda tally: told.append(tally.schedules)
    )
    assert _sums(several) == _sums(fleet.run_seeds(0, SEEDS, Shape(jobs=2)))
    assert told[-1] == SEEDS
    assert told == sorted(told)


def test_a_process_with_threads_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 2)
    assert fleet._way() == "spawn"
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    assert fleet._way() == ("fork" if sys.platform == "linux" else "spawn")
