"""`lucius plan`, `lucius jobs explain` and `lucius jobs adopt` against a played API."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.played_api import Done, PlayedApi

FULL = {"in_flight": 3, "max": 1_000}
PLAN: dict[str, Any] = {
    "accepted": True,
    "problems": [],
    "duplicate_of": None,
    "protocol_id": "ocr_v1",
    "steps": [{"stepId": "step_01", "step_type": "OCR", "service": "ocr", "payload": {"language": "en"}}],
    "lane": 15,
    "topic": "global-bus-p15",
    "mode": "DEFAULT",
    "decision_source": "GLOBAL_CONFIG",
    "decision_reason": "GLOBAL_DEFAULT",
    "limits": {"tenant": FULL, "total": FULL, "burst": FULL, "taken_now": True, "retry_after_seconds": None},
}
EXPLANATION: dict[str, Any] = {
    "jobId": "job_1",
    "state": "FAILED_FINAL",
    "summary": "finally failed: ACK_TIMEOUT (step_01, at 12:04:07); it can be run again",
    "waiting_for": None,
    "since": "2026-01-02T12:04:07.000Z",
    "next": None,
    "stepId": "step_01",
    "attempt": {"number": 3, "of": 3},
    "service": {"name": "ocr", "last_asked_at": None},
    "late_answers": [
        {"seq": 17, "type": "REPLY_LATE", "at": "2026-01-02T12:05:00.000Z", "stepId": "step_01", "data": {}}
    ],
    "limits": {"tenant": FULL},
    "hints": ["its result can be adopted"],
}
COMMAND = ("--tenant", "acme", "--type", "OCR", "--input", "s3://in/1", "--output", "s3://out/1")


def test_plan_shows_what_would_happen(played_api: "PlayedApi", command_line: "Callable[..., Done]") -> None:
    played_api.on("POST", "/v1/orchestrate:plan", played_api.said(200, PLAN))
    done = command_line("plan", *COMMAND, "--key", "k-1")
    assert (done.code, done.err) == (0, "")
    assert "accepted   yes" in done.out
    assert "mode       DEFAULT (GLOBAL_CONFIG, GLOBAL_DEFAULT)" in done.out
    assert "lane       15 (global-bus-p15)" in done.out
    assert "in flight  tenant 3 of 1000, total 3 of 1000, burst 3 of 1000" in done.out
    assert done.out.splitlines()[-1].split() == ["step_01", "OCR", "ocr", '{"language":"en"}']
    assert [asked.path for asked in played_api.asked] == ["/v1/orchestrate:plan"]


def test_a_plan_takes_what_a_run_takes(
    played_api: "PlayedApi",
    command_line: "Callable[..., Done]",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = command_line("plan", "--type", "OCR")
    assert done.code == 2
    assert "a TYPE and a DOCUMENT, or also --tenant, --input, --output." in done.err
    monkeypatch.chdir(tmp_path)
    (tmp_path / "letter.pdf").write_bytes(b"%PDF-1.4")
    (tmp_path / ".lucius").mkdir()
    played_api.on("POST", "/v1/orchestrate:plan", played_api.said(200, PLAN))
    assert command_line("plan", "OCR", "letter.pdf").code == 0
    planned = json.loads(played_api.asked[-1].body)
    assert list((tmp_path / ".lucius").iterdir()) == [], "a plan writes nothing"
    answer = played_api.said(202, {"jobId": "job_1", "state": "QUEUED", "duplicate": False})
    played_api.on("POST", "/v1/orchestrate", answer)
    assert command_line("submit", "OCR", "letter.pdf").code == 0
    assert json.loads(played_api.asked[-1].body) == planned


def test_a_plan_that_is_refused_says_why_and_fails(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    told = PLAN | {
        "accepted": False,
        "protocol_id": None,
        "steps": [],
        "lane": None,
        "limits": None,
        "problems": [
            {"code": "UNKNOWN_REQUEST_TYPE", "message": "no protocol", "pointer": "/request_type"},
            {"code": "TENANT_LIMIT", "message": "the tenant is\nfull"},
        ],
    }
    played_api.on("POST", "/v1/orchestrate:plan", played_api.said(200, told), played_api.said(200, told))
    done = command_line("plan", *COMMAND)
    assert done.code == 1
    assert "accepted  no" in done.out
    assert done.err.splitlines() == [
        "UNKNOWN_REQUEST_TYPE: /request_type: no protocol",
        "TENANT_LIMIT: the tenant is\\nfull",
    ]
    as_json = command_line("plan", *COMMAND, "--json")
    assert (as_json.code, json.loads(as_json.out)) == (1, told)


def test_explain_says_why_and_what_to_do(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    answer = played_api.said(200, EXPLANATION)
    played_api.on("GET", "/v1/jobs/job_1:explain", answer, answer)
    done = command_line("jobs", "explain", "job_1")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == EXPLANATION["summary"]
    assert "attempt  3 of 3" in lines
    assert "service  ocr" in lines
    assert any(line.startswith("late answer  17  ") and "REPLY_LATE" in line for line in lines)
    assert lines[-1] == "hint: its result can be adopted"
    as_json = command_line("jobs", "explain", "job_1", "--json")
    assert json.loads(as_json.out) == EXPLANATION


def test_explain_tells_when_the_next_thing_comes(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    coming = {"what": "attempt 2 of 3 begins if none comes", "at": "2999-01-01T00:00:00.000Z"}
    asked = {"name": "ocr", "last_asked_at": "2026-01-02T12:04:07.000Z"}
    told = EXPLANATION | {"next": coming, "waiting_for": "ACK", "service": asked}
    played_api.on("GET", "/v1/jobs/job_1:explain", played_api.said(200, told))
    out = command_line("jobs", "explain", "job_1").out
    assert "next       attempt 2 of 3 begins if none comes, in " in out
    assert "waits for  ACK\n" in out
    assert "service    ocr, last asked " in out


def test_explain_turns_the_hint_to_adopt_into_a_command(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    reply = {"type": "RESULT", "status": "SUCCEEDED", "output_ref": {"uri": "s3://out/1"}}
    late = EXPLANATION["late_answers"][0] | {"data": {"reply": reply}}
    hint = "attempt 1 at step_01 succeeded too late (event 17): its result can be adopted"
    # An id as no server makes it must neither be read as a template nor steer the terminal.
    told = EXPLANATION | {"jobId": "job_\\1\x1b", "late_answers": [late], "hints": [hint]}
    played_api.on("GET", "/v1/jobs/job_1:explain", played_api.said(200, told))
    *_, answer, last = command_line("jobs", "explain", "job_1").out.splitlines()
    assert answer.endswith("REPLY_LATE  step_01  RESULT  SUCCEEDED  s3://out/1")
    assert last.endswith("can be adopted with `lucius jobs adopt job_\\1\\x1b --step step_01 --seq 17`")


@pytest.mark.parametrize(
    ("arguments", "pointer", "next_step"),
    [
        (("rerun", "job_1", "--from-step", "step_09"), "/from_step", "lucius jobs show"),
        (("adopt", "job_1", "--step", "step_01", "--seq", "9"), "/seq", "lucius jobs explain"),
        (("adopt", "job_1", "--step", "step_09", "--seq", "9"), "/stepId", "lucius jobs explain"),
    ],
)
def test_a_refused_rerun_points_to_what_helps_and_not_to_envelopes(
    arguments: tuple[str, ...],
    pointer: str,
    next_step: str,
    played_api: "PlayedApi",
    command_line: "Callable[..., Done]",
) -> None:
    errors = [{"pointer": pointer, "message": "is not there"}]
    refused = played_api.problem(422, "INVALID_ENVELOPE", "no", errors=errors)
    played_api.on("POST", f"/v1/jobs/job_1:{arguments[0]}", refused)
    done = command_line("jobs", *arguments)
    assert done.code == 1
    assert next_step in done.err.splitlines()[-1]
    assert "submit" not in done.err


def test_adopt_names_the_evidence_and_prints_the_new_id(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    played_api.on("POST", "/v1/jobs/job_1:adopt", played_api.said(202, {"jobId": "job_2"}))
    done = command_line("jobs", "adopt", "job_1", "--step", "step_02", "--seq", "17", "--key", "k")
    assert (done.code, done.out, done.err) == (0, "job_2\n", "")
    (asked,) = played_api.asked
    assert json.loads(asked.body) == {"stepId": "step_02", "seq": 17}
    assert command_line("jobs", "adopt", "job_1", "--step", "step_02").code == 2
    assert command_line("jobs", "adopt", "job_1", "--step", "step_02", "--seq", "0").code == 2


WHY: dict[str, Any] = {
    "items": [
        {
            "code": "WORKER",
            "severity": "error",
            "jobs": 412,
            "text": "412 jobs wait for a worker of `ocr`; its last worker was seen at 09:14:05",
            "service": "ocr",
            "since": None,
            "lanes": {"3": 412},
            "tenants": [{"tenant_id": "acme", "jobs": 400}, {"tenant_id": "other", "jobs": 12}],
        },
        {
            "code": "RESULT",
            "severity": "info",
            "jobs": 1,
            "text": "1 job is being worked on by `ocr`: their leases run",
            "service": "ocr",
            "since": None,
            "lanes": {"3": 1},
            "tenants": [{"tenant_id": "acme", "jobs": 1}],
        },
    ],
    "more": False,
    "open": 413,
    "counted_at": "2999-01-01T00:00:00.000Z",
    "as_of": "2999-01-01T00:00:00.000Z",
}


def test_why_tells_the_groups_the_worst_first(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    answer = played_api.said(200, WHY)
    played_api.on("GET", "/v1/why", answer, answer)
    done = command_line("why", "--tenant", "acme")
    assert (done.code, done.err) == (0, "")
    heading, first, second = done.out.splitlines()
    assert heading.split() == ["SEVERITY", "WAITS", "FOR", "WHY"]
    assert first == (
        "error     WORKER     412 jobs wait for a worker of `ocr`; its last worker was seen at 09:14:05 "
        "(acme 400, other 12)"
    )
    assert second.endswith("RESULT     1 job is being worked on by `ocr`: their leases run")
    assert played_api.asked[0].query == {"tenant_id": "acme"}
    as_json = command_line("why", "--json")
    assert json.loads(as_json.out) == WHY


def test_why_says_how_old_or_incomplete_its_count_is(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    empty = WHY | {"items": [], "open": 0}
    played_api.on(
        "GET",
        "/v1/why",
        played_api.said(200, empty | {"counted_at": None}),
        played_api.said(200, empty | {"counted_at": "2026-01-02T12:00:00.000Z"}),
    )
    fresh = command_line("why")
    assert fresh.out == "nothing waits: no job is open\n"
    assert fresh.err == "the open jobs are still being counted: some may be missing\n"
    assert command_line("why").err.startswith("the open jobs were counted ")


USAGE: dict[str, Any] = {
    "items": [
        {
            "tenant_id": "acme",
            "day": "2026-01-27",
            "service": "ocr",
            "results": 2,
            "usage": {"usd": 0.5, "pages": 7},
        }
    ],
    "more": False,
    "totals": {"usd": 0.5, "pages": 7},
    "from": "2026-01-01",
    "to": "2026-01-27",
    "as_of": "2026-01-27T10:00:00.000Z",
}


def test_usage_is_told_by_tenant_day_and_service(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    empty = USAGE | {"items": [], "totals": {}}
    said = [played_api.said(200, document) for document in (USAGE, USAGE, empty)]
    played_api.on("GET", "/v1/usage", *said)
    done = command_line("usage", "--tenant", "acme", "--from", "2026-01-01")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[1].split() == ["acme", "2026-01-27", "ocr", "2", "pages", "7,", "usd", "0.5"]
    assert done.out.splitlines()[-1] == "in all  pages 7, usd 0.5"
    assert played_api.asked[0].query == {"tenant_id": "acme", "from": "2026-01-01"}
    assert json.loads(command_line("usage", "--json").out) == USAGE
    assert command_line("usage").out == "no service reported anything from 2026-01-01 to 2026-01-27\n"
