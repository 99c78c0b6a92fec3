"""What a network can do to the bus over Service Bus: connections that end, locks that run out."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

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

from lucius.bus.port import (
    DELIVERIES_EXHAUSTED,
    BusUnavailable,
    Delivery,
    DirectiveOut,
    LockLost,
    Receiver,
)
from lucius.bus.service_bus.bus import ServiceBusBus
from lucius.bus.service_bus.connection import NamespaceAccess
from lucius.core.routing import LANES
from lucius_lab.emulators.service_bus.server import ServiceBusEmulator, serve

pytestmark = [pytest.mark.xdist_group("servicebus-faults"), SOCKETS_ARE_LEFT]


@pytest.fixture(autouse=True)
def no_sockets_left() -> Iterator[None]:
    with sockets_collected():
        yield


@pytest.fixture
async def emulator() -> AsyncIterator[ServiceBusEmulator]:
    async with serve(now_ms=wall_clock_ms, topology=topology()) as running:
        yield running


# -- connections that end ----------------------------------------------------------------------------------


async def test_what_is_held_is_settled_over_a_new_connection(emulator: ServiceBusEmulator) -> None:
    async with a_bus(emulator) as bus:
        receiver = await bus.directives("ocr", 0)
        for number in range(4):
            await bus.publish_directive(directive(number))
        held = [await one(receiver) for _ in range(4)]
        emulator.drop()
        await receiver.complete(held[0])
        await receiver.dead_letter(held[1], reason="POISON: why")
        emulator.drop()
        renewed = await receiver.extend(held[2])
        assert renewed.locked_until_ms > held[2].locked_until_ms
        await receiver.complete(renewed)
        await receiver.give_back(held[3], delay_ms=0)
        again = await one(receiver)
        assert (again.message_id, again.delivery_count) == ("m3", 2)
        (dead,) = await receiver.dead_letters(messages_max=10)
        assert (dead.message_id, dead.reason) == ("m1", "POISON: why")


async def test_who_waits_goes_on_waiting_over_a_new_connection(emulator: ServiceBusEmulator) -> None:
    async with a_bus(emulator) as bus:
        receiver = await bus.directives("ocr", 0)
        waiting = asyncio.create_task(one(receiver))
        await asyncio.sleep(0.1)
        emulator.drop()
        await bus.publish_directive(directive(1))
        assert (await waiting).message_id == "m1"


async def test_who_cannot_connect_is_told_and_all_is_well_afterwards(emulator: ServiceBusEmulator) -> None:
    async with a_bus(emulator) as bus:
        receiver = await bus.directives("ocr", 0)
        await bus.publish_directive(directive(1))
        held = await one(receiver)
        await emulator.down()
        async with asyncio.timeout(20):
            for call in (
                bus.publish_directive(directive(2)),
                receiver.receive(messages_max=1, wait_ms=10_000),
                receiver.complete(held),
                bus.replies(0, group="lucius"),
            ):
                with pytest.raises(BusUnavailable, match="Service Bus"):
                    await call
        await emulator.up()
        await bus.ping()
        await receiver.complete(held)
        await bus.publish_directive(directive(3))
        assert (await one(receiver)).message_id == "m3"


async def test_a_ping_asks_the_broker_unless_it_answered_a_moment_ago(emulator: ServiceBusEmulator) -> None:
    async with a_bus(emulator) as bus:
        await emulator.down()
        await bus.ping()
        bus._answered_at -= 60
        with pytest.raises(BusUnavailable):
            await bus.ping()


async def test_a_broker_that_is_not_there_is_not_opened(emulator: ServiceBusEmulator) -> None:
    await emulator.down()
    with pytest.raises(BusUnavailable, match="Service Bus") as caught:
        await ServiceBusBus.open(
            NamespaceAccess(connection_string=emulator.connection_string), now_ms=wall_clock_ms
        )
    assert "SAS_KEY_VALUE" not in str(caught.value)


async def settled(receiver: Receiver, delivery: Delivery) -> None:
    """A slow machine may leave a settlement without an answer: it is asked for again."""
    while True:
        with suppress(BusUnavailable):
            return await receiver.complete(delivery)


async def test_drops_lose_nothing_and_double_nothing() -> None:
    """Lanes at work, with every connection cut again and again."""
    over, all_published = asyncio.Event(), asyncio.Event()
    async with (
        serve(now_ms=wall_clock_ms, topology=topology(lock_ms=15_000)) as emulator,
        a_bus(emulator) as bus,
    ):
        published: list[str] = []
        received: list[str] = []

        async def insist(message: DirectiveOut) -> None:
            """Whoever is told that it did not go sends it again, as the publisher does; the id tells."""
            while True:
                with suppress(BusUnavailable):
                    return await bus.publish_directive(message)

        async def publish(lane: int) -> None:
            number = 0
            while not over.is_set():
                number += 1
                await insist(directive(LANES * number + lane, lane=lane))
                published.append(f"m{LANES * number + lane}")
                await asyncio.sleep(0.02)

        async def consume(lane: int) -> None:
            receiver = await bus.directives("ocr", lane)
            while not all_published.is_set() or len(received) < len(published):
                for delivery in await receiver.receive(messages_max=10, wait_ms=300):
                    try:
                        await settled(receiver, delivery)
                    except LockLost:
                        # It was completed, and the answer got lost: nobody gets it again.
                        assert delivery.locked_until_ms > wall_clock_ms()
                    received.append(delivery.message_id)

        publishing, consuming = (
            [asyncio.create_task(work(lane)) for lane in range(0, LANES, 4)] for work in (publish, consume)
        )
        for _ in range(3):
            await asyncio.sleep(3)
            async with asyncio.timeout(30):
                while emulator.connections < 2 * len(publishing):  # all who work are there again
                    await asyncio.sleep(0.05)
            emulator.drop()
        await asyncio.sleep(1)
        async with asyncio.timeout(60):
            while len(published) <= 100:  # a busy machine takes its time
                await asyncio.sleep(0.05)
        over.set()
        async with asyncio.timeout(60):
            await asyncio.gather(*publishing)
            all_published.set()
            await asyncio.gather(*consuming)
        assert emulator.dropped >= 3 * 8
        assert sorted(received) == sorted(published)
        assert len(set(published)) == len(published) > 100


# -- locks and limits --------------------------------------------------------------------------------------


async def test_a_lock_that_ran_out_settles_nothing() -> None:
    async with (
        serve(now_ms=wall_clock_ms, topology=topology(lock_ms=1_000)) as emulator,
        a_bus(emulator) as bus,
    ):
        receiver, other = await bus.directives("ocr", 0), await bus.directives("ocr", 0)
        await bus.publish_directive(directive(1))
        late = await one(receiver)
        current = await one(other)
        with pytest.raises(LockLost):
            await receiver.complete(late)
        assert current.delivery_count == 2


async def test_after_the_last_delivery_service_bus_puts_it_aside_and_says_why() -> None:
    rules = topology(deliveries_max=2)
    async with (
        serve(now_ms=wall_clock_ms, topology=rules) as emulator,
        a_bus(emulator, deliveries_max=2) as bus,
    ):
        receiver = await bus.directives("ocr", 0)
        await bus.publish_directive(directive(1))
        for left in (1, 0):
            delivery = await one(receiver)
            assert delivery.deliveries_left == left
            await receiver.give_back(delivery, delay_ms=0)
        assert await receiver.receive(messages_max=1, wait_ms=0) == []
        (dead,) = await receiver.dead_letters(messages_max=1)
        assert dead.reason == f"{DELIVERIES_EXHAUSTED}: delivered 2 times and never settled"


async def test_a_delay_ends_early_when_the_bus_is_closed(emulator: ServiceBusEmulator) -> None:
    async with a_bus(emulator) as bus, a_bus(emulator) as other:
        receiver = await bus.directives("ocr", 0)
        await bus.publish_directive(directive(1))
        await receiver.give_back(await one(receiver), delay_ms=600_000)
        heir = await other.directives("ocr", 0)
        assert await heir.receive(messages_max=1, wait_ms=0) == []
        await bus.close()
        assert (await one(heir)).delivery_count == 2


async def test_what_nobody_asks_for_is_not_locked(emulator: ServiceBusEmulator) -> None:
    async with a_bus(emulator) as bus:
        receiver, other = await bus.directives("ocr", 0), await bus.directives("ocr", 0)
        for number in range(3):
            await bus.publish_directive(directive(number))
        while await receiver.receive(messages_max=50, wait_ms=200):
            pass  # the last of these asked for many, and got none
        await bus.publish_directive(directive(9))
        assert (await one(other)).message_id == "m9"
