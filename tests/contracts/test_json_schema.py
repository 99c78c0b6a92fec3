"""Schemas from outside: measured before they are used, and held against values within bounds."""

import time
from typing import Any

import pytest

from lucius.contracts.json_schema import CheckedSchema, SchemaFault, check_schema
from lucius.contracts.payload_limits import DEPTH_MAX
from lucius.contracts.schema_cost import LEVELS_MAX
from lucius.contracts.schema_patterns import pattern_weight
from lucius.core.model import ProtocolSpec, StepPolicy
from lucius.core.refusal import Refused
from lucius.registry import step_payloads
from lucius.registry.documents import load_document, parse_protocol
from lucius.sdk import Final
from lucius.services.prompts import prompts_in

SECONDS_MAX = 1.0


def branching(levels: int, wide: int, keyword: str = "anyOf", **more: Any) -> dict[str, Any]:
    """`wide ** levels` ways to the last part."""
    parts: dict[str, Any] = {
        f"n{level}": {keyword: [{"$ref": f"#/$defs/n{level + 1}", **_told_apart(n)} for n in range(wide)]}
        for level in range(levels)
    }
    return {"$ref": "#/$defs/n0", "$defs": {**parts, f"n{levels}": {"type": "integer"}}, **more}


def _told_apart(number: int) -> dict[str, Any]:
    return {"minLength": number}


def filters(branches: int = 3) -> dict[str, Any]:
    """A language of filters: each operator has a branch of its own, and all lead on through `a`."""
    operators = [
        {
            "type": "object",
            "properties": {
                "op": {"const": f"op{n}"},
                "a": {"$ref": "#/$defs/filter"},
                "b": {"$ref": "#/$defs/filter"},
            },
            "required": ["op", "a"],
        }
        for n in range(branches)
    ]
    leaf = {
        "type": "object",
        "properties": {"op": {"const": "eq"}},
        "required": ["op"],
        "additionalProperties": False,
    }
    return {
        "$defs": {"filter": {"oneOf": [*operators, leaf]}},
        "properties": {"filter": {"$ref": "#/$defs/filter"}},
    }


def nested(levels: int, leaf: Any) -> Any:
    for _ in range(levels):
        leaf = {"op": "op0", "a": leaf}
    return {"filter": leaf}


def checked(schema: Any) -> CheckedSchema:
    found = check_schema(schema)
    assert isinstance(found, CheckedSchema), found
    return found


def refused(schema: Any) -> SchemaFault:
    begun = time.perf_counter()
    found = check_schema(schema)
    assert isinstance(found, SchemaFault)
    assert time.perf_counter() - begun < SECONDS_MAX
    return found


def entangled(wide: int) -> dict[str, Any]:
    """Each part refers to all that come after it, at the same value."""
    parts = {
        f"n{n}": {"allOf": [{"$ref": f"#/$defs/n{later}"} for later in range(n + 1, wide)]}
        for n in range(wide)
    }
    return {"$ref": "#/$defs/n0", "$defs": parts}


def many_ways(levels: int, wide: int) -> dict[str, Any]:
    """The same, one level deeper with each reference."""
    return {
        "$defs": {
            f"n{level}": {"anyOf": [{"items": {"$ref": f"#/$defs/n{level + 1}"}} for _ in range(wide)]}
            for level in range(levels)
        }
        | {f"n{levels}": {}},
        "$ref": "#/$defs/n0",
    }


@pytest.mark.parametrize(
    "schema",
    [
        branching(8, 8),
        branching(8, 8, "allOf"),
        branching(8, 8, "oneOf"),
        branching(5, 8, "allOf", unevaluatedProperties=False),
        branching(40, 2),
        entangled(60),
        many_ways(3, 50),
        filters(60),
        {"properties": {f"p{n}": {"pattern": "a" * 200} for n in range(200)}},
        {"patternProperties": {f"^({n}x{{1,1000}}){{1,1000}}$": {} for n in range(3)}},
        {"pattern": "((((a{99}){99}){99}){99}){99}"},
        {"enum": [], "examples": [], "anyOf": [{"const": n} for n in range(12_000)]},
    ],
)
def test_a_schema_that_would_cost_too_much_is_refused_before_it_is_used(schema: Any) -> None:
    assert refused(schema).too_complex


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {
            "$ref": "#/$defs/a",
            "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"not": {"$ref": "#/$defs/a"}}},
        },
        {"$ref": "https://json-schema.org/draft/2020-12/schema"},
        {"$ref": "#/$defs/nowhere"},
        {"$ref": "#/$defs/a%20b", "$defs": {"a b": {}}},
        {"$dynamicRef": "#node"},
        {"properties": {"a": {"$id": "https://example.com/a", "$ref": "#/x"}}},
        {"$defs": {"a": {"$anchor": "x"}, "b": {"$anchor": "x"}}, "$ref": "#x"},
        {"pattern": "^(?=.*[0-9])(a|a)*$"},
        {"pattern": r"(a+)\1"},
        {"pattern": "("},
        {"type": "none"},
    ],
)
def test_what_cannot_be_measured_or_compiled_is_refused(schema: Any) -> None:
    assert not refused(schema).too_complex


