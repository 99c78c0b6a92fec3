"""Where a job's own rows lie.

`OnePartition` keeps JOB, STEP, OUTBOX and EVENT rows under one partition key, the job id: they commit
together on every store. `SpreadTables` uses tables of their own for them, for stores whose commits may span
tables. Where they may not, the `table` layout is `OnePartition` in the Steps table, and the other tables
are projections (see `projections`).
"""

from collections.abc import Sequence
from typing import Protocol

from lucius.core.model import Event, Job, JobRecord, Outbox, Step
from lucius.ledger.columns import shown_event, shown_job, shown_outbox, shown_step
from lucius.ledger.names import Tables, tenant_bucket
from lucius.ledger.rows import (
    Loaded,
    PointerRow,
    decode_event,
    decode_job,
    decode_outbox,
    decode_pointer,
    decode_step,
    encode,
    is_tombstone,
)
from lucius.ledger.store import (
    Op,
    Place,
    Row,
    Scanned,
    StoreUnavailable,
    TableStore,
    Unreadable,
    discard,
    insert,
    put,
    replace,
)

PAGE_ROWS_MAX = 200
REMOVALS_MAX = 50
LOAD_TRIES_MAX = 20


class Layout(Protocol):
    @property
    def job_rows(self) -> tuple[str, str | None]:
        """The table that has one row for each job, and the key of these rows where others stand beside
        them."""
        ...

    def job_in(self, row: Scanned) -> Job | None:
        """The job of such a row; None for a tombstone."""
        ...

    async def job(self, store: TableStore, job_id: str) -> Job | None:
        """The JOB row alone."""
        ...

    def job_write(self, job: Job, etag: str | None) -> Op:
        """Inserts the JOB row, or replaces it under its ETag."""
        ...

    def created(self, job: Job) -> list[Op]:
        """What else a new job needs to be found again."""
        ...

    def step_write(self, job: Job, step: Step) -> Op: ...

    def outbox_write(self, record: JobRecord, outbox: Outbox) -> Op:
        """The row of an attempt of the record, the latest or one before it."""
        ...

    def event_write(self, job: Job, event: Event) -> Op: ...

    async def load(self, store: TableStore, job_id: str, known: Loaded | None = None) -> Loaded | None:
        """`known`: what was read or written last. Every commit replaces JOB, so while its ETag is the same,
        nothing need be decoded again."""
        ...

    async def tombstone(self, store: TableStore, job_id: str) -> Row | None: ...

    def tombstone_write(self, job_id: str, body: bytes, etag: str | None) -> Op:
        """Inserts a tombstone in JOB's place, or replaces an older one under its ETag."""
        ...

    async def events(self, store: TableStore, job_id: str, after_seq: int, limit: int) -> list[Event]: ...

    async def outboxes(self, store: TableStore, job: Job) -> list[Outbox]:
        """Every outbox row of the job, the oldest attempt first."""
        ...

    async def removals(self, store: TableStore, job_id: str, bucket: str) -> list[Op]:
        """Removes a page of the job's own rows, JOB last; empty once nothing is left."""
        ...


def _event_key(seq: int) -> str:
    return f"{seq:08d}"


