"""Where a service process keeps its RESULTs: in a file of its data folder, in tables, as objects, or nowhere.

In: what the command line says. Out: the memory that the runner is given, or why there is none.
"""

import sqlite3
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import quote

import structlog

from lucius.assembly.store_room import open_store
from lucius.assembly.table_shelf import TableShelf
from lucius.chance import now_ms
from lucius.ledger.store import StoreError
from lucius.sdk import Dedupe, KeptDedupe, MemoryDedupe, Shelf, SqliteShelf
from lucius.sdk.shelf_objects import ObjectShelf
from lucius.settings import Settings
from lucius.workspace import ObjectWorkspace, root_of

FILE, MEMORY, TABLES = "file", "memory", "tables"

log = structlog.get_logger("lucius.assembly")


class NoMemory(Exception):
    """What was asked for cannot be used. The text says why, without secrets."""


def results_fault(where: str | None, settings: Settings) -> str | None:
    """Why RESULTs could never be kept there; None if they could."""
    if where is None or where in (FILE, MEMORY):
        return None
    if where == TABLES:
        return None if settings.table_account.wanted else "--results tables needs LUCIUS_TABLE_CONNECTION."
    if root_of(where) is None:
        return f"--results {where}: this version offers file, memory, tables, or the URI of a folder."
    return None


async def open_memory(
    stack: AsyncExitStack,
    where: str | None,
    service: str,
    settings: Settings,
    data: Path,
    workspace: ObjectWorkspace,
) -> Dedupe:
    """`where` None: in a file, and in memory where no file can be written. Raises `NoMemory`."""
    if where == MEMORY:
        return MemoryDedupe()
    try:
        shelf = await _shelf(stack, where, quote(service, safe=""), settings, data, workspace)
    except (OSError, sqlite3.Error, StoreError) as fault:
        if where is not None:
            raise NoMemory(f"Results cannot be kept: {fault}") from None
        log.warning("results_in_memory_only", service=service, reason=str(fault))
        return MemoryDedupe()
    return KeptDedupe(shelf, now_ms=now_ms)


async def _shelf(
    stack: AsyncExitStack,
    where: str | None,
    name: str,
    settings: Settings,
    data: Path,
    workspace: ObjectWorkspace,
) -> Shelf:
    if where in (None, FILE):
        file = await SqliteShelf.open(data / f"results-{name}.db")
        stack.push_async_callback(file.close)
        return file
    if where == TABLES:
        store = await open_store(settings, "ledger", data)
        stack.push_async_callback(store.close)
        return TableShelf(store, settings.tables.meta, name)
    assert where is not None
    objects = ObjectShelf(workspace, f"{where.rstrip('/')}/{name}", now_ms=now_ms)
    await objects.owed(1)  # a place that cannot be reached is told now
    return objects
