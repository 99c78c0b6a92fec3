"""One consumer's view of one lane, over Service Bus: receive, settle, look at dead letters.

In: calls of one consumer. Out: locked messages and dead letters. A receiver of the SDK is used by one call at
a time, because it reads its connection in whichever call is under way: a settlement interrupts a receive that
only waits, which then goes on. A lone message is asked for alone, since the SDK lets what it has lie for a
while when it hopes for more; where messages were waiting, twice as many are asked for next time. What is
asked for and did not come is taken back before a call ends, so that nothing gets locked in between.

A delay is kept here, by renewing the lock until it has passed: Service Bus has none. A crash ends it early.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Final, TypeVar

import msgspec
import structlog
from azure.servicebus import ServiceBusReceivedMessage, ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusReceiver as SdkReceiver

from lucius.bus.port import (
    REASON_LENGTH_MAX,
    BusError,
    BusUnavailable,
    DeadLetter,
    Delivery,
    LockLost,
    MessageTooLarge,
)
from lucius.bus.service_bus.connection import NamespaceConnection, ServiceBusRefused, fault_of
from lucius.bus.service_bus.message import (
    addressee_of,
    as_dead_letter,
    body_of,
    in_ms,
    sent_id,
    texts,
    until_ms,
)
from lucius.bus.service_bus.names import ID_PROPERTY, KEY_PROPERTY, TOKEN_PROPERTY, ServiceBusLimits

SLICE_SECONDS_MAX: Final = 1.0
SLICE_SECONDS_MIN: Final = 0.05  # what is there must have the time to come
GATHERING_SECONDS: Final = 0.05  # how long the rest of a batch may take
GRACE_SECONDS: Final = 0.02
BACKLOG_SECONDS: Final = 0.02  # what came faster had been waiting
AT_ONCE_SECONDS: Final = 0.000_001
SETTLE_SECONDS_MAX: Final = 10.0
ASK_MAX: Final = 100
PEEKED_MAX: Final = 100
RENEW_MS_MIN: Final = 500
HELD_SLACK: Final = 512

T = TypeVar("T")
Call = Callable[[SdkReceiver], Awaitable[T]]

log = structlog.get_logger("lucius.bus.service_bus")


class LaneAddress(msgspec.Struct, frozen=True, kw_only=True):
    """`addressed`: what comes here says whom it is for, so that copies for others are known."""

    lane: int
    topic: str
    subscription: str
    addressed: bool

    def __str__(self) -> str:
        return f"subscription {self.subscription} of topic {self.topic}"


class ServiceBusReceiver:
    """Made by `ServiceBusBus`, which opens it."""

    def __init__(
        self,
        link: NamespaceConnection,
        place: LaneAddress,
        limits: ServiceBusLimits,
        *,
        now_ms: Callable[[], int],
        on_close: Callable[["ServiceBusReceiver"], None],
    ) -> None:
        self._link = link
        self._place = place
        self._limits = limits
        self._now_ms = now_ms
        self._on_close = on_close
        self._sdk: SdkReceiver | None = None
        self._turn = asyncio.Lock()  # its holder may use the SDK's receiver
        self._wanted = 0  # how many wait for a turn that a receive must not keep from them
        self._slice: asyncio.Task[list[ServiceBusReceivedMessage]] | None = None
        self._ask = 1
        self._undelivered = False  # whether Service Bus may send messages whose receive has ended
        self._held: dict[str, ServiceBusReceivedMessage] = {}
        self._delayed: dict[str, asyncio.Task[None]] = {}
        self._closing = asyncio.Event()

    async def open(self) -> None:
        async with self._turn:
            await self._opened()

    async def receive(self, *, messages_max: int, wait_ms: int) -> list[Delivery]:
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_ms / 1000
        self._drop_lost()
        try:
            while True:
                seconds = min(max(until - loop.time(), SLICE_SECONDS_MIN), SLICE_SECONDS_MAX)
                taken = await self._next(messages_max, seconds)
                if taken or loop.time() >= until:
                    return taken
        finally:
            if self._undelivered:
                await self._take_back()

    async def complete(self, delivery: Delivery) -> None:
        message = self._message(delivery)
        await self._use(lambda sdk: sdk.complete_message(message))
        self._held.pop(delivery.lock, None)

    async def give_back(self, delivery: Delivery, *, delay_ms: int) -> None:
        message = self._message(delivery)
        if delay_ms > 0 and len(self._delayed) < self._limits.delayed_max:
            self._check_up()
            if self._until_ms(message) <= self._now_ms():
                raise LockLost("the lock of this message has run out")
            task = asyncio.create_task(self._abandon_later(message, delay_ms))
            self._delayed[delivery.lock] = task
            task.add_done_callback(lambda _: self._delayed.pop(delivery.lock, None))
        else:
            await self._use(lambda sdk: sdk.abandon_message(message))
        self._held.pop(delivery.lock, None)

    async def extend(self, delivery: Delivery) -> Delivery:
        message = self._message(delivery)
        until = await self._use(lambda sdk: self._renew(sdk, message))
        return msgspec.structs.replace(delivery, locked_until_ms=in_ms(until))

    async def dead_letter(self, delivery: Delivery, *, reason: str) -> None:
        message = self._message(delivery)
        text = reason[:REASON_LENGTH_MAX]
        await self._use(lambda sdk: sdk.dead_letter_message(message, reason=text))
        self._held.pop(delivery.lock, None)

    async def dead_letters(self, *, messages_max: int) -> list[DeadLetter]:
        self._check_up()
        return await read_dead_letters(self._link, self._place, messages_max=messages_max)

    async def close(self) -> None:
        """What was given back with a delay comes again at once."""
        if self._closing.is_set():
            return
        self._closing.set()
        if self._delayed:
            await asyncio.wait(set(self._delayed.values()), timeout=SETTLE_SECONDS_MAX)
        self._interrupt()
        self._drop()
        self._on_close(self)

    # -- receiving -----------------------------------------------------------------------------------------

    async def _next(self, messages_max: int, seconds: float) -> list[Delivery]:
        """What comes within one slice of time; nothing if another call needs the turn."""
        asked = max(1, min(messages_max, self._ask))
        async with self._turn:
            self._check_up()
            sdk = await self._opened()
            if self._wanted:
                return []
            began = asyncio.get_running_loop().time()
            try:
                got = await self._receive(sdk, asked, seconds)
            except BusUnavailable as fault:
                self._drop()
                if isinstance(fault, ServiceBusRefused):
                    raise
                return []  # the next slice finds out whether a new connection can be had
        waited_seconds = asyncio.get_running_loop().time() - began
        if len(got) < asked:
            self._ask = max(1, len(got))
        elif waited_seconds < BACKLOG_SECONDS:
            self._ask = min(2 * asked, ASK_MAX)
        looked_at = [self._hold(message) for message in await self._ours(got)]
        return [delivery for delivery in looked_at if delivery is not None]

    async def _ours(self, got: list[ServiceBusReceivedMessage]) -> list[ServiceBusReceivedMessage]:
        """Without copies of what is for other services: a new subscription takes everything until it has its
        rule, and the addressed service has a copy of its own."""
        if not self._place.addressed:
            return got  # whatever a service writes on its replies
        ours = [message for message in got if addressee_of(message) in (None, self._place.subscription)]
        for message in got:
            if message not in ours:
                await self._use(lambda sdk, message=message: sdk.complete_message(message))  # type: ignore[misc]
        return ours

    async def _receive(self, sdk: SdkReceiver, asked: int, seconds: float) -> list[ServiceBusReceivedMessage]:
        self._undelivered = True
        receiving = sdk.receive_messages(max_message_count=asked, max_wait_time=seconds)
        task = self._slice = asyncio.create_task(receiving)
        # The SDK reads for a fifth of a second whatever one asks; a read may be cut off at any point.
        patience = seconds if asked == 1 else min(seconds, GATHERING_SECONDS)
        try:
            await asyncio.wait({task}, timeout=patience + GRACE_SECONDS)
            task.cancel()
            await _ended(task)
        except asyncio.CancelledError:
            task.cancel()
            await _ended(task)
            if not task.cancelled() and task.exception() is None and task.result():
                self._link.chore(self._abandon_all(task.result()))
            raise
        finally:
            self._slice = None
        if task.cancelled():
            # What came before the cut lies in the SDK: this asks Service Bus for nothing.
            task = asyncio.create_task(
                sdk.receive_messages(max_message_count=asked, max_wait_time=AT_ONCE_SECONDS)
            )
            await _ended(task)
        if (fault := task.exception()) is not None:
            raise fault_of(fault, f"{self._place}") from None
        got = task.result()
        self._undelivered = len(got) < asked
        return got

    async def _take_back(self) -> None:
        """Says that nothing more is wanted. The SDK does so only when a receiver is closed, so this reaches
        into it; should it have changed, the receiver is closed instead, and opened again when needed."""
        self._wanted += 1
        try:
            async with self._turn:
                self._undelivered = False
                flow = getattr(getattr(getattr(self._sdk, "_handler", None), "_link", None), "flow", None)
                if flow is None:
                    self._drop()
                    return
                try:
                    await flow(link_credit=0, drain=True)
                except Exception:
                    self._drop()
        finally:
            self._wanted -= 1

    def _hold(self, message: ServiceBusReceivedMessage) -> Delivery | None:
        """None for a message that lay on its way until its lock ran out: it comes again."""
        locked_until_ms = self._until_ms(message)
        if locked_until_ms <= self._now_ms():
            return None
        count = (message.delivery_count or 0) + 1
        properties = texts(message.application_properties)
        lock = str(message.lock_token)
        self._held[lock] = message
        return Delivery(
            lane=self._place.lane,
            message_key=properties.get(KEY_PROPERTY, ""),
            message_id=properties.get(ID_PROPERTY, sent_id(message)),
            body=body_of(message),
            delivery_count=count,
            deliveries_left=max(0, self._limits.deliveries_max - count),
            locked_until_ms=locked_until_ms,
            lock=lock,
            token=properties.get(TOKEN_PROPERTY),
        )

    # -- settling ------------------------------------------------------------------------------------------

    async def _use(self, call: Call[T], *, closing: bool = False) -> T:
        """Calls the SDK's receiver, once more over a new connection if that one broke."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SETTLE_SECONDS_MAX
        self._wanted += 1
        try:
            while True:
                self._interrupt()
                async with self._turn:
                    if not closing:
                        self._check_up()
                    sdk = await self._opened()
                    try:
                        async with asyncio.timeout_at(deadline):
                            return await call(sdk)
                    except Exception as fault:
                        known = fault_of(fault, f"{self._place}")
                        if isinstance(known, BusUnavailable):
                            self._drop()
                        if not isinstance(known, BusUnavailable) or loop.time() >= deadline:
                            raise known from None
        finally:
            self._wanted -= 1

    async def _abandon_later(self, message: ServiceBusReceivedMessage, delay_ms: int) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + delay_ms / 1000
        try:
            while not self._closing.is_set() and (left := end - loop.time()) > 0:
                half_ms = max(RENEW_MS_MIN, (self._until_ms(message) - self._now_ms()) // 2)
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left, half_ms / 1000)):
                        await self._closing.wait()
                if not self._closing.is_set() and loop.time() < end:
                    await self._use(lambda sdk: self._renew(sdk, message))
            await self._use(lambda sdk: sdk.abandon_message(message), closing=True)
        except (BusError, MessageTooLarge) as fault:
            log.warning("delay_cut_short", place=str(self._place), error=str(fault))  # its lock runs out

    async def _abandon_all(self, messages: list[ServiceBusReceivedMessage]) -> None:
        for message in messages:
            with suppress(BusError):
                await self._use(partial(SdkReceiver.abandon_message, message=message), closing=True)

    # -- what a lock is ------------------------------------------------------------------------------------

    def _until_ms(self, message: ServiceBusReceivedMessage) -> int:
        return until_ms(message)

    async def _renew(self, sdk: SdkReceiver, message: ServiceBusReceivedMessage) -> datetime:
        return await sdk.renew_message_lock(message)

    # -- the SDK's receiver --------------------------------------------------------------------------------

    async def _opened(self) -> SdkReceiver:
        if self._sdk is None:
            self._sdk = await self._link.open_receiver(self._place.topic, self._place.subscription)
        return self._sdk

    def _interrupt(self) -> None:
        if self._slice is not None:
            self._slice.cancel()

    def _drop(self) -> None:
        self._undelivered = False
        if self._sdk is not None:
            self._link.discard(self._sdk)
            self._sdk = None

    def _message(self, delivery: Delivery) -> ServiceBusReceivedMessage:
        self._check_up()
        message = self._held.get(delivery.lock)
        if message is None:
            raise LockLost("this delivery was settled, or its lock has run out")
        return message

    def _drop_lost(self) -> None:
        if len(self._held) > HELD_SLACK:
            now_ms = self._now_ms()
            self._held = {lock: one for lock, one in self._held.items() if self._until_ms(one) > now_ms}

    def _check_up(self) -> None:
        self._link.check_up()
        if self._closing.is_set():
            raise BusUnavailable("the receiver is closed")


async def _ended(task: "asyncio.Task[list[ServiceBusReceivedMessage]]") -> None:
    """Ends the receive under way early; it takes no longer than a slice anyway."""
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait({task})


async def read_dead_letters(
    link: NamespaceConnection, place: LaneAddress, *, messages_max: int
) -> list[DeadLetter]:
    sdk = await link.open_receiver(place.topic, place.subscription, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    found: list[ServiceBusReceivedMessage] = []
    try:
        async with asyncio.timeout(SETTLE_SECONDS_MAX):
            while len(found) < messages_max:
                after = (found[-1].sequence_number or 0) + 1 if found else 1
                count = min(PEEKED_MAX, messages_max - len(found))
                peeked = await sdk.peek_messages(count, sequence_number=after)
                if not peeked:
                    break
                found += peeked
    except Exception as fault:
        raise fault_of(fault, f"{place}") from None
    finally:
        link.discard(sdk)
    return [as_dead_letter(message) for message in found]
