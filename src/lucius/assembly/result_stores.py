"""Where a service process keeps its RESULTs: in a file of its data folder, in tables, as objects, or nowhere.

In: what the command line says. Out: the memory that the runner is given, or why there is none.
"""

import sqlite3
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import quote

import structlog

from lucius.assembly.clock_and_ids import now_ms
from lucius.assembly.store_choice import open_store
from lucius.assembly.table_result_store import TableResultStore
from lucius.ledger.store import StoreError
from lucius.sdk import Dedupe, DurableDedupe, MemoryDedupe, ResultStore, SqliteResultStore
from lucius.sdk.result_stores.objects import ObjectResultStore
from lucius.settings import Settings
from lucius.workspace import ObjectWorkspace, root_of

FILE, MEMORY, TABLES = "file", "memory", "tables"

log = structlog.get_logger("lucius.assembly")


class NoResultStore(Exception):
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
    """`where` None: in a file, and in memory where no file can be written. Raises `NoResultStore`."""
    if where == MEMORY:
        return MemoryDedupe()
    try:
        result_store = await _result_store(stack, where, quote(service, safe=""), settings, data, workspace)
    except (OSError, sqlite3.Error, StoreError) as fault:
        if where is not None:
            raise NoResultStore(f"Results cannot be kept: {fault}") from None
        log.warning("results_in_memory_only", service=service, reason=str(fault))
        return MemoryDedupe()
    return DurableDedupe(result_store, now_ms=now_ms)


async def _result_store(
    stack: AsyncExitStack,
    where: str | None,
    name: str,
    settings: Settings,
    data: Path,
    workspace: ObjectWorkspace,
) -> ResultStore:
    if where in (None, FILE):
        file = await SqliteResultStore.open(data / f"results-{name}.db")
        stack.push_async_callback(file.close)
        return file
    if where == TABLES:
        store = await open_store(settings, "ledger", data)
        stack.push_async_callback(store.close)
        return TableResultStore(store, settings.tables.meta, name)
    assert where is not None
    objects = ObjectResultStore(workspace, f"{where.rstrip('/')}/{name}", now_ms=now_ms)
    await objects.undelivered(1)  # a place that cannot be reached is told now
    return objects
