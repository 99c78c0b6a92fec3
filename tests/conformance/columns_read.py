"""The columns of a ledger as people read them: by SQL, by Microsoft's library, or, where a store shows
nothing, computed from the values it holds."""

import sqlite3
from contextlib import closing
from typing import Any

from tests.conformance.ledger_setup import ROWS_MAX, World

from lucius.ledger.columns import (
    Kind,
    ShownRow,
    shown_columns,
    shown_event,
    shown_job,
    shown_key,
    shown_outbox,
    shown_step,
)
from lucius.ledger.rows import decode_idempotency
from lucius.ledger.sqlite.store import SqliteStore

Columns = dict[str, Any]


async def read_columns(world: World, kind: Kind) -> list[Columns]:
    """Of each row of a kind, those that are not null."""
    if isinstance(world.store, SqliteStore):
        return view_rows(world.store, f'SELECT * FROM "{kind}"')
    return await _computed(world, kind)


def view_rows(store: SqliteStore, query: str) -> list[Columns]:
    """By another connection, as another program has it."""
    with closing(sqlite3.connect(f"file:{store.path}?mode=ro", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        rows = connection.execute(query).fetchall()
    return [{name: row[name] for name in row.keys() if row[name] is not None} for row in rows]  # noqa: SIM118


async def _computed(world: World, kind: Kind) -> list[Columns]:
    shown: list[tuple[ShownRow, str, str]] = []
    for record in (await world.records()).values():
        job = record.job
        if kind is Kind.JOBS:
            shown.append((shown_job(job), "", ""))
        elif kind is Kind.STEPS:
            shown += [(shown_step(job, step), "", "") for step in record.steps]
        elif kind is Kind.EVENTS:
            shown += [(shown_event(job, event), "", "") for event in await world.events(job.job_id)]
        elif kind is Kind.OUTBOX and record.outbox is not None:
            shown.append((shown_outbox(record, record.outbox), "", ""))
    if kind is Kind.IDEMPOTENCY:
        for row in await world.store.scan("job-idempotency", limit=ROWS_MAX):
            shown.append((shown_key(decode_idempotency(row.as_row())), row.partition, row.key))
    return [{column.name: value for column, value in shown_columns(*each)} for each in shown]
