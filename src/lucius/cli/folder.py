"""The data folder: one `lucius dev` or any number of parts, and one layout for as long as it lives.

In: a folder and the layout asked for. Out: the folder, held until the claim is closed, or in plain words why
it cannot be had. `lucius dev` believes what it has in memory, so it wants the folder to itself; the parts
look for what others did, and share it. A layout does not see the rows of another, so its jobs would seem to
be gone.
"""

import fcntl
from pathlib import Path
from typing import IO

from lucius.assembly.folder_layout import LOCK_NAME, layout_fault


def claim_folder(folder: Path, storage: str, *, shared: bool = False) -> IO[str] | str:
    """The open lock, which a process that dies lets go of; or why not. `shared`: beside others that share."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = (folder / LOCK_NAME).open("a", encoding="ascii")
    try:
        fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        fault = layout_fault(folder, storage)
    except BlockingIOError:
        lock.close()
        other = "A `lucius dev`" if shared else "Another Lucius"
        return f"{other} is using {folder}. Stop it, or take another folder with --data."
    except OSError:
        lock.close()
        raise
    if fault is not None:
        lock.close()
        return fault
    return lock
