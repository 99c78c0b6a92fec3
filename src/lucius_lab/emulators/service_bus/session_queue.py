"""The queue behind a subscription that requires sessions: each session is held by one receiver at a time.

A session's lock covers the messages that its holder took. When it runs out, they count as delivered and come
again; when the holder leaves, they come again uncounted. A message without a session is put aside, as no
receiver could ever ask for it.
"""

from heapq import heappop, heappush
from typing import Final

import msgspec

from lucius_lab.emulators.service_bus.queues import (
    DEAD_LETTERS_MAX,
    DEAD_SUFFIX,
    Entry,
    Locked,
    NewToken,
    SubscriptionQueue,
    Token,
)
from lucius_lab.emulators.service_bus.topology import SubscriptionRules

NO_SESSION: Final = "Session id is null."


class SessionLock(msgspec.Struct, frozen=True, kw_only=True):
    """`holder`: the name of the link that has the session."""

    token: Token
    session_id: str
    holder: str
    until_ms: int


class SessionQueue(SubscriptionQueue):
    def __init__(self, path: str, rules: SubscriptionRules, *, dead: SubscriptionQueue | None) -> None:
        super().__init__(path, rules, dead=dead)
        self._lines: dict[str, list[tuple[int, Entry]]] = {}
        self._held: dict[str, SessionLock] = {}

    def accept(self, wanted: str | None, holder: str, now_ms: int, new_token: NewToken) -> SessionLock | None:
        """The session that is wanted, or the free one whose message waits longest."""
        session_id = self._next_session() if wanted is None else wanted
        if session_id is None or session_id in self._held:
            return None
        lock = SessionLock(
            token=new_token(), session_id=session_id, holder=holder, until_ms=now_ms + self.rules.lock_ms
        )
        self._held[session_id] = lock
        return lock

    def renew_session(self, session_id: str, holder: str, now_ms: int) -> SessionLock | None:
        lock = self._held.get(session_id)
        if lock is None or lock.holder != holder or lock.until_ms <= now_ms:
            return None
        renewed = msgspec.structs.replace(lock, until_ms=now_ms + self.rules.lock_ms)
        self._held[session_id] = renewed
        for token, locked in self._locked.items():
            if locked.entry.message.session_id == session_id:
                self._locked[token] = msgspec.structs.replace(locked, until_ms=renewed.until_ms)
        return renewed

    def release_session(self, token: Token) -> bool:
        """Its holder left: what it took comes again, and that does not count."""
        lock = self._lock(token)
        if lock is None:
            return False
        for entry in self._let_go(lock):
            self.put(entry)
        return True

    def is_session(self, token: Token) -> bool:
        return self._lock(token) is not None

    # -- as a queue ----------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        return bool(self._lines)

    def put(self, entry: Entry) -> None:
        session_id = entry.message.session_id
        if session_id is None:
            self._put_aside(entry, NO_SESSION, NO_SESSION)
        else:
            heappush(self._lines.setdefault(session_id, []), (entry.sequence, entry))

    def take(self, now_ms: int, new_token: NewToken, session_id: str | None = None) -> Locked | None:
        lock, line = self._held.get(session_id or ""), self._lines.get(session_id or "")
        if lock is None or lock.until_ms <= now_ms or not line:
            return None
        _, entry = heappop(line)
        if not line:
            del self._lines[lock.session_id]
        locked = Locked(token=new_token(), entry=entry, until_ms=lock.until_ms)
        self._locked[locked.token] = locked
        return locked

    def renew(self, token: Token, now_ms: int) -> Locked | None:
        """A message has no lock of its own here."""
        return None

    def expire(self, token: Token, now_ms: int) -> bool:
        lock = self._lock(token)
        if lock is None or lock.until_ms > now_ms:
            return False
        for entry in self._let_go(lock):
            self._again(entry)
        return True

    def is_locked(self, token: Token, until_ms: int) -> bool:
        lock = self._lock(token)
        return lock is not None and lock.until_ms == until_ms

    def _waiting(self) -> list[Entry]:
        return [entry for line in self._lines.values() for _, entry in line]

    def _waiting_count(self) -> int:
        return sum(len(line) for line in self._lines.values())

    def _next_session(self) -> str | None:
        free = [(line[0][0], name) for name, line in self._lines.items() if name not in self._held]
        return min(free)[1] if free else None

    def _lock(self, token: Token) -> SessionLock | None:
        return next((lock for lock in self._held.values() if lock.token == token), None)

    def _let_go(self, lock: SessionLock) -> list[Entry]:
        """Releases the session; returns the messages that its holder had taken."""
        del self._held[lock.session_id]
        taken = [
            (token, locked.entry)
            for token, locked in self._locked.items()
            if locked.entry.message.session_id == lock.session_id
        ]
        for token, _ in taken:
            del self._locked[token]
        return [entry for _, entry in taken]


def queue_pair(path: str, rules: SubscriptionRules) -> SubscriptionQueue:
    """A queue and that of its dead letters, which knows no sessions."""
    dead_rules = msgspec.structs.replace(rules, messages_max=DEAD_LETTERS_MAX, sessions=False)
    dead = SubscriptionQueue(path + DEAD_SUFFIX, dead_rules, dead=None)
    return (
        SessionQueue(path, rules, dead=dead) if rules.sessions else SubscriptionQueue(path, rules, dead=dead)
    )
