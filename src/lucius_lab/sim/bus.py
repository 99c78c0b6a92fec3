"""The broker as a simulated process sees it: the real in-process bus, with a network in between.

`SharedBus` is the broker that all processes share; each process has a `SimBus` of its own. A message may be
lost after the broker took it, come twice, come late, or overtake others; a call may fail before it took
effect or after. A broker promises no order and at least one delivery; that it loses what it took is what ACK
timeouts and leases are for.
"""

from collections.abc import Awaitable, Callable
from functools import partial

from lucius.bus.memory import MemoryBus
from lucius.bus.port import BusUnavailable, DeadLetter, Delivery, DirectiveOut, Receiver, ReplyOut
from lucius_lab.sim.context import LATENCIES, ProcessGone, SimContext
from lucius_lab.sim.faults import FaultKind, Site
from lucius_lab.sim.loop import Process
from lucius_lab.sim.watch import Violation

Out = DirectiveOut | ReplyOut

DELAY_SECONDS_MAX = 8.0
REORDER_SECONDS_MAX = 0.5


class SimBus:
    fences = True
    shared = True
    knows_empty_at_once = True

    def __init__(self, context: SimContext, inner: MemoryBus, process: Process, broker: Process) -> None:
        """`broker`: the process that messages are with while they are on their way."""
        self._context = context
        self._inner = inner
        self._process = process
        self._broker = broker

    @property
    def largest_message_bytes(self) -> int:
        return self._inner.largest_message_bytes

    async def publish_directive(self, directive: DirectiveOut) -> None:
        if self._process.dead:
            raise ProcessGone
        if self._context.watch is not None:
            try:
                self._context.watch.published(directive, now_ms=self._context.loop.now_ms())
            except Violation as violation:
                self._context.broken(violation)
        await self._publish(directive)

    async def publish_reply(self, reply: ReplyOut) -> None:
        await self._publish(reply)

    async def directives(self, service: str, lane: int) -> "SimReceiver":
        receiver = await self._inner.directives(service, lane)
        return SimReceiver(self._context, receiver, self._process, watched=False)

    async def replies(self, lane: int, *, group: str) -> "SimReceiver":
        receiver = await self._inner.replies(lane, group=group)
        return SimReceiver(self._context, receiver, self._process, watched=True)

    async def ping(self) -> None:
        await self._inner.ping()

    async def close(self) -> None:
        pass

    async def _publish(self, out: Out) -> None:
        context, process, faults = self._context, self._process, self._context.faults
        if process.dead:
            raise ProcessGone
        kind = faults.at(Site.PUBLISH, process)
        chance, number = faults.entropy, faults.number
        if chance & 1:
            await context.loop.pause(LATENCIES[chance >> 1 & 1023])
        context.trace.act(process, "publish", out.message_id)
        if kind is None:
            await self._put(out)
            return
        if kind is FaultKind.CRASH_BEFORE:
            await context.crash_here(kind, process, f"publishing {out.message_id}", number)
        context.fault(kind, process, out.message_id, number)
        if kind is FaultKind.BUS_UNAVAILABLE_BEFORE:
            raise BusUnavailable("the bus did not answer")
        if kind is FaultKind.BUS_DROP:
            return
        if kind is FaultKind.BUS_DELAY or kind is FaultKind.BUS_REORDER:
            span = DELAY_SECONDS_MAX if kind is FaultKind.BUS_DELAY else REORDER_SECONDS_MAX
            self._later(out, span * (chance >> 11 & 1023) / 1023)
            return
        await self._put(out)
        if kind is FaultKind.BUS_DUPLICATE:
            self._later(out, REORDER_SECONDS_MAX * (chance >> 11 & 1023) / 1023)
        elif kind is FaultKind.BUS_UNAVAILABLE_AFTER:
            raise BusUnavailable("the bus did not answer")
        elif kind is FaultKind.CRASH_AFTER:
            context.kill(process)
            await context.loop.never()

    def _later(self, out: Out, seconds: float) -> None:
        async def arrive() -> None:
            await self._context.loop.pause(seconds)
            await self._put(out)

        self._broker.spawn(arrive(), name="message")

    async def _put(self, out: Out) -> None:
        if isinstance(out, DirectiveOut):
            await self._inner.publish_directive(out)
        else:
            await self._inner.publish_reply(out)


