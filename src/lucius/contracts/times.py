"""Times on the wire: RFC 3339, UTC, milliseconds.

In: milliseconds since the epoch, or text. Out: the other. Nothing here asks what time it is.
"""

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FORM: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?"
    r"(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))"
)


@lru_cache(maxsize=8192)
def _second_text(second: int) -> str:
    # The times of one answer mostly share their second, and neighbouring answers too.
    return (_EPOCH + timedelta(seconds=second)).strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")


def rfc3339(at_ms: int) -> str:
    return f"{_second_text(at_ms // 1000)}.{at_ms % 1000:03d}Z"


def rfc3339_or_none(at_ms: int | None) -> str | None:
    return None if at_ms is None else rfc3339(at_ms)


def parse_rfc3339(text: str) -> int | None:
    """Milliseconds since the epoch; digits beyond are cut off. None if the text is not a time."""
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
    fraction, sign, offset_hours, offset_minutes = found.groups()[6:]
    leap = second == 60  # RFC 3339 allows it; it counts as the first instant of the next minute
    try:
        moment = datetime(year, month, day, hour, minute, 59 if leap else second, tzinfo=UTC)
    except ValueError:
        return None
    at_ms = (moment - _EPOCH) // timedelta(milliseconds=1)
    at_ms += 1000 if leap else int((fraction or "0").ljust(3, "0")[:3])
    if sign is None:
        return at_ms
    if int(offset_hours) > 23 or int(offset_minutes) > 59:
        return None
    offset_ms = (int(offset_hours) * 60 + int(offset_minutes)) * 60_000
    return at_ms - offset_ms if sign == "+" else at_ms + offset_ms
