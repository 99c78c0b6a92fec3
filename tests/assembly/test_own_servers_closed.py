"""The servers that `lucius dev` brings along let in nobody who has no credential: another user of the machine
reaches their ports, and neither reads nor writes a thing."""

import asyncio
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import httpx2
import msgspec
import nats
import pytest
from azure.core.exceptions import HttpResponseError
from azure.data.tables.aio import TableServiceClient
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

from lucius.assembly import NATS, NoBus, open_bus, own_nats
from lucius.assembly.choices import RunsOn, Sources
from lucius.assembly.own_servers.nats import arguments_of, own_worker_line
from lucius.assembly.secrets import new_server_secret
from lucius.assembly.wiring import make_workspace
from lucius.bus.nats.server import CONFIG_NAME, HOST, PID_NAME, NatsServer, free_port
from lucius.cli.dev_temporal import run_dev_temporal
from lucius.cli.options import DevOptions
from lucius.cli.starting import Start
from lucius.settings import Settings, read_settings
from lucius.workspace import ObjectWorkspace, WorkspaceUnavailable
from lucius_lab.emulators.app_configuration.app import SECRET
from lucius_lab.emulators.app_configuration.app import connection_string as configuration_string
from lucius_lab.emulators.azure_local import azure_local
from lucius_lab.emulators.azurite import ACCOUNT_KEY, Azurite, connection_string
from lucius_lab.emulators.own_azurite import own_azurite
from lucius_lab.emulators.own_service_bus import own_service_bus
from lucius_lab.emulators.service_bus import frames
from lucius_lab.emulators.service_bus.access import AccessKey, EmulatorAccess
from lucius_lab.emulators.service_bus.codec import DescribedValue, UInt, ULong
from lucius_lab.emulators.service_bus.server import KEY_NAME, KNOWN_KEY, serve

KEY: Final = "a-key-of-its-own"
HOUR_SECONDS: Final = 3_600


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# -- NATS --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "login", [(None, None), ("lucius", None), ("lucius", "guessed"), ("root", "guessed")]
)
async def test_a_stranger_is_not_let_in_by_the_own_nats(
    tmp_path: Path, login: tuple[str | None, str | None]
) -> None:
    async with own_nats(read_settings({}), tmp_path) as settings:
        bus = await open_bus(NATS, settings)
        assert bus is not None
        user, password = login
        strangers = msgspec.structs.replace(settings.nats, user=user, password=password)
        with pytest.raises(NoBus):
            await open_bus(NATS, msgspec.structs.replace(settings, nats=strangers))
        await bus.ping()
        await bus.close()


async def test_what_is_sent_without_a_login_is_not_heard(tmp_path: Path) -> None:
    """Straight on the wire: no library stands between."""
    async with own_nats(read_settings({}), tmp_path) as settings:
        host, _, port = settings.nats.places.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        assert b'"auth_required":true' in await reader.readline()
        writer.write(b'CONNECT {"verbose":false}\r\nSUB > 1\r\nPUB x 2\r\nhi\r\nPING\r\n')
        async with asyncio.timeout(20):
            said = await reader.read()
        assert b"Authorization Violation" in said and b"MSG" not in said and b"PONG" not in said
        writer.close()


async def test_the_password_is_in_files_of_the_owner_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with own_nats(read_settings({}), tmp_path) as settings:
        password = settings.nats.password
        assert password is not None and len(password) == 64
        folder = tmp_path / "nats"
        holders = [
            file for file in folder.rglob("*") if file.is_file() and password.encode() in file.read_bytes()
        ]
        assert {file.name for file in holders} == {"password", CONFIG_NAME}
        assert all(mode_of(file) == 0o600 for file in holders)
        assert mode_of(folder) == 0o700
        assert password not in arguments_of(int((folder / PID_NAME).read_text()))
        line = own_worker_line(settings, tmp_path)
        assert password not in line and f'"$(cat {folder}/password)"' in line
        assert password not in repr(settings)
    said = capfd.readouterr()
    assert password not in said.out + said.err


