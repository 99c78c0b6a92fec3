"""The App Configuration emulator, asked by Microsoft's own library and by hand."""

import base64
import hashlib
import hmac
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from email.utils import formatdate
from pathlib import Path

import aiohttp
import pytest
from azure.appconfiguration import ConfigurationSetting, FeatureFlagConfigurationSetting
from azure.appconfiguration.aio import AzureAppConfigurationClient
from azure.core import MatchConditions
from azure.core.exceptions import (
    HttpResponseError,
    ResourceExistsError,
    ResourceModifiedError,
    ResourceNotFoundError,
)

from lucius_lab.emulators.app_configuration.app import (
    KEY_ID,
    SECRET,
    AppConfigurationEmulator,
    connection_string,
    serving,
)


@pytest.fixture
def emulator() -> AppConfigurationEmulator:
    return AppConfigurationEmulator(now_seconds=time.time, page_items_max=3)


@pytest.fixture
async def port(emulator: AppConfigurationEmulator) -> AsyncIterator[int]:
    async with serving(emulator) as taken:
        yield taken


@pytest.fixture
async def client(port: int) -> AsyncIterator[AzureAppConfigurationClient]:
    async with AzureAppConfigurationClient.from_connection_string(
        connection_string(port), retry_total=0
    ) as opened:
        yield opened


async def keys(
    client: AzureAppConfigurationClient, key_filter: str = "*", label_filter: str | None = None
) -> list[tuple[str, str | None]]:
    pages = client.list_configuration_settings(key_filter=key_filter, label_filter=label_filter)
    return [(found.key, found.label) async for found in pages]


async def test_what_is_set_is_got(client: AzureAppConfigurationClient) -> None:
    written = await client.set_configuration_setting(
        ConfigurationSetting(
            key="a/b ü%", label="prod", value="one", content_type="text/plain", tags={"x": "y"}
        )
    )
    found = await client.get_configuration_setting("a/b ü%", label="prod")
    assert found is not None
    assert (found.value, found.content_type, found.tags, found.etag) == (
        "one",
        "text/plain",
        {"x": "y"},
        written.etag,
    )
    with pytest.raises(ResourceNotFoundError):
        await client.get_configuration_setting("a/b ü%")


async def test_a_write_may_depend_on_the_version(client: AzureAppConfigurationClient) -> None:
    first = await client.add_configuration_setting(ConfigurationSetting(key="k", value="1"))
    with pytest.raises(ResourceExistsError):
        await client.add_configuration_setting(ConfigurationSetting(key="k", value="2"))
    await client.set_configuration_setting(ConfigurationSetting(key="k", value="2"))
    with pytest.raises(ResourceModifiedError):
        await client.set_configuration_setting(
            ConfigurationSetting(key="k", value="3", etag=first.etag),
            match_condition=MatchConditions.IfNotModified,
        )
    found = await client.get_configuration_setting("k")
    assert found is not None
    assert found.value == "2"


async def test_an_unchanged_one_is_not_sent_again(
    emulator: AppConfigurationEmulator, client: AzureAppConfigurationClient
) -> None:
    first = await client.set_configuration_setting(ConfigurationSetting(key="k", value="1"))
    again = await client.get_configuration_setting(
        "k", etag=first.etag, match_condition=MatchConditions.IfModified
    )
    assert again is None
    assert emulator.requests[-1] == ("GET", "/kv/k", 304)


async def test_what_is_deleted_is_gone(client: AzureAppConfigurationClient) -> None:
    await client.set_configuration_setting(ConfigurationSetting(key="k", value="1"))
    deleted = await client.delete_configuration_setting("k")
    assert deleted is not None
    assert deleted.value == "1"
    assert await client.delete_configuration_setting("k") is None
    with pytest.raises(ResourceNotFoundError):
        await client.get_configuration_setting("k")


async def test_filters(emulator: AppConfigurationEmulator, client: AzureAppConfigurationClient) -> None:
    for key in ("a", "ab", "b", "b,c", "b*"):
        emulator.put(key, "x")
    emulator.put("a", "y", label="prod")
    assert await keys(client, key_filter="a*", label_filter="\0") == [("a", None), ("ab", None)]
    assert await keys(client, key_filter="a*") == [("a", None), ("a", "prod"), ("ab", None)]
    assert await keys(client, key_filter="*", label_filter="pr*") == [("a", "prod")]
    assert await keys(client, key_filter="a,b", label_filter="\0") == [("a", None), ("b", None)]
    assert await keys(client, key_filter=r"b\,c") == [("b,c", None)]
    assert await keys(client, key_filter=r"b\*") == [("b*", None)]
    with pytest.raises(HttpResponseError):
        await keys(client, key_filter="*a")


