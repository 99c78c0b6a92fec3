"""One session of a connection: its links, the transfers in both directions, and what is not settled yet."""

from collections.abc import Callable
from typing import Any, Final

from lucius_lab.emulators.service_bus import frames
from lucius_lab.emulators.service_bus.access import EmulatorAccess
from lucius_lab.emulators.service_bus.attaching import (
    address_of,
    granted_source,
    session_wish,
    wait_ms_of,
    with_ticks,
)
from lucius_lab.emulators.service_bus.broker import SESSION_LOST, TOO_LARGE, BrokerRefused
from lucius_lab.emulators.service_bus.codec import DescribedValue, Malformed, UInt, ULong, UShort
from lucius_lab.emulators.service_bus.links import (
    CBS,
    MANAGEMENT,
    AnswerLink,
    LinkHub,
    MessageTarget,
    PendingAttach,
    ReceiverLink,
    RequestNode,
    SenderLink,
)
from lucius_lab.emulators.service_bus.management import as_text
from lucius_lab.emulators.service_bus.session_queue import SessionLock

CREDIT: Final = 1_000
WINDOW: Final = 2_147_483_647
LINKS_MAX: Final = 256
SETTLED_BY_SENDER: Final = 1
TRANSFER_HEAD_BYTES: Final = 256  # of a frame, before its payload
NO_SESSION: Final = "com.microsoft:timeout"
UNAUTHORIZED: Final = "amqp:unauthorized-access"
NOT_FREE: Final = "com.microsoft:session-cannot-be-locked"
TRANSFER_SLACK_BYTES: Final = 65_536  # what may surround the largest message

Send = Callable[[bytes], None]


class _Incoming:
    """What a client sends over one link: pieces until a message is whole."""

    def __init__(self, into: MessageTarget, bytes_max: int) -> None:
        self.into = into
        self.received = 0
        self._bytes_max = bytes_max
        self._pieces = bytearray()
        self._number: int | None = None
        self._format = 0
        self._size = 0

    def add(self, fields: list[Any], payload: bytes) -> tuple[int, DescribedValue] | None:
        """Once it is whole: the delivery's number, and what became of it."""
        _, number, _, message_format, _, more, _, _, _, aborted, _ = fields
        if number is not None:
            self._number, self._format = int(number), int(message_format or 0)
        self._size += len(payload)
        if self._size <= self._bytes_max:
            self._pieces += payload
        if more and not aborted:
            return None
        whole, too_large, number = bytes(self._pieces), self._size > self._bytes_max, self._number
        self._pieces, self._size, self._number = bytearray(), 0, None
        self.received += 1
        if number is None:
            raise Malformed("a transfer without a number")
        if aborted:
            return number, frames.state(frames.RELEASED, [])
        if too_large:
            return number, frames.rejected(TOO_LARGE, "The message is larger than the link takes.")
        return number, self.into.deliver(self._format, whole)


