"""A process that may open too few files says so and does not start: it could answer nobody."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from lucius.api.connection_limits import open_files_fault

UNLIMITED = resource.RLIM_INFINITY


@pytest.mark.parametrize("command", ["dev --services none", "api", "service run ocr --health-port 0"])
def test_a_server_needs_files_for_its_clients(tmp_path: Path, command: str) -> None:
    where = ["--data", str(tmp_path / "data")] + ([] if "--health-port" in command else ["--port", "0"])
    lucius = [sys.executable, "-m", "lucius", *command.split(), *where]
    started = ["sh", "-c", 'ulimit -n 159; exec "$@"', "sh", *lucius]
    done = subprocess.run(started, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert "159 files open at most, and serving needs 160" in done.stderr
    assert "`ulimit -n 1024`" in done.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("soft", "hard", "enough"),
    [(100, 159, False), (100, 160, True), (100, UNLIMITED, True), (UNLIMITED, UNLIMITED, True)],
)
def test_the_limit_counts_that_may_be_had(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, enough: bool
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    assert (open_files_fault() is None) is enough
