"""The frame of the long duties, tried on commands that are short."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from lucius_lab.soak import (
    COUNT,
    DUTIES,
    FAILURES_IN_A_ROW_MAX,
    INTERRUPTED,
    LOCK_FILE,
    PYTHON,
    SEED,
    STATE_FILE,
    Duty,
    DutyRow,
    main,
    rows,
    soak,
    table,
)

WAIT_SECONDS_MAX = 60
NOTE = "import sys; open(sys.argv[1], 'a').write(f'{sys.argv[2]} {sys.argv[3]}\\n')"


def _duty(name: str, code: str, *arguments: str, units: int = 10, chunk_units: int = 4) -> Duty:
    return Duty(
        name=name,
        unit="units",
        units=units,
        chunk_units=chunk_units,
        command=(PYTHON, "-c", code, *arguments),
    )


def _noting(name: str, notes: Path, **size: int) -> Duty:
    """A duty that writes down what it was asked for: so many units, from this seed."""
    return _duty(name, NOTE, str(notes), COUNT, SEED, **size)


def _failing_at(seed: str, notes: Path) -> Duty:
    return _duty("picky", f"{NOTE}; sys.exit(7 if sys.argv[3] in '{seed}' else 0)", str(notes), COUNT, SEED)


def _noted(notes: Path) -> list[tuple[int, int]]:
    lines = notes.read_text().splitlines()
    return [(int(count), int(seed)) for count, seed in (line.split() for line in lines)]


def _silent(text: str) -> None:
    assert text


def test_a_duty_is_done_in_chunks_and_in_order(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    found = soak([_noting("a", notes), _noting("b", notes, units=3, chunk_units=3)], tmp_path, _silent)
    assert _noted(notes) == [(4, 0), (4, 4), (2, 8), (3, 0)]
    assert [(row.duty, row.done, row.over, row.failures) for row in found] == [
        ("a", 10, True, ()),
        ("b", 3, True, ()),
    ]
    assert not list(tmp_path.glob("*.log")), "what passed leaves no log"


def test_when_all_is_over_a_new_round_begins_with_new_seeds(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    duty = _noting("a", notes, units=5, chunk_units=5)
    for _ in range(3):
        soak([duty], tmp_path, _silent)
    assert _noted(notes) == [(5, 0), (5, 5), (5, 10)]
    assert rows([duty], tmp_path)[0].round == 2


def test_what_is_over_waits_for_the_others(tmp_path: Path) -> None:
    notes, gate = tmp_path / "notes", tmp_path / "gate"
    done = _noting("a", notes, units=5, chunk_units=5)
    locked = _duty("b", "import os, sys; sys.exit(not os.path.exists(sys.argv[1]))", str(gate))
    soak([done, locked], tmp_path, _silent)
    gate.touch()
    found = soak([done, locked], tmp_path, _silent)
    assert _noted(notes) == [(5, 0)], "a round is over when all of it is"
    assert [row.over for row in found] == [True, True]


def test_a_chunk_that_fails_is_told_and_run_again_by_the_next_run(tmp_path: Path) -> None:
    notes, said = tmp_path / "notes", list[str]()
    row = soak([_failing_at("4", notes)], tmp_path, said.append)[0]
    assert _noted(notes) == [(4, 0), (4, 4), (2, 8)], "one failure does not stop the rest"
    assert (row.done, row.over) == (6, False)
    (failure,) = row.failures
    assert (failure.start, failure.exit_code) == (4, 7)
    assert failure.command.startswith("python -c") and failure.command.endswith("4 4")
    assert Path(failure.log).exists()
    assert any("ended with 7" in text for text in said)
    healed = soak([_failing_at("none", notes)], tmp_path, _silent)[0]
    assert _noted(notes)[3:] == [(4, 4)], "only what failed is left"
    assert (healed.done, healed.over, healed.failures) == (10, True, ())
    assert not list(tmp_path.glob("*.log"))


def test_the_log_of_a_failure_is_shown(tmp_path: Path) -> None:
    said = list[str]()
    code = "import sys; [print('line', n) for n in range(50)]; sys.stdout.flush(); sys.exit('a reason')"
    soak([_duty("loud", code, units=1)], tmp_path, said.append)
    assert said[-1].endswith("line 49\n    a reason") and "line 9\n" not in said[-1]


def test_a_duty_that_only_fails_is_left_for_later(tmp_path: Path) -> None:
    broken = _duty("broken", "raise SystemExit(1)", units=100, chunk_units=1)
    after = _noting("after", tmp_path / "notes", units=1)
    found = soak([broken, after], tmp_path, _silent)
    assert (found[0].done, len(found[0].failures)) == (0, FAILURES_IN_A_ROW_MAX)
    assert found[1].over


def test_a_chunk_that_takes_too_long_is_ended_with_all_it_started(tmp_path: Path) -> None:
    said, trace = list[str](), tmp_path / "trace"
    child = "import subprocess, sys, time; p = subprocess.Popen(['sleep', '600']); "
    stuck = _duty(
        "stuck", f"{child} open(sys.argv[1], 'w').write(str(p.pid)); time.sleep(600)", str(trace), units=1
    )
    row = soak([msgspec.structs.replace(stuck, chunk_seconds_max=2)], tmp_path, said.append)[0]
    assert row.failures[0].exit_code is None
    assert any("ran out of time" in text for text in said)
    pid, until = int(trace.read_text()), time.monotonic() + WAIT_SECONDS_MAX
    while _alive(pid) and time.monotonic() < until:
        time.sleep(0.02)  # killed, and not yet gone
    assert not _alive(pid)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_the_environment_reaches_the_command(tmp_path: Path) -> None:
    code = "import os, sys; sys.exit(os.environ['LUCIUS_SOAK'] != '1' or 'PATH' not in os.environ)"
    duty = msgspec.structs.replace(_duty("env", code, units=1), environment={"LUCIUS_SOAK": "1"})
    assert soak([duty], tmp_path, _silent)[0].over


def _command(folder: Path, duties: list[Duty], *arguments: str) -> list[str]:
    listed = msgspec.json.encode(duties).decode()
    code = (
        "import msgspec, sys; from lucius_lab.soak import Duty, main; "
        "sys.exit(main(sys.argv[2:], msgspec.json.decode(sys.argv[1], type=list[Duty])))"
    )
    return [sys.executable, "-c", code, listed, "--folder", str(folder), *arguments]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_loses_one_chunk_and_the_next_run_goes_on(tmp_path: Path, how: signal.Signals) -> None:
    notes, began = tmp_path / "notes", tmp_path / "began"
    os.mkfifo(began)
    # The second chunk says that it began, and then never ends by itself.
    hang = "seed = int(sys.argv[3]); seed == 4 and (open(sys.argv[4], 'w').close(), time.sleep(600))"
    slow = _duty("slow", f"import time, sys; {hang}; {NOTE}", str(notes), COUNT, SEED, str(began))
    process = subprocess.Popen(_command(tmp_path, [slow], "--json"), stdout=subprocess.PIPE)
    with process:
        _when_opened(began, lambda: process.send_signal(how))
        output, _ = process.communicate(timeout=WAIT_SECONDS_MAX)
    assert process.returncode == INTERRUPTED
    (row,) = msgspec.json.decode(output, type=list[DutyRow])
    assert (row.done, row.over, row.failures) == (4, False, ())
    found = soak([_noting("slow", notes)], tmp_path, _silent)
    assert _noted(notes) == [(4, 0), (4, 4), (2, 8)]
    assert found[0].over


def _when_opened(pipe: Path, then: Callable[[], None]) -> None:
    reader = threading.Thread(target=lambda: pipe.open().close(), daemon=True)
    reader.start()
    reader.join(WAIT_SECONDS_MAX)
    assert not reader.is_alive(), "the command never began"
    then()


def test_only_the_named_duties_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notes = tmp_path / "notes"
    duties = [_noting("a", notes, units=1), _noting("b", notes, units=2), _noting("c", notes, units=3)]
    assert main(["--folder", str(tmp_path), "--only", "c", "--only", "a"], duties) == 0
    assert _noted(notes) == [(1, 0), (3, 0)]
    printed = capsys.readouterr()
    assert [line.split()[0] for line in printed.out.splitlines()] == ["duty", "a", "c"]
    assert "a: 1 of 1 units (100.0%)" in printed.err


def test_an_unknown_duty_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--folder", str(tmp_path), "--only", "nothing"], [_duty("a", "pass")])
    assert ended.value.code == 2 and "nothing" in capsys.readouterr().err


def test_a_failure_is_the_exit_code_and_in_both_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    duties = [_failing_at("4", tmp_path / "notes")]
    assert main(["--folder", str(tmp_path), "--json"], duties) == 1
    (row,) = msgspec.json.decode(capsys.readouterr().out, type=list[DutyRow])
    shown = table([row])
    assert "1 failed" in shown and row.failures[0].command in shown
    unfinished = msgspec.structs.replace(row, failures=())
    assert "to be continued" in table([unfinished])


def test_a_fresh_start_forgets(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    duty = _noting("a", notes, units=1)
    assert main(["--folder", str(tmp_path)], [duty]) == 0
    assert main(["--folder", str(tmp_path), "--fresh"], [duty]) == 0
    assert _noted(notes) == [(1, 0), (1, 0)]


def test_two_soaks_in_one_folder_are_one_too_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (tmp_path / LOCK_FILE).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(["--folder", str(tmp_path)], [_duty("a", "pass")]) == 2
    assert "another soak" in capsys.readouterr().err
    assert not (tmp_path / STATE_FILE).exists()


def test_the_real_duties_can_be_asked_for() -> None:
    assert [duty.name for duty in DUTIES] == [
        "simulation",
        "forgetting",
        "azure",
        "postgres",
        "fuzz",
        "chaos",
        "equivalence",
        "journeys",
        "model",
        "mutation",
    ]
    sizes = {duty.name: duty.units for duty in DUTIES}
    assert sizes["equivalence"] >= 200
    assert sizes["simulation"] >= 500_000 and sizes["fuzz"] >= 1_000_000 and sizes["chaos"] >= 1_000
    for duty in DUTIES:
        assert 0 < duty.chunk_units <= duty.units
        assert duty.command[0] == PYTHON
        assert duty.units == duty.chunk_units or {COUNT, SEED} < set(duty.command)
