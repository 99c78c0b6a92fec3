"""Spans as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lucius.core.durations import DURATION_MS_MAX, parse_duration_ms


@pytest.mark.parametrize(
    ("value", "span_ms"),
    [
        (30, 30_000),
        (0, 0),
        (0.5, 500),
        (1.0, 1000),
        ("500ms", 500),
        ("30s", 30_000),
        ("15m", 900_000),
        ("2h", 7_200_000),
        ("24h", 86_400_000),
        ("7d", 604_800_000),
        ("1.5h", 5_400_000),
        ("0s", 0),
        ("30", 30_000),
        ("0.25", 250),
        (" 30s ", 30_000),
        ("3650d", DURATION_MS_MAX),
        (DURATION_MS_MAX // 1_000, DURATION_MS_MAX),
    ],
)
def test_reads(value: object, span_ms: int) -> None:
    assert parse_duration_ms(value) == span_ms


@pytest.mark.parametrize(
    "value",
    [
        -1,
        -0.5,
        float("nan"),
        float("inf"),
        10**30,
        1e300,
        True,
        False,
        None,
        [],
        {},
        "",
        "s",
        "ms",
        "-5s",
        "30 s",
        "1h30m",
        "30S",
        "1e3s",
        "NaN",
        "inf",
        "٣s",
        "30sec",
        "5w",
        "1.",
        ".5s",
        "9" * 400,
        "99999d",
        "3651d",
        DURATION_MS_MAX // 1_000 + 1,
    ],
)
def test_refuses(value: object) -> None:
    assert parse_duration_ms(value) is None


@given(st.integers(min_value=0, max_value=DURATION_MS_MAX))
def test_every_span_can_be_written_in_milliseconds(span_ms: int) -> None:
    assert parse_duration_ms(f"{span_ms}ms") == span_ms


@given(st.text(max_size=12))
def test_any_text_gives_a_bounded_span_or_nothing(text: str) -> None:
    span_ms = parse_duration_ms(text)
    assert span_ms is None or 0 <= span_ms <= DURATION_MS_MAX
