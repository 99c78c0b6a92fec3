"""What a service process shows: figures, a span for each attempt, log lines with names, readiness."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import structlog
from tests.sdk.test_sdk_runner import MemoryTransport, NoWorkspace, directive, made, raising, running, until
from tests.sdk.test_sdk_typed import model
from tests.support.log_lines import caught

from lucius.assembly.clock_and_ids import new_hex
from lucius.assembly.wiring import make_workspace
from lucius.cli.service import find_service
from lucius.sdk import (
    DeliveryFailed,
    Final,
    Handler,
    ReplyAnswer,
    Retryable,
    Runner,
    Service,
    Task,
    service,
)
from lucius.sdk.health import service_checks
from lucius.settings import read_settings
from lucius.telemetry import AttemptMetrics, Span
from lucius.telemetry.traces import child_of

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GIVEN = f"00-{TRACE}-{PARENT}-01"


class Seen:
    """A watch, and what it saw."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.seconds = 0.0
        self.watch = AttemptMetrics(
            "ocr", clock=lambda: self.seconds, now_ms=lambda: 77_000, new_id=new_hex, take=self.spans.append
        )

    def line(self, start: str) -> str | None:
        text = self.watch.text("", tenants=False)[0].decode()
        return next((line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(start)), None)


async def test_an_attempt_is_a_span_of_its_jobs_trace_and_its_replies_say_so() -> None:
    seen, inside = Seen(), []

    async def handler(task: Task) -> dict[str, str]:
        inside.append((task.directive.traceparent, seen.line("lucius_service_under_way")))
        await task.progress(50)
        seen.seconds += 2
        return {"uri": "mem://made"}

    transport = MemoryTransport(directive(traceparent=GIVEN))
    async with running(transport, handler, watch=seen.watch):
        await transport.results()
    (span,) = seen.spans
    assert (span.trace_id, span.parent_id, span.name) == (TRACE, PARENT, "ocr OCR")
    assert (span.began_ms, span.duration_ms, span.failed) == (77_000, 2_000, False)
    assert span.attributes == {
        "jobId": "job_1",
        "stepId": "step_01",
        "attempt_no": 1,
        "lease_id": "lease-1",
        "tenant_id": "tenant_a",
        "correlation_id": "corr-1",
        "outcome": "succeeded",
    }
    assert inside == [(span.traceparent, "1.0")]
    assert {reply["traceparent"] for reply in transport.replies} == {span.traceparent}
    assert len(transport.replies) == 3
    assert seen.line("lucius_service_under_way") == "0.0"
    assert seen.line('lucius_service_attempt_seconds_sum{outcome="succeeded",service="ocr"}') == "2.0"


@pytest.mark.parametrize(
    "traceparent", [None, "", "nonsense", f"ff-{TRACE}-{PARENT}-01", f"00-{'0' * 32}-{PARENT}-01", GIVEN[:-1]]
)
def test_without_a_trace_there_is_nothing_to_continue(traceparent: str | None) -> None:
    assert child_of(traceparent, new_hex) is None


def test_a_trace_keeps_its_flags() -> None:
    span = child_of(f"00-{TRACE}-{PARENT}-00", new_hex)
    assert span is not None
    assert not span.sampled
    assert span.traceparent == f"00-{TRACE}-{span.span_id}-00"


async def _stopped(task: Task) -> None:
    task.stop_requested = True
    task.raise_if_stopped()


@pytest.mark.parametrize(
    ("handler", "ack", "outcome"),
    [
        (made, "applied", "succeeded"),
        (raising(Retryable("BUSY")), "applied", "failed_retry"),
        (raising(ValueError()), "applied", "failed_retry"),
        (raising(Final("BAD")), "applied", "failed_final"),
        (_stopped, "applied", "stopped"),
        (made, "stale", "not_ours"),
    ],
)
async def test_attempts_are_counted_by_how_they_ended(handler: Handler, ack: str, outcome: str) -> None:
    seen, transport = Seen(), MemoryTransport(directive(traceparent=GIVEN))
    transport.answers["ACK"] = ReplyAnswer(ack)
    async with running(transport, handler, watch=seen.watch):
        await until(lambda: bool(seen.spans))
    counted = seen.line(f'lucius_service_attempts_total{{outcome="{outcome}",service="ocr"}}')
    assert counted == "1.0"
    assert seen.spans[0].attributes["outcome"] == outcome
    assert seen.spans[0].failed is (outcome != "succeeded")


