"""Tables and keys in Azure's alphabet: what Azure takes, in the old order, and back again."""

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lucius.ledger.azure_tables.names import (
    bound_to_azure,
    check_prefix,
    key_from_azure,
    key_to_azure,
    table_from_azure,
    table_to_azure,
)
from lucius.ledger.names import Tables
from lucius.ledger.store import KEY_LENGTH_MAX

AZURE_TABLE = re.compile("[A-Za-z][A-Za-z0-9]{2,62}")
REFUSED = re.compile(r"[#/\\?\x00-\x1f\x7f-\x9f%'+& ]")
EDGES = (
    "\x00\x1f #$%&'()*+,-./09:;<=>?@AZ[\\]^_`az{|}~\x7f\x9f\xa0é€\ud7fe\ud7ff\ue000\uffff\U00010000\U0010ffff"
)
KEYS = st.text(st.one_of(st.sampled_from(EDGES), st.characters(exclude_categories=["Cs"])), max_size=40)
TABLES = st.from_regex(re.compile("[a-zA-Z][a-zA-Z0-9_-]{0,20}"), fullmatch=True).filter(
    lambda name: not name.lower().startswith("sqlite_")
)


@given(KEYS)
def test_a_key_comes_back(key: str) -> None:
    mapped = key_to_azure(key)
    assert key_from_azure(mapped) == key
    assert mapped and REFUSED.search(mapped) is None
    assert len(mapped.encode("utf-16-le")) == 2 * len(mapped) <= 6 * max(1, len(key))


@given(KEYS, KEYS)
def test_keys_sort_as_before(one: str, other: str) -> None:
    first, second = key_to_azure(one), key_to_azure(other)
    assert (first < second) == (one < other)
    # Whether the server compares UTF-16 units or bytes of UTF-8.
    assert (first.encode("utf-16-be") < second.encode("utf-16-be")) == (one < other)
    assert (bound_to_azure(one + "\x00") <= second) == (one + "\x00" <= other)


def test_every_character_has_a_place_of_its_own() -> None:
    points = [*range(0xD800), *range(0xE000, 0x11000), *range(0x1F000, 0x1F800), 0x10FFFF]
    mapped = [key_to_azure(chr(point)) for point in points]
    assert mapped == sorted(set(mapped))


def test_the_keys_of_the_ledger_stay_readable() -> None:
    assert key_to_azure("STEP#0#step_01") == "STEP!Z0!Zstep_01"
    assert key_to_azure("job_01kxyz") == "job_01kxyz"
    assert key_to_azure("") == "!"


@pytest.mark.parametrize("key", ["k" * (KEY_LENGTH_MAX + 1), "#" * 257, "\U0001f600" * 171, "\ud800"])
def test_a_key_that_cannot_be_kept_is_refused(key: str) -> None:
    with pytest.raises(ValueError):
        key_to_azure(key)


def test_the_longest_tenant_fits_everywhere() -> None:
    for letter in ("a", "#", "é", "語", "\U0001f600"):
        assert len(key_to_azure(f"tenant#{letter * 128}#202701")) <= KEY_LENGTH_MAX


@given(TABLES)
def test_a_table_comes_back(table: str) -> None:
    try:
        name = table_to_azure("prod", table)
    except ValueError:
        assume(False)
    assert AZURE_TABLE.fullmatch(name)
    for spelled in (name, name.lower(), name.upper()):
        assert table_from_azure("prod", spelled) == table


@given(TABLES, TABLES, st.sampled_from(["a", "ab", "abc"]), st.sampled_from(["a", "ab", "abc"]))
def test_no_two_tables_meet(one: str, other: str, mine: str, theirs: str) -> None:
    assume((one, mine) != (other, theirs))
    assert table_to_azure(mine, one).lower() != table_to_azure(theirs, other).lower()


def test_the_tables_of_the_ledger() -> None:
    tables = Tables()
    assert table_to_azure("lucius", tables.ledger) == "luciusZluciusZ0ledger"
    assert table_to_azure("lucius", tables.idempotency) == "luciusZjobZ1idempotency"
    assert table_to_azure("lucius", tables.jobs) == "luciusZZJobs"
    assert table_from_azure("lucius", "somebodyElses") is None


def test_a_table_that_grows_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 63"):
        table_to_azure("prod", "A" * 40)


@pytest.mark.parametrize("prefix", ["", "1a", "Prod", "prod-1", "zebra", "lazy", "a" * 17, "ä", "a\n"])
def test_prefixes_are_plain(prefix: str) -> None:
    with pytest.raises(ValueError, match="prefix"):
        check_prefix(prefix)
