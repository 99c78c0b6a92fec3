"""App Configuration as it is read through Microsoft's library, from an emulator over loopback."""

import asyncio
import base64
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from lucius.registry.app_configuration.azure import (
    AzureAppConfiguration,
    ConfigurationAddress,
    SecretResolver,
)
from lucius.registry.app_configuration.values import ConfigurationSnapshot, ConfigurationUnavailable
from lucius_lab.emulators.app_configuration.app import (
    SECRET,
    AppConfigurationEmulator,
    connection_string,
    serving,
)

pytestmark = pytest.mark.xdist_group("app_configuration")

SEEN_SECONDS_MAX = 20.0


@pytest.fixture
def emulator() -> AppConfigurationEmulator:
    return AppConfigurationEmulator(now_seconds=time.time, page_items_max=2)


@pytest.fixture
async def port(emulator: AppConfigurationEmulator) -> AsyncIterator[int]:
    async with serving(emulator) as taken:
        yield taken


@asynccontextmanager
async def source(
    connection: str,
    label: str | None = None,
    secrets: SecretResolver | None = None,
    refresh_seconds: int = 1,
) -> AsyncIterator[AzureAppConfiguration]:
    where = ConfigurationAddress(connection_string=connection, label=label, refresh_seconds=refresh_seconds)
    opened = AzureAppConfiguration(where, clock=time.monotonic, secrets=secrets)
    try:
        yield opened
    finally:
        await opened.close()


async def until(
    opened: AzureAppConfiguration, wanted: Callable[[ConfigurationSnapshot], bool]
) -> ConfigurationSnapshot:
    async with asyncio.timeout(SEEN_SECONDS_MAX):
        while True:
            try:
                found = await opened.read()
            except ConfigurationUnavailable:
                pass
            else:
                if wanted(found):
                    return found
            await asyncio.sleep(0.1)


async def looked(emulator: AppConfigurationEmulator, opened: AzureAppConfiguration) -> ConfigurationSnapshot:
    """What is read after the sentinel was looked at once more."""
    emulator.requests.clear()
    return await until(opened, lambda _: any("sentinel" in path for _, path, _ in emulator.requests))


async def trouble(opened: AzureAppConfiguration) -> str:
    """What is said once the store is asked in vain."""
    async with asyncio.timeout(SEEN_SECONDS_MAX):
        while True:
            try:
                await opened.read()
            except ConfigurationUnavailable as fault:
                return str(fault)
            await asyncio.sleep(0.1)


async def test_everything_of_ours_is_read(emulator: AppConfigurationEmulator, port: int) -> None:
    for number in range(5):
        emulator.put(f"lucius/protocols/p{number}", f"number: {number}")
    emulator.put("lucius/defaults", '{"mode": "BURST", "n": 1.50}', content_type="application/json")
    emulator.put("elsewhere/x", "not ours")
    emulator.put("lucius/protocols/p9", "of another environment", label="test")
    emulator.put_feature("beta", enabled=True)
    async with source(connection_string(port)) as opened:
        found = await opened.read()
    assert json.loads(found.values["defaults"]) == {"mode": "BURST", "n": 1.5}
    protocols = {key: value for key, value in found.values.items() if key != "defaults"}
    assert protocols == {f"protocols/p{number}": f"number: {number}" for number in range(5)}
    assert found.features == {"beta": True}
    assert found.problems == ()


async def test_what_has_our_label_wins(emulator: AppConfigurationEmulator, port: int) -> None:
    emulator.put("lucius/tenants/a", "all")
    emulator.put("lucius/tenants/b", "all")
    emulator.put("lucius/tenants/b", "prod", label="prod")
    emulator.put("lucius/tenants/c", "test", label="test")
    emulator.put_feature("beta", enabled=True)
    emulator.put_feature("beta", enabled=False, label="prod")
    async with source(connection_string(port), label="prod") as opened:
        found = await opened.read()
    assert found.values == {"tenants/a": "all", "tenants/b": "prod"}
    assert found.features == {"beta": False}


@pytest.mark.parametrize("sentinel_label", [None, "prod"])
async def test_a_change_is_read_once_the_sentinel_changes(
    emulator: AppConfigurationEmulator, port: int, sentinel_label: str | None
) -> None:
    emulator.put("lucius/tenants/a", "old")
    emulator.put("lucius/sentinel", "1", label=sentinel_label)
    async with source(connection_string(port), label="prod") as opened:
        await opened.read()
        emulator.put("lucius/tenants/a", "new")
        emulator.put("lucius/tenants/b", "new", label="prod")
        assert (await looked(emulator, opened)).values["tenants/a"] == "old"
        emulator.put("lucius/sentinel", "2", label=sentinel_label)
        found = await until(opened, lambda reading: reading.values["tenants/a"] == "new")
        assert found.values["tenants/b"] == "new"
        emulator.values.delete("lucius/tenants/a", None)
        emulator.put("lucius/sentinel", "3", label=sentinel_label)
        await until(opened, lambda reading: "tenants/a" not in reading.values)


