"""TLS on the ports, with real certificates: what is served, who is let in, what is refused."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx2
import msgspec
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment
from tests.support.certificates import Authority, Pair

from lucius.api.callback_forwarder import callback_client
from lucius.api.tls_connections import HANDSHAKES_MIN
from lucius.assembly.temporal import invoker_check
from lucius.cli.serving import bind, make_server, url_of
from lucius.cli.tls_ports import Port, check_tls, port_tls
from lucius.client import ClientEnvironment, Lucius, RetryPolicy, Unreachable
from lucius.engines.temporal.activities import InvokerCalls
from lucius.engines.temporal.controls import invoker_client
from lucius.sdk import HttpTransport
from lucius.sdk.ports import DeliveryFailed
from lucius.settings import BadSetting, Settings, read_settings
from lucius.telemetry import Metrics
from lucius.tls import client_tls

replace = msgspec.structs.replace
LARGE_BYTES = 8 * 1024 * 1024
ONCE = RetryPolicy(retries_max=0)


class Files:
    """Of one deployment: a CA for servers, another for clients, and what each has signed."""

    def __init__(self, folder: Path) -> None:
        self.servers, self.clients = Authority(folder, "servers"), Authority(folder, "clients")
        self.server, self.client = self.servers.sign("lucius"), self.clients.sign("worker")
        self.stranger = Authority(folder, "strangers").sign("stranger")
        self.locked = self.servers.sign("locked", password=b"hunter2")
        self.text = folder / "letter.txt"
        self.text.write_text("Dear reader")

    def server_env(self, **more: Path) -> dict[str, str]:
        paths = {
            "LUCIUS_TLS_CERTIFICATE": self.server.certificate,
            "LUCIUS_TLS_KEY": self.server.key,
            **more,
        }
        return {name: str(path) for name, path in paths.items()}

    def client_env(self, pair: Pair | None = None) -> dict[str, str]:
        env = {"LUCIUS_TLS_CA": str(self.servers.file)}
        if pair is not None:
            env["LUCIUS_TLS_CLIENT_CERTIFICATE"] = str(pair.certificate)
            env["LUCIUS_TLS_CLIENT_KEY"] = str(pair.key)
        return env

    def context(self, pair: Pair | None = None) -> ssl.SSLContext:
        shown = (None, None) if pair is None else (pair.certificate, pair.key)
        context = client_tls(self.servers.file, *shown)
        assert context is not None
        return context


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("certificates"))


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Says how it was called."""
    request = Request(scope, receive)
    body = await request.body()
    if request.url.path == "/large":
        answer = PlainTextResponse(b"x" * LARGE_BYTES)
    elif request.url.path == "/v1/directives:lease":
        answer = PlainTextResponse('{"directives": []}')
    else:
        answer = PlainTextResponse(f'{{"scheme": "{scope["scheme"]}", "bytes": {len(body)}}}')
    await answer(scope, receive, send)


@asynccontextmanager
async def served(
    settings: Settings, port: Port = Port.PUBLIC, metrics: Metrics | None = None
) -> AsyncIterator[str]:
    listener = bind("127.0.0.1", 0)
    server = make_server(app, settings, metrics, tls=port_tls(settings.tls, port))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await server.up.wait()
    try:
        yield url_of("127.0.0.1", listener, tls=settings.tls.served)
    finally:
        server.should_exit = True
        await serving


async def called(url: str, context: ssl.SSLContext) -> str | None:
    """The scheme by which the application was called; None: the call was not let in."""
    async with httpx2.AsyncClient(verify=context, trust_env=False) as client:
        try:
            answer = await client.post(url, content=b"x" * 100_000)
        except (httpx2.TransportError, ssl.SSLError):
            return None
    assert answer.json()["bytes"] == 100_000
    return str(answer.json()["scheme"])


async def test_a_port_with_a_certificate_speaks_tls_alone(files: Files) -> None:
    async with served(read_settings(files.server_env())) as url:
        assert url.startswith("https://127.0.0.1:")
        assert await called(url, files.context()) == "https"
        assert await called(url, ssl.create_default_context()) is None  # its CA is not one of the system's
        assert await called(url.replace("https", "http"), files.context()) is None
        async with httpx2.AsyncClient(verify=files.context()) as client:
            assert len((await client.get(f"{url}/large")).content) == LARGE_BYTES


