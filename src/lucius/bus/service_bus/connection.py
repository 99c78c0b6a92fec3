"""The way into one namespace: who may open how many connections, and what its faults mean to us.

In: a client of the SDK. Out: senders and receivers of it, each with a connection of its own, and `BusError`
instead of what the SDK raises. The SDK's own retries are off: they wait for seconds where a new connection
is what helps. Texts of faults repeat nothing of what it says, since that may hold an address or a key.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from errno import EHOSTUNREACH, ENETUNREACH
from socket import gaierror
from typing import Any, Final, TypeVar

import msgspec
import structlog
from azure.core.credentials_async import AsyncTokenCredential
from azure.servicebus import NEXT_AVAILABLE_SESSION
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.exceptions import (
    MessageAlreadySettled,
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusQuotaExceededError,
    SessionLockLostError,
)

from lucius.bus.port import BusError, BusUnavailable, LockLost, MessageTooLarge

OPEN_SECONDS_MAX: Final = 10.0
OPENING_MAX: Final = 16  # of each kind at the same time
OPEN_TRIES: Final = 3
OPEN_AGAIN_SECONDS: Final = 0.2
REFUSED_SECONDS: Final = 0.25  # how long others wait after a connection was refused
CAUSES_MAX: Final = 10
CLOSE_SECONDS_MAX: Final = 5.0
LOOK_SECONDS: Final = 0.05
LOOKS_MAX: Final = 40
UNREACHABLE: Final = "Service Bus is out of reach: nothing listens at its address"
NOT_ALLOWED: Final = "amqp:not-allowed"

log = structlog.get_logger("lucius.bus.service_bus")

Handler = ServiceBusSender | ServiceBusReceiver
H = TypeVar("H", ServiceBusSender, ServiceBusReceiver)


class ServiceBusRefused(BusUnavailable):
    """Another try, even over another connection, would be answered alike."""


class NamespaceUnreachable(BusUnavailable):
    """Nothing listens at the address of the namespace, or there is no way to it."""


class NoSession(BusUnavailable):
    """No session has anything for us now."""


class NamespaceAccess(msgspec.Struct, frozen=True, kw_only=True):
    """A connection string, or a namespace (`name.servicebus.windows.net`) and an identity. `owned`: the
    identity is closed with the bus."""

    connection_string: str | None = None
    namespace: str | None = None
    credential: AsyncTokenCredential | None = None
    owned: bool = False

    def client(self) -> ServiceBusClient:
        """Raises `ValueError` without the SDK's text, which may repeat the string."""
        options: dict[str, Any] = {"retry_total": 0}
        if self.connection_string is not None:
            try:
                return ServiceBusClient.from_connection_string(self.connection_string, **options)
            except ValueError:
                raise ValueError("the connection string of Service Bus cannot be read") from None
        if self.namespace is None or self.credential is None:
            raise ValueError("Service Bus needs a connection string, or a namespace and an identity")
        return ServiceBusClient(self.namespace, self.credential, **options)

    def __repr__(self) -> str:
        return "Access()"


