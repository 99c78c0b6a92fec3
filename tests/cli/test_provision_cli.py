"""`lucius provision azure` as it is called: on Azurite, and on a server that speaks as Service Bus does."""

import asyncio
import json
import os
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.conformance.azurite_setup import azurite
from tests.support.service_bus_setup import SECRET, served

from lucius.assembly.provision.azure import WantedResources, provision
from lucius.cli.main import run_cli
from lucius.ledger.azure_tables.names import table_to_azure
from lucius.ledger.azure_tables.wire import TableWire
from lucius.ledger.names import Tables
from lucius.provision.apply import AccessFailed
from lucius.provision.plan import wanted_tables
from lucius.settings import read_settings
from lucius_lab import forks

pytestmark = pytest.mark.xdist_group("azurite")
TABLES = len(msgspec.structs.fields(Tables))
_prefixes = (f"p{number}" for number in count(1))


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Tables of their own in Azurite, and nothing else that is named."""
    for name in [name for name in os.environ if name.startswith("LUCIUS_")]:
        monkeypatch.delenv(name)
    named = {
        "LUCIUS_TABLE_CONNECTION": azurite().connection_string,
        "LUCIUS_TABLE_PREFIX": next(_prefixes),
    }
    for name, value in named.items():
        monkeypatch.setenv(name, value)
    return named


async def lucius(*arguments: str, **env: str) -> tuple[int, str, str]:
    whole = {**os.environ, **env}
    done = await asyncio.to_thread(forks.run, "provision", "azure", *arguments, env=whole, seconds=120)
    assert SECRET not in done.stdout + done.stderr
    return done.returncode, done.stdout, done.stderr


async def test_check_apply_check(env: dict[str, str], tmp_path: Path) -> None:
    async with served(tmp_path) as (emulator, certificates):
        both = {"LUCIUS_SERVICEBUS_CONNECTION": emulator.connection_string, "SSL_CERT_FILE": certificates}
        things = TABLES + 32 + 16 * 3 + 16
        code, out, err = await lucius("--check", **both)
        assert code == 1
        assert len(out.splitlines()) == 1 + things
        assert out.splitlines()[0].split() == ["KIND", "NAME", "SETTING", "HAS", "WANTS", "REMEDY"]
        assert f"{things} looked at, {things} do not fit." in err

        code, out, err = await lucius("--apply", "--json", **both)
        told = json.loads(out)
        assert (code, told["fits"], told["findings"], len(told["done"])) == (0, True, [], things)
        assert told["service_bus"] == emulator.address

        emulator.set("global-bus-p0/subscriptions/sis", "LockDuration", "PT1M")
        emulator.set("global-bus-p0", "RequiresDuplicateDetection", "false")
        code, out, _ = await lucius("--check", **both)
        assert code == 1
        assert [line.split()[:5] for line in out.splitlines()[1:]] == [
            ["topic", "global-bus-p0", "duplicate_detection", "false", "true"],
            ["subscription", "global-bus-p0/sis", "lock_seconds", "60", "30"],
        ]
        code, out, err = await lucius("--apply", **both)
        assert code == 1
        assert "subscription global-bus-p0/sis: changed lock_seconds" in err
        assert "delete it once it is empty" in out

        emulator.set("global-bus-p0", "RequiresDuplicateDetection", "true")
        assert (await lucius("--check", **both))[:2] == (0, "")


async def test_services_may_be_named_or_come_from_protocols(env: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "protocols"
    folder.mkdir()
    (folder / "own.yaml").write_text(
        "protocol_id: own_v1\nrequest_types: [own]\nsteps:\n  - step_type: OWN\n    service: owner\n"
    )
    async with served(tmp_path) as (emulator, certificates):
        both = {"LUCIUS_SERVICEBUS_CONNECTION": emulator.connection_string, "SSL_CERT_FILE": certificates}

        async def services(*arguments: str) -> set[str]:
            _, out, _ = await lucius("--check", "--json", *arguments, **both)
            names = {each["name"] for each in json.loads(out)["findings"] if each["kind"] == "subscription"}
            return {name.partition("/")[2] for name in names if "replies" not in name}

        assert await services() == {"ocr", "embedding", "sis"}
        assert await services("--protocols", str(folder)) == {"ocr", "embedding", "sis", "owner"}
        assert await services("--service", "a", "--service", "b") == {"a", "b"}


async def test_without_rights_it_says_so(env: dict[str, str], tmp_path: Path) -> None:
    async with served(tmp_path) as (emulator, certificates):
        both = {"LUCIUS_SERVICEBUS_CONNECTION": emulator.connection_string, "SSL_CERT_FILE": certificates}
        emulator.may_write = False
        code, out, _ = await lucius("--apply", **both)
        assert code == 4
        assert "not allowed (403): it takes the role Azure Service Bus Data Owner" in out
        emulator.may_look = False
        code, out, err = await lucius("--check", **both)
        assert (code, out) == (4, "")
        assert err.startswith(f"error: Service Bus at {emulator.address}: not allowed (401)")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run_cli(["provision", "azure", *arguments])
    said = capsys.readouterr()
    assert SECRET not in said.out + said.err
    return code, said.out, said.err


def test_tables_alone(env: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--check")
    assert (code, len(out.splitlines())) == (1, 1 + TABLES)
    assert "topics and subscriptions were not looked at" in err
    code, out, err = run(capsys, "--apply")
    assert (code, out) == (0, "")
    assert f"table {table_to_azure(env['LUCIUS_TABLE_PREFIX'], 'Jobs')}: created" in err
    assert run(capsys, "--check")[:2] == (0, "")


async def test_a_table_in_another_spelling_is_the_same_table(env: dict[str, str]) -> None:
    settings = read_settings(env)
    wanted = wanted_tables(settings.table_account.prefix, settings.tables)
    wire = await TableWire.to_connection_string(env["LUCIUS_TABLE_CONNECTION"])
    try:
        assert await wire.create_table(wanted[0].name.upper()) is None
    finally:
        await wire.close()
    report = await provision(settings, WantedResources(tables=tuple(wanted), bus=None), change=False)
    assert [each.name for each in report.findings] == [thing.name for thing in wanted[1:]]


def test_a_key_that_opens_nothing(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key = env["LUCIUS_TABLE_CONNECTION"].partition("AccountKey=")[2].partition(";")[0]
    wrong = env["LUCIUS_TABLE_CONNECTION"].replace(key, "Y2FuYXJ5LTVlYzRlNw==")
    monkeypatch.setenv("LUCIUS_TABLE_CONNECTION", wrong)
    code, out, err = run(capsys, "--check")
    assert (code, out) == (4, "")
    assert "it takes the role Storage Table Data Contributor" in err
    assert "Y2FuYXJ5" not in err


@pytest.mark.parametrize(
    ("named", "said"),
    [
        (
            {
                "LUCIUS_SERVICEBUS_CONNECTION": "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=k;"
                f"SharedAccessKey={SECRET}"
            },
            "error: Service Bus at 127.0.0.1:1: cannot be reached",
        ),
        (
            {
                "LUCIUS_SERVICEBUS_CONNECTION": "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=k;"
                f"SharedAccessKey={SECRET};UseDevelopmentEmulator=true"
            },
            "an emulator has its topics from its own configuration",
        ),
        (
            {"LUCIUS_SERVICEBUS_NAMESPACE": "n.example", "LUCIUS_AZURE_IDENTITY": "workload"},
            "the workload identity needs AZURE_TENANT_ID",
        ),
        ({"LUCIUS_TABLE_CONNECTION": "https://127.0.0.1:1"}, "The tables at https://127.0.0.1:1: "),
    ],
)
def test_what_cannot_be_reached(
    env: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    named: dict[str, str],
    said: str,
) -> None:
    for name in ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_FEDERATED_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("LUCIUS_TABLE_CONNECTION")
    monkeypatch.setenv("LUCIUS_AZURE_IDENTITY", "managed")
    monkeypatch.setenv("IDENTITY_ENDPOINT", "http://127.0.0.1:1/token")
    monkeypatch.setenv("IDENTITY_HEADER", SECRET)
    for name, value in named.items():
        monkeypatch.setenv(name, value)
    code, out, err = run(capsys, "--check")
    assert (code, out) == (4, "")
    assert said in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "either --check or --apply"),
        (["--check", "--apply"], "either --check or --apply"),
        (["--check", "--service", ""], "a service's name"),
        (["--check", "--lock-seconds", "301"], "--lock-seconds"),
    ],
)
def test_a_command_line_that_makes_no_sense(
    env: dict[str, str], capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert said in err


def test_nothing_named(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("LUCIUS_TABLE_CONNECTION")
    code, _, err = run(capsys, "--check")
    assert code == 2
    assert "LUCIUS_SERVICEBUS_NAMESPACE" in err


async def test_a_text_that_is_no_connection_string(env: dict[str, str]) -> None:
    settings: Any = read_settings(env)
    broken = msgspec.structs.replace(settings.table_account, connection_string=f"AccountKey={SECRET}")
    settings = msgspec.structs.replace(settings, table_account=broken)
    with pytest.raises(AccessFailed, match="cannot be read") as fault:
        await provision(settings, WantedResources(tables=(), bus=None), change=False)
    assert SECRET not in str(fault.value)
