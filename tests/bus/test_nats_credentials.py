"""A NATS of somebody else's, which asks for a credentials file."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nats.aio.client import Client
from tests.support.nats_accounts import AccountsServer

from lucius.assembly import NATS, open_bus
from lucius.assembly.clock_and_ids import now_ms
from lucius.bus.nats.bus import NatsBus
from lucius.bus.nats.connection import NatsConnection
from lucius.bus.nats.server import free_port
from lucius.bus.port import BusUnavailable, DirectiveOut
from lucius.settings import read_settings

pytestmark = pytest.mark.xdist_group("nats")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[AccountsServer]:
    server = AccountsServer(tmp_path / "nats", port=free_port())
    server.start()
    await server.ready()
    yield server
    server.kill()


def shown(server: AccountsServer, file: Path) -> dict[str, str]:
    return {"LUCIUS_NATS_URL": server.url, "LUCIUS_NATS_CREDENTIALS": str(file)}


async def test_whoever_shows_its_credentials_is_let_in(server: AccountsServer, tmp_path: Path) -> None:
    file = server.credentials(tmp_path / "lucius.creds")
    bus = await open_bus(NATS, read_settings(shown(server, file)))
    assert bus is not None
    try:
        receiver = await bus.directives("ocr", 3)
        sent = DirectiveOut(service="ocr", lane=3, message_key="acme", message_id="one", body=b"{}")
        await bus.publish_directive(sent)
        (came,) = await receiver.receive(messages_max=1, wait_ms=5_000)
        assert came.body == sent.body
        await receiver.complete(came)
    finally:
        await bus.close()


async def test_whoever_shows_none_or_those_of_another_server_is_told_so(
    server: AccountsServer, tmp_path: Path
) -> None:
    stranger = AccountsServer(tmp_path / "elsewhere", port=free_port())
    for file in (stranger.credentials(tmp_path / "stranger.creds"), None):
        with pytest.raises(BusUnavailable, match="does not let Lucius in"):
            await NatsBus.open(
                [server.url],
                now_ms=now_ms,
                credentials_file=None if file is None else str(file),
                connect_seconds_max=0.5,
            )


async def test_a_connection_that_loses_a_cancellation_is_given_up_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the library does on Python 3.11 when a login is refused in the moment in which its time is over."""
    lost: list[asyncio.CancelledError] = []

    async def connect(client: Client) -> None:
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError as cancelled:
                if lost:
                    raise
                lost.append(cancelled)

    monkeypatch.setattr(Client, "_select_next_server", connect)
    connection = NatsConnection()
    async with asyncio.timeout(10):
        with pytest.raises(BusUnavailable):
            await connection.connect(
                ["nats://127.0.0.1:1"], name="late", credentials_file=None, tls=None, seconds_max=0.05
            )
    assert len(lost) == 1
