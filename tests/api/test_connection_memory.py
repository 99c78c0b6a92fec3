"""Connections that take more than their part: of the places for connections, and of memory."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from tests.support.raw_http import LIMITS, App, Wire, WireDeployment, wire_deployment

from lucius.api.bodies import read_body
from lucius.api.connection_limits import DISCARDED_BYTES_MAX, REFUSED_MAX, address_of
from lucius.api.memory import UNCOUNTED_BYTES, answer_within
from lucius.api.problems import problem
from lucius.core.refusal import Refused

GOOD = b"GET /good HTTP/1.1\r\nhost: x\r\n\r\n"
SAID = (200, "/good 0", False)
PLACES = 6
MIB = 1024 * 1024
BUDGET = 16 * MIB
ANOTHER = "127.0.0.2"


class Greedy(App):
    """`/large` and `/forced` answer with as many bytes as the query says, `/keep` has large bodies."""

    async def _answer(self, request: Request) -> Response:
        path: str = request.scope["path"]
        if path == "/large":
            return answer_within(request, "x" * int(request.scope["query_string"]))
        if path == "/forced":
            return Response(b"x" * int(request.scope["query_string"]))
        if path == "/keep":
            body = await read_body(request, BUDGET)
            await self.go.wait()
            return problem(body) if isinstance(body, Refused) else Response(f"{path} {len(body)}")
        return await super()._answer(request)


@asynccontextmanager
async def crowded() -> AsyncIterator[WireDeployment]:
    async with wire_deployment(msgspec.structs.replace(LIMITS, connections_max=PLACES)) as deployment:
        yield deployment


@asynccontextmanager
async def narrow() -> AsyncIterator[WireDeployment]:
    async with wire_deployment(
        msgspec.structs.replace(LIMITS, memory_bytes_max=BUDGET), Greedy()
    ) as deployment:
        yield deployment


def post(path: str, length: int) -> bytes:
    return b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (path.encode(), length)


async def test_an_address_gives_a_place_up_for_another_only_where_they_are_scarce() -> None:
    async with crowded() as deployment, AsyncExitStack() as stack:
        greedy = [await stack.enter_async_context(deployment.wire()) for _ in range(PLACES)]
        for wire in greedy:
            await wire.send(GOOD)
            assert await wire.answer() == SAID, "one address may have all of them"
        await greedy[0].send(b"GET /held HTTP/1.1\r\nhost: x\r\n\r\n")
        await asyncio.sleep(0.1)
        others = [await stack.enter_async_context(deployment.wire(ANOTHER)) for _ in range(PLACES // 2)]
        for wire in others:
            await wire.send(GOOD)
            assert await wire.answer() == SAID
        deployment.app.go.set()
        assert (await greedy[0].answer())[:2] == (200, "/held 0"), "one that rested had to go instead"
        assert [await wire.rest() for wire in greedy[1:4]] == [b""] * 3
        for wire in greedy[4:]:
            await wire.send(GOOD)
            assert await wire.answer() == SAID


async def test_one_more_of_the_same_address_is_refused_in_words_and_the_rest_served() -> None:
    async with crowded() as deployment, AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(deployment.wire()) for _ in range(PLACES)]
        for wire in wires:
            await wire.send(GOOD)
            assert await wire.answer() == SAID
        more = [await stack.enter_async_context(deployment.wire()) for _ in range(REFUSED_MAX + 5)]
        for wire in more[:3]:
            await wire.send(GOOD)
            _check_refused(await wire.rest())
        for wire in more[REFUSED_MAX + 1 :]:
            _check_refused(await wire.rest())  # before it said anything
        for wire in wires:
            await wire.send(GOOD)
            assert await wire.answer() == SAID


def _check_refused(told: bytes) -> None:
    head, _, body = told.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    for line in (b"connection: close", b"content-type: application/problem+json"):
        assert line in head.lower()
    assert re.search(rb"retry-after: [1-9]", head.lower())
    assert json.loads(body)["code"] == "SYSTEM_SATURATED"


def test_addresses_of_one_network_are_one() -> None:
    assert address_of(("2001:db8::1:2:3", 1)) == address_of(("2001:db8::9", 2))
    assert address_of(("2001:db8:0:1::1", 1)) != address_of(("2001:db8::1", 1))
    assert address_of(("::ffff:10.0.0.1", 1)) == address_of(("10.0.0.1", 2)) == "10.0.0.1"
    assert address_of(None) == ""


async def test_bodies_have_room_or_are_refused_and_small_calls_go_on() -> None:
    async with narrow() as deployment, AsyncExitStack() as stack:
        size = 6 * MIB
        senders = [await stack.enter_async_context(deployment.wire()) for _ in range(3)]
        for wire in senders[:2]:
            await wire.send(post("/keep", size), b"x" * UNCOUNTED_BYTES * 2)
            await deployment.read_all()  # the room is taken for what is to come
        deployment.app.go.set()
        await senders[2].send(post("/keep", size), b"x" * UNCOUNTED_BYTES * 2)
        status, told, _ = await senders[2].answer()
        assert (status, json.loads(told)["code"]) == (503, "SYSTEM_SATURATED")
        small = await stack.enter_async_context(deployment.wire())
        await small.send(post("/keep", UNCOUNTED_BYTES), b"x" * UNCOUNTED_BYTES)
        assert await small.answer() == (200, f"/keep {UNCOUNTED_BYTES}", False)
        for wire in senders[:2]:
            await wire.send(b"x" * (size - 2 * UNCOUNTED_BYTES))
            assert await wire.answer() == (200, f"/keep {size}", False)
        await senders[2].send(b"x" * (size - 2 * UNCOUNTED_BYTES))  # thrown away, at leisure
        await senders[2].send(post("/keep", size), b"x" * size)
        assert await senders[2].answer() == (200, f"/keep {size}", False)
        assert size > DISCARDED_BYTES_MAX


async def test_a_large_answer_needs_room_and_what_is_taken_gives_it_back() -> None:
    async with narrow() as deployment, AsyncExitStack() as stack:
        large = b"GET /large?%d HTTP/1.1\r\nhost: x\r\n\r\n" % (8 * MIB)
        wires: list[Wire] = [await stack.enter_async_context(deployment.wire()) for _ in range(3)]
        for wire in wires[:2]:
            await wire.send(large)
            await deployment.read_all()
        await wires[2].send(large)
        assert (await wires[2].answer())[0] == 503
        for wire in wires[:2]:
            assert len((await wire.answer())[1]) == 8 * MIB + 2
        await wires[2].send(large)
        assert (await wires[2].answer())[0] == 200


async def test_answers_that_asked_for_no_room_are_cut_where_they_exceed_it() -> None:
    async with narrow() as deployment, AsyncExitStack() as stack:
        forced = b"GET /forced?%d HTTP/1.1\r\nhost: x\r\n\r\n"
        smaller = await stack.enter_async_context(deployment.wire())
        larger = await stack.enter_async_context(deployment.wire())
        last = await stack.enter_async_context(deployment.wire())
        sizes = {smaller: 12 * MIB, larger: 20 * MIB, last: 6 * MIB}  # the system takes some of each
        for wire, size in sizes.items():
            await wire.send(forced % size)
            await deployment.read_all()
        assert len(await larger.rest()) < sizes[larger]
        for wire in (smaller, last):
            assert len((await wire.answer())[1]) == sizes[wire]


async def test_a_body_that_was_read_is_not_counted_twice() -> None:
    """Many callers send large bodies over connections that they keep."""
    async with narrow() as deployment, AsyncExitStack() as stack:
        deployment.app.go.set()
        size = 256 * 1024
        wires = [await stack.enter_async_context(deployment.wire()) for _ in range(2 * BUDGET // size)]
        for wire in wires:
            await wire.send(post("/keep", size), b"x" * size)
            assert await wire.answer() == (200, f"/keep {size}", False)
