"""A proxy in front of a stand-in for AWS that does what AWS does now and then.

Some calls are throttled or told that a transaction conflicts, some answers are lost after their call was
carried out, some messages are delivered twice, and what one receive brings is shuffled.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from lucius.lifebook.local import HOST

CONFLICT = {
    "__type": "com.amazonaws.dynamodb.v20120810#TransactionCanceledException",
    "message": "Transaction cancelled",
    "CancellationReasons": [{"Code": "TransactionConflict", "Message": "conflict"}, {"Code": "None"}],
}
THROTTLED = {
    "DynamoDB": "com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException",
    "AmazonSQS": "com.amazonaws.sqs#RequestThrottled",
}


class FaultProxy:
    """Shares from 0 to 1: of all calls, of the calls that write, of the receives, the first of which is
    doubled."""

    def __init__(
        self, target: str, *, seed: int, throttled: float = 0.1, lost: float = 0.02, doubled: float = 0.05
    ) -> None:
        place = urlsplit(target)
        self._target = (place.hostname or HOST, place.port or 80)
        self._rng = random.Random(seed)
        self._throttled, self._lost = throttled, lost
        self._doubled_every = round(1 / doubled)
        self._open: set[asyncio.Task[None]] = set()
        self.counts: Counter[str] = Counter()
        self.url = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator["FaultProxy"]:
        server = await asyncio.start_server(self._serve, HOST, 0)
        self.url = f"http://{HOST}:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for task in list(self._open):
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        try:
            upstream = await asyncio.open_connection(*self._target)
            while True:
                head, body = await _message(reader)
                writer.write(await self._answer(head, body, *upstream))
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(task)
            for each in (writer, upstream[1] if upstream else None):
                if each is not None:
                    with suppress(OSError, RuntimeError):
                        each.close()

    async def _answer(
        self,
        head: bytes,
        body: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bytes:
        service, _, call = _header(head, b"x-amz-target").rpartition(".")
        self.counts["calls"] += 1
        if self._rng.random() < self._throttled:
            self.counts["throttled"] += 1
            if call == "TransactWriteItems" and self._rng.random() < 0.5:
                return _response(400, CONFLICT)
            return _response(400, {"__type": THROTTLED[service.partition("_")[0]], "message": "too fast"})
        self.counts[call] += 1
        if call == "ReceiveMessage" and self.counts[call] % self._doubled_every == 1:
            asked = json.loads(body)
            body = json.dumps({**asked, "VisibilityTimeout": 0}).encode()
            head = _with_length(head, len(body))
            self.counts["doubled"] += 1
        writer.write(head + body)
        await writer.drain()
        head, body = await _message(reader)
        if call not in ("ReceiveMessage", "GetItem") and self._rng.random() < self._lost:
            self.counts["lost"] += 1
            return _response(500, {"__type": "InternalServerError", "message": "the answer is lost"})
        if call == "ReceiveMessage" and b'"Messages"' in body:
            told = json.loads(body)
            self._rng.shuffle(told["Messages"])
            body = json.dumps(told).encode()
            head = _with_length(head, len(body))
        return head + body


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    if _header(head, b"transfer-encoding") == "chunked":
        body = b""
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readexactly(2)
        return _with_length(head, len(body)), body
    return head, await reader.readexactly(int(_header(head, b"content-length") or 0))


def _header(head: bytes, name: bytes) -> str:
    for line in head.split(b"\r\n")[1:]:
        found, _, value = line.partition(b":")
        if found.strip().lower() == name:
            return value.strip().decode()
    return ""


def _with_length(head: bytes, length: int) -> bytes:
    dropped = (b"content-length:", b"transfer-encoding:", b"x-amz-crc32:")
    lines = [line for line in head.split(b"\r\n") if line and not line.lower().startswith(dropped)]
    return b"\r\n".join([*lines, b"Content-Length: %d" % length]) + b"\r\n\r\n"


def _response(status: int, document: dict[str, Any]) -> bytes:
    body = json.dumps(document).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/x-amz-json-1.0\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
