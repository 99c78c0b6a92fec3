"""The schemas are valid, their files are current, and they agree with the parsers."""

import copy
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lucius.contracts.components import SCHEMAS, schema_files, write_schemas
from lucius.contracts.envelope import parse_envelope
from lucius.contracts.messages import parse_reply
from lucius.core.refusal import Refused

FOLDER = Path(__file__).parents[2] / "docs" / "schemas"
VALIDATORS = {name: jsonschema_rs.validator_for(schema, offline=True) for name, schema in SCHEMAS.items()}


def test_the_files_are_current(tmp_path: Path) -> None:
    assert {path.name: path.read_text("utf-8") for path in FOLDER.iterdir()} == schema_files()
    write_schemas(tmp_path)
    assert {path.name: path.read_text("utf-8") for path in tmp_path.iterdir()} == schema_files()


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_each_is_a_json_schema(name: str) -> None:
    jsonschema_rs.meta.validate(SCHEMAS[name])
    assert SCHEMAS[name]["$id"] == f"urn:lucius:schema:{name}:1"


ENVELOPE: dict[str, Any] = {
    "tenant_id": "acme",
    "request_type": "OCR",
    "input_ref": {"uri": "s3://in/a.pdf"},
    "output_ref": {"uri": "s3://out/a.json"},
    "payload": {"language": "en"},
    "schema_version": "1",
    "mode": "BURST",
    "doc_id": "d",
    "idempotency_key": "k",
    "callback_urls": {"completed": "https://x.example"},
    "correlation_id": "c",
    "traceparent": "t",
}
REPLY: dict[str, Any] = {
    "jobId": "job_1",
    "stepId": "step_01",
    "tenant_id": "acme",
    "attempt_no": 1,
    "lease_id": "l",
    "timestamp": "2026-01-27T10:02:00Z",
    "status": "SUCCEEDED",
    "failure_class": "RETRYABLE",
    "output_ref": {"uri": "s3://x"},
    "error": {"code": "c", "message": "m"},
    "progress": 5,
    "note": "n",
}

odd = st.sampled_from(
    [
        None,
        True,
        False,
        0,
        1,
        -1,
        2.0,
        1.5,
        100,
        101,
        "",
        " ",
        "x",
        "1",
        "1.5",
        "2",
        "..",
        "a\x00b",
        "a\x9fb",
        "x" * 128,
        "x" * 129,
        "x" * 256,
        "x" * 257,
        "x" * 2049,
        "SAFE",
        "BURST",
        "FAST",
        "FAILED",
        "FAILED_RETRY",
        "NON_RETRYABLE",
        "日本",
        [],
        ["x"],
        {},
        {"uri": "s3://x"},
        {"uri": ""},
        {"uri": 5},
        {"completed": "x"},
        {"completed": None},
        {"other": "x"},
        {"code": 1},
        {"message": None},
        {"uri": "x", "more": [1]},
    ]
)


def changed(base: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """The document with up to three members changed, removed or added."""
    names = st.sampled_from([*base, "unknown"])
    change = st.tuples(names, st.just(...) | odd)

    def apply(changes: list[tuple[str, Any]]) -> dict[str, Any]:
        doc = copy.deepcopy(base)
        for name, value in changes:
            if value is ...:
                doc.pop(name, None)
            else:
                doc[name] = copy.deepcopy(value)
        return doc

    return st.lists(change, max_size=3).map(apply)


@given(changed(ENVELOPE))
@settings(max_examples=600)
def test_envelope_and_schema_agree(doc: dict[str, Any]) -> None:
    accepted = not isinstance(parse_envelope(doc), Refused)
    assert VALIDATORS["envelope"].is_valid(doc) == accepted


@pytest.mark.parametrize("kind", ["ACK", "PROGRESS", "RESULT"])
@given(data=st.data())
@settings(max_examples=300)
def test_replies_and_schemas_agree(kind: str, data: st.DataObject) -> None:
    doc = data.draw(changed({"type": kind, **REPLY}))
    accepted = not isinstance(parse_reply(doc, expected=kind), Refused)
    valid = VALIDATORS[kind.lower()].is_valid
    # Senders are told what these are; receivers leave out what they cannot read of them.
    for_people = ("progress", "note", "error")
    assert valid({name: value for name, value in doc.items() if name not in for_people}) == accepted
    assert accepted or not valid(doc)