class OnePartition:
    def __init__(self, table: str, *, shown: bool = True) -> None:
        """`shown`: whether the store writes columns for people beside the bodies."""
        self._table = table
        self._shown = shown

    @property
    def job_rows(self) -> tuple[str, str | None]:
        return self._table, "JOB"

    def job_in(self, row: Scanned) -> Job | None:
        if not row.damage and is_tombstone(row.body):
            return None
        return decode_job.at(self._table, row.partition, row.as_row())

    async def job(self, store: TableStore, job_id: str) -> Job | None:
        row = await store.get(self._table, job_id, "JOB")
        if row is None or (not row.damage and is_tombstone(row.body)):
            return None
        return decode_job.at(self._table, job_id, row)

    def job_write(self, job: Job, etag: str | None) -> Op:
        body, shown = encode(job), shown_job(job) if self._shown else None
        if etag is None:
            return insert(self._table, job.job_id, "JOB", body, shown)
        return replace(self._table, job.job_id, "JOB", body, etag, shown)

    def created(self, job: Job) -> list[Op]:
        return []

    def step_write(self, job: Job, step: Step) -> Op:
        # JOB's ETag guards the whole partition, so the rows beside it need none.
        key = f"STEP#{step.step_index}#{step.step_id}"
        return put(self._table, job.job_id, key, encode(step), shown_step(job, step) if self._shown else None)

    def outbox_write(self, record: JobRecord, outbox: Outbox) -> Op:
        key = f"OUTBOX#{outbox.step_index:02d}#{outbox.attempt_no:03d}"
        shown = shown_outbox(record, outbox) if self._shown else None
        return put(self._table, record.job.job_id, key, encode(outbox), shown)

    def event_write(self, job: Job, event: Event) -> Op:
        key = f"EVENT#{event.seq:08d}"
        shown = shown_event(job, event) if self._shown else None
        return insert(self._table, job.job_id, key, encode(event), shown)

    async def load(self, store: TableStore, job_id: str, known: Loaded | None = None) -> Loaded | None:
        """One range: EVENT rows sort before JOB, OUTBOX and STEP rows after it."""
        for _ in range(LOAD_TRIES_MAX):
            rows = await _all_rows(store, self._table, job_id, start="JOB")
            if not rows or rows[0].key != "JOB" or is_tombstone(rows[0].body):
                return None
            if known is not None and known.etag == rows[0].etag:
                return Loaded(record=known.record, etag=known.etag)
            if len(rows) <= PAGE_ROWS_MAX or await self._unchanged(store, job_id, rows[0].etag):
                loaded, missing = _loaded(self._table, job_id, rows)
                if missing is not None and not await self._is_being_forgotten(store, loaded.record.job):
                    raise Unreadable(missing, place=Place(self._table, job_id, "JOB"))
                return loaded
        raise StoreUnavailable(f"{job_id} changed {LOAD_TRIES_MAX} times while it was being read")

    async def _is_being_forgotten(self, store: TableStore, job: Job) -> bool:
        """Retention removes events first, and JOB last: what is half removed is still found."""
        first = f"EVENT#{_event_key(1)}"
        return job.terminal and await store.get(self._table, job.job_id, first) is None

    async def _unchanged(self, store: TableStore, job_id: str, etag: str) -> bool:
        """Every commit replaces JOB: if it is still the same, all pages that were read belong together."""
        row = await store.get(self._table, job_id, "JOB")
        return row is not None and row.etag == etag

    async def tombstone(self, store: TableStore, job_id: str) -> Row | None:
        row = await store.get(self._table, job_id, "JOB")
        return row if row is not None and is_tombstone(row.body) else None

    def tombstone_write(self, job_id: str, body: bytes, etag: str | None) -> Op:
        if etag is None:
            return insert(self._table, job_id, "JOB", body)
        return replace(self._table, job_id, "JOB", body, etag)

    async def outboxes(self, store: TableStore, job: Job) -> list[Outbox]:
        rows = await _all_rows(store, self._table, job.job_id, start="OUTBOX#", end="OUTBOX$")
        return [decode_outbox.at(self._table, job.job_id, row) for row in rows]

    async def events(self, store: TableStore, job_id: str, after_seq: int, limit: int) -> list[Event]:
        start = f"EVENT#{_event_key(after_seq + 1)}"
        rows = await store.query(self._table, job_id, start=start, end="EVENT$", limit=limit)
        return _events(self._table, job_id, rows, after_seq)

    async def removals(self, store: TableStore, job_id: str, bucket: str) -> list[Op]:
        rows = await store.query(self._table, job_id, limit=REMOVALS_MAX)
        others = [row for row in rows if row.key != "JOB"]
        return [discard(self._table, job_id, row.key) for row in others or rows]


def _loaded(table: str, job_id: str, rows: Sequence[Row]) -> tuple[Loaded, str | None]:
    """The job, and what of it is not there."""
    job = decode_job.at(table, job_id, rows[0])
    steps = [decode_step.at(table, job_id, row) for row in rows if row.key.startswith("STEP#")]
    outbox_rows = [row for row in rows if row.key.startswith("OUTBOX#")]
    record = JobRecord(
        job=job,
        steps=tuple(sorted(steps, key=lambda step: step.step_index)),
        outbox=decode_outbox.at(table, job_id, outbox_rows[-1]) if outbox_rows else None,
    )
    missing = _missing(record)
    if len(outbox_rows) < job.attempts_total:
        missing = f"{len(outbox_rows)} of its {job.attempts_total} outbox rows are there"
    return Loaded(record=record, etag=rows[0].etag), missing