async def test_the_password_lasts_as_long_as_the_port_is_ours(tmp_path: Path) -> None:
    """Whoever listens at the old place in the meantime is told the password by workers that come back."""
    found: list[Settings] = []
    for taken in (False, False, True):
        before = found[-1].nats.places if found else f"{HOST}:{free_port()}"
        squatter = None
        if taken:
            squatter = await asyncio.start_server(
                lambda _, writer: writer.close(), HOST, int(before.split(":")[1])
            )
        async with own_nats(read_settings({}), tmp_path) as settings:
            found.append(settings)
        if squatter is not None:
            squatter.close()
    first, second, third = (settings.nats for settings in found)
    assert (first.places, first.password) == (second.places, second.password)
    assert first.places != third.places and first.password != third.password


async def test_an_older_data_folder_gets_a_password_and_keeps_its_streams(tmp_path: Path) -> None:
    before = NatsServer(tmp_path / "nats", port=free_port())
    before.start()
    await before.ready()
    client = await nats.connect(before.url)
    await client.jetstream().add_stream(name="kept", subjects=["kept"])
    await client.jetstream().publish("kept", b"still there")
    await client.close()
    await before.stop()
    async with own_nats(read_settings({}), tmp_path) as settings:
        assert settings.nats.places == before.url.removeprefix("nats://")
        nats_ = settings.nats
        client = await nats.connect(nats_.servers[0], user=nats_.user, password=nats_.password)
        assert (await client.jetstream().get_last_msg("kept", "kept")).data == b"still there"
        await client.close()


# -- Azurite -----------------------------------------------------------------------------------------------


async def create_table(connection: str, name: str) -> None:
    async with TableServiceClient.from_connection_string(connection, retry_total=0) as client:
        await client.create_table_if_not_exists(name)


@pytest.mark.xdist_group("azurite")
async def test_the_own_azurite_takes_no_key_that_everybody_knows(tmp_path: Path) -> None:
    async with own_azurite(read_settings({}), tmp_path) as settings:
        ours = settings.table_account.connection_string or ""
        await create_table(ours, "ours")
        port = int(settings.table_account.place.split(":")[2].split("/")[0])
        with pytest.raises(HttpResponseError) as refused:
            await create_table(connection_string(port), "strangers")
        assert refused.value.status_code == 403
        note = tmp_path / "azurite" / "process.json"
        assert mode_of(note) == 0o600
        key = ours.partition("AccountKey=")[2].partition(";")[0]
        pid = int(note.read_text().partition('"pid":')[2].partition(",")[0])
        assert len(key) == 64 and ACCOUNT_KEY not in ours
        assert "azurite" in arguments_of(pid) and key not in arguments_of(pid)
    async with own_azurite(read_settings({}), tmp_path) as settings:  # the same key, and what was written
        assert settings.table_account.connection_string == ours
        await create_table(ours, "ours")


@pytest.mark.xdist_group("azurite")
async def test_an_azurite_that_an_older_lucius_left_open_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "azurite"
    folder.mkdir()
    left_over = Azurite(port=free_port(), folder=folder)
    left_over.start()
    (folder / "process.json").write_text(f'{{"pid":{left_over.pid},"port":{left_over.port}}}')
    try:
        await create_table(left_over.connection_string, "kept")
        waited = asyncio.create_task(asyncio.to_thread(left_over._process.wait))  # type: ignore[union-attr]
        async with own_azurite(read_settings({}), tmp_path) as settings:
            await waited
            with pytest.raises(HttpResponseError):
                await create_table(connection_string(left_over.port), "strangers")
            ours = settings.table_account.connection_string or ""
            async with TableServiceClient.from_connection_string(ours) as client:
                assert [table.name async for table in client.list_tables()] == ["kept"]
    finally:
        left_over.kill()


