"""`lucius dev --engine temporal`: the sample, callbacks over HTTP, controls, and everything that may die."""

import asyncio
import json
import os
import re
import signal
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from urllib.error import HTTPError

import httpx2
import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionStatus
from tests.journeys import temporal_fleet as fleet
from tests.sizes import size
from tests.support.api_setup import until

from lucius.assembly import NATS as NATS_BUS
from lucius.assembly import NoBus, open_bus
from lucius.private_files import open_to_others
from lucius.settings import read_settings
from lucius_lab import forks
from lucius_lab.processes import PartProcess

pytestmark = [pytest.mark.xdist_group("heavy"), pytest.mark.timeout(600)]

JOBS = size(30, 200)
AWAY_SECONDS = size(3, 60)
INVOKER, WORKER = ("lucius.cli.main", "invoker"), ("lucius.cli.main", "worker")
NATS, TEMPORAL = ("nats-server",), ("start-dev",)
LINES = ("ledger", "ledger_rows", "protocols", "duties", "bus", "temporal", "invoker", "worker")

Begin = Callable[..., PartProcess]


@pytest.fixture
def begin_dev(tmp_path: Path) -> Iterator[Begin]:
    with ExitStack() as stack:

        def begin(*options: str) -> PartProcess:
            protocols = fleet.write_protocols(tmp_path)
            line = ("dev", "--engine", "temporal", "--data", str(tmp_path / "data"))
            dev = PartProcess(
                tmp_path, "dev", *line, "--protocols", str(protocols), *options, port_option="--port"
            )
            stack.callback(_kill_nats, tmp_path / "data")
            stack.callback(dev.kill)
            dev.start()
            return dev

        yield begin


def ready(url: str) -> tuple[int, dict[str, str]]:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=20) as answer:
            return answer.status, json.load(answer)["checks"]
    except HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)["checks"]


async def test_one_command_runs_the_engine_and_all_around_it(begin_dev: Begin, tmp_path: Path) -> None:
    dev = await asyncio.to_thread(begin_dev)

    async def sample_is_done() -> bool:
        return "Done. Stays up" in dev.stderr

    await until(sample_is_done, seconds=fleet.SECONDS_MAX)
    assert (tmp_path / "data" / "sample" / "answer.json").exists()
    assert "its workflows are shown at http://127.0.0.1:" in dev.stderr
    figures = re.search(r"of all else at (http://\S+/metrics)", dev.stderr)
    assert figures is not None
    assert await asyncio.to_thread(ready, dev.url) == (200, dict.fromkeys(LINES, "ok"))
    async with httpx2.AsyncClient(base_url=dev.url, timeout=60) as client:
        assert "lucius_step_seconds" in (await client.get(figures[1])).text
        (sample,) = (await client.get("/v1/jobs")).json()["items"]
        assert (sample["state"], sample["engine"], sample["attempts_total"]) == ("SUCCEEDED", "temporal", 3)
        address = _address(dev)
        assert await fleet.workflow_states(address, [sample["jobId"]]) == {WorkflowExecutionStatus.COMPLETED}
        history = await (await Client.connect(address)).get_workflow_handle(sample["jobId"]).fetch_history()
        marked = [one.event_type for one in history.events].count(EventType.EVENT_TYPE_MARKER_RECORDED)
        assert marked == 3, "each step's call and its answer are in the history"
        await _closed_to_strangers(client, dev, figures[1].removesuffix("/metrics"))
        await _by_hand(client, dev.url)
        await _controls(client, address)
    await asyncio.to_thread(_refused_beside, dev, tmp_path / "data")
    below = list(fleet.descendants(dev.pid))
    assert len(below) >= 4
    assert await asyncio.to_thread(dev.stop) == 0
    await fleet.gone(below)
    assert "Traceback" not in dev.stderr, dev.stderr[-4_000:]


