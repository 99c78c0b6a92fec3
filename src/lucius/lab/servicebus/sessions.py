"""One session of a connection: its links, the transfers in both directions, and what is not settled yet."""

from collections.abc import Callable
from typing import Any, Final

from lucius.lab.servicebus import frames
from lucius.lab.servicebus.broker import TOO_LARGE, Refused
from lucius.lab.servicebus.codec import Described, Malformed, UInt, ULong, UShort
from lucius.lab.servicebus.links import CBS, MANAGEMENT, AnswerOutlet, Desk, Hub, Inlet, Into, Outlet

CREDIT: Final = 1_000
WINDOW: Final = 2_147_483_647
LINKS_MAX: Final = 256
SETTLED_BY_SENDER: Final = 1
TRANSFER_HEAD_BYTES: Final = 256  # of a frame, before its payload
TRANSFER_SLACK_BYTES: Final = 65_536  # what may surround the largest message

Send = Callable[[bytes], None]


class _Incoming:
    """What a client sends over one link: pieces until a message is whole."""

    def __init__(self, into: Into, bytes_max: int) -> None:
        self.into = into
        self.received = 0
        self._bytes_max = bytes_max
        self._pieces = bytearray()
        self._number: int | None = None
        self._format = 0
        self._size = 0

    def add(self, fields: list[Any], payload: bytes) -> tuple[int, Described] | None:
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
    def __init__(self, channel: int, hub: Hub, send: Send, *, frame_bytes_max: int) -> None:
        self._channel = channel
        self._hub = hub
        self._send = send
        self._payload_max = frame_bytes_max - TRANSFER_HEAD_BYTES
        self._incoming: dict[int, _Incoming] = {}
        self._outlets: dict[int, Outlet] = {}
        self._answers: dict[str, AnswerOutlet] = {}
        self._transfers_in = 0
        self._transfers_out = 0
        self._deliveries_out = 0

    def begin(self) -> None:
        self._say(frames.BEGIN, [UShort(self._channel), UInt(0), UInt(WINDOW), UInt(WINDOW), UInt(LINKS_MAX)])

    def attach(self, fields: list[Any]) -> None:
        name, handle, client_receives = fields[0], int(fields[1]), bool(fields[2])
        if handle >= LINKS_MAX:
            raise Malformed(f"a handle is less than {LINKS_MAX}")
        address = address_of(fields[5] if client_receives else fields[6])
        refused = self._check(address, client_receives)
        largest = self._hub.broker.topology.largest_message_bytes
        said: list[Any] = [
            name,
            UInt(handle),
            not client_receives,
            fields[3],
            fields[4],
            fields[5],
            fields[6],
        ]
        said += [None, None, UInt(0) if client_receives else None, ULong(largest)]
        self._say(frames.ATTACH, said)
        if refused is not None:
            self._say(frames.DETACH, [UInt(handle), True, frames.error(*refused)])
        elif client_receives:
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
            return  # it was refused, and the client has yet to hear of it
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
        if not by_receiver or not isinstance(verdict, Described):
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
        outlet = self._outlets.pop(handle, None)
        if outlet is not None:
            self._hub.remove(outlet)
        self._say(frames.DETACH, [UInt(handle), bool(fields[1]), None])

    def end(self) -> None:
        """The locks of what is not settled stay until they run out."""
        for outlet in self._outlets.values():
            self._hub.remove(outlet)
        self._outlets.clear()

    # -- links ---------------------------------------------------------------------------------------------

    def _check(self, address: str, client_receives: bool) -> tuple[str, str] | None:
        broker = self._hub.broker
        if len(self._incoming) + len(self._outlets) >= LINKS_MAX:
            return "amqp:resource-limit-exceeded", f"A session has at most {LINKS_MAX} links."
        refused: Refused | None = None
        if address.endswith(MANAGEMENT):
            entity = address.removesuffix(MANAGEMENT)
            refused = broker.check_queue(entity) if "/" in entity else broker.check_topic(entity)
        elif address != CBS:
            refused = broker.check_queue(address) if client_receives else broker.check_topic(address)
        return None if refused is None else (refused.condition, refused.description)

    def _attach_out(self, handle: int, address: str, *, at_most_once: bool) -> None:
        def send_bytes(tag: bytes, data: bytes) -> int:
            return self._transfer_out(handle, tag, data, settled=at_most_once)

        if address == CBS or address.endswith(MANAGEMENT):
            self._answers[address] = AnswerOutlet(send_bytes)
        else:
            outlet = self._outlets[handle] = Outlet(self._hub, address, send_bytes, at_most_once=at_most_once)
            self._hub.add(outlet)

    def _attach_in(self, handle: int, address: str) -> None:
        into: Into
        if address == CBS or address.endswith(MANAGEMENT):
            into = Desk(self._hub, address, self._answers.get)
        else:
            into = Inlet(self._hub, address)
        bytes_max = self._hub.broker.topology.largest_message_bytes + TRANSFER_SLACK_BYTES
        link = self._incoming[handle] = _Incoming(into, bytes_max)
        self._flow_in(handle, link)

    def _flow_in(self, handle: int, link: _Incoming) -> None:
        self._flow(handle, delivery_count=link.received, credit=CREDIT, drained=False)

    def _flow_out(self, handle: int, outlet: Outlet) -> None:
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


def address_of(terminus: Any) -> str:
    """An entity's name out of a source or target: `amqps://host:port/Topic/Subscriptions/x` in lower case."""
    fields = terminus.value if isinstance(terminus, Described) else None
    address = fields[0] if isinstance(fields, list) and fields else None
    if isinstance(address, bytes):
        address = address.decode(errors="replace")
    if not isinstance(address, str):
        raise Malformed("a link without an address")
    scheme, divider, rest = address.partition("://")
    path = rest.partition("/")[2] if divider else scheme
    return path.strip("/").lower()
