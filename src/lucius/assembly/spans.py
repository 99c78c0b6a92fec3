"""Where the spans of this process go: to a collector, if one was named."""

import time
from collections.abc import Callable
from typing import Protocol

from lucius.assembly.clock_and_ids import new_hex, now_ms
from lucius.settings import Settings
from lucius.telemetry import AttemptMetrics, Span


class SpanExport(Protocol):
    def take(self, span: Span) -> None: ...
    async def close(self) -> None: ...


def open_spans(settings: Settings, service: str) -> SpanExport | None:
    """`service`: the name that the collector sees, unless the environment has another."""
    if not settings.spans_leave:
        return None
    from lucius.telemetry.otlp import Otlp  # an extra, and slow to load

    return Otlp(service)


def watch_of(service: str, take: Callable[[Span], None]) -> AttemptMetrics:
    return AttemptMetrics(service, clock=time.monotonic, now_ms=now_ms, new_id=new_hex, take=take)
