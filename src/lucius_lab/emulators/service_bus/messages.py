"""Messages: the sections that the broker looks at, and the rest as bytes.

In: the bytes of one message, or of a batch of them. Out: messages; and back, with what the broker adds: how
often it was delivered, when it came, until when it is locked, why it was put aside.
"""

from typing import Any, Final

import msgspec

from lucius_lab.emulators.service_bus.codec import (
    AmqpReader,
    DescribedValue,
    Malformed,
    Symbol,
    UInt,
    ULong,
    encode,
)

BATCH_FORMAT: Final = 0x80013700
BATCH_MESSAGES_MAX: Final = 5_000

HEADER: Final = 0x70
DELIVERY_ANNOTATIONS: Final = 0x71
ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73
APPLICATION: Final = 0x74
DATA: Final = 0x75
VALUE: Final = 0x77

SCHEDULED_TIME: Final = Symbol("x-opt-scheduled-enqueue-time")

_MESSAGE_ID_FIELD: Final = 0
_GROUP_ID_FIELD: Final = 10


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """`properties` and `body` are encoded sections that pass through as they came."""

    message_id: str | None
    session_id: str | None = None
    properties: bytes
    annotations: dict[Any, Any]
    application: dict[Any, Any]
    body: bytes
    size_bytes: int

    @property
    def scheduled_ms(self) -> int | None:
        at = self.annotations.get(SCHEDULED_TIME)
        return int(at) if isinstance(at, int) else None


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A message that asks a node for something."""

    message_id: Any
    application: dict[Any, Any]
    value: Any


def parse_message(data: bytes) -> Message:
    found, body = _sections(data)
    message_id, session_id = _property(found, _MESSAGE_ID_FIELD), _property(found, _GROUP_ID_FIELD)
    return Message(
        message_id=None if message_id is None else str(message_id),
        session_id=None if session_id is None else str(session_id),
        properties=found[PROPERTIES][0] if PROPERTIES in found else b"",
        annotations=_map(found, ANNOTATIONS),
        application=_map(found, APPLICATION),
        body=body,
        size_bytes=len(data),
    )


def parse_batch(data: bytes) -> list[Message]:
    """The messages inside the data sections of a batch."""
    reader = AmqpReader(data)
    messages: list[Message] = []
    while reader.left:
        section = reader.value()
        if isinstance(section, DescribedValue) and section.descriptor == DATA:
            if not isinstance(section.value, bytes):
                raise Malformed("a data section without bytes")
            messages.append(parse_message(section.value))
        if len(messages) > BATCH_MESSAGES_MAX:
            raise Malformed(f"more than {BATCH_MESSAGES_MAX} messages in a batch")
    return messages


def parse_request(data: bytes) -> Request:
    found, body = _sections(data)
    section = AmqpReader(body).value() if body else None
    value = section.value if isinstance(section, DescribedValue) else None
    return Request(
        message_id=_property(found, _MESSAGE_ID_FIELD),
        application=_map(found, APPLICATION),
        value=value,
    )


def encode_message(
    message: Message,
    *,
    deliveries: int,
    annotations: dict[Any, Any],
    application: dict[Any, Any],
) -> bytes:
    """`deliveries`: how many ended without being settled, before this one."""
    sections = [
        _section(HEADER, [True, None, None, None, UInt(deliveries)]),
        _section(ANNOTATIONS, message.annotations | annotations),
        message.properties,
    ]
    if message.application or application:
        sections.append(_section(APPLICATION, message.application | application))
    return b"".join((*sections, message.body))


def encode_answer(*, correlation_id: Any, application: dict[str, Any], value: Any) -> bytes:
    properties = [None, None, None, None, None, correlation_id]
    return (
        _section(PROPERTIES, properties) + _section(APPLICATION, dict(application)) + _section(VALUE, value)
    )


def _sections(data: bytes) -> tuple[dict[int, tuple[bytes, Any]], bytes]:
    """Each section before the body as bytes and as a value, and the body's bytes."""
    reader = AmqpReader(data)
    found: dict[int, tuple[bytes, Any]] = {}
    while reader.left:
        begin = reader.at
        section = reader.value()
        if not isinstance(section, DescribedValue) or not isinstance(section.descriptor, ULong):
            raise Malformed("a message without sections")
        code = int(section.descriptor)
        if code >= DATA:
            return found, data[begin:]
        found[code] = (data[begin : reader.at], section.value)
    return found, b""


def _property(found: dict[int, tuple[bytes, Any]], field: int) -> Any:
    fields = found.get(PROPERTIES, (b"", []))[1]
    return fields[field] if isinstance(fields, list) and len(fields) > field else None


def _map(found: dict[int, tuple[bytes, Any]], code: int) -> dict[Any, Any]:
    value = found.get(code, (b"", {}))[1]
    return value if isinstance(value, dict) else {}


def _section(code: int, value: Any) -> bytes:
    return encode(DescribedValue(ULong(code), value))
