"""The port of the bus: its verbs, its values, its faults, and what every adapter promises.

A directive goes to one service on one lane, a reply to one lane; `core.routing` names the topics. Receivers
of the same service and lane compete for its directives; every consumer group gets each reply, and receivers
of one group compete for it. What was published waits until a receiver takes it, even if it was published
before the receiver was opened.

Receiving is by peek-lock. A message that `receive` returns is locked for its receiver until
`locked_until_ms`. Then it is completed, given back, dead-lettered, or its lock runs out and it is delivered
again with a higher `delivery_count`. Giving back counts as a delivery, as it does on brokers. A message whose
last delivery ends without being settled is dead-lettered with the reason `DELIVERIES_EXHAUSTED`.

Delivery is at least once and in no promised order: a message may come twice, whatever its id. An adapter
locks nothing before `receive` asks for it. So a consumer whose dependency is down stops fetching by not
asking, and no lock runs out in a buffer meanwhile.

Texts of faults never repeat what a broker said about credentials or connection strings: they reach events.
"""

from typing import Final, Protocol

import msgspec

from lucius.core.attempt import AttemptRef
from lucius.core.routing import LANES

MESSAGE_ID_LENGTH_MAX: Final = 128  # the limit of Service Bus
MESSAGE_KEY_LENGTH_MAX: Final = 512
SERVICE_LENGTH_MAX: Final = 63
TOKEN_LENGTH_MAX: Final = 1_024
REASON_LENGTH_MAX: Final = 1_000

DELIVERIES_EXHAUSTED: Final = "DELIVERIES_EXHAUSTED"


class BusError(Exception):
    """The bus failed. Nothing can be said about the outcome unless a subclass says so."""


class BusUnavailable(BusError):
    """The bus cannot be used now: out of reach, full, or it did not answer. What was being published may have
    been taken or not."""


class LockLost(BusError):
    """The lock ran out before the message was settled: another receiver has it, or will get it."""


class MessageTooLarge(ValueError):
    """More bytes than the bus carries. Trying again does not help."""


class DirectiveOut(msgspec.Struct, frozen=True, kw_only=True):
    """A directive on its way to a service."""

    service: str
    lane: int
    message_key: str  # routing_key_used: a session or partition key where the broker has such
    message_id: str  # see `directive_id`; a broker may drop a second message with the same id
    body: bytes


class ReplyOut(msgspec.Struct, frozen=True, kw_only=True):
    """A reply on its way to the orchestrator."""

    lane: int
    message_key: str
    message_id: str
    body: bytes
    token: str | None = None
    """Its directive's callback token, which travels beside the body."""


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """A message that one receiver holds."""

    lane: int
    message_key: str
    message_id: str
    body: bytes
    delivery_count: int  # 1 the first time
    deliveries_left: int  # how often it may come again before it is dead-lettered
    locked_until_ms: int
    lock: str  # names this delivery to the adapter that made it; no other code reads it
    token: str | None = None  # of a reply, as it was sent with it


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    message_id: str
    message_key: str
    body: bytes
    delivery_count: int
    reason: str


class Receiver(Protocol):
    """One consumer's view of one lane. Settling with a lock that was lost raises `LockLost`, except on a bus
    that does not fence (see `Bus.fences`)."""

    async def receive(self, *, messages_max: int, wait_ms: int) -> list[Delivery]:
        """Up to `messages_max` messages; waits up to `wait_ms` for the first. One call at a time. Cancelled
        while it waits, it has taken nothing, or its locks run out."""
        ...

    async def complete(self, delivery: Delivery) -> None:
        """It was dealt with: it never comes again."""
        ...

    async def give_back(self, delivery: Delivery, *, delay_ms: int) -> None:
        """Not now: it comes again, to any receiver, after the delay."""
        ...

    async def extend(self, delivery: Delivery) -> Delivery:
        """Renews the lock for another full span."""
        ...

    async def dead_letter(self, delivery: Delivery, *, reason: str) -> None:
        """It can never be processed: puts it aside with the reason, for the operator to look at."""
        ...

    async def dead_letters(self, *, messages_max: int) -> list[DeadLetter]:
        """What was put aside here, the oldest first. Takes nothing away."""
        ...

    async def close(self) -> None: ...


class DirectiveSender(Protocol):
    @property
    def largest_message_bytes(self) -> int:
        """The largest body that a directive or a reply may have."""
        ...

    async def publish_directive(self, directive: DirectiveOut) -> None:
        """Returns once the bus keeps it. Raises `BusUnavailable` or `MessageTooLarge`."""
        ...


class ReplySender(Protocol):
    async def publish_reply(self, reply: ReplyOut) -> None:
        """Returns once the bus keeps it. Raises `BusUnavailable` or `MessageTooLarge`."""
        ...


class DirectiveSource(Protocol):
    @property
    def knows_empty_at_once(self) -> bool:
        """Whether `receive` without a wait answers at once. Where it has to listen for a while to know that a
        queue is empty, a reader of many lanes listens to all of them side by side."""
        ...

    async def directives(self, service: str, lane: int) -> Receiver: ...


class ReplySource(Protocol):
    async def replies(self, lane: int, *, group: str) -> Receiver:
        """Groups belong to the bus's topology: one that it does not have is a `ValueError`."""
        ...


class Bus(DirectiveSender, ReplySender, DirectiveSource, ReplySource, Protocol):
    @property
    def fences(self) -> bool:
        """Whether settling with a lost lock is refused. Where it is not, a late `complete` may end a delivery
        that another worker works on; the ledger's attempt and lease check keeps that harmless."""
        ...

    @property
    def shared(self) -> bool:
        """Whether several processes may meet on it."""
        ...

    async def ping(self) -> None:
        """Raises `BusUnavailable` if nothing can be published now."""
        ...

    async def close(self) -> None: ...


def directive_id(attempt: AttemptRef) -> str:
    """The same for every publish of one attempt: a repeat after a crash is known as such by its service."""
    return f"{attempt.job_id}.{attempt.step_id}.{attempt.attempt_no}.{attempt.lease_id}"


def check_out(message: DirectiveOut | ReplyOut, *, largest_message_bytes: int) -> None:
    """What no adapter takes. Wrong lanes and names are faults of the caller; a size may be a user's."""
    check_lane(message.lane)
    if isinstance(message, DirectiveOut):
        check_service(message.service)
    if not 0 < len(message.message_id) <= MESSAGE_ID_LENGTH_MAX:
        raise ValueError(f"a message id has 1 to {MESSAGE_ID_LENGTH_MAX} characters")
    if len(message.message_key) > MESSAGE_KEY_LENGTH_MAX:
        raise ValueError(f"a message key has at most {MESSAGE_KEY_LENGTH_MAX} characters")
    if isinstance(message, ReplyOut) and len(message.token or "") > TOKEN_LENGTH_MAX:
        raise ValueError(f"a callback token has at most {TOKEN_LENGTH_MAX} characters")
    if len(message.body) > largest_message_bytes:
        raise MessageTooLarge(
            f"the message has {len(message.body)} bytes, and the bus carries at most {largest_message_bytes}"
        )


def check_lane(lane: int) -> None:
    if not 0 <= lane < LANES:
        raise ValueError(f"lanes are numbered 0 to {LANES - 1}, not {lane}")


def check_service(service: str) -> None:
    if not 0 < len(service) <= SERVICE_LENGTH_MAX:
        raise ValueError(f"a service's name has 1 to {SERVICE_LENGTH_MAX} characters")
