"""What a client says when it attaches a link, and what it gets as an answer: an address, a session, for how
long.

The wish for a session stands among the filters of the source: its name, or nothing for the next that is
free. The answer has the name of the session there, and beside it until when it is locked, counted as .NET
counts time.
"""

from typing import Any, Final

import msgspec

from lucius_lab.emulators.service_bus.codec import DescribedValue, Malformed, Symbol
from lucius_lab.emulators.service_bus.management import as_text

SESSION_FILTER: Final = "com.microsoft:session-filter"
LOCKED_UNTIL: Final = "com.microsoft:locked-until-utc"
TIMEOUT: Final = "com.microsoft:timeout"
SEEK_MS: Final = 60_000  # for a client that does not say how long
SEEK_MS_MAX: Final = 24 * 3_600_000
EPOCH_TICKS: Final = 621_355_968_000_000_000  # 1970 in ticks of 100 ns since the year 1
TICKS_A_MS: Final = 10_000

_FILTERS: Final = 7
_PROPERTIES: Final = 13


class SessionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """For a session: this one, or (None) the next."""

    wanted: str | None


def address_of(terminus: Any) -> str:
    """An entity's name out of a source or target: `amqps://host:port/Topic/Subscriptions/x` in lower case."""
    fields = terminus.value if isinstance(terminus, DescribedValue) else None
    address = fields[0] if isinstance(fields, list) and fields else None
    if isinstance(address, bytes):
        address = address.decode(errors="replace")
    if not isinstance(address, str):
        raise Malformed("a link without an address")
    scheme, divider, rest = address.partition("://")
    path = rest.partition("/")[2] if divider else scheme
    return path.strip("/").lower()


def session_wish(source: Any) -> SessionRequest | None:
    """None for a link that does without."""
    for name, value in _filters(source).items():
        if as_text(name) == SESSION_FILTER:
            inside = value.value if isinstance(value, DescribedValue) else value
            return SessionRequest(wanted=None if inside is None else as_text(inside))
    return None


def granted_source(source: Any, session_id: str) -> DescribedValue:
    """The source as it was asked for, with the session that it got."""
    fields = list(source.value)
    fields[_FILTERS] = {Symbol(SESSION_FILTER): session_id}
    return DescribedValue(source.descriptor, fields)


def with_ticks(until_ms: int) -> dict[Any, Any]:
    return {Symbol(LOCKED_UNTIL): EPOCH_TICKS + until_ms * TICKS_A_MS}


def wait_ms_of(fields: list[Any]) -> int:
    """How long the client wants to wait for a session."""
    properties = fields[_PROPERTIES] if len(fields) > _PROPERTIES else None
    for name, value in properties.items() if isinstance(properties, dict) else ():
        if as_text(name) == TIMEOUT and isinstance(value, int):
            return min(int(value), SEEK_MS_MAX)
    return SEEK_MS


def _filters(source: Any) -> dict[Any, Any]:
    fields = source.value if isinstance(source, DescribedValue) else None
    found = fields[_FILTERS] if isinstance(fields, list) and len(fields) > _FILTERS else None
    return found if isinstance(found, dict) else {}
