"""Keys as PostgreSQL can hold them.

In: a partition or a key. Out: text without NUL, which PostgreSQL refuses, in the same order. NUL and the
character after it become two characters each, so that every range means what it meant before, and the
mapping can be undone. Keys compare by their bytes (`COLLATE "C"`), which is the order of code points.
"""

from typing import Final

# A row of an index takes a third of a page, and no more.
PLACE_BYTES_MAX: Final = 2_600
_NUL, _ONE = "\x00", "\x01"
_NUL_TEXT, _ONE_TEXT = "\x01\x01", "\x01\x02"


def key_to_text(key: str) -> str:
    if _NUL not in key and _ONE not in key:
        return key
    return key.replace(_ONE, _ONE_TEXT).replace(_NUL, _NUL_TEXT)


def key_from_text(text: str) -> str:
    if _ONE not in text:
        return text
    return text.replace(_NUL_TEXT, _NUL).replace(_ONE_TEXT, _ONE)


def check_place(partition: str, key: str) -> None:
    """Both as text. Raises `ValueError`."""
    if len(partition) + len(key) <= PLACE_BYTES_MAX // 4:
        return
    size = len(partition.encode()) + len(key.encode())
    if size > PLACE_BYTES_MAX:
        raise ValueError(f"a partition and a key of {size} bytes together: at most {PLACE_BYTES_MAX}")
