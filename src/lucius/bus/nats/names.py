"""What the NATS adapter calls its streams, subjects and consumers, and how it sets them up.

In: a prefix, services, groups, lanes, limits. Out: names that NATS takes, and the settings of each stream and
consumer. Directives lie in work queues (a message is gone once its service completed it), replies are kept
until every group completed them, dead letters until newer ones of their queue push them out. A subject is
`prefix.topic.service` for directives and `prefix.topic` for replies.

The lanes are spread over a few streams, because a server that syncs every write does so stream by stream.
"""

from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec

from lucius.core.routing import LANES, reply_topic, topic

Json = Any

STREAMS: Final = 4  # of directives, and as many of replies: more were not faster
TOKEN_LENGTH_MAX: Final = (
    160  # NATS takes names up to 255; a consumer's has a lane and a group's mark as well
)
ACKS_PENDING_MAX: Final = 10_000
MAX_DELIVER_UNLIMITED: Final = -1  # ours is enforced here: the server would only announce it
NANOS_IN_MS: Final = 1_000_000

_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-")


class NatsLimits(msgspec.Struct, frozen=True, kw_only=True):
    lock_ms: int = 30_000
    deliveries_max: int = 10
    messages_max: int = 10_000  # of one service's lane, or of one lane of replies
    dead_letters_max: int = 1_000  # of one queue; the oldest go first
    duplicates_ms: int = 120_000  # how long a message id is remembered
    replicas: int = 1


class LaneConsumer(msgspec.Struct, frozen=True, kw_only=True):
    """One consumer's view of one lane, by its names."""

    lane: int
    stream: str
    consumer: str
    subject: str
    dead_subject: str


def token(name: str) -> str:
    """A part of a subject or of a consumer's name: small letters, digits and `-` stay, each other byte is
    `_` and two hex digits, so that no two names meet, not even on a file system that folds case."""
    text = "".join(chr(byte) if byte in _PLAIN else f"_{byte:02x}" for byte in name.encode())
    return text if len(text) <= TOKEN_LENGTH_MAX else f"_h{sha256(name.encode()).hexdigest()}"


def in_header(text: str) -> str:
    """Any text as a header's value: on one line, and without space at its ends."""
    return quote(text, safe=" !#$&'()*+,/:;=?@[]<>{}|\\^`\"").replace(" ", "%20")


def from_header(value: str) -> str:
    return unquote(value)


class NatsNames:
    def __init__(self, prefix: str) -> None:
        root = token(prefix)
        self.dead_stream = f"{root}-dead"
        self.nudge_subject = f"{root}.nudge"  # of no stream: a note reaches the processes that listen
        self._root = root

    def directive_subject(self, service: str, lane: int) -> str:
        return f"{self._root}.{topic(lane)}.{token(service)}"

    def reply_subject(self, lane: int) -> str:
        return f"{self._root}.{reply_topic(lane)}"

    def directive_queue(self, service: str, lane: int) -> LaneConsumer:
        return LaneConsumer(
            lane=lane,
            stream=self._directives_stream(lane),
            consumer=f"{token(service)}-p{lane}",
            subject=self.directive_subject(service, lane),
            dead_subject=f"{self._root}.dead.{topic(lane)}.{token(service)}",
        )

    def reply_queue(self, lane: int, group: str) -> LaneConsumer:
        return LaneConsumer(
            lane=lane,
            stream=self._replies_stream(lane),
            consumer=f"{token(group)}-p{lane}",
            subject=self.reply_subject(lane),
            dead_subject=f"{self._root}.dead.{reply_topic(lane)}.{token(group)}",
        )

    def streams(self, limits: NatsLimits) -> list[dict[str, Json]]:
        """A full queue refuses what is new: the publisher keeps it, and nothing that was taken is lost."""
        full = {
            "max_msgs_per_subject": limits.messages_max,
            "discard": "new",
            "discard_new_per_subject": True,
        }
        shared = {
            "storage": "file",
            "num_replicas": limits.replicas,
            "duplicate_window": limits.duplicates_ms * NANOS_IN_MS,
        }
        dead = {
            "name": self.dead_stream,
            "subjects": [f"{self._root}.dead.>"],
            "retention": "limits",
            "max_msgs_per_subject": limits.dead_letters_max,
            "discard": "old",
            "allow_direct": True,
            **shared,
        }
        return [
            *({**self._directives(number), **full, **shared} for number in range(STREAMS)),
            *({**self._replies(number), **full, **shared} for number in range(STREAMS)),
            dead,
        ]

    def _directives(self, number: int) -> dict[str, Json]:
        return {
            "name": self._directives_stream(number),
            "subjects": [f"{self._root}.{topic(lane)}.*" for lane in range(number, LANES, STREAMS)],
            "retention": "workqueue",
        }

    def _replies(self, number: int) -> dict[str, Json]:
        return {
            "name": self._replies_stream(number),
            "subjects": [self.reply_subject(lane) for lane in range(number, LANES, STREAMS)],
            "retention": "interest",
        }

    def _directives_stream(self, lane: int) -> str:
        return f"{self._root}-directives-{lane % STREAMS}"

    def _replies_stream(self, lane: int) -> str:
        return f"{self._root}-replies-{lane % STREAMS}"


def consumer_settings(queue: LaneConsumer, limits: NatsLimits) -> dict[str, Json]:
    return {
        "name": queue.consumer,
        "durable_name": queue.consumer,
        "filter_subject": queue.subject,
        "deliver_policy": "all",
        "replay_policy": "instant",
        "ack_policy": "explicit",
        "ack_wait": limits.lock_ms * NANOS_IN_MS,
        "max_deliver": MAX_DELIVER_UNLIMITED,
        "max_ack_pending": ACKS_PENDING_MAX,
    }