class Session:
    def __init__(
        self, channel: int, hub: LinkHub, send: Send, access: EmulatorAccess, *, frame_bytes_max: int
    ) -> None:
        self._channel = channel
        self._hub = hub
        self._access = access
        self._send = send
        self._payload_max = frame_bytes_max - TRANSFER_HEAD_BYTES
        self._incoming: dict[int, _Incoming] = {}
        self._outlets: dict[int, ReceiverLink] = {}
        self._seekers: dict[int, PendingAttach] = {}
        self._ended: set[int] = set()  # links that we ended, and whose end the client has yet to confirm
        self._answers: dict[str, AnswerLink] = {}
        self._transfers_in = 0
        self._transfers_out = 0
        self._deliveries_out = 0

    def begin(self) -> None:
        self._say(frames.BEGIN, [UShort(self._channel), UInt(0), UInt(WINDOW), UInt(WINDOW), UInt(LINKS_MAX)])

    def attach(self, fields: list[Any]) -> None:
        handle, client_receives = int(fields[1]), bool(fields[2])
        if handle >= LINKS_MAX:
            raise Malformed(f"a handle is less than {LINKS_MAX}")
        address = address_of(fields[5] if client_receives else fields[6])
        wish = session_wish(fields[5]) if client_receives else None
        refused = self._check(address, client_receives, sessions=wish is not None)
        if refused is not None:
            self._refuse(fields, *refused, seeking=wish is not None)
        elif wish is not None:
            self._seek(fields, address, wish.wanted)
        else:
            self._say_attach(fields, source=fields[5])
            if client_receives:
                self._attach_out(handle, address, at_most_once=fields[3] == SETTLED_BY_SENDER)
            else:
                self._attach_in(handle, address)

    def flow(self, fields: list[Any]) -> None:
        if fields[4] is None:
            return
        handle, drained = int(fields[4]), bool(fields[8])
        outlet = self._outlets.get(handle)
        if outlet is None:
            return
        credit = int(fields[6] or 0)
        outlet.grant(int(fields[5] or 0), credit)
        if drained:
            # All there was to send was sent: what is left of the credit is used up.
            outlet.delivery_count += outlet.credit
            outlet.credit = 0
            self._flow_out(handle, outlet)

    def transfer(self, fields: list[Any], payload: bytes) -> None:
        handle, settled = int(fields[0]), bool(fields[4])
        self._transfers_in += 1
        link = self._incoming.get(handle)
        if link is None:
            return  # it was refused, and the client does not know it yet
        done = link.add(fields, payload)
        if done is None:
            return
        number, outcome = done
        if not settled:
            self._say(frames.DISPOSITION, [True, UInt(number), UInt(number), True, outcome, None])
        if link.received % (CREDIT // 2) == 0:
            self._flow_in(handle, link)

    def disposition(self, fields: list[Any]) -> None:
        by_receiver, first, last, settled, verdict, _ = fields
        if not by_receiver or not isinstance(verdict, DescribedValue):
            return
        last = first if last is None else last
        for outlet in list(self._outlets.values()):
            for number in [number for number in outlet.held if first <= number <= last]:
                outcome = outlet.settle(number, verdict)
                if not settled:
                    self._say(frames.DISPOSITION, [False, UInt(number), UInt(number), True, outcome, None])

    def detach(self, fields: list[Any]) -> None:
        handle = int(fields[0])
        self._incoming.pop(handle, None)
        seeker = self._seekers.pop(handle, None)
        if seeker is not None:
            self._hub.give_up(seeker)
        if not self._remove_outlet(handle) and handle in self._ended:
            self._ended.discard(handle)
            return  # it answers our own
        self._say(frames.DETACH, [UInt(handle), bool(fields[1]), None])

    def end(self) -> None:
        """The locks of what is not settled stay until they run out, but those of sessions."""
        for outlet in self._outlets.values():
            self._hub.remove(outlet)
        for seeker in self._seekers.values():
            self._hub.give_up(seeker)
        self._outlets.clear()
        self._seekers.clear()

    # -- links ---------------------------------------------------------------------------------------------

    def _refuse(self, fields: list[Any], condition: str, description: str, *, seeking: bool) -> None:
        """A receiver that seeks a session takes an attach with a source for a session that was found."""
        self._say_attach(fields, source=None if seeking else fields[5])
        fault = frames.error(condition, description)
        self._say(frames.DETACH, [UInt(int(fields[1])), True, fault])

    def _say_attach(self, fields: list[Any], *, source: Any, properties: Any = None) -> None:
        """Echoes what the client said, but for what the broker decided."""
        name, handle, client_receives, sends, receives, _, target = fields[:7]
        largest = self._hub.broker.topology.largest_message_bytes
        said: list[Any] = [name, UInt(int(handle)), not client_receives, sends, receives]
        said += [source, target]
        said += [None, None, UInt(0) if client_receives else None, ULong(largest), None, None, properties]
        self._say(frames.ATTACH, said)

    def _seek(self, fields: list[Any], address: str, wanted: str | None) -> None:
        """The link is attached once it has its session."""
        handle, at_most_once = int(fields[1]), fields[3] == SETTLED_BY_SENDER

        def found(lock: SessionLock) -> None:
            self._seekers.pop(handle, None)
            source = granted_source(fields[5], lock.session_id)
            self._say_attach(fields, source=source, properties=with_ticks(lock.until_ms))
            self._attach_out(handle, address, at_most_once=at_most_once, session=lock)

        def missed() -> None:
            self._seekers.pop(handle, None)
            if wanted is None:
                said = NO_SESSION, "There was no session to accept in time."
            else:
                said = NOT_FREE, f"The session {wanted!r} is held by another receiver."
            self._refuse(fields, *said, seeking=True)

        seeker = self._seekers[handle] = PendingAttach(
            path=address,
            wanted=wanted,
            holder=as_text(fields[0]),
            until_ms=self._hub.now_ms() + wait_ms_of(fields),
            found=found,
            missed=missed,
        )
        self._hub.seek(seeker)

    def _session_lost(self, handle: int) -> None:
        self._remove_outlet(handle)
        self._ended.add(handle)
        fault = frames.error(SESSION_LOST, "The session lock has expired.")
        self._say(frames.DETACH, [UInt(handle), True, fault])

    def _remove_outlet(self, handle: int) -> bool:
        outlet = self._outlets.pop(handle, None)
        if outlet is not None:
            self._hub.remove(outlet)
        return outlet is not None

    def _check(self, address: str, client_receives: bool, *, sessions: bool) -> tuple[str, str] | None:
        broker = self._hub.broker
        if len(self._incoming) + len(self._outlets) >= LINKS_MAX:
            return "amqp:resource-limit-exceeded", f"A session has at most {LINKS_MAX} links."
        if address != CBS and not self._access.opens(address):
            return UNAUTHORIZED, "No token was shown that opens this entity."
        refused: BrokerRefused | None = None
        if address.endswith(MANAGEMENT):
            entity = address.removesuffix(MANAGEMENT)
            refused = broker.check_queue(entity) if "/" in entity else broker.check_topic(entity)
        elif address != CBS:
            refused = (
                broker.check_receiver(address, sessions=sessions)
                if client_receives
                else broker.check_topic(address)
            )
        return None if refused is None else (refused.condition, refused.description)

    def _attach_out(
        self, handle: int, address: str, *, at_most_once: bool, session: SessionLock | None = None
    ) -> None:
        def send_bytes(tag: bytes, data: bytes) -> int:
            return self._transfer_out(handle, tag, data, settled=at_most_once)

        if address == CBS or address.endswith(MANAGEMENT):
            self._answers[address] = AnswerLink(send_bytes)
        else:
            outlet = self._outlets[handle] = ReceiverLink(
                self._hub,
                address,
                send_bytes,
                at_most_once=at_most_once,
                session=session,
                lost=lambda: self._session_lost(handle),
            )
            self._hub.add(outlet)

    def _attach_in(self, handle: int, address: str) -> None:
        into: MessageTarget
        if address == CBS or address.endswith(MANAGEMENT):
            into = RequestNode(self._hub, address, self._answers.get, self._access)
        else:
            into = SenderLink(self._hub, address)
        bytes_max = self._hub.broker.topology.largest_message_bytes + TRANSFER_SLACK_BYTES
        link = self._incoming[handle] = _Incoming(into, bytes_max)
        self._flow_in(handle, link)

    def _flow_in(self, handle: int, link: _Incoming) -> None:
        self._flow(handle, delivery_count=link.received, credit=CREDIT, drained=False)

    def _flow_out(self, handle: int, outlet: ReceiverLink) -> None:
        self._flow(handle, delivery_count=outlet.delivery_count, credit=0, drained=True)

    def _flow(self, handle: int, *, delivery_count: int, credit: int, drained: bool) -> None:
        session = [UInt(self._transfers_in), UInt(WINDOW), UInt(self._transfers_out), UInt(WINDOW)]
        link = [UInt(handle), UInt(delivery_count), UInt(credit), None, drained, False, None]
        self._say(frames.FLOW, session + link)

    def _transfer_out(self, handle: int, tag: bytes, data: bytes, *, settled: bool) -> int:
        number = self._deliveries_out
        self._deliveries_out += 1
        starts = range(0, max(1, len(data)), self._payload_max)
        for start in starts:
            more = start + self._payload_max < len(data)
            fields = [UInt(handle), UInt(number), tag, UInt(0), settled, more, None, None, None, None, None]
            self._send(
                frames.make_frame(
                    self._channel, frames.TRANSFER, fields, data[start : start + self._payload_max]
                )
            )
            self._transfers_out += 1
        return number

    def _say(self, performative: int, fields: list[Any]) -> None:
        self._send(frames.make_frame(self._channel, performative, fields))
