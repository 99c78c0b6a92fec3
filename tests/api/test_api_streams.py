"""Events as they happen, over a real socket: nothing twice, nothing missing, and everything has an end."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx2
import pytest
from tests.support.api_setup import Callers, Deployment, check_problem, until
from tests.support.sse_client import SSE, Said, said, served

from lucius.api import streams as streams_module
from lucius.api.gate import Principal
from lucius.contracts.keys import Role
from lucius.core.model import Event
from lucius.core.states import Fact


class Server:
    def __init__(self, deployment: Deployment, url: str, client: httpx2.AsyncClient) -> None:
        self.deployment, self.url, self.http = deployment, url, client

    def path(self, job_id: str) -> str:
        return f"{self.url}/v1/jobs/{job_id}/events"

    async def read(self, job_id: str, **headers: str) -> list[Said]:
        """The whole stream, to its end."""
        async with self.http.stream("GET", self.path(job_id), headers={**SSE, **headers}) as response:
            assert response.status_code == 200
            return [each async for each in said(response)]

    async def finish(self, job_id: str) -> None:
        await self.deployment.finish(job_id, "ocr")


@pytest.fixture
async def server(deployment: Deployment) -> AsyncIterator[Server]:
    async with served(deployment.lucius) as url, httpx2.AsyncClient(timeout=20) as client:
        yield Server(deployment, url, client)


def numbers(events: list[Said]) -> list[int]:
    return [int(event.id) for event in events]


async def test_a_stream_is_the_trail_as_it_grows(server: Server) -> None:
    job_id = await server.deployment.submit()
    async with server.http.stream("GET", server.path(job_id), headers=SSE) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["cache-control"] == "no-store"
        assert "content-length" not in response.headers
        coming = said(response)
        first = await anext(coming)
        assert (first.id, first.event) == ("1", "JOB_CREATED")
        await server.finish(job_id)
        rest = [each async for each in coming]
    events = [first, *rest]
    trail = await server.deployment.events(job_id)
    assert [each.data for each in events] == trail
    assert [each.event for each in events] == [each["type"] for each in trail]
    assert numbers(events) == list(range(1, len(trail) + 1))
    assert events[-1].event == "JOB_SUCCEEDED"
    assert server.deployment.lucius.streams.open_count == 0


async def test_an_event_is_there_at_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits of this process are heard: the regular look would take far longer."""
    monkeypatch.setattr(streams_module, "LOOK_EVERY_SECONDS", 30.0)
    job_id = await server.deployment.submit()
    async with asyncio.timeout(10):
        reading = asyncio.create_task(server.read(job_id))
        await until(_open(server, 1))
        await server.finish(job_id)
        assert (await reading)[-1].event == "JOB_SUCCEEDED"


async def test_what_another_process_commits_is_seen(server: Server) -> None:
    """No wake-up arrives here: the event is cut off."""
    server.deployment.lucius.streams._wakes = _Deaf()
    job_id = await server.deployment.submit()
    reading = asyncio.create_task(server.read(job_id))
    await until(_open(server, 1))
    await server.finish(job_id)
    assert (await reading)[-1].event == "JOB_SUCCEEDED"


class _Deaf(dict[str, set[asyncio.Event]]):
    def get(self, key: str, default: object = None) -> object:  # type: ignore[override]
        return ()


def _open(server: Server, count: int) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return server.deployment.lucius.streams.open_count == count

    return look


@pytest.mark.parametrize("way", ["header", "after", "cursor", "both"])
async def test_a_caller_who_comes_back_gets_what_they_miss(server: Server, way: str) -> None:
    job_id = await server.deployment.submit()
    await server.finish(job_id)
    whole = await server.read(job_id)
    for seen in range(len(whole)):
        url, headers = server.path(job_id), dict(SSE)
        if way in ("header", "both"):
            headers["last-event-id"] = str(seen)
        if way in ("after", "cursor"):
            url += f"?{way}={seen}"
        if way == "both":  # a browser comes back to the URL it began with
            url += "?after=0"
        async with server.http.stream("GET", url, headers=headers) as response:
            assert [each async for each in said(response)] == whole[seen:]


async def test_nothing_more_to_come_is_204(server: Server) -> None:
    """Which makes a browser stop asking."""
    job_id = await server.deployment.submit()
    await server.finish(job_id)
    last = (await server.read(job_id))[-1].id
    for seen in (last, "999999"):
        response = await server.http.get(server.path(job_id), headers={**SSE, "last-event-id": seen})
        assert (response.status_code, response.content) == (204, b"")


