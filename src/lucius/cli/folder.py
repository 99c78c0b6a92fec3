"""The data folder of `lucius dev`: one process at a time, and one layout for as long as it lives.

In: a folder and the layout asked for. Out: the folder, held until the claim is closed, or in plain words why
it cannot be had. What a process hands out and counts lives in its memory, so two on one folder would each
know half; and a layout does not see the rows of another, so its jobs would seem to be gone.
"""

import fcntl
from pathlib import Path
from typing import IO

LOCK_NAME = "lucius.lock"
STORAGE_NAME = "storage"


def claim_folder(folder: Path, storage: str) -> IO[str] | str:
    """The open lock, which a process that dies lets go of; or why not."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = (folder / LOCK_NAME).open("a", encoding="ascii")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        before = _storage_of(folder, storage)
    except BlockingIOError:
        lock.close()
        return f"Another Lucius is using {folder}. Stop it, or take another folder with --data."
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
    known = path.read_text(encoding="utf-8").strip() if path.exists() else ""
    if not known:
        path.write_text(f"{asked}\n", encoding="utf-8")
    return known or asked
