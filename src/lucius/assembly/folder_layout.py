"""The mark of a data folder: the layout of the ledger that was opened with it, for as long as it lives.

In: a folder and the layout asked for. Out: why they do not go together, if so. A ledger in memory leaves no
mark. The folder is marked once its ledger is open, so that a start which is refused decides nothing; before
anything is done with the ledger, so that of several that begin a folder together the first one's word counts.
"""

import os
from contextlib import suppress
from pathlib import Path

from lucius.assembly.store_choice import MEMORY_STORAGE
from lucius.ledger.job_ledger import LayoutName
from lucius.ledger.store import StoreUnavailable

STORAGE_NAME = "storage"
LOCK_NAME = "lucius.lock"  # held by whatever uses the folder
LAYOUTS = tuple(layout.value for layout in LayoutName)


def layout_fault(folder: Path, storage: str) -> str | None:
    """Why the folder cannot be used with this layout, for people. Raises `OSError`."""
    before = None if storage == MEMORY_STORAGE else _mark_of(folder)
    if not before or before == storage:
        return None
    if before not in LAYOUTS:
        return (
            f"{folder / STORAGE_NAME} is not one of Lucius's files, which hold one word: "
            f"{' or '.join(LAYOUTS)}. Write there what the folder's jobs were made with, "
            "or take another folder with --data."
        )
    return (
        f"{folder} was made with --storage {before}, and a layout does not see the jobs of another. "
        f"Go on with --storage {before}, or take another folder with --data."
    )


def mark_layout(folder: Path, storage: str) -> None:
    """Raises `StoreUnavailable` where another was faster, and `OSError`."""
    if storage == MEMORY_STORAGE:
        return
    there = _mark_of(folder)
    if not there:
        path = folder / STORAGE_NAME
        if there is not None:  # an empty one, as a crash leaves it
            path.unlink(missing_ok=True)
        draft = folder / f".{STORAGE_NAME}.{os.getpid()}"
        draft.write_text(f"{storage}\n", encoding="utf-8")
        with suppress(FileExistsError):
            os.link(draft, path)
        draft.unlink()
    if (fault := layout_fault(folder, storage)) is not None:
        raise StoreUnavailable(fault)


def _mark_of(folder: Path) -> str | None:
    """None if there is none, which is not the same as an empty one."""
    try:
        return (folder / STORAGE_NAME).read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        return None
