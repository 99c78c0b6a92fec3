"""Spans on their way to a collector, by OpenTelemetry's own exporter.

In: spans that are over. Out: OTLP over HTTP, from a thread and in batches; where to, and with which headers
and limits, is said by the variables that OpenTelemetry defines. A collector that is away or slow costs spans
and never a job: what does not fit the queue is dropped.
"""

import asyncio
from threading import Thread
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from lucius import __version__
from lucius.telemetry.traces import Span

CLOSE_SECONDS_MAX = 5.0
CLOSE_LOOK_SECONDS = 0.05
NS_PER_MS = 1_000_000
UNNAMED = "unknown_service"  # what OpenTelemetry calls a process without a name

_KINDS: Final = {
    "internal": SpanKind.INTERNAL,
    "server": SpanKind.SERVER,
    "producer": SpanKind.PRODUCER,
    "consumer": SpanKind.CONSUMER,
}


class _GivenIds(IdGenerator):
    """Spans come with their ids."""

    trace_id = 0
    span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


class Otlp:
    def __init__(self, service: str) -> None:
        """`service`: what it is called unless OTEL_SERVICE_NAME says otherwise."""
        self._ids = _GivenIds()
        resource = Resource.create({"service.version": __version__})
        if str(resource.attributes.get("service.name", UNNAMED)).startswith(UNNAMED):
            resource = resource.merge(Resource({"service.name": service}))
        self._provider = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("lucius", __version__)

    def take(self, span: Span) -> None:
        """Called by one thread only."""
        self._ids.trace_id, self._ids.span_id = int(span.trace_id, 16), int(span.span_id, 16)
        began_ns = span.began_ms * NS_PER_MS
        given = self._tracer.start_span(
            span.name,
            context=_below(span),
            kind=_KINDS[span.kind],
            attributes=span.attributes,
            start_time=began_ns,
        )
        if span.failed:
            given.set_status(Status(StatusCode.ERROR, str(span.attributes.get("code", ""))))
        given.end(end_time=began_ns + round(span.duration_ms * NS_PER_MS))

    async def close(self) -> None:
        """Sends what is left, for so long and no longer."""
        closing = Thread(target=self._provider.shutdown, name="lucius-otlp-close", daemon=True)
        closing.start()
        waited_seconds = 0.0
        while closing.is_alive() and waited_seconds < CLOSE_SECONDS_MAX:
            await asyncio.sleep(CLOSE_LOOK_SECONDS)
            waited_seconds += CLOSE_LOOK_SECONDS


def _below(span: Span) -> Context:
    if not span.parent_id:
        return Context()
    parent = SpanContext(
        trace_id=int(span.trace_id, 16),
        span_id=int(span.parent_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(span.flags),
    )
    return set_span_in_context(NonRecordingSpan(parent), Context())
