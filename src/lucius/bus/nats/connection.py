"""One connection to NATS: questions with answers, inboxes, and what happens to both when it breaks.

In: subjects and bytes. Out: the server's answers, or `BusUnavailable`. The connection is made again for ever,
but nothing waits for that: a caller that asks while it is down, or waits for an answer when it breaks, gets
the fault at once. Knows nothing of what the messages are for. Texts of faults name no address: it may hold a
password.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from lucius.bus.port import BusUnavailable

ANSWER_SECONDS_MAX: Final = 5.0
CONNECT_SECONDS_MAX: Final = 10.0
CLOSE_SECONDS_MAX: Final = 5.0
CANCEL_EVERY_SECONDS: Final = 0.2
RECONNECT_EVERY_SECONDS: Final = 0.25
# A connection on which nothing arrives, for whatever reason, is given up after 6 to 9 seconds.
PING_EVERY_SECONDS: Final = 3.0
PINGS_UNANSWERED_MAX: Final = 2
FLUSH_SECONDS_MAX: Final = 10**6  # it ends before: with the answer, or with the connection

NO_RESPONDERS: Final = "503"

Json = Any
Stray = Callable[[Msg], Awaitable[None]]

log = structlog.get_logger("lucius.bus.nats")


class Inbox:
    """Where the server sends what one receiver asked for."""

    def __init__(self, stray: Stray) -> None:
        self.items: deque[Msg] = deque()
        self.subject = ""
        self.subscription: Subscription | None = None
        self._arrived = asyncio.Event()
        self._stray: Stray = stray
        self._broken: str | None = None
        self._abandoned = False

    async def put(self, message: Msg) -> None:
        if self._abandoned:
            await self._stray(message)
        else:
            self.items.append(message)
            self._arrived.set()

    @property
    def broken(self) -> bool:
        return self._broken is not None

    def fail(self, reason: str) -> None:
        self._broken = reason
        self._arrived.set()

    async def next(self) -> Msg:
        while not self.items:
            if self._broken is not None:
                raise BusUnavailable(self._broken)
            self._arrived.clear()
            await self._arrived.wait()
        return self.items.popleft()

    async def abandon(self) -> None:
        """From now on whatever comes, or came and was not looked at, is a stray."""
        self._abandoned = True
        while self.items:
            await self._stray(self.items.popleft())


class FlushingClient(Client):
    """Its `flush` lasts until the server has answered or the connection is over. The library's ends by the
    clock, and an answer that comes after that ends the reading of the connection: nothing is read any more,
    though it says that it is connected. A `drain` that fails so leaves its subscription behind as well."""

    def __init__(self) -> None:
        super().__init__()
        self._flushes: set[asyncio.Task[None]] = set()

    async def flush(self, timeout: int = FLUSH_SECONDS_MAX) -> None:  # noqa: ASYNC109
        """A caller that is cancelled meanwhile does not end it."""
        flushing = asyncio.create_task(super().flush(FLUSH_SECONDS_MAX))
        self._flushes.add(flushing)
        flushing.add_done_callback(self._flushes.discard)
        await asyncio.wait({flushing})
        if not flushing.cancelled():
            flushing.result()

    def give_up_flushes(self) -> None:
        """Once the connection is over."""
        for flushing in self._flushes:
            flushing.cancel()


async def _within(seconds_max: float, work: Coroutine[Any, Any, None]) -> None:
    """Raises `TimeoutError`. Cancels until the work has ended: `asyncio.wait_for` of Python 3.11, which the
    library uses, loses a cancellation that comes together with what it waits for, and the library never ends.
    """
    working = asyncio.create_task(work)
    try:
        await asyncio.wait({working}, timeout=seconds_max)
    finally:
        is_late = not working.done()
        while not working.done():
            working.cancel()
            await asyncio.wait({working}, timeout=CANCEL_EVERY_SECONDS)
    if is_late:
        raise TimeoutError
    working.result()


class NoResponder(BusUnavailable):
    """The server is there, and what should answer on it is not."""


class NatsConnection:
    def __init__(
        self,
        *,
        answer_seconds_max: float = ANSWER_SECONDS_MAX,
        ping_every_seconds: float = PING_EVERY_SECONDS,
    ) -> None:
        self._client = FlushingClient()
        self._answer_seconds_max = answer_seconds_max
        self._ping_every_seconds = ping_every_seconds
        self._waiting: dict[str, asyncio.Future[Msg]] = {}
        self._inboxes: set[Inbox] = set()
        self._background_tasks: set[asyncio.Task[None]] = set()
        self._answers = ""
        self._asked = 0
        self._closed = False
        self.breaks = 0
        self._unwelcome = False

    async def connect(
        self,
        servers: Sequence[str],
        *,
        name: str,
        credentials_file: str | None,
        user: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None,
        seconds_max: float,
    ) -> None:
        options: dict[str, Any] = {"user_credentials": credentials_file} if credentials_file else {}
        if user is not None:
            options |= {"user": user, "password": password}
        if tls is not None:
            options["tls"] = tls
        try:
            connecting = self._client.connect(
                list(servers),
                name=name,
                error_cb=self._on_error,
                disconnected_cb=self._on_disconnected,
                reconnected_cb=self._on_reconnected,
                max_reconnect_attempts=-1,
                reconnect_time_wait=RECONNECT_EVERY_SECONDS,  # type: ignore[arg-type]
                ping_interval=self._ping_every_seconds,  # type: ignore[arg-type]
                max_outstanding_pings=PINGS_UNANSWERED_MAX,
                **options,
            )
            await _within(seconds_max, connecting)
            self._answers = self._client.new_inbox()
            await self._client.subscribe(f"{self._answers}.*", cb=self._on_answer)
        except (nats.errors.Error, OSError, TimeoutError) as fault:
            await self.close()
            if self._unwelcome:
                raise BusUnavailable(
                    "NATS does not let Lucius in: user and password, or the credentials file, are not right"
                ) from None
            raise BusUnavailable(f"NATS cannot be reached ({type(fault).__name__})") from None

    @property
    def largest_payload_bytes(self) -> int:
        """Headers included."""
        return self._client.max_payload

    def check_up(self) -> None:
        if self._closed:
            raise BusUnavailable("the bus is closed")
        if not self._client.is_connected:
            raise BusUnavailable("NATS is out of reach")

    async def ask(self, subject: str, payload: bytes, headers: dict[str, str] | None = None) -> Msg:
        """One question and its answer."""
        self.check_up()
        self._asked += 1
        name = str(self._asked)
        answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._waiting[name] = answer
        try:
            async with asyncio.timeout(self._answer_seconds_max):
                await self._client.publish(subject, payload, f"{self._answers}.{name}", headers)
                message = await answer
        except TimeoutError:
            raise BusUnavailable("NATS did not answer in time") from None
        except nats.errors.Error as fault:
            raise BusUnavailable(f"NATS cannot be used ({type(fault).__name__})") from None
        finally:
            self._waiting.pop(name, None)
            answer.cancel()
        if status(message) == NO_RESPONDERS:
            raise NoResponder("NATS has no responder: JetStream is not ready, or was not set up")
        return message

    async def ask_json(self, subject: str, question: Json) -> dict[str, Json]:
        message = await self.ask(subject, msgspec.json.encode(question))
        try:
            return msgspec.json.decode(message.data, type=dict[str, Any])
        except msgspec.DecodeError:
            raise BusUnavailable("NATS gave an answer that is not understood") from None

    async def publish(self, subject: str, payload: bytes, reply: str = "") -> None:
        self.check_up()
        try:
            await self._client.publish(subject, payload, reply)
        except nats.errors.Error as fault:
            raise BusUnavailable(f"NATS cannot be used ({type(fault).__name__})") from None

    async def listen(self, subject: str, listener: Callable[[bytes], None]) -> None:
        """Until it is closed, also after the connection was made again."""
        self.check_up()

        async def on_message(message: Msg) -> None:
            listener(message.data)

        try:
            await self._client.subscribe(subject, cb=on_message)
        except nats.errors.Error as fault:
            raise BusUnavailable(f"NATS cannot be used ({type(fault).__name__})") from None

    async def open_inbox(self, stray: Stray) -> Inbox:
        self.check_up()
        inbox = Inbox(stray)
        inbox.subject = self._client.new_inbox()
        self._inboxes.add(inbox)
        try:
            inbox.subscription = await self._client.subscribe(inbox.subject, cb=inbox.put)
        except nats.errors.Error as fault:
            self._inboxes.discard(inbox)
            raise BusUnavailable(f"NATS cannot be used ({type(fault).__name__})") from None
        return inbox

    def abandon(self, inbox: Inbox) -> None:
        """Gives up an inbox in which something may still arrive. A pull whose inbox is gone takes nothing."""
        self._inboxes.discard(inbox)
        self._later(self._clear(inbox))

    async def close(self) -> None:
        self._closed = True
        self._fail_all("the bus is closed")
        if self._background_tasks:  # what was taken by mistake goes back first
            await asyncio.wait(set(self._background_tasks), timeout=CLOSE_SECONDS_MAX)
        for chore in self._background_tasks:
            chore.cancel()
        with suppress(nats.errors.Error, OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                await self._client.close()

    async def _clear(self, inbox: Inbox) -> None:
        with suppress(BusUnavailable):
            await inbox.abandon()
        with suppress(nats.errors.Error, OSError, TimeoutError):
            if inbox.subscription is None:
                return
            if self._client.is_connected:
                # Ends the subscription and waits for what was sent before the server knew of it.
                await inbox.subscription.drain()  # type: ignore[no-untyped-call]
            else:
                await inbox.subscription.unsubscribe()

    def _later(self, chore: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(chore)
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)

    def _fail_all(self, reason: str) -> None:
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(BusUnavailable(reason))
        for inbox in self._inboxes:
            inbox.fail(reason)

    async def _on_answer(self, message: Msg) -> None:
        answer = self._waiting.get(message.subject.rpartition(".")[2])
        if answer is not None and not answer.done():
            answer.set_result(message)

    async def _on_disconnected(self) -> None:
        if not self._closed:
            log.warning("bus_disconnected")
        self.breaks += 1
        self._client.give_up_flushes()
        self._fail_all("the connection to NATS broke")

    async def _on_reconnected(self) -> None:
        log.info("bus_reconnected")

    async def _on_error(self, fault: Exception) -> None:
        # While it connects, the library reports a refusal in words alone, and tries again.
        self._unwelcome = self._unwelcome or "authorization" in str(fault).lower()
        log.debug("bus_error", kind=type(fault).__name__)


def status(message: Msg) -> str:
    """The code of a message that the server itself wrote; empty for any other."""
    return (message.headers or {}).get("Status", "")
