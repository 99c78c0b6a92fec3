"""One consumer's view of one lane, over NATS: pull, settle, put aside.

In: pulls and settlements. Out: locked messages and dead letters. A pull takes what is there, or waits on the
server for the first message; nothing is fetched ahead. When `receive` is cancelled or the answer is overdue
its inbox is given up: the server then sends nothing more to that pull, and what was on its way goes back.

The server's own limit of deliveries only raises an advisory, so the limit is ours: a message that comes once
too often is put aside instead of being handed out. To put aside is to publish to the stream of dead letters,
then to end the message; a crash in between repeats both, and the letter's id makes the repeat no second one.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
import structlog
from nats.aio.msg import Msg

from lucius.bus.nats.connection import ANSWER_SECONDS_MAX, Inbox, NatsConnection, status
from lucius.bus.nats.names import NANOS_IN_MS, LaneConsumer, NatsLimits, from_header, in_header
from lucius.bus.port import (
    DELIVERIES_EXHAUSTED,
    REASON_LENGTH_MAX,
    BusError,
    BusUnavailable,
    DeadLetter,
    Delivery,
)

PULL_MS_MAX: Final = 10_000  # a pull that the server forgot costs no more than this
ID_HEADER: Final = "Lucius-Id"
KEY_HEADER: Final = "Lucius-Key"
TOKEN_HEADER: Final = "Lucius-Callback-Token"  # noqa: S105 (a name)
REASON_HEADER: Final = "Lucius-Reason"
DELIVERIES_HEADER: Final = "Lucius-Deliveries"
DEDUPE_HEADER: Final = "Nats-Msg-Id"

COMPLETE: Final = b"+ACK"
GIVE_BACK: Final = b"-NAK"
EXTEND: Final = b"+WPI"
END: Final = b"+TERM"

_ENDED_EMPTY: Final = frozenset({"404", "408"})
_HEARTBEAT: Final = "100"
# `$JS.ACK.` may be followed by a domain and an account's hash before the stream.
_PLACE_TOKENS: Final = 9

Publish = Callable[[str, bytes, dict[str, str]], Awaitable[None]]

log = structlog.get_logger("lucius.bus.nats")


class NatsReceiver:
    def __init__(
        self,
        link: NatsConnection,
        queue: LaneConsumer,
        limits: NatsLimits,
        *,
        dead_stream: str,
        publish: Publish,
        set_up: Callable[[LaneConsumer], Awaitable[None]],
        now_ms: Callable[[], int],
    ) -> None:
        """`set_up`: makes the queue's consumer, if it is not there."""
        self._set_up = set_up
        self._is_there = True
        self._link = link
        self._queue = queue
        self._limits = limits
        self._dead_stream = dead_stream
        self._publish = publish
        self._now_ms = now_ms
        self._inbox: Inbox | None = None
        self._closed = False

    async def receive(self, *, messages_max: int, wait_ms: int) -> list[Delivery]:
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_ms / 1000
        while True:
            self._check_up()
            if not self._is_there:
                await self._set_up(self._queue)
                self._is_there = True
            left_ms = max(0, round((until - loop.time()) * 1000))
            pulled = await self._pull(messages_max, min(left_ms, PULL_MS_MAX))
            arrived_ms = self._now_ms()
            looked_at = [await self._look(message, arrived_ms) for message in pulled]
            taken = [delivery for delivery in looked_at if delivery is not None]
            if taken or loop.time() >= until:
                return taken

    async def complete(self, delivery: Delivery) -> None:
        await self._settle(delivery.lock, COMPLETE)

    async def give_back(self, delivery: Delivery, *, delay_ms: int) -> None:
        if delivery.deliveries_left <= 0:
            await self.dead_letter(delivery, reason=_exhausted(delivery.delivery_count))
            return
        delay = b' {"delay": %d}' % (delay_ms * NANOS_IN_MS) if delay_ms > 0 else b""
        await self._settle(delivery.lock, GIVE_BACK + delay)

    async def extend(self, delivery: Delivery) -> Delivery:
        asked_ms = self._now_ms()
        await self._settle(delivery.lock, EXTEND)
        return msgspec.structs.replace(delivery, locked_until_ms=asked_ms + self._limits.lock_ms)

    async def dead_letter(self, delivery: Delivery, *, reason: str) -> None:
        self._check_up()
        headers = {
            DEDUPE_HEADER: f"{self._queue.dead_subject}/{_place(delivery.lock)[1]}",
            ID_HEADER: in_header(delivery.message_id),
            KEY_HEADER: in_header(delivery.message_key),
            REASON_HEADER: in_header(reason[:REASON_LENGTH_MAX]),
            DELIVERIES_HEADER: str(delivery.delivery_count),
        }
        await self._publish(self._queue.dead_subject, delivery.body, headers)
        await self._settle(delivery.lock, END)

    async def dead_letters(self, *, messages_max: int) -> list[DeadLetter]:
        self._check_up()
        found: list[DeadLetter] = []
        sequence = 1
        while len(found) < messages_max:
            question = {"seq": sequence, "next_by_subj": self._queue.dead_subject}
            message = await self._link.ask(
                f"$JS.API.DIRECT.GET.{self._dead_stream}", msgspec.json.encode(question)
            )
            if status(message):
                break
            headers = message.headers or {}
            found.append(_dead_letter(message, headers))
            sequence = int(headers["Nats-Sequence"]) + 1
        return found

    async def close(self) -> None:
        self._closed = True
        if self._inbox is not None:
            self._inbox.fail("the receiver is closed")
            self._link.abandon(self._inbox)
            self._inbox = None

    # -- pulling -------------------------------------------------------------------------------------------

    async def _pull(self, messages_max: int, wait_ms: int) -> list[Msg]:
        inbox = await self._open_inbox()
        question: dict[str, Any] = {"batch": messages_max, "no_wait": True}
        if wait_ms > 0:
            question["expires"] = wait_ms * NANOS_IN_MS
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._queue.stream}.{self._queue.consumer}"
        got: list[Msg] = []
        ended = False
        try:
            await self._link.publish(subject, msgspec.json.encode(question), inbox.subject)
            async with asyncio.timeout(wait_ms / 1000 + ANSWER_SECONDS_MAX):
                while not ended and len(got) < messages_max:
                    ended = self._sort(await inbox.next(), got)
            ended = True
        except TimeoutError:
            if not got:
                raise BusUnavailable("NATS did not answer a pull in time") from None
        except BusUnavailable:
            if not got:
                raise
        except asyncio.CancelledError:
            inbox.items.extendleft(reversed(got))  # they go back with the rest
            raise
        finally:
            if not ended and self._inbox is inbox:
                self._inbox = None
                self._link.abandon(inbox)
        return got

    async def _open_inbox(self) -> Inbox:
        if self._inbox is not None and self._inbox.broken:
            self._link.abandon(self._inbox)
            self._inbox = None
        if self._inbox is None:
            self._inbox = await self._link.open_inbox(self._return)
        return self._inbox

    def _sort(self, message: Msg, got: list[Msg]) -> bool:
        """Whether the pull is over."""
        code = status(message)
        if not code:
            got.append(message)
            return False
        if code == _HEARTBEAT:
            return False
        if code in _ENDED_EMPTY or got:
            return True
        # The server does not answer for the consumer, or it was deleted: with the server's data, or by an
        # operator.
        self._is_there = False
        raise BusUnavailable(f"NATS ended the pull ({code})")

    async def _look(self, message: Msg, arrived_ms: int) -> Delivery | None:
        """The message as a delivery, or None if it came once too often and was put aside."""
        count, sequence = _place(message.reply)
        headers = message.headers or {}
        delivery = Delivery(
            lane=self._queue.lane,
            message_key=from_header(headers.get(KEY_HEADER, "")),
            message_id=from_header(headers.get(ID_HEADER, f"nats-{sequence}")),
            body=message.data,
            delivery_count=min(count, self._limits.deliveries_max),
            deliveries_left=max(0, self._limits.deliveries_max - count),
            locked_until_ms=arrived_ms + self._limits.lock_ms,
            lock=message.reply,
            token=from_header(headers[TOKEN_HEADER]) if TOKEN_HEADER in headers else None,
        )
        if count <= self._limits.deliveries_max:
            return delivery
        try:
            await self.dead_letter(delivery, reason=_exhausted(self._limits.deliveries_max))
        except BusError as fault:
            log.warning("message_not_put_aside", message_id=delivery.message_id, error=str(fault))
        return None

    async def _return(self, message: Msg) -> None:
        """Gives back what came for a pull that has ended."""
        if message.reply:
            await self._link.publish(message.reply, GIVE_BACK)

    async def _settle(self, lock: str, verdict: bytes) -> None:
        """A request rather than a message: the answer says that the server has recorded it."""
        self._check_up()
        await self._link.ask(lock, verdict)

    def _check_up(self) -> None:
        self._link.check_up()
        if self._closed:
            raise BusUnavailable("the receiver is closed")


def _place(lock: str) -> tuple[int, int]:
    """How often it was delivered, and its place in the stream."""
    tokens = lock.split(".")
    first = 4 if len(tokens) == _PLACE_TOKENS else 6
    return int(tokens[first]), int(tokens[first + 1])


def _exhausted(deliveries: int) -> str:
    return f"{DELIVERIES_EXHAUSTED}: delivered {deliveries} times and never settled"


def _dead_letter(message: Msg, headers: dict[str, str]) -> DeadLetter:
    return DeadLetter(
        message_id=from_header(headers.get(ID_HEADER, "")),
        message_key=from_header(headers.get(KEY_HEADER, "")),
        body=message.data,
        delivery_count=int(headers.get(DELIVERIES_HEADER, "0")),
        reason=from_header(headers.get(REASON_HEADER, "")),
    )