class NamespaceConnection:
    def __init__(self, access: NamespaceAccess, *, connections_max: int) -> None:
        # It logs every broken connection with its trace; what matters comes as the fault.
        logging.getLogger("azure.servicebus").setLevel(logging.CRITICAL)
        self._access = access
        self._client = access.client()
        self._connections_max = connections_max
        self._open: dict[Handler, asyncio.StreamWriter | None] = {}
        self._background_tasks: set[asyncio.Task[None]] = set()
        # Apart, so that a publish does not wait until all lanes of all services are open.
        self._senders_opening = asyncio.Semaphore(OPENING_MAX)
        self._receivers_opening = asyncio.Semaphore(OPENING_MAX)
        self._refused_at = -REFUSED_SECONDS
        self._closed = False
        self.make_room: Callable[[], None] = _nothing

    @property
    def connections(self) -> int:
        return len(self._open)

    def check_up(self) -> None:
        if self._closed:
            raise BusUnavailable("the bus is closed")

    async def open_sender(self, topic: str) -> ServiceBusSender:
        return await self._opened(lambda: self._client.get_topic_sender(topic), f"topic {topic}")

    async def open_receiver(self, topic: str, subscription: str, **more: Any) -> ServiceBusReceiver:
        what = f"subscription {subscription} of topic {topic}"
        return await self._opened(
            lambda: self._client.get_subscription_receiver(topic, subscription, **more), what
        )

    async def accept_session(self, topic: str, subscription: str, *, seconds: float) -> ServiceBusReceiver:
        """A receiver of the next session in which something waits; raises `NoSession` if none comes in that
        time. Calls that wait do not keep others from opening."""
        what = f"subscription {subscription} of topic {topic}"

        def make() -> ServiceBusReceiver:
            return self._client.get_subscription_receiver(
                topic, subscription, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=seconds
            )

        receiver = await self._opened(make, what, seconds_max=OPEN_SECONDS_MAX + seconds)
        if receiver.session.locked_until_utc is None:
            self.discard(receiver)
            raise NoSession("there is no session")
        return receiver

    def discard(self, handler: Handler) -> None:
        """Closes it beside everything else: the SDK takes up to a second for that."""
        if handler in self._open:
            writer = self._open.pop(handler) or _writer_of(handler)
            self.chore(_close(handler, writer))

    def chore(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)

    async def close(self) -> None:
        self._closed = True
        for handler in list(self._open):
            self.discard(handler)
        while self._background_tasks:
            await asyncio.wait(set(self._background_tasks))
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                await self._client.close()
                if self._access.owned and self._access.credential is not None:
                    await self._access.credential.close()

    async def _opened(self, make: Callable[[], H], what: str, *, seconds_max: float | None = None) -> H:
        """Again if it breaks off: a network that cuts connections cuts some while they are made. Not where
        nothing listens: the caller is to know that at once."""
        for _ in range(OPEN_TRIES - 1):
            try:
                return await self._opened_once(make, what, seconds_max=seconds_max)
            except (NoSession, ServiceBusRefused, NamespaceUnreachable):
                raise
            except BusUnavailable:
                self.check_up()
                await asyncio.sleep(OPEN_AGAIN_SECONDS)
        return await self._opened_once(make, what, seconds_max=seconds_max)

    async def _opened_once(self, make: Callable[[], H], what: str, *, seconds_max: float | None = None) -> H:
        """`seconds_max`: for one who waits for a session."""
        self.check_up()
        now = asyncio.get_running_loop().time
        if (left := self._refused_at + REFUSED_SECONDS - now()) > 0:
            # A process has dozens of connections, and each try costs 12 ms of work.
            refused_at = self._refused_at
            await asyncio.sleep(left)
            if self._refused_at > refused_at:  # another one has tried meanwhile
                raise NamespaceUnreachable(UNREACHABLE)
        if len(self._open) >= self._connections_max:
            self.make_room()
        if len(self._open) >= self._connections_max:
            raise ServiceBusRefused(f"all {self._connections_max} connections to Service Bus are in use")
        handler = make()
        self._open[handler] = None
        sends = isinstance(handler, ServiceBusSender)
        turn = self._senders_opening if sends else self._receivers_opening
        try:
            if seconds_max is None:
                async with turn, asyncio.timeout(OPEN_SECONDS_MAX):
                    await handler.__aenter__()
            else:
                async with asyncio.timeout(seconds_max):
                    await self._sought(handler)
            self._note(handler)
            self._refused_at = -REFUSED_SECONDS
            self.check_up()
        except BaseException as fault:
            self.discard(handler)
            if seconds_max is not None and isinstance(fault, OperationTimeoutError):
                raise NoSession("there is no session") from None
            if not isinstance(fault, Exception):
                raise
            known = fault_of(fault, what)
            if isinstance(known, NamespaceUnreachable):
                self._refused_at = now()
            raise known from None
        return handler

    async def _sought(self, handler: Handler) -> None:
        """Opens what has to wait for a session, and keeps its socket, which the SDK loses when one
        gives up in between. It counts among the calls that open until it waits."""
        entering: asyncio.Task[Any] | None = None
        try:
            async with self._receivers_opening:
                entering = asyncio.create_task(handler.__aenter__())
                looks = 0
                while not entering.done() and not _waits(handler) and looks < LOOKS_MAX:
                    looks += 1
                    await asyncio.wait({entering}, timeout=LOOK_SECONDS)
                self._note(handler)
            await asyncio.wait({entering})
            entering.result()
        finally:
            if entering is not None and not entering.done():
                self._note(handler)
                entering.cancel()
                await asyncio.wait({entering})

    def _note(self, handler: Handler) -> None:
        if handler in self._open:
            self._open[handler] = _writer_of(handler) or self._open[handler]