async def test_what_comes_with_the_end_and_after_it_is_part_of_the_stream(server: Server) -> None:
    """Steps that are left are cancelled after their job, in the same commit; late answers come later."""
    job_id = await server.deployment.submit(request_type="OCR_EMBEDDING_SIS")
    directive = await server.deployment.directive(job_id, "ocr")
    reading = asyncio.create_task(server.read(job_id))
    await until(_open(server, 1))
    await server.deployment.control(job_id, "cancel")
    await server.deployment.reply(directive, "RESULT", status="FAILED_RETRY")
    events = await reading
    trail = await server.deployment.events(job_id)
    assert [each.data for each in events] == trail
    assert trail[-1]["type"] == "STEP_CANCELLED"  # after JOB_CANCELLED
    await server.deployment.say(directive, "RESULT")
    late = await server.read(job_id, **{"last-event-id": events[-1].id})
    assert numbers(late) == [len(trail) + 1]


async def test_silence_is_filled(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams_module, "LOOK_EVERY_SECONDS", 0.05)
    monkeypatch.setattr(streams_module, "KEEP_ALIVE_SECONDS", 0.2)
    job_id = await server.deployment.submit()
    comments: list[str] = []

    async def read() -> list[Said]:
        async with server.http.stream("GET", server.path(job_id), headers=SSE) as response:
            return [each async for each in said(response, comments=comments)]

    reading = asyncio.create_task(read())

    async def three() -> bool:
        return len(comments) >= 3

    await until(three)
    await server.finish(job_id)
    assert numbers(await reading) == [each["seq"] for each in await server.deployment.events(job_id)]
    assert set(comments) == {": still here"}


@pytest.mark.parametrize("ahead", [0, 1, 5_000])
async def test_a_caller_who_has_seen_more_than_there_is_hears_the_rest(server: Server, ahead: int) -> None:
    """All of it, and the end with it: no number that comes is waited for."""
    job_id = await server.deployment.submit()
    there = len(await server.deployment.events(job_id))
    reading = asyncio.create_task(server.read(job_id, **{"last-event-id": str(there + ahead)}))
    await until(_open(server, 1))
    await server.finish(job_id)
    async with asyncio.timeout(10):
        events = await reading
    assert [each.data for each in events] == (await server.deployment.events(job_id))[there:]
    assert events[-1].event == "JOB_SUCCEEDED"


async def test_a_stream_of_a_job_that_is_forgotten_ends(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams_module, "KEEP_ALIVE_SECONDS", 0.2)
    monkeypatch.setattr(streams_module, "LOOK_EVERY_SECONDS", 0.05)
    job_id = await server.deployment.submit()

    async def nothing(job_id: str, *, after_seq: int = 0, limit: int) -> list[Event]:
        return []

    monkeypatch.setattr(server.deployment.lucius.deployment.ledger, "events", nothing)
    reading = asyncio.create_task(server.read(job_id))
    await until(_open(server, 1))
    await server.finish(job_id)
    async with asyncio.timeout(10):
        assert await reading == []


async def test_a_stream_has_a_longest_life(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams_module, "STREAM_SECONDS_MAX", 0.3)
    monkeypatch.setattr(streams_module, "LOOK_EVERY_SECONDS", 0.1)
    job_id = await server.deployment.submit()
    events = await server.read(job_id)
    assert numbers(events) == [each["seq"] for each in await server.deployment.events(job_id)]


async def test_too_many_streams_are_refused(callers: Callers) -> None:
    deployment = await callers.open({"LUCIUS_STREAMS_MAX": "2"})
    async with served(deployment.lucius) as url, httpx2.AsyncClient(timeout=20) as client:
        server = Server(deployment, url, client)
        job_id = await deployment.submit()
        reading = [asyncio.create_task(server.read(job_id)) for _ in range(2)]
        await until(_open(server, 2))
        refused = await client.get(server.path(job_id), headers=SSE)
        check_problem(refused, 503, "SYSTEM_SATURATED")
        assert int(refused.headers["retry-after"]) > 0
        assert (await client.get(server.path(job_id))).status_code == 200  # without a stream, as ever
        await server.finish(job_id)
        assert len({tuple(numbers(await each)) for each in reading}) == 1
        assert deployment.lucius.streams.open_count == 0


