"""Answers for agents are bounded, and effects need a confirmation of their own call."""

import json

import pytest

from lucius.mcp.answers import ANSWER_CHARS_MAX, NOTICE, TEXT_CHARS_MAX, Confirmations, told
from lucius.mcp.docs import found

CALL = {"tool": "act_on_jobs", "action": "cancel", "job_ids": ["job_1"]}


@pytest.mark.parametrize(
    "doc",
    [
        {"items": [{"text": "x" * 10_000, "n": n} for n in range(1_000)]},
        {str(n): {"deep": "y" * 400} for n in range(5_000)},
        ["é\u202e" * 5_000] * 500,
        {"a" * 100_000: 1},
        {"a": {"b": {"c": {"d": {"e": {"f": {"g": {"h": {"i": [1]}}}}}}}}},
    ],
)
def test_no_answer_is_longer_than_the_bound(doc: object) -> None:
    text = told(doc, preview=True)
    assert len(text) <= ANSWER_CHARS_MAX and text.isascii()
    answer = json.loads(text)
    assert (answer["preview"], answer["notice"]) == (True, NOTICE)


def test_what_was_left_out_is_said() -> None:
    answer = json.loads(told({"items": list(range(60)), "text": "z" * (TEXT_CHARS_MAX + 7)}))["data"]
    assert answer["items"][-1] == "… (10 left out)"
    assert answer["text"].endswith("… (7 characters left out)")


def test_a_confirmation_is_of_one_call_one_caller_and_some_minutes() -> None:
    book = Confirmations(b"s" * 32, seconds=600)
    given = book.given_out(CALL, "me", 1_000.0)
    assert book.holds(given, dict(reversed(CALL.items())), "me", 1_599.0)
    assert not book.holds(given, CALL, "me", 1_601.0)
    assert not book.holds(given, CALL, "you", 1_000.0)
    assert not book.holds(given, {**CALL, "job_ids": ["job_1", "job_2"]}, "me", 1_000.0)
    assert not Confirmations(b"t" * 32, seconds=600).holds(given, CALL, "me", 1_000.0)
    for shown in ("", "-", "x-y", "99999999999999-a", f"9{given}", "é-1"):
        assert not book.holds(shown, CALL, "me", 1_000.0)


def test_sections_with_most_of_the_words_come_first() -> None:
    best = found("retention of ended jobs setting days")
    assert best and len(best) <= 5
    assert all(each["text"] for each in best[:1])
    assert found("zzzzqqqq xxxyyy") == []
