"""A queue in memory with the habits of SQS: visibility, receive counts, the move to the dead-letter queue,
and, if asked for, deliveries in any order and twice."""

import asyncio
from collections.abc import Callable

from lucius.lifebook.message import JobMessage, body_of
from lucius.lifebook.queue import DEAD_WAIT_SECONDS, DELAY_MS_MAX, Depths, JobDelivery, ReturnedDead

POLL_SECONDS = 0.2


class _QueuedMessage:
    def __init__(self, message_id: str, body: str, visible_at_ms: int, reason: str | None = None) -> None:
        self.message_id = message_id
        self.body = body
        self.visible_at_ms = visible_at_ms
        self.receives = 0
        self.receipt = ""
        self.reason = reason


class MemoryQueue:
    """`chance` gives a number from 0 to 1. With a `doubled` chance a received message can be received again
    at once, as SQS does now and then."""

    def __init__(
        self,
        *,
        now_ms: Callable[[], int],
        chance: Callable[[], float],
        receives_max: int = 5,
        doubled: float = 0.0,
    ) -> None:
        self._now_ms = now_ms
        self._chance = chance
        self._receives_max = receives_max
        self._doubled = doubled
        self._kept: dict[str, _QueuedMessage] = {}
        self._dead: dict[str, _QueuedMessage] = {}
        self._sent = 0

    async def send(self, message: JobMessage, *, delay_ms: int = 0) -> None:
        self.put(body_of(message), delay_ms=delay_ms)

    def put(self, body: str, *, delay_ms: int = 0) -> None:
        self._sent += 1
        message_id = f"m{self._sent}"
        visible_at_ms = self._now_ms() + min(delay_ms, DELAY_MS_MAX)
        self._kept[message_id] = _QueuedMessage(message_id, body, visible_at_ms)

    async def receive(self, *, messages_max: int, wait_seconds: int, visibility_ms: int) -> list[JobDelivery]:
        until_ms = self._now_ms() + wait_seconds * 1000
        await asyncio.sleep(0)
        while True:
            found = self._take(self._kept, messages_max, visibility_ms)
            if found or self._now_ms() >= until_ms:
                return found
            await asyncio.sleep(POLL_SECONDS)

    def _take(
        self, kept: dict[str, _QueuedMessage], messages_max: int, visibility_ms: int
    ) -> list[JobDelivery]:
        now_ms = self._now_ms()
        visible = [each for each in kept.values() if each.visible_at_ms <= now_ms]
        visible.sort(key=lambda _: self._chance())
        found = []
        for each in visible[:messages_max]:
            if kept is self._kept and each.receives >= self._receives_max:
                self._move(each)
                continue
            each.receives += 1
            each.receipt = f"{each.message_id}/{each.receives}"
            if self._chance() >= self._doubled:
                each.visible_at_ms = now_ms + visibility_ms
            found.append(
                JobDelivery(
                    message_id=each.message_id,
                    receipt=each.receipt,
                    body=each.body,
                    receives=each.receives,
                    reason=each.reason,
                )
            )
        return found

    def _move(self, each: _QueuedMessage, reason: str | None = None) -> None:
        del self._kept[each.message_id]
        self._dead[each.message_id] = _QueuedMessage(each.message_id, each.body, self._now_ms(), reason)

    async def delete(self, delivery: JobDelivery) -> None:
        self._kept.pop(delivery.message_id, None)

    async def set_visibility(self, delivery: JobDelivery, visibility_ms: int) -> None:
        each = self._kept.get(delivery.message_id)
        if each is not None and each.receipt == delivery.receipt:
            each.visible_at_ms = self._now_ms() + visibility_ms

    async def bury(self, delivery: JobDelivery, reason: str) -> None:
        if (each := self._kept.get(delivery.message_id)) is not None:
            self._move(each, reason)

    async def receive_dead(
        self, *, messages_max: int, visibility_ms: int, wait_seconds: int = DEAD_WAIT_SECONDS
    ) -> list[JobDelivery]:
        return self._take(self._dead, messages_max, visibility_ms)

    async def delete_dead(self, delivery: JobDelivery) -> None:
        self._dead.pop(delivery.message_id, None)

    async def release_dead(self, delivery: JobDelivery) -> None:
        if (each := self._dead.get(delivery.message_id)) is not None:
            each.visible_at_ms = self._now_ms()

    async def return_dead(self, *, messages_max: int) -> ReturnedDead:
        visible = [each for each in self._dead.values() if each.visible_at_ms <= self._now_ms()][
            :messages_max
        ]
        for each in visible:
            del self._dead[each.message_id]
            self.put(each.body)
        return ReturnedDead(messages=len(visible))

    async def depths(self) -> Depths:
        now_ms = self._now_ms()
        waiting = sum(each.visible_at_ms <= now_ms for each in self._kept.values())
        return Depths(waiting=waiting, in_flight=len(self._kept) - waiting, delayed=0, dead=len(self._dead))

    def bodies(self) -> list[str]:
        """What is in the queue, for tests."""
        return [each.body for each in self._kept.values()]

    def dead_bodies(self) -> list[str]:
        return [each.body for each in self._dead.values()]
