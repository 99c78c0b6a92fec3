"""Settings that come from App Configuration, as variables that a process sees when it starts."""

import asyncio
import base64
import os
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from lucius.assembly.azure.app_configuration import NoConfiguration, export_settings
from lucius.settings import read_settings
from lucius_lab import forks
from lucius_lab.emulators.app_configuration.app import (
    SECRET,
    AppConfigurationEmulator,
    connection_string,
    serving,
)

pytestmark = pytest.mark.xdist_group("app_configuration")

CONNECTION = "LUCIUS_APP_CONFIGURATION_CONNECTION_STRING"
PROCESS_SECONDS_MAX = 60
VAULT = "https://vault.vault.azure.net/secrets"


@pytest.fixture
def emulator() -> AppConfigurationEmulator:
    found = AppConfigurationEmulator(now_seconds=time.time)
    found.put("lucius/settings/LUCIUS_MAX_ATTEMPTS", "7")
    found.put("lucius/settings/LUCIUS_NATS_PREFIX", "everybody")
    found.put("lucius/settings/LUCIUS_NATS_PREFIX", "production", label="prod")
    found.put_secret("lucius/settings/LUCIUS_INTERNAL_SECRET", f"{VAULT}/internal")
    return found


@pytest.fixture
async def port(emulator: AppConfigurationEmulator) -> AsyncIterator[int]:
    async with serving(emulator) as taken:
        yield taken


def secret(uri: str) -> str:
    return f"0123456789abcdef-{uri.rpartition('/')[2]}"


async def exported(env: dict[str, str], data: Path | None) -> dict[str, str]:
    await asyncio.to_thread(export_settings, env, data, secrets=secret)
    return env


async def test_the_store_sets_what_the_environment_does_not(port: int, tmp_path: Path) -> None:
    env = {CONNECTION: connection_string(port), "LUCIUS_ENVIRONMENT": "prod", "LUCIUS_MAX_ATTEMPTS": "2"}
    settings = read_settings(await exported(env, tmp_path))
    assert settings.policy.max_attempts == 2
    assert settings.nats.prefix == "production"
    assert settings.temporal.secrets == ("0123456789abcdef-internal",)


async def test_without_a_store_nothing_is_asked(tmp_path: Path) -> None:
    assert await exported({"LUCIUS_MAX_ATTEMPTS": "2"}, tmp_path) == {"LUCIUS_MAX_ATTEMPTS": "2"}
    assert list(tmp_path.iterdir()) == []


async def test_what_leads_to_the_store_is_not_taken_from_it(
    emulator: AppConfigurationEmulator, port: int, tmp_path: Path
) -> None:
    emulator.put("lucius/settings/LUCIUS_APP_CONFIGURATION_ENDPOINT", "https://elsewhere.example")
    with pytest.raises(NoConfiguration, match="LUCIUS_APP_CONFIGURATION_ENDPOINT"):
        await exported({CONNECTION: connection_string(port)}, tmp_path)


async def test_in_an_outage_the_copy_serves_but_secrets_are_missed(
    emulator: AppConfigurationEmulator, tmp_path: Path
) -> None:
    async with serving(emulator) as port:
        await exported({CONNECTION: connection_string(port)}, tmp_path)
    with pytest.raises(NoConfiguration) as fault:
        await exported({CONNECTION: connection_string(port)}, tmp_path)
    assert str(fault.value) == "App Configuration has no value that could be used for LUCIUS_INTERNAL_SECRET."
    env = {CONNECTION: connection_string(port), "LUCIUS_INTERNAL_SECRET": "0123456789abcdef"}
    assert (await exported(env, tmp_path))["LUCIUS_MAX_ATTEMPTS"] == "7"


async def test_without_store_and_copy_nobody_starts(emulator: AppConfigurationEmulator) -> None:
    async with serving(emulator) as port:
        pass
    with pytest.raises(NoConfiguration, match="Cannot start without settings"):
        await exported({CONNECTION: connection_string(port)}, None)


async def refused(
    emulator: AppConfigurationEmulator, port: int, data: Path, part: str, **settings: str
) -> str:
    """What a process says that finds these in the store and does not start."""
    emulator.values.delete("lucius/settings/LUCIUS_INTERNAL_SECRET", None)
    for name, value in settings.items():
        emulator.put(f"lucius/settings/{name}", value)
    code, out = await started(data, part, connection_string(port))
    assert code == 2
    return out


@pytest.mark.parametrize("part", ["api", "invoker", "worker", "dev"])
async def test_a_process_refuses_a_bad_setting_of_the_store(
    emulator: AppConfigurationEmulator, port: int, tmp_path: Path, part: str
) -> None:
    out = await refused(emulator, port, tmp_path, part, LUCIUS_MAX_ATTEMPTS="canary-5c0ffee")
    assert "LUCIUS_MAX_ATTEMPTS must be" in out
    assert "5c0ffee" not in out


@pytest.mark.parametrize("part", ["api", "orchestrator", "invoker", "dev"])
async def test_a_process_takes_the_storage_that_the_store_names(
    emulator: AppConfigurationEmulator, port: int, tmp_path: Path, part: str
) -> None:
    needs = {"LUCIUS_INTERNAL_SECRET": "0123456789abcdef", "LUCIUS_NATS_URL": "nats://127.0.0.1:1"}
    out = await refused(emulator, port, tmp_path, part, LUCIUS_STORAGE_BACKEND="clay", **needs)
    assert "LUCIUS_STORAGE_BACKEND clay: this version offers ledger, table, memory." in out


async def test_a_process_tells_nobody_the_secret_that_did_not_open_the_store(
    port: int, tmp_path: Path
) -> None:
    canary = base64.b64encode(b"canary-5c0ffee").decode()
    connection = connection_string(port).replace(SECRET, canary)
    code, out = await started(tmp_path, "api", connection, "--log-level", "debug")
    assert code == 2
    assert "App Configuration cannot be read (HTTP 401); nothing was ever read from it." in out
    assert canary not in out


async def started(folder: Path, part: str, connection: str, *options: str) -> tuple[int | None, str]:
    """How a process ended that was told of this store, and what it said."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("LUCIUS_")}
    told = {**env, CONNECTION: connection}
    run = partial(forks.run, env=told, folder=folder, seconds=PROCESS_SECONDS_MAX)
    done = await asyncio.to_thread(run, part, *options)
    return done.returncode, done.stdout + done.stderr
