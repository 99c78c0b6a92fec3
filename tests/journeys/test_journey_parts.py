"""The parts as processes of their own on one data folder: what one does, the others go on with."""

import asyncio
import json
import sqlite3
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol
from urllib.error import HTTPError

import httpx2
import pytest
from tests.support.api_setup import QUICK, Caller, check_problem, envelope, until
from tests.support.metric_names import check_names

from lucius.cli.main import run_cli
from lucius_lab import forks
from lucius_lab.processes import PartProcess

pytestmark = pytest.mark.xdist_group("parts")


class Begin(Protocol):
    def __call__(self, *arguments: str, env: dict[str, str] | None = None) -> PartProcess: ...


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Starts a part on the one data folder of the test."""
    with ExitStack() as stack:
        count = 0

        def begin_one(*arguments: str, env: dict[str, str] | None = None) -> PartProcess:
            nonlocal count
            count += 1
            port_option = {"api": "--port"}.get(arguments[0], "--health-port")
            data = ("--data", str(tmp_path / "data"))
            part = PartProcess(
                tmp_path, f"{arguments[0]}-{count}", *arguments, *data, port_option=port_option, env=env
            )
            stack.callback(part.kill)
            part.start()
            return part

        yield begin_one


def asked(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def reconcilers(data: Path) -> list[str]:
    connection = sqlite3.connect(f"file:{data / 'lucius.db'}?mode=ro", uri=True)
    try:
        found = connection.execute("SELECT rk FROM lucius_meta WHERE pk = 'reconcilers'").fetchall()
    finally:
        connection.close()
    return [key for (key,) in found]


def submit(url: str, command: dict[str, Any]) -> str:
    request = urllib.request.Request(f"{url}/v1/orchestrate", json.dumps(command).encode())
    with urllib.request.urlopen(request, timeout=20) as answer:
        return str(json.load(answer)["jobId"])


def ended(url: str, job_id: str) -> dict[str, Any]:
    job: dict[str, Any] = json.loads(asked(f"{url}/v1/jobs/{job_id}?wait=60")[1])
    return job


def document(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    """A real document for the reference services."""
    data = tmp_path / "data"
    (data / "letter.txt").write_text("The lighthouse was lit for the first time in 1822.")
    return envelope(
        input_ref={"uri": (data / "letter.txt").as_uri()},
        output_ref={"uri": (data / "answer.json").as_uri()},
        **changes,
    )


def test_a_document_goes_through_parts_that_know_of_each_other_by_the_ledger_alone(
    begin: Begin, tmp_path: Path
) -> None:
    one, other = begin("api"), begin("api")
    begin("reconciler")
    for name, url in (("ocr", one.url), ("embedding", other.url), ("sis", one.url)):
        begin("service", "run", name, env={"LUCIUS_URL": url})
    prompt = {"sis": {"prompt": "When was the lighthouse lit?"}}
    command = document(tmp_path, request_type="OCR_EMBEDDING_SIS", payload=prompt)
    job_id = submit(other.url, command)
    assert ended(one.url, job_id)["state"] == "SUCCEEDED"
    assert "1822" in (tmp_path / "data" / "answer.json").read_text()
    assert ended(other.url, job_id)["state"] == "SUCCEEDED"


def test_every_part_drains_and_ends_well_when_told_to(begin: Begin, tmp_path: Path) -> None:
    api, reconciler = begin("api"), begin("reconciler")
    service = begin("service", "run", "ocr", env={"LUCIUS_URL": api.url})
    submit(api.url, document(tmp_path, request_type="OCR"))
    for part in (service, reconciler, api):
        assert part.stop() == 0
        assert "Traceback" not in part.stderr
    assert reconcilers(tmp_path / "data") == []


def test_health_is_told_on_a_port_of_its_own(begin: Begin, tmp_path: Path) -> None:
    api, reconciler = begin("api"), begin("reconciler")
    service = begin("service", "run", "ocr", env={"LUCIUS_URL": api.url})
    assert asked(f"{reconciler.url}/livez") == (200, '{"status":"ok"}')
    status, ready = asked(f"{reconciler.url}/readyz")
    assert (status, json.loads(ready)["checks"]["duties"]) == (200, "ok")
    status, metrics = asked(f"{reconciler.url}/metrics")
    assert status == 200
    assert "lucius_dlq_jobs 0.0" in metrics
    for kind, part in (("api", api), ("reconciler", reconciler), ("service", service)):
        check_names(kind, asked(f"{part.url}/metrics")[1])
    assert asked(f"{reconciler.url}/v1/jobs")[0] == 404
    checks = json.loads(asked(f"{service.url}/readyz")[1])["checks"]
    assert checks == {"orchestrator": "ok", "workspace": "ok"}
    assert 'lucius_service_under_way{service="ocr"} 0.0' in asked(f"{service.url}/metrics")[1]
    api.kill()

    async def noticed() -> bool:
        return asked(f"{service.url}/readyz")[0] == 503

    asyncio.run(until(noticed, seconds=60))


async def test_deadlines_pass_to_the_next_reconciler(begin: Begin, tmp_path: Path) -> None:
    (tmp_path / "protocols").mkdir()
    (tmp_path / "protocols" / "quick.yaml").write_text(QUICK)
    api = await asyncio.to_thread(begin, "api", "--protocols", str(tmp_path / "protocols"))
    async with httpx2.AsyncClient(base_url=api.url, timeout=60) as client:
        caller = Caller(client)
        first = await asyncio.to_thread(begin, "reconciler")
        second = await asyncio.to_thread(begin, "reconciler")
        # One tenant is one lane: with this many, each of the two has some.
        jobs = [await caller.submit(request_type="QUICK", tenant_id=f"tenant-{n}") for n in range(12)]
        await caller.lease("quick")  # handed out, and never heard of again
        first.kill()

        async def retried() -> bool:
            return all([(await caller.job(job_id))["attempts_total"] > 1 for job_id in jobs])

        await until(retried, seconds=60)
        await until(lambda: _one_left(tmp_path / "data"), seconds=60)
    assert second.stop() == 0


async def _one_left(data: Path) -> bool:
    return len(reconcilers(data)) == 1


def test_a_folder_is_for_one_dev_or_for_parts(begin: Begin, tmp_path: Path) -> None:
    api = begin("api")
    options = ("--port", "0", "--data", str(tmp_path / "data"), "--no-sample")
    late = forks.run("dev", *options)
    assert late.returncode == 1
    assert "Another Lucius is using" in late.stderr
    other = ("reconciler", "--storage", "table", "--data", str(tmp_path / "data"))
    mixed = forks.run(*other)
    assert mixed.returncode == 1
    assert "was made with --storage ledger" in mixed.stderr
    assert api.stop() == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("api", "--host", "0.0.0.0", "--port", "0"), "LUCIUS_AUTH=required"),
        (("reconciler", "--health-host", "0.0.0.0", "--health-port", "0"), "LUCIUS_AUTH=required"),
        (("service", "run", "ocr", "--health-host", "::", "--health-port", "0"), "LUCIUS_AUTH=required"),
        (("service", "run", "nothing"), "There are ocr, embedding, sis"),
        (("service", "run", "no_such_module:work"), "Cannot load no_such_module:work"),
        (("service", "run", "os:sep"), "neither a handler nor a Service"),
        (("reconciler", "--bus", "pigeon"), "this version offers"),
        (("service", "run"), "Missing argument"),
    ],
)
def test_what_cannot_be_run_is_refused_in_plain_words(
    arguments: tuple[str, ...],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_cli(arguments) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_port_that_is_taken_is_told(begin: Begin, tmp_path: Path) -> None:
    api = begin("api")
    port = api.url.rpartition(":")[2]
    for arguments in (("api", "--port", port), ("reconciler", "--health-port", port)):
        late = forks.run(*arguments, "--data", str(tmp_path / "data"))
        assert late.returncode == 1
        assert f"port {port}" in late.stderr


async def test_a_key_opens_leases_for_its_service_only(begin: Begin, tmp_path: Path) -> None:
    guarded = {"LUCIUS_AUTH": "required"}
    api = await asyncio.to_thread(begin, "api", env=guarded)
    create = ("keys", "create", "reader", "--tenant", "*", "--role", "work", "--service", "ocr")
    made = await asyncio.to_thread(forks.run, *create, "--data", str(tmp_path / "data"))
    key = made.stdout.strip()
    service_env = {"LUCIUS_URL": api.url, "LUCIUS_API_KEY": key}
    allowed = await asyncio.to_thread(begin, "service", "run", "ocr", env=service_env)
    denied = await asyncio.to_thread(begin, "service", "run", "sis", env=service_env)

    async def told() -> bool:
        return (await asyncio.to_thread(asked, f"{denied.url}/readyz"))[0] == 503

    await until(told, seconds=60)
    assert "answered 403 to a lease" in denied.stderr
    assert asked(f"{allowed.url}/readyz")[0] == 200
    async with httpx2.AsyncClient(base_url=api.url, timeout=60) as client:
        check_problem(await client.get("/v1/jobs"), 401, "UNAUTHENTICATED")
    assert key not in denied.stderr