@pytest.mark.parametrize(
    ("port", "variable", "without", "asks"),
    [
        (Port.PUBLIC, "LUCIUS_TLS_CLIENT_CA", "https", True),
        (Port.INTERNAL, "LUCIUS_TLS_CLIENT_CA", "https", True),
        (Port.INTERNAL, "LUCIUS_INTERNAL_TLS_CLIENT_CA", "https", True),
        (Port.PUBLIC, "LUCIUS_INTERNAL_TLS_CLIENT_CA", "https", False),
        (Port.HEALTH, "LUCIUS_TLS_CLIENT_CA", "https", False),
    ],
)
async def test_a_client_is_let_in_by_its_certificate(
    files: Files, port: Port, variable: str, without: str, asks: bool
) -> None:
    settings = read_settings(files.server_env(**{variable: files.clients.file}))
    async with served(settings, port) as url:
        assert await called(url, files.context(files.client)) == "https"
        assert await called(url, files.context()) == (None if asks else without)
        assert await called(url, files.context(files.stranger)) == (None if asks else without)


async def test_each_client_of_lucius_can_be_told_whom_to_trust_and_what_to_show(files: Files) -> None:
    settings = read_settings(files.server_env(LUCIUS_TLS_CLIENT_CA=files.clients.file))
    shown = files.context(files.client)
    async with served(settings) as url:
        for env, let_in in ((files.client_env(files.client), True), (files.client_env(), False)):
            async with Lucius(url, "", retry=ONCE, outside=ClientEnvironment(env=env)) as lucius:
                if let_in:
                    assert (await lucius.request("GET", "/v1/jobs")).doc["scheme"] == "https"
                else:
                    with pytest.raises(Unreachable):
                        await lucius.request("GET", "/v1/jobs")
        async with HttpTransport(url, "ocr", tls=shown) as transport:
            assert await transport.lease(max_directives=1, wait_seconds=0) == []
        async with HttpTransport(url, "ocr", tls=files.context()) as transport:
            with pytest.raises(DeliveryFailed):
                await transport.lease(max_directives=1, wait_seconds=0)
        for tls, said in ((shown, True), (files.context(), False)):
            async with invoker_client(url, "secret", tls) as invoker, callback_client(url, tls) as callbacks:
                assert (await invoker_check(invoker)() is None) is said
                if said:
                    assert (await callbacks.get("/v1/callbacks/ack")).json()["scheme"] == "https"


async def test_a_worker_shows_the_invoker_its_certificate(files: Files) -> None:
    settings = read_settings(files.server_env(LUCIUS_INTERNAL_TLS_CLIENT_CA=files.clients.file))
    question = {"jobId": "job_1", "stepId": "step_1"}
    async with served(settings, Port.INTERNAL) as url:
        for pair, said in ((files.client, "its answer makes no sense"), (None, "no answer: ")):
            calls = InvokerCalls(url, "a-secret-of-sixteen", tls=files.context(pair))
            with pytest.raises(ApplicationError, match=said):
                await ActivityEnvironment().run(calls.publish, question)
            await calls.close()


def shown(metrics: Metrics) -> str:
    return metrics.text("text/plain", tenants=False)[0].decode()


async def hung_up(reader: asyncio.StreamReader) -> int:
    """How many bytes came until the server hung up."""
    taken = 0
    async with asyncio.timeout(30):
        with suppress(ConnectionError, ssl.SSLError):
            while piece := await reader.read(65_536):
                taken += len(piece)
    return taken


