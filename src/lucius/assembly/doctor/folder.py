"""The data folder: who may read it, whether there is room, and whether its times, and the clock of the server
that keeps the ledger, agree with the clock."""

import os
import shlex
import shutil
import stat
import time
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from lucius.assembly.doctor.findings import Checked, Finding, error, number_of, warning
from lucius.assembly.doctor.installation import Installation
from lucius.assembly.secrets import SIGNING_FOLDER
from lucius.assembly.stores import STORE_NAME

FREE_BYTES_LEAST = 64 * 1024 * 1024
FREE_BYTES_LITTLE = 1024 * 1024 * 1024
LOG_BYTES_MAX = 1024 * 1024 * 1024
CLOCK_AHEAD_SECONDS_MAX = 120
CLOCKS_APART_SECONDS_MAX = 60  # what processes that share a ledger may differ by
FILES_MAX = 10_000
OTHERS = stat.S_IRWXG | stat.S_IRWXO
MB = 1024 * 1024


@runtime_checkable
class HasClock(Protocol):
    """A store whose server says what time it is there."""

    def server_clock_ms(self) -> Awaitable[int]: ...


async def check_files(installation: Installation) -> tuple[Checked, list[Finding]]:
    """What holds jobs or secrets is for its owner alone, and that is who runs Lucius."""
    if not installation.data.is_dir():
        return Checked(check="files", looked="no data folder", findings=0), []
    files = list(_kept(installation.data))
    found = [*_open_to_others(files), *_of_others(installation.data, files), *_not_writable(files)]
    return Checked(check="files", looked=number_of(len(files), "file"), findings=len(found)), found


def _kept(data: Path) -> Iterator[Path]:
    """The folder, the ledger with what SQLite keeps beside it, and the keys; artifacts are not looked at."""
    yield data
    if (data / STORE_NAME).exists():
        yield from sorted(data.glob(f"{STORE_NAME}*"))
    keys = data / SIGNING_FOLDER
    if keys.is_dir():
        yield keys
        yield from sorted(path for path in keys.iterdir() if path.is_file())


def _open_to_others(files: list[Path]) -> Iterator[Finding]:
    if not _mode(files[0]) & OTHERS:
        return  # no other user gets into the folder
    paths = [path for path in files if _mode(path) & OTHERS]
    if paths:
        text = f"{number_of(len(paths), 'file')} may be read by other users: they hold payloads and keys"
        mend = f"chmod -R go= {_shell(files[0])}"
        yield _with_examples(warning("files", text, mend), paths)


def _of_others(data: Path, files: list[Path]) -> Iterator[Finding]:
    owner = data.stat().st_uid
    paths = [path for path in files if path.exists() and path.stat().st_uid != owner]
    if paths:
        text = f"{number_of(len(paths), 'file')} of another user than the folder's: Lucius cannot write them"
        yield _with_examples(error("files", text, f"chown -R {owner} {_shell(data)}"), paths)


def _not_writable(files: list[Path]) -> Iterator[Finding]:
    if os.geteuid() == 0:
        return  # who may write everything learns nothing by asking
    paths = [path for path in files if path.exists() and not os.access(path, os.R_OK | os.W_OK)]
    if paths:
        text = f"{number_of(len(paths), 'file')} cannot be written by this user"
        yield _with_examples(error("files", text, f"chmod -R u+rwX {_shell(files[0])}"), paths)


async def check_disk(installation: Installation) -> tuple[Checked, list[Finding]]:
    if not installation.data.is_dir():
        return Checked(check="disk", looked="no data folder", findings=0), []
    free = shutil.disk_usage(installation.data).free
    found: list[Finding] = []
    if free < FREE_BYTES_LITTLE:
        text = f"{free // MB:,} MB are free on the disk of {installation.data}"
        mend = "Make room: without it, commands are answered 503."
        found.append((error if free < FREE_BYTES_LEAST else warning)("disk", text, mend))
    log = installation.ledger_folder / f"{STORE_NAME}-wal"
    if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
        text = f"The write-ahead log has {log.stat().st_size // MB:,} MB: a reader never lets go of it"
        found.append(warning("disk", text, "Close programs that hold the file open, then restart Lucius."))
    return Checked(check="disk", looked=f"{free // MB:,} MB free", findings=len(found)), found


async def check_clock(installation: Installation) -> tuple[Checked, list[Finding]]:
    """Files of this folder that are newer than now: the clock was set back, or is wrong. A server that keeps
    the ledger has a clock to compare with."""
    found: list[Finding] = []
    if isinstance(installation.store, HasClock):
        before_ms = installation.now_ms()
        there_ms = await installation.store.server_clock_ms()
        apart = ((before_ms + installation.now_ms()) / 2 - there_ms) / 1000
        if abs(apart) > CLOCKS_APART_SECONDS_MAX:
            side = "ahead of" if apart > 0 else "behind"
            text = f"The clock here is {_ahead(abs(apart))} {side} that of the server with the ledger"
            mend = "Set both clocks, and keep them right: timedatectl set-ntp true"
            found.append(error("clock", text, mend))
    now_seconds = installation.now_ms() / 1000
    paths = list(_kept(installation.data)) if installation.data.is_dir() else []
    latest = now_seconds + CLOCK_AHEAD_SECONDS_MAX
    ahead = [path for path in paths if path.exists() and path.stat().st_mtime > latest]
    if ahead:
        newest = max(path.stat().st_mtime for path in ahead)
        text = f"{number_of(len(ahead), 'file')} were written {_ahead(newest - now_seconds)} from now"
        mend = "Set the clock, and keep it right: timedatectl set-ntp true"
        found.append(_with_examples(warning("clock", text, mend), ahead))
    shown = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(now_seconds))
    return Checked(check="clock", looked=f"it is {shown}", findings=len(found)), found


def _ahead(seconds: float) -> str:
    minutes = seconds / 60
    return f"{minutes:,.0f} minutes" if minutes < 120 else f"{minutes / 60:,.0f} hours"


def _mode(path: Path) -> int:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return 0


def _shell(path: Path) -> str:
    return shlex.quote(str(path))


def _with_examples(finding: Finding, paths: list[Path]) -> Finding:
    return msgspec.structs.replace(finding, count=len(paths), examples=tuple(map(str, paths[:5])))
