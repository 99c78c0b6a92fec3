"""AMQP 1.0 types as Python values, and back.

In: bytes of a peer, which may hold anything. Out: values, or `Malformed`. Numbers keep their AMQP type by a
class of their own, so that what is only passed on leaves as it came; types that the emulator does not read
stay bytes with their constructor (`Opaque`).
"""

import struct
from typing import Any, Final
from uuid import UUID

import msgspec

DEPTH_MAX: Final = 32
ITEMS_MAX: Final = 100_000

Value = Any


class Malformed(ValueError):
    """The bytes are not AMQP as this emulator knows it."""


class UByte(int):
    pass


class UShort(int):
    pass


class UInt(int):
    pass


class ULong(int):
    pass


class Int(int):
    pass


class Timestamp(int):
    """Milliseconds since 1970."""


class Symbol(str):
    __slots__ = ()


class DescribedValue(msgspec.Struct, frozen=True):
    descriptor: Value
    value: Value


class Array(msgspec.Struct, frozen=True):
    """Items of one type: all are encoded as the first one is."""

    items: list[Value]


class Opaque(msgspec.Struct, frozen=True):
    constructor: int
    content: bytes


_FIXED: Final[dict[int, tuple[str, type]]] = {
    0x50: (">B", UByte),
    0x60: (">H", UShort),
    0x70: (">I", UInt),
    0x52: (">B", UInt),
    0x80: (">Q", ULong),
    0x53: (">B", ULong),
    0x71: (">i", Int),
    0x54: (">b", Int),
    0x81: (">q", int),
    0x55: (">b", int),
    0x82: (">d", float),
    0x83: (">q", Timestamp),
}
_CONSTANT: Final[dict[int, Value]] = {0x40: None, 0x41: True, 0x42: False, 0x43: UInt(0), 0x44: ULong(0)}
_OPAQUE_BYTES: Final = {0x51: 1, 0x61: 2, 0x72: 4, 0x73: 4, 0x74: 4, 0x84: 8, 0x94: 16}
_BOOLEAN: Final = 0x56
_UUID: Final = 0x98
_TEXTS: Final[dict[int, type]] = {0xA0: bytes, 0xB0: bytes, 0xA1: str, 0xB1: str, 0xA3: Symbol, 0xB3: Symbol}
_LISTS: Final = frozenset({0x45, 0xC0, 0xD0})
_MAPS: Final = frozenset({0xC1, 0xD1})
_ARRAYS: Final = frozenset({0xE0, 0xF0})
_WIDE: Final = 0x10  # set in the constructors whose size has four bytes


