"""Spans of time as people write them.

In: a number of seconds, or text such as `500ms`, `30s`, `15m`, `2h`, `7d`. Out: whole milliseconds, or None
for anything that is not a span between nothing and `DURATION_MS_MAX`.
"""

import re
from math import isfinite
from typing import Final

DURATION_MS_MAX: Final = 3_650 * 86_400_000  # ten years: longer is a slip of the pen

# For messages: what a span may be, where it must be longer than nothing.
LONGEST_SPAN: Final = f"{DURATION_MS_MAX // 86_400_000}d"
SPANS: Final = f"from 1ms to {LONGEST_SPAN}"

_TEXT: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)?", re.ASCII)
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_duration_ms(value: object) -> int | None:
    """Numbers, bare ones in text too, are seconds."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return _bounded(value * 1_000) if 0 <= value <= DURATION_MS_MAX else None
    if isinstance(value, float):
        return _bounded(value * 1_000) if isfinite(value) else None
    if not isinstance(value, str):
        return None
    found = _TEXT.fullmatch(value.strip())
    if found is None:
        return None
    return _bounded(float(found[1]) * _UNIT_MS[found[2] or "s"])


def _bounded(span_ms: float) -> int | None:
    return round(span_ms) if 0 <= span_ms <= DURATION_MS_MAX else None