def fault_of(fault: BaseException, what: str) -> BusError | MessageTooLarge:
    """What the SDK raised, in our words. It also raises plain errors of Python when a connection ends in the
    middle of a call, so all that is not known means that the bus cannot be used."""
    if isinstance(fault, BusError | MessageTooLarge):
        return fault
    if isinstance(fault, MessageLockLostError | MessageAlreadySettled | MessageNotFoundError):
        return LockLost("the lock of this message has run out")
    if isinstance(fault, SessionLockLostError):
        return LockLost("the lock of this message's session has run out")
    if isinstance(fault, MessageSizeExceededError):
        return MessageTooLarge("the message has more bytes than Service Bus carries here")
    if isinstance(fault, MessagingEntityNotFoundError):
        return ServiceBusRefused(f"Service Bus has no {what}: set it up first")
    if isinstance(fault, MessagingEntityDisabledError):
        return ServiceBusRefused(f"Service Bus has switched off {what}")
    if isinstance(fault, ServiceBusAuthenticationError | ServiceBusAuthorizationError):
        return ServiceBusRefused(f"Service Bus does not let this identity use {what}")
    if isinstance(fault, ServiceBusQuotaExceededError):
        return ServiceBusRefused("the queue is full")
    if isinstance(fault, OperationTimeoutError | TimeoutError):
        return BusUnavailable("Service Bus did not answer in time")
    if _is_refused(fault):
        return NamespaceUnreachable(UNREACHABLE)
    if NOT_ALLOWED in str(fault):
        return ServiceBusRefused(
            f"Service Bus does not allow that of {what}: it requires sessions, or has none"
        )
    return BusUnavailable(f"Service Bus cannot be used ({type(fault).__name__})")


def _is_refused(fault: BaseException) -> bool:
    """Whether a connection was refused or had nowhere to go, by what lies below the fault of the SDK."""
    cause: BaseException | None = fault
    for _ in range(CAUSES_MAX):
        if isinstance(cause, ConnectionRefusedError | gaierror):
            return True
        if isinstance(cause, OSError) and cause.errno in (EHOSTUNREACH, ENETUNREACH):
            return True
        if cause is None:
            return False
        cause = cause.__cause__ or cause.__context__
    return False


async def _close(handler: Handler, writer: asyncio.StreamWriter | None) -> None:
    try:
        async with asyncio.timeout(CLOSE_SECONDS_MAX):
            await handler.close()
    except Exception as fault:
        log.debug("service_bus_not_closed", error=type(fault).__name__)
    finally:
        if writer is not None:
            writer.close()


def _writer_of(handler: Handler) -> asyncio.StreamWriter | None:
    """The SDK drops the socket of a connection that broke, without closing it: so it is kept here. None if
    it no longer lies where it lay; then the socket is closed when its memory is."""
    found: Any = handler
    for name in ("_handler", "_connection", "_transport", "writer"):
        found = getattr(found, name, None)
    return found if isinstance(found, asyncio.StreamWriter) else None


def _waits(handler: Handler) -> bool:
    """Whether it is connected and has asked for its link. Should that no longer lie where it lay, it counts
    as opening a little longer."""
    return getattr(getattr(handler, "_handler", None), "_link", None) is not None


def _nothing() -> None:
    return