async def test_pages_and_their_versions(
    emulator: AppConfigurationEmulator, client: AzureAppConfigurationClient
) -> None:
    for number in range(8):
        emulator.put(f"k{number}", "x")
    etags = []
    pages = client.list_configuration_settings(key_filter="k*").by_page()
    sizes = []
    async for page in pages:
        sizes.append(len([item async for item in page]))
        etags.append(pages.etag)
    assert sizes == [3, 3, 2]
    assert len(set(etags)) == 3

    async def changed() -> list[str]:
        found = client.list_configuration_settings(key_filter="k*").by_page(match_conditions=etags)
        return [item.key async for page in found async for item in page]

    assert await changed() == []
    emulator.put("k4", "y")
    assert await changed() == ["k3", "k4", "k5"]


async def test_a_feature_flag_is_a_key_value(
    emulator: AppConfigurationEmulator, client: AzureAppConfigurationClient
) -> None:
    emulator.put_feature("beta", enabled=True)
    found = await client.get_configuration_setting(".appconfig.featureflag/beta")
    assert isinstance(found, FeatureFlagConfigurationSetting)
    assert found.enabled


async def test_a_wrong_secret_is_refused(port: int) -> None:
    wrong = connection_string(port).replace(SECRET, base64.b64encode(b"another").decode())
    async with AzureAppConfigurationClient.from_connection_string(wrong, retry_total=0) as client:
        with pytest.raises(HttpResponseError) as fault:
            await client.get_configuration_setting("k")
    assert fault.value.status_code == 401


def signed(
    method: str,
    target: str,
    host: str,
    *,
    date: str | None = None,
    body: bytes = b"",
    sent_body: bytes | None = None,
    key_id: str = KEY_ID,
    names: str = "x-ms-date;host;x-ms-content-sha256",
) -> dict[str, str]:
    date = date or formatdate(time.time(), usegmt=True)
    content = base64.b64encode(hashlib.sha256(body if sent_body is None else sent_body).digest()).decode()
    text = f"{method}\n{target}\n{date};{host};{content}"
    digest = hmac.new(base64.b64decode(SECRET), text.encode(), hashlib.sha256).digest()
    parts = {
        "Credential": key_id,
        "SignedHeaders": names,
        "Signature": base64.b64encode(digest).decode(),
    }
    return {
        "x-ms-date": date,
        "x-ms-content-sha256": content,
        "Authorization": "HMAC-SHA256 " + "&".join(f"{name}={value}" for name, value in parts.items()),
    }


async def asked(port: int, target: str, headers: dict[str, str], body: bytes = b"") -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.put(f"http://127.0.0.1:{port}{target}", data=body, headers=headers) as told,
    ):
        return told.status, told.headers.get("www-authenticate", "")


async def test_each_part_of_a_signature_counts(port: int) -> None:
    target, host, body = "/kv/k?api-version=1.0", f"127.0.0.1:{port}", b'{"value":"1"}'
    old = formatdate(time.time() - 16 * 60, usegmt=True)
    assert (await asked(port, target, signed("PUT", target, host, body=body), body))[0] == 200
    bad = {
        "is not signed": {},
        "date is more": signed("PUT", target, host, body=body, date=old),
        "date cannot": signed("PUT", target, host, body=body, date="yesterday"),
        "content hash": signed("PUT", target, host, sent_body=b"other"),
        "credential": signed("PUT", target, host, body=body, key_id="somebody"),
        "signed headers": signed("PUT", target, host, body=body, names="x-ms-date"),
        "signature does not match": signed("GET", target, host, body=body),
    }
    bad["signature does not match "] = signed("PUT", target, "elsewhere.azconfig.io", body=body)
    bad["not match"] = signed("PUT", "/kv/other?api-version=1.0", host, body=body)
    for wanted, headers in bad.items():
        status, told = await asked(port, target, headers, body)
        assert (status, wanted.strip() in told) == (401, True), (wanted, told)


async def test_it_can_be_told_to_fail(
    emulator: AppConfigurationEmulator, client: AzureAppConfigurationClient
) -> None:
    emulator.failing_with = 503
    with pytest.raises(HttpResponseError):
        await client.get_configuration_setting("k")


async def test_as_a_process_with_a_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps([{"key": "lucius/x", "value": "1", "label": "prod"}]))
    line = [
        sys.executable,
        "-m",
        "lucius_lab.emulators.app_configuration.app",
        "--port",
        "0",
        "--load",
        str(file),
    ]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        connection = process.stdout.readline().strip()
        async with AzureAppConfigurationClient.from_connection_string(connection) as client:
            assert await keys(client) == [("lucius/x", "prod")]
    finally:
        process.terminate()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()
