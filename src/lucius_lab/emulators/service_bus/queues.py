"""The queue behind one subscription: what waits, what is locked, and what was put aside.

Reads no clock: the time is an argument of every call. A lock is 16 bytes that its owner has to show; who
shows one that ran out, or that was never given, gets False or None.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

import msgspec

from lucius_lab.emulators.service_bus.messages import Message
from lucius_lab.emulators.service_bus.topology import SubscriptionRules

TOO_OFTEN: Final = "MaxDeliveryCountExceeded"
TOO_OFTEN_TEXT: Final = "Message could not be consumed after {count} delivery attempts."
DEAD_LETTERS_MAX: Final = 10_000
DEAD_SUFFIX: Final = "/$deadletterqueue"

Token = bytes
NewToken = Callable[[], Token]


class Entry:
    """A message in one queue. `deliveries` counts those that ended without being settled."""

    __slots__ = ("deliveries", "description", "enqueued_ms", "message", "reason", "sequence")

    def __init__(self, message: Message, sequence: int, enqueued_ms: int) -> None:
        self.message = message
        self.sequence = sequence
        self.enqueued_ms = enqueued_ms
        self.deliveries = 0
        self.reason: str | None = None
        self.description: str | None = None


class Locked(msgspec.Struct, frozen=True, kw_only=True):
    token: Token
    entry: Entry
    until_ms: int


class SubscriptionQueue:
    """`dead`: where its dead letters go; None for a queue of dead letters."""

    def __init__(self, path: str, rules: SubscriptionRules, *, dead: "SubscriptionQueue | None") -> None:
        self.path = path
        self.rules = rules
        self.dead = dead
        self._ready: list[tuple[int, Entry]] = []
        self._locked: dict[Token, Locked] = {}

    @property
    def depth(self) -> int:
        return self._waiting_count() + len(self._locked)

    @property
    def waits(self) -> bool:
        return bool(self._ready)

    def has_capacity(self, count: int) -> bool:
        return self.depth + count <= self.rules.messages_max

    def put(self, entry: Entry) -> None:
        heappush(self._ready, (entry.sequence, entry))

    def take(self, now_ms: int, new_token: NewToken, session_id: str | None = None) -> Locked | None:
        if not self._ready:
            return None
        _, entry = heappop(self._ready)
        locked = Locked(token=new_token(), entry=entry, until_ms=now_ms + self.rules.lock_ms)
        self._locked[locked.token] = locked
        return locked

    def renew(self, token: Token, now_ms: int) -> Locked | None:
        locked = self._valid(token, now_ms)
        if locked is None:
            return None
        renewed = msgspec.structs.replace(locked, until_ms=now_ms + self.rules.lock_ms)
        self._locked[token] = renewed
        return renewed

    def complete(self, token: Token, now_ms: int) -> bool:
        return self._release(token, now_ms) is not None

    def release(self, token: Token, now_ms: int) -> bool:
        """It was never looked at: it comes again, and that does not count."""
        entry = self._release(token, now_ms)
        if entry is not None:
            self.put(entry)
        return entry is not None

    def abandon(self, token: Token, now_ms: int) -> bool:
        entry = self._release(token, now_ms)
        if entry is not None:
            self._again(entry)
        return entry is not None

    def dead_letter(self, token: Token, now_ms: int, reason: str | None, description: str | None) -> bool:
        entry = self._release(token, now_ms)
        if entry is not None:
            entry.deliveries += 1
            self._put_aside(entry, reason, description)
        return entry is not None

    def expire(self, token: Token, now_ms: int) -> bool:
        """Whether a lock ran out just now."""
        locked = self._locked.get(token)
        if locked is None or locked.until_ms > now_ms:
            return False
        del self._locked[token]
        self._again(locked.entry)
        return True

    def is_locked(self, token: Token, until_ms: int) -> bool:
        locked = self._locked.get(token)
        return locked is not None and locked.until_ms == until_ms

    def peek(self, sequence_min: int, count: int) -> list[Entry]:
        """Whatever is here, locked or not, the oldest first."""
        entries = self._waiting() + [one.entry for one in self._locked.values()]
        found = sorted(
            (entry for entry in entries if entry.sequence >= sequence_min), key=lambda entry: entry.sequence
        )
        return found[:count]

    def _waiting(self) -> list[Entry]:
        return [entry for _, entry in self._ready]

    def _waiting_count(self) -> int:
        return len(self._ready)

    def _valid(self, token: Token, now_ms: int) -> Locked | None:
        locked = self._locked.get(token)
        return locked if locked is not None and locked.until_ms > now_ms else None

    def _release(self, token: Token, now_ms: int) -> Entry | None:
        locked = self._valid(token, now_ms)
        if locked is None:
            return None
        del self._locked[token]
        return locked.entry

    def _again(self, entry: Entry) -> None:
        entry.deliveries += 1
        if self.dead is not None and entry.deliveries >= self.rules.deliveries_max:
            self._put_aside(entry, TOO_OFTEN, TOO_OFTEN_TEXT.format(count=entry.deliveries))
        else:
            self.put(entry)

    def _put_aside(self, entry: Entry, reason: str | None, description: str | None) -> None:
        if self.dead is None:
            self.put(entry)  # a dead letter cannot be put aside again
            return
        entry.reason, entry.description = reason, description
        if self.dead.has_capacity(1):
            self.dead.put(entry)
