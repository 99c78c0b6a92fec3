"""The columns of a ledger as people read them: by SQL, by Microsoft's library, or, where a store shows
nothing, computed from the values it holds."""

import sqlite3
from contextlib import closing
from typing import Any

from azure.data.tables import EntityProperty
from azure.data.tables.aio import TableClient
from tests.conformance.azurite_setup import azurite
from tests.conformance.ledger_setup import ROWS_MAX, World

from lucius.ledger.azure_tables.names import table_to_azure
from lucius.ledger.azure_tables.shown import COLUMNS_CUT
from lucius.ledger.azure_tables.store import AzureTablesStore
from lucius.ledger.columns import (
    RowKind,
    ShownRow,
    shown_columns,
    shown_event,
    shown_job,
    shown_key,
    shown_outbox,
    shown_step,
)
from lucius.ledger.job_ledger import LayoutName
from lucius.ledger.postgres.connection import Connection
from lucius.ledger.postgres.store import PostgresStore
from lucius.ledger.rows import decode_idempotency
from lucius.ledger.sqlite.store import SqliteStore

Columns = dict[str, Any]


async def read_columns(world: World, kind: RowKind) -> list[Columns]:
    """Of each row of a kind, those that are not null."""
    if isinstance(world.store, AzureTablesStore):
        return await _entities(world.store, world.layout, kind)
    if isinstance(world.store, SqliteStore):
        return view_rows(world.store, f'SELECT * FROM "{kind}"')
    if isinstance(world.store, PostgresStore):
        return await postgres_rows(world.store, f"SELECT * FROM lucius.{kind} ORDER BY 1, 2")
    return await _computed(world, kind)


def view_rows(store: SqliteStore, query: str) -> list[Columns]:
    """By another connection, as another program has it."""
    with closing(sqlite3.connect(f"file:{store.path}?mode=ro", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        rows = connection.execute(query).fetchall()
    return [{name: row[name] for name in row.keys() if row[name] is not None} for row in rows]  # noqa: SIM118


async def postgres_rows(store: PostgresStore, query: str) -> list[Columns]:
    connection = await Connection.open(store.address, plans=False)
    rows = await connection.fetch(query)
    await connection.close()
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


# Where the rows of a kind are on Azure, by layout, and the beginning of their row keys.
_LEDGER = {RowKind.JOBS: "JOB", RowKind.STEPS: "STEP", RowKind.OUTBOX: "OUTBOX", RowKind.EVENTS: "EVENT"}
_SPREAD = {RowKind.JOBS: "Jobs", RowKind.STEPS: "Steps", RowKind.OUTBOX: "Outbox", RowKind.EVENTS: "Events"}


async def _entities(store: AzureTablesStore, layout: LayoutName, kind: RowKind) -> list[Columns]:
    """By Microsoft's library alone."""
    table, start = _SPREAD.get(kind, "job-idempotency"), _LEDGER[kind] if kind is RowKind.STEPS else ""
    if layout is LayoutName.LEDGER and kind in _LEDGER:
        table, start = "lucius_ledger", _LEDGER[kind]
    return [
        {name: _plain(value) for name, value in entity.items() if name not in OF_BODIES}
        for entity in await entities(table_to_azure(store._prefix, table))
        if entity["RowKey"].startswith(start)
    ]


OF_BODIES = frozenset({"PartitionKey", "RowKey", "Body", "Bytes", "Sum", "Write", COLUMNS_CUT})


async def entities(table: str, query: str = "") -> list[dict[str, Any]]:
    async with TableClient.from_connection_string(azurite().connection_string, table) as client:
        return [dict(entity) async for entity in client.query_entities(query)]


def _plain(value: Any) -> Any:
    """An integer of 64 bits comes with its type."""
    return value.value if isinstance(value, EntityProperty) else value


async def _computed(world: World, kind: RowKind) -> list[Columns]:
    shown: list[tuple[ShownRow, str, str]] = []
    for record in (await world.records()).values():
        job = record.job
        if kind is RowKind.JOBS:
            shown.append((shown_job(job), "", ""))
        elif kind is RowKind.STEPS:
            shown += [(shown_step(job, step), "", "") for step in record.steps]
        elif kind is RowKind.EVENTS:
            shown += [(shown_event(job, event), "", "") for event in await world.events(job.job_id)]
        elif kind is RowKind.OUTBOX and record.outbox is not None:
            shown.append((shown_outbox(record, record.outbox), "", ""))
    if kind is RowKind.IDEMPOTENCY:
        for row in await world.store.scan("job-idempotency", limit=ROWS_MAX):
            shown.append((shown_key(decode_idempotency(row.as_row())), row.partition, row.key))
    return [{column.name: value for column, value in shown_columns(*each)} for each in shown]
