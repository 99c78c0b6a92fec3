"""The bus over Azure Service Bus, or over whatever speaks its protocol.

In: messages, settlements. Out: locked messages, dead letters, or the port's own faults. Topics and
subscriptions are there beforehand: Service Bus drops what no subscription takes, so a service without one
gets nothing. A lost lock is refused, so this bus fences. Duplicates are found by id where the topics were
made to look for them. Each topic that is published to, and each receiver, has a connection of its own, up to
a bound; of those that only send, the one that was idle longest is closed for another.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Self

from lucius.bus.port import (
    BusUnavailable,
    DirectiveOut,
    Receiver,
    ReplyOut,
    check_lane,
    check_out,
    check_service,
)
from lucius.bus.service_bus.connection import NamespaceAccess, NamespaceConnection, ServiceBusRefused
from lucius.bus.service_bus.names import (
    HEADERS_BYTES_MAX,
    ID_PROPERTY,
    KEY_PROPERTY,
    LANE_PROPERTY,
    MESSAGE_KEY_PROPERTY,
    SERVICE_PROPERTY,
    TOKEN_PROPERTY,
    ServiceBusLimits,
    labels,
    partition_key,
    session_id,
    subscription_name,
    topic_of,
    wire_id,
)
from lucius.bus.service_bus.receiver import LaneAddress, ServiceBusReceiver
from lucius.bus.service_bus.sender import PendingMessage, TopicSender
from lucius.bus.service_bus.sessions import SessionsReceiver
from lucius.core.routing import reply_topic, topic

PING_FRESH_SECONDS: Final = 5.0
DRAIN_SECONDS_MAX: Final = 5.0
REPLY_SUBSCRIPTION: Final = "lucius-invoker"
GROUPS: Final[Mapping[str, str]] = {"lucius": REPLY_SUBSCRIPTION}

AnyReceiver = ServiceBusReceiver | SessionsReceiver

__all__ = ["NamespaceAccess", "ServiceBusBus", "ServiceBusLimits", "ServiceBusRefused"]


class ServiceBusBus:
    """Made by `ServiceBusBus.open`."""

    def __init__(
        self,
        link: NamespaceConnection,
        limits: ServiceBusLimits,
        groups: Mapping[str, str],
        now_ms: Callable[[], int],
    ) -> None:
        self._link = link
        self._limits = limits
        self._groups = dict(groups)
        self._now_ms = now_ms
        self._senders: dict[str, TopicSender] = {}
        self._receivers: set[AnyReceiver] = set()
        self._answered_at = -PING_FRESH_SECONDS
        self._closed = False
        link.make_room = self._make_room

    @classmethod
    async def open(
        cls,
        access: NamespaceAccess,
        *,
        now_ms: Callable[[], int],
        limits: ServiceBusLimits | None = None,
        reply_subscriptions: Mapping[str, str] = GROUPS,
    ) -> Self:
        """`reply_subscriptions`: of each consumer group, its subscription to the topics of replies. Raises
        `BusUnavailable`, or `ValueError` for an access that cannot be read."""
        chosen = limits or ServiceBusLimits()
        link = NamespaceConnection(access, connections_max=chosen.connections_max)
        bus = cls(link, chosen, reply_subscriptions, now_ms)
        try:
            await bus.ping()
        except BaseException:
            await link.close()
            raise
        return bus

    @property
    def largest_message_bytes(self) -> int:
        return self._limits.largest_message_bytes - HEADERS_BYTES_MAX

    @property
    def knows_empty_at_once(self) -> bool:
        return False

    @property
    def fences(self) -> bool:
        return True

    @property
    def shared(self) -> bool:
        return True

    @property
    def connections(self) -> int:
        return self._link.connections

    async def publish_directive(self, directive: DirectiveOut) -> None:
        await self._publish(directive, {SERVICE_PROPERTY: subscription_name(directive.service)})

    async def publish_reply(self, reply: ReplyOut) -> None:
        await self._publish(reply, {TOKEN_PROPERTY: reply.token} if reply.token else {})

    async def directives(self, service: str, lane: int) -> Receiver:
        check_service(service)
        check_lane(lane)
        return await self._receiver(lane, topic(lane), subscription_name(service), addressed=True)

    async def replies(self, lane: int, *, group: str) -> Receiver:
        check_lane(lane)
        if group not in self._groups:
            raise ValueError(f"this bus has no consumer group {group!r}")
        return await self._receiver(lane, reply_topic(lane), self._groups[group], addressed=False)

    async def ping(self) -> None:
        """Opens a way to a topic, unless something was answered a moment ago."""
        self._check_up()
        now = asyncio.get_running_loop().time()
        if now - self._answered_at < PING_FRESH_SECONDS:
            return
        sender = await self._link.open_sender(reply_topic(0))
        self._link.discard(sender)
        self._answered_at = asyncio.get_running_loop().time()

    async def close(self) -> None:
        """Sends what is under way, gives back what was delayed, and ends every open `receive` with
        `BusUnavailable`."""
        if self._closed:
            return
        self._closed = True
        sending = [asyncio.create_task(sender.drain()) for sender in self._senders.values()]
        closing = [asyncio.create_task(receiver.close()) for receiver in self._receivers]
        if sending or closing:
            await asyncio.wait({*sending, *closing}, timeout=DRAIN_SECONDS_MAX)
        await self._link.close()

    async def _publish(self, out: DirectiveOut | ReplyOut, to: dict[str, str]) -> None:
        check_out(out, largest_message_bytes=self.largest_message_bytes)
        self._check_up()
        name = topic_of(out)
        sender = self._senders.get(name)
        if sender is None:
            sender = self._senders[name] = TopicSender(self._link, name, self._limits)
        sessions, keyed = self._limits.sessions, self._limits.partition_keys and not self._limits.sessions
        await sender.send(
            PendingMessage(
                message_id=wire_id(out),
                partition_key=partition_key(out.message_key) if keyed else None,
                session_id=session_id(out.message_key) if sessions else None,
                properties={
                    **labels(out.body),
                    **to,
                    ID_PROPERTY: out.message_id,
                    KEY_PROPERTY: out.message_key,
                    MESSAGE_KEY_PROPERTY: out.message_key,
                    LANE_PROPERTY: out.lane,
                },
                body=out.body,
            )
        )
        self._answered_at = asyncio.get_running_loop().time()

    async def _receiver(
        self, lane: int, topic_name: str, subscription: str, *, addressed: bool
    ) -> AnyReceiver:
        self._check_up()
        place = LaneAddress(lane=lane, topic=topic_name, subscription=subscription, addressed=addressed)
        make = SessionsReceiver if self._limits.sessions else ServiceBusReceiver
        receiver: AnyReceiver = make(
            self._link, place, self._limits, now_ms=self._now_ms, on_close=self._receivers.discard
        )
        await receiver.open()
        self._receivers.add(receiver)
        return receiver

    def _make_room(self) -> None:
        idle = [sender for sender in self._senders.values() if sender.connected and sender.idle]
        if idle:
            min(idle, key=lambda sender: sender.last_used).disconnect()

    def _check_up(self) -> None:
        if self._closed:
            raise BusUnavailable("the bus is closed")