class AmqpReader:
    """Reads values one after another from bytes."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        self.at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self.at

    def rest(self) -> bytes:
        return bytes(self._data[self.at :])

    def value(self, depth: int = 0) -> Value:
        if depth > DEPTH_MAX:
            raise Malformed("nested too deeply")
        constructor = self._byte()
        if constructor == 0:
            return DescribedValue(self.value(depth + 1), self.value(depth + 1))
        return self._of(constructor, depth)

    def _of(self, constructor: int, depth: int) -> Value:
        if constructor in _CONSTANT:
            return _CONSTANT[constructor]
        if constructor in _FIXED:
            pattern, kind = _FIXED[constructor]
            (number,) = struct.unpack(pattern, self._take(struct.calcsize(pattern)))
            return kind(number)
        if constructor in _TEXTS:
            return self._text(constructor)
        if constructor in _LISTS:
            return self._items(constructor, depth)
        if constructor in _MAPS:
            items = self._items(constructor, depth)
            if len(items) % 2:
                raise Malformed("a map with a key and no value")
            return dict(zip(map(_key, items[::2]), items[1::2], strict=True))
        if constructor in _ARRAYS:
            return self._array(constructor, depth)
        if constructor == _BOOLEAN:
            return self._byte() == 1
        if constructor == _UUID:
            return UUID(bytes=bytes(self._take(16)))
        if constructor in _OPAQUE_BYTES:
            return Opaque(constructor, bytes(self._take(_OPAQUE_BYTES[constructor])))
        raise Malformed(f"unknown constructor 0x{constructor:02x}")

    def _text(self, constructor: int) -> Value:
        content = bytes(self._take(self._size(constructor)))
        kind = _TEXTS[constructor]
        if kind is bytes:
            return content
        try:
            return kind(content.decode())
        except UnicodeDecodeError:
            raise Malformed("a text that is not UTF-8") from None

    def _items(self, constructor: int, depth: int) -> list[Value]:
        if constructor == 0x45:
            return []
        self._size(constructor)
        return [self.value(depth + 1) for _ in range(self._count(constructor))]

    def _array(self, constructor: int, depth: int) -> Array:
        self._size(constructor)
        count = self._count(constructor)
        inner = self._byte()
        if inner == 0:
            descriptor = self.value(depth + 1)
            inner = self._byte()
            return Array([DescribedValue(descriptor, self._of(inner, depth + 1)) for _ in range(count)])
        return Array([self._of(inner, depth + 1) for _ in range(count)])

    def _size(self, constructor: int) -> int:
        if constructor & _WIDE:
            (size,) = struct.unpack(">I", self._take(4))
            return int(size)
        return self._byte()

    def _count(self, constructor: int) -> int:
        count = self._size(constructor)
        if count > min(ITEMS_MAX, self.left):
            raise Malformed(f"{count} items are announced and are not there")
        return count

    def _byte(self) -> int:
        return self._take(1)[0]

    def _take(self, count: int) -> memoryview:
        if count > self.left:
            raise Malformed("the bytes end too early")
        taken = self._data[self.at : self.at + count]
        self.at += count
        return taken


def _key(key: Value) -> Value:
    if isinstance(key, list | dict | Array | DescribedValue):
        raise Malformed("a key that is no simple value")
    return key


def encode(value: Value) -> bytes:
    """Strings, symbols and bytes by their class; a plain `int` is a long."""
    if value is None:
        return b"\x40"
    if isinstance(value, bool):
        return b"\x41" if value else b"\x42"
    if isinstance(value, int):
        return _encode_number(value)
    if isinstance(value, Symbol):
        return _sized(0xA3, value.encode())
    if isinstance(value, str):
        return _sized(0xA1, value.encode())
    if isinstance(value, bytes):
        return _sized(0xA0, value)
    if isinstance(value, DescribedValue):
        return b"\x00" + encode(value.descriptor) + encode(value.value)
    if isinstance(value, list):
        return _compound(0xC0, len(value), b"".join(map(encode, value))) if value else b"\x45"
    if isinstance(value, dict):
        content = b"".join(encode(key) + encode(item) for key, item in value.items())
        return _compound(0xC1, 2 * len(value), content)
    return _encode_rare(value)


def _encode_rare(value: Value) -> bytes:
    if isinstance(value, float):
        return b"\x82" + struct.pack(">d", value)
    if isinstance(value, UUID):
        return b"\x98" + value.bytes
    if isinstance(value, Opaque):
        return bytes([value.constructor]) + value.content
    if isinstance(value, Array):
        # Fixed widths only: a peer reads all items with the constructor of the first.
        encoded = [encode(item) for item in value.items] or [b"\x40"]
        content = encoded[0][:1] + b"".join(item[1:] for item in encoded)
        return _compound(0xE0, len(value.items), content)
    raise TypeError(f"{type(value).__name__} has no AMQP type here")


def _encode_number(value: int) -> bytes:
    if isinstance(value, ULong) and value < 256:
        return bytes([0x53, value])  # as the SDK wants the codes of frames and sections
    for kind, constructor, pattern in (
        (UInt, 0x70, ">I"),
        (ULong, 0x80, ">Q"),
        (Int, 0x71, ">i"),
        (Timestamp, 0x83, ">q"),
        (UByte, 0x50, ">B"),
        (UShort, 0x60, ">H"),
    ):
        if isinstance(value, kind):
            return bytes([constructor]) + struct.pack(pattern, value)
    return b"\x81" + struct.pack(">q", value)


def _sized(constructor: int, content: bytes) -> bytes:
    if len(content) < 256:
        return bytes([constructor, len(content)]) + content
    return bytes([constructor | _WIDE]) + struct.pack(">I", len(content)) + content


def _compound(constructor: int, count: int, content: bytes) -> bytes:
    if len(content) < 255 and count < 256:
        return bytes([constructor, len(content) + 1, count]) + content
    return bytes([constructor | _WIDE]) + struct.pack(">II", len(content) + 4, count) + content
