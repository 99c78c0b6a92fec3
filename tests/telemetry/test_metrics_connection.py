"""Clients that take their time: they are cut off within a bound, and nobody else waits for them."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send
from tests.journeys.harness import Lucius

from lucius.api.access import AccessMiddleware, AccessObserver, AccessOptions
from lucius.api.connection_limits import ConnectionLimits, server_config
from lucius.cli.serving import QuietServer
from lucius.telemetry import Metrics

HOST = "127.0.0.1"
SLACK_SECONDS = 4.0  # the machine may be busy
LIMITS = ConnectionLimits(
    head_seconds_max=1.0,
    body_seconds_max=1.0,
    body_grace_seconds=1.0,
    head_bytes_max=8_192,
    unread_seconds_max=1.0,
    keep_alive_seconds=2,
)
OVERHEAD_MICROSECONDS_MAX = 100.0  # on a machine that is busy with other things; alone it is below 15


class App:
    """Reads bodies, and answers how many bytes there were."""

    def __init__(self) -> None:
        self.disconnects = 0
        self.requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        self.requests += 1
        if scope["path"] == "/slow":
            await asyncio.sleep(LIMITS.head_seconds_max * 3)
        if scope["path"] == "/large":
            await Response(b"x" * 64_000_000)(scope, receive, send)
            return
        try:
            body = await Request(scope, receive).body()
        except ClientDisconnect:
            self.disconnects += 1
            await Response("the body ended early", status_code=400)(scope, receive, send)
            return
        await Response(str(len(body)))(scope, receive, send)


def guarded(app: Any, seconds: float = 1.0, metrics: Metrics | None = None) -> AccessMiddleware:
    watching = AccessObserver(
        metrics or Metrics(lambda name: True),
        AccessOptions(body_seconds_max=seconds),
        clock=time.perf_counter,
        new_id=lambda: "made",
    )
    return AccessMiddleware(app, watching)


@asynccontextmanager
async def running(app: Any, limits: ConnectionLimits = LIMITS) -> AsyncIterator[QuietServer]:
    config = server_config(app, limits, host=HOST, port=0, lifespan="off", log_level="critical")
    server = QuietServer(config)
    task = asyncio.create_task(server.serve())
    await server.up.wait()
    try:
        yield server
    finally:
        server.should_exit = server.force_exit = True
        await task


@asynccontextmanager
async def serving(app: Any, limits: ConnectionLimits = LIMITS) -> AsyncIterator[int]:
    async with running(app, limits) as server:
        yield _port(server)


def _port(server: QuietServer) -> int:
    port: int = server.servers[0].sockets[0].getsockname()[1]
    return port


class Client:
    """Bytes, sent as slowly as one likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def to(cls, port: int) -> "Client":
        return cls(*await asyncio.open_connection(HOST, port, limit=1_024))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def drip(self, data: bytes, every_seconds: float) -> None:
        try:
            while True:
                self.writer.write(data)
                await self.writer.drain()
                await asyncio.sleep(every_seconds)
        except OSError:
            return

    async def end(self) -> tuple[bytes, float]:
        """What came until the server hung up, and how long that took."""
        began = time.monotonic()
        try:
            told = await asyncio.wait_for(self.reader.read(-1), 30)
        except OSError:
            told = b""
        return told, time.monotonic() - began

    async def answer(self) -> bytes:
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        return head + await self.reader.readexactly(length)

    def close(self) -> None:
        self.writer.transport.abort()


@pytest.mark.parametrize(
    ("first", "dripped"),
    [
        (b"", b""),
        (b"GET / HT", b""),
        (b"GET / HTTP/1.1\r\nhost: x\r\n", b"x-a: b\r\n"),
        (b"GET / HTTP/1.1\r\nx-a: ", b"b"),
        (b"\r\n", b"\r\n"),
    ],
)
async def test_a_head_that_does_not_come_ends_the_connection(first: bytes, dripped: bytes) -> None:
    app = App()
    async with serving(guarded(app)) as port:
        client = await Client.to(port)
        client.send(first)
        dripping = asyncio.create_task(client.drip(dripped, 0.1)) if dripped else None
        told, seconds = await client.end()
        assert seconds < LIMITS.head_seconds_max + SLACK_SECONDS
        if first.startswith(b"GET") and not dripped:
            assert told.startswith(b"HTTP/1.1 408 ")
        if dripping is not None:
            dripping.cancel()
        client.close()
    assert app.requests == 0


