"""How we speak with a process that works on documents: frames of a JSON head and a body, over pipes."""

import struct
from typing import IO, Final

import msgspec

HEAD: Final = struct.Struct(">IQ")
HEAD_BYTES_MAX: Final = 96 * 1024**2  # answers may be long
FRAME_BYTES_MAX: Final = 96 * 1024**2


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """`code`: of what is wrong with the document or the payload; None for a fault of the code."""

    code: str | None
    message: str


def take_frame(source: IO[bytes], bytes_max: int) -> tuple[bytes, bytes] | None:
    """None at the end. Raises `ValueError` for a frame that is too large."""
    begun = source.read(HEAD.size)
    if len(begun) < HEAD.size:
        return None
    head_bytes, body_bytes = HEAD.unpack(begun)
    if head_bytes > HEAD_BYTES_MAX or body_bytes > bytes_max:
        raise ValueError("a frame is too large")
    head, body = source.read(head_bytes), source.read(body_bytes)
    return (head, body) if (len(head), len(body)) == (head_bytes, body_bytes) else None
