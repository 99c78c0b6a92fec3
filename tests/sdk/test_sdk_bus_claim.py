"""Who may work on a directive: lost locks, lost processes, outages, and a bus that does not fence."""

import asyncio

import pytest
from tests.support.sdk_bus_setup import (
    LANE,
    LOCK_MS,
    QUICK,
    SERVICE,
    Clock,
    a_bus,
    a_transport,
    ack,
    done,
    give,
    kinds,
    leased,
    replies,
)

from lucius.bus.memory import MemoryBus, MemoryLimits, PublishFault
from lucius.bus.port import Delivery, DirectiveOut, ReplyOut
from lucius.sdk import DeliveryFailed

# Losing the lock, losing the process


async def test_a_crash_before_the_ack_brings_the_same_attempt_to_another_process() -> None:
    clock = Clock()
    bus = a_bus(clock)
    await give(bus)
    crashed, other = a_transport(bus, clock), a_transport(bus, clock)
    (first,) = await leased(crashed)
    clock.at_ms += LOCK_MS
    (again,) = await leased(other)
    assert again.key == first.key
    assert (await other.reply(again, ack(again))).outcome == "sent"
    await crashed.aclose()
    await other.aclose()


async def test_who_lost_the_lock_does_not_begin() -> None:
    clock = Clock()
    bus = a_bus(clock)
    await give(bus)
    slow, other = a_transport(bus, clock), a_transport(bus, clock)
    (first,) = await leased(slow)
    clock.at_ms += LOCK_MS
    (again,) = await leased(other)
    late = await slow.reply(first, ack(first))
    assert (late.outcome, late.stop) == ("stale", True)
    assert (await other.reply(again, ack(again))).outcome == "sent"
    assert bus.directive_depth(SERVICE, LANE) == 0
    await slow.aclose()
    await other.aclose()


async def test_an_ack_that_a_long_outage_keeps_back_leaves_the_work_to_others() -> None:
    clock = Clock()
    bus = a_bus(clock)
    await give(bus)
    transport = a_transport(bus, clock)
    (taken,) = await leased(transport)
    bus.down = True
    assert (await transport.reply(taken, ack(taken))).outcome == "stale"
    bus.down = False
    assert await replies(bus) == []
    clock.at_ms += LOCK_MS
    (again,) = await leased(transport)
    assert again.key == taken.key
    await transport.aclose()


async def test_an_ack_outlives_a_short_outage() -> None:
    clock = Clock()
    bus = a_bus(clock)
    await give(bus)
    transport = a_transport(bus, clock, deadline_seconds={**QUICK, "ACK": 5.0})
    (taken,) = await leased(transport)
    bus.down = True
    acknowledging = asyncio.create_task(transport.reply(taken, ack(taken)))
    await asyncio.sleep(0.02)
    bus.down = False
    assert (await acknowledging).outcome == "sent"
    assert kinds(await replies(bus)) == ["ACK"]
    assert bus.directive_depth(SERVICE, LANE) == 0
    await transport.aclose()


class Unfenced(MemoryBus):
    """Settles whatever it is asked to, like a broker that takes a late acknowledgement."""

    @property
    def fences(self) -> bool:
        return False


async def test_without_a_fence_an_outage_while_settling_leaves_the_work_to_others() -> None:
    clock = Clock()
    bus = Unfenced(now_ms=clock, limits=MemoryLimits(lock_ms=LOCK_MS))
    await give(bus)
    transport = a_transport(bus, clock, deadline_seconds={**QUICK, "ACK": 5.0})
    (taken,) = await leased(transport)
    bus.down = True
    acknowledging = asyncio.create_task(transport.reply(taken, ack(taken)))
    await asyncio.sleep(0)
    bus.down = False
    assert (await acknowledging).outcome == "stale"
    assert await replies(bus) == []
    await transport.aclose()


async def test_without_a_fence_a_settlement_that_came_late_claims_nothing() -> None:
    clock = Clock()
    bus = Unfenced(now_ms=clock, limits=MemoryLimits(lock_ms=LOCK_MS))
    await give(bus)
    transport = a_transport(bus, clock)
    (taken,) = await leased(transport)
    ((receiver, _),) = transport._held[taken.key]
    settle = receiver.complete

    async def settle_slowly(delivery: Delivery) -> None:
        await settle(delivery)
        clock.at_ms += LOCK_MS

    receiver.complete = settle_slowly  # type: ignore[method-assign]
    assert (await transport.reply(taken, ack(taken))).outcome == "stale"
    assert await replies(bus) == []
    await transport.aclose()


async def test_an_ack_that_does_not_get_through_is_said_so_and_the_directive_stays_ours() -> None:
    clock = Clock()
    bus = a_bus(clock)
    await give(bus)
    transport = a_transport(bus, clock)
    (taken,) = await leased(transport)

    async def hook(out: DirectiveOut | ReplyOut) -> PublishFault:
        return PublishFault.REFUSED

    bus.on_publish = hook
    with pytest.raises(DeliveryFailed, match="ACK"):
        await transport.reply(taken, ack(taken))
    bus.on_publish = None
    assert bus.directive_depth(SERVICE, LANE) == 0
    assert (await transport.reply(taken, done(taken))).outcome == "sent"
    await transport.aclose()
