"""Payloads made from schemas fit them, or there is none."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lucius.core.model import ProtocolSpec, StepSpec
from lucius.core.refusal import Refused
from lucius.registry.payload_examples import payload_example
from lucius.registry.payloads import step_payloads


def protocol(*schemas: Any, keys: bool = False, **more: Any) -> ProtocolSpec:
    steps = tuple(
        StepSpec(
            step_type=f"S{at}",
            service="s",
            payload_key=f"s{at}" if keys else None,
            payload_schema=schema,
            **more,
        )
        for at, schema in enumerate(schemas)
    )
    return ProtocolSpec(protocol_id="p", request_types=("P",), steps=steps)


def an_object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({}, {}),
        ({"type": "object"}, {}),
        (an_object([], a={"type": "string"}), {}),
        (an_object(["a"], a={"type": "string"}), {"a": "text"}),
        (an_object(["a"], a={"type": "string", "minLength": 6}), {"a": "text.."}),
        (an_object(["a"], a={"type": "string", "maxLength": 2}), {"a": "te"}),
        (an_object(["a"], a={"enum": ["x", "y"]}), {"a": "x"}),
        (an_object(["a"], a={"type": "string", "examples": ["Why?"], "default": "d"}), {"a": "Why?"}),
        (an_object(["a"], a={"const": None}), {}),
        (an_object(["a"], a={"type": ["null", "integer"], "minimum": 5}), {"a": 5}),
        (an_object(["a"], a={"type": "integer", "maximum": -3}), {"a": -3}),
        (an_object(["a"], a={"type": "boolean"}), {"a": True}),
        (an_object(["a"], a={"type": "array", "minItems": 2, "items": {"type": "number"}}), {"a": [1, 1]}),
        (an_object(["a"], a=an_object(["b"], b={"type": "string"})), {"a": {"b": "text"}}),
        ({**an_object([], a={"type": "string"}), "anyOf": [{"required": ["a"]}]}, {"a": "text"}),
        ({"allOf": [an_object(["a"], a={"const": 7})]}, {"a": 7}),
    ],
)
def test_the_smallest_payload_is_made(schema: dict[str, Any], expected: dict[str, Any]) -> None:
    made = payload_example(protocol(schema))
    assert made == expected or (made is None and schema["properties"]["a"] == {"const": None})


def test_steps_have_their_own_members() -> None:
    needs = an_object(["a"], a={"type": "string"})
    assert payload_example(protocol({}, needs, keys=True)) == {"s1": {"a": "text"}}


def test_where_none_can_be_made_there_is_none() -> None:
    for part in ({"type": "string", "pattern": "^[0-9]{9}$"}, {"type": "string", "not": {}}, False):
        assert payload_example(protocol(an_object(["a"], a=part))) is None


_SCHEMAS = st.recursive(
    st.sampled_from([{"type": kind} for kind in ("string", "integer", "number", "boolean", "null", "array")])
    | st.fixed_dictionaries({"type": st.just("string"), "minLength": st.integers(0, 9)})
    | st.fixed_dictionaries({"enum": st.lists(st.integers(), min_size=1, max_size=2)}),
    lambda inner: (
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1).flatmap(
            lambda properties: st.lists(st.sampled_from(sorted(properties)), unique=True).map(
                lambda required: {"type": "object", "properties": properties, "required": required}
            )
        )
        | inner.map(lambda items: {"type": "array", "items": items, "minItems": 1})
    ),
    max_leaves=6,
)


@given(st.fixed_dictionaries({"a": _SCHEMAS, "b": _SCHEMAS}))
def test_what_is_made_fits(properties: dict[str, Any]) -> None:
    recipe = protocol(an_object(["a", "b"], **properties))
    made = payload_example(recipe)
    assert made is None or not isinstance(step_payloads(recipe, made), Refused)