async def silent(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which nothing is said."""
    return await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))


async def test_a_client_that_never_finishes_the_handshake_is_cut_off(files: Files) -> None:
    settings = read_settings({**files.server_env(), "LUCIUS_HEAD_TIMEOUT": "200ms"})
    async with served(settings) as url:
        reader, writer = await silent(url)
        assert await hung_up(reader) == 0  # without a bound of ours that would take a minute
        writer.close()
        assert await called(url, files.context()) == "https"


async def test_clients_that_never_begin_take_no_place_of_others(files: Files) -> None:
    settings = read_settings({**files.server_env(), "LUCIUS_HEAD_TIMEOUT": "1h"})
    async with served(replace(settings, connections_max=32)) as url:
        connections = [await silent(url) for _ in range(HANDSHAKES_MIN + 1)]
        assert await hung_up(connections[0][0]) == 0
        assert await called(url, files.context()) == "https"
        for _, writer in connections:
            writer.transport.abort()


@pytest.mark.parametrize(
    ("limits", "reason"),
    [({"LUCIUS_UNREAD_TIMEOUT": "300ms"}, "unread"), ({}, "memory")],
)
async def test_answers_that_are_not_taken_have_bounds_as_without_tls(
    files: Files, limits: dict[str, str], reason: str
) -> None:
    """Below TLS nothing else counts them."""
    settings = read_settings({**files.server_env(), **limits})
    if reason == "memory":
        settings = replace(settings, http_memory_bytes_max=LARGE_BYTES // 2)
    metrics = Metrics(lambda name: False)
    async with served(settings, metrics=metrics) as url:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        slow.setblocking(False)
        await asyncio.get_running_loop().sock_connect(slow, ("127.0.0.1", int(url.rpartition(":")[2])))
        reader, writer = await asyncio.open_connection(
            sock=slow, ssl=files.context(), server_hostname="localhost", limit=1_024
        )
        writer.write(b"GET /large HTTP/1.1\r\nhost: localhost\r\n\r\n")
        async with asyncio.timeout(30):
            while f'lucius_http_connections_cut_total{{reason="{reason}"}} 1.0' not in shown(metrics):
                await asyncio.sleep(0.02)
        assert await hung_up(reader) < LARGE_BYTES
        writer.transport.abort()


Faults = Callable[[Files], tuple[dict[str, str], str, str]]

FAULTS: dict[str, Faults] = {
    "a key of another certificate": lambda files: (
        {**files.server_env(), "LUCIUS_TLS_KEY": str(files.stranger.key)},
        "LUCIUS_TLS_KEY",
        "is not the key of the certificate",
    ),
    "a key with a password": lambda files: (
        {
            "LUCIUS_TLS_CERTIFICATE": str(files.locked.certificate),
            "LUCIUS_TLS_KEY": str(files.locked.key),
        },
        "LUCIUS_TLS_KEY",
        "has a password; name one without",
    ),
    "no key": lambda files: (
        {"LUCIUS_TLS_CERTIFICATE": str(files.server.certificate)},
        "LUCIUS_TLS_KEY",
        "is not set, and",
    ),
    "a certificate that is not there": lambda files: (
        {**files.server_env(), "LUCIUS_TLS_CERTIFICATE": "/nowhere/lucius.crt"},
        "LUCIUS_TLS_CERTIFICATE",
        "cannot be read (No such file or directory)",
    ),
    "a folder": lambda files: (
        {**files.server_env(), "LUCIUS_TLS_CERTIFICATE": str(files.text.parent)},
        "LUCIUS_TLS_CERTIFICATE",
        "cannot be read (Is a directory)",
    ),
    "a certificate that is none": lambda files: (
        {**files.server_env(), "LUCIUS_TLS_CERTIFICATE": str(files.text)},
        "LUCIUS_TLS_CERTIFICATE",
        "holds no certificate; name",
    ),
    "a key that is none": lambda files: (
        {**files.server_env(), "LUCIUS_TLS_KEY": str(files.server.certificate)},
        "LUCIUS_TLS_KEY",
        "holds no private key; name",
    ),
    "a CA that is none": lambda files: (
        files.server_env(LUCIUS_TLS_CLIENT_CA=files.text),
        "LUCIUS_TLS_CLIENT_CA",
        "holds no certificate of a CA; name",
    ),
    "another CA that is none": lambda files: (
        files.server_env(LUCIUS_INTERNAL_TLS_CLIENT_CA=files.text),
        "LUCIUS_INTERNAL_TLS_CLIENT_CA",
        "holds no certificate of a CA; name",
    ),
    "a CA alone": lambda files: (
        {"LUCIUS_TLS_CLIENT_CA": str(files.clients.file)},
        "LUCIUS_TLS_CLIENT_CA",
        "needs LUCIUS_TLS_CERTIFICATE beside it",
    ),
    "a client's key alone": lambda files: (
        {"LUCIUS_TLS_CLIENT_KEY": str(files.client.key)},
        "LUCIUS_TLS_CLIENT_KEY",
        "needs LUCIUS_TLS_CLIENT_CERTIFICATE beside it",
    ),
    "a client's key of another certificate": lambda files: (
        {**files.client_env(files.client), "LUCIUS_TLS_CLIENT_KEY": str(files.stranger.key)},
        "LUCIUS_TLS_CLIENT_KEY",
        "is not the key of the certificate",
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_file_that_cannot_be_used_is_refused_in_one_line(files: Files, case: str) -> None:
    env, variable, said = FAULTS[case](files)
    with pytest.raises(BadSetting) as refused:
        check_tls(read_settings(env).tls)
    text = str(refused.value)
    assert variable in text and said in text
    assert "\n" not in text and "hunter2" not in text


def test_a_certificate_that_was_cut_off_is_refused(files: Files, tmp_path: Path) -> None:
    half = tmp_path / "half.crt"
    half.write_bytes(files.server.certificate.read_bytes()[:300])
    with pytest.raises(BadSetting, match=r"half\.crt \(|cannot be used with .*half\.crt"):
        check_tls(read_settings({**files.server_env(), "LUCIUS_TLS_CERTIFICATE": str(half)}).tls)


def test_one_file_may_hold_certificate_and_key(files: Files, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(files.server.certificate.read_bytes() + files.server.key.read_bytes())
    settings = read_settings({"LUCIUS_TLS_CERTIFICATE": str(both)})
    check_tls(settings.tls)
    assert port_tls(settings.tls, Port.PUBLIC) is not None
    assert port_tls(read_settings({}).tls, Port.PUBLIC) is None
