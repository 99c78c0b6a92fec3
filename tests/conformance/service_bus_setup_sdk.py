"""An emulator of Service Bus and a bus over it, as the tests of that bus need them."""

import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from tests.conformance.bus_setups import wall_clock_ms

from lucius.bus.port import Delivery, DirectiveOut, Receiver
from lucius.bus.service_bus.bus import ServiceBusBus
from lucius.bus.service_bus.connection import NamespaceAccess
from lucius.bus.service_bus.names import ServiceBusLimits
from lucius_lab.emulators.service_bus.server import ServiceBusEmulator
from lucius_lab.emulators.service_bus.topology import (
    SubscriptionRules,
    TopicRules,
    Topology,
    lucius_topology,
)

GROUP = "lucius-invoker"

# When a connection ends while it is made, the SDK leaves its socket to the garbage collector, which says so.
SOCKETS_ARE_LEFT = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@contextmanager
def sockets_collected() -> Iterator[None]:
    """So that no other test hears of them."""
    yield
    gc.collect()


def topology(
    *, lock_ms: int = 30_000, deliveries_max: int = 10, sessions: bool = False, **more: Any
) -> Topology:
    rules = SubscriptionRules(lock_ms=lock_ms, deliveries_max=deliveries_max, sessions=sessions)
    return lucius_topology(
        reply_groups=[GROUP], subscription=rules, topic_rules=TopicRules(duplicates_ms=60_000), **more
    )


@asynccontextmanager
async def a_bus(emulator: ServiceBusEmulator, **limits: Any) -> AsyncIterator[ServiceBusBus]:
    bus = await ServiceBusBus.open(
        NamespaceAccess(connection_string=emulator.connection_string),
        now_ms=wall_clock_ms,
        limits=ServiceBusLimits(**limits),
    )
    try:
        yield bus
    finally:
        await bus.close()


def directive(number: int, lane: int = 0, body: bytes = b"{}", key: str = "k") -> DirectiveOut:
    return DirectiveOut(service="ocr", lane=lane, message_key=key, message_id=f"m{number}", body=body)


async def one(receiver: Receiver) -> Delivery:
    (delivery,) = await receiver.receive(messages_max=1, wait_ms=10_000)
    return delivery


async def all_ids(receiver: Receiver, wait_ms: int = 500) -> list[str]:
    found: list[str] = []
    while got := await receiver.receive(messages_max=100, wait_ms=wait_ms):
        for delivery in got:
            await receiver.complete(delivery)
            found.append(delivery.message_id)
    return found
