"""A data folder as one file, and back: the ledger, the keys, and what else Lucius cannot do without.

In: a data folder or a backup, and what to call while it takes long. Out: a backup whose every row was looked
at, a folder made from one, or `BackupFault`, whose text says what to do.

A backup is made while Lucius runs: SQLite copies its file as of one moment, whatever is written meanwhile. It
is a compressed tar file of plain files, with `manifest.json` in front, which has the checksum of each. It
holds signing keys and secrets, so that only its owner may read it. A restore looks at all of it before it
touches the folder, and puts what was there aside instead of deleting it.
"""

import fcntl
import hashlib
import io
import os
import shutil
import sqlite3
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path, PurePosixPath

import msgspec

from lucius import __version__
from lucius.assembly.secrets import SIGNING_FOLDER
from lucius.assembly.stores import LOCK_NAME, MADE_NAME, STORAGE_NAME, STORE_NAME
from lucius.ledger.sqlite.integrity import file_findings, header_fault

MANIFEST_NAME = "manifest.json"
MANIFEST_BYTES_MAX = 16_777_216
FORMAT = "lucius-backup"
FORMAT_VERSION = 1
PAGES_PER_STEP = 1_024  # 8 MB: how often the caller hears of it
CHUNK_BYTES = 1_048_576
FILES_MAX = 1_000_000
COMPRESSION_LEVEL = 1
ARTIFACTS_FOLDER = "workspace"
FINDINGS_SHOWN_MAX = 5

Report = Callable[[str], None]


class BackupFault(Exception):
    """It was not done. The text says why, and what to do."""