@pytest.mark.xdist_group("azurite")
async def test_one_that_an_older_lucius_left_without_blobs_gets_them(tmp_path: Path) -> None:
    folder, key = tmp_path / "azurite", new_server_secret()
    folder.mkdir()
    left_over = Azurite(port=free_port(), folder=folder, key=key)
    left_over.start()
    (folder / "process.json").write_text(f'{{"pid":{left_over.pid},"port":{left_over.port},"key":"{key}"}}')
    waited = asyncio.create_task(asyncio.to_thread(left_over._process.wait))  # type: ignore[union-attr]
    try:
        async with own_azurite(read_settings({}), tmp_path) as settings:
            await waited
            workspace = make_workspace(settings, tmp_path)
            await workspace.write_new("az://workspace/kept.txt", b"kept")
            assert settings.blob_account is not None
            strangers = msgspec.structs.replace(settings.blob_account, key=ACCOUNT_KEY)
            with pytest.raises(WorkspaceUnavailable):
                await ObjectWorkspace(blob=strangers).read("az://workspace/kept.txt")
        async with own_azurite(read_settings({}), tmp_path) as settings:
            assert await make_workspace(settings, tmp_path).read("az://workspace/kept.txt") == b"kept"
    finally:
        left_over.kill()


@pytest.mark.xdist_group("azurite")
async def test_a_workspace_that_a_setting_names_stays(tmp_path: Path) -> None:
    named = read_settings({"LUCIUS_WORKSPACE_ROOT": "az://mine"})
    async with own_azurite(named, tmp_path) as settings:
        assert (settings.workspace_root, settings.blob_account) == ("az://mine", None)


# -- App Configuration -------------------------------------------------------------------------------------


async def test_the_own_app_configuration_takes_no_key_that_everybody_knows(tmp_path: Path) -> None:
    from azure.appconfiguration.aio import AzureAppConfigurationClient

    tables = {"LUCIUS_TABLE_CONNECTION": "UseDevelopmentStorage=true"}  # so that none are brought along
    async with azure_local(read_settings(tables), tmp_path) as settings:
        ours = settings.app_configuration.connection_string or ""
        port = int(ours.partition(";")[0].rpartition(":")[2])
        assert SECRET not in ours
        async with AzureAppConfigurationClient.from_connection_string(ours) as client:
            assert [one async for one in client.list_configuration_settings()] == []
        known = configuration_string(port)
        async with AzureAppConfigurationClient.from_connection_string(known, retry_total=0) as client:
            with pytest.raises(HttpResponseError) as refused:
                assert [one async for one in client.list_configuration_settings()]
            assert refused.value.status_code == 401
        async with httpx2.AsyncClient() as http:
            answer = await http.get(f"http://127.0.0.1:{port}/kv?api-version=1.0")
            assert answer.status_code == 401


# -- Service Bus -------------------------------------------------------------------------------------------


@pytest.mark.xdist_group("servicebus-faults")
async def test_the_own_service_bus_takes_no_key_that_everybody_knows() -> None:
    async with own_service_bus(read_settings({})) as settings:
        ours = settings.service_bus.connection_string or ""
        assert KNOWN_KEY not in ours
        key = ours.partition("SharedAccessKey=")[2].partition(";")[0]
        async with (
            ServiceBusClient.from_connection_string(ours) as client,
            client.get_topic_sender("global-bus-p0") as sender,
        ):
            await sender.send_messages(
                ServiceBusMessage(b"directive", application_properties={"service": "ocr"})
            )
        stranger = ours.replace(key, KNOWN_KEY)
        async with ServiceBusClient.from_connection_string(stranger, retry_total=0) as client:
            with pytest.raises(ServiceBusError):
                async with client.get_topic_sender("global-bus-p0") as sender:
                    await sender.send_messages(ServiceBusMessage(b"forged"))
            with pytest.raises(ServiceBusError):
                async with client.get_subscription_receiver("global-bus-p0", "ocr") as receiver:
                    await receiver.receive_messages(1, max_wait_time=1)


