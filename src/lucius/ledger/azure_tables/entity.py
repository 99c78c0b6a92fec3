"""A row as an entity: its columns, its size, and the trail of writes it carries.

In: ops, entities as Azure returns them. Out: entities that fit, rows. Knows no wire.

`Body` holds a short row as it is, to be read by people too. One that is longer than Azure's strings, or has
a character that Azure may refuse in them, is compressed and laid in `Part00`, `Part01`… of 64 KiB. `Bytes` is
the length of the row, against which what comes back is checked. Beside it stand the columns for people (see
`shown`), which are never read back.

`Sum` is the checksum of the row, of its place and of its trail (see `sums`). An entity without one was
written by a version that had none, and is believed.

`Write` is the **trail**: the id of the write that made this version and those of the versions before it,
newest first, `+` at the end where earlier ones are left out. A write whose answer was lost looks for its id
there. The ETag that leaves here is the trail and Azure's own ETag, so that a writer that replaces a row
carries its trail on without reading it.
"""

import re
import zlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from azure.data.tables import EdmType, EntityProperty

from lucius.ledger.azure_tables.names import key_from_azure
from lucius.ledger.azure_tables.shown import property_bytes, shown_properties, units
from lucius.ledger.checksums import DAMAGED, row_sum
from lucius.ledger.store import COMMIT_BYTES_MAX, Op, Row, Scanned, Verb

TEXT_CHARACTERS_MAX: Final = 32_768
PART_BYTES_MAX: Final = 65_536
# An entity is at most 1 MiB, on the wire too, where bytes are written in base64: 11 parts make 940 KiB of it.
PARTS_MAX: Final = 11
ENTITY_BYTES_MAX: Final = 1_048_576
UTF8_BYTES_MAX: Final = 3  # of one UTF-16 unit, of which a string of Azure consists
OP_BYTES: Final = 1_024  # what an op takes in a transaction beside its row: its own headers, its URL
KEY_CHARACTER_BYTES: Final = 18  # what a character of a key takes at the most, in the URL and in the entity
TRAIL_IDS_MAX: Final = 4
COMPRESSION_LEVEL: Final = 1

_PARTS = tuple(f"Part{number:02d}" for number in range(PARTS_MAX))
_PLAIN = re.compile(rb"[ -~]*")
# No control characters, and no two that are no characters: a string may have been XML on its way.
_CLEAR = re.compile("[^\x00-\x1f\x7f-\x9f\ufffe\uffff]*")
_WRITE_ID = re.compile(r"[0-9a-f]{16}")
# All of one length: what was added to an ETag, at whichever end, makes it another that matches nothing.
_ETAG = re.compile(r'((?:[0-9a-f]{16}[0-9]{2}\.)*(?:[0-9a-f]{16}[0-9]{2}|\+))~(W/"[^"]*")')
_BEGAN_UNKNOWN: Final = "+"


class EntityTooLarge(ValueError):
    """The row or the commit is more than Azure takes. Nothing was written."""


class WriteTrail(msgspec.Struct, frozen=True, kw_only=True):
    """Who wrote this row, newest first; `whole` if that goes back to its insertion."""

    ids: tuple[str, ...]
    whole: bool

    def text(self) -> str:
        return ".".join(self.ids if self.whole else (*self.ids, _BEGAN_UNKNOWN))


class ParsedETag(msgspec.Struct, frozen=True, kw_only=True):
    """An ETag of the port, taken apart."""

    trail: WriteTrail
    azure: str


NOT_OURS: Final = "it is not as this store writes rows, or it was changed by another program"
NO_ETAG: Final = ""

UNKNOWN_TRAIL: Final = WriteTrail(ids=(), whole=False)


def op_id(write_id: str, index: int) -> str:
    """Of one op in a commit."""
    if _WRITE_ID.fullmatch(write_id) is None:
        raise ValueError(f"not the id of a write: {write_id!r} (16 hexadecimal digits)")
    return f"{write_id}{index:02d}"


def trail_of(text: str) -> WriteTrail:
    ids = text.split(".")
    whole = ids[-1] != _BEGAN_UNKNOWN
    return WriteTrail(ids=tuple(ids if whole else ids[:-1]), whole=whole)


def tag_of(etag: str) -> ParsedETag | None:
    """None for what was never an ETag of this store, and so matches nothing."""
    found = _ETAG.fullmatch(etag)
    return None if found is None else ParsedETag(trail=trail_of(found[1]), azure=found[2])


def etag_of(trail: WriteTrail, azure: str) -> str:
    return f"{trail.text()}~{azure}"


def next_trail(op: Op, write_id: str) -> WriteTrail:
    if op.verb is Verb.INSERT:
        return WriteTrail(ids=(write_id,), whole=True)
    tag = tag_of(op.etag) if op.verb is Verb.REPLACE else None
    before = UNKNOWN_TRAIL if tag is None else tag.trail
    kept = before.ids[: TRAIL_IDS_MAX - 1]
    return WriteTrail(ids=(write_id, *kept), whole=before.whole and len(kept) == len(before.ids))


