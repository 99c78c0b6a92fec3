"""`lucius lab`: runs, repeats, shrinks, and refuses what it cannot do; as a user calls it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from lucius.cli.main import app
from lucius.core.refusal import Refused
from lucius_lab import planted_bugs as bugs
from lucius_lab.questions import LabQuestion, parse_rates, parse_work, shape_of
from lucius_lab.sim.faults import FaultKind
from lucius_lab.sim.run import SimShape, simulate
from lucius_lab.sim.shrink import shrink

PROTOCOL = """\
protocol_id: scan_v1
request_types: [SCAN, SCAN_TOO]
steps:
  - step_type: LOOK
    service: looker
    payload_schema: {type: object, required: [page]}
    max_attempts: 5
    ack_timeout: 3s
    lease: 20s
    backoff: {publish: [1s], ack: [1s], result: [1s]}
"""


def lab(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["lab", *map(str, arguments)])


def reported(*arguments: object) -> dict[str, Any]:
    result = lab("run", "--json", "--processes", 1, *arguments)
    assert result.exit_code in (0, 3), result.output  # 3: a protocol did not hold
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_run_reports_what_it_injected_and_what_came_of_it() -> None:
    found = reported("--seeds", 30)
    assert found["schedules"] == 30
    assert found["violations"] == 0
    assert found["jobs"] >= 30 * 8
    assert sum(found["ended"].values()) == found["jobs"]
    assert found["latency_seconds"]["worst"] >= found["latency_seconds"]["p50"] > 0
    assert sum(found["deployments"].values()) == 30
    assert sum(found["faults"].values()) > 500


def test_two_processes_find_what_one_finds() -> None:
    alone, together = reported("--seeds", 30), reported("--seeds", 30, "--processes", 2)
    for name in ("jobs", "ended", "faults", "commits", "attempts", "deployments", "latency_seconds"):
        assert together[name] == alone[name]


def test_a_replay_is_the_same_each_time() -> None:
    first, second = lab("replay", 11), lab("replay", 11)
    assert first.exit_code == second.exit_code == 0
    assert first.stdout == second.stdout
    assert re.search(r"trace hash +[0-9a-f]{24}\n", first.stdout)
    assert "✗ fault" in first.stdout and " lucius commit " in first.stdout
    as_json = json.loads(lab("replay", 11, "--json").stdout)
    assert as_json["trace_hash"] in first.stdout
    assert as_json["trace_hash"] == simulate(11).trace_hash


def test_a_protocol_that_does_not_hold_is_told_why_and_what_would_have_held(tmp_path: Path) -> None:
    (tmp_path / "scan.yaml").write_text(PROTOCOL.replace("max_attempts: 5", "max_attempts: 1"))
    options = ("--seeds", 20, "--jobs", 4, "--protocols", tmp_path, "--faults", "loss=10%,duplicate=20%")
    result = lab("run", "--json", "--processes", 1, *options, "--wanted", "99%")
    assert result.exit_code == 3, result.output
    (verdict,) = json.loads(result.stdout)["protocols"]
    assert (verdict["protocol_id"], verdict["held"]) == ("scan_v1", False)
    assert 0 < verdict["failed"] < verdict["jobs"] == 80
    assert sum(each["jobs"] for each in verdict["failures"]) == verdict["failed"]
    assert {(each["step"], each["service"]) for each in verdict["failures"]} == {("LOOK", "looker")}
    blamed = {each["fault"]: each["failed"] for each in verdict["faults"]}
    assert blamed["lost messages"] > 0 == blamed["late, repeated and reordered messages"]
    (change,) = (each for each in verdict["would_have_held"] if each["setting"] == "max_attempts")
    assert (change["step"], change["now"]) == ("LOOK", "1")

    (tmp_path / "scan.yaml").write_text(
        PROTOCOL.replace("max_attempts: 5", f"max_attempts: {change['instead']}")
    )
    result = lab("run", "--processes", 1, *options, "--wanted", "99%")
    assert result.exit_code == 0, result.output
    assert "scan_v1 held: " in result.stdout


def test_what_a_service_fails_for_good_is_no_matter_of_settings(tmp_path: Path) -> None:
    (tmp_path / "scan.yaml").write_text(PROTOCOL)
    found = reported("--seeds", 10, "--protocols", tmp_path, "--faults", "worker-final=30%")
    (verdict,) = found["protocols"]
    assert found["ended"]["FAILED_FINAL"] > 0
    assert (verdict["held"], verdict["failed"], verdict["succeeded"]) == (True, 0, 1.0)


@pytest.mark.parametrize("wanted", ["0", "101%", "many", "-1"])
def test_a_share_that_is_none_is_refused(wanted: str) -> None:
    result = lab("run", "--seeds", 1, "--wanted", wanted)
    assert result.exit_code == 2
    assert "99.9%" in result.output


def test_users_try_their_own_protocols(tmp_path: Path) -> None:
    (tmp_path / "scan.yaml").write_text(PROTOCOL)
    found = reported(
        "--seeds", 8, "--jobs", 3, "--protocols", tmp_path, "--faults", "loss=20%", "--work", "1s-4s"
    )
    assert found["violations"] == 0
    assert set(found["faults"]) <= {"bus drop", "call lost", "answer lost"}
    assert found["jobs"] == 24
    assert found["completion"] > 0.5
    assert found["attempts"] > 24  # some had to be tried again
    quiet = reported("--seeds", 4, "--jobs", 3, "--protocols", tmp_path, "--faults", "none")
    assert quiet["ended"] == {"SUCCEEDED": 12}
    assert quiet["attempts"] == 12


def test_an_ack_that_leads_beyond_max_duration_breaks_no_promise(tmp_path: Path) -> None:
    policy = "    max_attempts: 3\n    ack_timeout: 1s\n    lease: 2s\n    max_duration: 2s\n"
    backoff = "    backoff: {publish: [0], ack: [0], result: [0]}\n"
    head = "protocol_id: w_v1\nrequest_types: [W]\nsteps:\n  - step_type: S\n    service: s\n"
    (tmp_path / "w.yaml").write_text(head + policy + backoff)
    found = reported("--seeds", 20, "--protocols", tmp_path, "--request-type", "W")
    assert found["violations"] == 0


@pytest.mark.parametrize("work", ["3m", "15m", "2h"])
def test_work_that_takes_long_breaks_no_promise(work: str) -> None:
    """The lab's own protocol gives it the time that it takes."""
    found = reported("--seeds", 2, "--jobs", 3, "--faults", "none", "--work", work)
    assert (found["violations"], found["completion"]) == (0, 1.0)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--faults", "rain=20%"], "neither a preset"),
        (["--faults", "loss=200%"], "at most 90%"),
        (["--faults", "loss"], "neither a preset"),
        (["--work", "30s-2s"], "work takes a span"),
        (["--work", "25h"], "1d at most"),
        (["--request-type", "NOBODY"], "no protocol has the request type"),
        (["--topology", "moon"], "choose one of embedded"),
    ],
)
def test_a_bad_question_is_a_usage_error(arguments: list[str], told: str) -> None:
    result = lab("run", "--seeds", 1, *arguments)
    assert result.exit_code == 2
    assert told in result.output