def test_a_pattern_that_looks_around_is_told_as_that() -> None:
    assert "in one pass" in refused({"pattern": "^(?!a)b*$"}).message


def test_what_people_write_passes() -> None:
    tree = {
        "$anchor": "tree",
        "properties": {name: {"$ref": "#tree"} for name in ("left", "right", "up", "down")},
        "additionalProperties": False,
    }
    assert checked(tree).fits({"left": {"right": {"left": {"down": {}}}}})
    wide = {
        "properties": {f"p{n}": {"$ref": "#/$defs/text"} for n in range(500)},
        "$defs": {"text": {"type": "string"}},
    }
    assert checked(wide).fits({f"p{n}": "x" for n in range(500)})
    assert checked({"properties": {"$id": {"type": "string"}, "$ref": {"type": "string"}}}).fits({"$id": "x"})
    assert checked({"const": {"$ref": "https://example.com"}}).fits({"$ref": "https://example.com"})
    name = checked({"pattern": r"^[a-z]{1,63}(\.[a-z]{1,63}){0,9}$"})
    assert name.fits("a.b.c")
    assert not name.fits("a..c")
    base = {"allOf": [{"$ref": "#/$defs/base"}], "unevaluatedProperties": False}
    assert checked({**base, "$defs": {"base": {"properties": {"a": {}}}}}).fits({"a": 1})


def test_a_recursion_is_evaluated_and_told_within_bounds() -> None:
    schema = checked(filters())
    assert schema.fits(nested(DEPTH_MAX - 2, {"op": "eq"}))
    begun = time.perf_counter()
    for levels in range(DEPTH_MAX - 1):
        value = nested(levels, {"op": "x"})
        assert not schema.fits(value)
        faults = schema.faults(value, count_max=10)
        assert len(faults) == 1
    assert time.perf_counter() - begun < 2 * SECONDS_MAX
    assert "too often to say where" in faults[0].message
    assert schema.faults(nested(2, {"op": "x"}), count_max=10)[0].path == ("filter",)


def test_whether_a_value_fits_is_found_without_following_every_way() -> None:
    """The evaluator remembers what a reference came to. All bounds on `fits` stand on it."""
    wide = {
        "oneOf": [
            {"properties": {"a": {"$ref": "#"}, "n": {"const": n}}, "required": ["a"]} for n in range(8)
        ]
    }
    leaf: Any = 1
    for _ in range(LEVELS_MAX):
        leaf = {"a": leaf}
    begun = time.perf_counter()
    assert not checked(wide).fits(leaf)
    assert not checked(branching(4, 8, "allOf")).fits("x" * 4)
    assert time.perf_counter() - begun < SECONDS_MAX


def test_a_value_that_is_too_large_for_its_schema_is_refused() -> None:
    wide = checked({"items": {"anyOf": [{"const": n} for n in range(3000)]}})
    assert wide.fits([2999] * 10)
    faults = wide.faults([-1] * 50_000, count_max=10)
    assert [fault.path for fault in faults] == [()]
    assert "too large" in faults[0].message
    deep: Any = []
    for _ in range(400):
        deep = [deep]
    assert len(checked({"items": {"$ref": "#"}, "maxItems": 0}).faults(deep, count_max=10)) == 1


NAMES = [f"n{n}" for n in range(30)]


