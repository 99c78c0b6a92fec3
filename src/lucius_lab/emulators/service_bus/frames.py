"""Frames: what one peer says to the other, one performative at a time.

In: bytes of a frame without its size. Out: its channel, performative, fields and payload; and back. Fields
stand in the order of the AMQP standard; missing ones at the end are None.
"""

import struct
from typing import Any, Final

import msgspec

from lucius_lab.emulators.service_bus.codec import (
    AmqpReader,
    DescribedValue,
    Malformed,
    Symbol,
    ULong,
    encode,
)

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
HEADER_BYTES: Final = 8
FRAME_HEAD_BYTES: Final = 8
FRAME_BYTES_MAX: Final = 65_536
EMPTY_FRAME: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"

OPEN: Final = 0x10
BEGIN: Final = 0x11
ATTACH: Final = 0x12
FLOW: Final = 0x13
TRANSFER: Final = 0x14
DISPOSITION: Final = 0x15
DETACH: Final = 0x16
END: Final = 0x17
CLOSE: Final = 0x18
ERROR: Final = 0x1D

SASL_MECHANISMS: Final = 0x40
SASL_INIT: Final = 0x41
SASL_OUTCOME: Final = 0x44

ACCEPTED: Final = 0x24
REJECTED: Final = 0x25
RELEASED: Final = 0x26
MODIFIED: Final = 0x27

_FIELDS: Final = {
    OPEN: 10,
    BEGIN: 8,
    ATTACH: 14,
    FLOW: 11,
    TRANSFER: 11,
    DISPOSITION: 6,
    DETACH: 3,
    END: 1,
    CLOSE: 1,
    SASL_INIT: 3,
}
_AMQP_TYPE: Final = 0
_SASL_TYPE: Final = 1


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    channel: int
    performative: int
    fields: list[Any]
    payload: bytes = b""


def parse_frame(rest: bytes) -> Frame | None:
    """`rest` is the frame after its four bytes of size. None: an empty one, which only says that the peer is
    there."""
    offset, _, channel = struct.unpack(">BBH", rest[:4])
    reader = AmqpReader(memoryview(rest)[max(0, offset * 4 - 4) :])
    if not reader.left:
        return None
    said = reader.value()
    if not isinstance(said, DescribedValue) or not isinstance(said.value, list):
        raise Malformed("a frame without a performative")
    code = int(said.descriptor) if isinstance(said.descriptor, ULong) else -1
    if code not in _FIELDS:
        raise Malformed(f"unknown performative {said.descriptor!r}")
    missing = [None] * (_FIELDS[code] - len(said.value))
    return Frame(channel=channel, performative=code, fields=said.value + missing, payload=reader.rest())


def make_frame(channel: int, performative: int, fields: list[Any], payload: bytes = b"") -> bytes:
    body = encode(DescribedValue(ULong(performative), fields)) + payload
    kind = _SASL_TYPE if SASL_MECHANISMS <= performative <= SASL_OUTCOME else _AMQP_TYPE
    return struct.pack(">IBBH", FRAME_HEAD_BYTES + len(body), 2, kind, channel) + body


def state(code: int, fields: list[Any]) -> DescribedValue:
    """An outcome of a delivery."""
    return DescribedValue(ULong(code), fields)


def error(condition: str, description: str) -> DescribedValue:
    return DescribedValue(ULong(ERROR), [Symbol(condition), description[:1000], None])


def rejected(condition: str, description: str) -> DescribedValue:
    return state(REJECTED, [error(condition, description)])
