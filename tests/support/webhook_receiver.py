"""A receiver of webhooks on a loopback port, and a watch over every connection that this process makes."""

import asyncio
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import msgspec


class Received(msgspec.Struct, kw_only=True):
    path: str
    headers: dict[str, str]
    body: bytes


Answering = Callable[[Received], bytes | None]
"""The raw answer to a request; None hangs until the caller goes away."""


def status_line(status: int, *headers: str) -> bytes:
    """An answer without a body, that leaves the connection open."""
    lines = [f"HTTP/1.1 {status} Said", *headers]
    if status != 204:
        lines.append("content-length: 0")
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


class Receiver:
    def __init__(self, answering: Answering) -> None:
        self.port = 0
        self.answering = answering
        self.received: list[Received] = []
        self.hanging = 0
        self.hanging_most = 0
        self.names: list[str | None] = []  # asked for in TLS handshakes

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._serve_one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection may be used again."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in head[1:] if line)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        request = Received(path=head[0].split(" ")[1], headers=headers, body=body)
        self.received.append(request)
        answer = self.answering(request)
        if answer is None:
            self.hanging += 1
            self.hanging_most = max(self.hanging_most, self.hanging)
            await reader.read()
            self.hanging -= 1
            return False
        writer.write(answer)
        await writer.drain()
        return b"Said" in answer


@asynccontextmanager
async def receiver(
    answering: Answering | None = None, *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Receiver]:
    one = Receiver(answering or (lambda request: status_line(204)))
    if tls is not None:

        def note(ssl_socket: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
            one.names.append(name)

        tls.sni_callback = note
    server = await asyncio.start_server(one.meet, "127.0.0.1", 0, ssl=tls)
    one.port = server.sockets[0].getsockname()[1]
    try:
        yield one
    finally:
        server.close()


class Refusal(OSError):
    """Made by the watch: the connection was noted and not made."""


_watch: list[Callable[[str], None]] = []


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    """Called by the interpreter itself before any socket connects: nothing gets past it."""
    if event == "socket.connect" and _watch:
        connecting, address = arguments
        if isinstance(connecting, socket.socket) and connecting.family in (socket.AF_INET, socket.AF_INET6):
            assert isinstance(address, tuple)
            _watch[-1](str(address[0]))


sys.addaudithook(_hook)


@contextmanager
def connections(*, made: bool) -> Iterator[list[str]]:
    """The addresses that are connected to from now on; if they are not to be made, each attempt fails."""
    seen: list[str] = []

    def note(address: str) -> None:
        seen.append(address)
        if not made:
            raise Refusal(f"no connection to {address}")

    _watch.append(note)
    try:
        yield seen
    finally:
        _watch.remove(note)
