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
from tests.support.api_setup import QUICK, Caller, until

from lucius.bus.nats.server import free_port

OBSERVABILITY = Path(__file__).parents[2] / "deploy" / "observability"
WINDOW = "6s"
PATIENCE_SECONDS = 90.0


@asynccontextmanager
async def prometheus(folder: Path, target: str) -> AsyncIterator[httpx2.AsyncClient]:
    program = shutil.which("prometheus")
    assert program is not None, "prometheus is a package of Debian"
    config = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "1s"},
        "rule_files": [str(OBSERVABILITY / "alerts.yaml")],
        "scrape_configs": [{"job_name": "lucius", "static_configs": [{"targets": [target]}]}],
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


async def a_bit_of_everything(caller: Caller) -> None:
    """Jobs that succeed, are repeated, fail, and wait."""
    while True:
        for how in ("SUCCEEDED", "FAILED_RETRY", "FAILED_FINAL"):
            job_id = await caller.submit(request_type="QUICK")
            directive = await caller.directive(job_id, "quick")
            await caller.reply(directive, "ACK")
            more = {} if how == "SUCCEEDED" else {"error": {"code": "BUSY", "message": "busy"}}
            await caller.reply(directive, "RESULT", status=how, **more)
        await caller.submit(request_type="OCR")
        await asyncio.sleep(0.05)


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
    (protocols / "quick.yaml").write_text(QUICK)
    with collector() as traces:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": traces.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        await look(launch("--protocols", str(protocols), env=env), caller_at, tmp_path, traces)


async def look(
    lucius: "Lucius", caller_at: "Callable[[Lucius], Caller]", tmp_path: Path, traces: "Collector"
) -> None:
    work = asyncio.create_task(a_bit_of_everything(caller_at(lucius)))
    try:
        async with prometheus(tmp_path / "prometheus", lucius.url.removeprefix("http://")) as http:
            left = queries()
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
            assert left == {}
            groups = (await http.get("/api/v1/rules")).json()["data"]["groups"]
            rules = [rule for group in groups for rule in group["rules"]]
            assert len(rules) >= 10
            assert {(rule["health"], rule.get("lastError")) for rule in rules} == {("ok", None)}
            await check_exemplars(http, traces)
    finally:
        work.cancel()
