"""Usage: named numbers that a service reports with a RESULT, such as pages, tokens or money.

In: what one RESULT reports. Out: sums. Everything is bounded: the names of a report and of a sum, and each
number. What comes under a name beyond the bound is summed as `other`.
"""

import re
from collections.abc import Mapping
from math import isfinite
from typing import Final

from lucius.core.model import Json

Usage = Mapping[str, int | float]

REPORT_NAMES_MAX: Final = 16
SUM_NAMES_MAX: Final = 64
NUMBER_MAX: Final = 10**15
OTHER: Final = "other"
NAME_PATTERN: Final = "^[A-Za-z][A-Za-z0-9_.-]{0,63}$"

_is_name = re.compile(NAME_PATTERN.removeprefix("^").removesuffix("$")).fullmatch


def is_usage_name(name: str) -> bool:
    return _is_name(name) is not None


def number_problem(value: Json) -> str | None:
    """Why this cannot be summed; None if it can."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "must be a number"
    if not (isfinite(value) and 0 <= value <= NUMBER_MAX):
        return f"must be a number from 0 to {NUMBER_MAX}"
    return None


def added(known: Usage, more: Usage) -> dict[str, int | float]:
    """Both together."""
    sums = dict(known)
    for name, number in more.items():
        kept = name if name in sums or len(sums) < SUM_NAMES_MAX else OTHER
        sums[kept] = sums.get(kept, 0) + number
    return sums
