"""From bytes to JSON: what passes is safe to keep, what does not is refused with the right code."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lucius.contracts.documents import DEPTH_MAX, parse_json, parse_list, parse_message
from lucius.core.canonical import canonical_json
from lucius.core.refusal import Code, Refused

ITEMS_MAX = 500


def parse(raw: bytes) -> list[bytes] | Refused:
    return parse_list(raw, "commands", items_max=ITEMS_MAX)


VECTORS: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parents[1] / "vectors" / "idempotency.json").read_text("utf-8")
)


@pytest.mark.parametrize("case", VECTORS["refused"], ids=lambda case: case["name"])
def test_refused_vector(case: dict[str, Any]) -> None:
    refused = parse_json(case["body"].encode())
    assert isinstance(refused, Refused)
    assert refused.code == case["code"]


@pytest.mark.parametrize(
    "case", [case for case in VECTORS["commands"] if "body" in case], ids=lambda case: case["name"]
)
def test_raw_bodies_canonicalise_as_the_vectors_say(case: dict[str, Any]) -> None:
    assert canonical_json(parse_json(case["body"].encode())).decode() == case["canonical_json"]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"   \n",
        b"{",
        b'{"a":}',
        b"{'a':1}",
        b'{"a":1,}',
        b"[1,]",
        b"nul",
        b"1 2",
        b'"\xff"',
        b"\xff\xfe{}",
        b'"\xed\xa0\x80"',
        b'"\\ud83d"',
        b'"\\ude00\\ud83d"',
        b'{"\\ud800":1}',
        b'"\\ud83dx"',
        b"NaN",
        b"-Infinity",
        b'"\x01"',
        b"01",
        b"1.",
        b"+1",
        b".5",
        b"0x10",
        b"\xef\xbb\xbf{}",
        b'"\\x41"',
        b"tru",
        b'{"a" 1}',
    ],
)
def test_malformed(raw: bytes) -> None:
    refused = parse_json(raw)
    assert isinstance(refused, Refused)
    assert refused.code is Code.MALFORMED_JSON


@pytest.mark.parametrize(
    "raw", [b"1e400", b'{"a":[-1e309]}', b"1" * 5000, b'{"a":-' + b"9" * 6000 + b"}", b"9" * 400 + b".5"]
)
def test_numbers_out_of_range(raw: bytes) -> None:
    refused = parse_json(raw)
    assert isinstance(refused, Refused)
    assert refused.code is Code.INVALID_ENVELOPE
    assert refused.errors


BROKEN = (
    b"}",
    b"",
    b"NaN",
    b"1.",
    b'"\xff"',
    b'{"\xed\xa0\x80":1}',
    b'"\\ud800"',
    b'"\\ude00"',
    b'"\x01"',
    b"1]]",
)


@pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"9" * 5_000], ids=["high", "low", "long"])
@pytest.mark.parametrize("broken", BROKEN)
def test_what_is_no_json_behind_a_number_out_of_range_is_still_malformed(
    number: bytes, broken: bytes
) -> None:
    for raw in (b"[%b, %b]", b"[%b, {}, %b", b'[{"a": %b, "a": %b}]', b"%b %b,"):
        refused = parse_json(raw % (number, broken))
        assert isinstance(refused, Refused)
        assert refused.code is Code.MALFORMED_JSON
    listed = parse(b'{"commands": [%b], "x": %b}' % (number, broken))
    assert isinstance(listed, Refused)
    assert listed.code is Code.MALFORMED_JSON


def test_the_last_of_two_members_of_one_name_counts_but_both_are_read() -> None:
    assert parse_json(b'{"a": 1, "a": 2}') == {"a": 2}
    for raw in (b'{"a": 1e999, "a": 2}', b'{"a": 2, "a": 1e999}'):
        refused = parse_json(raw)
        assert isinstance(refused, Refused)
        assert refused.code is Code.INVALID_ENVELOPE


DEEP = b"[" * 5_000 + b"]" * 5_000


def test_an_item_that_is_nested_too_deep_spoils_only_itself() -> None:
    others = [b'{"a": "x, ]} \\" [{"}', b" 7", b"[[], {}]"]
    raw = b' {\n"commands" : [%b, %b,%b , %b]}\n' % (others[0], DEEP, others[1], others[2])
    listed = parse(raw)
    assert isinstance(listed, list)
    assert [item.strip() for item in listed] == [others[0], DEEP, others[1].strip(), others[2]]
    deep = parse_json(listed[1])
    assert isinstance(deep, Refused)
    assert deep.code is Code.INVALID_ENVELOPE


@pytest.mark.parametrize("alone", [rb"\udc80", rb"\uD800", rb"\ud83dx", rb"\\\uDFFF \n", rb"\ude00\ud83d"])
def test_a_surrogate_that_stands_alone_spoils_only_its_item(alone: bytes) -> None:
    sound = rb'{"a": "\ud83d\ude00 \\ud800 ]"}'
    spoilt = b'{"%b": "%b"}' % (alone, alone)
    listed = parse(b'{"commands": [%b, %b]}' % (spoilt, sound))
    assert isinstance(listed, list)
    refused = parse_json(listed[0])
    assert isinstance(refused, Refused)
    assert refused.code is Code.MALFORMED_JSON
    assert parse_json(listed[1]) == {"a": "\U0001f600 \\ud800 ]"}


@pytest.mark.parametrize(
    "broken", [b"NaN", b'"\x01"', b'{"a": 1,}', rb'"\x"', rb'"\ud8zz"', b"", rb'"\udc80" 1']
)
def test_what_is_no_json_spoils_the_list(broken: bytes) -> None:
    refused = parse(b'{"commands": [%b, 1]}' % broken)
    assert isinstance(refused, Refused)
    assert refused.code is Code.MALFORMED_JSON


UNREADABLE = [b"[" * 70 + b"]" * 70, b"1e999", b"9" * 5_000]


@pytest.mark.parametrize("value", UNREADABLE, ids=["depth", "number", "digits"])
def test_a_member_that_nobody_knows_and_that_cannot_be_read_is_left_out(value: bytes) -> None:
    raw = b'{"a": 1, "zzz": %b, "b": [2]}' % value
    assert parse_message(raw, {"a", "c"}) == {"a": 1, "b": [2]}
    refused = parse_message(raw, {"a", "zzz"})
    assert isinstance(refused, Refused)
    assert refused.code is Code.INVALID_ENVELOPE


@pytest.mark.parametrize(
    "raw", [b"[1e999]", b'{"a": 1e999, "b": NaN}', b'{"a": %b}' % (b"[" * 5_000 + b"]" * 5_000)]
)
def test_a_message_that_cannot_be_read_at_all_is_refused(raw: bytes) -> None:
    assert parse_message(raw, ()) == parse_json(raw)
    assert isinstance(parse_json(raw), Refused)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"commands": [%b], "x": 1}' % DEEP,
        b'{"commands": {"a": %b}}' % DEEP,
        b'{"com mands": [%b]}' % DEEP,
        b'{"commands": [%b]]}' % DEEP,
        b'{"commands": [%b}]}' % DEEP,
        b'{"commands": [%b, {"a": "x}]}' % DEEP,
        b'{"commands": [%b, "]}' % DEEP,
        b'{"commands": [%b]}' % (DEEP + b"[]" * 1_000_001),
        b'{\x0b"commands": [%b]}' % DEEP,
    ],
    ids=["beside", "object", "name", "closed", "unopened", "endless", "quote", "marks", "blank"],
)
def test_a_deep_list_whose_items_cannot_be_told_apart_is_refused(raw: bytes) -> None:
    assert isinstance(parse(raw), Refused)


# Each as a beginning, what comes over and over for sixteen megabytes, and an end.
HOSTILE = {
    "a text without end": (b'"', b"a", b""),
    "escapes": (b'{"a": "', rb"\n", rb'\ud800"}'),
    "backslashes": (b'{"a": "', rb"\\", rb'\ud800"}'),
    "surrogates": (b'{"a": "', rb"\ud800", b'"}'),
    "items": (b"", b"1,", rb'"\ud800"'),
    "brackets": (b"", b"[", b""),
    "blanks": (b"", b" ", b"NaN"),
}


@pytest.mark.parametrize("parts", HOSTILE.values(), ids=HOSTILE)
def test_no_body_keeps_a_process_busy_for_long(parts: tuple[bytes, bytes, bytes]) -> None:
    """Of the largest that are read; other calls wait meanwhile."""
    begin, middle, end = parts
    inner = begin + middle * (16_000_000 // len(middle)) + end
    began = time.process_time()
    parse(b'{"commands": [%b]}' % inner)
    parse_message(b'{"zzz": [%b]}' % inner, ())
    assert time.process_time() - began < 2.0


def test_more_items_than_may_be_are_not_looked_at() -> None:
    listed = parse(b'{"commands": [%b"\\ud800"]}' % (b"1," * 10_000))
    assert isinstance(listed, list)
    assert len(listed) == ITEMS_MAX + 1


@pytest.mark.parametrize("raw", [b"[" * 200_000, b'{"a":' * 100_000, b"[" * 5000 + b"]" * 5000])
def test_a_bottomless_body_is_refused_cleanly(raw: bytes) -> None:
    assert isinstance(parse_json(raw), Refused)


def test_depth_is_bounded_exactly() -> None:
    assert not isinstance(parse_json(b"[" * DEPTH_MAX + b"]" * DEPTH_MAX), Refused)
    refused = parse_json(b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1))
    assert isinstance(refused, Refused)
    assert refused.code is Code.INVALID_ENVELOPE


def test_many_brackets_are_not_depth() -> None:
    wide = [{"a": [1, {}]} for _ in range(500)]
    assert parse_json(json.dumps(wide).encode()) == wide
    brackets = {"text": "[{" * 500}
    assert parse_json(json.dumps(brackets).encode()) == brackets


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


@given(values)
def test_reads_what_the_standard_library_writes(value: Any) -> None:
    assert parse_json(json.dumps(value).encode()) == value


@given(st.binary(max_size=60))
def test_any_bytes_give_a_value_or_a_refusal(raw: bytes) -> None:
    value = parse_json(raw)
    if not isinstance(value, Refused):
        assert canonical_json(value)