async def test_a_sentinel_that_comes_later_counts(emulator: AppConfigurationEmulator, port: int) -> None:
    emulator.put("lucius/tenants/a", "old")
    async with source(connection_string(port)) as opened:
        await opened.read()
        emulator.put("lucius/tenants/a", "new")
        emulator.put("lucius/sentinel", "1")
        await until(opened, lambda reading: reading.values["tenants/a"] == "new")


async def test_once_an_hour_everything_is_read_again(emulator: AppConfigurationEmulator, port: int) -> None:
    now = 0.0
    where = ConfigurationAddress(connection_string=connection_string(port), refresh_seconds=60)
    opened = AzureAppConfiguration(where, clock=lambda: now)
    try:
        emulator.put("lucius/tenants/a", "old")
        await opened.read()
        emulator.put("lucius/tenants/a", "new")
        now = 3599.0
        assert (await opened.read()).values == {"tenants/a": "old"}
        now = 3601.0
        assert (await opened.read()).values == {"tenants/a": "new"}
        emulator.failing_with = 503
        now = 7300.0
        with pytest.raises(ConfigurationUnavailable):
            await opened.read()
        emulator.failing_with = None
        # Until it is tried again, what was loaded before is good enough.
        assert (await opened.read()).values == {"tenants/a": "new"}
    finally:
        await opened.close()


async def test_nothing_is_fetched_while_nothing_changes(
    emulator: AppConfigurationEmulator, port: int
) -> None:
    emulator.put("lucius/tenants/a", "old")
    emulator.put("lucius/sentinel", "1")
    async with source(connection_string(port)) as opened:
        first = await opened.read()
        emulator.requests.clear()
        assert await opened.read() is first
        assert emulator.requests == []
        await looked(emulator, opened)
        assert [told for told in emulator.requests if "sentinel" in told[1]] == [
            ("GET", "/kv/lucius/sentinel", 304)
        ]


async def test_flags_come_and_go(emulator: AppConfigurationEmulator, port: int) -> None:
    emulator.put_feature("beta", enabled=True)
    async with source(connection_string(port)) as opened:
        assert (await opened.read()).features == {"beta": True}
        emulator.put_feature("beta", enabled=False)
        await until(opened, lambda reading: reading.features == {"beta": False})
        emulator.values.delete(".appconfig.featureflag/beta", None)
        await until(opened, lambda reading: reading.features == {})


@pytest.mark.parametrize("bad", ["{", '{"conditions": null, "enabled": 7}'])
async def test_a_flag_that_nobody_can_read_spoils_only_itself(
    emulator: AppConfigurationEmulator, port: int, bad: str
) -> None:
    kind = "application/vnd.microsoft.appconfig.ff+json;charset=utf-8"
    emulator.put("lucius/tenants/a", "x")
    emulator.put_feature("beta", enabled=True)
    emulator.put(".appconfig.featureflag/bad", bad, content_type=kind)
    async with source(connection_string(port)) as opened:
        found = await opened.read()
    assert found.values == {"tenants/a": "x"}
    assert found.features == {"beta": True, "bad": False}
    assert found.problems == (".appconfig.featureflag/bad: is not a feature flag, and counts as off",)


@pytest.mark.parametrize("bad", ["[]", '"text"'])
async def test_a_flag_that_the_library_cannot_take_spoils_only_flags(
    emulator: AppConfigurationEmulator, port: int, bad: str
) -> None:
    kind = "application/vnd.microsoft.appconfig.ff+json;charset=utf-8"
    emulator.put("lucius/tenants/a", "x")
    emulator.put_feature("beta", enabled=True)
    async with source(connection_string(port)) as opened:
        await opened.read()
        emulator.put(".appconfig.featureflag/bad", bad, content_type=kind)
        found = await until(opened, lambda reading: bool(reading.problems))
        assert found.values == {"tenants/a": "x"}
        assert found.features == {"beta": True}
        emulator.values.delete(".appconfig.featureflag/bad", None)
        await until(opened, lambda reading: not reading.problems)


