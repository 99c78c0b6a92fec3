"""The HTTP transport against a real server on loopback that fails, vanishes and comes back."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from lucius.sdk import (
    DeliveryFailed,
    Directive,
    HttpTransport,
    ReplyAnswer,
    Runner,
    Service,
    Task,
    parse_directive,
)

Reply = tuple[int, dict[str, Any] | str, dict[str, str]]
TOKEN = "token-of-this-attempt"
OK: Reply = (200, {"outcome": "applied", "stop": False, "later": 1}, {})


class Orchestrator:
    """Answers from a script, then well; keeps what it was asked. None in the script drops the connection."""

    def __init__(self) -> None:
        self.script: list[Reply | None] = []
        self.seen: list[tuple[str, str | None, dict[str, Any]]] = []
        self.directives: list[dict[str, Any]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            event = await receive()
            body += event.get("body", b"")
            more = event.get("more_body", False)
        authorization = dict(scope["headers"]).get(b"authorization")
        self.seen.append((scope["path"], authorization and authorization.decode(), json.loads(body)))
        answer = self.script.pop(0) if self.script else self._well(scope["path"])
        if answer is None:
            raise ConnectionAbortedError
        status, document, headers = answer
        raw = document.encode() if isinstance(document, str) else json.dumps(document).encode()
        wire = [(name.encode(), value.encode()) for name, value in headers.items()]
        wire.append((b"content-length", str(len(raw)).encode()))
        if status == 200 and document == "half":
            # The length promises more than comes: the connection breaks in the middle of an answer.
            wire[-1] = (b"content-length", b"1000")
        await send({"type": "http.response.start", "status": status, "headers": wire})
        await send({"type": "http.response.body", "body": raw})

    def _well(self, path: str) -> Reply:
        if path != "/v1/directives:lease":
            return OK
        taken, self.directives = self.directives, []
        return 200, {"directives": taken}, {}

    def asked(self, path: str) -> list[dict[str, Any]]:
        return [body for seen, _, body in self.seen if seen == path]


@asynccontextmanager
async def serving(app: Orchestrator, port: int = 0) -> AsyncIterator[int]:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    config = uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await task
        listener.close()


def a_directive(port: int, number: int = 1) -> dict[str, Any]:
    base = f"http://127.0.0.1:{port}/v1/callbacks"
    return {
        "jobId": f"job_{number}",
        "stepId": "step_01",
        "tenant_id": "tenant_a",
        "step_type": "OCR",
        "attempt_no": 1,
        "lease_id": f"lease-{number}",
        "callback_urls": {kind: f"{base}/{kind}" for kind in ("ack", "result", "progress")},
        "callback_token": TOKEN,
    }


def parsed(port: int) -> Directive:
    directive = parse_directive(a_directive(port))
    assert directive is not None
    return directive


def transport_to(port: int, **more: Any) -> HttpTransport:
    options: dict[str, Any] = {"jitter": lambda: 0.1, **more}
    return HttpTransport(f"http://127.0.0.1:{port}/", "ocr", "key-of-the-service", **options)


async def replied(app: Orchestrator, kind: str = "RESULT", **more: Any) -> ReplyAnswer:
    async with serving(app) as port, transport_to(port, **more) as transport:
        return await transport.reply(parsed(port), {"type": kind, "jobId": "job_1"})


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.005)


async def test_a_lease_asks_for_the_service_with_its_key() -> None:
    app = Orchestrator()
    async with serving(app) as port, transport_to(port) as transport:
        app.directives = [a_directive(port)]
        leased = await transport.lease(max_directives=3, wait_seconds=0.5)
        assert leased == [a_directive(port)]
        assert await transport.lease(max_directives=1, wait_seconds=0) == []
    body = {"service": "ocr", "max": 3, "wait_seconds": 0.5}
    assert app.seen[0] == ("/v1/directives:lease", "Bearer key-of-the-service", body)


@pytest.mark.parametrize(
    ("answer", "pause"),
    [
        ((503, {}, {"Retry-After": "7"}), 7.0),
        ((429, {}, {"Retry-After": "900"}), 30.0),
        ((403, {}, {}), 0.0),
        ((200, "not json", {}), 0.0),
        (None, 0.0),
    ],
)
async def test_a_lease_that_fails_says_when_to_ask_again(answer: Reply | None, pause: float) -> None:
    app = Orchestrator()
    app.script = [answer]
    async with serving(app) as port, transport_to(port) as transport:
        with pytest.raises(DeliveryFailed) as fault:
            await transport.lease(max_directives=1, wait_seconds=0)
    assert fault.value.retry_after_seconds == pause


@pytest.mark.parametrize("kind", ["ACK", "PROGRESS", "RESULT"])
async def test_a_reply_goes_to_the_directives_own_address_with_its_token(kind: str) -> None:
    app = Orchestrator()
    assert await replied(app, kind) == ReplyAnswer("applied", stop=False)
    body = {"type": kind, "jobId": "job_1"}
    assert app.seen == [(f"/v1/callbacks/{kind.lower()}", f"Bearer {TOKEN}", body)]


async def test_without_addresses_the_base_url_is_used() -> None:
    app = Orchestrator()
    async with serving(app) as port, transport_to(port) as transport:
        directive = parse_directive({**a_directive(port), "callback_urls": None})
        assert directive is not None
        await transport.reply(directive, {"type": "ACK"})
    assert [path for path, _, _ in app.seen] == ["/v1/callbacks/ack"]


async def test_the_word_to_stop_is_passed_on() -> None:
    app = Orchestrator()
    app.script = [(200, {"outcome": "applied", "stop": True}, {})]
    assert await replied(app) == ReplyAnswer("applied", stop=True)


async def test_a_conflict_means_a_stale_attempt() -> None:
    app = Orchestrator()
    app.script = [(409, {"code": "STALE_ATTEMPT", "stop": True}, {})]
    assert await replied(app) == ReplyAnswer("stale", stop=True)
    assert len(app.seen) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422, 302])
async def test_a_refusal_is_not_tried_again(status: int) -> None:
    app = Orchestrator()
    app.script = [(status, {}, {"Location": "/elsewhere"})]
    assert await replied(app) == ReplyAnswer("refused", stop=True)
    assert len(app.seen) == 1


async def test_a_reply_is_repeated_until_it_is_taken() -> None:
    app = Orchestrator()
    app.script = [(500, {}, {}), (503, {}, {}), (429, {}, {}), None, (200, "half", {}), (200, "[]", {})]
    assert await replied(app) == ReplyAnswer("applied")
    assert len(app.seen) == 7
    assert all(body == {"type": "RESULT", "jobId": "job_1"} for _, _, body in app.seen)


async def test_a_server_that_asks_for_a_pause_gets_it() -> None:
    app = Orchestrator()
    app.script = [(503, {}, {"Retry-After": "1"})]
    began = asyncio.get_running_loop().time()
    assert await replied(app) == ReplyAnswer("applied")
    assert asyncio.get_running_loop().time() - began >= 1.0


async def test_patience_ends_at_the_deadline() -> None:
    app = Orchestrator()
    app.script = [(500, {}, {})] * 1000
    with pytest.raises(DeliveryFailed, match="PROGRESS given up: status 500"):
        await replied(app, "PROGRESS", deadline_seconds={"PROGRESS": 0.3})
    assert 2 <= len(app.seen) < 100


async def test_a_result_outlives_a_restart_of_the_server() -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def handler(task: Task) -> dict[str, Any]:
        begun.set()
        await go.wait()
        return {"uri": "s3://bucket/made"}

    before, after = Orchestrator(), Orchestrator()
    async with serving(before) as port:
        before.directives = [a_directive(port)]
        transport = transport_to(port)
        runner = Runner(
            Service("ocr", handler),
            transport,
            NoWorkspace(),
            now_ms=lambda: 0,
            wait_seconds=0.1,
            jitter=lambda: 0.1,
        )
        run = asyncio.create_task(runner.run())
        await begun.wait()
    go.set()
    await until(lambda: runner.status().lease_failures > 0)
    async with serving(after, port):
        await until(lambda: bool(after.asked("/v1/callbacks/result")))
        after.directives = [a_directive(port, 2)]
        await until(lambda: len(after.asked("/v1/callbacks/result")) == 2)
        runner.stop()
        await run
    await transport.aclose()
    results = after.asked("/v1/callbacks/result")
    assert [(it["jobId"], it["status"]) for it in results] == [("job_1", "SUCCEEDED"), ("job_2", "SUCCEEDED")]
    assert before.asked("/v1/callbacks/result") == []


class NoWorkspace:
    def artifact_uri(self, workspace_uri: str, step_type: str, attempt_no: int, name: str) -> str:
        return name

    async def read(self, uri: str) -> bytes:
        return b""

    async def write_new(self, uri: str, data: bytes) -> None:
        raise FileExistsError

    async def write(self, uri: str, data: bytes) -> None:
        raise FileExistsError
