"""The store under the ledger, and the layout that a data folder keeps.

`STORES` has every kind of store and how it is opened; the settings say which one. Without a word it is a file
in the data folder. A store in memory ends with the process. A folder is
marked with the layout of the ledger that was opened with it, for as long as it lives; a ledger in memory
leaves no mark. The folder is marked once its ledger is open, so that a start which is refused decides
nothing, and before anything is done with the ledger, so that of several processes that begin a folder
together the first one's layout counts.
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from lucius.assembly.clock_and_ids import new_write_id
from lucius.assembly.secrets import NoSigningKeys
from lucius.ledger.job_ledger import LayoutName
from lucius.ledger.memory import MemoryStore
from lucius.ledger.names import Tables
from lucius.ledger.rows import RowDecoder, encode
from lucius.ledger.sqlite.integrity import header_fault
from lucius.ledger.sqlite.store import SqliteStore
from lucius.ledger.sqlite.write_lock import SUFFIX as WRITE_LOCK_SUFFIX
from lucius.ledger.store import Conflict, Row, StoreUnavailable, TableStore, Unreadable, insert
from lucius.settings import Settings, StoreKind
from lucius.settings.kinds import LEDGER_FILE

if TYPE_CHECKING:
    from lucius.ledger.postgres.connection import PostgresAddress
    from lucius.ledger.postgres.store import PostgresStore

STORE_NAME = LEDGER_FILE
# Stays in the folder, so that a ledger that is gone is missed.
MADE_NAME = "ledger-made"
MADE_TEXT = "The ledger of this folder is lucius.db: a start without that file is refused.\n"
MEMORY_STORAGE = "memory"


class _Layout(msgspec.Struct, frozen=True):
    layout: str


_layout = RowDecoder(_Layout)


def layout_of(storage: str) -> LayoutName:
    """What `--storage` says of the layout. In memory it is the smaller one."""
    return LayoutName.LEDGER if storage == MEMORY_STORAGE else LayoutName(storage)


def store_place(settings: Settings, data: Path) -> str:
    """Where the ledger is, for people."""
    if settings.store is StoreKind.AZURE_TABLES:
        return f"tables at {settings.table_account.place}"
    if settings.store is StoreKind.POSTGRESQL and settings.store_url is not None:
        return settings.store_url.place
    return str(ledger_folder(settings, data))


def ledger_folder(settings: Settings, data: Path) -> Path:
    """The folder that a ledger in a file is in, with its lock and its marks."""
    file = None if settings.store_url is None else settings.store_url.file
    return data if file is None else file.parent


def not_opened(settings: Settings, data: Path, fault: Exception) -> str:
    """What to say of a process that could not be opened; keys in the folder are no part of the ledger."""
    if isinstance(fault, NoSigningKeys):
        return f"{fault}."
    return f"Cannot open the ledger in {store_place(settings, data)}: {fault}"


def is_shared(settings: Settings) -> bool:
    """Whether others may write there whom the lock of the data folder does not keep out."""
    return is_elsewhere(settings) and not (
        settings.store is StoreKind.AZURE_TABLES and settings.table_account.own
    )


def is_elsewhere(settings: Settings) -> bool:
    """Whether a server keeps the ledger: then the layout is noted there as well as in the data folder."""
    return settings.store in (StoreKind.AZURE_TABLES, StoreKind.POSTGRESQL)


def is_beside(settings: Settings, data: Path) -> bool:
    """Whether a ledger in a file is in the data folder, with all that belongs to it."""
    return ledger_folder(settings, data).resolve() == data.resolve()


async def claim_layout(store: TableStore, tables: Tables, layout: LayoutName) -> None:
    """A process with another layout would take every open job for one that was never created. Raises
    `StoreUnavailable`."""
    try:
        await store.commit([insert(tables.meta, "layout", "layout", encode(_Layout(layout=layout.value)))])
    except Conflict:
        row = await store.get(tables.meta, "layout", "layout")
        before = layout.value if row is None else _named_layout(row) or layout.value
        if before != layout.value:
            raise StoreUnavailable(
                f"it was made with --storage {before}, and a layout does not see the jobs of another; "
                f"go on with --storage {before}, or take another store or prefix: LUCIUS_STORE, "
                "LUCIUS_TABLE_PREFIX"
            ) from None


def _named_layout(row: Row) -> str | None:
    """None where it cannot be read: the mark in the data folder says the same, and the row is named by the
    check of the whole store."""
    try:
        return _layout(row).layout
    except Unreadable:
        return None


async def open_store(settings: Settings, storage: str, data: Path) -> TableStore:
    """Raises a `StoreError` or an `OSError`, whose text holds no secret."""
    if storage == MEMORY_STORAGE:
        return MemoryStore()
    await asyncio.to_thread(data.mkdir, parents=True, exist_ok=True, mode=0o700)
    return await STORES[settings.store](settings, data)


async def _open_memory(settings: Settings, data: Path) -> TableStore:
    return MemoryStore()


async def _open_file(settings: Settings, data: Path) -> TableStore:
    folder = ledger_folder(settings, data)
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True, mode=0o700)
    await asyncio.to_thread(check_ledger_file, folder)
    store = await SqliteStore.open(folder / STORE_NAME)
    await asyncio.to_thread((folder / MADE_NAME).write_text, MADE_TEXT, encoding="utf-8")
    return store


async def _open_azure_tables(settings: Settings, data: Path) -> TableStore:
    return await open_tables(settings)


async def _open_postgresql(settings: Settings, data: Path) -> TableStore:
    return await open_postgresql(settings)


async def open_postgresql(settings: Settings, *, creates: bool = True) -> "PostgresStore":
    """`creates`: see `PostgresStore.open`."""
    try:
        from lucius.ledger.postgres.store import PostgresStore
    except ModuleNotFoundError as fault:
        if (fault.name or "").partition(".")[0] != "asyncpg":
            raise
        raise StoreUnavailable(
            "LUCIUS_STORE=postgresql://… needs asyncpg: install lucius[postgres]"
        ) from None
    return await PostgresStore.open(postgres_address(settings), tables=settings.tables, creates=creates)


def check_ledger_file(data: Path) -> None:
    """SQLite makes a new ledger where the file of the old one is gone, and every job in it would be forgotten
    in silence. Raises `StoreUnavailable`."""
    path = data / STORE_NAME
    made = (data / MADE_NAME).exists() or path.with_name(path.name + WRITE_LOCK_SUFFIX).exists()
    fault = header_fault(path) if path.exists() else "is missing"
    if fault is None or (not made and fault in ("is missing", "is empty")):
        return
    raise StoreUnavailable(
        f"{path} {fault}. Restore a backup with `lucius restore FILE --data {data} --force`; to give up all "
        f"jobs and begin with an empty ledger, remove {data / MADE_NAME} and {path}*"
    )


def postgres_address(settings: Settings) -> "PostgresAddress":
    """Where the database is, and how. Raises `StoreUnavailable` for a password that cannot be read."""
    from lucius.ledger.postgres.connection import NOTIFIERS_MAX, WRITERS_MAX, PostgresAddress

    asked, url = settings.postgres, settings.store_url
    password = asked.password
    if asked.password_file is not None:
        try:
            password = asked.password_file.read_text(encoding="utf-8").strip()
        except (OSError, ValueError):
            raise StoreUnavailable(
                f"LUCIUS_POSTGRES_PASSWORD_FILE names no file that can be read: {asked.password_file}"
            ) from None
    return PostgresAddress(
        url="" if url is None else url.address or "",
        password=password,
        application_name=process_name(),
        readers_max=asked.connections_max - WRITERS_MAX - NOTIFIERS_MAX,
        statement_seconds_max=asked.statement_timeout_ms / 1000,
    )


def process_name() -> str:
    """How a server is told which process this is: by the command that it was started with."""
    words = [word for word in sys.argv[1:3] if word.isalpha()]
    return " ".join(["lucius", *words])


STORES: Final[Mapping[StoreKind, Callable[[Settings, Path], Awaitable[TableStore]]]] = {
    StoreKind.SQLITE: _open_file,
    StoreKind.AZURE_TABLES: _open_azure_tables,
    StoreKind.POSTGRESQL: _open_postgresql,
    StoreKind.MEMORY: _open_memory,
}
"""How each kind of store is opened, given the settings and the data folder. Each raises a `StoreError` or an
`OSError`, whose text holds no secret."""


async def read_layout(store: TableStore, tables: Tables) -> LayoutName | None:
    """The layout that the store was made with; None while none was claimed."""
    row = await store.get(tables.meta, "layout", "layout")
    return None if row is None else LayoutName(msgspec.json.decode(row.body, type=_Layout).layout)


async def open_tables(settings: Settings, *, ping: bool = True) -> TableStore:
    """`ping`: whether writes have to be taken."""
    try:
        from lucius.assembly.azure.identity import NoIdentity, make_identity
        from lucius.ledger.azure_tables.store import AzureTablesStore
    except ModuleNotFoundError as fault:
        if (fault.name or "").partition(".")[0] not in ("azure", "aiohttp"):
            raise
        raise StoreUnavailable(
            "LUCIUS_TABLE_CONNECTION needs Microsoft's packages: install lucius[azure]"
        ) from None
    asked = settings.table_account
    try:
        identity = None if asked.account_url is None else make_identity(settings.identity)
        store = await AzureTablesStore.open(
            connection_string=asked.connection_string,
            account_url=asked.account_url,
            credential=identity,
            closed_with=() if identity is None else (identity.close,),
            prefix=asked.prefix,
            tables=settings.tables,
            new_write_id=new_write_id,
        )
    except (NoIdentity, ValueError) as fault:
        raise StoreUnavailable(str(fault)) from None
    if not ping:
        return store
    try:
        await store.ping()
    except BaseException:
        await store.close()
        raise
    return store


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


def layout_of_folder(folder: Path) -> LayoutName | None:
    """As its mark says; None where there is none that can be read."""
    try:
        word = _mark_of(folder)
    except OSError:
        return None
    return LayoutName(word) if word in LAYOUTS else None


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
