"""The Jobs, Outbox and Events tables of the `table` layout on a store whose commits cannot span tables.

They are copies for readers, written after the truth. Each carries the job version it shows, and an older copy
never replaces a newer one. No decision reads them.

The copy of JOB is written last and says how far the copies of the events reach. A writer that finds it
further back than its own commit began also copies what is missing: the next write repairs what a crash left
out.
"""

from collections.abc import Sequence

import msgspec

from lucius.core.model import Event, Job, JobRecord, Outbox
from lucius.core.states import Fact
from lucius.ledger.columns import ShownRow, shown_event, shown_job, shown_outbox
from lucius.ledger.layout import OnePartition, removals_beside
from lucius.ledger.names import Tables, tenant_bucket
from lucius.ledger.rows import RowDecoder, decode_outbox, encode, version_in, version_of
from lucius.ledger.store import Conflict, Op, Row, TableStore, Unreadable, discard, insert, replace

TRIES_MAX = 5
PAGE_EVENTS_MAX = 500


class OutboxCopy(Outbox, frozen=True, kw_only=True, omit_defaults=True):
    version: int


class _CopySeq(msgspec.Struct, frozen=True):
    seq: int = 0


_copy_seq = RowDecoder(_CopySeq)


def _shown_seq(row: Row) -> int:
    """How far the copies reach; a copy that is damaged is made anew, with all of them."""
    try:
        return _copy_seq(row).seq
    except Unreadable as fault:
        if fault.later:
            raise
        return 0


def _shows_other(row: Row, outbox: Outbox) -> bool:
    try:
        return decode_outbox(row) != outbox
    except Unreadable:
        return True


class Projections:
    def __init__(self, store: TableStore, tables: Tables, truth: OnePartition) -> None:
        self._store = store
        self._t = tables
        self._truth = truth

    async def write(self, record: JobRecord, events: Sequence[Event]) -> None:
        """Copies a commit that wrote `events`, and what earlier commits failed to copy."""
        job = record.job
        shown = await self._store.get(self._t.jobs, _bucket(job), job.job_id)
        shown_seq = 0 if shown is None else _shown_seq(shown)
        if shown_seq < job.seq - len(events):
            await self._copy_from(record, shown_seq)
        else:
            for event in events:
                await self.write_event(job, event)
            if _overtook(record, events):
                await self._older_outboxes(record)
            if record.outbox is not None:
                await self._outbox(record, record.outbox)
        await self._job(job, shown)

    def place(self, job: Job) -> tuple[str, str, str]:
        """Where the copy of JOB stands: table, partition, key."""
        return self._t.jobs, _bucket(job), job.job_id

    async def complete(self, record: JobRecord) -> None:
        """Copies everything, whatever is there already."""
        await self._copy_from(record, 0)
        await self._job(record.job, None)

    async def write_event(self, job: Job, event: Event) -> None:
        shown = shown_event(job, event)
        write = insert(self._t.events, job.job_id, _event_key(event), encode(event), shown)
        try:
            await self._store.commit([write])
        except Conflict:
            return  # an event never changes: it is there already

    async def write_late(self, job: Job, events: Sequence[Event]) -> None:
        """Copies events that came after the job's end, those that an earlier writer failed to copy too."""
        start, limit = f"{job.seq + 1:08d}", len(events)
        shown = await self._store.query(self._t.events, job.job_id, start=start, limit=limit)
        there = {row.key for row in shown}
        for event in events:
            if _event_key(event) not in there:
                await self.write_event(job, event)

    def event_discard(self, job_id: str, event: Event) -> Op:
        return discard(self._t.events, job_id, _event_key(event))

    async def removals(self, job_id: str, bucket: str) -> list[Op]:
        """Removes a page of a job's copies; empty once nothing is left."""
        ops = await removals_beside(self._store, self._t, job_id, bucket)
        if not ops and await self._store.get(self._t.jobs, bucket, job_id) is not None:
            ops = [discard(self._t.jobs, bucket, job_id)]
        return ops

    async def _copy_from(self, record: JobRecord, after_seq: int) -> None:
        job = record.job
        while events := await self._truth.events(self._store, job.job_id, after_seq, PAGE_EVENTS_MAX):
            for event in events:
                await self.write_event(job, event)
            after_seq = events[-1].seq
        await self._older_outboxes(record)
        if record.outbox is not None:
            await self._outbox(record, record.outbox)

    async def _older_outboxes(self, record: JobRecord) -> None:
        if record.outbox is None:
            return
        for outbox in await self._truth.outboxes(self._store, record.job):
            # Older rows are closed and change no more; later ones are of a version that is not shown here.
            if outbox.outbox_id < record.outbox.outbox_id:
                await self._outbox(record, outbox)

    async def _outbox(self, record: JobRecord, outbox: Outbox) -> None:
        job = record.job
        copy = OutboxCopy(version=job.version, **msgspec.structs.asdict(outbox))
        place = (self._t.outbox, _bucket(job), outbox.outbox_id)
        row = await self._store.get(*place)
        if row is None or _shows_other(row, outbox):
            await self._newest(*place, encode(copy), row, shown_outbox(record, outbox))

    async def _job(self, job: Job, row: Row | None) -> None:
        await self._newest(self._t.jobs, _bucket(job), job.job_id, encode(job), row, shown_job(job))

    async def _newest(
        self, table: str, partition: str, key: str, body: bytes, row: Row | None, shown: ShownRow
    ) -> None:
        """Writes a copy unless a newer one is there; `row` is what was there when it was last looked at."""
        for _ in range(TRIES_MAX):
            if row is not None and version_of(row) >= version_in(body):
                return
            op = (
                insert(table, partition, key, body, shown)
                if row is None
                else replace(table, partition, key, body, row.etag, shown)
            )
            try:
                await self._store.commit([op])
            except Conflict:
                row = await self._store.get(table, partition, key)
            else:
                return


def _overtook(record: JobRecord, events: Sequence[Event]) -> bool:
    """Whether a commit closed the row of one attempt and began another."""
    attempt_no = None if record.outbox is None else record.outbox.attempt_no
    step_id = None if record.outbox is None else record.outbox.step_id
    return any(
        event.type is Fact.DIRECTIVE_PUBLISHED and (event.step_id, event.attempt_no) != (step_id, attempt_no)
        for event in events
    )


def _bucket(job: Job) -> str:
    return tenant_bucket(job.tenant_norm, job.created_at_ms)


def _event_key(event: Event) -> str:
    return f"{event.seq:08d}"
