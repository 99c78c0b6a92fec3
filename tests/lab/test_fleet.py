"""Schedules over several processes: the same sums, whichever way the processes begin."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lucius_lab.sim import fleet
from lucius_lab.sim.run import SimShape

SEEDS = 30


def _sums(tally: fleet.ScheduleTally) -> dict[str, object]:
    return {
        "schedules": tally.schedules,
        "jobs": tally.jobs,
        "commits": tally.commits,
        "faults": tally.faults,
        "deployments": tally.deployments,
        "slowest": tally.slowest,
        "seconds": sorted(tally.seconds),
    }


# In a process of its own: that of the tests has threads by now, and must not be copied.
_SEVERAL = """
import json, sys
from lucius_lab.sim import fleet
from lucius_lab.sim.run import SimShape
from tests.lab.test_fleet import SEEDS, _sums

if __name__ == "__main__":
    fleet._way = lambda: sys.argv[1]
    report = []
    tally = fleet.run_fleet(
        0, SEEDS, SimShape(jobs=2), processes=2, report=lambda tally: report.append(tally.schedules)
    )
    print(json.dumps([_sums(tally), report]))
"""


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_several_processes_find_what_one_finds(way: str, tmp_path: Path) -> None:
    script = tmp_path / "several.py"
    script.write_text(_SEVERAL)
    done = subprocess.run(
        [sys.executable, str(script), way],
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    several, report = json.loads(done.stdout)
    assert several == json.loads(json.dumps(_sums(fleet.run_seeds(0, SEEDS, SimShape(jobs=2)))))
    assert report[-1] == SEEDS
    assert report == sorted(report)


def test_a_process_with_threads_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 2)
    assert fleet._way() == "spawn"
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    assert fleet._way() == ("fork" if sys.platform == "linux" else "spawn")


def _run(*options: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "lucius", "lab", "run", "--seeds", "100000", *map(str, options)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _children(pid: int) -> list[int]:
    """Those that simulate, once they are there."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if len(found) >= 2:
            return [int(child) for child in found]
        time.sleep(0.05)
    raise AssertionError("no process was begun")


def _is_gone(pid: int) -> bool:
    """Ended, or only not yet asked for by whoever inherited it."""
    try:
        return "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:1]
    except OSError:
        return True


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_processes_end_with_the_one_that_began_them(end: signal.Signals) -> None:
    with _run("--processes", 2) as run:
        children = _children(run.pid)
        run.send_signal(end)
        assert run.wait(30) == -end
        until = time.monotonic() + 30
        while not all(map(_is_gone, children)) and time.monotonic() < until:
            time.sleep(0.05)
        assert all(map(_is_gone, children))


def test_a_process_that_died_is_told_in_a_line() -> None:
    with _run("--processes", 2, "--json") as run:
        os.kill(_children(run.pid)[0], signal.SIGKILL)
        out, report = run.communicate(timeout=60)
    assert (run.returncode, out) == (1, "")
    assert report.strip().startswith("error: a process died after ")
    assert "Traceback" not in report
