"""A server on a real socket, and a client that sends bytes and reads answers one by one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lucius.api.bodies import read_body
from lucius.api.connection_limits import ConnectionLimits, server_config
from lucius.api.problems import problem
from lucius.cli.serving import QuietServer
from lucius.core.refusal import Code, Refused

HOST = "127.0.0.1"
BODY_BYTES_MAX = 4_096
LIMITS = ConnectionLimits(head_bytes_max=1_024)
DEADLINE_SECONDS = 20.0


class App:
    """`/early` refuses without a look at the body, `/held` answers once it is let go; the rest tells how much
    came."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.paths: list[str] = []
        self.headers: list[dict[bytes, bytes]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        self.paths.append(scope["path"])
        response = await self._answer(request)
        self.headers.append(dict(scope["headers"]))  # those that came with the body too, if any do
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        path: str = request.scope["path"]
        if path == "/early":
            return problem(Refused(Code.UNAUTHENTICATED, "who is that?"))
        if path == "/held":
            await self.go.wait()
        body = await read_body(request, BODY_BYTES_MAX)
        return problem(body) if isinstance(body, Refused) else Response(f"{path} {len(body)}")


class Wire:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self._writer.write(piece)
            await self._writer.drain()

    async def answer(self) -> tuple[int, str, bool]:
        """Status, body, and whether the server says that it closes."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            head = "http/1.1 100"
            while head.startswith("http/1.1 100"):  # go on, that says, and is no answer
                head = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.partition("content-length: ")[2].split("\r\n")[0])
            body = await self._reader.readexactly(length)
        return int(head.split()[1]), body.decode(), "connection: close" in head

    async def rest(self) -> bytes:
        """What comes until the server hangs up."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            try:
                return await self._reader.read(-1)
            except ConnectionError:
                return b""

    def close(self) -> None:
        self._writer.transport.abort()


class WireDeployment:
    def __init__(self, app: App, server: QuietServer) -> None:
        self.app = app
        self._server = server

    @asynccontextmanager
    async def wire(self, address: str = HOST) -> AsyncIterator[Wire]:
        """From this address of the machine, which has many."""
        port = self._server.servers[0].sockets[0].getsockname()[1]
        wire = Wire(*await asyncio.open_connection(HOST, port, local_addr=(address, 0)))
        try:
            yield wire
        finally:
            wire.close()

    async def read_all(self) -> None:
        """Returns when the server has read what was sent until now: a request that came later is answered."""
        async with self.wire() as other:
            await other.send(b"GET /later HTTP/1.1\r\nhost: x\r\n\r\n")
            await other.answer()

    def look(self, in_seconds: float) -> None:
        """As the server looks at its connections now and then; this once, so many seconds from now."""
        now = asyncio.get_running_loop().time() + in_seconds
        connections: Any = tuple(self._server.server_state.connections)
        for connection in connections:
            connection.look(now)


@asynccontextmanager
async def wire_deployment(
    limits: ConnectionLimits = LIMITS, app: App | None = None
) -> AsyncIterator[WireDeployment]:
    app = app or App()
    config = server_config(app, limits, host=HOST, port=0, lifespan="off", log_level="critical")
    server = QuietServer(config)
    task = asyncio.create_task(server.serve())
    await server.up.wait()
    try:
        yield WireDeployment(app, server)
    finally:
        app.go.set()
        server.should_exit = server.force_exit = True
        await task
