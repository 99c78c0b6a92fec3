"""A Lucius that takes its protocols and modes from App Configuration: changes, outages, restarts."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from lucius.api.app import make_app
from lucius.assembly import Embedded, open_embedded
from lucius.assembly.azure.app_configuration import NoConfiguration, open_app_configuration
from lucius.registry.app_configuration.last_good_copy import COPY_NAME
from lucius.settings import BadSetting, read_settings
from lucius_lab.emulators.app_configuration.app import AppConfigurationEmulator, connection_string, serving

pytestmark = pytest.mark.xdist_group("app_configuration")

SEEN_SECONDS_MAX = 30.0
CONNECTION = "LUCIUS_APP_CONFIGURATION_CONNECTION_STRING"
ENDPOINT = "LUCIUS_APP_CONFIGURATION_ENDPOINT"


def document(protocol_id: str, *request_types: str) -> str:
    steps = [{"step_type": "S", "service": "mine"}]
    return json.dumps({"protocol_id": protocol_id, "request_types": list(request_types), "steps": steps})


def command(request_type: str, tenant: str = "acme", **more: Any) -> dict[str, Any]:
    refs = {"input_ref": {"uri": "s3://in/1"}, "output_ref": {"uri": "s3://out/1"}}
    return {
        "tenant_id": tenant,
        "request_type": request_type,
        "payload": {},
        "schema_version": "1",
        **refs,
        **more,
    }


@pytest.fixture
def emulator() -> AppConfigurationEmulator:
    found = AppConfigurationEmulator(now_seconds=time.time)
    found.put("lucius/protocols/mine", document("mine_v1", "MINE"))
    found.put("lucius/sentinel", "1")
    return found


@asynccontextmanager
async def lucius(port: int, data: Path, **env: str) -> AsyncIterator[tuple[Embedded, httpx2.AsyncClient]]:
    settings = read_settings(
        {CONNECTION: connection_string(port), "LUCIUS_APP_CONFIGURATION_REFRESH": "1s", **env}
    )
    opened = await open_embedded(
        settings, storage="ledger", data=data, base_url="http://house", protocols=None
    )
    await opened.start({})
    transport = httpx2.ASGITransport(make_app(opened.deployment))
    async with httpx2.AsyncClient(transport=transport, base_url="http://house") as client:
        try:
            yield opened, client
        finally:
            await opened.stop()


async def until(wanted: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(SEEN_SECONDS_MAX):
        while not await wanted():
            await asyncio.sleep(0.1)


async def problems(client: httpx2.AsyncClient) -> list[str]:
    found: list[str] = (await client.get("/v1/protocols")).json()["problems"]
    return found


async def test_a_protocol_of_the_store_makes_a_job(
    emulator: AppConfigurationEmulator, tmp_path: Path
) -> None:
    async with serving(emulator) as port, lucius(port, tmp_path) as (_, client):
        made = await client.post("/v1/orchestrate", json=command("MINE"))
        assert made.status_code == 202
        job = (await client.get(made.headers["location"])).json()
        assert job["protocol_id"] == "mine_v1"
        ready = await client.get("/readyz")
        assert (ready.status_code, "app_configuration" in ready.text) == (200, True)


async def test_a_change_is_followed_and_a_bad_one_refused(
    emulator: AppConfigurationEmulator, tmp_path: Path
) -> None:
    async with serving(emulator) as port, lucius(port, tmp_path) as (opened, client):
        emulator.put("lucius/protocols/new", document("new_v1", "NEW"))
        emulator.put("lucius/protocols/mine", '{"protocol_id": "mine_v2"')
        emulator.put("lucius/sentinel", "2")

        async def known() -> bool:
            return opened.registry.resolve("NEW") is not None

        await until(known)
        told = await problems(client)
        assert told[-1] == "lucius/protocols/mine: the last good version (mine_v1) is still served"
        assert (await client.post("/v1/orchestrate", json=command("MINE"))).status_code == 202
    async with serving(emulator) as port_again, lucius(port_again, tmp_path) as (opened, client):
        # Another address is another store: nothing of the old one's copy is served.
        assert opened.registry.resolve("MINE") is None
        assert opened.registry.resolve("NEW") is not None


async def test_a_bad_document_is_still_served_after_a_restart(
    emulator: AppConfigurationEmulator, tmp_path: Path
) -> None:
    async with serving(emulator) as port:
        async with lucius(port, tmp_path):
            emulator.put("lucius/protocols/mine", "{")
        async with lucius(port, tmp_path) as (opened, client):
            assert opened.registry.resolve("MINE") is not None
            assert "still served" in (await problems(client))[-1]


async def test_a_tenant_and_the_defaults_decide_the_mode(
    emulator: AppConfigurationEmulator, tmp_path: Path
) -> None:
    emulator.put("lucius/tenants/Acme", '{"mode": "BURST"}')
    emulator.put("lucius/tenants/poor", '{"burst_allowed": false, "inflight_max": 0}')
    emulator.put("lucius/defaults", '{"max_attempts": 9}')
    async with serving(emulator) as port, lucius(port, tmp_path) as (opened, client):
        plan = (await client.post("/v1/orchestrate:plan", json=command("MINE", doc_id="d"))).json()
        assert (plan["mode"], plan["decision_source"]) == ("BURST", "TENANT_CONFIG")
        denied = await client.post("/v1/orchestrate", json=command("MINE", "poor", mode="BURST", doc_id="d"))
        assert denied.status_code == 403
        full = (await client.post("/v1/orchestrate:plan", json=command("MINE", "poor"))).json()
        assert full["limits"]["tenant"] == {"in_flight": 0, "max": 0}
        refused = await client.post("/v1/orchestrate", json=command("MINE", "poor"))
        assert (refused.status_code, refused.json()["code"]) == (429, "TENANT_LIMIT")
        figures = (await client.get("/metrics")).text
        assert 'lucius_tenant_inflight_limit{mode="BURST",tenant="acme"} 1000.0' in figures
        protocol = (await client.get("/v1/protocols/ocr_v1")).json()
        assert protocol["steps"][0]["max_attempts"] == 9
        emulator.put("lucius/tenants/Acme", "{}")
        emulator.put("lucius/defaults", '{"mode": "SAFE"}')
        emulator.put("lucius/sentinel", "2")

        async def undone() -> bool:
            return opened.registry.all()[0].steps[0].policy.max_attempts == 3

        await until(undone)
        plan = (await client.post("/v1/orchestrate:plan", json=command("MINE", doc_id="d"))).json()
        assert (plan["mode"], plan["decision_source"]) == ("DEFAULT", "GLOBAL_CONFIG")


async def test_an_outage_changes_nothing_but_is_told(
    emulator: AppConfigurationEmulator, tmp_path: Path
) -> None:
    async with serving(emulator) as port, lucius(port, tmp_path) as (opened, client):
        emulator.failing_with = 500

        async def told() -> bool:
            return any("App Configuration cannot be read" in line for line in await problems(client))

        await until(told)
        assert (await client.post("/v1/orchestrate", json=command("MINE"))).status_code == 202
        assert (await client.get("/readyz")).status_code == 200
        emulator.failing_with = None
        emulator.put("lucius/protocols/new", document("new_v1", "NEW"))
        emulator.put("lucius/sentinel", "2")

        async def back() -> bool:
            return opened.registry.resolve("NEW") is not None and not await problems(client)

        await until(back)


async def test_a_restart_in_an_outage_serves_the_copy(
    emulator: AppConfigurationEmulator, tmp_path: Path
) -> None:
    emulator.put("lucius/tenants/acme", '{"mode": "BURST"}')
    emulator.put_feature("beta", enabled=True)
    async with serving(emulator) as port, lucius(port, tmp_path):
        pass
    began = time.monotonic()
    async with lucius(port, tmp_path) as (opened, client):
        assert time.monotonic() - began < 15
        assert (await client.get("/readyz")).status_code == 200
        plan = (await client.post("/v1/orchestrate:plan", json=command("MINE", doc_id="d"))).json()
        assert (plan["accepted"], plan["mode"]) == (True, "BURST")
        (line,) = await problems(client)
        assert line.startswith("App Configuration ")
        assert line.endswith("is served")
        emulator.put("lucius/protocols/new", document("new_v1", "NEW"))
        async with serving(emulator, port=port):

            async def back() -> bool:
                return opened.registry.resolve("NEW") is not None

            await until(back)
            assert await problems(client) == []


async def test_without_store_and_copy_it_is_not_ready(
    emulator: AppConfigurationEmulator, tmp_path: Path
) -> None:
    async with serving(emulator) as port:
        pass
    async with lucius(port, tmp_path) as (_, client):
        ready = await client.get("/readyz")
        assert ready.status_code == 503
        assert "nothing was ever read from it" in ready.text
        assert (await client.get("/livez")).status_code == 200
        async with serving(emulator, port=port):

            async def is_ready() -> bool:
                return (await client.get("/readyz")).status_code == 200

            await until(is_ready)
            assert (await client.post("/v1/orchestrate", json=command("MINE"))).status_code == 202


async def test_secrets_of_a_key_vault_are_not_in_the_copy(
    emulator: AppConfigurationEmulator, tmp_path: Path
) -> None:
    emulator.put_secret("lucius/settings/LUCIUS_NATS_PASSWORD", "https://v.vault.azure.net/secrets/nats")
    async with serving(emulator) as port:
        settings = read_settings({CONNECTION: connection_string(port)})
        found = await open_app_configuration(settings, tmp_path, secrets=lambda uri: "canary-5c0ffee")
        assert found is not None
        await found.close()
    assert found.registry.settings() == {"LUCIUS_NATS_PASSWORD": "canary-5c0ffee"}
    assert "mine_v1" in (tmp_path / COPY_NAME).read_text()
    assert "5c0ffee" not in (tmp_path / COPY_NAME).read_text()


async def test_an_empty_store_has_a_copy_too(tmp_path: Path) -> None:
    async with serving(AppConfigurationEmulator(now_seconds=time.time)) as port, lucius(port, tmp_path):
        pass
    async with lucius(port, tmp_path) as (_, client):
        assert (await client.get("/readyz")).status_code == 200


@pytest.mark.parametrize(
    "env",
    [
        {CONNECTION: "canary-5c0ffee"},
        {CONNECTION: "Endpoint=http://a;Id=x;Secret=canary-5c0ffee"},
        {CONNECTION: "Id=x;Endpoint=http://a;Secret=5c0ffee="},
        {CONNECTION: "Endpoint=https://a;Id=x;Secret=5c0ffeea", ENDPOINT: "https://a"},
        {ENDPOINT: "http://plain.example"},
        {ENDPOINT: "https://user:5c0ffee@host"},
        {"LUCIUS_ENVIRONMENT": "prod*"},
        {"LUCIUS_AZURE_IDENTITY": "5c0ffee"},
    ],
)
def test_settings_that_cannot_be_used_are_refused_by_name(env: dict[str, str]) -> None:
    with pytest.raises(BadSetting) as fault:
        read_settings(env)
    assert any(name in str(fault.value) for name in env)
    assert "5c0ffee" not in str(fault.value)


def test_settings_show_no_secret() -> None:
    settings = read_settings(
        {CONNECTION: "Endpoint=https://a;Id=x;Secret=5c0ffeea", "LUCIUS_ENVIRONMENT": "prod"}
    )
    assert settings.app_configuration.wanted
    assert settings.app_configuration.environment == "prod"
    assert "5c0ffee" not in repr(settings)


async def test_an_identity_that_cannot_be_had_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_FEDERATED_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    settings = read_settings({ENDPOINT: "https://store.example", "LUCIUS_AZURE_IDENTITY": "workload"})
    with pytest.raises(NoConfiguration, match="AZURE_FEDERATED_TOKEN_FILE"):
        await open_app_configuration(settings, tmp_path)
