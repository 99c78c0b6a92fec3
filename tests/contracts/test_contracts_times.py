"""RFC 3339, to and fro."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lucius.contracts.times import parse_rfc3339, rfc3339, rfc3339_or_none


def test_form() -> None:
    assert rfc3339(0) == "1970-01-01T00:00:00.000Z"
    assert rfc3339(1_769_508_150_007) == "2026-01-27T10:02:30.007Z"
    assert rfc3339(-1) == "1969-12-31T23:59:59.999Z"
    assert rfc3339_or_none(None) is None
    assert rfc3339_or_none(5) == "1970-01-01T00:00:00.005Z"


@given(st.integers(min_value=-62_135_596_800_000, max_value=253_402_300_799_999))
def test_round_trip(at_ms: int) -> None:
    text = rfc3339(at_ms)
    assert len(text) == 24
    assert parse_rfc3339(text) == at_ms


@given(st.datetimes(timezones=st.just(UTC)))
def test_agrees_with_the_standard_library(moment: datetime) -> None:
    whole = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    at_ms = parse_rfc3339(whole.isoformat())
    assert at_ms is not None
    assert rfc3339(at_ms) == whole.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@pytest.mark.parametrize(
    ("text", "same_as"),
    [
        ("2026-01-27T10:02:00Z", "2026-01-27T10:02:00.000Z"),
        ("2026-01-27t10:02:00z", "2026-01-27T10:02:00.000Z"),
        ("2026-01-27T10:02:00.5Z", "2026-01-27T10:02:00.500Z"),
        ("2026-01-27T10:02:00.123999Z", "2026-01-27T10:02:00.123Z"),
        ("2026-01-27T12:02:00+02:00", "2026-01-27T10:02:00.000Z"),
        ("2026-01-27T04:32:00-05:30", "2026-01-27T10:02:00.000Z"),
        ("2016-12-31T23:59:60Z", "2017-01-01T00:00:00.000Z"),
    ],
)
def test_other_spellings(text: str, same_as: str) -> None:
    at_ms = parse_rfc3339(text)
    assert at_ms is not None
    assert rfc3339(at_ms) == same_as


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-01-27",
        "2026-01-27T10:02:00",
        "2026-01-27 10:02:00Z",
        "2026-13-01T00:00:00Z",
        "now",
        "2026-02-30T00:00:00Z",
        "2026-01-27T24:00:00Z",
        "2026-01-27T10:02:00+24:00",
        "2026-01-27T10:02:00+0200",
        "٢026-01-27T10:02:00Z",
        "2026-01-27T10:02:61Z",
        " 2026-01-27T10:02:00Z",
        "0000-01-01T00:00:00Z",
    ],
)
def test_refuses(text: str) -> None:
    assert parse_rfc3339(text) is None
