"""A collector that takes OTLP over HTTP and keeps the spans it is sent."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: int
    began_ns: int
    ended_ns: int
    failed: bool
    service: str
    attributes: dict[str, str | int]


class Collector:
    def __init__(self) -> None:
        self.spans: list[Seen] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""

    def of(self, trace_id: str) -> dict[str, Seen]:
        """By name, of one trace; names that come twice get a number."""
        found: dict[str, Seen] = {}
        for span in sorted(self.spans, key=lambda one: one.began_ns):
            if span.trace_id == trace_id:
                name, number = span.name, 1
                while name in found:
                    number += 1
                    name = f"{span.name} {number}"
                found[name] = span
        return found

    def take(self, body: bytes) -> None:
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = {pair.key: pair.value.string_value for pair in group.resource.attributes}
            for scope in group.scope_spans:
                self.spans += [_seen(span, resource["service.name"]) for span in scope.spans]


@contextmanager
def collector() -> Iterator[Collector]:
    found = Collector()

    class Door(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.headers.append({name.lower(): value for name, value in self.headers.items()})
            found.take(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_request(self, code: object = "-", size: object = "-") -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
    found.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()


def _seen(span: Any, service: str) -> Seen:
    return Seen(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        name=span.name,
        kind=span.kind,
        began_ns=span.start_time_unix_nano,
        ended_ns=span.end_time_unix_nano,
        failed=span.status.code == 2,
        service=service,
        attributes={pair.key: pair.value.string_value or pair.value.int_value for pair in span.attributes},
    )
