"""One topic's way out: what is published at the same time goes in one transfer.

In: messages. Out: each publisher learns what became of its own. While a transfer is under way the next one
gathers, up to a bound; messages of one transfer have one partition key or session, as Service Bus wants it,
and keys take turns. A connection that broke is made again and the transfer repeated, which is why ids find
duplicates; a caller gets a fault if there is no connection.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusSender

from lucius.bus.port import BusError, BusUnavailable, MessageTooLarge
from lucius.bus.service_bus.connection import NamespaceConnection, ServiceBusRefused, fault_of
from lucius.bus.service_bus.names import ServiceBusLimits

PUBLISH_SECONDS_MAX: Final = 10.0
TRIES: Final = 4
REPEAT_SECONDS: Final = 0.1
BATCH_OVERHEAD_BYTES: Final = 1_024  # of each message in a batch, beside its body and its properties


class PendingMessage(msgspec.Struct, frozen=True, kw_only=True):
    message_id: str
    partition_key: str | None
    session_id: str | None = None
    properties: Mapping[str, str | int]
    body: bytes

    @property
    def size_bytes(self) -> int:
        """At most so many."""
        said = sum(len(name) + 4 * len(str(value)) for name, value in self.properties.items())
        return len(self.body) + said + BATCH_OVERHEAD_BYTES

    def message(self) -> ServiceBusMessage:
        """Made anew for each try: the SDK keeps things in it."""
        return ServiceBusMessage(
            self.body,
            message_id=self.message_id,
            partition_key=self.partition_key,
            session_id=self.session_id,
            content_type="application/json",
            application_properties=dict[Any, Any](self.properties),
        )


Waiting = tuple[PendingMessage, "asyncio.Future[None]"]


class TopicSender:
    def __init__(self, link: NamespaceConnection, topic: str, limits: ServiceBusLimits) -> None:
        self.topic = topic
        self.last_used = 0.0
        self._link = link
        self._limits = limits
        self._waiting: OrderedDict[str | None, deque[Waiting]] = OrderedDict()
        self._waiting_count = 0
        self._pumping: asyncio.Task[None] | None = None
        self._sender: ServiceBusSender | None = None

    @property
    def idle(self) -> bool:
        return self._pumping is None

    @property
    def connected(self) -> bool:
        return self._sender is not None

    async def send(self, out: PendingMessage) -> None:
        """Returns once Service Bus keeps it."""
        if self._waiting_count >= self._limits.waiting_max:
            raise BusUnavailable(f"{self._limits.waiting_max} messages wait for the topic already")
        loop = asyncio.get_running_loop()
        self.last_used = loop.time()
        answer: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(out.session_id or out.partition_key, deque()).append((out, answer))
        self._waiting_count += 1
        if self._pumping is None:
            self._pumping = asyncio.create_task(self._pump())
        await answer

    async def drain(self) -> None:
        if self._pumping is not None:
            await asyncio.wait({self._pumping})

    def disconnect(self) -> None:
        if self._sender is not None:
            self._link.discard(self._sender)
            self._sender = None

    async def _pump(self) -> None:
        try:
            while batch := self._next_batch():
                fault = await self._deliver([out for out, _ in batch])
                for _, answer in batch:
                    if answer.done():
                        continue
                    if fault is None:
                        answer.set_result(None)
                    else:
                        answer.set_exception(fault)
        finally:
            self._pumping = None
            for answer in [answer for line in self._waiting.values() for _, answer in line]:
                if not answer.done():
                    answer.set_exception(BusUnavailable("the bus is closed"))

    def _next_batch(self) -> list[Waiting]:
        """Those of the first key, as many as go into a transfer. Who no longer waits is left out."""
        batch: list[Waiting] = []
        while self._waiting and not batch:
            key, line = self._waiting.popitem(last=False)
            size_bytes = 0
            while line and len(batch) < self._limits.batch_messages_max:
                out, answer = line[0]
                if not answer.done():
                    size_bytes += out.size_bytes
                    if batch and size_bytes > self._limits.largest_message_bytes:
                        break
                    batch.append((out, answer))
                line.popleft()
                self._waiting_count -= 1
            if line:
                self._waiting[key] = line
        return batch

    async def _deliver(self, batch: list[PendingMessage]) -> BusError | MessageTooLarge | None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PUBLISH_SECONDS_MAX
        tries = 0
        while True:
            tries += 1
            try:
                async with asyncio.timeout_at(deadline):
                    if self._sender is None:
                        self._sender = await self._link.open_sender(self.topic)
                    await self._transfer(self._sender, batch)
            except Exception as fault:
                known = fault_of(fault, f"topic {self.topic}")
                broke = self._sender is not None
                self.disconnect()
                if not broke or tries == TRIES or not _may_repeat(known) or loop.time() >= deadline:
                    return known
                await asyncio.sleep(REPEAT_SECONDS)
            else:
                self.last_used = loop.time()
                return None

    async def _transfer(self, sender: ServiceBusSender, batch: list[PendingMessage]) -> None:
        if len(batch) == 1:
            await sender.send_messages(batch[0].message())
            return
        together = await sender.create_message_batch()
        for out in batch:
            together.add_message(out.message())
        await sender.send_messages(together)


def _may_repeat(fault: BusError | MessageTooLarge) -> bool:
    return isinstance(fault, BusUnavailable) and not isinstance(fault, ServiceBusRefused)
