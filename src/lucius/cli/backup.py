"""`lucius backup` and `lucius restore`: a data folder as one file, and back.

In: options. Out: what was done, on stdout, and an exit code. They work on the folder itself and ask no
server; a backup may be made while one runs there.
"""

import datetime
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
import typer

from lucius.cli.context import Output
from lucius.cli.http import EXIT_FAILED
from lucius.cli.options import DATA, file_to_write
from lucius.cli.render import plain

if TYPE_CHECKING:
    from lucius.assembly.backup import BackupManifest

T = TypeVar("T")

FolderOption = Annotated[Path, typer.Option("--data", file_okay=False, help="The data folder.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print what was done as compact JSON.")]


def backup(
    target: Annotated[
        Path, typer.Argument(metavar="FILE", dir_okay=False, help="The backup; must not be there yet.")
    ],
    data: FolderOption = DATA,
    artifacts: Annotated[
        bool,
        typer.Option("--artifacts", help="Also what services wrote below workspace/, which may be much."),
    ] = False,
    accept_damage: Annotated[
        bool, typer.Option("--accept-damage", help="Make it even of a ledger in which rows are damaged.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Copy a data folder into one file, also while Lucius runs there.

    It holds the ledger as of one moment, the signing keys and secrets, and the results that services kept:
    a holder of the file can sign callbacks, so it is readable by you only. Every row in it has been looked
    at; a damaged ledger ends the command with exit code 1 and leaves no file. `lucius restore` is the way
    back. A ledger in tables of Azure is not in the folder, and not in the backup.
    """
    from lucius.assembly.backup import make_backup

    if target.exists():
        raise typer.BadParameter(f"FILE {target}: is there already; a backup never replaces another.")
    if target.resolve().is_relative_to(data.resolve()):
        raise typer.BadParameter(f"FILE {target}: is in the data folder, and would be lost with it.")
    if not target.parent.is_dir():
        raise typer.BadParameter(f"FILE {target}: there is no folder {target.parent}.")
    file_to_write("FILE", target)
    out = Output(as_json=as_json)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    manifest = _done(
        out,
        lambda: make_backup(
            data, target, made_at=now, artifacts=artifacts, accept_damage=accept_damage, report=out.passing
        ),
    )
    size = target.stat().st_size
    if as_json:
        out.json(_report(manifest, backup=str(target), backup_bytes=size))
        return
    out.data(str(target))
    out.say(f"{_words(manifest)}, {size:,} bytes packed. Every row was looked at.")
    if not artifacts and any((data / "workspace").glob("*")):
        out.say("Artifacts below workspace/ are not in it: add --artifacts, or keep a copy of that folder.")


def restore(
    source: Annotated[
        Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="What `lucius backup` made.")
    ],
    data: FolderOption = DATA,
    force: Annotated[
        bool,
        typer.Option("--force", help="Into a folder that is not empty: what is there is put aside in it."),
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only look at the backup, byte by byte and row by row.")
    ] = False,
    accept_damage: Annotated[
        bool, typer.Option("--accept-damage", help="Also a backup that was made with this option.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Make a data folder from a backup.

    All of the backup is checked before the folder is touched. A folder that Lucius is using is refused; so is
    one that is not empty, without --force, which moves what is there into a folder `before-restore-…` of its
    own. Jobs go on from where they were when the backup was made: what was done since is done again.
    """
    from lucius.assembly.backup import restore_backup

    out = Output(as_json=as_json)
    if check:
        manifest = _done(out, lambda: _checked(source, accept_damage, out))
        if as_json:
            out.json(_report(manifest, backup=str(source), sound=not manifest.findings))
        else:
            out.data(f"{source} is sound: {_words(manifest)}.")
        return
    aside = datetime.datetime.now(datetime.UTC).strftime("before-restore-%Y%m%dT%H%M%SZ")
    manifest, kept = _done(
        out,
        lambda: restore_backup(
            source, data, aside=aside, force=force, accept_damage=accept_damage, report=out.passing
        ),
    )
    if as_json:
        out.json(_report(manifest, data=str(data), put_aside=None if kept is None else str(kept)))
        return
    out.data(str(data))
    out.say(f"{_words(manifest)}, as of {manifest.made_at}.")
    if kept is not None:
        out.say(f"What was there is in {kept}: remove it once all is well.")


def _checked(source: Path, accept_damage: bool, out: Output) -> "BackupManifest":
    import tempfile

    from lucius.assembly.backup import read_backup

    with tempfile.TemporaryDirectory(prefix="lucius-check-") as folder:
        return read_backup(source, Path(folder), accept_damage=accept_damage, report=out.passing)


def _done(out: Output, work: Callable[[], T]) -> T:
    from lucius.assembly.backup import BackupFault

    try:
        return work()
    except (BackupFault, OSError, sqlite3.Error) as fault:
        out.passing("")
        out.say(f"error: {plain(str(fault))}.")
        raise typer.Exit(EXIT_FAILED) from None
    finally:
        out.passing("")


def _words(manifest: "BackupManifest") -> str:
    files = "1 file" if len(manifest.files) == 1 else f"{len(manifest.files)} files"
    damage = f", {len(manifest.findings)} problems accepted" if manifest.findings else ""
    return f"{files}, {manifest.bytes_total:,} bytes{damage}"


def _report(manifest: "BackupManifest", **more: object) -> bytes:
    return msgspec.json.encode({**more, "manifest": manifest})
