"""Links: what flows through one attached name, in one direction.

From a client to a topic (`SenderLink`), from a subscription to a client (`ReceiverLink`), and requests to a
node with their answers (`RequestNode` and `AnswerLink`). A hub brings together outlets and queues in which
something waits, and receivers that seek a session with sessions that no receiver holds.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from lucius_lab.emulators.service_bus import frames
from lucius_lab.emulators.service_bus.access import EmulatorAccess
from lucius_lab.emulators.service_bus.broker import Broker
from lucius_lab.emulators.service_bus.codec import DescribedValue, Int, Malformed, Symbol
from lucius_lab.emulators.service_bus.management import (
    DESCRIPTION,
    OK,
    REASON,
    ManagementAnswer,
    answer,
    as_text,
    delivered,
)
from lucius_lab.emulators.service_bus.messages import (
    BATCH_FORMAT,
    Request,
    encode_answer,
    parse_batch,
    parse_message,
    parse_request,
)
from lucius_lab.emulators.service_bus.queues import Locked, Token
from lucius_lab.emulators.service_bus.session_queue import SessionLock

CBS: Final = "$cbs"
MANAGEMENT: Final = "/$management"

UNAUTHORIZED: Final = 401

_CBS_NAMES: Final = ("status-code", "status-description")
_MANAGEMENT_NAMES: Final = ("statusCode", "statusDescription")

Now = Callable[[], int]
SendBytes = Callable[[bytes, bytes], int]
"""A delivery's tag and its bytes; returns the delivery's number."""

ACCEPTED: Final = frames.state(frames.ACCEPTED, [])


class MessageTarget(Protocol):
    """What a client sends to."""

    def deliver(self, message_format: int, data: bytes) -> DescribedValue: ...


class PendingAttach(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A link that is not attached yet, as it wants a session: `wanted`, or any. Until then it waits."""

    path: str
    wanted: str | None
    holder: str
    until_ms: int
    found: Callable[[SessionLock], None]
    missed: Callable[[], None]


class LinkHub:
    """Delivers what waits to the outlets with credit, in turns."""

    def __init__(self, broker: Broker, now_ms: Now) -> None:
        self.broker = broker
        self.now_ms = now_ms
        self._outlets: dict[str, deque[ReceiverLink]] = {}
        self._seekers: list[PendingAttach] = []

    def add(self, outlet: "ReceiverLink") -> None:
        self._outlets.setdefault(outlet.path, deque()).append(outlet)

    def remove(self, outlet: "ReceiverLink") -> None:
        there = self._outlets.get(outlet.path)
        if there is not None and outlet in there:
            there.remove(outlet)
            if not there:
                del self._outlets[outlet.path]
            if outlet.session is not None:
                self.broker.release_session(outlet.path, outlet.session.token, self.now_ms())

    def seek(self, seeker: PendingAttach) -> None:
        """A seeker of any session waits; a named session is free, or another receiver has it."""
        self._seekers.append(seeker)
        self._serve(seeker.path)
        if seeker.wanted is not None and seeker in self._seekers:
            self._seekers.remove(seeker)
            seeker.missed()

    def give_up(self, seeker: PendingAttach) -> None:
        if seeker in self._seekers:
            self._seekers.remove(seeker)

    def flush(self) -> None:
        now_ms = self.now_ms()
        self.broker.advance(now_ms)
        while self.broker.lost:
            self._lose(self.broker.lost.pop())
        while self.broker.woken:
            path = self.broker.woken.pop()
            self._serve(path)
            self.deliver(path)
        for seeker in [seeker for seeker in self._seekers if seeker.until_ms <= now_ms]:
            self._seekers.remove(seeker)
            seeker.missed()

    def next_ms(self) -> int | None:
        """When time alone will change something."""
        times = [seeker.until_ms for seeker in self._seekers]
        due_ms = self.broker.next_ms()
        return min(times if due_ms is None else [due_ms, *times], default=None)

    def deliver(self, path: str) -> None:
        there = self._outlets.get(path, deque())
        idle = 0
        while idle < len(there):
            outlet = there[0]
            there.rotate(-1)
            if outlet.credit <= 0:
                idle += 1
                continue
            session = outlet.session
            locked = self.broker.take(path, self.now_ms(), None if session is None else session.session_id)
            if locked is not None:
                outlet.send(locked)
                idle = 0
            elif session is None:
                return
            else:
                idle += 1  # others have sessions of their own

    def _serve(self, path: str) -> None:
        """Who has waited longest for a session is first."""
        for seeker in [seeker for seeker in self._seekers if seeker.path == path]:
            lock = self.broker.accept_session(path, seeker.wanted, self.now_ms(), holder=seeker.holder)
            if lock is not None:
                self._seekers.remove(seeker)
                seeker.found(lock)

    def _lose(self, token: Token) -> None:
        for outlet in [outlet for there in self._outlets.values() for outlet in there]:
            if outlet.session is not None and outlet.session.token == token and outlet.lost is not None:
                outlet.lost()


