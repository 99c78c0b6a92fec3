"""What a message of Service Bus says, in our words. The SDK gives property names and texts as bytes."""

from codecs import BOM_UTF8
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.amqp import AmqpMessageBodyType

from lucius.bus.port import DELIVERIES_EXHAUSTED, DeadLetter
from lucius.bus.service_bus.names import ID_PROPERTY, KEY_PROPERTY, SERVICE_PROPERTY

TOO_OFTEN: Final = "MaxDeliveryCountExceeded"  # Service Bus's own reason


def in_ms(when: datetime) -> int:
    return round(when.timestamp() * 1000)


def until_ms(message: ServiceBusReceivedMessage) -> int:
    until = message.locked_until_utc
    return 0 if until is None else in_ms(until)


def texts(properties: Mapping[str | bytes, Any] | None) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in (properties or {}).items()}


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def addressee_of(message: ServiceBusReceivedMessage) -> str | None:
    """The subscription it was sent for; None for replies, and for messages that Lucius did not send."""
    return texts(message.application_properties).get(SERVICE_PROPERTY)


def sent_id(message: ServiceBusReceivedMessage) -> str:
    """For a message that Lucius did not send, without its properties."""
    return str(message.message_id or f"service-bus-{message.sequence_number}")


def body_of(message: ServiceBusReceivedMessage) -> bytes:
    """Whichever of AMQP's forms a sender chose, and without the mark that some put before UTF-8."""
    if message.body_type is AmqpMessageBodyType.DATA:
        body = b"".join(message.body)
    elif message.body_type is AmqpMessageBodyType.VALUE and isinstance(message.body, bytes):
        body = message.body
    else:
        body = str(message).encode()
    return body.removeprefix(BOM_UTF8)


def as_dead_letter(message: ServiceBusReceivedMessage) -> DeadLetter:
    properties = texts(message.application_properties)
    count = max(1, message.delivery_count or 0)
    reason = message.dead_letter_reason or ""
    if reason == TOO_OFTEN:
        reason = f"{DELIVERIES_EXHAUSTED}: delivered {count} times and never settled"
    return DeadLetter(
        message_id=properties.get(ID_PROPERTY, sent_id(message)),
        message_key=properties.get(KEY_PROPERTY, ""),
        body=body_of(message),
        delivery_count=count,
        reason=reason,
    )
