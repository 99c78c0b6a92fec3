"""The envelope: every field problem at once, with its pointer."""

from typing import Any

import pytest

from lucius.contracts.envelope import ERRORS_MAX, Envelope, parse_envelope, valid_traceparent
from lucius.core.refusal import Code, Refused
from lucius.core.states import Mode

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OTHER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"


def envelope(**changes: Any) -> dict[str, Any]:
    doc: dict[str, Any] = {
        "tenant_id": "acme",
        "request_type": "OCR",
        "input_ref": {"uri": "s3://in/a.pdf"},
        "output_ref": {"uri": "s3://out/a.json"},
        "payload": {"language": "en"},
        "schema_version": "1",
    }
    doc.update(changes)
    return {name: value for name, value in doc.items() if value is not ...}


def accepted(doc: Any, **headers: str | None) -> Envelope:
    parsed = parse_envelope(doc, **headers)
    assert isinstance(parsed, Envelope), parsed
    return parsed


def pointers(doc: Any, **headers: str | None) -> set[str]:
    parsed = parse_envelope(doc, **headers)
    assert isinstance(parsed, Refused), parsed
    assert parsed.code is Code.INVALID_ENVELOPE
    return {error.pointer for error in parsed.errors}


def test_the_smallest_envelope() -> None:
    parsed = accepted(envelope())
    assert parsed.tenant_id == parsed.tenant_norm == "acme"
    assert parsed.payload == {"language": "en"}
    assert parsed.mode is None
    assert parsed.idempotency_key is None
    assert parsed.callback_urls is None
    assert parsed.traceparent is None


def test_everything_optional() -> None:
    parsed = accepted(
        envelope(
            tenant_id="  Acme ",
            request_type=" OCR ",
            input_ref={"uri": "s3://in/a", "etag": "x", "deep": {"n": 1}},
            mode="BURST",
            doc_id=" Doc-1 ",
            idempotency_key="k-1",
            callback_urls={"completed": "https://x.example/y"},
            correlation_id="corr",
            traceparent=TRACE,
            schema_version="1.7",
        )
    )
    assert parsed.tenant_id == "Acme"
    assert parsed.tenant_norm == "acme"
    assert parsed.request_type == " OCR "  # enters the fingerprint as it was sent
    assert parsed.input_ref == {"uri": "s3://in/a", "etag": "x", "deep": {"n": 1}}
    assert parsed.mode is Mode.BURST
    assert parsed.doc_id == " Doc-1 "
    assert parsed.callback_urls == {"completed": "https://x.example/y"}
    assert parsed.traceparent == TRACE
    assert parsed.schema_version == "1.7"


def test_safe_is_default() -> None:
    assert accepted(envelope(mode="SAFE")).mode is Mode.DEFAULT


def test_null_options_are_absent() -> None:
    names = ("mode", "idempotency_key", "doc_id", "callback_urls", "correlation_id", "traceparent")
    assert accepted(envelope(**dict.fromkeys(names))) == accepted(envelope())
    assert accepted(envelope(callback_urls={"completed": None})) == accepted(envelope())
    assert accepted(envelope(doc_id="  ", correlation_id="")) == accepted(envelope())


def test_every_problem_is_told_at_once() -> None:
    doc = {
        "tenant_id": 5,
        "input_ref": {},
        "output_ref": "s3://x",
        "payload": [],
        "schema_version": 1,
        "mode": "FAST",
        "idempotency_key": 7,
        "doc_id": [],
        "callback_urls": {"done": "https://x", "completed": 3},
        "correlation_id": False,
        "traceparent": 1,
        "a/b~c": 1,
    }
    assert pointers(doc) == {
        "/tenant_id",
        "/request_type",
        "/input_ref/uri",
        "/output_ref",
        "/payload",
        "/schema_version",
        "/mode",
        "/idempotency_key",
        "/doc_id",
        "/callback_urls/done",
        "/callback_urls/completed",
        "/correlation_id",
        "/traceparent",
        "/a~1b~0c",
    }


@pytest.mark.parametrize(
    "name", ["tenant_id", "request_type", "input_ref", "output_ref", "payload", "schema_version"]
)
@pytest.mark.parametrize("value", [..., None])
def test_required_members(name: str, value: Any) -> None:
    assert pointers(envelope(**{name: value})) == {f"/{name}"}


@pytest.mark.parametrize("doc", [None, [], "x", 1, True])
def test_not_an_object(doc: Any) -> None:
    assert pointers(doc) == {""}