@pytest.mark.parametrize(
    ("schema", "item"),
    [
        ({"items": {"required": NAMES}}, {}),
        ({"items": {"dependentRequired": {"a": NAMES}}}, {"a": 1}),
        (
            {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "items": {"dependencies": {"a": NAMES}},
            },
            {"a": 1},
        ),
        ({"items": False}, 0),
        ({"items": {"type": "string", "enum": ["a"], "const": "a"}}, 0),
        ({"items": {"multipleOf": 0.01}}, 1.23e-300),
    ],
)
def test_a_small_schema_with_many_objections_is_told_without_collecting_them(schema: Any, item: Any) -> None:
    """A report holds every objection before it tells the first: 85,000 items took 14 s and a gigabyte."""
    rules = checked(schema)
    assert len(rules.faults([item] * 10, count_max=20)) >= 10
    begun = time.process_time()
    faults = rules.faults([item] * 60_000, count_max=20)
    assert time.process_time() - begun < SECONDS_MAX
    assert [(fault.path, fault.lasting) for fault in faults] == [((), True)]


def test_objections_are_counted_where_they_may_be() -> None:
    """Not the product of all: a long list beside a schema with many parts is still told where it is wrong."""
    schema = checked(
        {
            "properties": {f"p{n}": {"type": "string"} for n in range(500)}
            | {"vector": {"items": {"type": "number"}}},
            "required": [f"p{n}" for n in range(500)],
        }
    )
    value = {f"p{n}": "x" for n in range(499)} | {"p499": 1, "vector": [0.5] * 10_000}
    assert [fault.path for fault in schema.faults(value, count_max=20)] == [("p499",)]


@pytest.mark.parametrize(
    ("pattern", "weight"),
    [
        ("", 0),
        ("abc", 3),
        (r"^\d{4}-\d{2}$", 7),
        ("(ab){3}", 9),
        ("[a-z]{2,5}x*", 6),
        ("(a{10}){10}", 110),
        (r"\p{L}{3}", 120),
        ("a{,3}", 5),
        (")(", 2),
    ],
)
def test_patterns_are_weighed_with_their_repetitions_written_out(pattern: str, weight: int) -> None:
    assert pattern_weight(pattern) == weight


def one_step(schema: Any) -> ProtocolSpec | tuple[str, ...]:
    step = {"step_type": "S", "service": "s", "payload_schema": schema}
    return parse_protocol(
        {"protocol_id": "p", "request_types": ["P"], "steps": [step]}, defaults=StepPolicy()
    )


def test_a_protocol_whose_schema_costs_too_much_is_not_loaded() -> None:
    problems = one_step(branching(8, 8))
    assert isinstance(problems, tuple)
    assert problems[0].startswith(
        "/steps/0/payload_schema: is not a usable JSON Schema: one value would be checked"
    )


def test_a_payload_that_does_not_fit_a_recursive_schema_is_refused_at_once() -> None:
    protocol = one_step(filters())
    assert isinstance(protocol, ProtocolSpec)
    begun = time.perf_counter()
    found = step_payloads(protocol, nested(DEPTH_MAX - 2, {"op": "x"}))
    assert time.perf_counter() - begun < 0.1
    assert isinstance(found, Refused)
    assert [error.pointer for error in found.errors] == ["/payload"]
    near = step_payloads(protocol, nested(1, {"op": "x"}))
    assert isinstance(near, Refused)
    assert [error.pointer for error in near.errors] == ["/payload/filter"]


def test_a_clients_schema_that_costs_too_much_has_a_code_of_its_own() -> None:
    with pytest.raises(Final) as failure:
        prompts_in({"prompt": "Which?", "output_schema": branching(8, 8)})
    assert failure.value.code == "OUTPUT_SCHEMA_TOO_COMPLEX"


@pytest.mark.parametrize(
    "raw",
    [
        "a0: &a0 {k: 1}\n"
        + "".join(f"a{n}: &a{n} {{<<: [{','.join([f'*a{n - 1}'] * 8)}]}}\n" for n in range(1, 9)),
        f"a: {'1:' * 100_000}1\n",
        f"a: {'9' * 200_000}\n",
    ],
)
def test_yaml_that_unfolds_or_counts_for_ever_is_refused_at_once(raw: str) -> None:
    begun = time.perf_counter()
    _, problem = load_document(raw.encode(), is_json=False)
    assert problem is not None
    assert time.perf_counter() - begun < 2 * SECONDS_MAX