def written(op: Op, trail: WriteTrail, texts_max: int = TEXT_CHARACTERS_MAX) -> dict[str, Any]:
    """The columns that hold a row, and those for people, whose texts have `texts_max` characters at most; 0:
    none of these. Raises `EntityTooLarge`."""
    stamp = trail.text()
    row = row_sum(op.table, op.partition, op.key, stamp, op.body)
    found = {"Write": stamp, "Sum": row, **_body(op.body, clear=texts_max == TEXT_CHARACTERS_MAX)}
    if op.shown is None or texts_max == 0:
        return found
    room = ENTITY_BYTES_MAX - max(wire_bytes(found), 2 * TEXT_CHARACTERS_MAX)
    return found | shown_properties(op.shown, op.partition, op.key, texts_max=texts_max, bytes_max=room)


def _body(body: bytes, *, clear: bool) -> dict[str, Any]:
    """The columns that hold a body. `clear`: other than ASCII may stand as it is, though it takes more room
    on the wire than compressed. Raises `EntityTooLarge`."""
    found: dict[str, Any] = {"Bytes": EntityProperty(len(body), EdmType.INT64)}
    if len(body) <= TEXT_CHARACTERS_MAX and _PLAIN.fullmatch(body) is not None:
        found["Body"] = body.decode("ascii")
        return found
    if clear and (text := _clear_text(body)) is not None:
        found["Body"] = text
        return found
    packed = zlib.compress(body, COMPRESSION_LEVEL)
    if len(packed) > PARTS_MAX * PART_BYTES_MAX:
        raise EntityTooLarge(
            f"a row of {len(body)} bytes, {len(packed)} compressed: at most {PARTS_MAX * PART_BYTES_MAX}"
        )
    for number, start in enumerate(range(0, len(packed), PART_BYTES_MAX)):
        found[_PARTS[number]] = packed[start : start + PART_BYTES_MAX]
    return found


def _clear_text(body: bytes) -> str | None:
    """The body as a string that Azure takes; None if there is none."""
    if len(body) > TEXT_CHARACTERS_MAX * UTF8_BYTES_MAX:
        return None
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return text if units(text) <= TEXT_CHARACTERS_MAX and _CLEAR.fullmatch(text) is not None else None


def wire_bytes(entity: Mapping[str, Any]) -> int:
    """What an op takes in a transaction, rather too much than too little."""
    keys = len(entity.get("PartitionKey", "")) + len(entity.get("RowKey", ""))
    return OP_BYTES + KEY_CHARACTER_BYTES * keys + sum(property_bytes(*each) for each in entity.items())


def check_request(bytes_total: int) -> None:
    if bytes_total > COMMIT_BYTES_MAX:
        raise EntityTooLarge(f"a commit of about {bytes_total} bytes, at most {COMMIT_BYTES_MAX}")


def body_of(entity: Mapping[str, Any]) -> bytes | None:
    """None for what is not as this store writes it."""
    try:
        text = entity.get("Body")
        if text is not None:
            body = str(text).encode()
        else:
            packed = b"".join(entity[part] for part in _PARTS if part in entity)
            body = _unpacked(packed, entity["Bytes"].value)
        whole = len(body) == entity["Bytes"].value
    except (KeyError, AttributeError, TypeError, ValueError, zlib.error):
        return None
    return body if whole else None


def _unpacked(packed: bytes, bytes_max: int) -> bytes:
    """A damaged row may unfold into a thousand times what it says: no more than that is unpacked."""
    unpacking = zlib.decompressobj()
    body = unpacking.decompress(packed, bytes_max + 1)
    if not unpacking.eof:
        raise zlib.error("incomplete, or longer than it says")
    return body


def trail_in(entity: Mapping[str, Any]) -> WriteTrail:
    text = entity.get("Write")
    return trail_of(text) if isinstance(text, str) and text else UNKNOWN_TRAIL


def row_of(table: str, partition: str, entity: Mapping[str, Any], azure_etag: str) -> Row:
    """The row that an entity holds, by the port's names of its place."""
    try:
        key = key_from_azure(entity["RowKey"])
    except (ValueError, KeyError):
        return Row(str(entity["RowKey"]), NO_ETAG, b"", NOT_OURS)
    etag = etag_of(trail_in(entity), azure_etag)
    body = body_of(entity)
    if body is None:
        return Row(key, etag, b"", NOT_OURS)
    found = entity.get("Sum")
    if found is not None and found != row_sum(table, partition, key, str(entity.get("Write")), body):
        return Row(key, etag, b"", DAMAGED)
    return Row(key, etag, body)


def scanned_of(table: str, entity: Mapping[str, Any], azure_etag: str) -> Scanned:
    """A damaged row is returned like any other: a scan goes on behind it."""
    try:
        partition = key_from_azure(entity["PartitionKey"])
    except (ValueError, KeyError):
        partition = str(entity["PartitionKey"])
    row = row_of(table, partition, entity, azure_etag)
    return Scanned(partition, row.key, row.etag, row.body, row.damage)
