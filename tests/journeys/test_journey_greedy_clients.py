"""Clients that take more than their share: lists that are not read, bodies that do not end, many streams.

The server keeps within its memory, and those who ask for little are served meanwhile.
"""

import asyncio
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.journeys.conftest import Launch
from tests.journeys.harness import Lucius
from tests.sizes import size
from tests.support.api_setup import Caller, check_problem, envelope, until
from tests.support.sse_client import SSE, said

from lucius_lab import forks

READERS = 2_000
SENDERS = 500
BATCHES = 6
STREAMS = 1_000
BATCH_BYTES = 16 * 1024 * 1024
LIST_JOBS = 200
UNREAD_SECONDS = 5
CUT_UNREAD = 'lucius_http_connections_cut_total{reason="unread"}'
STEADY_BYTES_A_SECOND = size(250_000, 100_000)
LIST_BYTES_MIN = 4_000_000
NOTE_BYTES = 24_000
GROWTH_BYTES_MAX = 128 * 1024 * 1024
"""The memory of the process may grow by so much: half of the budget, what connections themselves take, and
what the allocator does not give back."""
ONLOOKER = Path(__file__).with_name("onlooker.py")
# For the other caller, on two cores that the greedy one and this test use too.
USUAL_SECONDS_MAX = 0.25
SLOWEST_SECONDS_MAX = 3.0
REQUIRED = {"LUCIUS_AUTH": "required"}


class Two:
    """A server that asks who calls, one caller with an appetite, and another one."""

    def __init__(self, lucius: "Lucius", keys: Sequence[str], greedy: Caller, other: Caller) -> None:
        self.lucius = lucius
        self.greedy_key, self.other_key = keys
        self.greedy = greedy
        self.other = other

    def head(self, line: str, *headers: str) -> bytes:
        lines = [f"{line} HTTP/1.1", "host: x", f"authorization: Bearer {self.greedy_key}", *headers]
        return "\r\n".join((*lines, "", "")).encode()


Open = Callable[..., Any]


@pytest.fixture
async def two(launch: "Launch") -> AsyncIterator[Open]:
    async with AsyncExitStack() as stack:

        async def open_two(**env: str) -> Two:
            lucius = launch(env={**REQUIRED, **env}, start=False)
            keys = [_key(lucius, "greedy", "acme"), _key(lucius, "other", "globex")]
            await asyncio.to_thread(lucius.start)
            callers = []
            for key in keys:
                headers = {"authorization": f"Bearer {key}"}
                client = httpx2.AsyncClient(base_url=lucius.url, headers=headers, timeout=60)
                callers.append(Caller(await stack.enter_async_context(client)))
            return Two(lucius, keys, *callers)

        yield open_two


def _key(lucius: "Lucius", name: str, tenant: str) -> str:
    roles = ("--role", "submit", "--role", "read")
    made = forks.run(
        "keys", "create", name, "--tenant", tenant, *roles, "--data", str(lucius.data), env=dict(os.environ)
    )
    assert made.returncode == 0, made.stderr
    return str(made.stdout).strip()


