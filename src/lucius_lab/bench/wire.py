"""A small HTTP/1.1 client for load: keep-alive, one request at a time a connection, little else.

It exists so that measuring costs less than what is measured. It speaks to loopback addresses of servers under
test and follows nothing.
"""

import asyncio
from http import HTTPStatus
from typing import Any, cast

import httptools
import msgspec


class WireFault(Exception):
    """The connection broke, or the answer was not one."""


class _HttpReply(asyncio.Protocol):
    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._body: list[bytes] = []
        self._waiter: asyncio.Future[tuple[int, bytes]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its bases

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(WireFault("the connection was closed"))
        self.transport = None

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as fault:
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_exception(WireFault(str(fault)))

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result((self._parser.get_status_code(), b"".join(self._body)))

    def send(self, raw: bytes) -> asyncio.Future[tuple[int, bytes]]:
        if self.transport is None:
            raise WireFault("not connected")
        self._parser = httptools.HttpResponseParser(self)
        self._body = []
        self._waiter = asyncio.get_running_loop().create_future()
        self.transport.write(raw)
        return self._waiter


class LoadConnection:
    """One connection to one server."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._reply: _HttpReply | None = None

    async def get(self, path: str) -> tuple[int, Any]:
        return await self._ask(f"GET {path} HTTP/1.1\r\nHost: {self._host}\r\n\r\n".encode())

    async def post(self, path: str, document: Any, *, bearer: str | None = None) -> tuple[int, Any]:
        body = msgspec.json.encode(document)
        token = "" if bearer is None else f"Authorization: Bearer {bearer}\r\n"
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
            f"{token}Content-Length: {len(body)}\r\n\r\n"
        )
        return await self._ask(head.encode() + body)

    async def _ask(self, raw: bytes) -> tuple[int, Any]:
        if self._reply is None or self._reply.transport is None:
            loop = asyncio.get_running_loop()
            try:
                _, self._reply = await loop.create_connection(_HttpReply, self._host, self._port)
            except OSError as fault:
                raise WireFault(str(fault)) from fault
        status, body = await self._reply.send(raw)
        return status, msgspec.json.decode(body) if body else None

    def close(self) -> None:
        if self._reply is not None and self._reply.transport is not None:
            self._reply.transport.close()


async def is_ready(host: str, port: int) -> bool:
    """Whether a server there says that it is ready."""
    wire = LoadConnection(host, port)
    try:
        status, _ = await wire.get("/readyz")
    except WireFault:
        return False
    finally:
        wire.close()
    return status == HTTPStatus.OK