class BackupFile(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # below the data folder, with slashes
    bytes: int
    sha256: str


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """`findings`: what was wrong with the ledger when it was copied, where that was accepted."""

    format: str
    format_version: int
    lucius: str
    made_at: str
    storage: str | None
    artifacts: bool
    files: tuple[BackupFile, ...]
    findings: tuple[str, ...] = ()

    @property
    def bytes_total(self) -> int:
        return sum(file.bytes for file in self.files)


def make_backup(
    data: Path, target: Path, *, made_at: str, artifacts: bool, accept_damage: bool, report: Report
) -> BackupManifest:
    """Raises `BackupFault`, `OSError` and `sqlite3.Error`; then there is no `target`."""
    ledger = data / STORE_NAME
    if not ledger.exists():
        raise BackupFault(
            f"there is no ledger in {data} ({STORE_NAME}). Name its folder with --data; tables of Azure are "
            "kept by the storage account, and have backups of their own"
        )
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as name:
        stage = Path(name)
        findings = _stage_databases(data, stage, report)
        if findings and not accept_damage:
            raise BackupFault(
                f"the ledger is damaged, and a backup of it would be, too: {_some(findings)}. `lucius doctor "
                f"--data {data}` names it all; --accept-damage makes the backup all the same"
            )
        _stage_files(data, stage, artifacts=artifacts, report=report)
        manifest = BackupManifest(
            format=FORMAT,
            format_version=FORMAT_VERSION,
            lucius=__version__,
            made_at=made_at,
            storage=_word(stage / STORAGE_NAME),
            artifacts=artifacts,
            files=tuple(_described(stage)),
            findings=tuple(findings),
        )
        _write_archive(stage, manifest, target, report)
    return manifest


def read_backup(archive: Path, folder: Path, *, accept_damage: bool, report: Report) -> BackupManifest:
    """Unpacks a backup into an empty folder and looks at every byte and row of it. Raises `BackupFault`."""
    try:
        with tarfile.open(archive, "r:gz") as tar:
            manifest = _manifest_in(tar)
            _unpack(tar, manifest, folder, report)
    except (tarfile.TarError, zlib.error, EOFError, ValueError, OSError) as fault:
        if isinstance(fault, FileNotFoundError | PermissionError) or getattr(fault, "errno", None):
            raise BackupFault(f"{archive} cannot be read: {fault}") from None
        raise BackupFault(f"{archive} is no backup of Lucius, or it is damaged: {fault}") from None
    report("Looking at every row.")
    findings = file_findings(folder / STORE_NAME, rest_seconds=0)
    unexpected = [finding for finding in findings if finding not in manifest.findings]
    if unexpected or (findings and not accept_damage):
        raise BackupFault(
            f"the ledger in {archive} is damaged: {_some(findings)}. Take an older backup"
            + ("" if unexpected else "; --accept-damage restores it all the same")
        )
    return manifest


def restore_backup(
    archive: Path, data: Path, *, aside: str, force: bool, accept_damage: bool, report: Report
) -> tuple[BackupManifest, Path | None]:
    """The manifest, and where what was in the folder is now. `aside` names the folder it is put in. Raises
    `BackupFault` and `OSError`; the folder is then as it was."""
    data.parent.mkdir(parents=True, exist_ok=True)
    data.mkdir(exist_ok=True, mode=0o700)
    with _held(data):
        there = _entries(data)
        if there and not force:
            raise BackupFault(
                f"{data} is not empty ({', '.join(sorted(each.name for each in there)[:3])} …). Restore into "
                "another folder, or with --force, which puts aside what is there"
            )
        with tempfile.TemporaryDirectory(prefix=".restore-", dir=data) as name:
            fresh = Path(name)
            manifest = read_backup(archive, fresh, accept_damage=accept_damage, report=report)
            kept = None
            if there:
                kept = data / aside
                kept.mkdir(mode=0o700)
                for each in there:
                    each.rename(kept / each.name)
            for each in list(fresh.iterdir()):
                each.rename(data / each.name)
        _sync(data)
    return manifest, kept


def _stage_databases(data: Path, stage: Path, report: Report) -> list[str]:
    """Copies every database that belongs to Lucius, as of one moment each; what is wrong with the ledger."""
    if (fault := header_fault(data / STORE_NAME)) is not None:
        raise BackupFault(
            f"{data / STORE_NAME} {fault}: there is nothing to back up. Restore an older backup"
        )
    for source in (data / STORE_NAME, *sorted(data.glob("results-*.db"))):
        try:
            _copy_database(source, stage / source.name, report)
        except sqlite3.DatabaseError as damage:
            raise BackupFault(
                f"SQLite cannot read {source}: {damage}. Restore an older backup, or save what can be read "
                "with the program sqlite3 and its .recover"
            ) from None
    report("Looking at every row.")
    return file_findings(stage / STORE_NAME, rest_seconds=0)


def _copy_database(source: Path, target: Path, report: Report) -> None:
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))

    def on_copied(status: int, left: int, total: int) -> None:
        if left:
            report(f"Copying {source.name}: {100 - left * 100 // max(1, total)} %")

    uri = f"{source.absolute().as_uri()}?mode=ro"
    with (
        closing(sqlite3.connect(uri, uri=True, timeout=30.0, isolation_level=None)) as old,
        closing(sqlite3.connect(target)) as new,
    ):
        # A transaction of our own holds the view: without it every write of others begins the copy anew.
        old.execute("BEGIN")
        old.execute("SELECT count(*) FROM sqlite_master").fetchall()
        old.backup(new, pages=PAGES_PER_STEP, progress=on_copied)
        old.execute("ROLLBACK")
        new.execute("PRAGMA journal_mode = DELETE").fetchall()


def _stage_files(data: Path, stage: Path, *, artifacts: bool, report: Report) -> None:
    for source in _plain_files(data, artifacts=artifacts):
        target = stage / source.relative_to(data)
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(FileNotFoundError):  # an artifact may be removed meanwhile
            shutil.copyfile(source, target)
            target.chmod(0o600)
    if artifacts:
        report("Copied the artifacts.")


def _plain_files(data: Path, *, artifacts: bool) -> Iterator[Path]:
    for name in (STORAGE_NAME, MADE_NAME):
        if (data / name).is_file():
            yield data / name
    for folder in (SIGNING_FOLDER, *((ARTIFACTS_FOLDER,) if artifacts else ())):
        for path in sorted((data / folder).rglob("*")):
            draft = path.name.startswith(".") or path.suffix == ".lock"
            if path.is_file() and not path.is_symlink() and not draft:
                yield path


