"""The due index and the dispatch index: what to look at next, found without a scan."""

from contextlib import suppress
from typing import TypeVar

import msgspec

from lucius.core.attempt import AttemptRef
from lucius.core.model import JobRecord
from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.names import (
    dispatch_key,
    dispatch_partition,
    lane_partition,
    split_dispatch_key,
    split_time_key,
    time_key,
)
from lucius.ledger.quarantine import read_page
from lucius.ledger.rows import DispatchRow, DueRow, decode_dispatch, decode_due
from lucius.ledger.store import Conflict, Place, Row, Unreadable, delete, replace


class DueEntry(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    lane: int
    at_ms: int
    job_id: str
    row: DueRow
    etag: str

    @property
    def key(self) -> str:
        return time_key(self.at_ms, self.job_id)


class DispatchEntry(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """`group`: of its tenant. `at_ms`: when it may leave; `key` has its rank (see `core.priority`)."""

    service: str
    lane: int
    key: str
    group: str
    at_ms: int
    job_id: str
    row: DispatchRow
    etag: str

    @property
    def attempt(self) -> AttemptRef:
        """The one whose directive waits."""
        row = self.row
        return AttemptRef(
            job_id=self.job_id, step_id=row.step_id, attempt_no=row.attempt_no, lease_id=row.lease_id
        )


Entry = TypeVar("Entry", DueEntry, DispatchEntry)


class Indexes:
    def __init__(self, ledger: JobLedger) -> None:
        self._ledger = ledger
        self._store = ledger.store
        self._quarantine = ledger.quarantine
        self._t = ledger.tables

    @property
    def spans(self) -> bool:
        """Whether all of them lie together, so that one that cannot be read means that none can."""
        return self._store.spans

    async def due(self, lane: int, until_ms: int, limit: int, *, start: str = "") -> list[DueEntry]:
        """Rows that are due by `until_ms`, the oldest first; not those of jobs that cannot be read."""
        return await read_page(
            self._store,
            self._quarantine,
            self._t.due,
            lane_partition(lane),
            lambda row: self._wanted(_due_entry(lane, row)),
            start=start,
            end=f"{until_ms + 1:014d}",
            limit=limit,
        )

    async def dispatch(
        self, service: str, lane: int, limit: int, *, start: str = "", end: str | None = None
    ) -> list[DispatchEntry]:
        """Outbox rows of one service and lane, tenant after tenant, those of each by their rank; not those of
        jobs that cannot be read."""
        return await read_page(
            self._store,
            self._quarantine,
            self._t.dispatch,
            dispatch_partition(service, lane),
            lambda row: self._wanted(_dispatch_entry(service, lane, row)),
            start=start,
            end=end,
            limit=limit,
        )

    def _wanted(self, entry: Entry) -> Entry | None:
        return None if self._quarantine.holds_job(entry.job_id) else entry

    async def announced_dispatch(self, entry: DueEntry) -> DispatchEntry | None:
        """The dispatch row that was announced together with a due row, if it is still there."""
        service, at_ms = entry.row.service, entry.row.dispatch_at_ms
        if service is None or at_ms is None:
            return None
        key = dispatch_key(entry.row.tenant_norm, at_ms, entry.job_id)
        partition = dispatch_partition(service, entry.lane)
        row = await self._store.get(self._t.dispatch, partition, key)
        if row is None:
            return None
        try:
            return _dispatch_entry(service, entry.lane, row)
        except Unreadable as fault:
            self._quarantine.note(Place(self._t.dispatch, partition, key), fault)
            return None

    async def drop_due(self, entry: DueEntry) -> None:
        """Removes the row that was met; one that was announced again since then stays."""
        with suppress(Conflict):
            op = delete(self._t.due, lane_partition(entry.lane), entry.key, entry.etag)
            await self._store.commit([op])

    async def drop_dispatch(self, entry: DispatchEntry) -> None:
        """Removes the row that was met; one that was announced again since then stays."""
        with suppress(Conflict):
            partition = dispatch_partition(entry.service, entry.lane)
            await self._store.commit([delete(self._t.dispatch, partition, entry.key, entry.etag)])

    async def mend_dispatch(self, entry: DispatchEntry, record: JobRecord, now_ms: int) -> None:
        """Two writers announced the same place and the other one's attempt was committed: name that one."""
        if record.outbox is None:
            return
        op = self._ledger.planner.dispatch_put(record.job, record.outbox, now_ms)
        if op.key != entry.key:  # it stands where an earlier version put it
            await self._store.commit([op])
            await self.drop_dispatch(entry)
            return
        await self._store.commit([replace(op.table, op.partition, op.key, op.body, entry.etag)])


def _due_entry(lane: int, row: Row) -> DueEntry:
    due = decode_due(row)
    try:
        at_ms, job_id = split_time_key(row.key)
    except ValueError:
        raise Unreadable("its key is not a time and a job") from None
    return DueEntry(lane=lane, at_ms=at_ms, job_id=job_id, row=due, etag=row.etag)


def _dispatch_entry(service: str, lane: int, row: Row) -> DispatchEntry:
    waiting = decode_dispatch(row)
    try:
        group, at_ms, job_id = split_dispatch_key(row.key)
    except ValueError:
        raise Unreadable("its key is not a tenant, a time and a job") from None
    return DispatchEntry(
        service=service,
        lane=lane,
        key=row.key,
        group=group,
        at_ms=at_ms if waiting.due_at_ms is None else waiting.due_at_ms,
        job_id=job_id,
        row=waiting,
        etag=row.etag,
    )
