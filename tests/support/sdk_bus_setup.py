"""A service over a bus in memory, with a clock that stands still until it is told to move."""

from collections.abc import Callable
from typing import Any

import msgspec
from tests.sdk.test_sdk_runner import NoWorkspace, directive

from lucius.bus.memory import MemoryBus, MemoryLimits
from lucius.bus.port import Delivery, DirectiveOut
from lucius.core.routing import reply_topic
from lucius.sdk import Directive, Runner, Service, Task, messages, parse_directive
from lucius.sdk.bus_transport import BusTransport

Message = dict[str, Any]
SERVICE = "ocr"
LANE = 3
KEY = "tenant_a"
LOCK_MS = 30_000
QUICK = {"ACK": 0.3, "PROGRESS": 0.3, "RESULT": 5.0}


class Clock:
    def __init__(self) -> None:
        self.at_ms = 1_000_000

    def __call__(self) -> int:
        return self.at_ms


def a_bus(clock: Clock, **limits: int) -> MemoryBus:
    return MemoryBus(now_ms=clock, limits=MemoryLimits(lock_ms=LOCK_MS, **limits))


def a_transport(bus: MemoryBus, clock: Clock, **more: Any) -> BusTransport:
    return BusTransport(bus, SERVICE, now_ms=clock, **{"deadline_seconds": QUICK, **more})


def message(number: int = 1, *, lane: int = LANE, **more: Any) -> Message:
    return directive(number, reply_topic=reply_topic(lane), routing_key_used=KEY, **more)


async def give(bus: MemoryBus, number: int = 1, *, lane: int = LANE, **more: Any) -> None:
    await publish(bus, msgspec.json.encode(message(number, lane=lane, **more)), lane=lane)


async def publish(bus: MemoryBus, body: bytes, *, lane: int = LANE) -> None:
    out = DirectiveOut(service=SERVICE, lane=lane, message_key=KEY, message_id="id", body=body)
    await bus.publish_directive(out)


async def leased(
    transport: BusTransport, directives_max: int = 1, wait_seconds: float = 0.05
) -> list[Directive]:
    found = await transport.lease(max_directives=directives_max, wait_seconds=wait_seconds)
    parsed = [parse_directive(one) for one in found]
    return [one for one in parsed if one is not None]


async def replies(bus: MemoryBus, lane: int = LANE) -> list[Delivery]:
    receiver = await bus.replies(lane, group="lucius")
    taken = await receiver.receive(messages_max=1_000, wait_ms=0)
    for delivery in taken:
        await receiver.complete(delivery)
    return taken


def kinds(deliveries: list[Delivery]) -> list[str]:
    return [msgspec.json.decode(delivery.body)["type"] for delivery in deliveries]


def ack(of: Directive) -> Message:
    return messages.ack(of, 1)


def done(of: Directive) -> Message:
    return messages.succeeded(of, 1, None)


async def work(task: Task) -> dict[str, Any]:
    return {"uri": "mem://made"}


def a_runner(transport: BusTransport, clock: Clock, handler: Callable[[Task], Any] = work) -> Runner:
    return Runner(Service(SERVICE, handler), transport, NoWorkspace(), now_ms=clock, farewell_seconds=0.2)
