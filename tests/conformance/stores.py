"""The table stores, by name: what the suites below run over."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.conformance.azurite_setup import AZURITE, open_store
from tests.conformance.postgres_setup import POSTGRES
from tests.conformance.postgres_setup import open_store as open_postgres

from lucius.ledger.azure_tables.store import AzureTablesStore
from lucius.ledger.memory import MemoryStore
from lucius.ledger.postgres.store import PostgresStore
from lucius.ledger.sqlite.store import SqliteStore
from lucius.ledger.store import (
    Op,
    TableStore,
)

KINDS = ("memory", "memory-no-spans", "sqlite")
EVERY_KIND = (*KINDS, POSTGRES, AZURITE)
T, P = "lucius_ledger", "job_1"
ALL = 1_000

Store = MemoryStore | SqliteStore | PostgresStore | AzureTablesStore


@asynccontextmanager
async def opened(kind: str, folder: Path) -> AsyncIterator[Store]:
    store: Store
    if kind == "sqlite":
        store = await SqliteStore.open(folder / "store.db")
    elif kind == "azurite":
        store = await open_store()
    elif kind == "postgres":
        store = await open_postgres()
    else:
        store = MemoryStore(spans=kind == "memory")
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture(params=EVERY_KIND)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    async with opened(request.param, tmp_path) as ready:
        yield ready


async def one(store: TableStore, op: Op) -> str:
    (etag,) = await store.commit([op])
    return etag


async def keys(store: TableStore, *, start: str = "", end: str | None = None, limit: int = ALL) -> list[str]:
    return [row.key for row in await store.query(T, P, start=start, end=end, limit=limit)]
