"""Replies in, directives out."""

import json
from typing import Any

import msgspec
import pytest

from lucius.contracts.messages import CONTENT_BYTES_MAX, directive, parse_reply
from lucius.core.inputs import Ack, Progress, Result, ResultStatus
from lucius.core.model import Job, JobRecord, Routing, Step, StepPolicy
from lucius.core.refusal import Code, Refused
from lucius.core.states import Engine, Mode, StepState

ROUTING = Routing(
    lane=15,
    routing_key_used="tenant_a",
    resolved_mode=Mode.DEFAULT,
    decision_source="REQUEST",
    decision_reason="MODE_IN_REQUEST",
)


def message(kind: str, **changes: Any) -> dict[str, Any]:
    doc: dict[str, Any] = {
        "type": kind,
        "jobId": "job_123",
        "stepId": "step_01",
        "tenant_id": "tenant_a",
        "attempt_no": 1,
        "lease_id": "9a7c",
        "timestamp": "2026-01-27T10:02:00Z",
        "correlation_id": "corr-123",
    }
    if kind == "RESULT":
        doc["status"] = "SUCCEEDED"
    if kind == "PROGRESS":
        doc["progress"] = 40
    doc.update(changes)
    return {name: value for name, value in doc.items() if value is not ...}


def pointers(doc: Any, expected: str | None = None) -> set[str]:
    refused = parse_reply(doc, expected=expected)
    assert isinstance(refused, Refused), refused
    assert refused.code is Code.INVALID_ENVELOPE
    return {error.pointer for error in refused.errors}


def reply(doc: Any, expected: str | None = None) -> Any:
    parsed = parse_reply(doc, expected=expected)
    assert isinstance(parsed, tuple), parsed
    assert parsed[0] == "job_123"
    return parsed[1]


def test_ack() -> None:
    parsed = reply(message("ACK", status="ACKED", unknown={"x": 1}), "ACK")
    assert isinstance(parsed, Ack)
    assert (parsed.step_id, parsed.attempt_no, parsed.lease_id) == ("step_01", 1, "9a7c")
    assert parsed.content()["unknown"] == {"x": 1}
    assert parsed.content()["type"] == "ACK"


def test_progress() -> None:
    parsed = reply(message("PROGRESS", progress=41.9, note="n" * 3000))
    assert isinstance(parsed, Progress)
    assert parsed.progress == 41
    assert parsed.note == "n" * 1000
    assert reply(message("PROGRESS", progress=0)).progress == 0
    assert reply(message("PROGRESS", progress=100, note=None)).note is None


def test_result() -> None:
    parsed = reply(message("RESULT", output_ref={"uri": "s3://out/x", "pages": 3}), "RESULT")
    assert isinstance(parsed, Result)
    assert parsed.status is ResultStatus.SUCCEEDED
    assert parsed.output_ref == {"uri": "s3://out/x", "pages": 3}
    assert parsed.error_code is None
    failed = reply(
        message("RESULT", status="FAILED_RETRY", error={"code": "c" * 500, "message": "m" * 5000, "x": 1})
    )
    assert failed.status is ResultStatus.FAILED_RETRY
    assert failed.error_code == "c" * 128
    assert failed.error_message == "m" * 2000
    assert reply(message("RESULT", output_ref=None, error=None)).output_ref is None
    long = {"uri": "s3://out/" + "x" * 4_000}
    assert reply(message("RESULT", output_ref=long), "RESULT").output_ref == long


@pytest.mark.parametrize(
    ("said", "retry_after_ms"),
    [(0, 0), (2.5, 2_500), (10**9, 86_400_000), (-1, None), (True, None), ("30", None), (None, None)],
)
def test_a_result_may_say_when_to_come_again(said: Any, retry_after_ms: int | None) -> None:
    parsed = reply(message("RESULT", status="FAILED_RETRY", retry_after=said))
    assert isinstance(parsed, Result)
    assert parsed.retry_after_ms == retry_after_ms


