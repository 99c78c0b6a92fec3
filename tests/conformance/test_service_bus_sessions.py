"""Sessions on Service Bus: one holder of a key, several keys at once, and what becomes of a lost session."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.conformance.bus_setups import wall_clock_ms
from tests.conformance.service_bus_setup_sdk import (
    SOCKETS_ARE_LEFT,
    a_bus,
    directive,
    one,
    sockets_collected,
    topology,
)

from lucius.bus.port import Delivery, LockLost, Receiver
from lucius.bus.service_bus.bus import ServiceBusBus
from lucius.bus.service_bus.connection import ServiceBusRefused
from lucius.bus.service_bus.sessions import LINGER_SECONDS
from lucius_lab.emulators.service_bus.server import ServiceBusEmulator, serve

pytestmark = [pytest.mark.xdist_group("servicebus-sessions"), SOCKETS_ARE_LEFT]

OCR = "global-bus-p0/subscriptions/ocr"
SHORT_LOCK_MS = 5_000


@pytest.fixture(autouse=True)
def no_sockets_left() -> Iterator[None]:
    with sockets_collected():
        yield


@pytest.fixture
async def emulator() -> AsyncIterator[ServiceBusEmulator]:
    async with serve(now_ms=wall_clock_ms, topology=topology(sessions=True)) as running:
        yield running


@pytest.fixture
async def hurried() -> AsyncIterator[ServiceBusBus]:
    """A bus whose locks are short."""
    short = topology(lock_ms=SHORT_LOCK_MS, sessions=True)
    async with (
        serve(now_ms=wall_clock_ms, topology=short) as running,
        a_bus(running, sessions=True) as opened,
    ):
        yield opened


@pytest.fixture
async def bus(emulator: ServiceBusEmulator) -> AsyncIterator[ServiceBusBus]:
    async with a_bus(emulator, sessions=True, sessions_max=2) as opened:
        yield opened


async def publish(bus: ServiceBusBus, *messages: tuple[int, str]) -> None:
    for number, key in messages:
        await bus.publish_directive(directive(number, key=key))


async def nothing(receiver: Receiver) -> bool:
    return await receiver.receive(messages_max=1, wait_ms=1_000) == []


async def test_a_key_has_one_holder_and_keeps_its_order(bus: ServiceBusBus) -> None:
    first, second = await bus.directives("ocr", 0), await bus.directives("ocr", 0)
    await publish(bus, (1, "a"), (2, "b"), (3, "a"))
    held = await one(first)
    assert (held.message_id, held.message_key) == ("m1", "a")
    other = await one(second)
    assert (other.message_id, other.message_key) == ("m2", "b")
    assert await nothing(second)
    await first.complete(held)
    held = await one(first)
    assert held.message_id == "m3"
    await second.complete(other)
    await first.complete(held)
    await publish(bus, (4, "a"))
    assert (await one(second)).message_id == "m4"  # who no longer asks has left the key to others


async def test_one_slow_key_does_not_hold_up_another(bus: ServiceBusBus) -> None:
    receiver = await bus.directives("ocr", 0)
    await publish(bus, (1, "slow"))
    slow = await one(receiver)
    await publish(bus, (2, "quick"), (3, "quick"))
    for expected in ("m2", "m3"):
        quick = await one(receiver)
        assert quick.message_id == expected
        await receiver.complete(quick)
    await publish(bus, (4, "slow"))
    assert (await one(receiver)).message_id == "m4"  # the same key: nobody waits for the first to end
    await receiver.complete(slow)


async def test_as_many_keys_as_may_be_held_and_no_more(bus: ServiceBusBus) -> None:
    receiver = await bus.directives("ocr", 0)
    await publish(bus, (1, "a"), (2, "b"), (3, "c"))
    held: list[Delivery] = [await one(receiver), await one(receiver)]
    assert await nothing(receiver)
    await receiver.complete(held[0])
    assert (await one(receiver)).message_id == "m3"


async def test_a_delay_holds_the_key_and_renews_its_lock(hurried: ServiceBusBus) -> None:
    receiver, other = await hurried.directives("ocr", 0), await hurried.directives("ocr", 0)
    await publish(hurried, (1, "a"))
    await receiver.give_back(await one(receiver), delay_ms=SHORT_LOCK_MS + 1_500)
    assert await other.receive(messages_max=1, wait_ms=SHORT_LOCK_MS) == []
    assert (await one(receiver)).delivery_count == 2


async def test_a_late_message_has_a_good_part_of_a_lock_ahead(hurried: ServiceBusBus) -> None:
    receiver = await hurried.directives("ocr", 0)
    await publish(hurried, (1, "a"))
    first = await one(receiver)
    await asyncio.sleep(SHORT_LOCK_MS * 0.55 / 1000)
    await publish(hurried, (2, "a"))
    late = await one(receiver)
    assert late.locked_until_ms > first.locked_until_ms
    await receiver.complete(first)
    await receiver.complete(late)


async def test_a_connection_that_broke_takes_its_locks_along(
    emulator: ServiceBusEmulator, bus: ServiceBusBus
) -> None:
    receiver = await bus.directives("ocr", 0)
    await publish(bus, (1, "a"))
    held = await one(receiver)
    emulator.drop()
    with pytest.raises(LockLost):
        await receiver.complete(held)
    again = await one(receiver)
    assert again.message_id == "m1"
    await receiver.complete(again)
    waiting = asyncio.create_task(receiver.receive(messages_max=1, wait_ms=20_000))
    await asyncio.sleep(LINGER_SECONDS)
    emulator.drop()
    await publish(bus, (2, "a"))
    (got,) = await waiting
    assert got.message_id == "m2"


async def test_who_does_not_ask_holds_no_key(emulator: ServiceBusEmulator, bus: ServiceBusBus) -> None:
    receiver = await bus.directives("ocr", 0)
    assert await nothing(receiver)
    async with asyncio.timeout(10):
        while emulator.connections:
            await asyncio.sleep(0.05)
    await publish(bus, (1, "a"))
    lock = emulator.broker.accept_session(OCR, None, wall_clock_ms(), holder="somebody else")
    assert lock is not None and lock.session_id == "a"


async def test_a_subscription_without_sessions_is_told(bus: ServiceBusBus) -> None:
    async with (
        serve(now_ms=wall_clock_ms, topology=topology()) as plain,
        a_bus(plain, sessions=True) as with_sessions,
    ):
        with pytest.raises(ServiceBusRefused, match="sessions"):
            await (await with_sessions.directives("ocr", 0)).receive(messages_max=1, wait_ms=5_000)