async def test_references_to_a_key_vault_are_resolved(emulator: AppConfigurationEmulator, port: int) -> None:
    async def resolve(uri: str) -> str:
        if "gone" in uri:
            raise RuntimeError("canary-5c0ffee")
        return f"secret of {uri}"

    good = "https://vault.vault.azure.net/secrets/good"
    emulator.put_secret("lucius/settings/LUCIUS_A", good)
    emulator.put_secret("lucius/settings/LUCIUS_B", "https://vault.vault.azure.net/secrets/gone")
    emulator.put_secret("lucius/settings/LUCIUS_C", "not a uri")
    emulator.put("lucius/tenants/a", "x")
    async with source(connection_string(port), secrets=resolve) as opened:
        found = await opened.read()
    assert found.values == {"settings/LUCIUS_A": f"secret of {good}", "tenants/a": "x"}
    assert found.secret_keys == {"settings/LUCIUS_A", "settings/LUCIUS_B", "settings/LUCIUS_C"}
    assert set(found.faults) == {"settings/LUCIUS_B", "settings/LUCIUS_C"}
    assert "5c0ffee" not in repr(found.faults)


async def test_a_secret_that_changes_is_followed_and_a_lost_one_told(
    emulator: AppConfigurationEmulator, port: int
) -> None:
    held = {"https://vault.vault.azure.net/secrets/s": "one"}
    emulator.put_secret("lucius/settings/LUCIUS_A", "https://vault.vault.azure.net/secrets/s")
    where = ConfigurationAddress(connection_string=connection_string(port), refresh_seconds=1)
    opened = AzureAppConfiguration(
        where, clock=time.monotonic, secrets=held.__getitem__, secrets_every_seconds=1
    )
    try:
        assert (await opened.read()).values == {"settings/LUCIUS_A": "one"}
        held.update(dict.fromkeys(held, "two"))
        await until(opened, lambda reading: reading.values == {"settings/LUCIUS_A": "two"})
        held.clear()
        lost = await until(opened, lambda reading: bool(reading.faults))
        assert (lost.values, list(lost.faults)) == ({}, ["settings/LUCIUS_A"])
    finally:
        await opened.close()


async def test_without_anybody_to_resolve_them_only_references_are_missing(
    emulator: AppConfigurationEmulator, port: int
) -> None:
    emulator.put_secret("lucius/settings/LUCIUS_A", "https://vault.vault.azure.net/secrets/good")
    emulator.put("lucius/tenants/a", "x")
    async with source(connection_string(port)) as opened:
        found = await opened.read()
    assert found.values == {"tenants/a": "x"}
    assert set(found.faults) == {"settings/LUCIUS_A"}


async def test_an_outage_is_told_and_ends(emulator: AppConfigurationEmulator, port: int) -> None:
    emulator.put("lucius/tenants/a", "old")
    emulator.put("lucius/sentinel", "1")
    async with source(connection_string(port)) as opened:
        await opened.read()
        emulator.failing_with = 503
        assert await trouble(opened) == "App Configuration cannot be read (HTTP 503)"
        emulator.failing_with = None
        emulator.put("lucius/tenants/a", "new")
        emulator.put("lucius/sentinel", "2")
        await until(opened, lambda reading: reading.values["tenants/a"] == "new")


async def lag_seconds(work: Awaitable[object]) -> float:
    """The longest time for which the loop was not free while this was done."""
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            began = time.monotonic()
            try:
                await asyncio.sleep(0.05)
            finally:
                longest = max(longest, time.monotonic() - began)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    try:
        await work
    finally:
        watching.cancel()
        await asyncio.wait({watching})
    return longest


async def test_a_start_without_the_store_holds_nobody_up(
    emulator: AppConfigurationEmulator, port: int
) -> None:
    emulator.failing_with = 503
    async with source(connection_string(port)) as opened:

        async def refused() -> None:
            with pytest.raises(ConfigurationUnavailable):
                await opened.read()

        assert await lag_seconds(refused()) < 2.0
        emulator.failing_with = None
        emulator.put("lucius/tenants/a", "x")
        await until(opened, lambda reading: reading.values == {"tenants/a": "x"})


@pytest.mark.parametrize("gone", [True, False])
async def test_a_wrong_or_useless_secret_is_told_to_nobody(
    emulator: AppConfigurationEmulator, port: int, gone: bool, caplog: pytest.LogCaptureFixture
) -> None:
    canary = base64.b64encode(b"canary-5c0ffee-canary").decode()
    connection = connection_string(1 if gone else port).replace(SECRET, canary)
    with caplog.at_level(logging.DEBUG):
        async with source(connection, refresh_seconds=60) as opened:
            with pytest.raises(ConfigurationUnavailable) as fault:
                await opened.read()
            where = ConfigurationAddress(connection_string=connection)
            shown = "\n".join(
                [caplog.text, repr(fault.value), str(fault.value), repr(where), where.source, repr(opened)]
            )
            with pytest.raises(ConfigurationUnavailable) as again:
                await opened.read()
    assert str(again.value) == str(fault.value)
    assert str(fault.value).endswith("(ServiceRequestError)" if gone else "(HTTP 401)")
    assert fault.value.__cause__ is None
    assert "canary" not in shown
    assert canary not in shown
    assert len(caplog.records) > 0