class SimReceiver:
    def __init__(self, context: SimContext, inner: Receiver, process: Process, *, watched: bool) -> None:
        self._context = context
        self._inner = inner
        self._process = process
        self._watched = watched

    async def receive(self, *, messages_max: int, wait_ms: int) -> list[Delivery]:
        context, process = self._context, self._process
        if process.dead:
            raise ProcessGone
        kind = context.faults.at(Site.RECEIVE, process)
        number = context.faults.number
        if kind is FaultKind.BUS_UNAVAILABLE_BEFORE:
            context.fault(kind, process, "receiving", number)
            raise BusUnavailable("the bus did not answer")
        taken = await self._inner.receive(messages_max=messages_max, wait_ms=wait_ms)
        for delivery in taken:
            context.trace.act(process, "receive", delivery.message_id)
        if kind is None:
            return taken
        if kind is FaultKind.CRASH_AFTER and taken:
            await context.crash_here(kind, process, "receiving", number)
        if kind is FaultKind.BUS_UNAVAILABLE_AFTER and taken:
            context.fault(kind, process, "receiving", number)
            raise BusUnavailable("the bus did not answer")
        return taken

    async def complete(self, delivery: Delivery) -> None:
        await self._settle("complete", delivery, partial(self._complete, delivery))

    async def _complete(self, delivery: Delivery) -> None:
        await self._inner.complete(delivery)
        if self._watched and self._context.watch is not None:
            try:
                self._context.watch.settled(delivery.body, now_ms=self._context.loop.now_ms())
            except Violation as violation:
                self._context.broken(violation)

    async def give_back(self, delivery: Delivery, *, delay_ms: int) -> None:
        await self._settle("give back", delivery, partial(self._inner.give_back, delivery, delay_ms=delay_ms))

    async def dead_letter(self, delivery: Delivery, *, reason: str) -> None:
        await self._settle("dead-letter", delivery, partial(self._inner.dead_letter, delivery, reason=reason))

    async def _settle(self, verb: str, delivery: Delivery, act: Callable[[], Awaitable[None]]) -> None:
        context, process, faults = self._context, self._process, self._context.faults
        if process.dead:
            raise ProcessGone
        kind = faults.at(Site.SETTLE, process)
        chance, number = faults.entropy, faults.number
        if chance & 1:
            await context.loop.pause(LATENCIES[chance >> 1 & 1023])
        if kind is None:
            await act()
            context.trace.act(process, verb, delivery.message_id)
            return
        what = f"{verb} {delivery.message_id}"
        if kind is FaultKind.CRASH_BEFORE:
            await context.crash_here(kind, process, what, number)
        if kind is FaultKind.BUS_UNAVAILABLE_BEFORE:
            context.fault(kind, process, what, number)
            raise BusUnavailable("the bus did not answer")
        await act()
        context.trace.act(process, verb, delivery.message_id)
        if kind is FaultKind.CRASH_AFTER:
            await context.crash_here(kind, process, what, number)
        if kind is FaultKind.BUS_UNAVAILABLE_AFTER:
            context.fault(kind, process, what, number)
            raise BusUnavailable("the bus did not answer")

    async def extend(self, delivery: Delivery) -> Delivery:
        if self._process.dead:
            raise ProcessGone
        return await self._inner.extend(delivery)

    async def dead_letters(self, *, messages_max: int) -> list[DeadLetter]:
        return await self._inner.dead_letters(messages_max=messages_max)

    async def close(self) -> None:
        if not self._process.dead:
            await self._inner.close()
