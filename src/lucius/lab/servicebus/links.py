"""Links: what flows through one attached name, in one direction.

From a client to a topic (`Inlet`), from a subscription to a client (`Outlet`), and requests to a node with
their answers (`Desk` and `AnswerOutlet`). A hub brings together outlets and queues in which something waits.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from lucius.lab.servicebus import frames
from lucius.lab.servicebus.broker import Broker
from lucius.lab.servicebus.codec import Described, Int, Malformed, Symbol
from lucius.lab.servicebus.management import DESCRIPTION, OK, REASON, Answer, answer, as_text, delivered
from lucius.lab.servicebus.messages import (
    BATCH_FORMAT,
    Request,
    encode_answer,
    parse_batch,
    parse_message,
    parse_request,
)
from lucius.lab.servicebus.queues import Locked, Token

CBS: Final = "$cbs"
MANAGEMENT: Final = "/$management"

_CBS_NAMES: Final = ("status-code", "status-description")
_MANAGEMENT_NAMES: Final = ("statusCode", "statusDescription")

Now = Callable[[], int]
SendBytes = Callable[[bytes, bytes], int]
"""A delivery's tag and its bytes; returns the delivery's number."""

ACCEPTED: Final = frames.state(frames.ACCEPTED, [])


class Into(Protocol):
    """What a client sends to."""

    def deliver(self, message_format: int, data: bytes) -> Described: ...


class Hub:
    """Hands out what waits to those who asked for it, in turns."""

    def __init__(self, broker: Broker, now_ms: Now) -> None:
        self.broker = broker
        self.now_ms = now_ms
        self._outlets: dict[str, deque[Outlet]] = {}

    def add(self, outlet: "Outlet") -> None:
        self._outlets.setdefault(outlet.path, deque()).append(outlet)

    def remove(self, outlet: "Outlet") -> None:
        there = self._outlets.get(outlet.path)
        if there is not None and outlet in there:
            there.remove(outlet)
            if not there:
                del self._outlets[outlet.path]

    def flush(self) -> None:
        self.broker.advance(self.now_ms())
        while self.broker.woken:
            self.hand_out(self.broker.woken.pop())

    def hand_out(self, path: str) -> None:
        there = self._outlets.get(path, deque())
        idle = 0
        while idle < len(there):
            outlet = there[0]
            there.rotate(-1)
            if outlet.credit <= 0:
                idle += 1
                continue
            locked = self.broker.take(path, self.now_ms())
            if locked is None:
                return
            outlet.send(locked)
            idle = 0


class Inlet:
    """From a client to a topic."""

    def __init__(self, hub: Hub, topic: str) -> None:
        self._hub = hub
        self._topic = topic

    def deliver(self, message_format: int, data: bytes) -> Described:
        try:
            messages = parse_batch(data) if message_format == BATCH_FORMAT else [parse_message(data)]
        except Malformed as fault:
            return frames.rejected("amqp:decode-error", str(fault))
        refused = self._hub.broker.publish(self._topic, messages, self._hub.now_ms())
        return ACCEPTED if refused is None else frames.rejected(refused.condition, refused.description)


class Outlet:
    """From a subscription, or its dead letters, to a client. `credit`: how many more it wants.
    `at_most_once`: what is sent is gone, whether it arrives or not."""

    def __init__(self, hub: Hub, path: str, send_bytes: SendBytes, *, at_most_once: bool) -> None:
        self.path = path
        self.credit = 0
        self.delivery_count = 0
        self.held: dict[int, Token] = {}
        self._hub = hub
        self._send_bytes = send_bytes
        self._at_most_once = at_most_once

    def grant(self, delivery_count: int, credit: int) -> None:
        self.credit = max(0, delivery_count + credit - self.delivery_count)
        self._hub.hand_out(self.path)

    def send(self, locked: Locked) -> None:
        self.credit -= 1
        self.delivery_count += 1
        number = self._send_bytes(locked.token, delivered(locked))
        if self._at_most_once:
            self._hub.broker.complete(self.path, locked.token, self._hub.now_ms())
        else:
            self.held[number] = locked.token

    def settle(self, number: int, verdict: Described) -> Described:
        """What became of it, in the words of a disposition."""
        broker, now_ms = self._hub.broker, self._hub.now_ms()
        token = self.held.pop(number)
        outcome = verdict.descriptor
        if outcome == frames.ACCEPTED:
            refused = broker.complete(self.path, token, now_ms)
        elif outcome == frames.RELEASED:
            refused = broker.release(self.path, token, now_ms)
        elif outcome == frames.REJECTED:
            reason, description = _reasons(verdict.value)
            refused = broker.dead_letter(self.path, token, now_ms, reason=reason, description=description)
        else:
            refused = broker.abandon(self.path, token, now_ms)
        if refused is not None:
            return frames.rejected(refused.condition, refused.description)
        # The SDK takes an outcome of the same name, without an error, for done.
        return frames.state(int(outcome), [])


class AnswerOutlet:
    """From a node to a client."""

    def __init__(self, send_bytes: SendBytes) -> None:
        self._send_bytes = send_bytes
        self._numbers = 0

    def send(self, data: bytes) -> None:
        self._numbers += 1
        self._send_bytes(self._numbers.to_bytes(4, "big"), data)


class Desk:
    """Takes the requests of one node; answers go to the outlet of the same address on the same session."""

    def __init__(self, hub: Hub, address: str, find_outlet: Callable[[str], AnswerOutlet | None]) -> None:
        self._hub = hub
        self._address = address
        self._find_outlet = find_outlet

    def deliver(self, message_format: int, data: bytes) -> Described:
        try:
            request = parse_request(data)
            given = self._answer(request)
        except Malformed as fault:
            return frames.rejected("amqp:decode-error", str(fault))
        outlet = self._find_outlet(self._address)
        if outlet is None:
            return frames.rejected("amqp:not-allowed", "There is no link for the answer.")
        names = _CBS_NAMES if self._address == CBS else _MANAGEMENT_NAMES
        application: dict[str, Any] = {names[0]: Int(given.status), names[1]: given.description}
        if given.condition is not None:
            application["errorCondition"] = Symbol(given.condition)
        outlet.send(
            encode_answer(correlation_id=request.message_id, application=application, value=given.value)
        )
        return ACCEPTED

    def _answer(self, request: Request) -> Answer:
        if self._address == CBS:
            return Answer(status=OK)  # whoever connects is let in
        entity = self._address.removesuffix(MANAGEMENT)
        return answer(self._hub.broker, entity, request, self._hub.now_ms())


def _reasons(rejected: Any) -> tuple[str | None, str | None]:
    """Why the client puts it aside: in the map of the error."""
    fault = rejected[0] if isinstance(rejected, list) and rejected else None
    fields = fault.value if isinstance(fault, Described) and isinstance(fault.value, list) else []
    info = fields[2] if len(fields) > 2 and isinstance(fields[2], dict) else {}
    said = {as_text(name): None if text is None else as_text(text) for name, text in info.items()}
    return said.get(REASON), said.get(DESCRIPTION)
