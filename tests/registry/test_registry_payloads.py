"""Each step's part of a payload, laid over its defaults and held against its schema."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lucius.core.canonical import canonical_json
from lucius.core.model import ProtocolSpec, StepSpec
from lucius.core.refusal import Code, Refused
from lucius.registry import BuiltinRegistry, PayloadRules, step_payloads
from lucius.registry.payloads import PROTOCOLS_MAX

BUILTIN = BuiltinRegistry()
WHOLE, OCR = (
    next(protocol for protocol in BUILTIN.all() if protocol.protocol_id == wanted)
    for wanted in ("ocr_embedding_sis_v1", "ocr_v1")
)


def errors(protocol: ProtocolSpec, payload: dict[str, Any]) -> dict[str, str]:
    refused = step_payloads(protocol, payload)
    assert isinstance(refused, Refused), refused
    assert refused.code is Code.INVALID_PAYLOAD
    return {error.pointer: error.message for error in refused.errors}


def one_step(**members: Any) -> ProtocolSpec:
    return ProtocolSpec(
        protocol_id="p", request_types=("P",), steps=(StepSpec(step_type="S", service="s", **members),)
    )


def test_parts_and_defaults() -> None:
    asked = {"prompt": "?"}
    payload = {"ocr": {"dpi": 300}, "embedding": {"dimensions": 8}, "sis": asked, "other": {"x": 1}}
    assert step_payloads(WHOLE, payload) == ({"language": "en", "dpi": 300}, {"dimensions": 8}, asked)
    assert step_payloads(WHOLE, {"sis": asked}) == ({"language": "en"}, {}, asked)


def test_a_lone_step_without_a_key_gets_everything() -> None:
    assert step_payloads(one_step(), {"language": "de", "extra": [1]}) == ({"language": "de", "extra": [1]},)
    assert step_payloads(OCR, {"language": "de"}) == ({"language": "de"},)


def test_every_error_has_its_pointer() -> None:
    payload = {
        "ocr": {"dpi": 5, "language": 7},
        "embedding": {"chunk_size": "x"},
        "sis": {"top_k": 51, "prompt_set": ["a", 1]},
    }
    assert set(errors(WHOLE, payload)) == {
        "/payload/ocr/dpi",
        "/payload/ocr/language",
        "/payload/embedding/chunk_size",
        "/payload/sis/top_k",
        "/payload/sis/prompt_set/1",
    }
    assert errors(WHOLE, {}) == {"/payload/sis": "needs prompt or prompt_set"}
    assert set(errors(OCR, {"dpi": 5000})) == {"/payload/dpi"}
    assert set(errors(WHOLE, {"ocr": 5, "sis": {"prompt": "?"}})) == {"/payload/ocr"}


@pytest.mark.parametrize(
    "payload",
    [{"dpi": 36}, {"dpi": 1200}, {"dpi": 300.0}, {"language": "en"}, {}],
)
def test_bounds_of_the_builtin_ocr(payload: dict[str, Any]) -> None:
    assert not isinstance(step_payloads(OCR, payload), Refused)


def test_missing_and_extra_members_are_pointed_at() -> None:
    schema = {
        "type": "object",
        "required": ["a/b"],
        "properties": {"a/b": {}, "n": {}},
        "additionalProperties": False,
    }
    found = errors(one_step(payload_schema=schema, payload_key="k"), {"k": {"x": 1, "y": 2}})
    assert set(found) == {"/payload/k/a~1b", "/payload/k/x", "/payload/k/y"}


def test_refusals_do_not_repeat_the_value() -> None:
    found = errors(OCR, {"dpi": "hunter2-is-my-password"})
    assert "hunter2" not in "".join(found.values())


def test_objects_merge_and_the_rest_replaces() -> None:
    protocol = one_step(defaults={"a": {"x": 1, "y": {"z": 1}}, "l": [1, 2], "s": "d"})
    part = step_payloads(protocol, {"a": {"y": {"w": 2}}, "l": [3], "t": 1})
    assert part == ({"a": {"x": 1, "y": {"z": 1, "w": 2}}, "l": [3], "s": "d", "t": 1},)
    assert protocol.steps[0].defaults == {"a": {"x": 1, "y": {"z": 1}}, "l": [1, 2], "s": "d"}


def test_defaults_are_never_shared_with_what_leaves() -> None:
    protocol = one_step(defaults={"a": {"x": [1]}})
    parts = step_payloads(protocol, {})
    assert not isinstance(parts, Refused)
    parts[0]["a"]["x"].append(2)
    assert step_payloads(protocol, {}) == ({"a": {"x": [1]}},)


def test_null_is_absent_as_in_the_fingerprint() -> None:
    absent = {
        "ocr": {"language": None, "dpi": None},
        "embedding": None,
        "sis": {"prompt": "?", "top_k": None},
    }
    assert step_payloads(WHOLE, absent) == step_payloads(WHOLE, {"sis": {"prompt": "?"}})
    nested = step_payloads(one_step(), {"a": [None, {"b": None}], "c": {"d": None}})
    assert nested == ({"a": [None, {}], "c": {}},)


def test_a_part_need_not_be_an_object() -> None:
    protocol = one_step(payload_key="pages", payload_schema={"type": "array"})
    assert step_payloads(protocol, {"pages": [1, 2]}) == ([1, 2],)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
payloads: st.SearchStrategy[Any] = st.dictionaries(
    texts,
    st.recursive(
        st.none() | st.booleans() | st.integers() | texts,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
        max_leaves=10,
    ),
    max_size=4,
)


@given(payloads)
def test_without_defaults_the_part_means_what_was_sent(payload: dict[str, Any]) -> None:
    parts = step_payloads(one_step(), payload)
    assert not isinstance(parts, Refused)
    assert canonical_json(parts[0]) == canonical_json(payload)


def test_the_cache_is_bounded_and_never_mistakes_one_protocol_for_another() -> None:
    rules = PayloadRules()
    for bound in range(PROTOCOLS_MAX * 2):
        protocol = one_step(payload_schema={"properties": {"n": {"maximum": bound}}})
        assert not isinstance(rules.step_payloads(protocol, {"n": bound}), Refused)
        assert isinstance(rules.step_payloads(protocol, {"n": bound + 1}), Refused)
    assert len(rules._compiled) == PROTOCOLS_MAX


SIS = next(protocol for protocol in BUILTIN.all() if protocol.protocol_id == "sis_v1")
UNKNOWN = "is not a member of this step's payload"


@pytest.mark.parametrize(
    ("payload", "pointer", "message"),
    [
        ({}, "/payload", "needs prompt or prompt_set"),
        ({"prompt_set": None}, "/payload", "needs prompt or prompt_set"),
        ({"promt": "?"}, "/payload/promt", f"{UNKNOWN}; did you mean prompt?"),
        ({"prompt": "?", "colour": 1}, "/payload/colour", f"{UNKNOWN}; it may have output_schema, prompt, "),
        ({"prompt_set": [{"promt": "?"}]}, "/payload/prompt_set/0/promt", f"{UNKNOWN}; did you mean prompt?"),
        ({"prompt_set": [{"name": "x"}]}, "/payload/prompt_set/0/prompt", "is required"),
        ({"prompt_set": []}, "/payload/prompt_set", ""),
        ({"prompt": " \n"}, "/payload/prompt", ""),
    ],
)
def test_what_sis_cannot_work_without(payload: dict[str, Any], pointer: str, message: str) -> None:
    assert errors(SIS, payload)[pointer].startswith(message)


@pytest.mark.parametrize(
    "payload",
    [
        {"prompt": "?"},
        {"prompt_set": ["a", {"name": "b", "prompt": "?", "output_schema": {"type": "string"}}]},
        {"prompt": "?", "prompt_set": ["a"], "output_schema": {}, "top_k": 5},
    ],
)
def test_what_sis_takes(payload: dict[str, Any]) -> None:
    assert step_payloads(SIS, payload) == (payload,)


def test_a_suggestion_costs_little_whatever_is_sent() -> None:
    schema = {"additionalProperties": False, "properties": {f"member_{n}": {} for n in range(5_000)}}
    found = errors(one_step(payload_schema=schema), {f"membre_{n}" * 8: 1 for n in range(200)})
    assert len(found) <= 100 and set(found.values()) == {UNKNOWN}


def test_a_member_behind_a_reference_is_refused_without_a_suggestion() -> None:
    schema = {
        "$ref": "#/$defs/it",
        "$defs": {"it": {"additionalProperties": False, "properties": {"prompt": {}}}},
    }
    found = errors(one_step(payload_schema=schema), {"promt": 1})
    assert found["/payload/promt"].startswith(UNKNOWN)


def test_every_member_of_a_builtin_step_says_what_it_means() -> None:
    for protocol in BUILTIN.all():
        for step in protocol.steps:
            assert step.payload_schema["additionalProperties"] is False
            for name, member in step.payload_schema["properties"].items():
                assert member["description"].endswith("."), (protocol.protocol_id, name)