async def test_a_caller_who_goes_away_leaves_nothing(server: Server) -> None:
    job_id = await server.deployment.submit()
    for _ in range(20):
        async with server.http.stream("GET", server.path(job_id), headers=SSE) as response:
            await anext(said(response))
    await until(_open(server, 0))
    assert server.deployment.lucius.streams._wakes == {}


async def test_a_shutdown_lets_everybody_go(server: Server) -> None:
    job_id = await server.deployment.submit()
    reading = asyncio.create_task(server.read(job_id))
    await until(_open(server, 1))
    server.deployment.lucius.let_go()
    async with asyncio.timeout(5):
        events = await reading  # ended properly, not torn off
    assert events[0].event == "JOB_CREATED"
    refused = await server.http.get(server.path(job_id), headers=SSE)
    check_problem(refused, 503, "SYSTEM_SATURATED")


async def test_a_slow_reader_is_not_read_ahead_for(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """As much is read from the ledger as the reader takes, and the pipes in between hold."""
    job_id = await server.deployment.submit()
    looked: list[int] = []

    async def endless(job_id: str, *, after_seq: int = 0, limit: int) -> list[Event]:
        looked.append(after_seq)
        numbers = range(after_seq + 1, after_seq + 1 + limit)
        return [
            Event(seq=n, type=Fact.STEP_PROGRESSED, at_ms=0, data={"note": "x" * 10_000}) for n in numbers
        ]

    monkeypatch.setattr(server.deployment.lucius.deployment.ledger, "events", endless)
    monkeypatch.setattr(streams_module, "SEND_SECONDS_MAX", 1.0)
    host, port = server.url.removeprefix("http://").split(":")
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        slow.connect((host, int(port)))
        request = f"GET /v1/jobs/{job_id}/events HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n"
        slow.sendall(request.encode())
        await until(_open(server, 1))
        # It takes nothing: after a while it is let go.
        await until(_open(server, 0))
    assert 0 < len(looked) < 40  # 320 kB each: the kernel's buffers and our own, not the endless trail


@pytest.mark.parametrize(
    ("accept", "streams"),
    [
        ("text/event-stream", True),
        ("Text/Event-Stream; charset=utf-8", True),
        ("text/event-stream;q=0.5, */*;q=0.1", True),
        ("application/json, text/event-stream", True),
        ("application/json, text/event-stream;q=0.9", False),
        ("text/event-stream;q=0", False),
        ("text/event-stream;q=x", False),
        ("*/*", False),
        ("text/*", False),
        ("application/json", False),
        ("", False),
    ],
)
async def test_who_asks_for_a_stream(deployment: Deployment, accept: str, *, streams: bool) -> None:
    job_id = await deployment.submit()
    await deployment.finish(job_id, "ocr")
    response = await deployment.http.get(f"/v1/jobs/{job_id}/events", headers={"accept": accept})
    assert response.headers["content-type"].startswith("text/event-stream") is streams


@pytest.mark.parametrize("given", ["x", "-1", "1.5", "9" * 30, "1 2", "٣"])
async def test_a_last_event_id_that_is_none(deployment: Deployment, given: str) -> None:
    job_id = await deployment.submit()
    headers = {b"accept": b"text/event-stream", b"last-event-id": given.encode()}
    response = await deployment.http.get(f"/v1/jobs/{job_id}/events", headers=headers)
    check_problem(response, 422, "INVALID_REQUEST")


async def test_a_job_that_is_not_there(deployment: Deployment) -> None:
    response = await deployment.http.get("/v1/jobs/job_none/events", headers=SSE)
    check_problem(response, 404, "JOB_NOT_FOUND")


async def test_another_tenants_job_is_not_there(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await deployment.submit(tenant_id="acme")
    stranger = Principal(name="stranger", roles=frozenset({Role.READ}), tenants=frozenset({"other"}))

    async def admit(*_: object) -> Principal:
        return stranger

    monkeypatch.setattr(deployment.lucius.deployment.gate, "admit", admit)
    absent = await deployment.http.get("/v1/jobs/job_none/events", headers=SSE)
    hidden = await deployment.http.get(f"/v1/jobs/{job_id}/events", headers=SSE)
    check_problem(hidden, 404, "JOB_NOT_FOUND")
    assert hidden.json() == {**absent.json(), "detail": hidden.json()["detail"]}
