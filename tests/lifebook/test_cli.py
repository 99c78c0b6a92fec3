"""`lucius lifebook …` as a person types it: everything on this machine, and the commands on it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.lifebook.servers import TOP

from lucius.cli.main import run_cli
from lucius.lifebook.job import FIELDS

pytestmark = pytest.mark.xdist_group("lifebook")
LUCIUS = [sys.executable, "-m", "lucius", "lifebook"]
SECONDS_MAX = 90


def _env(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "LIFEBOOK_"))}
    return {**kept, **more}


def test_one_command_brings_everything_and_a_sample_run_completes(tmp_path: Path) -> None:
    done = subprocess.run(
        [*LUCIUS, "dev", "--once", "--port", "0"],
        env=_env(LIFEBOOK_MINISTACK=str(TOP / ".venv-aws" / "bin" / "ministack")),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr
    for line in ("API        http://127.0.0.1:", "table lifebook-orchestrator-jobs", "███  completed"):
        assert line in done.stderr
    shown = [line.split()[0] for line in done.stdout.splitlines()]
    assert shown[:-1] == [field.name for field in FIELDS if field.of_contract]
    assert re.search(r"^credits_spent +N +1$", done.stdout, re.MULTILINE)
    assert re.search(r"^status +S +completed$", done.stdout, re.MULTILINE)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    process = subprocess.Popen(
        [*LUCIUS, "dev", "--no-sample", "--port", "0", "--workflows", "tests.lifebook.flows"],
        env=_env(PYTHONPATH=str(TOP), LIFEBOOK_BACKOFF="1s"),
        cwd=TOP,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if line.startswith("API"):
                yield line.split()[1]
                break
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS_MAX)
        assert process.returncode == 0
    finally:
        process.kill()


@pytest.fixture
def lifebook(url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> "Line":
    monkeypatch.setenv("LIFEBOOK_URL", url)
    return Line(capsys)


class Line:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.err = ""

    def __call__(self, *arguments: str, code: int = 0) -> str:
        self._capsys.readouterr()
        assert run_cli(["lifebook", *arguments]) == code, self._capsys.readouterr().err
        told = self._capsys.readouterr()
        self.err = told.err
        return told.out


def test_a_run_is_asked_for_watched_shown_and_listed(lifebook: Line) -> None:
    told = lifebook("run", "sample", "--input", '{"text": "one two"}', "--key", "k1")
    job_id, status = told.split()
    assert status == "completed"
    assert "completed: step 3 of 3" in lifebook.err
    again = json.loads(lifebook("run", "sample", "--input", '{"text": "one two"}', "--key", "k1", "--json"))
    assert (again["job_id"], again["results"][2]) == (job_id, {"summary": "2 words"})
    assert f"job_id               {job_id}" in lifebook("show", job_id)
    assert json.loads(lifebook("show", job_id, "--json"))["status"] == "completed"
    assert job_id in lifebook("list")
    assert json.loads(lifebook("list", "--json", "--limit", "1"))["items"][0]["job_id"] == job_id


def test_a_dead_run_is_seen_and_redriven(lifebook: Line) -> None:
    asked = ("run", "told", "--input", '{"fails": 2}', "--max-attempts", "1")
    told = lifebook(*asked, code=3)
    job_id, status = told.split()
    assert status == "dead"
    assert "TOLD: as it was told" in lifebook.err
    assert job_id in lifebook("list", "--workspace", "demo")
    assert lifebook("redrive", job_id).split() == [job_id, "queued"]
    lifebook("dlq")
    done = lifebook("run", "sample").split()[0]
    lifebook("redrive", done, code=1)
    assert "JOB_NOT_DEAD" in lifebook.err


def test_all_dead_runs_are_brought_back_at_once(lifebook: Line) -> None:
    asked = ("run", "told", "--input", '{"fails": 2}', "--max-attempts", "1")
    job_id = lifebook(*asked, code=3).split()[0]
    for _ in range(SECONDS_MAX * 4):
        if job_id in lifebook("dlq"):
            break
        time.sleep(0.25)
    redriven: list[str] = []
    for _ in range(20):  # a sweeper may be looking at it
        redriven = lifebook("dlq", "--redrive").split()
        if job_id in redriven:
            break
    # Once in a call, although it dies again before the call has looked at the others.
    assert redriven.count(job_id) == 1
    assert "runs redriven, other messages: " in lifebook.err
    assert set(json.loads(lifebook("dlq", "--redrive", "--json"))) == {
        *("redriven", "refused", "returned", "task"),
    }


def test_a_run_is_canceled(lifebook: Line) -> None:
    told = json.loads(lifebook("run", "told", "--input", '{"sleep": 3}', "--no-wait", "--json"))
    assert json.loads(lifebook("cancel", told["job_id"], "--json"))["job_id"] == told["job_id"]


def test_what_goes_wrong_is_told(lifebook: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    lifebook("run", "nothing", code=1)
    assert "UNKNOWN_WORKFLOW" in lifebook.err
    lifebook("show", "nothing", code=1)
    lifebook("run", "sample", "--input", "{", code=2)
    lifebook("worker", code=2)
    assert "LIFEBOOK_WORKFLOWS" in lifebook.err
    lifebook("worker", "--workflows", "no.such.module", code=2)
    lifebook("api", "--host", "0.0.0.0", code=2)
    assert "LIFEBOOK_API_KEYS" in lifebook.err
    monkeypatch.setenv("LIFEBOOK_LEASE", "no")
    lifebook("api", code=2)
    monkeypatch.setenv("LIFEBOOK_URL", "http://127.0.0.1:9")
    lifebook("list", code=4)


def test_a_key_is_printed_once(lifebook: Line) -> None:
    key = lifebook("key", "ci", "--workspace", "*", "--role", "read").strip()
    entry = json.loads(lifebook.err)
    assert key.startswith("lbk_")
    assert key not in lifebook.err
    assert (entry["workspaces"], entry["roles"]) == (["*"], ["read"])
    lifebook("key", "ci", "--workspace", "*", "--role", "root", code=2)
