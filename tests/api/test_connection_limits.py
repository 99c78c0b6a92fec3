"""What one connection may make the server keep: fields behind a body, and requests behind a request."""

from collections.abc import AsyncIterator

import pytest
from tests.support.raw_http import LIMITS, WireDeployment, wire_deployment

from lucius.api.connection_limits import PIPELINED_MAX

GOOD = b"GET /good HTTP/1.1\r\nhost: x\r\n\r\n"
SAID = (200, "/good 0", False)
CHUNKED = b"POST /held HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
FIELD = b"x-late: %b\r\n" % (b"a" * 100)


@pytest.fixture
async def deployment() -> "AsyncIterator[WireDeployment]":
    async with wire_deployment() as opened:
        yield opened


@pytest.mark.parametrize(
    "late", [FIELD, b"x-late: " + b"a" * 100, b"a" * 100], ids=["fields", "values", "names"]
)
async def test_fields_behind_a_body_have_bounds(deployment: "WireDeployment", late: bytes) -> None:
    async with deployment.wire() as wire:
        await wire.send(CHUNKED + b"2\r\nhi\r\n0\r\n")
        sent = 0
        with pytest.raises(ConnectionError):
            while sent < 100 * LIMITS.head_bytes_max:
                await wire.send(late)
                await deployment.read_all()
                sent += len(late)
        assert sent <= 2 * LIMITS.head_bytes_max


async def test_a_body_in_many_pieces_is_no_trailer(deployment: "WireDeployment") -> None:
    deployment.app.go.set()
    async with deployment.wire() as wire:
        await wire.send(CHUNKED)
        for _ in range(30):
            await wire.send(b"64\r\n", b"a" * 50, b"a" * 50, b"\r\n")
            await deployment.read_all()
        await wire.send(b"0\r\n", FIELD, b"\r\n", GOOD)
        assert await wire.answer() == (200, "/held 3000", False)
        assert await wire.answer() == SAID


async def test_fields_behind_a_body_are_no_part_of_the_head(deployment: "WireDeployment") -> None:
    """Whoever judged the head has not seen them."""
    deployment.app.go.set()
    async with deployment.wire() as wire:
        await wire.send(CHUNKED + b"0\r\nauthorization: Bearer x\r\nhost: evil\r\n\r\n")
        assert await wire.answer() == (200, "/held 0", False)
    assert b"authorization" not in deployment.app.headers[-1]
    assert deployment.app.headers[-1][b"host"] == b"x"


async def test_requests_behind_a_request_have_bounds(deployment: "WireDeployment") -> None:
    """Those that fit are answered, in their order; then the connection ends."""
    async with deployment.wire() as wire:
        await wire.send(b"GET /held HTTP/1.1\r\nhost: x\r\n\r\n" + GOOD * (10 * PIPELINED_MAX))
        await deployment.read_all()
        deployment.app.go.set()
        assert (await wire.answer())[:2] == (200, "/held 0")
        await wire.rest()
    assert deployment.app.paths.count("/good") <= PIPELINED_MAX


async def test_as_many_as_fit_are_answered(deployment: "WireDeployment") -> None:
    async with deployment.wire() as wire:
        await wire.send(b"GET /held HTTP/1.1\r\nhost: x\r\n\r\n" + GOOD * PIPELINED_MAX)
        await deployment.read_all()
        deployment.app.go.set()
        assert await wire.answer() == (200, "/held 0", False)
        for _ in range(PIPELINED_MAX):
            assert await wire.answer() == SAID