async def test_empty_lines_do_not_keep_a_used_connection_open() -> None:
    async with serving(guarded(App())) as port:
        client = await Client.to(port)
        client.send(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await client.answer()).startswith(b"HTTP/1.1 200 ")
        dripping = asyncio.create_task(client.drip(b"\r\n", 0.1))
        _, seconds = await client.end()
        dripping.cancel()
        client.close()
    assert seconds < LIMITS.head_seconds_max + SLACK_SECONDS


async def test_a_head_that_is_too_large_is_refused() -> None:
    app = App()
    async with serving(guarded(app)) as port:
        client = await Client.to(port)
        client.send(b"GET / HTTP/1.1\r\nx-a: ")
        dripping = asyncio.create_task(client.drip(b"b" * 1_000, 0.001))
        told, seconds = await client.end()
        dripping.cancel()
        client.close()
    assert seconds < 1 + SLACK_SECONDS
    assert app.requests == 0
    # A client that keeps writing may lose the answer to the reset that follows it.
    assert told == b"" or told.startswith(b"HTTP/1.1 431 ")


async def test_a_body_that_does_not_come_is_answered_and_the_connection_ends() -> None:
    app = App()
    async with serving(guarded(app)) as port:
        client = await Client.to(port)
        client.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n")
        dripping = asyncio.create_task(client.drip(b"x", 0.1))
        told, seconds = await client.end()
        dripping.cancel()
        client.close()
    assert 0.5 < seconds < 1 + SLACK_SECONDS
    assert app.disconnects == 1
    assert told == b"" or (told.startswith(b"HTTP/1.1 400 ") and b"connection: close" in told)


async def test_a_body_that_nobody_reads_does_not_hold_the_connection_either() -> None:
    """The route answers at once and leaves the body alone: only the connection itself can end it."""

    async def deaf(scope: Scope, receive: Receive, send: Send) -> None:
        await Response("done")(scope, receive, send)

    limits = ConnectionLimits(
        head_seconds_max=1, body_seconds_max=0.1, body_grace_seconds=1, keep_alive_seconds=600
    )
    async with serving(guarded(deaf), limits) as port:
        client = await Client.to(port)
        client.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n")
        dripping = asyncio.create_task(client.drip(b"x", 0.1))
        _, seconds = await client.end()
        dripping.cancel()
        client.close()
    assert seconds < 1.1 + SLACK_SECONDS


