"""Lucius over NATS, as real processes and a real server: the sample, a server that dies, HTTP workers."""

import asyncio
import json
import os
import re
import signal
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import httpx2
import pytest
from nats import connect
from tests.journeys.nats_fleet import SERVICES, Clients, NatsFleet
from tests.sizes import size
from tests.support.api_setup import QUICK, Caller, reply_to, until

from lucius.assembly.own_servers.nats import port_before
from lucius.cli.main import run_cli
from lucius.private_files import open_to_others
from lucius_lab.processes import PartProcess

pytestmark = [pytest.mark.xdist_group("heavy"), pytest.mark.timeout(600)]

JOBS = size(60, 100)
SECONDS_MAX = 120

Begin = Callable[..., PartProcess]


@pytest.fixture
def begin_dev(tmp_path: Path) -> Iterator[Begin]:
    with ExitStack() as stack:

        def begin(*options: str) -> PartProcess:
            data = ("--data", str(tmp_path / "data"))
            dev = PartProcess(tmp_path, "dev", "dev", "--bus", "nats", *data, *options, port_option="--port")
            stack.callback(_kill_server, tmp_path / "data")
            stack.callback(dev.kill)
            dev.start()
            return dev

        yield begin


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[NatsFleet]:
    fleet = NatsFleet(tmp_path, apis=1, reconcilers=1, workers=1)
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.kill_all()


def ready(url: str) -> tuple[int, dict[str, str]]:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=20) as answer:
            return answer.status, json.load(answer)["checks"]
    except HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)["checks"]


# -- lucius dev --bus nats ---------------------------------------------------------------------------------


async def test_the_sample_goes_through_over_a_server_of_its_own(begin_dev: Begin, tmp_path: Path) -> None:
    dev = await asyncio.to_thread(begin_dev)
    await until(lambda: _said(dev, "Done. Stays up"), seconds=SECONDS_MAX)
    assert "bus nats at 127.0.0.1:" in dev.stderr
    assert (tmp_path / "data" / "sample" / "answer.json").exists()
    assert ready(dev.url) == (
        200,
        dict.fromkeys(("ledger", "ledger_rows", "protocols", "duties", "bus"), "ok"),
    )
    server = _server_pid(tmp_path / "data")
    assert open_to_others(tmp_path / "data") == []
    assert dev.stop() == 0
    assert open_to_others(tmp_path / "data") == []
    assert not _alive(server)
    assert "Traceback" not in dev.stderr


async def test_what_a_killed_dev_left_running_is_stopped_and_its_work_goes_on(
    begin_dev: Begin, tmp_path: Path
) -> None:
    dev = await asyncio.to_thread(begin_dev, "--services", "none")
    left_over = _server_pid(tmp_path / "data")
    async with httpx2.AsyncClient(base_url=dev.url, timeout=60) as client:
        command = _document(tmp_path / "data")
        answer = await client.post("/v1/orchestrate", json=command)
        job_id = answer.json()["jobId"]
        await until(lambda: _is_published(client, job_id), seconds=SECONDS_MAX)
    dev.kill()
    dev = await asyncio.to_thread(begin_dev, "--no-sample")
    assert not _alive(left_over)
    async with httpx2.AsyncClient(base_url=dev.url, timeout=90) as client:
        job = (await client.get(f"/v1/jobs/{job_id}?wait=60")).json()
    # It was on the bus already, and is done from there.
    assert (job["state"], job["attempts_total"]) == ("SUCCEEDED", 1)
    assert dev.stop() == 0


