"""The data folder: one `lucius dev` or any number of parts, and one layout for as long as it lives.

In: a folder and the layout asked for. Out: the folder, held until the claim is closed, or in plain words why
it cannot be had. `lucius dev` believes what it has in memory, so it wants the folder to itself; the parts
look for what others did, and share it. A layout does not see the rows of another, so its jobs would seem to
be gone. A ledger in memory leaves no mark on the folder.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import IO

from lucius.assembly.store_room import MEMORY_STORAGE

LOCK_NAME = "lucius.lock"
STORAGE_NAME = "storage"


def claim_folder(folder: Path, storage: str, *, shared: bool = False) -> IO[str] | str:
    """The open lock, which a process that dies lets go of; or why not. `shared`: beside others that share."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = (folder / LOCK_NAME).open("a", encoding="ascii")
    try:
        fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        before = storage if storage == MEMORY_STORAGE else _storage_of(folder, storage)
    except BlockingIOError:
        lock.close()
        other = "A `lucius dev`" if shared else "Another Lucius"
        return f"{other} is using {folder}. Stop it, or take another folder with --data."
    except OSError:
        lock.close()
        raise
    if before != storage:
        lock.close()
        return (
            f"{folder} was made with --storage {before}, and a layout does not see the jobs of another. "
            f"Go on with --storage {before}, or take another folder with --data."
        )
    return lock


def _storage_of(folder: Path, asked: str) -> str:
    """The layout of the folder; a folder without one gets what is asked for."""
    path = folder / STORAGE_NAME
    if not path.exists() or not path.read_text(encoding="utf-8").strip():
        path.unlink(missing_ok=True)
        draft = folder / f".{STORAGE_NAME}.{os.getpid()}"
        draft.write_text(f"{asked}\n", encoding="utf-8")
        with suppress(FileExistsError):
            os.link(draft, path)  # of several that begin a folder together, the first one's word counts
        draft.unlink()
    return path.read_text(encoding="utf-8").strip()
