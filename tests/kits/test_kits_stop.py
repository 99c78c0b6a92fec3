"""A worker of a kit that is stopped carries out what an open lease brings, and waits for no more."""

import asyncio
import json
import os
import shutil
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.kits import KITS, built_go, built_typescript, run

pytestmark = pytest.mark.xdist_group("kits")

SHORT_DRAIN_SECONDS = 0.2
IDLE_PATIENCE_SECONDS = 0.5
PATIENCE_SECONDS = 2
"""So long after it was made a lease may be answered though the worker was stopped."""
FAREWELL_SECONDS = 2
"""So long a worker waits at most for the answers of what the end of the drain cut off."""
SEEN_SECONDS = 0.3
"""A worker that gives its lease up at the stop has done so within this time."""
SECONDS_MAX = 60

Answer = dict[str, Any]


class OpenLease:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def given_up(self, within: float) -> bool:
        try:
            assert await asyncio.wait_for(self._reader.read(1), within) == b""
        except TimeoutError:
            return False
        self._writer.close()
        return True

    def answer(self, *directives: Answer) -> None:
        self._writer.write(document({"directives": directives}, "connection: close\r\n"))
        self._writer.close()


class PlayedServer:
    """Answers leases as they are told to be; whatever a worker replies is right."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""
        self.leases: asyncio.Queue[OpenLease] = asyncio.Queue()
        self.replies: list[Answer] = []

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.partition("content-length: ")[2].split("\r\n")[0])
                body = json.loads(await reader.readexactly(length))
                if "/v1/directives:lease" in head:
                    await self.leases.put(OpenLease(reader, writer))
                    return  # its connection is the test's from here on
                self.replies.append(body)
                writer.write(document({"outcome": "applied", "stop": False}))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def directive(self, job_id: str, **payload: str) -> Answer:
        workspace = self.folder / job_id
        workspace.mkdir()
        (workspace / "name.txt").write_text("Ada\n")
        return {
            "type": "DIRECTIVE",
            "jobId": job_id,
            "stepId": "1",
            "tenant_id": "acme",
            "attempt_no": 1,
            "lease_id": f"lease-{job_id}",
            "callback_token": "t",
            "step_type": "HELLO",
            "service": "hello",
            "input_ref": {"uri": (workspace / "name.txt").as_uri()},
            "workspace_ref": {"uri": workspace.as_uri()},
            "output_ref": {"uri": (workspace / "out.txt").as_uri()},
            "payload": payload,
            "lease_seconds": 0.5,
            "callback_urls": {kind: f"{self.url}/{kind}" for kind in ("ack", "progress", "result")},
        }

    def results(self) -> dict[str, str]:
        return {each["jobId"]: each["status"] for each in self.replies if each["type"] == "RESULT"}


def document(content: Answer, more: str = "") -> bytes:
    body = json.dumps(content).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[PlayedServer]:
    played = PlayedServer(tmp_path)
    listening = await asyncio.start_server(played.meet, "127.0.0.1", 0)
    played.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    yield played
    listening.close()


Commands = dict[str, list[str]]


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    """The examples, and the same with a short drain."""
    typescript = built_typescript(tmp_path_factory.mktemp("typescript"))
    go = tmp_path_factory.mktemp("go")
    example = (typescript / "hello.mjs").read_text()
    short = example.replace("}).run();", f"}}, {{ drainSeconds: {SHORT_DRAIN_SECONDS} }}).run();")
    assert short != example
    (typescript / "short.mjs").write_text(short)

    shutil.copytree(KITS / "go", go / "kit")
    main = go / "kit/example/hello/main.go"
    example = main.read_text()
    drain = f"time.Duration({SHORT_DRAIN_SECONDS} * float64(time.Second))"
    short = example.replace(
        'worker.New("hello", hello).Run()',
        f'one := worker.New("hello", hello)\n\tone.Drain = {drain}\n\tone.Run()',
    )
    assert short != example
    main.write_text(short)
    run("go", "build", "-o", go / "short", "./example/hello", folder=go / "kit")
    return {
        "typescript": ["node", str(typescript / "hello.mjs")],
        "typescript short": ["node", str(typescript / "short.mjs")],
        "go": [str(built_go(go))],
        "go short": [str(go / "short")],
    }


@asynccontextmanager
async def worker(command: list[str], server: PlayedServer) -> AsyncIterator[Process]:
    environment = {**os.environ, "LUCIUS_URL": server.url}
    process = await asyncio.create_subprocess_exec(*command, env=environment)
    try:
        async with asyncio.timeout(SECONDS_MAX):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def at_work(server: PlayedServer) -> OpenLease:
    """The lease that is asked for beside work under way."""
    (await server.leases.get()).answer(server.directive("begun", certify="slow"))
    return await server.leases.get()


@pytest.mark.parametrize("kit", ["typescript", "go"])
async def test_what_was_leased_when_the_stop_came_is_carried_out(
    kit: str, commands: Commands, server: PlayedServer
) -> None:
    """It was handed out, and would wait for its ACK in vain."""
    async with worker(commands[kit], server) as process:
        lease = await at_work(server)
        process.terminate()
        assert not await lease.given_up(within=SEEN_SECONDS)
        lease.answer(server.directive("on-its-way"))
        assert await process.wait() == 0
    assert server.results() == {"begun": "SUCCEEDED", "on-its-way": "SUCCEEDED"}
    assert server.leases.empty(), "it asks for no more"


@pytest.mark.parametrize("kit", ["typescript", "go"])
async def test_a_lease_that_is_not_answered_is_given_up_before_the_drain_ends(
    kit: str, commands: Commands, server: PlayedServer
) -> None:
    async with worker(commands[f"{kit} short"], server) as process:
        lease = await at_work(server)
        process.terminate()
        assert await lease.given_up(within=PATIENCE_SECONDS - SEEN_SECONDS)
        assert await asyncio.wait_for(process.wait(), FAREWELL_SECONDS - SEEN_SECONDS) == 0
    assert server.results() == {"begun": "FAILED_RETRY"}


@pytest.mark.parametrize("kit", ["typescript", "go"])
async def test_an_idle_worker_gives_up_at_once_what_it_asked_for_long_ago(
    kit: str, commands: Commands, server: PlayedServer
) -> None:
    async with worker(commands[kit], server) as process:
        lease = await server.leases.get()
        assert not await lease.given_up(within=IDLE_PATIENCE_SECONDS + 0.1)
        process.terminate()
        assert await lease.given_up(within=5)
        assert await process.wait() == 0
    assert server.replies == []
