"""Listens on loopback, and keeps the broker's clock going.

In: a host, a port, a topology, a clock. Out: a running emulator, which can be made to misbehave: `drop` cuts
all connections without a word, `down` does so and refuses all clients until `up`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from lucius_lab.emulators.service_bus.access import AccessKey, EmulatorAccess
from lucius_lab.emulators.service_bus.broker import Broker
from lucius_lab.emulators.service_bus.connection import HEARTBEAT_SECONDS, Connection
from lucius_lab.emulators.service_bus.links import LinkHub
from lucius_lab.emulators.service_bus.topology import Topology

CONNECTIONS_MAX: Final = 2_000
HOST: Final = "127.0.0.1"
KEY_NAME: Final = "RootManageSharedAccessKey"
# As with Microsoft's own emulator: publicly known, so it protects nothing.
KNOWN_KEY: Final = "SAS_KEY_VALUE"


class ServiceBusEmulator:
    """Made by `serve`."""

    def __init__(self, broker: Broker, now_ms: Callable[[], int], *, host: str, port: int, key: str) -> None:
        self.broker = broker
        self._key = key
        self.host = host
        self.port = port
        self.dropped = 0
        self._now_ms = now_ms
        self._hub = LinkHub(broker, now_ms)
        self._connections: dict[Connection, asyncio.Task[None] | None] = {}
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms: int | None = None

    @property
    def connection_string(self) -> str:
        """Exactly so does the SDK keep the port and leave TLS out."""
        return (
            f"Endpoint=sb://{self.host}:{self.port};SharedAccessKeyName={KEY_NAME};"
            f"SharedAccessKey={self._key};UseDevelopmentEmulator=true;"
        )

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def up(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, self.host, self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def down(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        self.drop()

    def drop(self) -> None:
        for connection in list(self._connections):
            connection.drop()
            self.dropped += 1

    async def close(self) -> None:
        await self.down()
        tasks = [task for task in self._connections.values() if task is not None]
        if tasks:
            await asyncio.wait(tasks)
        if self._timer is not None:
            self._timer.cancel()

    def changed(self) -> None:
        """Hands out what came free, and looks again when time will free something."""
        self._hub.flush()
        due_ms = self._hub.next_ms()
        if due_ms == self._due_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due_ms = due_ms
        if due_ms is not None:
            seconds = max(0.0, (due_ms - self._now_ms()) / 1000)
            self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    async def beat(self) -> None:
        """Says that it is there, for ever: the SDK gives up a connection that is silent too long."""
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            for connection in list(self._connections):
                connection.heartbeat()

    def _look(self) -> None:
        self._timer, self._due_ms = None, None
        self.changed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        access = EmulatorAccess(AccessKey(KEY_NAME, self._key), self._now_ms)
        connection = Connection(reader, writer, self._hub, self.changed, access)
        if len(self._connections) >= CONNECTIONS_MAX or self._server is None:
            connection.drop()
            return
        self._connections[connection] = asyncio.current_task()
        try:
            await connection.run()
        finally:
            del self._connections[connection]


@asynccontextmanager
async def serve(
    host: str = HOST,
    port: int = 0,
    *,
    now_ms: Callable[[], int],
    topology: Topology | None = None,
    key: str = KNOWN_KEY,
) -> AsyncIterator[ServiceBusEmulator]:
    """`port` 0: any that is free. `now_ms`: the machine's clock, since the SDK compares locks with it.
    `key`: what opens it, and what its connection string holds."""
    broker = Broker(topology or Topology(), epoch=now_ms())
    emulator = ServiceBusEmulator(broker, now_ms, host=host, port=port, key=key)
    await emulator.up()
    beating = asyncio.create_task(emulator.beat())
    try:
        yield emulator
    finally:
        beating.cancel()
        await asyncio.wait({beating})
        await emulator.close()
