"""`tools/make-venv`: which interpreter the environment gets, and what is said when none will do."""

import stat
import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "make-venv"


def interpreter(path: Path, *, work_us: int = 1000, new_enough: bool = True, whole: bool = True) -> Path:
    """A stand-in that says how long the piece of work took, and makes a folder instead of an environment."""
    path.write_text(
        f"""#!/bin/sh
case "$*" in
    *timeit*) echo {work_us} ;;
    *version_info*) exit {0 if new_enough else 1} ;;
    *ensurepip*) exit {0 if whole else 1} ;;
    *--version*) echo "Python 3.9.1" ;;
    *"-m venv"*) mkdir -p "$3" && echo {path.name} > "$3/made-by" ;;
esac
"""
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def make(folder: Path, *pythons: Path | str) -> subprocess.CompletedProcess[str]:
    first, *others = pythons
    command = ["sh", TOOL, first, folder, *others]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)


def test_the_first_is_taken_as_long_as_the_other_is_not_clearly_faster(tmp_path: Path) -> None:
    made = make(
        tmp_path / "v",
        interpreter(tmp_path / "one", work_us=1000),
        interpreter(tmp_path / "two", work_us=950),
    )
    assert (made.returncode, (tmp_path / "v" / "made-by").read_text(), made.stderr) == (0, "one\n", "")


def test_a_clearly_faster_one_is_taken_and_named(tmp_path: Path) -> None:
    two = interpreter(tmp_path / "two", work_us=700)
    made = make(tmp_path / "v", interpreter(tmp_path / "one", work_us=1000), two)
    assert (made.returncode, (tmp_path / "v" / "made-by").read_text()) == (0, "two\n")
    assert f"Using {two}" in made.stderr


def test_a_faster_one_that_is_too_old_or_incomplete_or_absent_is_passed_over(tmp_path: Path) -> None:
    one = interpreter(tmp_path / "one", work_us=1000)
    for other in (
        interpreter(tmp_path / "old", work_us=10, new_enough=False),
        interpreter(tmp_path / "part", work_us=10, whole=False),
        tmp_path / "absent",
    ):
        made = make(tmp_path / "v", one, other)
        assert (made.returncode, (tmp_path / "v" / "made-by").read_text()) == (0, "one\n")


def test_the_other_helps_out_where_the_first_will_not_do(tmp_path: Path) -> None:
    other = interpreter(tmp_path / "two", work_us=5000)
    for first in (
        interpreter(tmp_path / "old", new_enough=False),
        interpreter(tmp_path / "part", whole=False),
    ):
        made = make(tmp_path / "v", first, other)
        assert (made.returncode, (tmp_path / "v" / "made-by").read_text()) == (0, "two\n")


def test_what_is_missing_is_said_plainly(tmp_path: Path) -> None:
    for python, says in (
        ("no-such-python", "no-such-python is not on PATH"),
        (interpreter(tmp_path / "old", new_enough=False), "Python 3.9.1 is too old"),
        (interpreter(tmp_path / "part", whole=False), "its venv or ensurepip module is missing"),
    ):
        made = make(tmp_path / "v", python)
        assert made.returncode == 1
        assert says in made.stderr
        assert not (tmp_path / "v").exists()


def test_a_real_interpreter_can_be_asked(tmp_path: Path) -> None:
    made = make(tmp_path / "v", interpreter(tmp_path / "slow", work_us=10**9), sys.executable)
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "v" / "bin" / "python").exists()
