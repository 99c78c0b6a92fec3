"""The form of a RESULT in result stores that keep whole documents: its name, and what is undelivered.

In: a key, a RESULT and where it goes. Out: a name that any store takes, and one document for both.
"""

from hashlib import sha256

import msgspec

from lucius.sdk.directive import Key


class _StoredResult(msgspec.Struct, frozen=True):
    reply_to: msgspec.Raw
    result: msgspec.Raw


_decode = msgspec.json.Decoder(_StoredResult).decode


def name_of(key: Key) -> str:
    """Four ids together may be longer than a row's key, and may hold what a path cannot."""
    return sha256(msgspec.json.encode(key)).hexdigest()


def pack_undelivered(reply_to: bytes, result: bytes) -> bytes:
    return msgspec.json.encode(_StoredResult(msgspec.Raw(reply_to), msgspec.Raw(result)))


def unpack_undelivered(body: bytes) -> tuple[bytes, bytes]:
    """`reply_to` and the RESULT."""
    undelivered = _decode(body)
    return bytes(undelivered.reply_to), bytes(undelivered.result)
