"""What is examined: the folder, the settings, the store as it lies there, and whether a server uses it.

In: the environment, a folder. Out: a `Installation`, or `CannotOpen` with the reason and what to do. The
store of a folder is opened for reading alone, and in a database nothing is made.
"""

import fcntl
import os
import shlex
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path

import msgspec

from lucius.assembly.stores import (
    MEMORY_STORAGE,
    STORE_NAME,
    STORES,
    layout_of_folder,
    ledger_folder,
    open_postgresql,
    open_tables,
    read_layout,
    store_place,
)
from lucius.ledger.job_ledger import JobLedger, LayoutName
from lucius.ledger.sqlite.read_only import ReadOnlySqlite, open_read_only
from lucius.ledger.sqlite.store import SqliteStore
from lucius.ledger.store import StoreError, TableStore
from lucius.settings import BadSetting, Settings, StoreKind, read_settings

LOCK_NAME = "lucius.lock"
DEFAULT_DATA = Path(".lucius")


class CannotOpen(Exception):
    """There is nothing to examine, or it cannot be read. The text says what to do."""


class RunningServer(StrEnum):
    RUNNING = "running"
    STOPPED = "stopped"
    UNKNOWN = "unknown"  # a store that is elsewhere


class Installation(msgspec.Struct, kw_only=True):
    """`report`: of how far a long look is."""

    data: Path
    env: Mapping[str, str]
    settings: Settings
    settings_fault: str | None
    store: TableStore
    ledger: JobLedger
    layout: LayoutName
    server: RunningServer
    now_ms: Callable[[], int]
    report: Callable[[str], None]

    @property
    def is_file(self) -> bool:
        return self.settings.store is StoreKind.SQLITE

    @property
    def place(self) -> str:
        if self.is_file:
            return str(self.ledger_folder / STORE_NAME)
        return store_place(self.settings, self.data)

    @property
    def ledger_folder(self) -> Path:
        """Of a ledger in a file."""
        return ledger_folder(self.settings, self.data)

    def command(self, words: str) -> str:
        """A command for this installation, to be copied."""
        if not self.is_file or self.data == DEFAULT_DATA:
            return f"lucius {words}"
        return f"lucius {words} --data {shlex.quote(str(self.data))}"


async def open_installation(
    env: Mapping[str, str],
    data: Path,
    storage: str,
    *,
    now_ms: Callable[[], int],
    report: Callable[[str], None],
) -> Installation:
    """`storage`: the layout that was asked for, or ""."""
    try:
        settings, fault = read_settings(env), None
    except BadSetting as bad:
        # What can be examined in spite of it is; which store is meant depends on the other variables.
        settings, fault = _settings_without_fault(env, bad), str(bad)
    if storage == MEMORY_STORAGE or settings.store is StoreKind.MEMORY:
        raise CannotOpen(
            "A ledger in memory lives in the server's process, and ends with it: nothing else can read it. "
            "Ask the server itself: GET /readyz and GET /metrics."
        )
    store: TableStore
    layout: LayoutName | None
    try:
        if settings.store is StoreKind.SQLITE:
            folder = ledger_folder(settings, data)
            store = _open_file(folder)
            layout = layout_of_folder(folder)
        else:
            store, layout = await _open_server(settings, data)
    except CannotOpen as bad_place:
        # A variable that cannot be read may be the one that names the ledger.
        raise CannotOpen(f"{fault}. {bad_place}" if fault else str(bad_place)) from None
    except StoreError as bad_store:
        raise CannotOpen(_not_opened(settings, data, bad_store)) from bad_store
    chosen = LayoutName(storage) if storage else layout or LayoutName.LEDGER
    return Installation(
        data=data,
        env=env,
        settings=settings,
        settings_fault=fault,
        store=store,
        ledger=JobLedger(store, chosen, settings.tables),
        layout=chosen,
        server=server_of(ledger_folder(settings, data))
        if settings.store is StoreKind.SQLITE
        else RunningServer.UNKNOWN,
        now_ms=now_ms,
        report=report,
    )


async def open_to_repair(installation: Installation) -> TableStore:
    """The same store, to be written to. Several processes may use it at once, and each repair is guarded by
    what it found: a server that runs need not be stopped."""
    if not installation.is_file:
        return installation.store
    return await SqliteStore.open(installation.ledger_folder / STORE_NAME)


def server_of(data: Path) -> RunningServer:
    """Whether a process of Lucius holds the folder; asked without taking its lock where that can be seen."""
    try:
        found = (data / LOCK_NAME).stat()
    except OSError:
        return RunningServer.STOPPED
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        locks = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return _server_by_lock(data / LOCK_NAME)
    return (
        RunningServer.RUNNING
        if any(place in line.split() for line in locks.splitlines())
        else RunningServer.STOPPED
    )


def _server_by_lock(path: Path) -> RunningServer:
    try:
        with path.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return RunningServer.RUNNING
    except OSError:
        return RunningServer.UNKNOWN
    return RunningServer.STOPPED


def _open_file(data: Path) -> ReadOnlySqlite:
    path = data / STORE_NAME
    if not data.is_dir():
        raise CannotOpen(
            f"There is no folder {data}. Name the one that `lucius dev` was given with --data, or set "
            "LUCIUS_STORE for a ledger in PostgreSQL or LUCIUS_TABLE_CONNECTION for one in Azure."
        )
    if not path.exists():
        raise CannotOpen(
            f"{data} holds no {STORE_NAME}. If it is the right folder, the ledger was removed: put a copy "
            "back with `lucius restore`. Else name another with --data."
        )
    return open_read_only(path)


async def _open_server(settings: Settings, data: Path) -> tuple[TableStore, LayoutName]:
    store: TableStore
    if settings.store is StoreKind.AZURE_TABLES:
        store = await open_tables(settings, ping=False)
    elif settings.store is StoreKind.POSTGRESQL:
        store = await open_postgresql(settings, creates=False)
    else:
        store = await STORES[settings.store](settings, data)
    try:
        layout = await read_layout(store, settings.tables)
    except BaseException:
        await store.close()
        raise
    if layout is None:
        await store.close()
        raise CannotOpen(_no_tables(settings, data))
    return store, layout


def _no_tables(settings: Settings, data: Path) -> str:
    if settings.store is not StoreKind.AZURE_TABLES:
        return f"There is no ledger in {store_place(settings, data)}. Check LUCIUS_STORE."
    account = settings.table_account
    return (
        f"There is no ledger with the prefix {account.prefix} at {account.place}. Check LUCIUS_TABLE_PREFIX "
        "and the account; `lucius provision azure --check` says which tables are there."
    )


def _not_opened(settings: Settings, data: Path, fault: StoreError) -> str:
    place = ledger_folder(settings, data) / STORE_NAME
    if settings.store is not StoreKind.SQLITE:
        where = store_place(settings, data)
        return f"Cannot read the ledger in {where}: {fault}"
    text = str(fault)
    if "not a database" in text or "malformed" in text:
        return (
            f"{place} is not a database any more: {text}. Stop Lucius, keep the file, and put a copy back "
            "with `lucius restore`."
        )
    if not os.access(place, os.R_OK):
        return f"Cannot read {place}: it belongs to another user. Run this as the user that Lucius runs as."
    return f"Cannot read {place}: {text}"


def _settings_without_fault(env: Mapping[str, str], fault: BadSetting) -> Settings:
    """The settings without the variables that the fault names; the usual ones where that does not help."""
    left = {name: value for name, value in env.items() if name not in str(fault)}
    try:
        return read_settings(left)
    except BadSetting:
        return read_settings({})
