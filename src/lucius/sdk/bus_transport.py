"""The way to the orchestrator over the bus: directives from the lanes of one service, replies to theirs.

In: a bus, a service's name, a clock. Out: directives, and replies on the topic that each directive names.

A directive is settled when the service picks it up: first settled, then acknowledged, then worked on. To
settle is to claim the attempt, and only one process can. Who cannot, because the lock was lost or the bus is
away, drops the directive and leaves it to whom it comes next; a crash before that brings it to another
process when the lock runs out. After it the attempt's own clocks cover every crash, first the ACK's and then
the lease's, as they do for every other way to the orchestrator. Were the directive kept until its RESULT,
then a process that lost its lock in the middle of the work (a pause, a network split) would have a second one
beside it, at work on the same attempt and the same artifacts.

A bus gives no answer, so a reply's outcome is `sent`. Whether an attempt still counts can be asked where the
directive's callback address leads (`ask`); without it a service works on until it is done. It is asked before
the work where there is reason to doubt: the directive was delivered before, or its ACK is overdue. If no
address can be asked, a directive whose ACK is overdue by more than clocks differ is dropped: the orchestrator
has given that attempt up, or does so as soon as it is back. So is an attempt older than one that came here.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from types import TracebackType
from typing import Final, Self

import msgspec

from lucius.bus.port import (
    MESSAGE_ID_LENGTH_MAX,
    MESSAGE_KEY_LENGTH_MAX,
    TOKEN_LENGTH_MAX,
    Bus,
    BusError,
    LockLost,
    MessageTooLarge,
    ReplyOut,
    check_service,
    directive_id,
)
from lucius.core.routing import LANES, lane_of, normalise, reply_topic
from lucius.sdk.bus_lanes import LaneReader, Taken
from lucius.sdk.dedupe import NewestAttempts
from lucius.sdk.directive import Directive, Json, Key, parse_directive
from lucius.sdk.ports import DeliveryFailed, ReplyAnswer

DEADLINE_SECONDS: Final[Mapping[str, float]] = {"ACK": 20.0, "PROGRESS": 10.0, "RESULT": 600.0}
# For a directive that does not say how long its lease is.
LEASE_SECONDS_DEFAULT = 900.0
BACKOFF_SECONDS_MIN = 0.1
# A bus that is away says so at once and at no cost. Once it is back, a reply must not lose to its deadline
# because the service has not tried again yet: the orchestrator waits for it for two seconds.
BACKOFF_SECONDS_MAX = 1.0
CALL_TIMEOUT_SECONDS = 10.0
GIVE_BACK_DELAY_MS = 1_000
ACCEPTED_MAX = 10_000
# How much the clocks of the orchestrator and of this machine may differ.
CLOCKS_DIFFER_MS_MAX = 60_000

_SENT = ReplyAnswer("sent")
_NOT_OURS = ReplyAnswer("stale", stop=True)
_LANE_OF_TOPIC = {reply_topic(lane): lane for lane in range(LANES)}

Ask = Callable[[Directive], Awaitable[ReplyAnswer]]
Call = Callable[[], Awaitable[None]]


class BusTransport:
    """Leases the directives of `service` from the bus. Not for several runners at once."""

    def __init__(
        self,
        bus: Bus,
        service: str,
        *,
        now_ms: Callable[[], int],
        lanes: Sequence[int] = tuple(range(LANES)),
        deadline_seconds: Mapping[str, float] = DEADLINE_SECONDS,
        call_timeout_seconds: float = CALL_TIMEOUT_SECONDS,
        ask: Ask | None = None,
        prefetch: int = 0,
        jitter: Callable[[], float] = lambda: 1.0,
    ) -> None:
        """`now_ms`: the clock that the bus's locks follow. `deadline_seconds`: how long each kind of reply is
        tried; a RESULT for the time of its lease more. `ask`: what the orchestrator says of an attempt.
        `prefetch`: how many directives are taken ahead of those that are leased."""
        check_service(service)
        self._bus = bus
        self._now_ms = now_ms
        self._deadline_seconds = deadline_seconds
        self._call_timeout_seconds = call_timeout_seconds
        self._ask = ask
        self._jitter = jitter
        self._lanes = LaneReader(lambda lane: bus.directives(service, lane), lanes, ahead=prefetch)
        # Handed out and not settled yet; several when one directive was published or delivered twice.
        self._held: dict[Key, list[Taken]] = {}
        # Claimed here: whatever comes of these again is a repeat.
        self._accepted: OrderedDict[Key, None] = OrderedDict()
        self._latest = NewestAttempts()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._lanes.close()

    async def lease(self, *, max_directives: int, wait_seconds: float) -> list[dict[str, Json]]:
        self._drop_lost()
        try:
            taken = await self._lanes.take(messages_max=max_directives, wait_seconds=wait_seconds)
        except BusError as fault:
            raise DeliveryFailed(f"no directives from the bus: {fault}") from None
        found = [await self._unwrap(one) for one in taken]
        return [message for message in found if message is not None]

    async def reply(self, directive: Directive, message: dict[str, Json]) -> ReplyAnswer:
        kind: str = message["type"]
        reply = _reply_out(directive, message)
        seconds_max = self._deadline_seconds[kind]
        if kind == "ACK":
            return await self._accept(directive, reply, seconds_max)
        if kind == "RESULT":
            seconds_max += directive.lease_seconds or LEASE_SECONDS_DEFAULT
        await self._publish(kind, reply, seconds_max)
        if kind == "RESULT":
            # A repeat of what was done before is answered without an ACK.
            await self._settle_repeats(directive.key)
            return _SENT
        return await self._asked(directive) or _SENT

    # -- directives ----------------------------------------------------------------------------------------

    async def _unwrap(self, taken: Taken) -> dict[str, Json] | None:
        """The directive, if it is one and not under way here already."""
        receiver, delivery = taken
        message = _decoded(delivery.body)
        directive = parse_directive(message) if message is not None else None
        if message is None or directive is None:
            with suppress(BusError):
                await receiver.dead_letter(delivery, reason="POISON: not a directive")
            return None
        key = directive.key
        if self._latest.note(directive) > directive.attempt_no or key in self._accepted:
            with suppress(BusError):
                await receiver.complete(delivery)
            return None
        if key in self._held:
            self._held[key].append(taken)
            return None
        self._held[key] = [taken]
        return message

    def _drop_lost(self) -> None:
        """Drops what was not settled in time. All locks are of one length, so the oldest come first."""
        now_ms = self._now_ms()
        while self._held:
            key = next(iter(self._held))
            if self._held[key][-1][1].locked_until_ms > now_ms:
                return
            del self._held[key]

    async def _accept(self, directive: Directive, reply: ReplyOut, seconds_max: float) -> ReplyAnswer:
        """Claims the attempt, then publishes its ACK; `stale` when another process may be given it."""
        key = directive.key
        held = self._held.get(key)
        if held is None:
            return _NOT_OURS
        if (answer := await self._doubted(directive, held[0][1].delivery_count)) is not None:
            await self._settle_repeats(key)
            return answer
        if not await self._claim(held, seconds_max):
            await self._return(key)
            return _NOT_OURS
        self._held.pop(key, None)
        self._accepted[key] = None
        while len(self._accepted) > ACCEPTED_MAX:
            self._accepted.popitem(last=False)
        await self._publish("ACK", reply, seconds_max)
        return _SENT

    async def _doubted(self, directive: Directive, delivery_count: int) -> ReplyAnswer | None:
        """Why the work must not begin; None if it may."""
        due_ms = directive.ack_due_ms
        overdue_ms = 0 if due_ms is None else self._now_ms() - due_ms
        if delivery_count <= 1 and overdue_ms <= 0:
            return None
        answer = await self._asked(directive)
        if answer is not None:
            return answer if answer.stop else None
        return _NOT_OURS if overdue_ms > CLOCKS_DIFFER_MS_MAX else None

    async def _claim(self, held: list[Taken], seconds_max: float) -> bool:
        """Where the bus fences, an outage is waited out: a lock that was lost meanwhile is refused. Where it
        does not, it may have lost the lock and given the message to another receiver, without a sign."""
        fences = self._bus.fences
        until_ms = held[0][1].locked_until_ms
        seconds_max = min(seconds_max, (until_ms - self._now_ms()) / 1000)
        deadline = asyncio.get_running_loop().time() + seconds_max
        try:
            for receiver, delivery in held:
                await self._until_done("ACK", partial(receiver.complete, delivery), deadline, again=fences)
        except (DeliveryFailed, LockLost):
            return False
        return fences or self._now_ms() < until_ms

    async def _return(self, key: Key) -> None:
        for receiver, delivery in self._held.pop(key, ()):
            with suppress(BusError, TimeoutError):
                async with asyncio.timeout(self._call_timeout_seconds):
                    await receiver.give_back(delivery, delay_ms=GIVE_BACK_DELAY_MS)

    async def _settle_repeats(self, key: Key) -> None:
        for receiver, delivery in self._held.pop(key, ()):
            with suppress(BusError, TimeoutError):  # else it comes again, and is answered again
                async with asyncio.timeout(self._call_timeout_seconds):
                    await receiver.complete(delivery)

    # -- replies -------------------------------------------------------------------------------------------

    async def _publish(self, kind: str, reply: ReplyOut, seconds_max: float) -> None:
        deadline = asyncio.get_running_loop().time() + seconds_max
        await self._until_done(kind, partial(self._bus.publish_reply, reply), deadline)

    async def _until_done(self, kind: str, call: Call, deadline: float, *, again: bool = True) -> None:
        """Calls until the bus has done it, or until the deadline on the loop's clock."""
        now = asyncio.get_running_loop().time
        pause = BACKOFF_SECONDS_MIN
        while True:
            try:
                async with asyncio.timeout(min(self._call_timeout_seconds, max(0.0, deadline - now()))):
                    return await call()
            except LockLost:
                raise
            except MessageTooLarge as fault:
                raise DeliveryFailed(f"{kind} given up: {fault}") from None
            except (BusError, TimeoutError) as fault:
                reason = str(fault) or "the bus did not answer in time"
            wait_seconds = pause * self._jitter()
            if not again or now() + wait_seconds >= deadline:
                raise DeliveryFailed(f"{kind} given up: {reason}")
            await asyncio.sleep(wait_seconds)
            pause = min(pause * 2, BACKOFF_SECONDS_MAX)

    async def _asked(self, directive: Directive) -> ReplyAnswer | None:
        """None: there is no address to ask, so the attempt goes on."""
        if self._ask is None:
            return None
        try:
            async with asyncio.timeout(self._call_timeout_seconds):
                return await self._ask(directive)
        except (DeliveryFailed, TimeoutError):
            return None


def _decoded(body: bytes) -> dict[str, Json] | None:
    try:
        return msgspec.json.decode(body, type=dict[str, Json])
    except (msgspec.DecodeError, RecursionError):
        return None


def _reply_out(directive: Directive, message: dict[str, Json]) -> ReplyOut:
    """The id is the same for each try of one message, and another for another message: a PROGRESS that a
    broker took for a repeat of the one before would renew nothing."""
    key = directive.routing_key_used or normalise(directive.tenant_id)
    lane = _LANE_OF_TOPIC.get(directive.reply_topic or "", lane_of(key))
    body = msgspec.json.encode(message)
    attempt = directive_id(directive.attempt)
    message_id = f"{attempt}.{message['type']}.{sha256(body).hexdigest()[:16]}"
    if len(message_id) > MESSAGE_ID_LENGTH_MAX:
        message_id = sha256(message_id.encode()).hexdigest()
    token = directive.callback_token
    return ReplyOut(
        lane=lane,
        message_key=key[:MESSAGE_KEY_LENGTH_MAX],
        message_id=message_id,
        body=body,
        token=token if token is not None and len(token) <= TOKEN_LENGTH_MAX else None,
    )
