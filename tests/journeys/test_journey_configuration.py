"""Real processes that are told by variables alone what they run on, and replicas that share nothing but a
ledger and a secret."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.conformance.azurite_setup import azurite, new_prefix
from tests.support.api_setup import envelope

from lucius.assembly import SERVICE_BUS, open_bus
from lucius.core.routing import lane_of
from lucius.settings import read_settings
from lucius_lab import forks
from lucius_lab.emulators.own_service_bus import own_service_bus
from lucius_lab.processes import PartProcess

pytestmark = [pytest.mark.xdist_group("azurite"), pytest.mark.timeout(300)]

Begin = Callable[..., PartProcess]
KEYS = f"2026-11:{'k' * 40}"
WEBHOOK = "whsec_d3d3d3d3d3d3d3d3d3d3d3d3d3d3d3d3d3d3d3d3"


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Starts a part, with a data folder of its own unless one is named."""
    with ExitStack() as stack:
        count = 0

        def begin_one(part: str, env: dict[str, str], *, data: str | None = None) -> PartProcess:
            nonlocal count
            count += 1
            name = f"{part}-{count}"
            options = ("--data", str(tmp_path / (data or name)))
            port_option = "--port" if part == "api" else "--health-port"
            process = PartProcess(tmp_path, name, part, *options, port_option=port_option, env=env)
            stack.callback(process.kill)
            process.start()
            return process

        yield begin_one


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(timeout=60) as client:
        yield client


async def test_a_connection_string_alone_leads_to_service_bus(begin: Begin, http: httpx2.AsyncClient) -> None:
    async with own_service_bus(read_settings({})) as settings:
        env = {"LUCIUS_SERVICEBUS_CONNECTION": settings.service_bus.connection_string or ""}
        api = await asyncio.to_thread(begin, "api", env, data="data")
        public = env | {"LUCIUS_PUBLIC_URL": api.url}
        await asyncio.to_thread(begin, "reconciler", public, data="data")
        assert f"bus servicebus at {settings.service_bus.place}" in api.stderr
        answer = await http.post(f"{api.url}/v1/orchestrate", json=envelope(tenant_id="acme"))
        assert answer.status_code == 202, answer.text
        bus = await open_bus(SERVICE_BUS, settings)
        assert bus is not None
        receiver = await bus.directives("ocr", lane_of("acme"))
        delivery = (await receiver.receive(messages_max=1, wait_ms=60_000))[0]
        directive = json.loads(delivery.body)
        assert (directive["type"], directive["jobId"]) == ("DIRECTIVE", answer.json()["jobId"])
        await receiver.complete(delivery)
        await receiver.close()
        await bus.close()


async def leased(http: httpx2.AsyncClient, url: str) -> dict[str, Any]:
    call = {"service": "ocr", "max": 1, "wait_seconds": 20}
    answer = await http.post(f"{url}/v1/directives:lease", json=call)
    directive: dict[str, Any] = answer.json()["directives"][0]
    return directive


async def replied(
    http: httpx2.AsyncClient, url: str, directive: dict[str, Any], kind: str, **members: Any
) -> tuple[int, str]:
    names = ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id")
    reply = {"type": kind, "timestamp": "2026-11-18T10:00:00Z", **{name: directive[name] for name in names}}
    answer = await http.post(
        f"{url}/v1/callbacks/{kind.lower()}",
        json=reply | members,
        headers={"authorization": f"Bearer {directive['callback_token']}"},
    )
    return answer.status_code, str(answer.json().get("outcome"))


async def test_replicas_with_a_secret_take_the_callbacks_of_each_other(
    begin: Begin, http: httpx2.AsyncClient, tmp_path: Path
) -> None:
    secret = tmp_path / "secrets"
    secret.mkdir()
    (secret / "callback").write_text(KEYS)
    (secret / "webhook").write_text(WEBHOOK)
    env = {
        "LUCIUS_TABLE_CONNECTION": azurite().connection_string,
        "LUCIUS_TABLE_PREFIX": new_prefix(),
        "LUCIUS_CALLBACK_KEYS_FILE": str(secret / "callback"),
    }
    movers = env | {"LUCIUS_WEBHOOK_SECRETS_FILE": str(secret / "webhook")}
    one, other, *_ = await asyncio.gather(
        asyncio.to_thread(begin, "api", env),
        asyncio.to_thread(begin, "api", env),
        asyncio.to_thread(begin, "reconciler", movers),
        asyncio.to_thread(begin, "reconciler", movers),
    )
    for signs, takes in ((one, other), (other, one)):
        job = (await http.post(f"{signs.url}/v1/orchestrate", json=envelope(tenant_id=signs.name))).json()
        directive = await leased(http, signs.url)
        assert directive["jobId"] == job["jobId"]
        assert await replied(http, takes.url, directive, "ACK") == (200, "applied")
        assert await replied(http, takes.url, directive, "RESULT", status="SUCCEEDED") == (200, "applied")
        ended = await http.get(f"{signs.url}/v1/jobs/{job['jobId']}", params={"wait": 30})
        assert ended.json()["state"] == "SUCCEEDED"
    assert not list(tmp_path.glob("*/keys/*"))


async def test_a_replica_without_the_secret_refuses_to_start(begin: Begin, tmp_path: Path) -> None:
    env = {"LUCIUS_TABLE_CONNECTION": azurite().connection_string, "LUCIUS_TABLE_PREFIX": new_prefix()}
    await asyncio.to_thread(begin, "api", env)
    for part, port in (("api", "--port"), ("reconciler", "--health-port")):
        data = tmp_path / f"late-{part}"
        options = (port, "0", "--data", str(data))
        late = await asyncio.to_thread(forks.run, part, *options, env={**os.environ, **env})
        said = late.stderr.splitlines()[-1]
        assert late.returncode == 1
        assert "set LUCIUS_CALLBACK_KEYS or LUCIUS_CALLBACK_KEYS_FILE to the same value" in said
        assert not (data / "keys").exists()
