"""A copy of a process that has loaded everything is a process like any other."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lucius_lab import forks

SECONDS_MAX = 60.0
Start = Callable[..., forks.Running]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    def start_one(*arguments: str, **env: str) -> forks.Running:
        with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
            return forks.start(arguments, env={**os.environ, **env}, folder=tmp_path, out=out, err=err)

    return start_one


def said(folder: Path, words: str) -> None:
    until = time.monotonic() + SECONDS_MAX
    while words not in (folder / "err").read_text():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_it_has_its_own_arguments_environment_folder_streams_and_end(start: Start, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("protocol_id: 7\n")
    assert start("protocols", "check", "bad.yaml").wait(SECONDS_MAX) == 1
    assert "bad.yaml" in (tmp_path / "out").read_text() + (tmp_path / "err").read_text()
    assert start("lane", "acme", "--json").wait(SECONDS_MAX) == 0
    assert '"acme"' in (tmp_path / "out").read_text()
    assert start("jobs", "list", LUCIUS_URL="http://127.0.0.1:9").wait(SECONDS_MAX) != 0
    assert "127.0.0.1:9" in (tmp_path / "err").read_text()


def test_it_is_killed_and_told_to_end_as_any_other(start: Start, tmp_path: Path) -> None:
    options = ("dev", "--port", "0", "--data", "data", "--services", "none", "--no-sample")
    killed = start(*options)
    said(tmp_path, "is up")
    with pytest.raises(subprocess.TimeoutExpired):
        killed.wait(0.05)
    assert killed.poll() is None
    killed.kill()
    assert killed.wait(SECONDS_MAX) == killed.poll() == -signal.SIGKILL
    told = start(*options)
    said(tmp_path, "is up")
    os.kill(told.pid, signal.SIGINT)
    assert told.wait(SECONDS_MAX) == 0


def test_what_is_read_before_the_first_line_needs_a_start_of_its_own(start: Start) -> None:
    process = start("version", PYTHONVERBOSE="", LD_BIND_NOW="1")
    assert isinstance(process, subprocess.Popen)
    assert process.wait(SECONDS_MAX) == 0


def test_copies_end_with_whoever_wanted_them(tmp_path: Path) -> None:
    options = ["dev", "--port", "0", "--data", "data", "--services", "none", "--no-sample"]
    program = (
        "import os, time\nfrom pathlib import Path\nfrom lucius_lab import forks\nerr = open('err', 'wb')\n"
        f"copy = forks.start({options!r}, env=os.environ, folder=Path.cwd(), out=None, err=err)\n"
        "print(copy.pid, flush=True)\ntime.sleep(600)\n"
    )
    line = [sys.executable, "-c", program]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        said(tmp_path, "is up")
        owner.kill()
    until = time.monotonic() + SECONDS_MAX
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < until
        time.sleep(0.02)
