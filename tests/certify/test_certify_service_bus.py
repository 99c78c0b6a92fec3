"""`lucius certify --bus servicebus`, with the emulator that it brings along: a skeleton made for that bus
keeps the contract, and a broken one does not."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.certify.runs import LUCIUS
from tests.certify.test_certify_services import QUIET, on_bus, readme_command, words

pytestmark = [pytest.mark.xdist_group("certify-servicebus"), pytest.mark.timeout(900)]

LANE_LEFT_OUT = Path(__file__).with_name("lane_left_out.py")
BUS = "servicebus"
SECONDS_MAX = 600
NO_ANSWER_OVER_A_BUS = {"result-repeated", "crash-unanswered"}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, dict[str, set[str]]]]:
    """Of each service the exit code and the rules by judgement. All are certified at once."""
    sound = on_bus(tmp_path_factory.mktemp("sound"), BUS)
    broken = on_bus(tmp_path_factory.mktemp("broken"), BUS)
    text = (broken / "service.py").read_text()
    assert "raise Retryable(" in text
    (broken / "service.py").write_text(text.replace("raise Retryable(", "raise Final("))
    running = {
        "sound": _certifying(sound, run_it(sound)),
        "misclassified": _certifying(broken, run_it(broken), "failure-retryable", "failure-final"),
        "lane-left-out": _certifying(sound, [sys.executable, str(LANE_LEFT_OUT), str(sound)], "all-lanes"),
    }
    try:
        return {name: _judged(each) for name, each in running.items()}
    finally:
        for each in running.values():
            each.kill()
            each.wait()


def run_it(folder: Path) -> list[str]:
    return [*words(readme_command(folder, "run it")), *QUIET, "--data", str(folder / "memory")]


def _certifying(folder: Path, start: list[str], *rules: str) -> "subprocess.Popen[str]":
    # Longer than a service needs: the machine has other things to do.
    patience = ["--ack-seconds", "20", "--lease-seconds", "4", "--work-seconds", "90"]
    wanted = [*patience, *(word for rule in rules for word in ("--rule", rule))]
    asked = ["--service", "hello", "--step-type", "HELLO", "--sample", "certify.json", "--bus", BUS]
    return subprocess.Popen(
        [*LUCIUS, "certify", *asked, *wanted, "--json", "--start", shlex.join(start)],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("LUCIUS_")},
        stdout=subprocess.PIPE,
        text=True,
    )


def _judged(certifying: "subprocess.Popen[str]") -> tuple[int, dict[str, set[str]]]:
    printed, _ = certifying.communicate(timeout=SECONDS_MAX)
    certificate: dict[str, Any] = json.loads(printed)
    judged: dict[str, set[str]] = {}
    for verdict in certificate["verdicts"]:
        judged.setdefault(verdict["judgement"], set()).add(verdict["rule"])
    assert certificate["passed"] is ("failed" not in judged)
    return certifying.returncode, judged


def test_the_skeleton_keeps_every_rule(found: dict[str, tuple[int, dict[str, set[str]]]]) -> None:
    code, judged = found["sound"]
    assert set(judged) == {"passed", "does not apply"}, judged
    assert judged["does not apply"] == NO_ANSWER_OVER_A_BUS
    assert code == 0


def test_a_failure_of_the_wrong_kind_fails(found: dict[str, tuple[int, dict[str, set[str]]]]) -> None:
    assert found["misclassified"] == (1, {"failed": {"failure-retryable"}, "passed": {"failure-final"}})


def test_a_lane_that_is_left_out_fails(found: dict[str, tuple[int, dict[str, set[str]]]]) -> None:
    assert found["lane-left-out"] == (1, {"failed": {"all-lanes"}})


def test_a_bus_without_an_address_is_for_a_service_that_is_started(tmp_path: Path) -> None:
    asked = [*LUCIUS, "certify", "--step-type", "HELLO", "--bus", BUS]
    env = {name: value for name, value in os.environ.items() if not name.startswith("LUCIUS_")}
    done = subprocess.run(asked, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=SECONDS_MAX)
    assert done.returncode == 4
    assert "--bus servicebus needs LUCIUS_SERVICEBUS_CONNECTION or" in done.stderr
