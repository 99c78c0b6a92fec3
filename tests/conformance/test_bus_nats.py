"""What NATS can do to the bus beyond the common suite: crashes, silence, other settings, foreign messages."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sized
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import nats
import pytest
from tests.conformance.bus_setups import wall_clock_ms

from lucius.bus.nats.bus import NatsBus, TopologyConflict
from lucius.bus.nats.connection import NatsConnection
from lucius.bus.nats.names import NatsLimits, NatsNames, token
from lucius.bus.nats.receiver import NatsReceiver
from lucius.bus.nats.server import NatsServer, ServerFailed, free_port
from lucius.bus.port import BusError, BusUnavailable, DirectiveOut, ReplyOut
from lucius.core.routing import LANES

pytestmark = pytest.mark.xdist_group("nats")

T = TypeVar("T")

_numbers = count(1)


@asynccontextmanager
async def a_bus(server: NatsServer, prefix: str = "", **more: Any) -> AsyncIterator[NatsBus]:
    prefix = prefix or f"faults{next(_numbers)}"
    await server.ready()
    bus = await NatsBus.open([server.url], now_ms=wall_clock_ms, prefix=prefix, **more)
    try:
        yield bus
    finally:
        await bus.close()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path / "nats", port=free_port())
    server.start()
    yield server
    server.kill()


def directive(number: int, lane: int = 0) -> DirectiveOut:
    return DirectiveOut(service="ocr", lane=lane, message_key="k", message_id=f"m{number}", body=b"{}")


async def all_ids(receiver: NatsReceiver) -> list[str]:
    found: list[str] = []
    while got := await receiver.receive(messages_max=500, wait_ms=200):
        for delivery in got:
            await receiver.complete(delivery)
            found.append(delivery.message_id)
    return found


# Crashes and silence


async def test_what_was_confirmed_outlives_kill_9(own_server: NatsServer) -> None:
    async with a_bus(own_server, limits=NatsLimits(lock_ms=2_000)) as bus:
        confirmed: set[str] = set()
        refused: list[str] = []
        received: set[str] = set()
        over = asyncio.Event()

        async def publish() -> None:
            number = 0
            while not over.is_set():
                number += 1
                try:
                    await bus.publish_directive(directive(number, lane=number % LANES))
                    confirmed.add(f"m{number}")
                except BusUnavailable:
                    refused.append(f"m{number}")
                    await asyncio.sleep(0.02)

        async def consume(lane: int) -> None:
            receiver = await bus.directives("ocr", lane)
            while not over.is_set() or not confirmed <= received:
                try:
                    for delivery in await receiver.receive(messages_max=10, wait_ms=200):
                        received.add(delivery.message_id)
                        await receiver.complete(delivery)
                except BusUnavailable:
                    await asyncio.sleep(0.05)

        consuming = [asyncio.create_task(consume(lane)) for lane in range(LANES)]
        publishing = [asyncio.create_task(publish())]
        for _ in range(2):
            await _grows(confirmed, 200)
            own_server.kill()
            await _grows(refused, 3)
            own_server.start()
            await own_server.ready()
        await _grows(confirmed, 200)
        over.set()
        async with asyncio.timeout(30):
            await asyncio.gather(*publishing, *consuming)
        assert confirmed <= received


async def _grows(what: Sized, by: int) -> None:
    before = len(what)
    async with asyncio.timeout(30):
        while len(what) < before + by:
            await asyncio.sleep(0.01)


async def test_a_silent_server_is_given_up_in_time(own_server: NatsServer) -> None:
    async with a_bus(own_server, answer_seconds_max=1.0) as bus:
        receiver = await bus.directives("ocr", 0)
        await bus.publish_directive(directive(1))
        (held,) = await receiver.receive(messages_max=1, wait_ms=5_000)
        assert own_server.pid is not None
        os.kill(own_server.pid, signal.SIGSTOP)
        try:
            async with asyncio.timeout(15):
                for call in (bus.publish_directive(directive(2)), bus.ping(), receiver.complete(held)):
                    with pytest.raises(BusUnavailable, match="in time"):
                        await call
        finally:
            os.kill(own_server.pid, signal.SIGCONT)
        await bus.ping()
        assert set(await all_ids(receiver)) <= {"m2"}


async def test_who_waits_is_told_at_once_when_the_connection_breaks(own_server: NatsServer) -> None:
    async with a_bus(own_server) as bus:
        receiver = await bus.directives("ocr", 0)
        waiting = asyncio.create_task(receiver.receive(messages_max=1, wait_ms=60_000))
        await asyncio.sleep(0.1)
        own_server.kill()
        async with asyncio.timeout(4):
            with pytest.raises(BusUnavailable):
                await waiting
            with pytest.raises(BusUnavailable):
                await bus.publish_directive(directive(1))
        own_server.start()
        await own_server.ready()
        await _until_up(bus)
        await bus.publish_directive(directive(2))
        assert await all_ids(receiver) == ["m2"]


async def _until_up(bus: NatsBus) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                return await bus.ping()
            except BusUnavailable:
                await asyncio.sleep(0.05)


async def test_a_server_that_is_not_there_is_said_to_be_unavailable() -> None:
    link = f"nats://somebody:hunter2@127.0.0.1:{free_port()}"
    with pytest.raises(BusUnavailable) as told:
        async with asyncio.timeout(20):
            await NatsBus.open([link], now_ms=wall_clock_ms, connect_seconds_max=0.5)
    assert "hunter2" not in str(told.value)


# Setting up


async def test_many_may_open_the_bus_at_the_same_time(nats_server: NatsServer) -> None:
    async def open_and_listen() -> None:
        async with a_bus(nats_server, "together") as bus:
            await asyncio.gather(*(bus.directives("ocr", lane) for lane in range(LANES)))

    await asyncio.gather(*(open_and_listen() for _ in range(6)))


async def test_other_settings_under_the_same_name_are_a_conflict(nats_server: NatsServer) -> None:
    async with a_bus(nats_server, "conflict", limits=NatsLimits(lock_ms=1_000)) as bus:
        await bus.directives("ocr", 0)
        with pytest.raises(TopologyConflict, match="stream conflict-"):
            async with a_bus(nats_server, "conflict", limits=NatsLimits(messages_max=7)):
                pass
        with pytest.raises(TopologyConflict, match="consumer lucius-p"):
            async with a_bus(nats_server, "conflict", limits=NatsLimits(lock_ms=2_000)):
                pass
        await bus.publish_directive(directive(1))


async def test_what_somebody_took_away_is_set_up_again(nats_server: NatsServer) -> None:
    async with a_bus(nats_server, "gone") as bus:
        receiver = await bus.directives("ocr", 0)
        outside = await nats.connect(nats_server.url)
        for stream in ("gone-directives-0", "gone-replies-0"):
            await outside.jetstream().delete_stream(stream)
        await outside.close()
        with pytest.raises(BusError):
            await receiver.receive(messages_max=1, wait_ms=0)
        await bus.ping()
        await bus.publish_directive(directive(2))
        assert await all_ids(await bus.directives("ocr", 0)) == ["m2"]
        await bus.publish_reply(ReplyOut(lane=0, message_key="k", message_id="r", body=b"{}"))
        assert await all_ids(await bus.replies(0, group="lucius")) == ["r"]


@pytest.mark.parametrize("first", ["who publishes", "who receives"])
async def test_a_server_that_lost_its_disk_is_set_up_by_whoever_needs_it(
    own_server: NatsServer, tmp_path: Path, first: str
) -> None:
    """Nobody asks after its health."""
    async with a_bus(own_server, "lost") as bus:
        receiver = await bus.directives("ocr", 5)
        replies = await bus.replies(2, group="lucius")
        own_server.kill()
        shutil.rmtree(tmp_path / "nats" / "jetstream")
        own_server.start()
        await own_server.ready()

        async def until_it_works(do: Callable[[], Awaitable[T]]) -> T:
            async with asyncio.timeout(20):
                while True:
                    try:
                        return await do()
                    except BusUnavailable:
                        await asyncio.sleep(0.1)

        if first == "who receives":
            await until_it_works(lambda: receiver.receive(messages_max=1, wait_ms=0))
        many = [directive(number, lane=5) for number in range(20)]
        await asyncio.gather(*(until_it_works(partial(bus.publish_directive, one)) for one in many))
        await bus.publish_reply(ReplyOut(lane=2, message_key="k", message_id="r", body=b"{}"))
        assert set(await until_it_works(lambda: all_ids(receiver))) == {one.message_id for one in many}
        assert await until_it_works(lambda: all_ids(replies)) == ["r"]


async def test_a_server_that_goes_away_while_the_bus_is_opened_is_waited_for(
    own_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await own_server.ready()
    ask_json = NatsConnection.ask_json
    asked = 0

    async def and_kill(link: NatsConnection, subject: str, question: Any) -> dict[str, Any]:
        nonlocal asked
        asked += 1
        if asked == 5:
            own_server.kill()
            asyncio.get_running_loop().call_later(0.5, own_server.start)
        return await ask_json(link, subject, question)

    monkeypatch.setattr(NatsConnection, "ask_json", and_kill)
    bus = await NatsBus.open([own_server.url], now_ms=wall_clock_ms, prefix="patient")
    assert asked > 5
    await bus.publish_directive(directive(1))
    await bus.close()


def test_no_two_names_become_one() -> None:
    names = ["ocr", "OCR", "o_cr", "o_5fcr", "o.cr", "ö" * 63, "ö" * 62 + "ä", "_h", ""]
    tokens = [token(name) for name in names]
    assert len(set(tokens)) == len(names)
    longest = NatsNames("ö" * 63).directive_queue("ö" * 63, 15)
    assert max(len(longest.consumer), len(longest.stream)) <= 255


# Messages


async def test_a_consumer_that_somebody_took_away_is_set_up_again_by_who_needs_it(
    nats_server: NatsServer,
) -> None:
    prefix = f"taken{next(_numbers)}"
    async with a_bus(nats_server, prefix) as bus:
        receiver = await bus.directives("ocr", 3)
        queue = NatsNames(prefix).directive_queue("ocr", 3)
        client = await nats.connect(nats_server.url)
        waiting = asyncio.create_task(receiver.receive(messages_max=1, wait_ms=5_000))
        await asyncio.sleep(0.1)
        await client.jetstream().delete_consumer(queue.stream, queue.consumer)
        with pytest.raises(BusUnavailable):
            await waiting
        await bus.publish_directive(directive(1, lane=3))
        assert await all_ids(receiver) == ["m1"]
        await client.jetstream().delete_consumer(queue.stream, queue.consumer)
        with pytest.raises(BusUnavailable):
            await receiver.receive(messages_max=1, wait_ms=100)
        assert await receiver.receive(messages_max=1, wait_ms=0) == []
        await client.close()


async def test_a_repeat_is_dropped_by_its_id(nats_server: NatsServer) -> None:
    async with a_bus(nats_server) as bus:
        for _ in range(3):
            await bus.publish_directive(directive(1))
        assert await all_ids(await bus.directives("ocr", 0)) == ["m1"]


async def test_a_full_queue_takes_no_more_and_the_others_do(nats_server: NatsServer) -> None:
    async with a_bus(nats_server, limits=NatsLimits(messages_max=3)) as bus:
        for number in range(3):
            await bus.publish_directive(directive(number))
        with pytest.raises(BusUnavailable, match="full"):
            await bus.publish_directive(directive(3))
        await bus.publish_directive(directive(4, lane=1))
        assert await all_ids(await bus.directives("ocr", 0)) == ["m0", "m1", "m2"]
        await bus.publish_directive(directive(5))


async def test_a_message_of_another_client_is_delivered(nats_server: NatsServer) -> None:
    async with a_bus(nats_server, "foreign") as bus:
        outside = await nats.connect(nats_server.url)
        await outside.jetstream().publish("foreign.global-bus-replies-p7", b"plain")
        await outside.close()
        (got,) = await (await bus.replies(7, group="lucius")).receive(messages_max=1, wait_ms=1_000)
        assert (got.body, got.message_key, got.message_id) == (b"plain", "", "nats-1")


async def test_a_late_settlement_is_accepted(nats_server: NatsServer) -> None:
    async with a_bus(nats_server, limits=NatsLimits(lock_ms=300)) as bus:
        receiver = await bus.directives("ocr", 0)
        await bus.publish_directive(directive(1))
        (late,) = await receiver.receive(messages_max=1, wait_ms=5_000)
        (current,) = await receiver.receive(messages_max=1, wait_ms=2_000)
        assert current.delivery_count == 2
        await receiver.complete(late)
        assert not bus.fences
        await asyncio.sleep(0.4)
        assert await receiver.receive(messages_max=1, wait_ms=0) == []


async def test_putting_aside_twice_leaves_one_letter(nats_server: NatsServer) -> None:
    async with a_bus(nats_server) as bus:
        receiver = await bus.directives("ocr", 0)
        await bus.publish_directive(directive(1))
        (held,) = await receiver.receive(messages_max=1, wait_ms=5_000)
        await receiver.dead_letter(held, reason="once")
        await receiver.dead_letter(held, reason="again")
        assert [letter.reason for letter in await receiver.dead_letters(messages_max=9)] == ["once"]


async def test_waiting_is_not_polling(nats_server: NatsServer) -> None:
    async with a_bus(nats_server) as bus:
        receivers = [await bus.directives("ocr", lane) for lane in range(LANES)]
        before = bus._link._client.stats["out_msgs"]
        await asyncio.gather(*(receiver.receive(messages_max=1, wait_ms=1_500) for receiver in receivers))
        assert bus._link._client.stats["out_msgs"] - before <= 2 * LANES


async def test_a_port_that_is_taken_is_no_server_of_ours(nats_server: NatsServer, tmp_path: Path) -> None:
    await nats_server.ready()
    port = int(nats_server.url.rpartition(":")[2])
    with pytest.raises(ServerFailed, match="taken"):
        NatsServer(tmp_path, port=port).start()


async def test_a_server_that_ends_says_why(tmp_path: Path) -> None:
    (tmp_path / "jetstream").write_text("a file where a folder should be")
    server = NatsServer(tmp_path, port=free_port())
    server.start()
    with pytest.raises(ServerFailed, match="ended"):
        await server.ready()
    await server.stop()