@pytest.mark.parametrize(("said", "read"), [(True, True), (False, False), ("yes", False), (None, False)])
def test_a_result_may_ask_for_less(said: Any, read: bool) -> None:
    parsed = reply(message("RESULT", slow_down=said))
    assert isinstance(parsed, Result)
    assert parsed.slow_down is read


@pytest.mark.parametrize(
    ("failure_class", "status"),
    [("RETRYABLE", ResultStatus.FAILED_RETRY), ("NON_RETRYABLE", ResultStatus.FAILED_FINAL)],
)
def test_the_older_form_of_failure(failure_class: str, status: ResultStatus) -> None:
    assert reply(message("RESULT", status="FAILED", failure_class=failure_class)).status is status
    told = reply(message("RESULT", status="FAILED", failure_class=failure_class, reason="the disk is full"))
    assert told.error_message == "the disk is full"
    told = reply(
        message("RESULT", status="FAILED", failure_class=failure_class, reason="r", error={"message": "m"})
    )
    assert told.error_message == "m"
    assert pointers(message("RESULT", status="FAILED")) == {"/failure_class"}
    assert pointers(message("RESULT", status="FAILED", failure_class="OTHER")) == {"/failure_class"}


@pytest.mark.parametrize(
    "name", ["type", "jobId", "stepId", "tenant_id", "attempt_no", "lease_id", "timestamp"]
)
@pytest.mark.parametrize("kind", ["ACK", "PROGRESS", "RESULT"])
def test_required_members(name: str, kind: str) -> None:
    assert pointers(message(kind, **{name: ...})) == {f"/{name}"}
    assert pointers(message(kind, **{name: None})) == {f"/{name}"}
    assert pointers(message(kind, **{name: []})) == {f"/{name}"}
    assert pointers(message(kind, **{name: True})) == {f"/{name}"}


@pytest.mark.parametrize(
    ("doc", "pointer"),
    [
        (message("RESULT", status=...), "/status"),
        (message("RESULT", status="DONE"), "/status"),
        (message("RESULT", status=True), "/status"),
        (message("RESULT", status=["SUCCEEDED"]), "/status"),
        (message("RESULT", output_ref="s3://x"), "/output_ref"),
        (message("RESULT", output_ref={}), "/output_ref/uri"),
        (message("RESULT", output_ref={"uri": "s3://x", "more": "y" * 4096}), "/output_ref"),
        (message("RESULT", output_ref={"uri": "s3://" + "x" * 4096}), "/output_ref/uri"),
        (message("ACK", attempt_no=0), "/attempt_no"),
        (message("ACK", attempt_no=1.5), "/attempt_no"),
        (message("ACK", attempt_no="1"), "/attempt_no"),
        (message("ACK", jobId="  "), "/jobId"),
        (message("ACK", lease_id="x" * 200), "/lease_id"),
        (message("DIRECTIVE"), "/type"),
        ([], ""),
        (None, ""),
    ],
)
def test_poison(doc: Any, pointer: str) -> None:
    assert pointers(doc) == {pointer}


@pytest.mark.parametrize("progress", [..., None, "40", True, 101, -0.1, [], {}])
def test_progress_without_a_usable_number_is_a_sign_of_life_all_the_same(progress: Any) -> None:
    assert reply(message("PROGRESS", progress=progress)).progress is None


@pytest.mark.parametrize(("note", "kept"), [(5, "5"), (True, None), (["x"], None), ({}, None)])
def test_a_note_that_is_no_text_spoils_nothing(note: Any, kept: str | None) -> None:
    assert reply(message("PROGRESS", note=note, progress=2)).note == kept


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        ("disk full", None, "disk full"),
        ({"code": 5, "message": ["x"]}, "5", None),
        ({"code": None, "message": "m"}, None, "m"),
        ({"code": "DISK\nFULL\x00\u202e\n", "message": "two\nlines"}, "DISK?FULL??", "two\nlines"),
        ({"code": "\n\t", "message": "m"}, None, "m"),
        ({"code": "Größe 2 überschritten"}, "Größe 2 überschritten", None),
        ([], None, None),
        (True, None, None),
        (7.5, None, "7.5"),
    ],
)
def test_a_failure_counts_however_it_is_put(error: Any, code: str | None, text: str | None) -> None:
    failed = reply(message("RESULT", status="FAILED_FINAL", error=error))
    assert failed.status is ResultStatus.FAILED_FINAL
    assert (failed.error_code, failed.error_message) == (code, text)


TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJqb2IiOiJqb2JfMSJ9.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (f"failed with Authorization: Bearer {TOKEN}", "failed with Authorization: ***"),
        (f"token {TOKEN} was refused", "token *** was refused"),
        ("password=hunter2 did not work", "*** did not work"),
        ("GET https://u:pw@host/x?sig=abcd gave 403", "GET https://***@host/x?*** gave 403"),
        ("Basic validation failed, bearer of news", "Basic validation failed, bearer of news"),
        ("Authorization: Basic dXNlcjpwYXNzd29yZDEyMw==", "Authorization: ***"),
        ('headers={"Authorization": "Basic dXNlcjpwYXNz"}', 'headers={"Authorization": "***"}'),
        ("GET https://h/x?access_token=abc12&y=1", "GET https://h/x?***&y=1"),
        ("client_secret=abc, x-api-key: 12345", "***, ***"),
        ("api_key=sk-1 and {'db_password': 'p4ss'}", "*** and {'***'}"),
        ("?X-Amz-Credential=AKIA/2026&X-Amz-Date=1", "?***&X-Amz-Date=1"),
        ("a -----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY----- b", "a *** b"),
        ("Password: must not be empty, api key missing", "Password: must not be empty, api key missing"),
        (
            "Basic Authentication failed: key=3 of 10 tokens",
            "Basic Authentication failed: key=3 of 10 tokens",
        ),
    ],
)
def test_credentials_in_the_words_of_a_service_are_kept_nowhere(said: str, kept: str) -> None:
    failed = reply(
        message("RESULT", status="FAILED_RETRY", error={"code": "X", "message": said}, more=[said])
    )
    assert failed.error_message == kept
    assert failed.content()["error"] == {"code": "X", "message": kept}
    assert failed.content()["more"] == [kept]
    assert reply(message("PROGRESS", progress=1, note=said)).note == kept


def test_where_a_result_lies_is_kept_as_it_was_said() -> None:
    ref = {"uri": "s3://store/secret=santa/lk_walk_1.pdf"}  # names, though a text with them is blanked
    parsed = reply(message("RESULT", output_ref=ref, more="?sig=abcd"))
    assert parsed.output_ref == parsed.content()["output_ref"] == ref
    assert parsed.content()["more"] == "?***"


def test_a_door_takes_its_own_type_only() -> None:
    assert pointers(message("ACK"), "RESULT") == {"/type"}
    assert pointers(message("RESULT"), "ACK") == {"/type"}


def test_every_problem_is_told_at_once() -> None:
    doc = message("RESULT", jobId=1, attempt_no=None, status="x", error=[], output_ref=1)
    assert pointers(doc) == {"/jobId", "/attempt_no", "/status", "/output_ref"}


def test_integral_floats_are_integers() -> None:
    parsed = reply(message("ACK", attempt_no=2.0))
    assert parsed.attempt_no == 2
    assert isinstance(parsed.attempt_no, int)


def test_evidence_holds_no_secrets() -> None:
    doc = message(
        "RESULT",
        callback_token="cb-secret",
        token="t-secret",
        Authorization="Bearer a-secret",
        error={"code": "X", "api_key": "k-secret"},
        trail=[{"password": "p-secret", "max_tokens": 5}],
    )
    content = reply(doc).content()
    assert "secret" not in json.dumps(content)
    assert content["error"] == {"code": "X"}
    assert content["trail"] == [{"max_tokens": 5}]


def test_evidence_is_bounded_and_keeps_the_small_members() -> None:
    doc = message("RESULT", big="x" * 9000, bigger=["ü" * 100] * 300, small="kept", error={"code": "E"})
    content = reply(doc).content()
    assert len(msgspec.json.encode(content)) <= CONTENT_BYTES_MAX
    assert content["small"] == "kept"
    assert content["error"] == {"code": "E"}
    assert content["lease_id"] == "9a7c"
    assert doc["big"], "the message itself is left alone"


