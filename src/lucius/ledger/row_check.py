"""Whether a row can be read by its readers: one answer for every kind of row.

In: a row and where it stands. Out: nothing, or what is wrong with it, in one sentence.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from lucius.contracts.keys import StoredKey
from lucius.ledger.api_keys import PARTITION as KEY_PARTITION
from lucius.ledger.flow import PARTITION as FLOW_PARTITION
from lucius.ledger.flow import row_decoder as flow_decoder
from lucius.ledger.names import Tables
from lucius.ledger.rows import (
    RowDecoder,
    decode_dispatch,
    decode_due,
    decode_event,
    decode_idempotency,
    decode_job,
    decode_list,
    decode_outbox,
    decode_pointer,
    decode_retention,
    decode_slot,
    decode_step,
    is_tombstone,
)
from lucius.ledger.schedules import PARTITION as SCHEDULE_PARTITION
from lucius.ledger.schedules import row_decoder as schedule_decoder
from lucius.ledger.store import Row, Unreadable
from lucius.ledger.usage import row_decoder as usage_decoder
from lucius.ledger.usage import usage_partition
from lucius.ledger.webhooks import row_decoder as webhook_decoder

Decode = Callable[[Row], Any]

_key = RowDecoder(StoredKey)
_anything = RowDecoder(dict[str, msgspec.Raw])


def check_row(tables: Tables, table: str, partition: str, row: Row) -> str | None:
    """Why the row cannot be read; None if it can."""
    try:
        _decoder(tables, table, partition, row)(row)
    except Unreadable as fault:
        return fault.reason
    return None


def _decoder(tables: Tables, table: str, partition: str, row: Row) -> Decode:
    of_table: dict[str, Decode] = {
        tables.jobs: decode_job,
        tables.outbox: decode_outbox,
        tables.events: decode_event,
        tables.idempotency: decode_idempotency,
        tables.inflight: decode_slot,
        tables.due: decode_due,
        tables.dispatch: decode_dispatch,
        tables.dlq: decode_list,
        tables.retention: decode_retention,
    }
    if table in (tables.ledger, tables.steps):
        return _of_job(table == tables.ledger, row)
    if table == tables.job_index:
        return decode_pointer if partition.startswith("job#") else decode_list
    if table == tables.webhooks:
        return webhook_decoder(row.key) or _anything
    if table == tables.meta:
        return _of_meta(partition, row.key)
    return of_table.get(table, _anything)


def _of_meta(partition: str, key: str) -> Decode:
    if partition == KEY_PARTITION:
        return _key
    # Results that a service keeps are its own words.
    if partition.startswith("results#"):
        return _whole
    found: Decode | None = None
    if partition == SCHEDULE_PARTITION:
        found = schedule_decoder(key)
    elif partition == FLOW_PARTITION:
        found = flow_decoder(key)
    elif partition.startswith(usage_partition("")):
        found = usage_decoder(key)
    return found or _anything


def _of_job(truth: bool, row: Row) -> Decode:
    kind, _, _ = row.key.partition("#")
    if kind == "JOB":
        return _anything if not row.damage and is_tombstone(row.body) else decode_job
    if kind == "EVENT":
        return decode_event
    if kind == "OUTBOX":
        return decode_outbox
    if kind == "STEP" or (not truth and kind.isdecimal()):
        return decode_step
    return _unknown


def _whole(row: Row) -> None:
    if row.damage:
        raise Unreadable(row.damage)


def _unknown(row: Row) -> None:
    raise Unreadable(row.damage or "its key is none that a job's row has")
