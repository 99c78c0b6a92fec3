"""`lucius submit` and `lucius run` against a played API."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.played_api import Done, PlayedApi

ENVELOPE: dict[str, Any] = {
    "tenant_id": "acme",
    "request_type": "OCR",
    "input_ref": {"uri": "s3://in/a.pdf"},
    "output_ref": {"uri": "s3://out/a.json"},
    "payload": {"language": "en"},
    "schema_version": "1",
}
OPTIONS = ("--tenant", "acme", "--type", "OCR", "--input", "s3://in/a.pdf", "--output", "s3://out/a.json")


@pytest.fixture
def accepted(played_api: "PlayedApi") -> "PlayedApi":
    played_api.on(
        "POST",
        "/v1/orchestrate",
        played_api.said(202, {"jobId": "job_1", "state": "QUEUED", "duplicate": False}),
    )
    return played_api


def test_a_file_is_sent_byte_for_byte(
    accepted: "PlayedApi", command_line: "Callable[..., Done]", tmp_path: Path
) -> None:
    raw = json.dumps(ENVELOPE, indent=2).replace('"en"', "1.50").encode()
    (tmp_path / "envelope.json").write_bytes(raw)

    done = command_line("submit", str(tmp_path / "envelope.json"))

    assert (done.code, done.out, done.err) == (0, "job_1\n", "")
    assert accepted.asked[0].body == raw
    assert accepted.asked[0].headers["content-type"] == "application/json"
    assert "authorization" not in accepted.asked[0].headers


def test_stdin_is_a_file_too_and_a_byte_order_mark_is_dropped(
    accepted: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    done = command_line("submit", "-", stdin=b"\xef\xbb\xbf" + json.dumps(ENVELOPE).encode())
    assert done.code == 0
    assert json.loads(accepted.asked[0].body) == ENVELOPE


def test_options_make_an_envelope(
    accepted: "PlayedApi", command_line: "Callable[..., Done]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LUCIUS_API_KEY", "k-123")
    done = command_line(
        "submit", *OPTIONS, "--payload", '{"language":"de"}', "--mode", "burst", "--doc-id", "d-9",
        "--key", "once", "--correlation-id", "c-1",
    )  # fmt: skip
    assert done.code == 0
    assert json.loads(accepted.asked[0].body) == ENVELOPE | {
        "payload": {"language": "de"},
        "mode": "BURST",
        "doc_id": "d-9",
        "correlation_id": "c-1",
    }
    assert accepted.asked[0].headers["idempotency-key"] == "once"
    assert accepted.asked[0].headers["authorization"] == "Bearer k-123"


def test_a_payload_may_come_from_a_file_and_a_ref_may_be_json(
    accepted: "PlayedApi", command_line: "Callable[..., Done]", tmp_path: Path
) -> None:
    (tmp_path / "payload.json").write_text('{"big": 123456789012345678901234567890}')
    ref = '{"uri": "s3://in/a.pdf", "etag": "x"}'
    command_line("submit", *OPTIONS, "--input", ref, "--payload", f"@{tmp_path / 'payload.json'}")
    sent = json.loads(accepted.asked[0].body)
    assert sent["payload"] == {"big": 123456789012345678901234567890}
    assert sent["input_ref"] == {"uri": "s3://in/a.pdf", "etag": "x"}


def test_options_beside_a_file_replace_its_members(
    accepted: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    stdin = json.dumps(ENVELOPE | {"idempotency_key": "old"}).encode()
    command_line("submit", "-", "--tenant", "other", "--key", "new", stdin=stdin)
    sent = accepted.asked[0]
    assert json.loads(sent.body) == ENVELOPE | {"tenant_id": "other", "idempotency_key": "new"}
    assert sent.headers["idempotency-key"] == "new"


def test_json_prints_the_answer_alone_and_a_duplicate_is_said_on_stderr(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    answer = played_api.said(202, {"jobId": "job_1", "state": "SUCCEEDED", "duplicate": True})
    played_api.on("POST", "/v1/orchestrate", answer)
    done = command_line("submit", *OPTIONS, "--json")
    assert done.out == '{"jobId":"job_1","state":"SUCCEEDED","duplicate":true}\n'
    assert done.err == "This command is known already: its job is SUCCEEDED.\n"


@pytest.mark.parametrize(
    ("arguments", "stdin", "words"),
    [
        ((), b"", "--tenant, --type, --input, --output"),
        (("--tenant", "acme", "--type", "OCR"), b"", "also --input, --output"),
        (("no-such-file.json",), b"", "Cannot read no-such-file.json: No such file"),
        (("OCR",), b"", "There is no file OCR. With a request type goes a DOCUMENT."),
        (("-",), b'{"a": }', "is not JSON: Expecting value (line 1, column 7)"),
        (("-",), b"[1]", "must hold a JSON object"),
        (("-",), b'{"a": NaN}', "NaN is no JSON number"),
        (("-",), b"\xff\xfe", "not UTF-8"),
        (("-",), b"[" * 100_000, "is not JSON"),
        (("-",), b" " * 1_048_577, "larger than 1024 KiB"),
        (("-", "--tenant", "x"), b'{"payload": 1e999}', "JSON cannot carry"),
        ((*OPTIONS, "--payload", "[]"), b"", "--payload must hold a JSON object"),
        ((*OPTIONS, "--key", "é"), b"", "--key takes printable ASCII"),
        ((*OPTIONS, "--nonsense"), b"", "No such option"),
    ],
)
def test_what_cannot_be_sent_is_a_usage_error(
    played_api: "PlayedApi",
    command_line: "Callable[..., Done]",
    arguments: tuple[str, ...],
    stdin: bytes,
    words: str,
) -> None:
    done = command_line("submit", *arguments, stdin=stdin)
    assert (done.code, done.out) == (2, "")
    assert words in done.err
    assert played_api.asked == []


def test_a_refusal_is_told_with_its_fields_and_a_next_step(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    refusal = played_api.problem(
        422,
        "INVALID_PAYLOAD",
        "the payload does not fit",
        [{"pointer": "/payload/language", "message": "5 is not a string"}],
    )
    played_api.on("POST", "/v1/orchestrate", refusal)
    done = command_line("submit", *OPTIONS)
    assert (done.code, done.out) == (1, "")
    assert done.err.splitlines() == [
        "error: INVALID_PAYLOAD: the payload does not fit",
        "  /payload/language: 5 is not a string",
        "  `lucius protocols show PROTOCOL_ID` shows the schema of each step's payload.",
    ]
    assert json.loads(command_line("submit", *OPTIONS, "--json").out)["code"] == "INVALID_PAYLOAD"


def test_a_limit_says_when_to_try_again(played_api: "PlayedApi", command_line: "Callable[..., Done]") -> None:
    refusal = played_api.problem(429, "TENANT_LIMIT", "too many jobs in flight")
    played_api.on("POST", "/v1/orchestrate", refusal._replace(headers={"Retry-After": "7"}))
    done = command_line("submit", *OPTIONS)
    assert done.code == 1
    assert "TENANT_LIMIT" in done.err
    assert "Try again in 7 s." in done.err


def _plays_a_job(played_api: "PlayedApi", *jobs: dict[str, Any]) -> None:
    played_api.on("GET", "/v1/jobs/job_1", *(played_api.said(200, job) for job in jobs))
    played_api.on(
        "GET",
        "/v1/jobs/job_1/events",
        played_api.listed(played_api.event(1, "JOB_CREATED")),
        played_api.listed(
            played_api.event(2, "STEP_RETRYING", stepId="step_01", attempt_no=1, data={"code": "BUSY"})
        ),
        played_api.listed(),
    )


def test_run_follows_the_job_and_prints_where_the_result_is(
    accepted: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    played_api = accepted
    _plays_a_job(
        played_api,
        played_api.job("QUEUED", played_api.step(1, "PENDING")),
        played_api.job("IN_PROGRESS", played_api.step(1, "PROCESSING")),
        played_api.job("SUCCEEDED", played_api.step(1, "SUCCEEDED"), final_output="s3://out/a.json"),
    )
    done = command_line("run", *OPTIONS)
    assert (done.code, done.out) == (0, "s3://out/a.json\n")
    lines = done.err.splitlines()
    assert lines[0] == "job_1 accepted"
    assert lines[1].split()[2:] == ["JOB_CREATED"]
    assert lines[2].split()[2:] == ["STEP_RETRYING", "step_01", "attempt", "1", "code=BUSY"]
    waits = [asked.query.get("wait") for asked in played_api.asked if asked.path == "/v1/jobs/job_1"]
    assert waits == [None, "1", "1"]
    afters = [asked.query["after"] for asked in played_api.asked if asked.path.endswith("/events")]
    assert afters == ["0", "1", "2"]


def test_run_ends_badly_with_its_own_code(accepted: "PlayedApi", command_line: "Callable[..., Done]") -> None:
    failed = accepted.job("FAILED_FINAL", error_code="BAD_PDF", error_message="no pages")
    _plays_a_job(accepted, failed)
    done = command_line("run", *OPTIONS)
    assert (done.code, done.out) == (3, "")
    assert "job_1 FAILED_FINAL: BAD_PDF: no pages" in done.err
    assert "lucius jobs rerun job_1" in done.err


def test_run_as_json_prints_the_last_job_alone(
    accepted: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    cancelled = accepted.job("CANCELLED")
    _plays_a_job(accepted, accepted.job("CANCELLING"), cancelled)
    done = command_line("run", *OPTIONS, "--json")
    assert done.code == 3
    assert done.out.count("\n") == 1
    assert json.loads(done.out) == cancelled
