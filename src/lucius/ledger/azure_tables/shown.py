"""The columns for people as properties of an entity: typed, and never more than Azure takes.

In: what a row shows, how much room the entity has. Out: properties. A text that does not fit is cut here,
never in the body, and ends with `…`; `columns_cut` names the columns that were cut or changed. Lucius never
reads any of them.
"""

import datetime
import re
from typing import Any, Final

from azure.data.tables import EdmType, EntityProperty

from lucius.ledger.columns import ColumnType, ShownRow, shown_columns

COLUMNS_CUT: Final = "columns_cut"
CUT_MARK: Final = "…"
ESCAPE_BYTES: Final = 6  # what a character takes at most in JSON, for each of its UTF-16 units
PROPERTY_BYTES: Final = 64  # what a property takes beside its value and twice its name: its type, signs
NUMBER_BYTES: Final = 32
# Azure may refuse these in a string.
_UNCLEAR = re.compile("[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff]")
_REPLACEMENT: Final = "\ufffd"
_TEXTS = (ColumnType.TEXT, ColumnType.JSON)
_JSON: Final = ColumnType.JSON


def units(text: str) -> int:
    """The length of a string as Azure counts it."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2


def property_bytes(name: str, value: Any) -> int:
    """What a property takes on the wire, rather too much than too little."""
    size = PROPERTY_BYTES + 2 * len(name)
    if isinstance(value, str):
        return size + _text_bytes(value)
    return size + (len(value) * 4 // 3 if isinstance(value, bytes) else NUMBER_BYTES)


def _text_bytes(text: str) -> int:
    if text.isascii() and text.isprintable():
        return len(text) + text.count('"') + text.count("\\")
    return ESCAPE_BYTES * units(text)


def _held_bytes(text: str) -> int:
    """What a text takes on the wire, or in the entity, if that is more: there a character has two bytes."""
    return max(_text_bytes(text), 2 * len(text))


def shown_properties(
    shown: ShownRow, partition: str, key: str, *, texts_max: int, bytes_max: int
) -> dict[str, Any]:
    """`texts_max`: how many characters a text may have. `bytes_max`: what all may take. Where that is not
    enough for all, JSON is cut, the longest first: by the rest rows are found."""
    found: dict[str, Any] = {}
    texts: list[tuple[bool, str, str]] = []
    room = bytes_max - PROPERTY_BYTES
    for column, value in shown_columns(shown, partition, key):
        room -= PROPERTY_BYTES + 3 * len(column.name)  # it may be named once more, as cut
        if column.type in _TEXTS:
            texts.append((column.type is _JSON, column.name, value))
            found[column.name] = ""  # in the order of the declaration
            continue
        room -= NUMBER_BYTES
        timed = isinstance(value, datetime.datetime)
        found[column.name] = value if timed else EntityProperty(value, EdmType.INT64)
    cut = set()
    for _, name, value in sorted(texts, key=_longest_last):
        text = _fitting(value, texts_max, room)
        room -= _held_bytes(text)
        found[name] = text
        if text is not value:
            cut.add(name)
    if cut:
        found[COLUMNS_CUT] = ",".join(name for name in found if name in cut)
    return found


def _longest_last(text: tuple[bool, str, str]) -> tuple[bool, int]:
    is_json, _, value = text
    return is_json, len(value)


def _fitting(text: str, units_max: int, bytes_max: int) -> str:
    """The text itself, or another that is short and clear enough."""
    clear = text
    if not text.isprintable() and _UNCLEAR.search(text) is not None:
        clear = _UNCLEAR.sub(_REPLACEMENT, text)
    if len(clear) <= units_max // 2 and len(clear) * 2 * ESCAPE_BYTES <= bytes_max:
        return clear  # whatever is in it
    if units(clear) <= units_max and _held_bytes(clear) <= bytes_max:
        return clear
    kept = min(units_max, max(bytes_max // ESCAPE_BYTES, 1)) - 1
    # Cut by units: half a character at the end is left out.
    head = clear.encode("utf-16-le")[: 2 * kept].decode("utf-16-le", "ignore")
    return head + CUT_MARK
