"""What the comparison of the engines is made of: scripts, clocks, diffs, and the command."""

import importlib.util
import json
import subprocess
import sys

import pytest
from tests.core.machine import new_job, new_steps
from typer.testing import CliRunner, Result

from lucius.cli.main import app
from lucius.core.model import Event, JobRecord, StepPolicy
from lucius.core.states import Fact
from lucius.engines.temporal.dev_server import NoTemporalProgram
from lucius_lab.equivalence import commands as lab_equivalence
from lucius_lab.equivalence import compare as equivalence
from lucius_lab.equivalence.compare import Difference, EquivalenceReport, difference
from lucius_lab.equivalence.generated import generated
from lucius_lab.equivalence.player import Played
from lucius_lab.equivalence.script import Move, Reply, Script, script_lines
from lucius_lab.equivalence.scripted import SCRIPTED
from lucius_lab.equivalence.side import PausableClock
from lucius_lab.sim.normal_form import normalised

COMMAND_SECONDS_MAX = 120


class Wall:
    def __init__(self) -> None:
        self.at_ms = 1_000

    def now_ms(self) -> int:
        return self.at_ms


def test_a_clock_stands_while_a_script_acts() -> None:
    wall = Wall()
    clock = PausableClock(wall.now_ms)
    wall.at_ms = 2_000
    assert clock.now_ms() == 1_000
    clock.run()
    assert clock.now_ms() == 2_000
    wall.at_ms = 3_000
    clock.stand()
    wall.at_ms = 4_000
    assert clock.now_ms() == 3_000
    clock.skip(10_000)
    assert clock.now_ms() == 13_000
    clock.run()
    assert clock.now_ms() == 14_000


def test_a_seed_always_means_the_same_script() -> None:
    scripts = [generated(seed) for seed in range(200)]
    assert scripts == [generated(seed) for seed in range(200)]
    kinds = {type(move) for script in scripts for move in script.moves}
    assert len(kinds) == 8
    assert len({script_lines(script)[0] for script in scripts}) == 200


def test_the_scripts_use_every_move_there_is() -> None:
    kinds = {type(move) for script in SCRIPTED for move in script.moves}
    assert kinds == set(Move.__args__)
    replies = [move for script in SCRIPTED for move in script.moves if isinstance(move, Reply)]
    assert any(move.forged for move in replies)
    assert any(move.back for move in replies)
    assert any(move.by_bus and move.times > 1 for move in replies)


def test_what_was_the_same_has_no_difference() -> None:
    played = Played(answers=("ack: applied",), jobs=())
    assert difference(played, played) == []


def test_a_fault_on_both_sides_is_still_a_difference() -> None:
    stuck = Played(answers=(), jobs=(), faults=("no rest",))
    assert difference(stuck, stuck) == ["no rest", "no rest"]


def test_an_id_that_begins_another_is_not_found_inside_of_it() -> None:
    """Found by the comparison: a lease was normalised as another's and what was left of it."""
    steps = new_steps(2, StepPolicy())
    record = JobRecord(job=new_job(), steps=steps)
    events = [
        Event(seq=number, type=Fact.ATTEMPT_BEGUN, at_ms=1, data={"lease_id": lease})
        for number, lease in enumerate(("lease7", "lease725"), 1)
    ]
    form = normalised(record, events)
    assert [event["data"]["lease_id"] for event in form.events] == ["<lease 1>", "<lease 2>"]


def report_of(*differences: Difference) -> EquivalenceReport:
    return EquivalenceReport(scenarios=1, seconds=1.0, moves=1, jobs=1, events=1, differences=differences)


def lab(monkeypatch: pytest.MonkeyPatch, outcome: EquivalenceReport | Exception, *arguments: str) -> Result:
    async def compare(scripts: list[Script], **more: object) -> EquivalenceReport:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(equivalence, "compare", compare)
    monkeypatch.setattr(lab_equivalence, "configure_logging", lambda level, plain: None)
    return CliRunner().invoke(app, ["lab", "equivalence", *arguments])


def test_a_difference_is_printed_with_its_script(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Difference(script=generated(43), lines=("--- outbox", "+++ temporal", "-a", "+b"))
    result = lab(monkeypatch, report_of(found))
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0].startswith("seed 43: ")
    assert "+++ temporal" in lines
    assert "lucius lab equivalence --no-scripted --generated 1 --seed 43" in lines
    assert lines[-1].startswith("1 scenarios, 1 differences")


def test_without_a_server_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    result = lab(monkeypatch, NoTemporalProgram("the program `temporal` is not installed"))
    assert result.exit_code == 1
    assert "is not installed" in result.stderr


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = lab(monkeypatch, report_of())
    assert result.exit_code == 1
    assert "lucius[temporal]" in result.stderr


@pytest.mark.xdist_group("temporal")
def test_the_command_prints_its_report_and_nothing_else() -> None:
    """The library's core would write its warnings to standard output: an orphan makes it warn."""
    arguments = ("lab", "equivalence", "--no-scripted", "--generated", "3", "--seed", "1", "--json")
    done = subprocess.run(
        [sys.executable, "-m", "lucius", *arguments], capture_output=True, timeout=COMMAND_SECONDS_MAX
    )
    assert done.returncode == 0, done.stderr.decode()
    report = json.loads(done.stdout)
    assert (report["scenarios"], report["differences"]) == (3, [])
