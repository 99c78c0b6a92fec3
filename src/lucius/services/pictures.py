"""How many pixels a picture has, from its first bytes.

In: the bytes of a PNG, JPEG, GIF, BMP, WebP, TIFF or PNM. Out: width and height; None where they cannot be
told, and then the bounds of the program that reads it are all there is. Nothing is unpacked: a few kilobytes
of a picture may unfold into gigabytes.
"""

import re
from typing import Final

_SIZE_TAGS: Final = (256, 257)  # of a TIFF: width and height
_TIFF_ENTRIES_MAX: Final = 4096
_JPEG_SEGMENTS_MAX: Final = 10_000
# Start of frame; the others among these numbers define tables.
_JPEG_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_FILL: Final = re.compile(rb"\xff*")  # before a marker, as much as there is
_PNM: Final = re.compile(rb"P[1-6](?:\s|#[^\n]*\n)+(\d{1,9})(?:\s|#[^\n]*\n)+(\d{1,9})")

Size = tuple[int, int]


def picture_size(data: bytes) -> Size | None:
    if data.startswith(b"\x89PNG"):
        return _pair(data, 16, 4, "big")
    if data.startswith((b"GIF87a", b"GIF89a")):
        return _pair(data, 6, 2, "little")
    if data.startswith(b"BM"):
        return _bitmap(data)
    if data.startswith(b"\xff\xd8"):
        return _jpeg(data)
    if data.startswith((b"II*\x00", b"MM\x00*")):
        return _tiff(data)
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return _webp(data)
    found = _PNM.match(data[:1024])
    return None if found is None else (int(found[1]), int(found[2]))


def _pair(data: bytes, at: int, width: int, order: str) -> Size | None:
    if len(data) < at + 2 * width:
        return None
    return _number(data, at, width, order), _number(data, at + width, width, order)


def _number(data: bytes, at: int, width: int, order: str) -> int:
    return int.from_bytes(data[at : at + width], "big" if order == "big" else "little")


def _bitmap(data: bytes) -> Size | None:
    """A negative height means that the rows begin at the top."""
    if len(data) < 26:
        return None
    if _number(data, 14, 4, "little") == 12:
        return _pair(data, 18, 2, "little")
    sides = (int.from_bytes(data[at : at + 4], "little", signed=True) for at in (18, 22))
    width, height = map(abs, sides)
    return width, height


def _jpeg(data: bytes) -> Size | None:
    at = 2
    for _ in range(_JPEG_SEGMENTS_MAX):
        fill = _JPEG_FILL.match(data, at)
        at = at if fill is None else max(at, fill.end() - 1)
        if len(data) < at + 9 or data[at] != 0xFF:
            return None
        if data[at + 1] in _JPEG_FRAMES:
            return _number(data, at + 7, 2, "big"), _number(data, at + 5, 2, "big")
        at += 2 + _number(data, at + 2, 2, "big")
    return None


def _tiff(data: bytes) -> Size | None:
    """Of its first picture."""
    order = "big" if data.startswith(b"MM") else "little"
    start = _number(data, 4, 4, order)
    found: dict[int, int] = {}
    for entry in range(min(_number(data, start, 2, order), _TIFF_ENTRIES_MAX)):
        at = start + 2 + 12 * entry
        tag, kind = _number(data, at, 2, order), _number(data, at + 2, 2, order)
        if tag in _SIZE_TAGS:
            found[tag] = _number(data, at + 8, 2 if kind == 3 else 4, order)
    return (found[256], found[257]) if len(found) == len(_SIZE_TAGS) else None


def _webp(data: bytes) -> Size | None:
    kind = data[12:16]
    if kind == b"VP8X" and len(data) >= 30:
        return 1 + _number(data, 24, 3, "little"), 1 + _number(data, 27, 3, "little")
    if kind == b"VP8L" and len(data) >= 25:
        bits = _number(data, 21, 4, "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 " and len(data) >= 30:
        return _number(data, 26, 2, "little") & 0x3FFF, _number(data, 28, 2, "little") & 0x3FFF
    return None
