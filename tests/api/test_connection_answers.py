"""Answers that come before a body has: whatever comes late is never taken for the next request."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.raw_http import LIMITS, WireDeployment, wire_deployment

from lucius.api.bodies import READ_OFF_BYTES_MAX

GOOD = b"GET /good HTTP/1.1\r\nhost: x\r\n\r\n"
EVIL = b"GET /evil HTTP/1.1\r\nhost: x\r\n\r\n"
SAID = (200, "/good 0", False)
# More than a head may have: counted as one, it would end the connection.
LONG = EVIL + b"x" * (3 * LIMITS.head_bytes_max)


def post(path: str, length: int, *headers: bytes) -> bytes:
    lines = [b"POST %b HTTP/1.1" % path.encode(), b"host: x", b"content-length: %d" % length, *headers]
    return b"\r\n".join((*lines, b"", b""))


def chunked(path: str, *headers: bytes) -> bytes:
    lines = [b"POST %b HTTP/1.1" % path.encode(), b"host: x", b"transfer-encoding: chunked", *headers]
    return b"\r\n".join((*lines, b"", b""))


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@pytest.fixture
async def deployment() -> "AsyncIterator[WireDeployment]":
    async with wire_deployment() as opened:
        yield opened


@pytest.mark.parametrize(
    ("head", "late"),
    [
        (post("/early", len(EVIL)), (EVIL,)),
        (post("/early", len(LONG)), (LONG,)),
        (post("/early", len(LONG)), (LONG[:40], LONG[40:-40], LONG[-40:])),
        (chunked("/early"), (chunk(EVIL), chunk(b""))),
        (chunked("/early"), (chunk(EVIL) + chunk(LONG) + chunk(b""),)),
        (chunked("/early"), (b"5\r\nhe", b"llo\r", b"\n", chunk(LONG), b"0\r\n\r", b"\n")),
    ],
    ids=["short", "long", "pieces", "chunks", "chunks at once", "chunks in pieces"],
)
async def test_a_body_that_comes_after_its_answer_is_thrown_away(
    deployment: "WireDeployment", head: bytes, late: tuple[bytes, ...]
) -> None:
    async with deployment.wire() as wire:
        await wire.send(head)
        status, _, closes = await wire.answer()
        assert (status, closes) == (401, False)
        for piece in late:
            await wire.send(piece)
            await deployment.read_all()
        await wire.send(GOOD)
        assert await wire.answer() == SAID
        await wire.send(post("/read", 5) + b"hello")
        assert await wire.answer() == (200, "/read 5", False)
    assert set(deployment.app.paths) == {"/early", "/later", "/good", "/read"}


async def test_what_is_pipelined_behind_a_late_body_is_answered(deployment: "WireDeployment") -> None:
    async with deployment.wire() as wire:
        await wire.send(post("/early", len(LONG)))
        assert (await wire.answer())[0] == 401
        await wire.send(LONG + GOOD + post("/early", 5) + b"hello" + GOOD[:9])
        assert await wire.answer() == SAID
        assert (await wire.answer())[0] == 401
        await wire.send(GOOD[9:])
        assert await wire.answer() == SAID
    assert "/evil" not in deployment.app.paths


async def test_a_body_and_the_beginning_of_the_next_head_come_in_one_read(
    deployment: "WireDeployment",
) -> None:
    async with deployment.wire() as wire:
        for head, body in ((post("/read", 4_000), b"x" * 4_000), (chunked("/read"), chunk(b"x" * 4_000))):
            end = chunk(b"") if head.startswith(chunked("/read")) else b""
            await wire.send(head + body + end + GOOD[:9])
            assert await wire.answer() == (200, "/read 4000", False)
            await wire.send(GOOD[9:])
            assert await wire.answer() == SAID


async def test_heads_are_still_bounded_behind_a_body(deployment: "WireDeployment") -> None:
    async with deployment.wire() as wire:
        await wire.send(post("/read", 5) + b"hello" + GOOD[:-2])
        assert await wire.answer() == (200, "/read 5", False)
        await wire.send(b"x-a: " + b"b" * LIMITS.head_bytes_max)
        assert (await wire.rest()).startswith(b"HTTP/1.1 431 ")


async def test_a_body_that_is_too_large_is_thrown_away_too(deployment: "WireDeployment") -> None:
    size = 2 * READ_OFF_BYTES_MAX
    async with deployment.wire() as wire:
        sending = asyncio.create_task(wire.send(post("/read", size), b"x" * size, GOOD))
        status, told, closes = await wire.answer()
        assert (status, closes) == (413, False) and "BODY_TOO_LARGE" in told
        await sending
        assert await wire.answer() == SAID


async def test_nothing_is_said_on_a_connection_that_waits_after_a_late_body(
    deployment: "WireDeployment",
) -> None:
    async with deployment.wire() as wire:
        await wire.send(post("/early", len(LONG)))
        assert (await wire.answer())[0] == 401
        await wire.send(LONG, GOOD)
        assert await wire.answer() == SAID
        await wire.send(post("/early", 5))
        assert (await wire.answer())[0] == 401
        await wire.send(b"hello")
        await deployment.read_all()
        deployment.look(LIMITS.head_seconds_max)
        assert await wire.rest() == b""


@pytest.mark.parametrize("late", [b"zz\r\nhello\r\n", chunk(b"hello") + b"not a size\r\n"])
async def test_a_late_body_that_cannot_be_read_ends_the_connection(
    deployment: "WireDeployment", late: bytes
) -> None:
    async with deployment.wire() as wire:
        await wire.send(chunked("/early"))
        assert (await wire.answer())[0] == 401
        await wire.send(late, GOOD)
        assert await wire.rest() == b"", "the answer was given already"
    assert deployment.app.paths == ["/early"]


@pytest.mark.parametrize("before", [b"", GOOD])
async def test_what_cannot_be_read_behind_a_request_does_not_answer_it(
    deployment: "WireDeployment", before: bytes
) -> None:
    """A Content-Length that is too small, say."""
    async with deployment.wire() as wire:
        await wire.send(before + post("/held", 3) + b"\x01\x02\x03\x04\x05")
        if before:
            assert await wire.answer() == SAID
        await wire.send(GOOD)
        deployment.app.go.set()
        assert await wire.answer() == (200, "/held 3", True)
        assert await wire.rest() == b""


async def test_a_body_that_cannot_be_read_behind_a_request_that_waits(deployment: "WireDeployment") -> None:
    async with deployment.wire() as wire:
        await wire.send(b"GET /held HTTP/1.1\r\nhost: x\r\n\r\n" + chunked("/read") + b"zz\r\n")
        assert await wire.rest() == b""
    assert deployment.app.paths == ["/held"]


@pytest.mark.parametrize(
    "data", [b"\x01\x02", chunked("/read") + b"zz\r\n", GOOD[:-2] + b"content-length: x\r\n\r\n"]
)
async def test_what_cannot_be_read_is_answered_where_nothing_else_is(
    deployment: "WireDeployment", data: bytes
) -> None:
    for before in (b"", GOOD):
        async with deployment.wire() as wire:
            if before:
                await wire.send(before)
                assert await wire.answer() == SAID
            await wire.send(data)
            status, _, closes = await wire.answer()
            assert (status, closes) == (400, True)
            assert await wire.rest() == b""


WISHES = (
    (b"connection: Upgrade, HTTP2-Settings", b"upgrade: h2c"),
    (b"upgrade: websocket", b"connection: upgrade"),
)


@pytest.mark.parametrize("wanted", WISHES, ids=["h2c", "websocket"])
async def test_a_wish_for_another_protocol_is_passed_over(
    deployment: "WireDeployment", wanted: tuple[bytes, bytes]
) -> None:
    get = GOOD[:-2] + b"\r\n".join((*wanted, b"", b""))
    async with deployment.wire() as wire:
        for late in (False, True):
            for head, body in (
                (post("/read", len(EVIL), *wanted), EVIL),
                (chunked("/read", *wanted), chunk(EVIL) + chunk(b"")),
            ):
                await wire.send(*((head, body) if late else (head + body,)))
                assert await wire.answer() == (200, f"/read {len(EVIL)}", False)
        await wire.send(post("/early", len(EVIL), *wanted))
        assert (await wire.answer())[0] == 401
        await wire.send(EVIL)
        await wire.send(get + GOOD + get)
        for _ in range(3):
            assert await wire.answer() == SAID
    assert "/evil" not in deployment.app.paths


async def test_a_client_that_asks_leave_to_send_its_body(deployment: "WireDeployment") -> None:
    """It may never send it once it is refused, so that nobody knows what comes next."""
    asks = b"expect: 100-continue"
    async with deployment.wire() as wire:
        await wire.send(post("/read", 5, asks) + b"hello")
        assert await wire.answer() == (200, "/read 5", False)
        await wire.send(post("/read", 0, asks))
        assert await wire.answer() == (200, "/read 0", False)
        await wire.send(post("/early", 5, asks))
        status, _, closes = await wire.answer()
        assert (status, closes) == (401, True)
        assert await wire.rest() == b""


async def test_a_tunnel_is_refused(deployment: "WireDeployment") -> None:
    for target in (b"x:443", b"/good"):
        async with deployment.wire() as wire:
            await wire.send(b"CONNECT %b HTTP/1.1\r\nhost: x\r\n\r\n" % target + GOOD)
            assert (await wire.answer())[0] == 400
            assert await wire.rest() == b""
    assert deployment.app.paths == []
