"""What is asked of an entity beside its messages: renewals, schedules, looks at what waits, late settlements.

In: a request on the `$management` node of a topic or subscription. Out: an answer with a status as HTTP has.
"""

from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

import msgspec

from lucius_lab.emulators.service_bus.broker import NOT_FOUND, Broker, BrokerRefused
from lucius_lab.emulators.service_bus.codec import Array, Symbol, Timestamp
from lucius_lab.emulators.service_bus.messages import Message, Request, encode_message, parse_message
from lucius_lab.emulators.service_bus.queues import Entry, Locked, Token

VENDOR: Final = "com.microsoft:"
OK: Final = 200
NO_CONTENT: Final = 204
BAD_REQUEST: Final = 400
MISSING: Final = 404
GONE: Final = 410
NOT_OFFERED: Final = 501

PEEKED_MAX: Final = 250

LINK: Final = "associated-link-name"
REASON: Final = "DeadLetterReason"
DESCRIPTION: Final = "DeadLetterErrorDescription"


class ManagementAnswer(msgspec.Struct, frozen=True, kw_only=True):
    status: int
    value: Any = None
    condition: str | None = None
    description: str = "OK"


Asked = dict[str, Any]


def answer(broker: Broker, address: str, request: Request, now_ms: int) -> ManagementAnswer:
    operation = as_text(request.application.get("operation", "")).removeprefix(VENDOR)
    serve = _OPERATIONS.get(operation)
    if serve is None:
        return ManagementAnswer(status=NOT_OFFERED, description=f"This emulator has no {operation!r}.")
    if not isinstance(request.value, dict):
        return ManagementAnswer(status=BAD_REQUEST, description="The request has no map.")
    asked = {as_text(key): value for key, value in request.value.items()}
    asked[LINK] = as_text(request.application.get(LINK, ""))
    return serve(broker, address, asked, now_ms)


def delivered(locked: Locked) -> bytes:
    """A message as its receiver gets it."""
    return _encoded(locked.entry, {Symbol("x-opt-locked-until"): Timestamp(locked.until_ms)})


def as_text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _encoded(entry: Entry, more: dict[Any, Any]) -> bytes:
    annotations = {
        Symbol("x-opt-enqueued-time"): Timestamp(entry.enqueued_ms),
        Symbol("x-opt-sequence-number"): entry.sequence,
        Symbol("x-opt-enqueue-sequence-number"): entry.sequence,
    }
    reasons = {REASON: entry.reason, DESCRIPTION: entry.description}
    application = {name: text for name, text in reasons.items() if text is not None}
    return encode_message(
        entry.message,
        deliveries=entry.deliveries,
        annotations=annotations | more,
        application=application,
    )


def _renew(broker: Broker, address: str, asked: Asked, now_ms: int) -> ManagementAnswer:
    until: list[Timestamp] = []
    for token in _tokens(asked):
        renewed = broker.renew(address, token, now_ms)
        if isinstance(renewed, BrokerRefused):
            return _refused(renewed)
        until.append(Timestamp(renewed))
    return ManagementAnswer(status=OK, value={"expirations": Array(until)})


def _renew_session(broker: Broker, address: str, asked: Asked, now_ms: int) -> ManagementAnswer:
    session_id = as_text(asked.get("session-id", ""))
    renewed = broker.renew_session(address, session_id, now_ms, holder=asked[LINK])
    if isinstance(renewed, BrokerRefused):
        return _refused(renewed)
    return ManagementAnswer(status=OK, value={"expiration": Timestamp(renewed)})


def _schedule(broker: Broker, address: str, asked: Asked, now_ms: int) -> ManagementAnswer:
    messages: list[Message] = []
    for one in _items(asked.get("messages")):
        inside = {as_text(key): value for key, value in one.items()} if isinstance(one, dict) else {}
        if not isinstance(inside.get("message"), bytes):
            return ManagementAnswer(status=BAD_REQUEST, description="A message to schedule is missing.")
        messages.append(parse_message(inside["message"]))
    numbers = broker.schedule(address, messages, now_ms)
    if isinstance(numbers, BrokerRefused):
        return _refused(numbers)
    return ManagementAnswer(status=OK, value={"sequence-numbers": Array(list(numbers))})


def _cancel(broker: Broker, address: str, asked: Asked, now_ms: int) -> ManagementAnswer:
    numbers = [int(number) for number in _items(asked.get("sequence-numbers"))]
    refused = broker.cancel(address, numbers, now_ms)
    return ManagementAnswer(status=OK, value={}) if refused is None else _refused(refused)


def _peek(broker: Broker, address: str, asked: Asked, now_ms: int) -> ManagementAnswer:
    first, most = asked.get("from-sequence-number", 0), asked.get("message-count", 1)
    if not isinstance(first, int) or not isinstance(most, int):
        return ManagementAnswer(status=BAD_REQUEST, description="How many messages, and from where?")
    entries = broker.peek(address, first, min(most, PEEKED_MAX), now_ms)
    if not entries:
        return ManagementAnswer(status=NO_CONTENT, value={}, description="No messages.")
    return ManagementAnswer(
        status=OK, value={"messages": [{"message": _encoded(entry, {})} for entry in entries]}
    )


def _settle(broker: Broker, address: str, asked: Asked, now_ms: int) -> ManagementAnswer:
    status = as_text(asked.get("disposition-status", ""))
    for token in _tokens(asked):
        if status == "completed":
            refused = broker.complete(address, token, now_ms)
        elif status == "abandoned":
            refused = broker.abandon(address, token, now_ms)
        elif status == "suspended":
            refused = broker.dead_letter(
                address,
                token,
                now_ms,
                reason=as_text(asked.get("deadletter-reason", "")),
                description=as_text(asked.get("deadletter-description", "")),
            )
        else:
            return ManagementAnswer(status=NOT_OFFERED, description=f"This emulator has no {status!r}.")
        if refused is not None:
            return _refused(refused)
    return ManagementAnswer(status=OK, value={})


def _tokens(asked: Asked) -> list[Token]:
    """Locks are the bytes of a UUID as .NET writes them."""
    return [one.bytes_le for one in _items(asked.get("lock-tokens")) if isinstance(one, UUID)]


def _items(value: Any) -> list[Any]:
    if isinstance(value, Array):
        return value.items
    return value if isinstance(value, list) else []


def _refused(refused: BrokerRefused) -> ManagementAnswer:
    status = MISSING if refused.condition == NOT_FOUND else GONE
    return ManagementAnswer(status=status, condition=refused.condition, description=refused.description)


_OPERATIONS: Final[dict[str, Callable[[Broker, str, Asked, int], ManagementAnswer]]] = {
    "renew-lock": _renew,
    "renew-session-lock": _renew_session,
    "schedule-message": _schedule,
    "cancel-scheduled-message": _cancel,
    "peek-message": _peek,
    "update-disposition": _settle,
}