def _described(stage: Path) -> Iterator[BackupFile]:
    for path in sorted(stage.rglob("*")):
        if path.is_file():
            name = path.relative_to(stage).as_posix()
            yield BackupFile(name=name, bytes=path.stat().st_size, sha256=_sha256(path))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_archive(stage: Path, manifest: BackupManifest, target: Path, report: Report) -> None:
    draft = stage / ".archive"
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        with tarfile.open(fileobj=file, mode="w:gz", compresslevel=COMPRESSION_LEVEL) as tar:
            encoded = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
            tar.addfile(_entry(MANIFEST_NAME, len(encoded)), io.BytesIO(encoded))
            for described in manifest.files:
                report(f"Packing {described.name}.")
                with (stage / described.name).open("rb") as source:
                    tar.addfile(_entry(described.name, described.bytes), source)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(target)
    _sync(target.parent)


def _entry(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o600
    return entry


def _manifest_in(tar: tarfile.TarFile) -> BackupManifest:
    first = tar.next()
    if first is None or first.name != MANIFEST_NAME or first.size > MANIFEST_BYTES_MAX:
        raise BackupFault("the file is no backup of Lucius: it does not begin with a manifest")
    raw = tar.extractfile(first)
    assert raw is not None
    manifest = msgspec.json.decode(raw.read(), type=BackupManifest)
    if manifest.format != FORMAT:
        raise BackupFault("the file is no backup of Lucius: its manifest is of another kind")
    if manifest.format_version > FORMAT_VERSION:
        raise BackupFault(
            f"the backup was made by Lucius {manifest.lucius}, in a format that this version "
            f"({__version__}) does not know: restore it with that version"
        )
    if len(manifest.files) > FILES_MAX or not any(file.name == STORE_NAME for file in manifest.files):
        raise BackupFault("the backup holds no ledger")
    return manifest


def _unpack(tar: tarfile.TarFile, manifest: BackupManifest, folder: Path, report: Report) -> None:
    """Only what the manifest names, and each exactly as it says."""
    wanted = {file.name: file for file in manifest.files}
    while (entry := tar.next()) is not None:
        file = wanted.pop(entry.name, None)
        path = PurePosixPath(entry.name)
        if file is None or not entry.isreg() or path.is_absolute() or ".." in path.parts:
            raise BackupFault(f"the backup holds {entry.name!r}, which its manifest does not name")
        if entry.size != file.bytes:
            raise BackupFault(f"{entry.name} has {entry.size} bytes in the backup, and had {file.bytes}")
        report(f"Unpacking {entry.name}.")
        _unpack_one(tar, entry, file, folder / path)
    if wanted:
        raise BackupFault(f"the backup is cut short: {next(iter(wanted))} is not in it")


def _unpack_one(tar: tarfile.TarFile, entry: tarfile.TarInfo, file: BackupFile, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    source, digest = tar.extractfile(entry), hashlib.sha256()
    assert source is not None
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as written:
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
            written.write(chunk)
        written.flush()
        os.fsync(written.fileno())
    if digest.hexdigest() != file.sha256:
        raise BackupFault(f"{file.name} in the backup is not what was put there: its checksum does not match")


@contextmanager
def _held(data: Path) -> Iterator[None]:
    """The folder, which no other process uses or takes meanwhile."""
    with (data / LOCK_NAME).open("a", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BackupFault(
                f"Lucius is using {data}. Stop it, or restore into another folder with --data"
            ) from None
        yield


def _entries(data: Path) -> list[Path]:
    return [each for each in data.iterdir() if each.name != LOCK_NAME]


def _some(findings: Sequence[str]) -> str:
    shown = "; ".join(findings[:FINDINGS_SHOWN_MAX])
    more = len(findings) - FINDINGS_SHOWN_MAX
    return shown if more <= 0 else f"{shown}; and {more} more"


def _word(path: Path) -> str | None:
    return path.read_text(encoding="utf-8").strip() if path.exists() else None


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