@pytest.mark.parametrize(
    ("name", "value", "pointer"),
    [
        ("tenant_id", "   ", "/tenant_id"),
        ("tenant_id", "", "/tenant_id"),
        ("tenant_id", "../../escaped", "/tenant_id"),
        ("tenant_id", "a/../victim", "/tenant_id"),
        ("tenant_id", "a/ .. /victim", "/tenant_id"),
        ("tenant_id", "/a", "/tenant_id"),
        ("tenant_id", "a/", "/tenant_id"),
        ("tenant_id", "a//b", "/tenant_id"),
        ("tenant_id", "a/Job_1", "/tenant_id"),
        ("tenant_id", "a\x00b", "/tenant_id"),
        ("tenant_id", "a\nb", "/tenant_id"),
        ("tenant_id", "a\x85b", "/tenant_id"),
        ("tenant_id", "..", "/tenant_id"),
        ("tenant_id", " . ", "/tenant_id"),
        ("tenant_id", "x" * 129, "/tenant_id"),
        ("tenant_id", True, "/tenant_id"),
        ("request_type", " ", "/request_type"),
        ("request_type", "x" * 129, "/request_type"),
        ("request_type", "OCR\x1b", "/request_type"),
        ("doc_id", "x" * 257, "/doc_id"),
        ("doc_id", "a\tb", "/doc_id"),
        ("idempotency_key", "", "/idempotency_key"),
        ("idempotency_key", "x" * 256, "/idempotency_key"),
        ("idempotency_key", "a\r\n", "/idempotency_key"),
        ("correlation_id", "x" * 257, "/correlation_id"),
        ("input_ref", {"uri": ""}, "/input_ref/uri"),
        ("input_ref", {"uri": None}, "/input_ref/uri"),
        ("input_ref", {"uri": 1}, "/input_ref/uri"),
        ("output_ref", {"uri": "s3://" + "x" * 2048}, "/output_ref/uri"),
        ("callback_urls", [], "/callback_urls"),
        ("callback_urls", {"completed": ""}, "/callback_urls/completed"),
        ("mode", "burst", "/mode"),
        ("mode", 1, "/mode"),
    ],
)
def test_bounds(name: str, value: Any, pointer: str) -> None:
    assert pointers(envelope(**{name: value})) == {pointer}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tenant_id", "x" * 128),
        ("tenant_id", "日本"),
        ("request_type", "OCR→EMBEDDING"),
        ("doc_id", "x" * 256),
        ("idempotency_key", "x" * 255),
        ("idempotency_key", "ключ"),
        ("correlation_id", "x" * 256),
        ("input_ref", {"uri": "s3://" + "x" * 2043}),
        ("payload", {}),
    ],
)
def test_at_the_bound(name: str, value: Any) -> None:
    assert getattr(accepted(envelope(**{name: value})), name) == value


@pytest.mark.parametrize("version", ["2", "0", "", "v1", "1.", "10", "1.0.0", "1.x", " 1", "1 ", "1\n", "１"])
def test_unsupported_versions(version: str) -> None:
    refused = parse_envelope(envelope(schema_version=version, tenant_id=""))
    assert isinstance(refused, Refused)
    assert refused.code is Code.UNSUPPORTED_SCHEMA_VERSION
    assert {error.pointer for error in refused.errors} == {"/schema_version", "/tenant_id"}


@pytest.mark.parametrize("version", ["1", "1.0", "1.12"])
def test_supported_versions(version: str) -> None:
    assert accepted(envelope(schema_version=version)).schema_version == version


def test_key_header_and_member_are_one_thing() -> None:
    assert accepted(envelope(), key_header="k").idempotency_key == "k"
    assert accepted(envelope(idempotency_key="k"), key_header="k").idempotency_key == "k"
    assert pointers(envelope(idempotency_key="k"), key_header="K") == {"/idempotency_key"}
    assert pointers(envelope(), key_header="") == {"/idempotency_key"}
    assert pointers(envelope(), key_header="x" * 256) == {"/idempotency_key"}


def test_an_invalid_trace_gives_way_to_the_header_and_then_to_none() -> None:
    assert accepted(envelope(traceparent=TRACE), traceparent_header=OTHER).traceparent == TRACE
    assert accepted(envelope(traceparent="t"), traceparent_header=OTHER).traceparent == OTHER
    assert accepted(envelope(), traceparent_header=OTHER).traceparent == OTHER
    assert accepted(envelope(), traceparent_header="nonsense").traceparent is None
    assert accepted(envelope(traceparent="t")).traceparent is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        TRACE.upper(),
        "ff" + TRACE[2:],
        "0" + TRACE[2:],
        "01" + TRACE[2:] + "x",
        "01" + TRACE[2:] + "\n",
        "01" + TRACE[2:-1],
        TRACE + "-x",
        TRACE[:-1],
        "00-" + "0" * 32 + "-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-" + "0" * 16 + "-01",
        TRACE + "\n",
    ],
)
def test_invalid_traces(text: str) -> None:
    assert valid_traceparent(text) is None


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (TRACE, TRACE),
        ("01" + TRACE[2:], TRACE),
        ("cc" + TRACE[2:] + "-what-comes-later", TRACE),
        ("01" + TRACE[2:-2] + "ff", TRACE),
        ("01" + TRACE[2:-2] + "fe", TRACE[:-2] + "00"),
    ],
)
def test_a_trace_of_a_later_version_is_continued_as_far_as_it_is_known(text: str, read: str) -> None:
    assert accepted(envelope(traceparent=text)).traceparent == read
    assert accepted(envelope(), traceparent_header=text).traceparent == read


def test_the_number_of_errors_is_bounded() -> None:
    refused = parse_envelope(envelope(**{f"x{index}": 1 for index in range(5000)}))
    assert isinstance(refused, Refused)
    assert len(refused.errors) == ERRORS_MAX


def test_priority_is_a_whole_number_of_ten() -> None:
    assert accepted(envelope()).priority == accepted(envelope(priority=None)).priority == 5
    assert [accepted(envelope(priority=value)).priority for value in (0, 9, 7.0)] == [0, 9, 7]
    wrong: tuple[Any, ...] = (-1, 10, 5.5, "5", True, [], float("1e300"))
    for value in wrong:
        assert pointers(envelope(priority=value)) == {"/priority"}
