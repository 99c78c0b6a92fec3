"""What the certificate found in the sdk."""

from typing import Any

import msgspec
from tests.sdk.test_sdk_http_transport import Orchestrator, serving

from lucius.sdk import HttpTransport, messages, parse_directive

DIRECTIVE = {
    "jobId": "job_1",
    "stepId": "step_01",
    "tenant_id": "me",
    "step_type": "HELLO",
    "attempt_no": 1,
    "lease_id": "lease_1",
    "correlation_id": "corr-1",
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
}


def test_every_reply_continues_the_trace() -> None:
    directive = parse_directive(DIRECTIVE)
    assert directive is not None
    for reply in (
        messages.ack(directive, 0),
        messages.progress(directive, 0, 10, ""),
        messages.succeeded(directive, 0, None),
        messages.failed(directive, 0, final=True, code="X", text=""),
    ):
        assert reply["traceparent"] == DIRECTIVE["traceparent"]
        assert reply["correlation_id"] == "corr-1"
    silent = msgspec.structs.replace(directive, traceparent=None)
    assert "traceparent" not in messages.ack(silent, 0)


async def test_what_is_no_directive_does_not_take_the_others_with_it() -> None:
    leased: list[Any] = [["not", "a", "directive"], DIRECTIVE]
    orchestrator = Orchestrator()
    orchestrator.directives = list(leased)
    async with serving(orchestrator) as port, HttpTransport(f"http://127.0.0.1:{port}", "hello") as transport:
        assert await transport.lease(max_directives=2, wait_seconds=0) == leased
    assert [parse_directive(each) is None for each in leased] == [True, False]