class SenderLink:
    """From a client to a topic."""

    def __init__(self, hub: LinkHub, topic: str) -> None:
        self._hub = hub
        self._topic = topic

    def deliver(self, message_format: int, data: bytes) -> DescribedValue:
        try:
            messages = parse_batch(data) if message_format == BATCH_FORMAT else [parse_message(data)]
        except Malformed as fault:
            return frames.rejected("amqp:decode-error", str(fault))
        refused = self._hub.broker.publish(self._topic, messages, self._hub.now_ms())
        return ACCEPTED if refused is None else frames.rejected(refused.condition, refused.description)


class ReceiverLink:
    """From a subscription, or its dead letters, to a client. `credit`: how many more it wants.
    `at_most_once`: what is sent is gone, whether it arrives or not."""

    def __init__(
        self,
        hub: LinkHub,
        path: str,
        send_bytes: SendBytes,
        *,
        at_most_once: bool,
        session: SessionLock | None = None,
        lost: Callable[[], None] | None = None,
    ) -> None:
        """`lost` is called when the lock of its session has run out."""
        self.path = path
        self.session = session
        self.lost = lost
        self.credit = 0
        self.delivery_count = 0
        self.held: dict[int, Token] = {}
        self._hub = hub
        self._send_bytes = send_bytes
        self._at_most_once = at_most_once

    def grant(self, delivery_count: int, credit: int) -> None:
        self.credit = max(0, delivery_count + credit - self.delivery_count)
        self._hub.deliver(self.path)

    def send(self, locked: Locked) -> None:
        self.credit -= 1
        self.delivery_count += 1
        number = self._send_bytes(locked.token, delivered(locked))
        if self._at_most_once:
            self._hub.broker.complete(self.path, locked.token, self._hub.now_ms())
        else:
            self.held[number] = locked.token

    def settle(self, number: int, verdict: DescribedValue) -> DescribedValue:
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


class AnswerLink:
    """From a node to a client."""

    def __init__(self, send_bytes: SendBytes) -> None:
        self._send_bytes = send_bytes
        self._numbers = 0

    def send(self, data: bytes) -> None:
        self._numbers += 1
        self._send_bytes(self._numbers.to_bytes(4, "big"), data)


class RequestNode:
    """Takes the requests of one node; answers go to the outlet of the same address on the same session."""

    def __init__(
        self,
        hub: LinkHub,
        address: str,
        find_outlet: Callable[[str], AnswerLink | None],
        access: EmulatorAccess,
    ) -> None:
        self._hub = hub
        self._access = access
        self._address = address
        self._find_outlet = find_outlet

    def deliver(self, message_format: int, data: bytes) -> DescribedValue:
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

    def _answer(self, request: Request) -> ManagementAnswer:
        if self._address == CBS:
            fault = self._access.show(as_text(request.value))
            return (
                ManagementAnswer(status=OK)
                if fault is None
                else ManagementAnswer(status=UNAUTHORIZED, description=fault)
            )
        entity = self._address.removesuffix(MANAGEMENT)
        return answer(self._hub.broker, entity, request, self._hub.now_ms())


def _reasons(rejected: Any) -> tuple[str | None, str | None]:
    """Why the client puts it aside: in the map of the error."""
    fault = rejected[0] if isinstance(rejected, list) and rejected else None
    fields = fault.value if isinstance(fault, DescribedValue) and isinstance(fault.value, list) else []
    info = fields[2] if len(fields) > 2 and isinstance(fields[2], dict) else {}
    said = {as_text(name): None if text is None else as_text(text) for name, text in info.items()}
    return said.get(REASON), said.get(DESCRIPTION)
