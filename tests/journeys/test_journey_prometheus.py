"""A real Prometheus scrapes a real Lucius: every query of the dashboard returns data, and every alert is
evaluated."""

import asyncio
import json
import math
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import yaml
from tests.journeys.conftest import Launch
from tests.journeys.harness import Lucius
from tests.journeys.trace_collector import Collector, collector
from tests.support.api_setup import Caller, envelope, until

from lucius.bus.nats.server import free_port
from lucius_lab.processes import PartProcess

OBSERVABILITY = Path(__file__).parents[2] / "deploy" / "observability"
WINDOW = "6s"
PATIENCE_SECONDS = 90.0
# Jobs whose time runs out are in flight for a second: rounds without a pause would reach the limit.
ROUND_SECONDS = 0.3
STEP = "steps: [{{step_type: {type}, service: {service}, {more}}}]"
PROTOCOLS = {
    service: f"protocol_id: {service}_v1\nrequest_types: [{service.upper()}]\n"
    + STEP.format(type=service.upper(), service=service, more=more)
    for service, more in {
        "steady": "backoff: {result: [0]}",
        "silent": "max_attempts: 1, ack_timeout: 300ms",
        "stuck": "max_attempts: 1, lease: 300ms",
        "idle": "max_attempts: 1",
    }.items()
}
LIMITS = {
    "LUCIUS_MAX_INFLIGHT_PER_TENANT": "30",
    "LUCIUS_MAX_INFLIGHT_BURST": "1",
    "LUCIUS_JOB_SLA": "6s",
    "LUCIUS_RETENTION": "2s",
    "LUCIUS_CALLBACK_ALLOW_HTTP": "true",
    "LUCIUS_CALLBACK_ALLOW_PRIVATE": "true",
}
NOT_HERE = (
    "lucius_publish_failures_total",  # there is no bus
    "lucius_bus_replies_total",
    "lucius_index_repairs_total",  # nothing is damaged
    "lucius_workflow_starts_total",  # nor Temporal
    "lucius_workflow_signals_total",
    "lucius_repair_actions_total",
)


@asynccontextmanager
async def prometheus(folder: Path, targets: list[str]) -> AsyncIterator[httpx2.AsyncClient]:
    program = shutil.which("prometheus")
    assert program is not None, "prometheus is a package of Debian"
    config = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "1s"},
        "rule_files": [str(OBSERVABILITY / "alerts.yaml")],
        "scrape_configs": [{"job_name": "lucius", "static_configs": [{"targets": targets}]}],
    }
    folder.mkdir()
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}",
                "--enable-feature=exemplar-storage",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        async with httpx2.AsyncClient(base_url=f"http://{address}", timeout=30) as http:

            async def ready() -> bool:
                with suppress(httpx2.HTTPError):
                    return (await http.get("/-/ready")).status_code == 200
                assert process.poll() is None, (folder / "log").read_text()
                return False

            await until(ready, seconds=PATIENCE_SECONDS)
            yield http
    finally:
        process.terminate()
        process.wait(30)


async def a_bit_of_everything(lucius: Lucius, caller: Caller) -> None:
    """Jobs that succeed, are repeated, fail, miss their times, wait, and are too many."""
    told = {"completed": f"{lucius.url}/livez"}  # which takes no webhook, and says so
    while True:
        for how in ("SUCCEEDED", "FAILED_RETRY", "FAILED_FINAL"):
            job_id = await caller.submit(request_type="STEADY", callback_urls=told)
            await answer(caller, await caller.directive(job_id, "steady"), how)
            if how == "FAILED_RETRY":
                await answer(caller, await caller.directive(job_id, "steady"), "SUCCEEDED")
        await caller.submit(request_type="OCR")
        await caller.directive(await caller.submit(request_type="SILENT"), "silent")
        stuck = await caller.directive(await caller.submit(request_type="STUCK"), "stuck")
        await caller.say(stuck, "ACK")
        for more in (
            *[{"tenant_id": "greedy"}] * 8,
            {"tenant_id": "hasty", "mode": "BURST", "doc_id": "one"},
        ):
            refused = await caller.post("/v1/orchestrate", envelope(request_type="IDLE", **more))
            assert refused.status_code in {202, 429, 503}, refused.text
        await asyncio.sleep(ROUND_SECONDS)


