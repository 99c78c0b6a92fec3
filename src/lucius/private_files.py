"""Files and folders that only their owner may read or write.

In: a path. Out: a file of mode 0600 from its first byte, or a folder of mode 0700 whose own files are closed
too. A process that keeps a data folder writes all its files so, whichever library creates them: its umask
says it.
"""

import os
import stat
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

OTHERS = 0o077


def write_private(path: Path, content: bytes) -> None:
    """What was there before is replaced at once, or stays as it was."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(name).replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            Path(name).unlink()
        raise


def create_private(path: Path) -> None:
    """An empty file where there is none. One that is there is not even opened: to close it again would end
    the locks that SQLite holds on it in this process."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def close_to_others(path: Path) -> bool:
    """Takes away what others may do with it; False: it is not ours to close. What is not there is closed."""
    try:
        found = path.lstat()
        if found.st_mode & OTHERS and not stat.S_ISLNK(found.st_mode):
            path.chmod(stat.S_IMODE(found.st_mode) & ~OTHERS)
    except FileNotFoundError:
        return True
    except PermissionError:
        return False
    return True


def keep_private(folder: Path, *, mark: str, is_own: Callable[[Sequence[str]], bool]) -> bool:
    """Makes the folder, and from here on every file that this process writes is its owner's alone. A folder
    from a time when that was not so is closed with all that `is_own` knows in it, once: `mark` names a file
    that is closed last. False: others could reach it before, and it is not ours to close."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    os.umask(OTHERS)
    folder.mkdir(exist_ok=True)
    closed = close_to_others(folder)
    if not _is_closed(folder / mark):
        for top in sorted(folder.iterdir()):
            if top.name != mark and is_own((top.name,)):
                closed = _close_all(top) and closed
        close_to_others(folder / mark)
    return closed


def _is_closed(path: Path) -> bool:
    try:
        return not path.lstat().st_mode & OTHERS
    except FileNotFoundError:
        return False


def _close_all(top: Path) -> bool:
    closed = close_to_others(top)
    if top.is_symlink() or not top.is_dir():
        return closed
    for folder, folders, files in os.walk(top):
        for name in (*folders, *files):
            closed = close_to_others(Path(folder, name)) and closed
    return closed


def open_to_others(folder: Path) -> list[str]:
    """What in it, and the folder itself, others may do something with."""
    found = []
    for inside, folders, files in os.walk(folder):
        for path in (Path(inside), *(Path(inside, name) for name in (*folders, *files))):
            with suppress(FileNotFoundError):
                mode = path.lstat().st_mode
                if mode & OTHERS and not stat.S_ISLNK(mode):
                    found.append(f"{stat.filemode(mode)} {path}")
    return sorted(set(found))
