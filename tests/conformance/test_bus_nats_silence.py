"""A NATS that says nothing for a while, and then answers everything that it was asked meanwhile."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from nats.aio.client import Client
from tests.conformance.bus_setups import wall_clock_ms

from lucius.bus.nats.bus import NatsBus
from lucius.bus.nats.server import NatsServer, free_port
from lucius.bus.port import BusUnavailable, DirectiveOut

pytestmark = pytest.mark.xdist_group("nats")

DIRECTIVE = DirectiveOut(service="ocr", lane=0, message_key="k", message_id="m1", body=b"{}")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path / "nats", port=free_port())
    server.start()
    yield server
    server.kill()


@asynccontextmanager
async def a_bus(server: NatsServer, *, ping_every_seconds: float) -> AsyncIterator[NatsBus]:
    await server.ready()
    bus = await NatsBus.open(
        [server.url], now_ms=wall_clock_ms, answer_seconds_max=0.5, ping_every_seconds=ping_every_seconds
    )
    try:
        yield bus
    finally:
        await bus.close()


@contextmanager
def silent(server: NatsServer) -> Iterator[None]:
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


async def is_heard_again(bus: NatsBus, seconds_max: float) -> None:
    async with asyncio.timeout(seconds_max):
        while True:
            try:
                return await bus.ping()
            except BusUnavailable:
                await asyncio.sleep(0.02)


async def test_an_answer_that_comes_late_makes_nobody_deaf(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    library_flush = Client.flush

    async def hasty_flush(client: Client, timeout: float = 0.3) -> None:
        await library_flush(client, timeout)  # type: ignore[arg-type]

    monkeypatch.setattr(Client, "flush", hasty_flush)
    async with a_bus(server, ping_every_seconds=60) as bus:
        receiver = await bus.directives("ocr", 0)
        waiting = asyncio.create_task(receiver.receive(messages_max=1, wait_ms=60_000))
        await asyncio.sleep(0.1)
        with silent(server):
            waiting.cancel()  # gives its inbox up, which asks the server whether something is on its way
            await asyncio.sleep(0.6)
        await is_heard_again(bus, 2)
        await bus.publish_directive(DIRECTIVE)
        (got,) = await receiver.receive(messages_max=1, wait_ms=500)
        assert (got.message_id, got.delivery_count) == ("m1", 1)


async def test_a_connection_that_nobody_reads_any_more_is_made_again(server: NatsServer) -> None:
    async with a_bus(server, ping_every_seconds=0.1) as bus:
        bus._link._client._reading_task.cancel()  # type: ignore[union-attr]
        await asyncio.sleep(0)
        await is_heard_again(bus, 2)
        assert bus._link.breaks == 1


async def test_a_server_that_is_silent_is_out_of_reach_until_it_answers(server: NatsServer) -> None:
    async with a_bus(server, ping_every_seconds=0.1) as bus:
        receiver = await bus.directives("ocr", 0)
        with silent(server):
            with pytest.raises(BusUnavailable, match="broke"):
                await receiver.receive(messages_max=1, wait_ms=5_000)
            with pytest.raises(BusUnavailable, match="out of reach"):
                await bus.ping()
        await is_heard_again(bus, 3)
        await bus.publish_directive(DIRECTIVE)
        assert len(await receiver.receive(messages_max=1, wait_ms=500)) == 1