async def answer(caller: Caller, directive: dict[str, Any], how: str) -> None:
    more = {} if how == "SUCCEEDED" else {"error": {"code": "BUSY", "message": "busy"}}
    await caller.say(directive, "ACK")
    await caller.say(directive, "RESULT", status=how, **more)


def queries() -> dict[str, str]:
    board = json.loads((OBSERVABILITY / "dashboard.json").read_text())
    return {
        f"{panel['title']} {target['refId']}": target["expr"]
        .replace("$__rate_interval", WINDOW)
        .replace("$job", ".*")
        .replace("$service", ".*")
        for panel in board["panels"]
        for target in panel.get("targets", [])
    }


def told_here(query: str) -> str:
    """A graph shows 0 for what has not happened yet. Here nearly all of it happens: the 0 is left out."""
    return query if any(name in query for name in NOT_HERE) else query.removesuffix(" or vector(0)")


async def has_data(http: httpx2.AsyncClient, query: str) -> bool:
    answer = (await http.get("/api/v1/query", params={"query": query})).json()
    assert answer["status"] == "success", (query, answer)
    values: list[Any] = answer["data"]["result"]
    return any(not math.isnan(float(each["value"][1])) for each in values)


async def check_exemplars(http: httpx2.AsyncClient, traces: "Collector") -> None:
    """Latencies name traces that the collector has."""
    for metric in ("lucius_job_seconds", "lucius_step_seconds", "lucius_dispatch_lag_seconds"):
        began, ended = time.time() - 600, time.time() + 60
        window: dict[str, str | float] = {"query": f"{metric}_bucket", "start": began, "end": ended}
        answer = (await http.get("/api/v1/query_exemplars", params=window)).json()
        named = {
            exemplar["labels"]["trace_id"] for series in answer["data"] for exemplar in series["exemplars"]
        }
        assert named, metric
        assert named & {span.trace_id for span in traces.spans}, metric


async def test_every_query_of_the_dashboard_returns_data(
    launch: "Launch", caller_at: "Callable[[Lucius], Caller]", tmp_path: Path
) -> None:
    protocols = tmp_path / "protocols"
    protocols.mkdir()
    for name, text in PROTOCOLS.items():
        (protocols / f"{name}.yaml").write_text(text)
    with collector() as traces:
        env = LIMITS | {"OTEL_EXPORTER_OTLP_ENDPOINT": traces.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        lucius = launch("--services", "none", "--protocols", str(protocols), env=env)
        service = PartProcess(
            tmp_path,
            "ocr",
            *("service", "run", "ocr", "--data", str(tmp_path / "ocr-data")),
            port_option="--health-port",
            env={"LUCIUS_URL": lucius.url},
        )
        try:
            await asyncio.to_thread(service.start)
            await look(lucius, service, caller_at, tmp_path, traces)
        finally:
            service.kill()


async def look(
    lucius: "Lucius",
    service: PartProcess,
    caller_at: "Callable[[Lucius], Caller]",
    tmp_path: Path,
    traces: "Collector",
) -> None:
    work = asyncio.create_task(a_bit_of_everything(lucius, caller_at(lucius)))
    try:
        targets = [each.url.removeprefix("http://") for each in (lucius, service)]
        async with prometheus(tmp_path / "prometheus", targets) as http:
            left = {name: told_here(query) for name, query in queries().items()}
            assert len(left) > 40

            async def answered() -> bool:
                assert not work.done(), work
                for name, query in list(left.items()):
                    if await has_data(http, query):
                        del left[name]
                await asyncio.sleep(0.5)
                return not left

            with suppress(AssertionError):
                await until(answered, seconds=PATIENCE_SECONDS)
            if work.done():
                work.result()
            assert left == {}
            groups = (await http.get("/api/v1/rules")).json()["data"]["groups"]
            rules = [rule for group in groups for rule in group["rules"]]
            assert len(rules) >= 10
            assert {(rule["health"], rule.get("lastError")) for rule in rules} == {("ok", None)}
            await check_exemplars(http, traces)
    finally:
        work.cancel()