async def test_what_is_not_begun_and_what_is_not_delivered_is_counted_too() -> None:
    seen, go = Seen(), asyncio.Event()

    async def handler(task: Task) -> None:
        await go.wait()

    second = directive(attempt_no=2, lease_id="new")
    transport = MemoryTransport(second, second, directive())
    transport.answers["ACK"] = DeliveryFailed("down")
    async with running(transport, handler, watch=seen.watch):
        await until(lambda: seen.line('lucius_service_directives_left_total{reason="running"') == "1.0")
        go.set()
        await transport.results(1)
        transport.give(second)
        await transport.results(2)
    assert seen.line('lucius_service_directives_left_total{reason="overtaken"') == "1.0"
    assert seen.line('lucius_service_directives_left_total{reason="repeated"') == "1.0"
    assert seen.line('lucius_service_replies_undelivered_total{service="ocr",type="ACK"}') == "1.0"


async def test_a_shutdown_is_told_as_one() -> None:
    seen, begun = Seen(), asyncio.Event()

    async def handler(task: Task) -> None:
        begun.set()
        await asyncio.Event().wait()

    transport = MemoryTransport(directive())
    async with running(transport, handler, watch=seen.watch, drain_seconds=0.01):
        await begun.wait()
    assert seen.line('lucius_service_attempts_total{outcome="shut_down",service="ocr"}') == "1.0"
    assert seen.line("lucius_service_under_way") == "0.0"


async def test_lines_of_a_handler_name_its_attempt() -> None:
    async def handler(task: Task) -> None:
        structlog.get_logger("mine").info("worked")

    transport = MemoryTransport(directive(1), directive(2))
    with caught("info") as lines:
        async with running(transport, handler):
            await transport.results(2)
    names = ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id", "correlation_id")
    told = sorted(tuple(line[name] for name in names) for line in lines.all("worked"))
    assert told == [
        ("job_1", "step_01", "tenant_a", 1, "lease-1", "corr-1"),
        ("job_2", "step_01", "tenant_a", 1, "lease-2", "corr-1"),
    ]


async def test_readiness_asks_the_workspace_and_what_the_service_declares(tmp_path: Path) -> None:
    well: list[Any] = [None]

    async def ready() -> str | None:
        found: str | None = well[0]
        return found

    @service("ocr", ready=ready)
    async def served(task: Task) -> None: ...

    workspace = make_workspace(read_settings({}), tmp_path)
    root = tmp_path / "workspace"
    runner = Runner(served, MemoryTransport(), NoWorkspace(), now_ms=lambda: 1)
    checks = service_checks(served, runner, workspace, root.as_uri())
    assert [await check() for check in checks.values()] == [None, None, None]
    well[0] = "the model is not loaded yet"
    (root / "_ready" / "ocr").unlink()
    (root / "_ready").rmdir()
    (root / "_ready").write_text("in the way")
    told = {name: await check() for name, check in checks.items()}
    assert told["service"] == "the model is not loaded yet"
    assert told["workspace"] is not None
    assert told["orchestrator"] is None
    plain = service_checks(Service("ocr", made), runner, workspace, root.as_uri())
    assert list(plain) == ["orchestrator", "workspace"]


def test_a_service_under_another_name_keeps_what_it_declares() -> None:
    found = find_service("tests.sdk.test_sdk_typed:model", "other")
    assert (found.name, found.handler, found.read_payload) == ("other", model.handler, model.read_payload)