async def _closed_to_strangers(client: httpx2.AsyncClient, dev: PartProcess, invoker: str) -> None:
    """Another user of this machine sees command lines and reaches ports, and is let in nowhere but where it
    was said."""
    assert "its Temporal server lets in all users of this machine" in dev.stderr
    internal = [f"{invoker}/v1/internal/{path}" for path in ("publish", "steps/attempt", "steps/expire")]
    internal += [f"{invoker}/v1/internal/jobs/job_1:{verb}" for verb in ("cancel", "pause", "resume")]
    for address in internal:
        for headers in ({}, {"Authorization": "Bearer guessed"}):
            answer = await client.post(address, json={}, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (401, "UNAUTHENTICATED"), address
    assert (await client.post("/v1/internal/publish", json={})).status_code == 404
    for message in ("ack", "progress", "result"):
        answer = await client.post(f"{invoker}/v1/callbacks/{message}", json={})
        assert answer.status_code == 401
    nats = _nats_env(dev)
    with pytest.raises(NoBus):
        await open_bus(NATS_BUS, read_settings({"LUCIUS_NATS_URL": nats["LUCIUS_NATS_URL"]}))
    bus = await open_bus(NATS_BUS, read_settings(nats))
    assert bus is not None
    await bus.close()
    shown = [fleet.arguments_of(pid) for pid in (dev.pid, *fleet.descendants(dev.pid))]
    assert not any(nats["LUCIUS_NATS_PASSWORD"] in line or "SECRET=" in line for line in shown)
    assert nats["LUCIUS_NATS_PASSWORD"] not in dev.stderr
    assert open_to_others(Path(re.search(r"  data (\S+), storage", dev.stderr)[1])) == []  # type: ignore[index]


def _refused_beside(dev: PartProcess, data: Path) -> None:
    """A second one would end the servers of the first."""
    for engine, words in (
        ("temporal", "Another `lucius dev` is using"),
        ("outbox", "Another Lucius is using"),
    ):
        late = forks.run("dev", "--engine", engine, "--port", "0", "--no-sample", "--data", str(data))
        assert late.returncode == 1
        assert words in late.stderr
    assert ready(dev.url)[0] == 200


async def _by_hand(client: httpx2.AsyncClient, url: str) -> None:
    """A worker that knows nothing but HTTP: leases, and callbacks to the one public port."""
    (job_id,) = await fleet.submit(client, [fleet.by_hand(1)])
    for step in ("step_01", "step_02"):
        directive = await fleet.leased(client)
        assert (directive["jobId"], directive["stepId"], directive["attempt_no"]) == (job_id, step, 1)
        assert all(
            address.startswith(f"{url}/v1/callbacks/") for address in directive["callback_urls"].values()
        )
        token = {"Authorization": f"Bearer {directive['callback_token']}"}
        told = (await client.get("/v1/callbacks/attempt", headers=token)).json()
        assert told == {"current": True, "stop": False, "reason": None}
        stranger = await client.post(directive["callback_urls"]["ack"], json=fleet.reply(directive, "ACK"))
        assert (stranger.status_code, stranger.json()["code"]) == (401, "UNAUTHENTICATED")
        for kind in ("ACK", "PROGRESS", "RESULT", "RESULT"):
            answer = await fleet.call_back(client, directive, kind)
            assert answer.status_code == 200, answer.text
        assert answer.json()["outcome"] in ("duplicate", "recorded")
    (job,) = (await fleet.ends(client, [job_id])).values()
    assert (job["state"], job["attempts_total"]) == ("SUCCEEDED", 2)


async def _controls(client: httpx2.AsyncClient, address: str) -> None:
    """They go through the orchestrator to the invoker, and the workflow hears of them."""
    (job_id,) = await fleet.submit(client, [fleet.by_hand(2)])
    directive = await fleet.leased(client)
    paused = await client.post(f"/v1/jobs/{job_id}:pause")
    assert (paused.status_code, paused.json()["state"]) == (202, "PAUSING")
    resumed = await client.post(f"/v1/jobs/{job_id}:resume")
    assert (resumed.status_code, resumed.json()["state"]) == (202, "QUEUED")
    cancelled = await client.post(f"/v1/jobs/{job_id}:cancel")
    assert (cancelled.status_code, cancelled.json()["state"]) == (202, "CANCELLING")
    refused = await client.post(f"/v1/jobs/{job_id}:pause")
    assert (refused.status_code, refused.json()["code"]) == (409, "JOB_CANCELLING")
    assert (await fleet.call_back(client, directive, "RESULT")).json()["outcome"] == "applied"
    (job,) = (await fleet.ends(client, [job_id])).values()
    assert [step["state"] for step in job["steps"]] == ["SUCCEEDED", "CANCELLED"]
    assert await fleet.workflow_states(address, [job_id]) == {WorkflowExecutionStatus.COMPLETED}


@asynccontextmanager
async def at_work(
    begin_dev: Begin, folder: Path, effects: Path
) -> AsyncIterator[tuple[PartProcess, list[str]]]:
    """A `dev` and a service beside it, with jobs under way."""
    dev = await asyncio.to_thread(begin_dev, "--services", "none", "--no-sample")
    run = ("service", "run", "lucius_lab.chaos.work:work", "--bus", "nats", "--as", "chaos")
    service = PartProcess(folder, "service", *run, "--concurrency", "16", env=_nats_env(dev))
    try:
        await asyncio.to_thread(service.start)
        async with httpx2.AsyncClient(base_url=dev.url, timeout=90) as client:
            jobs = await fleet.submit(client, [fleet.command(n, effects, 0.1) for n in range(JOBS)])
        yield dev, jobs
    finally:
        service.kill()


async def _all_is_well(dev: PartProcess, folder: Path, jobs: list[str], effects: Path) -> None:
    async with httpx2.AsyncClient(base_url=dev.url, timeout=90) as client:
        ended = await fleet.ends(client, jobs)
    states = {job_id: str(job["state"]) for job_id, job in ended.items()}
    assert Counter(states.values()) == {"SUCCEEDED": JOBS}
    assert await fleet.workflow_states(_address(dev), jobs) == {WorkflowExecutionStatus.COMPLETED}
    assert await fleet.findings(folder / "data", states, effects) == []

    async def well() -> bool:
        return (await asyncio.to_thread(ready, dev.url))[0] == 200

    await until(well, seconds=fleet.SECONDS_MAX)


async def test_every_job_ends_once_though_everything_is_killed(begin_dev: Begin, tmp_path: Path) -> None:
    """One after the other, each in the middle of the work; `dev` starts it again."""
    effects = tmp_path / "effects.jsonl"
    async with at_work(begin_dev, tmp_path, effects) as (dev, jobs):
        for sixth, words in enumerate((INVOKER, WORKER, NATS, TEMPORAL)):
            await fleet.steps_done(effects, (sixth + 1) * JOBS * fleet.STEPS // 6)
            fleet.kill(fleet.child_of(dev.pid, *words))
        await _all_is_well(dev, tmp_path, jobs, effects)
        for name in ("invoker", "worker"):
            assert f"The {name} ended (137) and is started again." in dev.stderr
        await _killed_itself(dev)


async def test_every_job_ends_once_though_each_is_away_for_a_while(begin_dev: Begin, tmp_path: Path) -> None:
    """They stand still in the middle of the work: connections stay, and nobody answers."""
    effects = tmp_path / "effects.jsonl"
    async with at_work(begin_dev, tmp_path, effects) as (dev, jobs):
        for quarter, words in enumerate((TEMPORAL, NATS, INVOKER)):
            await fleet.steps_done(effects, (quarter + 1) * JOBS * fleet.STEPS // 5)
            away = fleet.child_of(dev.pid, *words)
            os.kill(away, signal.SIGSTOP)
            await asyncio.sleep(AWAY_SECONDS)
            os.kill(away, signal.SIGCONT)
        await _all_is_well(dev, tmp_path, jobs, effects)


async def _killed_itself(dev: PartProcess) -> None:
    """Nothing outlives it."""
    below = list(fleet.descendants(dev.pid))
    dev.kill()
    await fleet.gone(below)


def _address(dev: PartProcess) -> str:
    return dev.stderr.partition("Temporal at ")[2].partition(",")[0]


def _nats_env(dev: PartProcess) -> dict[str, str]:
    """As the start says it: the password is in a file."""
    url, user, file = re.search(r"_URL=(\S+) LUCIUS_NATS_USER=(\S+) .*cat (\S+)\)", dev.stderr).groups()  # type: ignore[union-attr]
    password = Path(file).read_text(encoding="ascii").strip()
    return {"LUCIUS_NATS_URL": url, "LUCIUS_NATS_USER": user, "LUCIUS_NATS_PASSWORD": password}


def _kill_nats(data: Path) -> None:
    """If a dev that was killed left it behind."""
    try:
        pid = int((data / "nats" / "nats-server.pid").read_text())
        if "nats-server" in fleet.arguments_of(pid):
            fleet.kill(pid)
    except (OSError, ValueError):
        return
