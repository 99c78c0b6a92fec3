"""Whether the disk has room for the ledger to grow.

In: the path of the SQLite file. Out: None, or what is wrong. A commit does not show it: SQLite writes a small
one over old parts of its log, so that on a full disk some still succeed, and the next larger one fails. So
room is asked for itself, in a file without a name that is gone at once; nothing is written to it.
"""

import os
import tempfile
from pathlib import Path
from typing import Final

GROWTH_BYTES: Final = 1_048_576
_BESIDE: Final = ("", "-wal")


def room_fault(path: Path) -> str | None:
    """Takes some 0.1 ms on a local disk."""
    largest = max((_size(path.with_name(path.name + suffix)) for suffix in _BESIDE), default=0)
    try:
        with tempfile.TemporaryFile(dir=path.parent, prefix=".room.") as file:
            _take_room(file.fileno())
            os.ftruncate(file.fileno(), largest + GROWTH_BYTES)  # a process may have a limit for its files
    except OSError as fault:
        return f"the disk of {path.parent} has no room for the ledger to grow: {fault.strerror}"
    return None


def _take_room(descriptor: int) -> None:
    allocate = getattr(os, "posix_fallocate", None)
    if allocate is None:  # not on every system
        os.write(descriptor, bytes(GROWTH_BYTES))
    else:
        allocate(descriptor, 0, GROWTH_BYTES)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
