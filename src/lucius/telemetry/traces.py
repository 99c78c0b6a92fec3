"""Spans as values, and the W3C `traceparent` that ties them together.

In: the `traceparent` of a request. Out: a span of the same trace, and the `traceparent` to pass on.
"""

import re
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Final, Literal

import msgspec

_FORM: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_NO_TRACE: Final = "0" * 32
_NO_SPAN: Final = "0" * 16
SAMPLED: Final = 1
SPAN_ID_BYTES: Final = 8
_SAMPLED_FLAGS: Final = frozenset(f"{flags:02x}" for flags in range(256) if flags & SAMPLED)


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """`parent_id` is empty where the trace begins."""

    trace_id: str
    span_id: str
    parent_id: str
    flags: int
    name: str = ""
    kind: Literal["internal", "server", "producer", "consumer"] = "internal"
    began_ms: int = 0
    duration_ms: float = 0.0
    failed: bool = False
    attributes: Mapping[str, str | int] = {}

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"

    @property
    def sampled(self) -> bool:
        return bool(self.flags & SAMPLED)


def child_of(traceparent: str | None, new_id: Callable[[int], str]) -> Span | None:
    """None where there is no trace to continue."""
    found = None if traceparent is None else _FORM.fullmatch(traceparent)
    if found is None or found[1] == "ff" or found[2] == _NO_TRACE or found[3] == _NO_SPAN:
        return None
    return Span(trace_id=found[2], parent_id=found[3], span_id=new_id(SPAN_ID_BYTES), flags=int(found[4], 16))


def span_id_of(name: str) -> str:
    """Always the same for the same thing: two processes can report it, and what is below it, without
    exchanging the id."""
    return blake2b(name.encode(), digest_size=SPAN_ID_BYTES).hexdigest()


def sampled_trace(traceparent: str) -> str | None:
    """The id of the trace, if its spans are kept. `traceparent` is a job's: its form was looked at."""
    return traceparent[3:35] if traceparent[53:55] in _SAMPLED_FLAGS else None
