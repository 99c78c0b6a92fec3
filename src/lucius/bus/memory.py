"""A broker in this process: for tests, simulation, and deployments of a single process.

In: messages, settlements. Out: locked messages, dead letters, or the port's own faults. Nothing outlives the
process. Locks and delays follow the clock that is passed in, which may be a virtual one; only the wait inside
`receive` is real time. The publish hook stands for what a network can do to a message: refuse it, lose it,
double it, take it and lose the answer, or be slow. It repeats nothing by id: that is the weakest a broker
may do, and services must live with it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from heapq import heappop, heappush

import msgspec

from lucius.bus.port import (
    DELIVERIES_EXHAUSTED,
    REASON_LENGTH_MAX,
    BusUnavailable,
    DeadLetter,
    Delivery,
    DirectiveOut,
    LockLost,
    ReplyOut,
    check_lane,
    check_out,
    check_service,
)
from lucius.bus.wake import WakeEvent
from lucius.core.routing import LANES

SERVICES_MAX = 1_000
SPIN_SECONDS_MIN = 0.001
EXPIRIES_SLACK = 64


class PublishFault(Enum):
    """What becomes of a message that is being published."""

    KEPT = "kept"
    REFUSED = "refused"  # not taken, and the sender gets the fault
    LOST = "lost"  # not taken, and the sender believes it was
    DOUBLED = "doubled"  # taken twice
    UNANSWERED = "unanswered"  # taken, and the sender believes it was not


Out = DirectiveOut | ReplyOut
PublishHook = Callable[[Out], Awaitable[PublishFault]]


class MemoryLimits(msgspec.Struct, frozen=True, kw_only=True):
    lock_ms: int = 30_000
    deliveries_max: int = 10
    messages_max: int = 10_000  # of one queue, whether they wait, are delayed or locked
    dead_letters_max: int = 1_000  # of one queue; the oldest go first
    largest_message_bytes: int = 1_048_576


class _Message:
    __slots__ = ("body", "deliveries", "message_id", "message_key", "sequence", "token")

    def __init__(self, out: Out, sequence: int) -> None:
        self.message_key = out.message_key
        self.message_id = out.message_id
        self.body = out.body
        self.token = out.token if isinstance(out, ReplyOut) else None
        self.sequence = sequence
        self.deliveries = 0


class _Queue:
    """What waits, is delayed, or is locked for one consumer of one lane. Does not wait: the time is an
    argument."""

    def __init__(self, name: str, lane: int, limits: MemoryLimits) -> None:
        self.bells: dict[WakeEvent, None] = {}  # of those who wait for something to take
        self.dead: deque[DeadLetter] = deque(maxlen=limits.dead_letters_max)
        self._name = name
        self._lane = lane
        self._limits = limits
        self._ready: list[tuple[int, _Message]] = []
        self._delayed: list[tuple[int, int, _Message]] = []
        self._locked: dict[str, tuple[int, _Message]] = {}
        self._expiries: list[tuple[int, str]] = []
        self._sequence = 0

    @property
    def depth(self) -> int:
        return len(self._ready) + len(self._delayed) + len(self._locked)

    @property
    def full(self) -> bool:
        return self.depth >= self._limits.messages_max

    def put(self, out: Out) -> None:
        self._sequence += 1
        heappush(self._ready, (self._sequence, _Message(out, self._sequence)))
        self.wake()

    def take(self, messages_max: int, now_ms: int) -> list[Delivery]:
        self.advance(now_ms)
        taken: list[Delivery] = []
        while self._ready and len(taken) < messages_max:
            _, message = heappop(self._ready)
            message.deliveries += 1
            lock = f"{self._name}:{message.sequence}:{message.deliveries}"
            taken.append(self._hold(lock, message, now_ms))
        return taken

    def extend(self, lock: str, now_ms: int) -> Delivery:
        return self._hold(lock, self.release(lock, now_ms), now_ms)

    def release(self, lock: str, now_ms: int) -> _Message:
        self.advance(now_ms)
        held = self._locked.pop(lock, None)
        if held is None:
            raise LockLost("the lock of this message has run out")
        return held[1]

    def again(self, message: _Message, at_ms: int, now_ms: int) -> None:
        """It was not settled: it comes again, in its old place, unless it has come too often."""
        if message.deliveries >= self._limits.deliveries_max:
            reason = f"{DELIVERIES_EXHAUSTED}: delivered {message.deliveries} times and never settled"
            self.put_aside(message, reason)
        elif at_ms > now_ms:
            heappush(self._delayed, (at_ms, message.sequence, message))
            self.wake()
        else:
            heappush(self._ready, (message.sequence, message))
            self.wake()

    def put_aside(self, message: _Message, reason: str) -> None:
        self.dead.append(
            DeadLetter(
                message_id=message.message_id,
                message_key=message.message_key,
                body=message.body,
                delivery_count=message.deliveries,
                reason=reason[:REASON_LENGTH_MAX],
            )
        )

    def advance(self, now_ms: int) -> None:
        """Lets run out what runs out by now."""
        while self._expiries and self._expiries[0][0] <= now_ms:
            until_ms, lock = heappop(self._expiries)
            held = self._locked.get(lock)
            if held is not None and held[0] == until_ms:
                del self._locked[lock]
                self.again(held[1], now_ms, now_ms)
        while self._delayed and self._delayed[0][0] <= now_ms:
            _, sequence, message = heappop(self._delayed)
            heappush(self._ready, (sequence, message))

    def next_ms(self) -> int | None:
        """When the next message may become free if no call is made until then."""
        while self._expiries:
            until_ms, lock = self._expiries[0]
            held = self._locked.get(lock)
            if held is not None and held[0] == until_ms:
                break
            heappop(self._expiries)  # it was settled or extended: no receiver need wake up for it
        times = [heap[0][0] for heap in (self._delayed, self._expiries) if heap]
        return min(times, default=None)

    def wake(self) -> None:
        for wake in self.bells:
            wake.set()

    def _hold(self, lock: str, message: _Message, now_ms: int) -> Delivery:
        until_ms = now_ms + self._limits.lock_ms
        self._locked[lock] = (until_ms, message)
        heappush(self._expiries, (until_ms, lock))
        if len(self._expiries) > EXPIRIES_SLACK + 2 * len(self._locked):
            # Most of them speak of locks that were settled or extended since.
            self._expiries = sorted((until, name) for name, (until, _) in self._locked.items())
        return Delivery(
            lane=self._lane,
            message_key=message.message_key,
            message_id=message.message_id,
            body=message.body,
            delivery_count=message.deliveries,
            deliveries_left=self._limits.deliveries_max - message.deliveries,
            locked_until_ms=until_ms,
            lock=lock,
            token=message.token,
        )


class MemoryBus:
    def __init__(
        self,
        *,
        now_ms: Callable[[], int],
        limits: MemoryLimits | None = None,
        reply_groups: Sequence[str] = ("lucius",),
        on_publish: PublishHook | None = None,
    ) -> None:
        self.down = False  # a test's switch: while it is on, every call fails
        self.on_publish = on_publish
        self._now_ms = now_ms
        self._limits = limits or MemoryLimits()
        self._services: dict[str, list[_Queue]] = {}
        self._groups = {group: self._queues(f"replies:{group}") for group in reply_groups}
        self._closed = False

    @property
    def largest_message_bytes(self) -> int:
        return self._limits.largest_message_bytes

    @property
    def knows_empty_at_once(self) -> bool:
        return True

    @property
    def fences(self) -> bool:
        return True

    @property
    def shared(self) -> bool:
        return False

    async def publish_directive(self, directive: DirectiveOut) -> None:
        check_out(directive, largest_message_bytes=self.largest_message_bytes)
        await self._publish(directive, lambda: [self._of_service(directive.service)[directive.lane]])

    async def publish_reply(self, reply: ReplyOut) -> None:
        check_out(reply, largest_message_bytes=self.largest_message_bytes)
        await self._publish(reply, lambda: [queues[reply.lane] for queues in self._groups.values()])

    async def directives(self, service: str, lane: int) -> "MemoryReceiver":
        check_service(service)
        check_lane(lane)
        self.check_up()
        return MemoryReceiver(self, self._of_service(service)[lane], now_ms=self._now_ms)

    async def replies(self, lane: int, *, group: str) -> "MemoryReceiver":
        check_lane(lane)
        if group not in self._groups:
            raise ValueError(f"this bus has no consumer group {group!r}")
        self.check_up()
        return MemoryReceiver(self, self._groups[group][lane], now_ms=self._now_ms)

    async def ping(self) -> None:
        self.check_up()

    async def close(self) -> None:
        """Ends every open `receive` with `BusUnavailable`."""
        self._closed = True
        for queues in (*self._services.values(), *self._groups.values()):
            for queue in queues:
                queue.wake()

    def directive_depth(self, service: str, lane: int) -> int:
        return self._services[service][lane].depth if service in self._services else 0

    def reply_depth(self, lane: int, *, group: str) -> int:
        return self._groups[group][lane].depth

    def check_up(self) -> None:
        if self._closed:
            raise BusUnavailable("the bus is closed")
        if self.down:
            raise BusUnavailable("the bus is down")

    async def _publish(self, out: Out, find: Callable[[], list[_Queue]]) -> None:
        self.check_up()
        fault = PublishFault.KEPT if self.on_publish is None else await self.on_publish(out)
        self.check_up()
        if fault is PublishFault.REFUSED:
            raise BusUnavailable("the bus refused the message")
        if fault is PublishFault.LOST:
            return
        queues = find()
        if any(queue.full for queue in queues):
            raise BusUnavailable(f"the queue is full: {self._limits.messages_max} messages")
        for queue in queues:
            queue.put(out)
            if fault is PublishFault.DOUBLED and not queue.full:
                queue.put(out)
        if fault is PublishFault.UNANSWERED:
            raise BusUnavailable("the bus did not answer")

    def _of_service(self, service: str) -> list[_Queue]:
        queues = self._services.get(service)
        if queues is None:
            if len(self._services) >= SERVICES_MAX:
                raise BusUnavailable(f"the bus knows {SERVICES_MAX} services, its limit")
            queues = self._services[service] = self._queues(f"directives:{service}")
        return queues

    def _queues(self, name: str) -> list[_Queue]:
        return [_Queue(f"{name}:{lane}", lane, self._limits) for lane in range(LANES)]


class MemoryReceiver:
    def __init__(self, bus: MemoryBus, queue: _Queue, *, now_ms: Callable[[], int]) -> None:
        self._bus = bus
        self._queue = queue
        self._now_ms = now_ms
        self._closed = False

    async def receive(self, *, messages_max: int, wait_ms: int) -> list[Delivery]:
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_ms / 1000
        wake, bells = WakeEvent(), self._queue.bells
        while True:
            self._check_up()
            taken = self._queue.take(messages_max, self._now_ms())
            left_seconds = until - loop.time()
            if taken or left_seconds <= 0:
                return taken
            wake.clear()
            bells[wake] = None
            try:
                await wake.wait(min(left_seconds, self._next_seconds()))
            finally:
                del bells[wake]

    async def complete(self, delivery: Delivery) -> None:
        self._check_up()
        self._queue.release(delivery.lock, self._now_ms())

    async def give_back(self, delivery: Delivery, *, delay_ms: int) -> None:
        self._check_up()
        now_ms = self._now_ms()
        message = self._queue.release(delivery.lock, now_ms)
        self._queue.again(message, now_ms + delay_ms, now_ms)

    async def extend(self, delivery: Delivery) -> Delivery:
        self._check_up()
        return self._queue.extend(delivery.lock, self._now_ms())

    async def dead_letter(self, delivery: Delivery, *, reason: str) -> None:
        self._check_up()
        self._queue.put_aside(self._queue.release(delivery.lock, self._now_ms()), reason)

    async def dead_letters(self, *, messages_max: int) -> list[DeadLetter]:
        self._check_up()
        self._queue.advance(self._now_ms())
        return list(self._queue.dead)[:messages_max]

    async def close(self) -> None:
        self._closed = True
        self._queue.wake()

    def _check_up(self) -> None:
        self._bus.check_up()
        if self._closed:
            raise BusUnavailable("the receiver is closed")

    def _next_seconds(self) -> float:
        next_ms = self._queue.next_ms()
        if next_ms is None:
            return float("inf")
        # A virtual clock may stand still: then this is a poll, and must not become a spin.
        return max(SPIN_SECONDS_MIN, (next_ms - self._now_ms()) / 1000)
