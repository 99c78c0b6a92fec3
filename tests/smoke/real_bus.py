"""A bus on a real namespace whose topics are this test's own: those that are there are deleted, and new ones
are made as they are needed, by what `lucius provision azure` makes them with."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from azure.servicebus.aio.management import ServiceBusAdministrationClient
from tests.conformance.bus_setups import DELIVERIES_MAX, GROUPS, LATE_MS, LOCK_MS, Opened, wall_clock_ms

from lucius.assembly.azure.identity import make_identity
from lucius.bus.port import DirectiveOut, Receiver, ReplyOut
from lucius.bus.service_bus.bus import ServiceBusBus
from lucius.bus.service_bus.connection import NamespaceAccess
from lucius.bus.service_bus.names import ServiceBusLimits
from lucius.core.routing import reply_topic, topic
from lucius.provision.apply import ProvisionTarget, ProvisionTask
from lucius.provision.plan import LOCK_SECONDS_MIN, BusPlan, Resource, wanted_bus
from lucius.provision.service_bus import ServiceBusTarget
from lucius.settings import Settings, read_settings

SCALE = LOCK_SECONDS_MIN * 1000 // LOCK_MS
MARK = "smoke"  # without it in its name a namespace is somebody's own
OURS = "global-bus-"


class MadeAsItComes:
    """A bus that has every topic and subscription made before it is used for the first time."""

    def __init__(self, bus: ServiceBusBus, place: ProvisionTarget) -> None:
        self._bus = bus
        self._place = place
        self._made: set[str] = set()
        self._turn = asyncio.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    async def publish_directive(self, directive: DirectiveOut) -> None:
        await self._make(topic(directive.lane), directive.service)
        await self._bus.publish_directive(directive)

    async def publish_reply(self, reply: ReplyOut) -> None:
        await self._make(reply_topic(reply.lane), "")
        await self._bus.publish_reply(reply)

    async def directives(self, service: str, lane: int) -> Receiver:
        await self._make(topic(lane), service)
        return await self._bus.directives(service, lane)

    async def replies(self, lane: int, *, group: str) -> Receiver:
        await self._make(reply_topic(lane), "")
        return await self._bus.replies(lane, group=group)

    async def _make(self, topic_name: str, service: str) -> None:
        async with self._turn:
            await make_topic(self._place, topic_name, service, self._made)


async def make_topic(place: ProvisionTarget, name: str, service: str, made: set[str]) -> None:
    jobs: list[ProvisionTask] = []
    for thing in _things(name, service):
        if thing.name not in made:
            made.add(thing.name)
            jobs.append(ProvisionTask(thing=thing))
    if jobs:
        assert await place.work(jobs) == {}


def _things(name: str, service: str) -> list[Resource]:
    found: dict[str, Resource] = {}
    for group in GROUPS:
        plan = BusPlan(
            services=(service,) if service else (),
            reply_subscription=group,
            lock_seconds=LOCK_SECONDS_MIN,
            deliveries_max=DELIVERIES_MAX,
        )
        found |= {thing.name: thing for thing in wanted_bus(plan) if thing.name.partition("/")[0] == name}
    return list(found.values())


@asynccontextmanager
async def real_bus(namespace: str) -> AsyncIterator[Opened]:
    named = "LUCIUS_SERVICEBUS_CONNECTION" if ";" in namespace else "LUCIUS_SERVICEBUS_NAMESPACE"
    settings = read_settings({named: namespace})
    assert MARK in settings.service_bus.place.partition(".")[0], f"the namespace is not called …{MARK}…"
    async with AsyncExitStack() as stack:
        access = await _access(settings, stack)
        await _delete_topics(access)
        place = ServiceBusTarget.open(access)
        stack.push_async_callback(place.close)
        async with opened_on(access, place) as ready:
            yield ready


@asynccontextmanager
async def opened_on(access: NamespaceAccess, place: ProvisionTarget) -> AsyncIterator[Opened]:
    made: set[str] = set()
    await make_topic(place, reply_topic(0), "", made)  # which a bus looks at when it is opened
    bus = await ServiceBusBus.open(
        access,
        now_ms=wall_clock_ms,
        limits=ServiceBusLimits(deliveries_max=DELIVERIES_MAX),
        reply_subscriptions={group: group for group in GROUPS},
    )

    async def wait(span_ms: int) -> None:
        late_ms = LATE_MS if span_ms >= LOCK_MS else 0
        await asyncio.sleep((span_ms + late_ms) * SCALE / 1000)

    making = MadeAsItComes(bus, place)
    making._made |= made
    try:
        yield Opened(bus=making, wait=wait, scale=SCALE)
    finally:
        await bus.close()


async def _access(settings: Settings, stack: AsyncExitStack) -> NamespaceAccess:
    asked = settings.service_bus
    if asked.connection_string is not None:
        return NamespaceAccess(connection_string=asked.connection_string)
    identity = await stack.enter_async_context(make_identity(settings.identity))
    return NamespaceAccess(namespace=asked.namespace, credential=identity)


async def _delete_topics(access: NamespaceAccess) -> None:
    if access.connection_string is not None:
        client = ServiceBusAdministrationClient.from_connection_string(access.connection_string)
    else:
        assert access.namespace is not None
        assert access.credential is not None
        client = ServiceBusAdministrationClient(access.namespace, access.credential)
    async with client:
        names = [each.name async for each in client.list_topics()]
        for name in names:
            if name.startswith(OURS):
                await client.delete_topic(name)
