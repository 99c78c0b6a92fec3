"""A job as one value, with everything that belongs to it and to no other row: read from one ledger, written
into another.

In: a ledger, a job's id. Out: a `JobCopy`; or the job in another ledger, on any store and in either layout.
The indexes around a job follow from the job and are not copied: they are written anew, as the planner of the
other ledger says. Copies carry neither ETags nor the rows of processes.

Where commits may not span, the job's own rows are written first, JOB last of them, then the indexes: a job is
there as a whole or not at all, and what a crash leaves out is put right by `put_right`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from lucius.core.decide import is_dispatchable
from lucius.core.model import Event, Job, JobRecord, Outbox, Step
from lucius.core.states import Engine
from lucius.ledger.columns import shown_key
from lucius.ledger.index_audit import IndexAudit
from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.names import dlq_left_partition
from lucius.ledger.rows import IdempotencyRow, decode_idempotency, encode
from lucius.ledger.store import (
    COMMIT_BYTES_MAX,
    OPS_MAX,
    Op,
    Place,
    StoreUnavailable,
    Unreadable,
    put,
)
from lucius.ledger.webhooks import WebhookRows, WebhookState

PAGE_EVENTS_MAX: Final = 500
READ_TRIES_MAX: Final = 20
CHUNK_OPS_MAX: Final = OPS_MAX
# Rows are sent in base 64, with columns for people beside them.
CHUNK_BYTES_MAX: Final = COMMIT_BYTES_MAX // 4


class JobCopy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="job"):
    """`outboxes`: of every attempt, the oldest first. `key`: the idempotency row under the job's hash, which
    a rerun of it may hold by now. `webhook`: how far the news of the job's end got. `left_dlq`: it failed for
    good and was taken up again."""

    job: Job
    steps: tuple[Step, ...]
    outboxes: tuple[Outbox, ...] = ()
    events: tuple[Event, ...] = ()
    key: IdempotencyRow | None = None
    webhook: WebhookState | None = None
    left_dlq: bool = False

    @property
    def record(self) -> JobRecord:
        return JobRecord(job=self.job, steps=self.steps, outbox=self.outboxes[-1] if self.outboxes else None)

    @property
    def fault(self) -> str | None:
        """What does not fit together."""
        job = self.job
        if [event.seq for event in self.events] != list(range(1, len(self.events) + 1)):
            return "the numbers of its events have gaps"
        if len(self.events) < job.seq or (len(self.events) > job.seq and not job.terminal):
            return f"{len(self.events)} of its {job.seq} events are there"
        if [step.step_index for step in self.steps] != list(range(job.steps_count or len(self.steps))):
            return f"{len(self.steps)} of its {job.steps_count} steps are there"
        if len(self.outboxes) < job.attempts_total:
            return f"{len(self.outboxes)} of its {job.attempts_total} attempts are there"
        return None


async def read_job_copy(ledger: JobLedger, job_id: str) -> JobCopy | None:
    """The job as of one moment; None for one that is not there, or is being deleted. Raises `Unreadable`."""
    loaded = await ledger.peek(job_id)
    for _ in range(READ_TRIES_MAX):
        if loaded is None:
            return None
        copy = await _read_around(ledger, loaded.record)
        again = await ledger.peek(job_id, loaded)
        if again is not None and again.etag != loaded.etag:
            loaded = again
            continue
        if again is None or (copy.job.terminal and len(copy.events) < copy.job.seq):
            return None  # retention removes the events first, and JOB last
        if copy.fault is not None:
            raise Unreadable(copy.fault, place=Place(ledger.layout.job_rows[0], job_id, "JOB"))
        return copy
    raise StoreUnavailable(f"{job_id} changed {READ_TRIES_MAX} times while it was being read")


async def _read_around(ledger: JobLedger, record: JobRecord) -> JobCopy:
    job, store, tables = record.job, ledger.store, ledger.tables
    events: list[Event] = []
    while page := await ledger.events(job.job_id, after_seq=len(events), limit=PAGE_EVENTS_MAX):
        events += page
    key_row = await store.get(tables.idempotency, job.tenant_norm, job.idempotency_hash)
    webhook = None
    if job.terminal and job.callback_urls:
        held = await WebhookRows(store, tables, ledger.quarantine).held(job.lane, job.job_id)
        webhook = None if held is None else held.state
    left = job.terminal and await store.get(tables.dlq, dlq_left_partition(job.lane), job.job_id) is not None
    return JobCopy(
        job=job,
        steps=record.steps,
        outboxes=tuple(await ledger.layout.outboxes(store, job)),
        events=tuple(events),
        key=None if key_row is None else decode_idempotency.at(tables.idempotency, job.tenant_norm, key_row),
        webhook=webhook,
        left_dlq=left,
    )


class JobImport:
    """Writes copies into a ledger."""

    def __init__(self, ledger: JobLedger, *, now_ms: Callable[[], int]) -> None:
        self._ledger = ledger
        self._audit = IndexAudit(ledger, now_ms=now_ms)
        self._now_ms = now_ms

    def too_large(self, copy: JobCopy) -> str | None:
        """Why this store cannot hold the job."""
        bytes_max = self._ledger.job_bytes_max
        if bytes_max is None:
            return None
        bytes_total = sum(len(op.body) for op in self._own_rows(copy))
        if bytes_total <= bytes_max:
            return None
        return f"the job has {bytes_total:,} bytes, and this store takes {bytes_max:,} of one job"

    async def write(self, copy: JobCopy) -> bool:
        """False where the job is there already, because an import that was cut off has written it."""
        layout, store = self._ledger.layout, self._ledger.store
        there = await layout.job(store, copy.job.job_id)
        if there is not None and not copy.job.terminal:
            await self._put_right(copy.job.job_id)  # processes may have gone on with it since
            return False
        copy = msgspec.structs.replace(copy, job=self._job_of(copy))
        own, around = self._own_rows(copy) if there is None else [], self._rows_around(copy)
        *before, last = _chunks(own)
        for chunk in before:
            await store.commit(chunk)
        if store.spans:
            await store.commit([*last, *around])
            return there is None
        await store.commit(last)
        if self._ledger.projections is not None:
            await self._ledger.projections.complete(copy.record)
        for op in around:
            await store.commit([op])
        return there is None

    async def _put_right(self, job_id: str) -> None:
        compared = await self._audit.compare_job(job_id)
        if compared is not None:
            await self._audit.mend(compared)
        loaded = await self._ledger.load(job_id, fresh=True)
        if self._ledger.projections is not None and loaded is not None:
            await self._ledger.projections.complete(loaded.record)

    def _job_of(self, copy: JobCopy) -> Job:
        """A workflow begins once its job's row is due, and in the other ledger no job has one yet."""
        job = copy.job
        if job.terminal or (job.engine is not Engine.TEMPORAL and job.due_at_ms is not None):
            return job
        return msgspec.structs.replace(job, due_at_ms=self._now_ms())

    def _own_rows(self, copy: JobCopy) -> list[Op]:
        """JOB last: it is inserted, and what is there of the others was left by an import that was cut
        off."""
        job, record, layout = copy.job, copy.record, self._ledger.layout
        ops = [layout.step_write(job, step) for step in copy.steps]
        ops += [layout.outbox_write(record, outbox) for outbox in copy.outboxes]
        ops += [_as_put(layout.event_write(job, event)) for event in copy.events]
        return [*ops, layout.job_write(job, None)]

    def _rows_around(self, copy: JobCopy) -> list[Op]:
        """What makes an open job move comes last."""
        job, record, ledger = copy.job, copy.record, self._ledger
        planner, tables, now_ms = ledger.planner, ledger.tables, self._now_ms()
        ops = [_as_put(op) for op in ledger.layout.created(job)]
        if copy.key is not None:
            body, shown = encode(copy.key), shown_key(copy.key)
            ops.append(put(tables.idempotency, job.tenant_norm, job.idempotency_hash, body, shown))
        if copy.left_dlq:
            ops.append(planner.dlq_left_put(job))
        if copy.webhook is not None:
            ops += WebhookRows(ledger.store, tables, ledger.quarantine).again(job, copy.webhook)
        if job.terminal:
            return [*ops, *self._closing_ops(copy)]
        ops += [planner.slot_put(job), *planner.list_puts(job), *planner.search_puts(job)]
        ops.append(planner.due_put_again(record, now_ms))
        if record.outbox is not None and is_dispatchable(record):
            ops.append(planner.dispatch_put(job, record.outbox, now_ms))
        return ops

    def _closing_ops(self, copy: JobCopy) -> list[Op]:
        """But for the slot, which it never had here, the first try of a webhook that was tried before, and
        the list of failed jobs where it has left that."""
        job, tables, planner = copy.job, self._ledger.tables, self._ledger.planner
        done = {tables.inflight}
        if copy.webhook is not None:
            done.add(tables.webhooks)
        if copy.left_dlq:
            done.add(tables.dlq)
        ops = [*planner.search_puts(job), *planner.closing_ops(job)]
        wanted = {(op.table, op.partition, op.key): op for op in ops if op.table not in done}
        return list(wanted.values())


def _as_put(op: Op) -> Op:
    return put(op.table, op.partition, op.key, op.body, op.shown)


def _chunks(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """As many as one commit takes, whatever the store."""
    chunk: list[Op] = []
    bytes_total = 0
    for op in ops:
        if chunk and (len(chunk) == CHUNK_OPS_MAX or bytes_total + len(op.body) > CHUNK_BYTES_MAX):
            yield chunk
            chunk, bytes_total = [], 0
        chunk.append(op)
        bytes_total += len(op.body)
    yield chunk
