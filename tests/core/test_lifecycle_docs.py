"""docs/reference/lifecycle.md says what the tables say, and says it the same way every time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lucius.core.states import JOB_TABLES, STEP_TABLES, Engine, Fact, JobState, StepState
from lucius_lab import lifecycle

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "lifecycle.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == lifecycle.page(), "run `make docs`"


def test_every_fact_has_a_meaning_of_one_line() -> None:
    assert set(lifecycle.FACT_MEANINGS) == set(Fact)
    for fact, meaning in lifecycle.FACT_MEANINGS.items():
        assert meaning.endswith(".") and "\n" not in meaning, fact
    assert len(set(lifecycle.FACT_MEANINGS.values())) == len(Fact)


@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_the_command_writes_the_same_page_whatever_the_order_of_sets(tmp_path: Path, seed: str) -> None:
    target = tmp_path / "page.md"
    subprocess.run(
        [sys.executable, "-m", "lucius_lab.lifecycle", str(target)],
        check=True,
        env={**os.environ, "PYTHONHASHSEED": seed},
        timeout=60,
    )
    assert target.read_bytes() == PAGE.read_bytes()


def test_the_command_refuses_a_folder_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lifecycle.main([str(tmp_path / "nowhere" / "page.md")]) == 2
    assert "no folder" in capsys.readouterr().err


@pytest.mark.parametrize("engine", Engine)
def test_the_diagrams_draw_each_move_once_and_nothing_else(engine: Engine) -> None:
    outbox, temporal = lifecycle.page().split("## On the temporal engine")
    page = outbox if engine is Engine.OUTBOX else temporal
    drawn = [line.strip() for line in page.splitlines() if line.startswith("    ")]
    arrows = [line for line in drawn if " : " in line and not line.startswith("[*]")]
    job_moves = {
        (source, target, fact)
        for fact, row in JOB_TABLES[engine].items()
        for source, targets in row.items()
        for target in targets
    }
    step_moves = {
        (source, target, fact) for fact, row in STEP_TABLES[engine].items() for source, target in row.items()
    }
    expected = [
        f"{source}>{target}>{fact}"
        for source, target, fact in [*job_moves, *step_moves]
        if str(source) != str(target)
    ]
    assert sorted(_unpack(arrows)) == sorted(expected)


def test_the_tables_name_every_state() -> None:
    outbox, temporal = lifecycle.page().split("## On the temporal engine")
    job_part, step_part = outbox.split("## The step")
    assert all(f"`{state}`" in job_part for state in JobState)
    assert all(f"`{state}`" in step_part for state in StepState)
    drawn = [line for line in temporal.splitlines() if line.startswith(("| ", "    "))]
    assert drawn and not [line for line in drawn if "DISPATCHING" in line]


def _unpack(arrows: list[str]) -> list[str]:
    """One entry for each fact of an arrow: source>target>fact."""
    entries = []
    for arrow in arrows:
        move, label = arrow.split(" : ")
        source, target = move.split(" --> ")
        entries += [f"{source}>{target}>{fact}" for fact in label.split("<br/>")]
    return entries
