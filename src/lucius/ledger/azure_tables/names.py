"""Logical names in Azure's alphabet, and back.

In: the tables and keys of the ledger. Out: names and keys that Azure takes, from which the logical ones can
be told again. Knows nothing of entities or of the wire.

A table name in Azure is 3 to 63 letters and digits and does not distinguish capitals from small letters. Here
`Z` is the sign of escape: `_` is `Z0`, `-` is `Z1`, `z` is `Z2`, and a capital letter follows a `Z` of its
own. The prefix of the installation comes first and ends with a `Z`; it has none itself, so no two prefixes
ever meet.

A key in Azure is at most 512 UTF-16 units without `# / \\ ?` and control characters. What is refused there,
or has a meaning in a URL, becomes a lead character and a digit, and the lead is the first of the run it
stands for, so that **keys sort after the mapping as they did before it**: ranges and pages need no second
thought. From U+D7FF on (where the orders of UTF-16 and of code points part) a character becomes three. So a
key may take up to three times its length; one that grows too long is refused.
"""

import re
from functools import lru_cache
from typing import Final

from lucius.ledger.limits import check_key, check_table
from lucius.ledger.store import KEY_LENGTH_MAX

AZURE_TABLE_LENGTH_MAX: Final = 63
PREFIX_LENGTH_MAX: Final = 16
_PREFIX = re.compile(rf"[a-y][a-y0-9]{{0,{PREFIX_LENGTH_MAX - 1}}}")
_TABLE_SIGNS = {"_": "Z0", "-": "Z1", "z": "Z2"}
_TABLE_LETTERS = {sign: letter for letter, sign in _TABLE_SIGNS.items()}

# Runs of characters that are not written as they are, each under its lead. Between them all are.
_RUNS: Final = ((0x00, 0x23, "!"), (0x24, 0x27, "$"), (0x28, 0x2C, "("), (0x2E, 0x2F, "."), (0x3A, 0x40, ":"))
_RUNS_ABOVE: Final = ((0x5B, 0x5E, "["), (0x7E, 0x9F, "~"))
_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
# The rest of Unicode: this lead and two digits of base 8,192, taken from a block that sorts as it counts.
_HIGH: Final = 0xD7FF
_HIGH_DIGIT_0: Final = 0x4E00
_HIGH_BASE: Final = 8_192
# Sorts before everything that a character can become, so it stands for the empty key.
_EMPTY: Final = "!"


class _Escapes(dict[int, str]):
    def __missing__(self, point: int) -> str:
        if point < _HIGH:
            return chr(point)
        high, low = divmod(point - _HIGH, _HIGH_BASE)
        return chr(_HIGH) + chr(_HIGH_DIGIT_0 + high) + chr(_HIGH_DIGIT_0 + low)


_ESCAPES = _Escapes(
    (point, lead + _DIGITS[point - first])
    for first, last, lead in (*_RUNS, *_RUNS_ABOVE)
    for point in range(first, last + 1)
)
_PLAIN = {text: chr(point) for point, text in _ESCAPES.items()}
_ESCAPED = re.compile(rf"[!$(.:\[~].|{chr(_HIGH)}..")
_UNTOUCHED = re.compile(r"[A-Za-z0-9_-]+")


def check_prefix(prefix: str) -> None:
    if _PREFIX.fullmatch(prefix) is None:
        raise ValueError(
            f"not a prefix of tables: {prefix!r} (1 to {PREFIX_LENGTH_MAX} small letters and digits, no z)"
        )


@lru_cache(maxsize=1024)
def table_to_azure(prefix: str, table: str) -> str:
    check_table(table)
    name = f"{prefix}Z" + "".join(
        _TABLE_SIGNS.get(letter, f"Z{letter}" if letter.isupper() else letter) for letter in table
    )
    if len(name) > AZURE_TABLE_LENGTH_MAX:
        raise ValueError(
            f"the table {table!r} takes {len(name)} characters in Azure, at most {AZURE_TABLE_LENGTH_MAX}"
        )
    return name


def table_from_azure(prefix: str, name: str) -> str | None:
    """The logical name, whichever way Azure spells its capitals; None for a table that is not Lucius's."""
    lead, mapped = f"{prefix}z", name.lower()
    if not mapped.startswith(lead):
        return None
    return re.sub("z(.)", _table_letter, mapped[len(lead) :])


def _table_letter(found: re.Match[str]) -> str:
    return _TABLE_LETTERS.get(f"Z{found[1]}", found[1].upper())


@lru_cache(maxsize=4096)
def key_to_azure(key: str) -> str:
    check_key(key)
    mapped = bound_to_azure(key)
    if len(mapped) > KEY_LENGTH_MAX:
        raise ValueError(
            f"a key of {len(key)} characters takes {len(mapped)} in Azure, at most {KEY_LENGTH_MAX}:"
            f" {key[:40]!r}…"
        )
    return mapped


def bound_to_azure(key: str) -> str:
    """Where a range begins or ends: like a key, and of any length."""
    if _UNTOUCHED.fullmatch(key) is not None:
        return key
    return key.translate(_ESCAPES) or _EMPTY


def key_from_azure(mapped: str) -> str:
    if mapped == _EMPTY:
        return ""
    return _ESCAPED.sub(_character, mapped)


def _character(found: re.Match[str]) -> str:
    text = found[0]
    if len(text) == 2:
        return _PLAIN[text]
    high, low = (ord(digit) - _HIGH_DIGIT_0 for digit in text[1:])
    return chr(_HIGH + high * _HIGH_BASE + low)
