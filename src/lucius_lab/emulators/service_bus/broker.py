"""The broker: topics, subscriptions, duplicates and schedules, as a state machine without a clock.

In: messages, settlements, and what time it is. Out: locked messages, and refusals in the words of Service
Bus. `woken` collects the queues in which something may have come free, for the hub that delivers it, `lost`
the locks of sessions that ran out; `next_ms` says when time alone will free something.
"""

from collections import OrderedDict
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

import msgspec

from lucius_lab.emulators.service_bus.messages import Message
from lucius_lab.emulators.service_bus.queues import DEAD_SUFFIX, Entry, Locked, SubscriptionQueue, Token
from lucius_lab.emulators.service_bus.session_queue import SessionLock, SessionQueue, queue_pair
from lucius_lab.emulators.service_bus.topology import ADDRESSEE, SubscriptionRules, TopicRules, Topology

ENTITIES_MAX: Final = 10_000
DUPLICATES_MAX: Final = 100_000  # of one topic; the oldest go first
SCHEDULED_MAX: Final = 10_000  # of one topic
DUE_SLACK: Final = 1_024

NOT_FOUND: Final = "amqp:not-found"
FULL: Final = "amqp:resource-limit-exceeded"
TOO_LARGE: Final = "amqp:link:message-size-exceeded"
LOCK_LOST: Final = "com.microsoft:message-lock-lost"
SESSION_LOST: Final = "com.microsoft:session-lock-lost"
NOT_ALLOWED: Final = "amqp:not-allowed"
NOT_SCHEDULED: Final = "com.microsoft:message-not-found"

_SUBSCRIPTIONS: Final = "/subscriptions/"


class BrokerRefused(msgspec.Struct, frozen=True, kw_only=True):
    condition: str
    description: str


class _Topic:
    def __init__(self, name: str, rules: TopicRules) -> None:
        self.name = name
        self.rules = rules
        self.queues: dict[str, SubscriptionQueue] = {}
        self.scheduled: dict[int, Message] = {}
        self.known_ids: OrderedDict[str, int] = OrderedDict()


