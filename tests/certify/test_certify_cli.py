"""`lucius certify` as a command: what it prints, what it writes, and how it ends."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.certify.runs import LUCIUS

from lucius.cli.main import run_cli
from lucius_lab import forks

pytestmark = [pytest.mark.xdist_group("certify"), pytest.mark.timeout(900)]

SERVICE = Path(__file__).with_name("broken_service.py")
SECONDS_MAX = 120
QUICK = ("--lease-seconds", "1", "--step-type", "HELLO")


def start_of(fault: str, folder: Path) -> tuple[str, str]:
    return "--start", shlex.join([sys.executable, str(SERVICE), fault, str(folder)])


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """As a process: the command sets up the logging of its own."""
    return forks.run("certify", *QUICK, *arguments, seconds=SECONDS_MAX)


def picked(*rules: str) -> list[str]:
    return [word for rule in rules for word in ("--rule", rule)]


def test_a_sound_service_is_shown_as_a_table(tmp_path: Path) -> None:
    asked = picked("failure-final", "trace", "all-lanes")
    done = run(*start_of("none", tmp_path), *asked, "--strict")
    assert (done.returncode, done.stderr) == (0, "")
    printed = done.stdout
    assert re.search(r"^failure-final +PASSED", printed, re.MULTILINE)
    assert re.search(r"^all-lanes +DOES NOT APPLY", printed, re.MULTILINE)
    assert printed.splitlines()[-1] == "hello (HELLO) over http: 2 passed, 1 does not apply"


def test_a_broken_service_as_json_and_as_a_page(tmp_path: Path) -> None:
    page = tmp_path / "certificate.html"
    asked = [*picked("failure-retryable", "failure-final"), "--json", "--page", str(page)]
    done = run(*start_of("misclassified", tmp_path), *asked)
    assert done.returncode == 1
    certificate: dict[str, Any] = json.loads(done.stdout)
    assert (certificate["service"], certificate["carrier"], certificate["passed"]) == ("hello", "http", False)
    first, second = certificate["verdicts"]
    assert (first["rule"], first["judgement"], first["paragraph"]) == ("failure-retryable", "failed", "reply")
    assert first["evidence"][0] == "the sample `retryable` ended with FAILED_FINAL"
    assert second["judgement"] == "passed"
    text = page.read_text()
    assert "It does not hold: 1 passed, 1 failed." in text
    assert "the sample `retryable` ended with FAILED_FINAL" in text
    assert "http-equiv" not in text and "src=" not in text  # needs no other file


def test_a_service_that_somebody_else_starts(tmp_path: Path) -> None:
    asked = [*QUICK, "--json", *picked("failure-final", "drain"), "--data", str(tmp_path / "files")]
    certifying = subprocess.Popen(
        [*LUCIUS, "certify", *asked], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert certifying.stderr is not None
    report = certifying.stderr.readline()
    env = dict(re.findall(r"(LUCIUS_\w+)=(\S+)", report))
    # What a service may read, and where it leases: it has to be told both.
    assert env["LUCIUS_REF_FILE_ROOTS"] == str(tmp_path / "files") and set(env) > {"LUCIUS_REF_FILE_ROOTS"}
    service = subprocess.Popen([sys.executable, str(SERVICE), "none", str(tmp_path)], env=env)
    try:
        printed, _ = certifying.communicate(timeout=SECONDS_MAX)
    finally:
        service.kill()
        service.wait()
    judged = {it["rule"]: (it["judgement"], it["evidence"]) for it in json.loads(printed)["verdicts"]}
    assert judged["failure-final"][0] == "passed"
    assert judged["drain"] == ("not tried", ["needs a command that starts the service (--start)"])
    assert certifying.returncode == 0


def test_a_certificate_that_is_called_off_leaves_no_service_behind(tmp_path: Path) -> None:
    seen = tmp_path / "pid"
    script = f"echo $$ > {shlex.quote(str(seen))}; exec sleep 600"
    asked = [*QUICK, "--start", shlex.join(["bash", "-c", script])]
    certifying = subprocess.Popen([*LUCIUS, "certify", *asked], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + SECONDS_MAX
    while not (seen.exists() and seen.read_text().endswith("\n")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    pid = int(seen.read_text())
    try:
        certifying.terminate()
        assert certifying.wait(SECONDS_MAX) == 130
        assert not Path(f"/proc/{pid}").exists()
    finally:
        with suppress(OSError):  # it is gone, as it should be
            if Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\x00600\x00":
                os.kill(pid, signal.SIGKILL)


def test_strictly_what_was_not_tried_has_failed(tmp_path: Path) -> None:
    sample = tmp_path / "sample.json"
    sample.write_text('{"ok": {}}')
    asked = [*start_of("none", tmp_path), *picked("failure-final"), "--sample", str(sample)]
    lenient = run(*asked)
    assert lenient.returncode == 0
    assert "needs a sample `final` (--sample)" in lenient.stdout
    assert run(*asked, "--strict").returncode == 1


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--start", "true"], 4, "the service ended with 0"),
        (["--start", "no-such-program-here --at 1"], 2, "there is no program no-such-program-here,"),
        (["--start", __file__], 2, f"there is no program {__file__}, or it may not be run"),
        (["--start", " "], 2, "--start needs a command"),
        (["--start", "'open"], 2, "No closing quotation"),
        (["--start", "true", "--page", "/no/such/page.html"], 2, "nothing can be written there"),
        (["--rule", "none-such"], 2, "there are ack-in-time"),
        (["--http", "--bus", "nats"], 2, "exclude each other"),
        (["--bus", "memory"], 2, "this version offers nats"),
    ],
)
def test_what_cannot_be_done_is_said(arguments: list[str], code: int, said: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "sample.json: "),
        ('{"slow": {}}', "missing required field `ok`"),
        ('{"ok": {"paylod": {}}}', "unknown field `paylod`"),
        ('{"ok": {"input_file": "gone.pdf"}}', "there is no file"),
    ],
)
def test_samples_that_are_none(tmp_path: Path, text: str, said: str) -> None:
    sample = tmp_path / "sample.json"
    sample.write_text(text)
    done = run("--start", "true", "--sample", str(sample))
    assert done.returncode == 2
    assert said in done.stderr


def test_a_skeleton_overwrites_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["service", "new", "hello", "--step-type", "HELLO", "--folder", str(tmp_path / "hello")]
    assert run_cli(arguments) == 0
    assert capfd.readouterr().out == f"{tmp_path / 'hello'}\n"
    (tmp_path / "hello" / "service.py").write_text("mine")
    assert run_cli(arguments) == 1
    assert (tmp_path / "hello" / "service.py").read_text() == "mine"


def test_a_skeleton_takes_the_place_of_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hello").write_text("mine")
    assert run_cli(["service", "new", "hello", "--step-type", "HELLO"]) == 1
    assert capfd.readouterr().err == "error: Cannot write to hello: Not a directory.\n"
    assert Path("hello").read_text() == "mine"


@pytest.mark.parametrize(
    "arguments",
    [
        ["Hello", "--step-type", "HELLO"],
        ["hello", "--step-type", "he llo"],
        ["hello", "--step-type", "HELLO", "--lang", "perl"],
        ["hello", "--step-type", "HELLO", "--lang", "go", "--bus", "nats"],
        ["hello", "--step-type", "HELLO", "--bus", "memory"],
    ],
)
def test_names_that_no_service_has(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["service", "new", *arguments]) == 2
    assert capfd.readouterr().err


@pytest.mark.parametrize(
    ("name", "step_type", "report"),
    [
        ("a" * 64, "HELLO", "NAME takes at most 63 characters, not 64."),
        ("hello", "A" * 70, "--step-type takes at most 63 characters, not 70."),
        ("Hello", "HELLO", "NAME takes small letters"),
    ],
)
def test_a_name_is_refused_for_what_is_wrong_with_it(
    name: str, step_type: str, report: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["service", "new", name, "--step-type", step_type]) == 2
    assert report in " ".join(capsys.readouterr().err.split())