def _step(index: int, **changes: Any) -> Step:
    return Step(
        step_id=f"step_0{index + 1}",
        step_index=index,
        step_type=("OCR", "SIS")[index],
        service=("ocr", "sis")[index],
        policy=StepPolicy(),
        routing=ROUTING,
        input_ref={"uri": "s3://in/a.pdf"},
        workspace_ref={"uri": "s3://ws/"},
        output_ref={"uri": "s3://out/a.json"},
        payload={"language": "en"},
        created_at_ms=1,
        updated_at_ms=1,
        **changes,
    )


def record() -> JobRecord:
    job = Job(
        job_id="job_123",
        tenant_id="Tenant_A",
        tenant_norm="tenant_a",
        request_type="OCR_SIS",
        protocol_id="ocr_sis_v1",
        engine=Engine.OUTBOX,
        mode=Mode.DEFAULT,
        lane=15,
        created_at_ms=1,
        updated_at_ms=1,
        sla_ms=1,
        output_uri="s3://out/a.json",
        idempotency_hash="h",
        fingerprint="f",
        correlation_id="corr-123",
        traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
    )
    first = _step(0, state=StepState.SUCCEEDED, result_ref={"uri": "s3://ws/ocr/1/output.txt"})
    second = _step(
        1, state=StepState.INITIATED, attempt_no=2, lease_id="l-2", lease_expires_at_ms=1_769_508_150_007
    )
    return JobRecord(job=job, steps=(first, second))


def test_directive() -> None:
    whole = record()
    assert directive(whole, whole.steps[1], callback_base="https://l.example", callback_token="tok") == {
        "type": "DIRECTIVE",
        "jobId": "job_123",
        "tenant_id": "Tenant_A",
        "stepId": "step_02",
        "protocol_id": "ocr_sis_v1",
        "step_type": "SIS",
        "service": "sis",
        "attempt_no": 2,
        "lease_id": "l-2",
        "input_ref": {"uri": "s3://in/a.pdf"},
        "workspace_ref": {"uri": "s3://ws/"},
        "output_ref": {"uri": "s3://out/a.json"},
        "payload": {"language": "en"},
        "mode": "DEFAULT",
        "lane": 15,
        "routing_key_used": "tenant_a",
        "correlation_id": "corr-123",
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
        "upstream": [
            {"stepId": "step_01", "step_type": "OCR", "result_ref": {"uri": "s3://ws/ocr/1/output.txt"}}
        ],
        "reply_topic": "global-bus-replies-p15",
        "callback_urls": {
            "ack": "https://l.example/v1/callbacks/ack",
            "result": "https://l.example/v1/callbacks/result",
            "progress": "https://l.example/v1/callbacks/progress",
        },
        "callback_token": "tok",
        "lease_expires_at": "2026-01-27T10:02:30.007Z",
        "lease_seconds": 900.0,
    }


def test_the_first_step_has_no_upstream() -> None:
    whole = record()
    first = directive(whole, whole.steps[0], callback_base="", callback_token="")
    assert first["upstream"] == []
    assert first["lease_expires_at"] is None


def test_a_result_may_report_what_was_used() -> None:
    parsed = reply(message("RESULT", usage={"pages": 3, "usd": 0.5}))
    assert isinstance(parsed, Result) and parsed.usage == {"pages": 3, "usd": 0.5}
    silent = reply(message("RESULT", usage=None))
    assert isinstance(silent, Result) and silent.usage == {}


def test_usage_that_cannot_be_summed_is_refused_and_not_dropped() -> None:
    assert pointers(message("RESULT", usage=[1])) == {"/usage"}
    assert pointers(message("RESULT", usage={f"n{number}": 1 for number in range(17)})) == {"/usage"}
    wrong = {"a": "1", "b": True, "c": -1, "d": 1e16, "1": 1, "e": None}
    assert pointers(message("RESULT", usage=wrong)) == {f"/usage/{name}" for name in wrong}
