"""A job's trace at a collector: from the client's own span through directive, service and answer."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from tests.journeys.conftest import Launch
from tests.journeys.harness import Lucius
from tests.journeys.temporal_fleet import STEPS, Fleet, command, ends, submit
from tests.journeys.trace_collector import Collector, Seen, collector
from tests.support.api_setup import QUICK, Caller, envelope, until

from lucius.settings import BadSetting, read_settings
from lucius_lab.processes import PartProcess

TRACE, CLIENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
STOP_SECONDS_MAX = 12.0


def exporting(to: "Collector") -> dict[str, str]:
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": to.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}


async def told(seen: "Collector", trace_id: str, last: str) -> "dict[str, Seen]":
    """The spans of a trace, once this one is among them."""

    async def look() -> "dict[str, Seen] | None":
        spans = seen.of(trace_id)
        return spans if last in spans else None

    spans: dict[str, Seen] = await until(look)
    return spans


def parents(spans: "dict[str, Seen]") -> dict[str, str]:
    names = {span.span_id: name for name, span in spans.items()}
    return {name: names.get(span.parent_id, span.parent_id) for name, span in spans.items()}


async def test_one_trace_tells_of_the_client_the_job_its_attempts_and_their_answers(
    launch: "Launch", caller_at: "Callable[[Lucius], Caller]"
) -> None:
    with collector() as seen:
        env = exporting(seen) | {"OTEL_EXPORTER_OTLP_HEADERS": "x-team=papers"}
        lucius = launch("--services", "none", env=env)
        caller = caller_at(lucius)
        command = envelope(request_type="OCR_EMBEDDING")
        answer = await caller.post("/v1/orchestrate", command, traceparent=f"00-{TRACE}-{CLIENT}-01")
        job_id = answer.json()["jobId"]
        for service in ("ocr", "embedding"):
            directive = await caller.directive(job_id, service)
            assert directive["traceparent"] == f"00-{TRACE}-{CLIENT}-01"
            await caller.reply(directive, "ACK")
            await caller.reply(directive, "RESULT")
        spans = await told(seen, TRACE, "job OCR_EMBEDDING")
        assert await asyncio.to_thread(lucius.stop) == 0
    assert parents(spans) == {
        "job OCR_EMBEDDING": CLIENT,
        "submit OCR_EMBEDDING": "job OCR_EMBEDDING",
        "dispatch ocr": "job OCR_EMBEDDING",
        "attempt OCR": "job OCR_EMBEDDING",
        "ACK ocr": "attempt OCR",
        "RESULT ocr": "attempt OCR",
        "dispatch embedding": "job OCR_EMBEDDING",
        "attempt EMBEDDING": "job OCR_EMBEDDING",
        "ACK embedding": "attempt EMBEDDING",
        "RESULT embedding": "attempt EMBEDDING",
    }
    job = spans["job OCR_EMBEDDING"]
    assert all(span.attributes["jobId"] == job_id for span in spans.values())
    assert job.attributes["outcome"] == "succeeded"
    assert all(job.began_ns <= span.began_ns <= span.ended_ns for span in spans.values())
    assert spans["attempt OCR"].attributes["attempt_no"] == 1
    assert not any(span.failed for span in spans.values())
    assert {span.service for span in spans.values()} == {"lucius"}
    assert seen.headers[0]["x-team"] == "papers"


async def test_a_trace_that_begins_here_begins_with_the_job_and_tells_what_failed(
    launch: "Launch", caller_at: "Callable[[Lucius], Caller]", tmp_path: Path
) -> None:
    (tmp_path / "quick.yaml").write_text(QUICK)
    with collector() as seen:
        env = exporting(seen) | {"OTEL_SERVICE_NAME": "papers-lucius"}
        lucius = launch("--services", "none", "--protocols", str(tmp_path), env=env)
        caller = caller_at(lucius)
        job_id = await caller.submit(request_type="QUICK")
        directive = await caller.directive(job_id, "quick")
        failure = {"code": "BAD_PDF", "message": "on page 7"}
        for _ in range(2):
            await caller.reply(directive, "RESULT", status="FAILED_FINAL", error=failure)
        trace_id, began = (await caller.job(job_id))["traceparent"].split("-")[1:3]
        spans = await told(seen, trace_id, "RESULT quick 2")
        await asyncio.to_thread(lucius.stop)
    whole = spans["job QUICK"]
    assert (whole.parent_id, whole.span_id) == ("", began)
    assert whole.failed
    assert spans["attempt QUICK"].failed
    assert spans["attempt QUICK"].attributes["code"] == "BAD_PDF"
    assert spans["RESULT quick 2"].attributes["outcome"] == "duplicate"
    assert "page 7" not in str(spans)
    assert whole.service == "papers-lucius"


async def test_services_and_parts_that_have_not_met_tell_one_trace(tmp_path: Path) -> None:
    with collector() as seen:
        data = ("--data", str(tmp_path / "data"))
        api = PartProcess(tmp_path, "api", "api", *data, port_option="--port", env=exporting(seen))
        parts = [api]
        try:
            api.start()
            env = exporting(seen) | {"LUCIUS_URL": api.url}
            for name, words in (("reconciler", ("reconciler",)), ("ocr", ("service", "run", "ocr"))):
                part = PartProcess(tmp_path, name, *words, *data, port_option="--health-port", env=env)
                parts.append(part)
                part.start()
            (tmp_path / "data" / "letter.txt").write_text("The lighthouse was lit in 1822.")
            async with httpx2.AsyncClient(base_url=api.url, timeout=60) as http:
                caller = Caller(http)
                job_id = await caller.submit(
                    input_ref={"uri": (tmp_path / "data" / "letter.txt").as_uri()},
                    output_ref={"uri": (tmp_path / "data" / "answer.json").as_uri()},
                    traceparent=f"00-{TRACE}-{CLIENT}-01",
                )
                assert (await caller.job(job_id, wait=30))["state"] == "SUCCEEDED"
        finally:
            for part in reversed(parts):
                await asyncio.to_thread(part.stop)
    spans = seen.of(TRACE)
    assert spans["ocr OCR"].service == "ocr"
    assert spans["ocr OCR"].parent_id == CLIENT
    assert spans["ocr OCR"].attributes["lease_id"] == spans["attempt OCR"].attributes["lease_id"]
    assert {span.service for span in spans.values()} >= {"ocr", "lucius-api"}
    assert set(parents(spans).values()) == {CLIENT, "job OCR", "attempt OCR"}
    assert len({span.span_id for span in spans.values()}) == len(spans)


async def test_a_client_that_does_not_sample_is_not_traced(
    launch: "Launch", caller_at: "Callable[[Lucius], Caller]", tmp_path: Path
) -> None:
    (tmp_path / "letter.txt").write_text("The lighthouse was lit in 1822.")
    refs = {
        "input_ref": {"uri": (tmp_path / "letter.txt").as_uri()},
        "output_ref": {"uri": (tmp_path / "answer.json").as_uri()},
    }
    with collector() as seen:
        env = exporting(seen) | {"LUCIUS_REF_FILE_ROOTS": str(tmp_path)}
        lucius = launch("--services", "ocr", env=env)
        caller = caller_at(lucius)
        silent = await caller.submit(**refs, traceparent=f"00-{TRACE}-{CLIENT}-00")
        other = await caller.submit(**refs, payload={"language": "en"})
        for job_id in (silent, other):
            assert (await caller.job(job_id, wait=30))["state"] == "SUCCEEDED"
        assert await asyncio.to_thread(lucius.stop) == 0
    assert {span.attributes["jobId"] for span in seen.spans} == {other}
    assert {span.name for span in seen.spans} >= {"submit OCR", "ocr OCR", "attempt OCR", "job OCR"}


async def test_a_collector_that_is_away_costs_spans_and_nothing_else(
    launch: "Launch", caller_at: "Callable[[Lucius], Caller]"
) -> None:
    with collector() as seen:
        away = exporting(seen)
    lucius = launch("--services", "none", env=away)
    caller = caller_at(lucius)
    job_id = await caller.submit()
    await caller.finish(job_id, "ocr")
    assert await caller.state(job_id) == "SUCCEEDED"
    began = time.monotonic()
    assert await asyncio.to_thread(lucius.stop) == 0
    assert time.monotonic() - began < STOP_SECONDS_MAX
    assert "Traceback" not in lucius.stderr
    assert "OTLP" in lucius.stderr or "export" in lucius.stderr


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL must be http/protobuf"),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, None),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, None),
    ],
)
def test_what_cannot_be_exported_is_refused_by_name(env: dict[str, str], words: str | None) -> None:
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"} | env
    if words is None:
        assert read_settings(env).spans_leave is False
        return
    with pytest.raises(BadSetting, match=words):
        read_settings(env)


@pytest.mark.xdist_group("temporal")
async def test_api_engine_bus_service_invoker_and_workflow_tell_one_trace(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    with collector() as seen:
        try:
            await fleet.start(invokers=2, workers=1, more=exporting(seen))
            async with httpx2.AsyncClient(base_url=fleet.orchestrator.url, timeout=60) as client:
                document = {**command(1, fleet.effects, 0.0), "traceparent": f"00-{TRACE}-{CLIENT}-01"}
                (job_id,) = await submit(client, [document])
                assert (await ends(client, [job_id]))[job_id]["state"] == "SUCCEEDED"
            await told(seen, TRACE, "job TRIPLE")
            await fleet.stop()
        finally:
            await fleet.close()
    spans = seen.of(TRACE)
    job = spans["job TRIPLE"]
    assert {span.service for span in spans.values()} == {
        "lucius-orchestrator",
        "lucius-invoker",
        "lucius-worker",
        "chaos",
    }
    below = parents(spans)
    calls = [name for name in below if name.startswith("workflow ")]
    assert {name.split()[1] for name in calls} >= {"begin"}
    assert len(calls) >= STEPS
    assert {below[name] for name in calls} == {"job TRIPLE"}
    assert all(spans[name].service == "lucius-worker" for name in calls)
    assert (below["job TRIPLE"], below["submit TRIPLE"]) == (CLIENT, "job TRIPLE")
    assert spans["submit TRIPLE"].service == "lucius-orchestrator"
    for step in ("ONE", "TWO", "THREE"):
        assert below[f"attempt {step}"] == "job TRIPLE"
        assert spans[f"attempt {step}"].service == "lucius-invoker"
        assert below[f"chaos {step}"] == CLIENT
        assert spans[f"chaos {step}"].service == "chaos"
    assert {span.attributes["jobId"] for span in spans.values()} == {job_id}
    assert len({span.span_id for span in spans.values()}) == len(spans)
    assert job.attributes["outcome"] == "succeeded"