class Broker:
    def __init__(self, topology: Topology, *, epoch: int) -> None:
        """`epoch`: part of every lock, so that no lock of an earlier broker fits one of this."""
        self.topology = topology
        self.woken: set[str] = set()
        self.lost: set[Token] = set()
        self._epoch = epoch
        self._locks = count(1)
        self._sequences = count(1)
        self._topics: dict[str, _Topic] = {}
        self._due: list[tuple[int, int, str, Token | int]] = []
        self._due_bound = DUE_SLACK
        self._entities = 0
        for name, rules in topology.topics.items():
            self._make_topic(name.lower(), rules)

    # -- entities ------------------------------------------------------------------------------------------

    def make_subscription(self, topic: str, name: str, rules: SubscriptionRules) -> None:
        made = self._topics.get(topic.lower()) or self._make_topic(topic.lower(), self.topology.new_topic)
        self._make_queue(made, name.lower(), rules)

    def check_topic(self, address: str) -> BrokerRefused | None:
        found = self._topic(address)
        return found if isinstance(found, BrokerRefused) else None

    def check_queue(self, address: str) -> BrokerRefused | None:
        found = self._queue(address)
        return found if isinstance(found, BrokerRefused) else None

    def check_receiver(self, address: str, *, sessions: bool) -> BrokerRefused | None:
        """Whether one may receive there, with sessions or without."""
        found = self._queue(address)
        if isinstance(found, BrokerRefused):
            return found
        if isinstance(found, SessionQueue) is sessions:
            return None
        kind = "requires sessions" if found.rules.sessions else "has no sessions"
        return BrokerRefused(condition=NOT_ALLOWED, description=f"The subscription {found.path!r} {kind}.")

    # -- publishing ----------------------------------------------------------------------------------------

    def publish(self, topic: str, messages: Sequence[Message], now_ms: int) -> BrokerRefused | None:
        """All of them or none. What was published before is taken and dropped."""
        self.advance(now_ms)
        found = self._topic(topic)
        if isinstance(found, BrokerRefused):
            return found
        if (refused := self._check_sizes(messages) or self._check_capacity(found, messages)) is not None:
            return refused
        for message in messages:
            if self._is_known(found, message, now_ms):
                continue
            if message.scheduled_ms is not None and message.scheduled_ms > now_ms:
                self._schedule(found, message, message.scheduled_ms)
            else:
                self._fan_out(found, message, now_ms)
        return None

    def schedule(self, topic: str, messages: Sequence[Message], now_ms: int) -> list[int] | BrokerRefused:
        """The numbers by which they can be cancelled."""
        self.advance(now_ms)
        found = self._topic(topic)
        if isinstance(found, BrokerRefused):
            return found
        if (refused := self._check_sizes(messages) or self._check_capacity(found, messages)) is not None:
            return refused
        return [self._schedule(found, message, message.scheduled_ms or now_ms) for message in messages]

    def cancel(self, topic: str, sequences: Sequence[int], now_ms: int) -> BrokerRefused | None:
        self.advance(now_ms)
        found = self._topic(topic)
        if isinstance(found, BrokerRefused):
            return found
        if any(sequence not in found.scheduled for sequence in sequences):
            return BrokerRefused(condition=NOT_SCHEDULED, description="No such scheduled message.")
        for sequence in sequences:
            del found.scheduled[sequence]
        return None

    # -- receiving -----------------------------------------------------------------------------------------

    def take(self, queue: str, now_ms: int, session_id: str | None = None) -> Locked | None:
        self.advance(now_ms)
        found = self._queue(queue)
        if isinstance(found, BrokerRefused):
            return None
        locked = found.take(now_ms, self._new_token, session_id)
        if locked is not None and session_id is None:
            self._note(locked.until_ms, found.path, locked.token)
        return locked

    def complete(self, queue: str, token: Token, now_ms: int) -> BrokerRefused | None:
        found = self._at(queue, now_ms)
        return _lost() if found is None or not found.complete(token, now_ms) else None

    def abandon(self, queue: str, token: Token, now_ms: int) -> BrokerRefused | None:
        found = self._at(queue, now_ms)
        if found is None or not found.abandon(token, now_ms):
            return _lost()
        self._wake(found)
        return None

    def release(self, queue: str, token: Token, now_ms: int) -> BrokerRefused | None:
        found = self._at(queue, now_ms)
        if found is None or not found.release(token, now_ms):
            return _lost()
        self._wake(found)
        return None

    def dead_letter(
        self, queue: str, token: Token, now_ms: int, *, reason: str | None, description: str | None
    ) -> BrokerRefused | None:
        found = self._at(queue, now_ms)
        if found is None or not found.dead_letter(token, now_ms, reason, description):
            return _lost()
        self._wake(found)
        return None

    def renew(self, queue: str, token: Token, now_ms: int) -> int | BrokerRefused:
        """Until when."""
        found = self._at(queue, now_ms)
        locked = None if found is None else found.renew(token, now_ms)
        if found is None or locked is None:
            return _lost()
        self._note(locked.until_ms, found.path, token)
        return locked.until_ms

    def peek(self, queue: str, sequence_min: int, messages_max: int, now_ms: int) -> list[Entry]:
        found = self._at(queue, now_ms)
        return [] if found is None else found.peek(sequence_min, messages_max)

    # -- sessions ------------------------------------------------------------------------------------------

    def accept_session(
        self, queue: str, wanted: str | None, now_ms: int, *, holder: str
    ) -> SessionLock | None:
        """A session for a receiver: this one, or (None) the next in which something waits."""
        found = self._at(queue, now_ms)
        if not isinstance(found, SessionQueue):
            return None
        lock = found.accept(wanted, holder, now_ms, self._new_token)
        if lock is not None:
            self._note(lock.until_ms, found.path, lock.token)
        return lock

    def renew_session(self, queue: str, session_id: str, now_ms: int, *, holder: str) -> int | BrokerRefused:
        """Until when."""
        found = self._at(queue, now_ms)
        lock = found.renew_session(session_id, holder, now_ms) if isinstance(found, SessionQueue) else None
        if found is None or lock is None:
            return BrokerRefused(condition=SESSION_LOST, description="The session lock has expired.")
        self._note(lock.until_ms, found.path, lock.token)
        return lock.until_ms

    def release_session(self, queue: str, token: Token, now_ms: int) -> None:
        found = self._at(queue, now_ms)
        if isinstance(found, SessionQueue) and found.release_session(token):
            self._wake(found)

    # -- time ----------------------------------------------------------------------------------------------

    def advance(self, now_ms: int) -> None:
        """Lets run out what runs out by now, and enqueues what is due."""
        while self._due and self._due[0][0] <= now_ms:
            _, _, name, what = heappop(self._due)
            if isinstance(what, int):
                topic = self._topics[name]
                message = topic.scheduled.pop(what, None)
                if message is not None:
                    self._fan_out(topic, message, now_ms)
            else:
                queue = self._at_path(name)
                session = isinstance(queue, SessionQueue) and queue.is_session(what)
                if queue is not None and queue.expire(what, now_ms):
                    if session:
                        self.lost.add(what)
                    self._wake(queue)

    def next_ms(self) -> int | None:
        while self._due and not self._is_live(self._due[0]):
            heappop(self._due)
        return self._due[0][0] if self._due else None

    # -- inside --------------------------------------------------------------------------------------------

    def _topic(self, address: str) -> _Topic | BrokerRefused:
        name = address.lower()
        topic = self._topics.get(name)
        if topic is not None:
            return topic
        if self.topology.strict:
            return BrokerRefused(condition=NOT_FOUND, description=f"There is no topic {name!r}.")
        if self._entities >= ENTITIES_MAX:
            return BrokerRefused(condition=FULL, description=f"There are {ENTITIES_MAX} entities, the limit.")
        return self._make_topic(name, self.topology.new_topic)

    def _queue(self, address: str) -> SubscriptionQueue | BrokerRefused:
        path = address.lower()
        own_path = path.removesuffix(DEAD_SUFFIX)
        topic_name, divider, name = own_path.partition(_SUBSCRIPTIONS)
        if not divider or not name:
            return BrokerRefused(condition=NOT_FOUND, description=f"{own_path!r} is no subscription.")
        topic = self._topic(topic_name)
        if isinstance(topic, BrokerRefused):
            return topic
        queue = topic.queues.get(name)
        if queue is None and self.topology.strict:
            text = f"The topic {topic_name!r} has no subscription {name!r}."
            return BrokerRefused(condition=NOT_FOUND, description=text)
        if queue is None:
            if self._entities >= ENTITIES_MAX:
                return BrokerRefused(
                    condition=FULL, description=f"There are {ENTITIES_MAX} entities, the limit."
                )
            queue = self._make_queue(topic, name, self.topology.made_for(name))
        return queue.dead if path != own_path and queue.dead is not None else queue

    def _at(self, address: str, now_ms: int) -> SubscriptionQueue | None:
        self.advance(now_ms)
        return self._at_path(address.lower())

    def _at_path(self, path: str) -> SubscriptionQueue | None:
        found = self._queue(path)
        return None if isinstance(found, BrokerRefused) else found

    def _make_topic(self, name: str, rules: TopicRules) -> _Topic:
        topic = self._topics[name] = _Topic(name, rules)
        self._entities += 1
        for subscription, its_rules in rules.subscriptions.items():
            self._make_queue(topic, subscription.lower(), its_rules)
        return topic

    def _make_queue(self, topic: _Topic, name: str, rules: SubscriptionRules) -> SubscriptionQueue:
        queue = topic.queues[name] = queue_pair(f"{topic.name}{_SUBSCRIPTIONS}{name}", rules)
        self._entities += 1
        return queue

    def _check_sizes(self, messages: Sequence[Message]) -> BrokerRefused | None:
        largest = self.topology.largest_message_bytes
        if sum(message.size_bytes for message in messages) <= largest:
            return None
        return BrokerRefused(condition=TOO_LARGE, description=f"More than {largest} bytes in one transfer.")

    def _check_capacity(self, topic: _Topic, messages: Sequence[Message]) -> BrokerRefused | None:
        self._make_addressees(topic, messages)
        full = any(not queue.has_capacity(len(messages)) for queue in topic.queues.values())
        if full or len(topic.scheduled) + len(messages) > SCHEDULED_MAX:
            return BrokerRefused(condition=FULL, description=f"The topic {topic.name!r} has no room.")
        return None

    def _make_addressees(self, topic: _Topic, messages: Sequence[Message]) -> None:
        if self.topology.strict:
            return
        for message in messages:
            name = message.application.get(ADDRESSEE)
            if isinstance(name, str) and name.lower() not in topic.queues and self._entities < ENTITIES_MAX:
                self._make_queue(topic, name.lower(), self.topology.made_for(name))

    def _is_known(self, topic: _Topic, message: Message, now_ms: int) -> bool:
        if message.message_id is None or not topic.rules.duplicates_ms:
            return False
        known = topic.known_ids
        while known and (next(iter(known.values())) <= now_ms or len(known) >= DUPLICATES_MAX):
            known.popitem(last=False)
        if message.message_id in known:
            return True
        known[message.message_id] = now_ms + topic.rules.duplicates_ms
        return False

    def _schedule(self, topic: _Topic, message: Message, at_ms: int) -> int:
        sequence = next(self._sequences)
        topic.scheduled[sequence] = message
        self._note(at_ms, topic.name, sequence)
        return sequence

    def _fan_out(self, topic: _Topic, message: Message, now_ms: int) -> None:
        for queue in topic.queues.values():
            if queue.rules.takes(message):
                queue.put(Entry(message, next(self._sequences), now_ms))
                self._wake(queue)

    def _wake(self, queue: SubscriptionQueue) -> None:
        if queue.waits:
            self.woken.add(queue.path)
        if queue.dead is not None and queue.dead.waits:
            self.woken.add(queue.dead.path)

    def _new_token(self) -> Token:
        return self._epoch.to_bytes(8, "big") + next(self._locks).to_bytes(8, "big")

    def _note(self, at_ms: int, name: str, what: Token | int) -> None:
        heappush(self._due, (at_ms, next(self._sequences), name, what))
        if len(self._due) > self._due_bound:
            # Most of them speak of locks that were settled or renewed since.
            self._due = [due for due in self._due if self._is_live(due)]
            heapify(self._due)
            self._due_bound = DUE_SLACK + 2 * len(self._due)

    def _is_live(self, due: tuple[int, int, str, Token | int]) -> bool:
        at_ms, _, name, what = due
        if isinstance(what, int):
            return what in self._topics[name].scheduled
        queue = self._at_path(name)
        return queue is not None and queue.is_locked(what, at_ms)


def _lost() -> BrokerRefused:
    return BrokerRefused(
        condition=LOCK_LOST,
        description="The lock supplied is invalid. Either the lock expired, or the message has already been "
        "removed from the queue.",
    )
