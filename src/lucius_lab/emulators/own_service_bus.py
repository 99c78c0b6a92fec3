"""The Service Bus emulator that a process brings along. What it carries ends with the process; the ledger has
everything that matters, and its timeouts bring back what was under way."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from lucius.assembly.bus import NoBus
from lucius.assembly.clock_and_ids import now_ms
from lucius.assembly.secrets import new_server_secret
from lucius.settings import Settings
from lucius_lab.emulators.service_bus.server import serve
from lucius_lab.emulators.service_bus.topology import SubscriptionRules, TopicRules, lucius_topology


@asynccontextmanager
async def own_service_bus(settings: Settings) -> AsyncIterator[Settings]:
    """Settings that lead to an emulator on a free loopback port, with a key made for it. Raises `NoBus`."""
    asked = settings.service_bus
    topology = lucius_topology(
        reply_groups=[asked.reply_subscription],
        subscription=SubscriptionRules(deliveries_max=asked.deliveries_max, sessions=asked.sessions),
        topic_rules=TopicRules(),
        largest_message_bytes=asked.largest_message_bytes,
    )
    running = serve(now_ms=now_ms, topology=topology, key=new_server_secret())
    try:
        emulator = await running.__aenter__()
    except OSError as fault:
        raise NoBus(f"Cannot start a Service Bus emulator: {fault.strerror}.") from None
    try:
        here = msgspec.structs.replace(asked, connection_string=emulator.connection_string, namespace=None)
        yield msgspec.structs.replace(settings, service_bus=here)
    finally:
        await running.__aexit__(None, None, None)
