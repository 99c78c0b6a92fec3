"""Schedules, kept: what each is, how far it has got, and which is due next.

In one partition stand the schedule itself and a row whose key is the time at which to look at it, so that
both move in one commit on every store, and what is due is found without a scan.
"""

from collections.abc import Callable

import msgspec

from lucius.contracts.schedules import ScheduleSpec
from lucius.ledger.names import split_time_key, time_key
from lucius.ledger.quarantine import Quarantine, read_page
from lucius.ledger.rows import RowDecoder, encode
from lucius.ledger.store import (
    Conflict,
    Op,
    Row,
    TableStore,
    Unreadable,
    delete,
    discard,
    insert,
    put,
    replace,
)

PARTITION = "schedules"
SCHEDULES_MAX = 10_000
PAGE_ROWS_MAX = 1_000
_OF, _DUE = "s#", "d#"


class Schedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`next_ms`: the next tick. `pending_ms`: the tick that is being run: it was decided, and its job may or
    may not be there yet. `look_ms`: when to look at it. `problem`: why the last tick brought no job."""

    spec: ScheduleSpec
    created_at_ms: int
    updated_at_ms: int
    paused: bool = False
    next_ms: int | None = None
    pending_ms: int | None = None
    look_ms: int | None = None
    last_tick_ms: int | None = None
    last_job_id: str | None = None
    problem: str | None = None
    runs: int = 0
    skipped: int = 0
    missed: int = 0


class StoredSchedule(msgspec.Struct, frozen=True):
    schedule: Schedule
    etag: str


class _Look(msgspec.Struct, frozen=True):
    written_at_ms: int = 0


class DueSchedule(msgspec.Struct, frozen=True, kw_only=True):
    schedule_id: str
    look_ms: int
    written_at_ms: int


_schedule = RowDecoder(Schedule)
_look = RowDecoder(_Look)


def row_decoder(key: str) -> Callable[[Row], object] | None:
    """What reads the row of this key."""
    return _schedule if key.startswith(_OF) else _due if key.startswith(_DUE) else None


class Schedules:
    def __init__(self, store: TableStore, table: str, quarantine: Quarantine) -> None:
        self._store = store
        self._table = table
        self._quarantine = quarantine

    async def get(self, schedule_id: str) -> StoredSchedule | None:
        """Raises `Unreadable`."""
        row = await self._store.get(self._table, PARTITION, _OF + schedule_id)
        if row is None:
            return None
        return StoredSchedule(_schedule.at(self._table, PARTITION, row), row.etag)

    async def page(self, after: str, limit: int) -> list[Schedule]:
        """In the order of their ids; not those that cannot be read."""
        return await read_page(
            self._store,
            self._quarantine,
            self._table,
            PARTITION,
            _schedule,
            start=f"{_OF}{after}\x00" if after else _OF,
            end="s$",
            limit=limit,
        )

    async def is_full(self) -> bool:
        rows = await self._store.query(self._table, PARTITION, start=_OF, end="s$", limit=SCHEDULES_MAX)
        return len(rows) >= SCHEDULES_MAX

    async def due(self, until_ms: int, limit: int, *, after_ms: int = -1) -> list[DueSchedule]:
        return await read_page(
            self._store,
            self._quarantine,
            self._table,
            PARTITION,
            _due,
            start=f"{_DUE}{after_ms + 1:014d}",
            end=f"{_DUE}{until_ms + 1:014d}",
            limit=limit,
        )

    async def drop(self, due: DueSchedule) -> None:
        await self._store.commit([discard(self._table, PARTITION, _due_key(due.look_ms, due.schedule_id))])

    async def create(self, schedule: Schedule) -> bool:
        """False if there is one of this id."""
        op = insert(self._table, PARTITION, _OF + schedule.spec.schedule_id, encode(schedule))
        return await self._commit([op, *self._moves(None, schedule)])

    async def change(self, stored: StoredSchedule, after: Schedule) -> bool:
        """False if another writer was faster."""
        op = replace(self._table, PARTITION, _OF + after.spec.schedule_id, encode(after), stored.etag)
        return await self._commit([op, *self._moves(stored.schedule, after)])

    async def remove(self, stored: StoredSchedule) -> bool:
        spec = stored.schedule.spec
        op = delete(self._table, PARTITION, _OF + spec.schedule_id, stored.etag)
        return await self._commit([op, *self._moves(stored.schedule, None)])

    async def _commit(self, ops: list[Op]) -> bool:
        try:
            await self._store.commit(ops)
        except Conflict:
            return False
        return True

    def _moves(self, before: Schedule | None, after: Schedule | None) -> list[Op]:
        old, new = _look_key(before), _look_key(after)
        ops = []
        if new is not None and after is not None:
            ops.append(put(self._table, PARTITION, new, encode(_Look(after.updated_at_ms))))
        if old is not None and old != new:
            ops.append(discard(self._table, PARTITION, old))
        return ops


def _look_key(schedule: Schedule | None) -> str | None:
    if schedule is None or schedule.look_ms is None:
        return None
    return _due_key(schedule.look_ms, schedule.spec.schedule_id)


def _due_key(look_ms: int, schedule_id: str) -> str:
    return _DUE + time_key(look_ms, schedule_id)


def _due(row: Row) -> DueSchedule:
    try:
        look_ms, schedule_id = split_time_key(row.key.removeprefix(_DUE))
    except ValueError:
        raise Unreadable("its key is not a time and a schedule") from None
    return DueSchedule(schedule_id=schedule_id, look_ms=look_ms, written_at_ms=_look(row).written_at_ms)
