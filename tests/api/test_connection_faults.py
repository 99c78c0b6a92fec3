"""A fault inside is a problem document on a connection that stays, or that says that it closes; and a request
with two hosts is none."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from tests.support.raw_http import HOST, Wire

from lucius.api.connection_limits import ConnectionLimits, server_config
from lucius.api.dependencies import CallbackDependencies
from lucius.api.faults import refusal_of
from lucius.api.problems import problem
from lucius.api.routing import OpenCall, OpenHandler, Result, Router, without_credential
from lucius.cli.serving import QuietServer

GOOD = b"GET /good HTTP/1.1\r\nhost: x\r\n\r\n"
BROKEN = b"GET /broken HTTP/1.1\r\nhost: x\r\n\r\n"
BODY = b"POST /broken HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello"


async def good(request: Request) -> PlainTextResponse:
    return PlainTextResponse("good")


async def broken(request: Request) -> PlainTextResponse:
    raise RuntimeError("of the application")


async def torn(request: Request) -> StreamingResponse:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"half"
        raise RuntimeError("of the stream")

    return StreamingResponse(pieces())


def routed() -> Router:
    """As the public API and the callbacks are made."""

    def handler(endpoint: Callable[[Request], Awaitable[Response]]) -> OpenHandler:
        async def handle(call: OpenCall) -> Result:
            return await endpoint(call.request)

        return handle

    routes = (
        without_credential(("GET",), "/good", handler(good)),
        without_credential(("GET", "POST"), "/broken", handler(broken)),
        without_credential(("GET",), "/torn", handler(torn)),
    )
    return Router(routes, cast("CallbackDependencies", None))


async def answer_fault(request: Request, fault: Exception) -> Response:
    return problem(refusal_of(fault, request.scope["path"]))


def handled() -> Starlette:
    """As the internal API is made: the framework answers, and raises the fault again."""
    routes = [
        Route("/good", good),
        Route("/broken", broken, methods=["GET", "POST"]),
        Route("/torn", torn),
    ]
    return Starlette(routes=routes, exception_handlers={Exception: answer_fault})


def plain() -> Starlette:
    return Starlette(routes=[Route("/good", good), Route("/broken", broken, methods=["GET", "POST"])])


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """Neither answers nor handles."""
    if scope["path"] != "/good":
        raise RuntimeError("of the application")
    await PlainTextResponse("good")(scope, receive, send)


@asynccontextmanager
async def wire_to(app: Any) -> AsyncIterator[Wire]:
    config = server_config(app, ConnectionLimits(), host=HOST, port=0, lifespan="off", log_level="critical")
    server = QuietServer(config)
    task = asyncio.create_task(server.serve())
    await server.up.wait()
    wire = Wire(*await asyncio.open_connection(HOST, server.servers[0].sockets[0].getsockname()[1]))
    try:
        yield wire
    finally:
        wire.close()
        server.should_exit = server.force_exit = True
        await task


@pytest.mark.parametrize("app", [routed(), handled(), bare], ids=["routed", "handled", "bare"])
@pytest.mark.parametrize("request_", [BROKEN, BODY], ids=["get", "post"])
async def test_a_fault_is_a_problem_and_the_connection_stays(app: Any, request_: bytes) -> None:
    async with wire_to(app) as wire:
        for _ in range(2):
            await wire.send(request_)
            status, body, closes = await wire.answer()
            assert (status, json.loads(body)["code"], closes) == (500, "INTERNAL", False)
            await wire.send(GOOD)
            assert await wire.answer() == (200, "good", False)


@pytest.mark.parametrize("app", [routed(), handled()], ids=["routed", "handled"])
async def test_requests_behind_a_fault_are_answered(app: Any) -> None:
    async with wire_to(app) as wire:
        await wire.send(GOOD + BROKEN + BODY + GOOD)
        assert [(await wire.answer())[0] for _ in range(4)] == [200, 500, 500, 200]


async def test_what_a_framework_says_by_itself_keeps_the_connection_too() -> None:
    async with wire_to(plain()) as wire:
        await wire.send(BROKEN)
        status, _, closes = await wire.answer()
        await wire.send(GOOD)
        assert (status, closes, await wire.answer()) == (500, False, (200, "good", False))


@pytest.mark.parametrize("app", [routed(), handled()], ids=["routed", "handled"])
async def test_an_answer_that_is_torn_ends_with_its_connection(app: Any) -> None:
    """Nothing else tells the client that this is not all."""
    async with wire_to(app) as wire:
        await wire.send(b"GET /torn HTTP/1.1\r\nhost: x\r\n\r\n" + GOOD)
        said = await wire.rest()
    assert b"half" in said and not said.endswith(b"0\r\n\r\n") and b"good" not in said


@pytest.mark.parametrize(
    "hosts",
    [
        b"host: localhost\r\nhost: evil.example\r\n",
        b"Host: localhost\r\nX-A: b\r\nHOST: localhost\r\n",
        b"host: \r\nhost: x\r\nhost: y\r\n",
    ],
)
async def test_a_request_with_two_hosts_is_refused_and_its_connection_ends(hosts: bytes) -> None:
    async with wire_to(routed()) as wire:
        await wire.send(b"GET /good HTTP/1.1\r\n" + hosts + b"\r\n" + GOOD)
        said = await wire.rest()
    assert said.startswith(b"HTTP/1.1 400 ") and b"connection: close" in said.lower() and b"good" not in said


async def test_the_hosts_of_one_request_are_not_those_of_the_next() -> None:
    async with wire_to(routed()) as wire:
        await wire.send(GOOD + GOOD, GOOD[:20], GOOD[20:])
        assert [await wire.answer() for _ in range(3)] == [(200, "good", False)] * 3
        old = b"POST /broken HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        await wire.send(old + b"0\r\nhost: evil\r\n\r\n")  # behind a body it is no part of the head
        assert (await wire.answer())[0] == 500