async def _large_jobs(caller: Caller, tenant: str) -> None:
    payload = {"prompt": "?", "output_schema": {"const": "x" * NOTE_BYTES}}
    wanted: dict[str, Any] = {"tenant_id": tenant, "request_type": "SIS", "payload": payload}
    for _ in range(2):
        commands = [envelope(**wanted) for _ in range(LIST_JOBS // 2)]
        answer = await caller.post("/v1/orchestrate:batch", {"commands": commands})
        assert all("jobId" in item for item in answer.json()["items"]), answer.text[:500]


def _rss_bytes(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


class Meanwhile:
    """What the other caller sees, and what the server holds, while something goes on."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.growth_bytes = 0

    def check(self) -> None:
        assert self.growth_bytes < GROWTH_BYTES_MAX
        assert statistics.median(self.seconds) < USUAL_SECONDS_MAX
        assert max(self.seconds) < SLOWEST_SECONDS_MAX


@asynccontextmanager
async def _meanwhile(two: Two) -> AsyncIterator[Meanwhile]:
    seen, before = Meanwhile(), _rss_bytes(two.lucius.pid)
    asked = [sys.executable, str(ONLOOKER), two.lucius.url, two.other_key, "globex"]
    onlooker = subprocess.Popen(asked, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    over = asyncio.Event()

    async def look() -> None:
        while not over.is_set():
            seen.growth_bytes = max(seen.growth_bytes, _rss_bytes(two.lucius.pid) - before)
            await asyncio.sleep(0.05)

    looking = asyncio.create_task(look())
    try:
        yield seen
    finally:
        over.set()
        await looking
        told, _ = await asyncio.to_thread(onlooker.communicate, "", 60)
        answers = [line.split() for line in told.splitlines()]
        assert onlooker.returncode == 0
        assert {status for status, _ in answers} == {"200", "202"}
        seen.seconds = [float(seconds) for _, seconds in answers]
    growth = f"{seen.growth_bytes / 2**20:.0f} MiB"
    print(f"grew by {growth}, slowest of {len(answers)} answers {max(seen.seconds):.3f} s")


class Raw:
    """A connection that reads only when it is told to."""

    def __init__(self, lucius: "Lucius", *, receive_bytes: int = 4_096) -> None:
        host, _, port = lucius.url.removeprefix("http://").partition(":")
        self._at = (host, int(port))
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self._socket.setblocking(False)

    async def __aenter__(self) -> "Raw":
        await asyncio.get_running_loop().sock_connect(self._socket, self._at)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._socket.close()

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def take(self, count: int) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self._socket, count)

    async def rest(self) -> bytes:
        """What comes until the server hangs up."""
        taken = bytearray()
        try:
            while piece := await self.take(65_536):
                taken += piece
        except ConnectionError:
            pass
        return bytes(taken)


async def _figure(caller: Caller, name: str) -> float:
    told = (await caller.http.get("/metrics")).text
    return sum(float(line.rpartition(" ")[2]) for line in told.splitlines() if line.startswith(name))


async def test_lists_that_nobody_reads_take_a_bounded_part_of_memory(two: Open) -> None:
    server: Two = await two()
    await _large_jobs(server.greedy, "acme")
    whole = await server.greedy.http.get(f"/v1/jobs?limit={LIST_JOBS}")
    assert whole.status_code == 200 and len(whole.content) > LIST_BYTES_MIN
    ask = server.head(f"GET /v1/jobs?limit={LIST_JOBS}")
    async with AsyncExitStack() as stack, _meanwhile(server) as seen:
        for _ in range(READERS):
            reader = await stack.enter_async_context(Raw(server.lucius))
            await reader.send(ask)
            await asyncio.sleep(0.001)  # a thousand a second
        await asyncio.sleep(3)
        held = await _figure(server.other, "lucius_http_memory_bytes")
        refused = await server.greedy.http.get(f"/v1/jobs?limit={LIST_JOBS}")
    seen.check()
    assert refused.status_code == 503
    check_problem(refused, 503, "SYSTEM_SATURATED")
    assert int(refused.headers["retry-after"]) > 0
    assert 0 < held <= 80 * 1024 * 1024, "a caller has half of the budget"

    async def served_again() -> bool:
        return (await server.greedy.http.get(f"/v1/jobs?limit={LIST_JOBS}")).status_code == 200

    await until(served_again)


async def test_batches_that_do_not_end_take_a_bounded_part_of_memory(two: Open) -> None:
    server: Two = await two()
    head = server.head("POST /v1/orchestrate:batch", f"content-length: {BATCH_BYTES}")
    most = b"[" * (BATCH_BYTES - 65_536)

    async def send(sender: Raw) -> None:
        try:
            await sender.send(head)
            for at in range(0, len(most), 1 << 20):
                await sender.send(most[at : at + (1 << 20)])
        except ConnectionError:
            pass  # refused, and hung up on while it still sent: the refusal lies there to be read

    async with AsyncExitStack() as stack, _meanwhile(server) as seen:
        senders = [await stack.enter_async_context(Raw(server.lucius)) for _ in range(SENDERS)]
        await asyncio.gather(*map(send, senders))
        told = [sender for sender in senders if sender is not senders[0]]
        answers = await asyncio.gather(*(asyncio.wait_for(each.take(4_096), 60) for each in told))
    refused = [answer for answer in answers if answer.startswith(b"HTTP/1.1 503 ")]
    assert len(refused) > SENDERS * 9 // 10
    assert all(b"retry-after: " in answer and b"SYSTEM_SATURATED" in answer for answer in refused)
    seen.check()


async def test_batches_that_are_costly_to_read_keep_no_other_caller_waiting(two: Open) -> None:
    """Many small values take many times the memory of their text, and long to check."""
    server: Two = await two()
    values = [{"a": number} for number in range(900)]
    wanted: dict[str, Any] = {"tenant_id": "acme", "request_type": "OCR_EMBEDDING", "payload": {"n": values}}
    commands = [envelope(**wanted) for _ in range(500)]
    batch = json.dumps({"commands": commands})
    async with _meanwhile(server) as seen:
        sent = (server.greedy.http.post("/v1/orchestrate:batch", content=batch) for _ in range(BATCHES))
        answers = await asyncio.gather(*sent)
        await asyncio.sleep(0.5)
    for answer in answers:
        assert answer.status_code == 200
        assert all("jobId" in item for item in answer.json()["items"])
    assert seen.growth_bytes < 2 * GROWTH_BYTES_MAX  # new jobs are remembered too
    assert max(seen.seconds) < SLOWEST_SECONDS_MAX


async def test_the_streams_of_one_tenant_leave_room_for_another(two: Open) -> None:
    server: Two = await two(LUCIUS_STREAMS_MAX=str(STREAMS), LUCIUS_WAITS_MAX=str(STREAMS))
    job_id, other_id = await server.greedy.submit(), await server.other.submit(tenant_id="globex")
    streams = server.head(f"GET /v1/jobs/{job_id}/events", "accept: text/event-stream")
    waits = server.head(f"GET /v1/jobs/{job_id}?wait=60")
    async with AsyncExitStack() as stack:
        told: list[bytes] = []
        for ask in [streams] * STREAMS + [waits] * STREAMS:
            raw = await stack.enter_async_context(Raw(server.lucius))
            await raw.send(ask)
            if ask is streams:
                told.append(await raw.take(4_096))
        refused = [answer for answer in told if answer.startswith(b"HTTP/1.1 429 ")]
        assert len(refused) == STREAMS // 2 - 1, "a tenant has half of them"
        assert all(b"TENANT_LIMIT" in answer and b"retry-after: " in answer for answer in refused)

        async def all_wait() -> bool:
            return await _figure(server.other, "lucius_waits_open") == STREAMS // 2 + 1

        await until(all_wait)
        over = await server.greedy.http.get(f"/v1/jobs/{job_id}?wait=1")
        check_problem(over, 429, "TENANT_LIMIT")
        path = f"/v1/jobs/{other_id}"
        async with server.other.http.stream("GET", f"{path}/events", headers=SSE) as response:
            assert response.status_code == 200
            events = said(response)  # kept: the stream is closed with it
            assert (await anext(events)).event == "JOB_CREATED"
            waited = await server.other.http.get(f"{path}?wait=1")
            assert (waited.status_code, waited.json()["jobId"]) == (200, other_id)
            assert await _figure(server.other, "lucius_streams_open") == STREAMS // 2 + 2
            assert await _figure(server.other, "lucius_waits_open") == STREAMS // 2 + 1


async def test_a_reader_that_stands_still_is_cut_and_a_slow_one_is_not(two: Open) -> None:
    server: Two = await two(LUCIUS_UNREAD_TIMEOUT=f"{UNREAD_SECONDS}s")
    await _large_jobs(server.greedy, "acme")
    ask = server.head(f"GET /v1/jobs?limit={LIST_JOBS}", "connection: close")
    async with Raw(server.lucius) as trickle, Raw(server.lucius, receive_bytes=65_536) as steady:
        await trickle.send(ask)
        await steady.send(ask)
        began = time.monotonic()
        reading = asyncio.create_task(_steadily(steady))
        trickling = asyncio.create_task(_byte_by_byte(trickle))

        async def is_cut() -> bool:
            return await _figure(server.other, CUT_UNREAD) == 1

        await until(is_cut, seconds=4 * UNREAD_SECONDS)
        assert time.monotonic() - began > UNREAD_SECONDS
        trickling.cancel()
        with pytest.raises(ConnectionResetError):
            while await trickle.take(65_536):
                pass
        answer = await reading
    assert time.monotonic() - began > 2 * UNREAD_SECONDS
    assert answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(b"0\r\n\r\n")
    assert len(answer) > LIST_BYTES_MIN
    assert await _figure(server.other, CUT_UNREAD) == 1


async def _byte_by_byte(raw: Raw) -> None:
    """Takes a byte a second."""
    while True:
        await raw.take(1)
        await asyncio.sleep(1)


async def _steadily(raw: Raw) -> bytes:
    taken = bytearray()
    began = time.monotonic()
    while piece := await raw.take(10_000):
        taken += piece
        await asyncio.sleep(max(0.0, began + len(taken) / STEADY_BYTES_A_SECOND - time.monotonic()))
    return bytes(taken)
