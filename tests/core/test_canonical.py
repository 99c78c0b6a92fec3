"""Canonical JSON: the vectors hold bit for bit, and the quick way equals the general one."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lucius.core.canonical import (
    _is_plain,
    canonical_json,
    canonical_json_general,
    fingerprint,
    key_hash,
)
from lucius.core.routing import normalise

VECTORS: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parents[1] / "vectors" / "idempotency.json").read_text("utf-8")
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=25,
)
plain_values: st.SearchStrategy[Any] = st.recursive(
    st.booleans() | st.integers() | texts,
    lambda inner: (
        st.lists(inner | st.none(), max_size=5)
        | st.dictionaries(st.text(st.characters(max_codepoint=127), max_size=6), inner, max_size=6)
    ),
    max_leaves=25,
)


def _document(case: dict[str, Any]) -> dict[str, Any]:
    loaded: dict[str, Any] = case["envelope"] if "envelope" in case else json.loads(case["body"])
    return loaded


@pytest.mark.parametrize("case", VECTORS["commands"], ids=lambda case: case["name"])
def test_command_vector(case: dict[str, Any]) -> None:
    doc = _document(case)
    command = {
        name: doc[name] for name in ("request_type", "input_ref", "output_ref", "payload", "schema_version")
    }
    tenant_norm = normalise(doc["tenant_id"])
    whole = {**command, "tenant_id": tenant_norm}
    assert canonical_json(whole).decode() == case["canonical_json"]
    assert canonical_json_general(whole).decode() == case["canonical_json"]
    assert fingerprint(tenant_norm=tenant_norm, **command) == case["fingerprint"]


@pytest.mark.parametrize("case", VECTORS["keys"], ids=lambda case: case["idempotency_hash"][:8])
def test_key_vector(case: dict[str, Any]) -> None:
    assert key_hash(normalise(case["tenant_id"]), case["idempotency_key"]) == case["idempotency_hash"]


@given(values | plain_values)
@settings(max_examples=400)
def test_the_quick_way_equals_the_general_way(value: Any) -> None:
    assert canonical_json(value) == canonical_json_general(value)


def _without_null_members(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_null_members(item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_null_members(item) for item in value]
    return value


def _as_doubles(value: Any) -> Any:
    """Whole floats above 2^53 are printed with fewer digits than the integer has, as ECMAScript does."""
    if isinstance(value, dict):
        return {name: _as_doubles(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_as_doubles(item) for item in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


@given(values)
def test_it_reads_back_as_the_same_value(value: Any) -> None:
    assert _as_doubles(json.loads(canonical_json(value))) == _as_doubles(_without_null_members(value))


@given(plain_values)
def test_integers_read_back_digit_by_digit(value: Any) -> None:
    assert json.loads(canonical_json(value)) == value


@given(values)
def test_it_is_a_fixed_point(value: Any) -> None:
    once = canonical_json(value)
    assert canonical_json(json.loads(once)) == once


@given(st.dictionaries(texts, st.integers(), max_size=8))
def test_names_stand_in_utf16_order(value: dict[str, int]) -> None:
    names = list(json.loads(canonical_json(value)))
    assert names == sorted(names, key=lambda name: name.encode("utf-16-be"))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_keep_their_value_in_the_ecmascript_form(number: float) -> None:
    text = canonical_json(number).decode()
    assert float(text) == number
    assert not text.endswith(".0")
    exponent = abs(number) >= 1e21 or 0 < abs(number) < 1e-6
    assert ("e" in text) == exponent


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1e21, "1e+21"),
        (999999999999999900000.0, "999999999999999900000"),
        (1e-7, "1e-7"),
        (1.5e-9, "1.5e-9"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (-0.0, "0"),
        (-1.25, "-1.25"),
        (333333333.33333329, "333333333.3333333"),
        (1e23, "1e+23"),
        (4.5, "4.5"),
        (2e-3, "0.002"),
    ],
)
def test_number_forms_of_rfc_8785(number: float, text: str) -> None:
    assert canonical_json(number).decode() == text


def test_long_integers_keep_every_digit() -> None:
    number = 10**4000 + 7
    assert canonical_json({"n": number}).decode() == '{"n":1' + "0" * 3999 + "7}"


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_a_number_is_a_fault(number: float) -> None:
    with pytest.raises(ValueError, match=r"^NaN and infinities have no JSON form$"):
        canonical_json([number])


def test_what_is_not_json_is_a_fault() -> None:
    with pytest.raises(TypeError, match=r"^not a JSON value: set$"):
        canonical_json({"a": {1, 2}})


PLAIN: list[Any] = [
    "text",
    "naïve",
    5,
    True,
    None,
    {},
    [],
    {"a": "x", "b": 1, "c": True, "d": {"e": [None, "x"]}},
    [1, [None], {"a": False}],
]
NOT_PLAIN: list[Any] = [
    1.5,
    (1, 2),
    {"a": None},
    {"a": 1.5},
    {"a": [1.5]},
    {"a": {"b": None}},
    {"ä": "x"},
    {"ä": 1},
    {"ä": True},
    {"ä": []},
    {"a": {"ä": 1}},
    [1, 1.5],
    [{"a": None}],
    [{"ä": 1}],
]


@pytest.mark.parametrize(("value", "quick"), [(it, True) for it in PLAIN] + [(it, False) for it in NOT_PLAIN])
def test_which_values_take_the_quick_way(value: Any, quick: bool) -> None:
    """The bytes are the same either way, so only this shows that the quick way is still taken."""
    assert _is_plain(value) is quick