async def test_an_answer_that_came_while_lucius_was_away_counts_though_its_lease_is_over(
    begin_dev: Begin, tmp_path: Path
) -> None:
    (tmp_path / "protocols").mkdir()
    (tmp_path / "protocols" / "quick.yaml").write_text(QUICK)
    options = ("--services", "none", "--protocols", str(tmp_path / "protocols"))
    dev = await asyncio.to_thread(begin_dev, *options)
    async with httpx2.AsyncClient(base_url=dev.url, timeout=60) as client:
        caller = Caller(client)
        job_id = await caller.submit(request_type="QUICK")
        directive = await caller.directive(job_id, "quick")
        assert (await caller.reply(directive, "ACK"))["outcome"] in ("applied", "duplicate")
    dev.kill()
    port = port_before(tmp_path / "data" / "nats")
    password = (tmp_path / "data" / "nats" / "password").read_text().strip()
    nats = await connect(f"nats://127.0.0.1:{port}", user="lucius", password=password)
    answer = json.dumps(reply_to(directive, "RESULT")).encode()
    await nats.jetstream().publish(f"lucius.global-bus-replies-p{directive['lane']}", answer)
    await nats.close()
    await asyncio.sleep(1.5)  # longer than its lease
    dev = await asyncio.to_thread(begin_dev, *options)
    async with httpx2.AsyncClient(base_url=dev.url, timeout=60) as client:
        job = await Caller(client).job(job_id, wait=30)
    assert (job["state"], job["attempts_total"]) == ("SUCCEEDED", 1)
    assert dev.stop() == 0


async def test_a_worker_of_ones_own_comes_in_as_the_start_says(begin_dev: Begin, tmp_path: Path) -> None:
    dev = await asyncio.to_thread(begin_dev, "--services", "none")
    said = re.search(r"workers of your own: (.*) lucius service run MODULE:HANDLER --bus nats\n", dev.stderr)
    assert said is not None and "password" in said[1]
    command = f'{said[1]} exec "$PYTHON" -m lucius.cli.main service run ocr --bus nats --data "$DATA"'
    worker = await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", command),
        env={**os.environ, "PYTHON": sys.executable, "DATA": str(tmp_path / "data")},
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with httpx2.AsyncClient(base_url=dev.url, timeout=90) as client:
            answer = await client.post("/v1/orchestrate", json=_document(tmp_path / "data"))
            job = (await client.get(f"/v1/jobs/{answer.json()['jobId']}?wait=60")).json()
    finally:
        worker.terminate()
        await worker.wait()
    assert job["state"] == "SUCCEEDED"
    assert dev.stop() == 0


async def test_a_server_that_dies_is_started_again(begin_dev: Begin, tmp_path: Path) -> None:
    dev = await asyncio.to_thread(begin_dev, "--no-sample")
    os.kill(_server_pid(tmp_path / "data"), signal.SIGKILL)

    async def well() -> bool:
        return (await asyncio.to_thread(ready, dev.url))[0] == 200

    await until(well, seconds=SECONDS_MAX)
    async with httpx2.AsyncClient(base_url=dev.url, timeout=90) as client:
        answer = await client.post("/v1/orchestrate", json=_document(tmp_path / "data"))
        job = (await client.get(f"/v1/jobs/{answer.json()['jobId']}?wait=60")).json()
    assert job["state"] == "SUCCEEDED"
    assert dev.stop() == 0


# -- parts -------------------------------------------------------------------------------------------------


