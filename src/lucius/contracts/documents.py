"""From bytes to a JSON value.

In: a body as it came. Out: the value, or a refusal. What passes can be written back as JSON, hashed and
stored: valid UTF-8, no NaN, no lone surrogates, no number beyond a double's range, no deep nest that would
exhaust a later walk. A name that comes twice in an object counts once, with its last value.
"""

import re
from collections.abc import Collection
from contextlib import suppress
from typing import Final

import msgspec

from lucius.core.model import Json
from lucius.core.refusal import Code, FieldError, Refused

DEPTH_MAX: Final = 64
GZIP_MAGIC: Final = b"\x1f\x8b"
SPLIT_MARKS_MAX: Final = 1_000_000  # they take a fifth of a second

_BLANKS: Final = rb"[ \t\r\n]*+"
_decode = msgspec.json.Decoder().decode
_check_form = msgspec.json.Decoder(msgspec.Raw).decode
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
# A surrogate, or several in a row, behind any number of backslashes that stand for themselves. Possessive, as
# the next: bodies are hostile, and nothing is to be gained by trying another way.
_surrogates = re.compile(rb"(?<!\\)((?:\\\\)*+)(?:\\u[dD][89a-fA-F][0-9a-fA-F]{2})++").sub
# All that shows where an item ends: texts, brackets by the run, commas, the end. A quote alone begins a text
# that has no end.
_marks = re.compile(rb'[^"\[\]{},]*+("(?:[^"\\]++|\\.)*+"|[\[{]++|[\]}]++|[,"]|\Z)', re.DOTALL).finditer


def parse_list(raw: bytes, name: str, *, items_max: int) -> list[bytes] | Refused:
    """Of an object whose only member is a list: the items as they came, each to be read by itself. There may
    be more than `items_max`, which is then the reason to refuse them."""
    try:
        members = _members(raw)
        if members.keys() == {name}:
            return [bytes(item) for item in _items(members[name])]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        items = _split(raw, name, items_max)
        if items is not None and (len(items) > items_max or all(map(_has_form, items))):
            return items
    refused = parse_json(raw)
    if isinstance(refused, Refused):
        return refused
    fault = FieldError(f"/{name}", "must be an array, and the only member")
    return Refused(Code.INVALID_ENVELOPE, f'the body must be {{"{name}": [...]}}', (fault,))


def _split(raw: bytes, name: str, items_max: int) -> list[bytes] | None:
    """The items of a list at which the decoder gives up, for the depth or a lone surrogate of one of them
    (decision 057), or the first that are too many; None if they cannot be separated."""
    before, opening, rest = raw.partition(b"[")
    body, closing, after = rest.rpartition(b"]")
    named = b'"%b"' % re.escape(name.encode())
    frame = _BLANKS.join((b"", rb"\{", named, b":", rb"\[\]", rb"\}", b""))
    if re.fullmatch(frame, before + opening + closing + after) is None:
        return None
    items: list[bytes] = []
    depth = begin = 0
    for number, mark in enumerate(_marks(body)):
        sign = mark[1]
        if sign.startswith((b"[", b"{")):
            depth += len(sign)
        elif sign.startswith((b"]", b"}")):
            depth -= len(sign)
        elif sign == b"," and depth == 0:
            items.append(body[begin : mark.start(1)])
            begin = mark.end()
            if len(items) > items_max:
                return items
        if depth < 0 or sign == b'"' or number > SPLIT_MARKS_MAX:
            return None
    return None if depth else [*items, body[begin:]]


def _has_form(item: bytes) -> bool:
    """Whether it is JSON except for its depth and for surrogates that stand alone: both spoil an item and
    leave no doubt where it ends."""
    try:
        _check_form(item)
    except RecursionError:
        return True
    except msgspec.DecodeError:
        mended = _surrogates(rb"\1\\n", item)
        return mended != item and _has_form(mended)
    return True


def parse_message(raw: bytes, needed: Collection[str]) -> Json | Refused:
    """A message, of which unknown members are ignored: a member that cannot be read, for its depth or the
    size of a number, is left out, unless it is among those `needed`."""
    value = parse_json(raw)
    if not isinstance(value, Refused) or value.code is not Code.INVALID_ENVELOPE:
        return value
    kept: dict[str, Json] = {}
    with suppress(msgspec.DecodeError, RecursionError):
        for name, member in _members(raw).items():
            read = parse_json(bytes(member))
            if not isinstance(read, Refused):
                kept[name] = read
            elif name in needed:
                return value
        return kept
    return value


def parse_json(raw: bytes) -> Json | Refused:
    if not raw or raw.isspace():
        return Refused(Code.MALFORMED_JSON, "the body is empty")
    if raw.startswith(GZIP_MAGIC):
        return Refused(Code.MALFORMED_JSON, "the body is not JSON, it looks like gzip: send it uncompressed")
    try:
        value = _decoded(raw)
    except msgspec.DecodeError as error:
        return Refused(Code.MALFORMED_JSON, f"the body is not JSON: {error}")
    except UnicodeDecodeError:
        return Refused(Code.MALFORMED_JSON, "the body is not valid UTF-8")
    except RecursionError:
        return _too_deep()
    # Each level opens with a bracket: few brackets are proof enough, and cheaper than a walk.
    if raw.count(b"{") + raw.count(b"[") > DEPTH_MAX and _deeper_than(value, DEPTH_MAX):
        return _too_deep()
    return value


def _decoded(raw: bytes) -> Json | Refused:
    try:
        return _decode(raw)
    except msgspec.ValidationError:
        # The decoder has no schema to check, so the only thing left to object to is the size of a number. It
        # went no further: what follows need not be JSON.
        _check_form(raw)
        raw.decode()
        return _invalid("a number is outside the range of a double, or an integer has more than 4,300 digits")


def _deeper_than(value: Json, depth_max: int) -> bool:
    level = [value] if isinstance(value, dict | list) else []
    depth = 0
    while level:
        depth += 1
        if depth > depth_max:
            return True
        level = [
            member
            for container in level
            for member in (container.values() if isinstance(container, dict) else container)
            if isinstance(member, dict | list)
        ]
    return False


def _too_deep() -> Refused:
    return _invalid(f"the body is nested more than {DEPTH_MAX} levels deep")


def _invalid(message: str) -> Refused:
    return Refused(Code.INVALID_ENVELOPE, message, (FieldError("", message),))
