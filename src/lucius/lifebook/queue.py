"""The port to the queue of jobs and its dead-letter queue.

In: messages to send, deliveries to settle. Out: deliveries, each with how often its message was received. A
message may come twice, late and in any order; what a delivery means is for the record of its job to say.
"""

from typing import Final, Protocol

import msgspec

from lucius.lifebook.message import JobMessage

RECEIVE_MESSAGES_MAX: Final = 10
DELAY_MS_MAX: Final = 900_000
VISIBILITY_MS_MAX: Final = 43_200_000
DEAD_WAIT_SECONDS: Final = 1


class JobDelivery(msgspec.Struct, frozen=True, kw_only=True):
    message_id: str
    receipt: str
    body: str
    receives: int
    reason: str | None = None
    """Why a worker put it into the dead-letter queue; none where the queue itself moved it."""


class Depths(msgspec.Struct, frozen=True, kw_only=True):
    """About how many messages there are: SQS counts approximately."""

    waiting: int
    in_flight: int
    delayed: int
    dead: int


class ReturnedDead(msgspec.Struct, frozen=True, kw_only=True):
    """What a call that returns dead letters did, or began."""

    messages: int = 0
    """How many are back in the queue already."""
    task: str | None = None
    """The task by which the queue itself moves them."""


class JobQueue(Protocol):
    async def send(self, message: JobMessage, *, delay_ms: int = 0) -> None:
        """At most `DELAY_MS_MAX` of the delay is kept; a delivery that comes too early waits again."""

    async def receive(
        self, *, messages_max: int, wait_seconds: int, visibility_ms: int
    ) -> list[JobDelivery]: ...

    async def delete(self, delivery: JobDelivery) -> None: ...

    async def set_visibility(self, delivery: JobDelivery, visibility_ms: int) -> None:
        """From now on the message is not delivered for this long. What is gone already stays gone."""

    async def bury(self, delivery: JobDelivery, reason: str) -> None:
        """Into the dead-letter queue, with the reason, and out of this one."""

    async def receive_dead(
        self, *, messages_max: int, visibility_ms: int, wait_seconds: int = DEAD_WAIT_SECONDS
    ) -> list[JobDelivery]:
        """Without waiting, SQS asks a few of its servers, and may find nothing where something is."""

    async def delete_dead(self, delivery: JobDelivery) -> None: ...

    async def release_dead(self, delivery: JobDelivery) -> None:
        """What was received from the dead-letter queue is visible there again."""

    async def return_dead(self, *, messages_max: int) -> ReturnedDead:
        """Back into the queue with all that is visible in the dead-letter queue. What the queue does not move
        by itself is moved here, at most so many messages a call."""

    async def depths(self) -> Depths: ...