async def test_every_job_ends_once_though_the_server_is_killed(fleet: NatsFleet) -> None:
    clients = Clients([fleet.apis[0].url])
    parts = [fleet.apis[0], fleet.reconcilers[0]]
    try:
        jobs = await asyncio.gather(*(clients.submit(fleet.command(n), n) for n in range(JOBS)))
        await fleet.until_done(JOBS * len(SERVICES) // 3)
        await asyncio.to_thread(fleet.server.kill)
        for part in parts:
            status, checks = await asyncio.to_thread(ready, part.url)
            assert (status, checks["ledger"]) == (503, "ok")
            assert "NATS" in checks["bus"]
        # What is submitted meanwhile waits.
        jobs += await asyncio.gather(*(clients.submit(fleet.command(n), n) for n in range(JOBS, JOBS + 5)))
        fleet.server.start()
        await fleet.server.ready()
        states = await clients.states(jobs)
    finally:
        await clients.close()
    assert Counter(states.values()) == {"SUCCEEDED": JOBS + 5}
    assert await fleet.findings(states) == []
    for part in [*parts, *fleet.services]:
        assert (await asyncio.to_thread(ready, part.url))[0] == 200
    await asyncio.to_thread(fleet.stop)


async def test_workers_that_speak_nothing_but_http_take_part(fleet: NatsFleet, tmp_path: Path) -> None:
    """The bus's own services are gone, and plain HTTP does their work: leases, and callbacks."""
    for service in fleet.services:
        assert await asyncio.to_thread(service.stop) == 0
    async with httpx2.AsyncClient(base_url=fleet.apis[0].url, timeout=60) as client:
        jobs = [
            (await client.post("/v1/orchestrate", json=fleet.command(number))).json()["jobId"]
            for number in range(20)
        ]
        working = [asyncio.create_task(_work(client, name)) for name in SERVICES for _ in range(2)]
        try:
            async with asyncio.timeout(SECONDS_MAX):
                ended = [(await client.get(f"/v1/jobs/{job_id}?wait=60")).json() for job_id in jobs]
        finally:
            for work in working:
                work.cancel()
            await asyncio.gather(*working, return_exceptions=True)
    assert Counter(job["state"] for job in ended) == {"SUCCEEDED": 20}
    assert {job["attempts_total"] for job in ended} == {len(SERVICES)}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("api", "--port", "0"), "--bus nats needs LUCIUS_NATS_URL"),
        (("reconciler",), "--bus nats needs LUCIUS_NATS_URL"),
        (("service", "run", "ocr"), "--bus nats needs LUCIUS_NATS_URL"),
    ],
)
def test_without_an_address_a_part_says_what_it_needs(
    arguments: tuple[str, ...],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_cli((*arguments, "--bus", "nats")) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


async def _work(client: httpx2.AsyncClient, service: str) -> None:
    while True:
        wanted = {"service": service, "max": 5, "wait_seconds": 5}
        leased = await client.post("/v1/directives:lease", json=wanted)
        assert leased.status_code == 200, leased.text
        for directive in leased.json()["directives"]:
            for kind, more in (("ack", {}), ("result", {"status": "SUCCEEDED"})):
                await _call_back(client, kind, directive, more)


async def _call_back(
    client: httpx2.AsyncClient, kind: str, directive: dict[str, Any], more: dict[str, Any]
) -> None:
    names = ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id")
    message = {name: directive[name] for name in names} | more
    answer = await client.post(
        directive["callback_urls"][kind],
        json={**message, "type": kind.upper(), "timestamp": "2026-01-02T03:04:05Z"},
        headers={"Authorization": f"Bearer {directive['callback_token']}"},
    )
    assert answer.json()["outcome"] == "applied", answer.text


async def _said(part: PartProcess, words: str) -> bool:
    return words in part.stderr


async def _is_published(client: httpx2.AsyncClient, job_id: str) -> bool:
    job = (await client.get(f"/v1/jobs/{job_id}")).json()
    return bool(job["steps"][0]["state"] == "INITIATED")


def _document(data: Path) -> dict[str, Any]:
    (data / "letter.txt").write_text("The lighthouse was lit for the first time in 1822.")
    return {
        "tenant_id": "acme",
        "request_type": "OCR",
        "input_ref": {"uri": (data / "letter.txt").as_uri()},
        "output_ref": {"uri": (data / "answer.json").as_uri()},
        "payload": {},
        "schema_version": "1",
    }


def _server_pid(data: Path) -> int:
    return int((data / "nats" / "nats-server.pid").read_text())


def _alive(pid: int) -> bool:
    """Not one that has ended and that nobody has asked about yet."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except OSError:
        return False


def _kill_server(data: Path) -> None:
    """If a dev that was killed left it behind."""
    try:
        pid = _server_pid(data)
        if b"nats-server" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    except (OSError, ValueError):
        return