def test_a_folder_with_a_broken_document_is_refused(tmp_path: Path) -> None:
    (tmp_path / "scan.yaml").write_text("protocol_id: x\n")
    result = lab("run", "--seeds", 1, "--protocols", tmp_path)
    assert result.exit_code == 2
    assert "scan.yaml" in result.output


def test_a_broken_promise_is_shrunk_to_few_faults_and_fails_the_run() -> None:
    with bugs.planted(bugs.Bug.SLOT_TWICE):
        seed = next(seed for seed in range(50) if not simulate(seed).passed)
        before = simulate(seed)
        shrunk = shrink(seed, SimShape())
        assert shrunk is not None
        assert len(shrunk.only) <= max(3, len(before.faults) // 4)
        assert shrunk.outcome.violations[0].name == before.violations[0].name
        result = lab("run", "--seeds", 1, "--first", seed, "--processes", 1)
        assert result.exit_code == 1
        assert f"lucius lab replay {seed}" in result.stdout
        story = lab("replay", seed, "--shrink")
        assert story.exit_code == 1
        assert "✗✗" in story.stdout
    assert shrink(seed, SimShape()) is None


def test_questions_are_read_as_they_are_written() -> None:
    assert parse_rates("loss=20%, crash=0.01") == {
        FaultKind.BUS_DROP: 0.2,
        FaultKind.CALL_LOST: 0.2,
        FaultKind.ANSWER_LOST: 0.2,
        FaultKind.CRASH_BEFORE: 0.01,
        FaultKind.CRASH_AFTER: 0.01,
    }
    assert parse_rates("clock-skew=5%") == {FaultKind.CLOCK_SKEW: 0.05}
    assert isinstance(parse_rates(""), Refused)
    work = parse_work("500ms-2m")
    assert not isinstance(work, Refused)
    assert (work.work_seconds_min, work.work_seconds_max) == (0.5, 120.0)
    shape = shape_of(LabQuestion(faults="heavy", jobs=3))
    assert not isinstance(shape, Refused)
    assert shape.jobs == 3
    assert FaultKind.CRASH_AFTER in shape.kinds()
