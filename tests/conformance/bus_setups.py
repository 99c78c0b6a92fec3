"""How each bus is opened for the common suite."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count

import msgspec
import pytest

from lucius.bus.memory import MemoryBus, MemoryLimits
from lucius.bus.nats.bus import NatsBus
from lucius.bus.nats.names import NatsLimits
from lucius.bus.nats.server import NatsServer
from lucius.bus.port import Bus
from lucius.bus.service_bus.bus import ServiceBusBus
from lucius.bus.service_bus.connection import NamespaceAccess
from lucius.bus.service_bus.names import ServiceBusLimits
from lucius_lab.emulators.service_bus.server import serve
from lucius_lab.emulators.service_bus.topology import SubscriptionRules, TopicRules, lucius_topology

KINDS = (
    "memory",
    pytest.param("nats", marks=pytest.mark.xdist_group("nats")),
    pytest.param("servicebus", marks=pytest.mark.xdist_group("servicebus")),
)
LOCK_MS = 1_000
DELIVERIES_MAX = 3
GROUPS = ("lucius", "auditors")
# A server's own clock lets locks run out a little later than ours says.
LATE_MS = 100

Wait = Callable[[int], Awaitable[None]]

# Its SDK takes half a second to open anything, and longer on a busy machine.
SLOW = 3

_numbers = count(1)


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    bus: Bus
    wait: Wait
    scale: int = 1
    """How much longer locks are than `LOCK_MS`; what `wait` is told is longer by as much."""


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


@asynccontextmanager
async def opened(kind: str, request: pytest.FixtureRequest) -> AsyncIterator[Opened]:
    if kind == "memory":
        async with _memory() as ready:
            yield ready
    elif kind == "servicebus":
        async with service_bus() as ready:
            yield ready
    else:
        server: NatsServer = request.getfixturevalue("nats_server")
        async with _nats(server) as ready:
            yield ready


@asynccontextmanager
async def _memory() -> AsyncIterator[Opened]:
    clock = [1_000_000]
    limits = MemoryLimits(lock_ms=LOCK_MS, deliveries_max=DELIVERIES_MAX, largest_message_bytes=65_536)
    bus = MemoryBus(now_ms=lambda: clock[0], limits=limits, reply_groups=GROUPS)

    async def wait(span_ms: int) -> None:
        clock[0] += span_ms

    yield Opened(bus=bus, wait=wait)
    await bus.close()


@asynccontextmanager
async def _nats(server: NatsServer) -> AsyncIterator[Opened]:
    """Streams of its own for each test, on one server."""
    await server.ready()
    bus = await NatsBus.open(
        [server.url],
        now_ms=wall_clock_ms,
        limits=NatsLimits(lock_ms=LOCK_MS, deliveries_max=DELIVERIES_MAX),
        reply_groups=GROUPS,
        prefix=f"test{next(_numbers)}",
    )

    async def wait(span_ms: int) -> None:
        late_ms = LATE_MS if span_ms >= LOCK_MS else 0
        await asyncio.sleep((span_ms + late_ms) / 1000)

    yield Opened(bus=bus, wait=wait)
    await bus.close()


@asynccontextmanager
async def service_bus(*, sessions: bool = False) -> AsyncIterator[Opened]:
    """An emulator of its own for each test, through the real SDK."""
    rules = SubscriptionRules(lock_ms=LOCK_MS * SLOW, deliveries_max=DELIVERIES_MAX, sessions=sessions)
    topology = lucius_topology(reply_groups=GROUPS, subscription=rules, topic_rules=TopicRules())
    async with serve(now_ms=wall_clock_ms, topology=topology) as emulator:
        bus = await ServiceBusBus.open(
            NamespaceAccess(connection_string=emulator.connection_string),
            now_ms=wall_clock_ms,
            limits=ServiceBusLimits(deliveries_max=DELIVERIES_MAX, sessions=sessions),
            reply_subscriptions={group: group for group in GROUPS},
        )

        async def wait(span_ms: int) -> None:
            late_ms = LATE_MS if span_ms >= LOCK_MS else 0
            await asyncio.sleep((span_ms + late_ms) * SLOW / 1000)

        yield Opened(bus=bus, wait=wait, scale=SLOW)
        await bus.close()