async def test_an_answer_that_nobody_reads_ends_the_connection() -> None:
    app = App()
    async with running(guarded(app)) as server:
        client = await Client.to(_port(server))
        client.send(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
        async with asyncio.timeout(30):
            while not app.requests or server.server_state.connections:
                await asyncio.sleep(0.05)
        told, _ = await client.end()
        client.close()
    assert len(told) < 64_000_000


async def test_waiting_for_an_answer_is_not_held_against_the_client() -> None:
    """A long poll, and behind it a second request whose body the server itself does not read yet."""
    async with serving(guarded(App())) as port:
        client = await Client.to(port)
        client.send(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
        client.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\n")
        await asyncio.sleep(0.3)
        client.send(b"abc")
        assert (await client.answer()).endswith(b"\r\n\r\n0")
        assert (await client.answer()).endswith(b"\r\n\r\n3")
        client.close()


async def test_slow_clients_hold_nobody_up() -> None:
    async with serving(guarded(App())) as port:
        slow = [await Client.to(port) for _ in range(200)]
        for number, client in enumerate(slow):
            head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n"
            client.send(head if number % 2 else head + b"\r\nx")
        quick = await Client.to(port)
        took = []
        for _ in range(20):
            began = time.monotonic()
            quick.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc")
            assert (await quick.answer()).endswith(b"\r\n\r\n3")
            took.append(time.monotonic() - began)
        assert sorted(took)[10] < 0.5
        ends = await asyncio.gather(*(client.end() for client in slow))
        assert max(seconds for _, seconds in ends) < 1 + SLACK_SECONDS
        for client in (*slow, quick):
            client.close()


# The watch over bodies by itself


async def _call(app: Any, receive: Receive, method: str = "POST") -> list[Message]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await app({"type": "http", "method": method, "path": "/", "headers": []}, receive, send)
    return sent


async def test_only_waiting_for_the_body_is_interrupted() -> None:
    """What comes after a complete body (a long poll, a stream) may take as long as it likes."""

    async def patient(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["body"] == b"abc"
        gone = asyncio.ensure_future(receive())
        await asyncio.sleep(0.5)
        assert not gone.done()
        gone.cancel()
        await Response("waited")(scope, receive, send)

    messages = iter([{"type": "http.request", "body": b"abc", "more_body": False}])

    async def receive() -> Message:
        message = next(messages, None)
        return message if message is not None else await asyncio.Future()

    sent = await _call(guarded(patient, seconds=0.1), receive)
    assert sent[0]["status"] == 200
    assert (b"connection", b"close") not in sent[0]["headers"]


async def test_a_cancelled_request_is_still_cancelled() -> None:
    async def never() -> Message:
        return await asyncio.Future()

    task = asyncio.create_task(_call(guarded(App(), seconds=60), never))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_late_body_is_a_sender_that_went_away_and_the_task_goes_on() -> None:
    async def never() -> Message:
        return await asyncio.Future()

    app = App()
    sent = await asyncio.wait_for(_call(guarded(app, seconds=0.1), never), 5)
    assert sent[0]["status"] == 400
    assert (b"connection", b"close") in sent[0]["headers"]
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0


async def test_the_door_costs_little() -> None:
    async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async def receive() -> Message:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Message) -> None:
        pass

    headers = [(b"host", b"x"), (b"accept", b"*/*"), (b"content-type", b"x"), (b"content-length", b"2")]
    best = {}
    for name, app in (("bare", nothing), ("door", guarded(nothing))):
        best[name] = float("inf")
        for _ in range(5):
            began = time.perf_counter()
            for _ in range(1_000):
                scope = {"type": "http", "method": "POST", "path": "/exact", "headers": headers}
                await app(scope, receive, send)
            best[name] = min(best[name], (time.perf_counter() - began) / 1_000)
    assert (best["door"] - best["bare"]) * 1e6 < OVERHEAD_MICROSECONDS_MAX


# The process as it is started


@pytest.fixture
def lucius(tmp_path: Path) -> Iterator[Lucius]:
    env = {
        "LUCIUS_HEAD_TIMEOUT": "1s",
        "LUCIUS_BODY_TIMEOUT": "1s",
        "LUCIUS_ACCESS_LOG": "true",
        "LUCIUS_LOG_FORMAT": "json",
    }
    process = Lucius(tmp_path, env=env)
    process.start()
    yield process
    process.kill()


async def test_a_server_cuts_slow_clients_off_and_writes_json(lucius: Lucius) -> None:
    port = int(lucius.url.rpartition(":")[2])
    head, body, bad = await Client.to(port), await Client.to(port), await Client.to(port)
    head.send(b"POST /v1/orchestrate HTTP/1.1\r\nhost: x\r\n")
    body.send(
        b"POST /v1/orchestrate HTTP/1.1\r\nhost: x\r\nx-correlation-id: slow\r\ncontent-length: 9\r\n\r\n{"
    )
    bad.send(b"NONSENSE\r\n\r\n")
    (head_told, head_seconds), (body_told, body_seconds), _ = await asyncio.gather(
        head.end(), body.end(), bad.end()
    )
    assert head_told.startswith(b"HTTP/1.1 408 ")
    assert body_told.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body_told.rpartition(b"\r\n\r\n")[2])["code"] == "MALFORMED_JSON"
    assert max(head_seconds, body_seconds) < 1 + SLACK_SECONDS
    for client in (head, body, bad):
        client.close()
    written = [json.loads(line) for line in lucius.stderr.splitlines() if line.startswith("{")]
    requests = [line for line in written if line.get("correlation_id") == "slow"]
    assert [(line["event"], line["path"], line["status"]) for line in requests] == [
        ("request", "/v1/orchestrate", 400)
    ]
    # What the HTTP library says comes out in the same form.
    assert [line["level"] for line in written if "Invalid HTTP request" in line["event"]] == ["warning"]