async def test_a_client_that_shows_no_token_is_not_attached() -> None:
    """Straight on the wire, as a client that leaves the tokens out would do it."""
    async with serve(now_ms=lambda: time.time_ns() // 1_000_000, key=KEY) as emulator:
        reader, writer = await asyncio.open_connection(emulator.host, emulator.port)
        target = DescribedValue(ULong(0x29), ["sb://host/orders"])
        source = DescribedValue(ULong(0x28), ["orders/subscriptions/all"])
        writer.write(
            frames.AMQP_HEADER
            + frames.make_frame(0, frames.OPEN, ["me"])
            + frames.make_frame(0, frames.BEGIN, [None, UInt(0), UInt(1), UInt(1)])
            + frames.make_frame(0, frames.ATTACH, ["out", UInt(0), False, None, None, source, target])
            + frames.make_frame(0, frames.ATTACH, ["in", UInt(1), True, None, None, source, target])
            + frames.make_frame(0, frames.CLOSE, [None])
        )
        async with asyncio.timeout(20):
            said = await reader.read()
        assert said.count(b"amqp:unauthorized-access") == 2
        writer.close()
        assert emulator.broker.peek("orders/subscriptions/all", 0, 10, 0) == []


def token(resource: str, *, key: str = KEY, name: str = KEY_NAME, expires: int = HOUR_SECONDS) -> str:
    from azure.servicebus._pyamqp.utils import generate_sas_token

    make: Callable[..., str] = generate_sas_token
    return make(resource, name, key, expires)


@pytest.mark.parametrize(
    ("shown", "fault"),
    [
        (token("sb://h:1/Orders"), None),
        (token("sb://h:1/Orders", key="another"), "does not match"),
        (token("sb://h:1/Orders", name="ListenOnly"), "no key of that name"),
        (token("sb://h:1/Orders", expires=999), "expired"),
        (token("sb://h:1/Orders").replace("se=3600", "se=9999"), "does not match"),
        (
            token("sb://h:1/Orders").replace("orders", "invoices").replace("Orders", "Invoices"),
            "does not match",
        ),
        (token("sb://h:1/Orders").replace("sig=", "sig=%21"), "not base64"),
        ("eyJhbGciOiJub25lIn0.e30.", "no shared access signature"),
        ("SharedAccessSignature sr=x&se=1", "no shared access signature"),
        ("", "no shared access signature"),
    ],
)
def test_a_token_holds_if_its_signature_name_and_time_do(shown: str, fault: str | None) -> None:
    said = EmulatorAccess(AccessKey(KEY_NAME, KEY), lambda: 1_000_000).show(shown)
    assert (said is None) is (fault is None)
    assert fault is None or fault in (said or "")


def test_a_token_opens_its_resource_and_what_is_below_until_its_time_has_passed() -> None:
    now_ms = [1_000_000]
    access = EmulatorAccess(AccessKey(KEY_NAME, KEY), lambda: now_ms[0])
    assert not access.opens("orders")
    assert access.show(token("sb://h:1/Orders")) is None
    opened = ("orders", "orders/subscriptions/all", "orders/$management")
    assert all(access.opens(address) for address in opened)
    assert not any(access.opens(address) for address in ("orders2", "invoices", ""))
    now_ms[0] = HOUR_SECONDS * 1_000
    assert not any(access.opens(address) for address in opened)
    assert access.show(token("sb://h:1/", expires=2 * HOUR_SECONDS)) is None
    assert access.opens("invoices")


# -- Temporal ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bus", ["nats", "servicebus-emulator"])
def test_with_authentication_required_no_temporal_is_brought_along(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], bus: str
) -> None:
    options = DevOptions(data=tmp_path / "data", engine="temporal", bus=bus)
    env = {"LUCIUS_AUTH": "required"}
    start = Start(settings=read_settings(env), sources=Sources(env=env))
    assert run_dev_temporal(options, start, RunsOn()) == 2
    said = capsys.readouterr().err
    assert "LUCIUS_TEMPORAL_ADDRESS" in said and said.count("\n") == 1
    assert not (tmp_path / "data").exists()