def _missing(record: JobRecord) -> str | None:
    """What of the job is not there, where damage took a row away or moved it to another key."""
    job, steps = record.job, record.steps
    if [step.step_index for step in steps] != list(range(job.steps_count or len(steps))):
        return f"{len(steps)} of its {job.steps_count or 'own'} steps are there"
    return None


def _events(table: str, job_id: str, rows: Sequence[Row], after_seq: int) -> list[Event]:
    """Numbers have no gaps, so that a row that is not there is noticed."""
    events = []
    for seq, row in enumerate(rows, start=after_seq + 1):
        event = decode_event.at(table, job_id, row)
        if event.seq != seq:
            raise Unreadable("the event before it is not there", place=Place(table, job_id, row.key))
        events.append(event)
    return events


class SpreadTables:
    """Stores whose commits may span show columns in views of their own: none is written."""

    def __init__(self, tables: Tables) -> None:
        self._t = tables

    @property
    def job_rows(self) -> tuple[str, str | None]:
        return self._t.jobs, None

    def job_in(self, row: Scanned) -> Job | None:
        return decode_job.at(self._t.jobs, row.partition, row.as_row())

    async def job(self, store: TableStore, job_id: str) -> Job | None:
        pointer = await store.get(self._t.job_index, f"job#{job_id}", "JOB")
        if pointer is None:
            return None
        bucket = decode_pointer.at(self._t.job_index, f"job#{job_id}", pointer).partition
        row = await store.get(self._t.jobs, bucket, job_id)
        return None if row is None else decode_job.at(self._t.jobs, bucket, row)

    def job_write(self, job: Job, etag: str | None) -> Op:
        bucket, body = tenant_bucket(job.tenant_norm, job.created_at_ms), encode(job)
        if etag is None:
            return insert(self._t.jobs, bucket, job.job_id, body)
        return replace(self._t.jobs, bucket, job.job_id, body, etag)

    def created(self, job: Job) -> list[Op]:
        pointer = PointerRow(partition=tenant_bucket(job.tenant_norm, job.created_at_ms))
        return [insert(self._t.job_index, f"job#{job.job_id}", "JOB", encode(pointer))]

    def step_write(self, job: Job, step: Step) -> Op:
        key = f"{step.step_index}#{step.step_id}"
        return put(self._t.steps, job.job_id, key, encode(step))

    def outbox_write(self, record: JobRecord, outbox: Outbox) -> Op:
        bucket = tenant_bucket(record.job.tenant_norm, record.job.created_at_ms)
        return put(self._t.outbox, bucket, outbox.outbox_id, encode(outbox))

    def event_write(self, job: Job, event: Event) -> Op:
        key = _event_key(event.seq)
        return insert(self._t.events, job.job_id, key, encode(event))

    async def load(self, store: TableStore, job_id: str, known: Loaded | None = None) -> Loaded | None:
        pointer = await store.get(self._t.job_index, f"job#{job_id}", "JOB")
        if pointer is None:
            return None
        bucket = decode_pointer.at(self._t.job_index, f"job#{job_id}", pointer).partition
        row = await store.get(self._t.jobs, bucket, job_id)
        for _ in range(LOAD_TRIES_MAX):
            if row is None:  # a job and what points to it go together
                if await store.get(self._t.job_index, f"job#{job_id}", "JOB") is None:
                    return None
                place = Place(self._t.job_index, f"job#{job_id}", "JOB")
                raise Unreadable("the job that it points to is not there", place=place)
            if known is not None and known.etag == row.etag:
                return Loaded(record=known.record, etag=known.etag)
            loaded = await self._load_around(store, bucket, row)
            # Every commit replaces JOB: if it is still the same, what was read beside it belongs to it.
            again = await store.get(self._t.jobs, bucket, job_id)
            if again is not None and again.etag == row.etag:
                return loaded
            row = again
        raise StoreUnavailable(f"{job_id} changed {LOAD_TRIES_MAX} times while it was being read")

    async def _is_being_forgotten(self, store: TableStore, job: Job) -> bool:
        """Retention removes events first, and JOB last: what is half removed is still found."""
        return job.terminal and await store.get(self._t.events, job.job_id, _event_key(1)) is None

    async def _load_around(self, store: TableStore, bucket: str, row: Row) -> Loaded:
        table = self._t.steps
        job = decode_job.at(self._t.jobs, bucket, row)
        step_rows = await store.query(table, job.job_id, limit=PAGE_ROWS_MAX)
        found = [decode_step.at(table, job.job_id, step_row) for step_row in step_rows]
        steps = tuple(sorted(found, key=lambda step: step.step_index))
        missing, outbox = _missing(JobRecord(job=job, steps=steps)), None
        if job.current_step_index is not None and job.current_step_index < len(steps):
            attempt_no = steps[job.current_step_index].attempt_no
            outbox_id = f"{job.job_id}.{job.current_step_index:02d}.{attempt_no:03d}"
            outbox_row = await store.get(self._t.outbox, bucket, outbox_id)
            if outbox_row is not None:
                outbox = decode_outbox.at(self._t.outbox, bucket, outbox_row)
            elif job.attempts_total:
                missing = "its outbox row is not there"
        if missing is not None and not await self._is_being_forgotten(store, job):
            raise Unreadable(missing, place=Place(self._t.jobs, bucket, row.key))
        return Loaded(record=JobRecord(job=job, steps=steps, outbox=outbox), etag=row.etag)

    async def tombstone(self, store: TableStore, job_id: str) -> Row | None:
        return None  # only stores that cannot span need tombstones

    def tombstone_write(self, job_id: str, body: bytes, etag: str | None) -> Op:
        raise TypeError("a spanning store has no half-created jobs")

    async def events(self, store: TableStore, job_id: str, after_seq: int, limit: int) -> list[Event]:
        rows = await store.query(self._t.events, job_id, start=_event_key(after_seq + 1), limit=limit)
        return _events(self._t.events, job_id, rows, after_seq)

    async def outboxes(self, store: TableStore, job: Job) -> list[Outbox]:
        bucket = tenant_bucket(job.tenant_norm, job.created_at_ms)
        start, end = f"{job.job_id}.", f"{job.job_id}/"  # the character after the dot of an outbox id
        rows = await _all_rows(store, self._t.outbox, bucket, start=start, end=end)
        return [decode_outbox.at(self._t.outbox, bucket, row) for row in rows]

    async def removals(self, store: TableStore, job_id: str, bucket: str) -> list[Op]:
        ops = await removals_beside(store, self._t, job_id, bucket)
        if ops:
            return ops
        rows = await store.query(self._t.steps, job_id, limit=REMOVALS_MAX)
        if rows:
            return [discard(self._t.steps, job_id, row.key) for row in rows]
        if await store.get(self._t.jobs, bucket, job_id) is None:
            return []
        return [
            discard(self._t.jobs, bucket, job_id),
            discard(self._t.job_index, f"job#{job_id}", "JOB"),
        ]


async def removals_beside(store: TableStore, tables: Tables, job_id: str, bucket: str) -> list[Op]:
    """Removes a page of a job's rows in the Events and Outbox tables."""
    rows = await store.query(tables.events, job_id, limit=REMOVALS_MAX)
    if rows:
        return [discard(tables.events, job_id, row.key) for row in rows]
    end = f"{job_id}/"  # the character after the dot of an outbox id
    rows = await store.query(tables.outbox, bucket, start=f"{job_id}.", end=end, limit=REMOVALS_MAX)
    return [discard(tables.outbox, bucket, row.key) for row in rows]


async def _all_rows(
    store: TableStore, table: str, partition: str, *, start: str, end: str | None = None
) -> Sequence[Row]:
    rows = await store.query(table, partition, start=start, end=end, limit=PAGE_ROWS_MAX)
    page = rows
    while len(page) == PAGE_ROWS_MAX:
        start = page[-1].key + "\x00"
        page = await store.query(table, partition, start=start, end=end, limit=PAGE_ROWS_MAX)
        rows = [*rows, *page]
    return rows
