"""The data folder: one `lucius dev` or any number of parts, and one layout for as long as it lives.

In: a folder and the layout asked for. Out: the folder, held until the claim is closed, or in plain words why
it cannot be had. `lucius dev` believes what it has in memory, so it wants the folder to itself; the parts
look for what others did, and share it. A layout does not see the rows of another, so its jobs would seem to
be gone. The process that claims the folder keeps it, and all that it writes, closed to other users of the
machine.
"""

import fcntl
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import structlog

from lucius.assembly.stores import LOCK_NAME, MEMORY_STORAGE, is_beside, layout_fault, ledger_folder
from lucius.private_files import keep_private
from lucius.settings import Settings
from lucius.workspace.own_files import SAMPLES, WORKSPACES, is_own

OPEN_HINT = (
    "other users of this machine can reach it, and it belongs to another user, who can close it: chmod -R go="
)

log = structlog.get_logger("lucius.cli")


def _is_lucius_own(parts: Sequence[str]) -> bool:
    return is_own(parts) or parts[0] in (WORKSPACES, SAMPLES)


def claim_folders(settings: Settings, data: Path, storage: str, *, shared: bool = False) -> ExitStack | str:
    """The data folder and, where `LUCIUS_STORE` names a file elsewhere, the folder of the ledger; or why
    not. Raises `OSError`."""
    ledger = ledger_folder(settings, data)
    apart = not is_beside(settings, data)
    with ExitStack() as held:
        for folder, layout in ((data, MEMORY_STORAGE if apart else storage), (ledger, storage))[: 1 + apart]:
            claim = claim_folder(folder, layout, shared=shared)
            if isinstance(claim, str):
                return claim
            held.enter_context(claim)
        return held.pop_all()


def claim_folder(folder: Path, storage: str, *, shared: bool = False) -> IO[str] | str:
    """The open lock, which a process that dies lets go of; or why not. `shared`: beside others that share."""
    if not keep_private(folder, mark=LOCK_NAME, is_own=_is_lucius_own):
        log.warning("data_folder_open", folder=str(folder), hint=OPEN_HINT)
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
