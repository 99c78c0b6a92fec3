"""What things are called on Service Bus, and what goes beside a body.

Topics are those of `core.routing`. A service's subscription bears its name, and takes what has that name in
the application property `service`. Two services never share a name here, however theirs are spelled.
"""

import re
from hashlib import sha256
from typing import Final

import msgspec

from lucius.bus.port import DirectiveOut, ReplyOut
from lucius.core.routing import reply_topic, topic

SUBSCRIPTION_LENGTH_MAX: Final = 50  # the limit of Service Bus
WIRE_ID_LENGTH_MAX: Final = 128  # as well
PARTITION_KEY_LENGTH_MAX: Final = 128  # as well, and of sessions
NO_KEY_SESSION: Final = "-"
LABEL_LENGTH_MAX: Final = 256
# Room for the longest key, three times, and id, twice, for the labels with up to four bytes a character, and
# for a token.
HEADERS_BYTES_MAX: Final = 16_384

SERVICE_PROPERTY: Final = "service"
ID_PROPERTY: Final = "message_id"
KEY_PROPERTY: Final = "routing_key_used"
MESSAGE_KEY_PROPERTY: Final = "message_key"  # the same, by its name on every bus
LANE_PROPERTY: Final = "lane"
TOKEN_PROPERTY: Final = "callback_token"  # noqa: S105 (a name)

_PLAIN: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?")
_SLUG_LENGTH_MAX: Final = 16
_HASH_LENGTH: Final = 32


class ServiceBusLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`deliveries_max` and `largest_message_bytes` are the namespace's: they must be as it has them."""

    deliveries_max: int = 10
    largest_message_bytes: int = 262_144  # headers included; the standard tier's
    batch_messages_max: int = 100
    waiting_max: int = 10_000  # publishes of one topic that were not answered yet
    connections_max: int = 256
    delayed_max: int = 1_000  # messages of one receiver that were given back with a delay
    partition_keys: bool = True  # whether the message key is the partition key as well
    sessions: bool = False  # whether it is the session instead: the subscriptions must require sessions
    sessions_max: int = 4  # that one receiver holds at a time, each over a connection of its own


class MessageLabels(msgspec.Struct, frozen=True, kw_only=True):
    """Members of a directive or a reply that its message shows to people, and to filters, without its body
    being opened. Nothing here reads them again."""

    type: str | None = None
    mode: str | None = None
    job_id: str | None = msgspec.field(name="jobId", default=None)
    step_id: str | None = msgspec.field(name="stepId", default=None)
    tenant_id: str | None = None
    attempt_no: int | None = None
    lease_id: str | None = None
    correlation_id: str | None = None
    traceparent: str | None = None


_LABELS: Final = msgspec.json.Decoder(MessageLabels)


def labels(body: bytes) -> dict[str, str | int]:
    """Empty for a body that is no such message: then it has nothing to show."""
    try:
        found = msgspec.to_builtins(_LABELS.decode(body))
    except msgspec.DecodeError:
        return {}
    return {name: value for name, value in found.items() if _is_short(value)}


def _is_short(value: str | int | None) -> bool:
    return isinstance(value, int) or (isinstance(value, str) and len(value) <= LABEL_LENGTH_MAX)


def subscription_name(name: str) -> str:
    """Small letters, digits and `-` stay; a name with anything else, or too long, ends with its hash. A dot
    stands before the hash and in no other name."""
    if _PLAIN.fullmatch(name):
        return name
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_SLUG_LENGTH_MAX].strip("-")
    return f"{slug or 'x'}.{sha256(name.encode()).hexdigest()[:_HASH_LENGTH]}"


def topic_of(out: DirectiveOut | ReplyOut) -> str:
    return topic(out.lane) if isinstance(out, DirectiveOut) else reply_topic(out.lane)


def wire_id(out: DirectiveOut | ReplyOut) -> str:
    """By what Service Bus finds duplicates. It does so in a whole topic, so a directive's names its service,
    too: another service may have the same id."""
    text = f"{out.service}/{out.message_id}" if isinstance(out, DirectiveOut) else out.message_id
    return _bounded(text, WIRE_ID_LENGTH_MAX)


def partition_key(message_key: str) -> str | None:
    return _bounded(message_key, PARTITION_KEY_LENGTH_MAX) or None


def session_id(message_key: str) -> str:
    """Every message has one where sessions are required, whatever its key."""
    return partition_key(message_key) or NO_KEY_SESSION


def _bounded(text: str, length_max: int) -> str:
    return text if len(text) <= length_max else f"h.{sha256(text.encode()).hexdigest()}"
