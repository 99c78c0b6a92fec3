"""One consumer's view of one lane whose messages belong to sessions: accept, receive, settle, leave.

In: calls of one consumer. Out: locked messages and dead letters. A session is the messages of one key, and
one receiver holds it at a time. The next one in which something waits is accepted while a consumer asks, over
a connection of its own; several are held at once, so that one slow step does not hold up every key of the
lane. A session that has nothing more is released; any receiver may take it. A receiver never takes it up
again after a break: what was held when its connection broke has lost its lock.

A lock is the session's: to extend one delivery extends all of its session, and what comes when most of the
time is gone renews it.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Final

import msgspec
import structlog
from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusReceiver as SdkReceiver

from lucius.bus.port import BusUnavailable, DeadLetter, Delivery, LockLost
from lucius.bus.service_bus.connection import NamespaceConnection, NoSession
from lucius.bus.service_bus.message import in_ms
from lucius.bus.service_bus.names import ServiceBusLimits
from lucius.bus.service_bus.receiver import LaneAddress, ServiceBusReceiver, read_dead_letters

SEEK_SECONDS: Final = 60.0  # how long Service Bus is to wait for a session before it says that there is none
POLL_SECONDS: Final = 0.1  # how long each session is listened to
ROUND_SECONDS: Final = 0.25  # between two rounds through the sessions
LINGER_SECONDS: Final = 1.0  # how long one who does not ask keeps what has nothing for it

log = structlog.get_logger("lucius.bus.service_bus")


class SessionReceiver(ServiceBusReceiver):
    """From its acceptance until it is left or lost."""

    def __init__(
        self,
        link: NamespaceConnection,
        place: LaneAddress,
        limits: ServiceBusLimits,
        sdk: SdkReceiver,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        super().__init__(link, place, limits, now_ms=now_ms, on_close=_nothing)
        self._sdk = sdk
        self._span_ms = self._session_until_ms(sdk) - now_ms()

    @property
    def over(self) -> bool:
        return self._sdk is None or self._session_until_ms(self._sdk) <= self._now_ms()

    @property
    def busy(self) -> bool:
        """Whether a delivery of it is not settled yet."""
        return bool(self._held or self._delayed)

    async def listen(self, messages_max: int, seconds: float) -> list[Delivery]:
        """What comes in that time, with at least half of a lock ahead."""
        try:
            taken = await self._next(messages_max, seconds)
        finally:
            if self._undelivered:
                await self._take_back()
        if not taken or taken[0].locked_until_ms - self._now_ms() > self._span_ms // 2:
            return taken
        until_ms = (await self.extend(taken[0])).locked_until_ms
        return [msgspec.structs.replace(delivery, locked_until_ms=until_ms) for delivery in taken]

    def leave(self) -> None:
        self._interrupt()
        self._drop()

    async def _opened(self) -> SdkReceiver:
        if self._sdk is None:
            raise LockLost("the session of this message was lost")
        return self._sdk

    def _until_ms(self, message: ServiceBusReceivedMessage) -> int:
        return 0 if self._sdk is None else self._session_until_ms(self._sdk)

    async def _renew(self, sdk: SdkReceiver, message: ServiceBusReceivedMessage) -> datetime:
        return await sdk.session.renew_lock()

    def _session_until_ms(self, sdk: SdkReceiver) -> int:
        until = sdk.session.locked_until_utc
        return 0 if until is None else in_ms(until)


class SessionsReceiver:
    """Made by `ServiceBusBus`."""

    def __init__(
        self,
        link: NamespaceConnection,
        place: LaneAddress,
        limits: ServiceBusLimits,
        *,
        now_ms: Callable[[], int],
        on_close: Callable[["SessionsReceiver"], None],
    ) -> None:
        self._link = link
        self._place = place
        self._limits = limits
        self._now_ms = now_ms
        self._on_close = on_close
        self._sessions: list[SessionReceiver] = []
        self._owners: dict[str, SessionReceiver] = {}  # of what was handed over and not settled yet
        self._seeking: asyncio.Task[SessionReceiver] | None = None
        self._asking = 0
        self._lingering: asyncio.TimerHandle | None = None
        self._closing = asyncio.Event()

    async def open(self) -> None:
        """Nothing is accepted before the first receive."""
        self._check_up()

    async def receive(self, *, messages_max: int, wait_ms: int) -> list[Delivery]:
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_ms / 1000
        self._asking += 1
        try:
            while True:
                self._check_up()
                taken = await self._round(messages_max)
                if taken or loop.time() >= until:
                    return taken
                await self._wait_for_session(until - loop.time())
        except asyncio.CancelledError:
            self._give_up()
            raise
        finally:
            self._asking -= 1
            self._linger()

    async def complete(self, delivery: Delivery) -> None:
        await self._owner(delivery).complete(delivery)
        self._settled(delivery)

    async def give_back(self, delivery: Delivery, *, delay_ms: int) -> None:
        await self._owner(delivery).give_back(delivery, delay_ms=delay_ms)
        self._settled(delivery)

    async def extend(self, delivery: Delivery) -> Delivery:
        return await self._owner(delivery).extend(delivery)

    async def dead_letter(self, delivery: Delivery, *, reason: str) -> None:
        await self._owner(delivery).dead_letter(delivery, reason=reason)
        self._settled(delivery)

    async def dead_letters(self, *, messages_max: int) -> list[DeadLetter]:
        """They belong to no session."""
        self._check_up()
        return await read_dead_letters(self._link, self._place, messages_max=messages_max)

    async def close(self) -> None:
        """What was given back with a delay comes again at once, and so does what was not settled."""
        if self._closing.is_set():
            return
        self._closing.set()
        if self._lingering is not None:
            self._lingering.cancel()
        self._stop_seeking()
        if self._sessions:
            await asyncio.wait({asyncio.create_task(session.close()) for session in self._sessions})
        self._on_close(self)

    # -- receiving -----------------------------------------------------------------------------------------

    async def _round(self, messages_max: int) -> list[Delivery]:
        """Listens to each session that is held, the last first: it was accepted because something waits."""
        for session in self._sessions[::-1]:
            taken: list[Delivery] = []
            try:
                taken = await session.listen(messages_max, POLL_SECONDS)
            except LockLost:
                session.leave()
            if taken:
                self._sessions.remove(session)
                self._sessions.insert(0, session)  # the others are listened to before it
                self._owners.update({delivery.lock: session for delivery in taken})
                return taken
            self._check_up()
            if session.over or not session.busy:
                self._leave(session)
        return []

    async def _wait_for_session(self, seconds: float) -> None:
        """Until one is accepted, or it is time to listen to those that are held."""
        if self._sessions:
            seconds = min(seconds, ROUND_SECONDS)
        if len(self._sessions) >= self._limits.sessions_max:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._closing.wait()
            return
        if self._seeking is None:
            self._seeking = asyncio.create_task(self._seek())
        closing = asyncio.create_task(self._closing.wait())
        try:
            await asyncio.wait({self._seeking, closing}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            closing.cancel()
        self._take_found()

    async def _seek(self) -> SessionReceiver:
        place = self._place
        sdk = await self._link.accept_session(place.topic, place.subscription, seconds=SEEK_SECONDS)
        return SessionReceiver(self._link, place, self._limits, sdk, now_ms=self._now_ms)

    def _take_found(self) -> None:
        """Holds the session that was accepted, if one was. Raises what kept us from it."""
        task = self._seeking
        if task is None or not task.done():
            return
        self._seeking = None
        fault = None if task.cancelled() else task.exception()
        if task.cancelled() or isinstance(fault, NoSession):
            return
        if fault is None:
            self._sessions.append(task.result())
        elif not isinstance(fault, BusUnavailable) or not self._sessions:
            raise fault
        else:
            log.warning("session_not_accepted", place=str(self._place), error=str(fault))

    # -- leaving -------------------------------------------------------------------------------------------

    def _settled(self, delivery: Delivery) -> None:
        self._owners.pop(delivery.lock, None)
        self._linger()

    def _owner(self, delivery: Delivery) -> SessionReceiver:
        self._check_up()
        session = self._owners.get(delivery.lock)
        if session is None:
            raise LockLost("this delivery was settled, or its lock has run out")
        return session

    def _leave(self, session: SessionReceiver) -> None:
        session.leave()
        self._sessions.remove(session)
        self._owners = {lock: owner for lock, owner in self._owners.items() if owner is not session}

    def _linger(self) -> None:
        """A while after the last call, what is not asked for is released to other receivers."""
        if self._lingering is not None:
            self._lingering.cancel()
        if not self._closing.is_set():
            self._lingering = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._tidy)

    def _tidy(self) -> None:
        if not self._asking:
            self._give_up()

    def _give_up(self) -> None:
        self._stop_seeking()
        for session in [session for session in self._sessions if not session.busy]:
            self._leave(session)

    def _stop_seeking(self) -> None:
        task, self._seeking = self._seeking, None
        if task is not None:
            task.cancel()
            self._link.chore(_let_go(task))

    def _check_up(self) -> None:
        self._link.check_up()
        if self._closing.is_set():
            raise BusUnavailable("the receiver is closed")


async def _let_go(task: "asyncio.Task[SessionReceiver]") -> None:
    """A session that was accepted all the same is left at once."""
    await asyncio.wait({task})
    if not task.cancelled() and task.exception() is None:
        task.result().leave()


def _nothing(_: ServiceBusReceiver) -> None:
    return
