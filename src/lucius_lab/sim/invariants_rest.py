"""What must hold once nothing moves any more: rows and truth agree, everywhere.

In: what was followed commit by commit, and the store's rows as they are. Out: every breach that is found. The
rows are read anew, so that a row which was never reported is found as well.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lucius.core.model import JobRecord
from lucius.core.states import JobState, OutboxState
from lucius.ledger.job_ledger import LayoutName
from lucius.ledger.names import split_dispatch_key, tenant_bucket
from lucius.ledger.rows import decode_job, decode_outbox, decode_step, encode, is_tombstone
from lucius_lab.sim.invariants_job import JobInvariants
from lucius_lab.sim.invariants_rows import JobRows, Place
from lucius_lab.sim.watch import StoreReader, Violation

if TYPE_CHECKING:
    from lucius_lab.sim.invariants import Invariants

_JOB_AT = 15


def check_rest(known: "Invariants", reader: StoreReader) -> list[Violation]:
    found: list[Violation] = []
    around = _read_around(known, reader)
    for job_id, truth in known.jobs.items():
        rows = around.pop(job_id, None) or JobRows()
        for check in (_check_truth, _check_rows):
            try:
                check(known, reader, truth, rows)
            except Violation as violation:
                found.append(violation)
    for job_id, rows in around.items():
        if _stands(known, rows):
            found.append(Violation("I6", job_id, f"rows are left of a job that was never created: {rows}"))
    return found


def _read_around(known: "Invariants", reader: StoreReader) -> dict[str, JobRows]:
    """The rows around each job, as the store has them."""
    t, found = known.tables, dict[str, JobRows]()
    for partition, key, body in _rows(reader, t.due):
        found.setdefault(key[_JOB_AT:], JobRows()).due[partition, key] = body
    for partition, key, body in _rows(reader, t.dispatch):
        found.setdefault(split_dispatch_key(key)[2], JobRows()).dispatch[partition, key] = body
    for partition, key, _ in _rows(reader, t.inflight):
        found.setdefault(key, JobRows()).slots.add(partition)
    for partition, key, body in _rows(reader, t.job_index):
        if partition.startswith(("ended#", "search#")):
            found.setdefault(key.rpartition("#")[2], JobRows()).found_by.add((partition, key))
        elif not partition.startswith("job#"):
            found.setdefault(key[_JOB_AT:], JobRows()).lists[partition, key] = body
    for partition, key, _ in _rows(reader, t.dlq):
        if partition.startswith("left#"):
            found.setdefault(key, JobRows()).left = True
        else:
            found.setdefault(key[_JOB_AT:], JobRows()).dlq = (partition, key)
    for partition, key, _ in _rows(reader, t.retention):
        found.setdefault(key[_JOB_AT:], JobRows()).retention = (partition, key)
    return found


def _rows(reader: StoreReader, table: str) -> Iterator[tuple[str, str, bytes]]:
    for partition in reader.partitions(table):
        for row in reader.rows(table, partition):
            yield partition, row.key, row.body


def _check_rows(known: "Invariants", reader: StoreReader, truth: JobInvariants, rows: JobRows) -> None:
    record = truth.record
    if record is None or (truth.job_deletion and _read_record(known, reader, truth) is None):
        if _stands(known, rows):
            raise Violation("I6", truth.job_id, f"rows are left of a job that is not there: {rows}")
        return
    if truth.job_deletion:
        return  # half forgotten: retention goes on with it
    job = record.job
    if not job.terminal:
        raise Violation("I4", job.job_id, f"the job is still {job.state} at rest")
    if not known.spans:
        rows.due = {place: body for place, body in rows.due.items() if not _is_later(known, place)}
    rows.check_ended(job, at_rest=True)
    if job.state is JobState.FAILED_FINAL and rows.left and rows.dlq is not None:
        raise Violation("I6", job.job_id, "a job that was taken up again stands in the DLQ")
    key = known.keys.get((job.tenant_norm, job.idempotency_hash))
    if key != job.job_id and job.rerun_of is None:
        raise Violation("I3", job.job_id, f"its idempotency key names {key}")


def _stands(known: "Invariants", rows: JobRows) -> bool:
    if not known.spans:
        rows.due = {place: body for place, body in rows.due.items() if not _is_later(known, place)}
    return rows.stands


def _is_later(known: "Invariants", place: Place) -> bool:
    """A row that a dead writer announced for a distant time stays until that time, and does no harm."""
    return int(place[1][: _JOB_AT - 1]) > known.now_ms


def _check_truth(known: "Invariants", reader: StoreReader, truth: JobInvariants, rows: JobRows) -> None:
    if truth.record is None or truth.job_deletion:
        return
    copied = known.layout is LayoutName.TABLE and not known.spans
    if not copied and _is_as_committed(known, reader, truth, truth.record):
        _check_outbox_ended(truth, truth.record)
        return
    record = _read_record(known, reader, truth)
    if record is None:
        raise Violation("I3", truth.job_id, "the job is gone")
    if record != truth.record:
        raise Violation("I10", truth.job_id, "the rows are not what was committed last")
    _check_outbox_ended(truth, record)
    events = _event_bodies(known, reader, truth)
    if events != truth.trail:
        raise Violation("I10", truth.job_id, f"the trail has {len(events)} events of {truth.seq}")
    if copied:
        _check_copies(known, reader, truth, events)


def _check_outbox_ended(truth: JobInvariants, record: JobRecord) -> None:
    if record.job.terminal and record.outbox is not None and record.outbox.state is OutboxState.PENDING:
        raise Violation("I6", truth.job_id, "an ended job has an outbox row that waits")


def _is_as_committed(
    known: "Invariants", reader: StoreReader, truth: JobInvariants, record: JobRecord
) -> bool:
    """Whether the rows are what was committed last, byte by byte: true of nearly all, and easier to see than
    by reading them."""
    job_id = truth.job_id
    if known.layout is LayoutName.LEDGER:
        rows = reader.rows(known.tables.ledger, job_id)
        at = len(truth.trail)
        events, job = [row.body for row in rows[:at]], [row.body for row in rows[at : at + 1]]
        outboxes = [row.body for row in rows if row.key.startswith("OUTBOX#")]
        steps = [row.body for row in rows[at + 1 + len(outboxes) :]]
    else:
        t, bucket = known.tables, tenant_bucket(record.job.tenant_norm, record.job.created_at_ms)
        events = [row.body for row in reader.rows(t.events, job_id)]
        job = [row.body for row in reader.rows(t.jobs, bucket) if row.key == job_id]
        outboxes = [row.body for row in reader.rows(t.outbox, bucket) if row.key.startswith(f"{job_id}.")]
        steps = [row.body for row in reader.rows(t.steps, job_id)]
    last = [] if record.outbox is None else [encode(record.outbox)]
    return (
        events == truth.trail
        and job == [encode(record.job)]
        and outboxes[-1:] == last
        and sorted(steps) == sorted(encode(step) for step in record.steps)
    )


def _read_record(known: "Invariants", reader: StoreReader, truth: JobInvariants) -> JobRecord | None:
    assert truth.record is not None
    if known.layout is LayoutName.TABLE and known.spans:
        return _read_spread(known, reader, truth.record)
    rows = {row.key: row.body for row in reader.rows(_table_of_truth(known), truth.job_id)}
    job = rows.get("JOB")
    if job is None or is_tombstone(job):
        return None
    steps = [decode_step.of_bytes(body) for key, body in rows.items() if key.startswith("STEP#")]
    outboxes = [body for key, body in rows.items() if key.startswith("OUTBOX#")]
    return JobRecord(
        job=decode_job.of_bytes(job),
        steps=tuple(sorted(steps, key=lambda step: step.step_index)),
        outbox=decode_outbox.of_bytes(outboxes[-1]) if outboxes else None,
    )


def _read_spread(known: "Invariants", reader: StoreReader, last: JobRecord) -> JobRecord | None:
    t, job_id = known.tables, last.job.job_id
    bucket = tenant_bucket(last.job.tenant_norm, last.job.created_at_ms)
    jobs = {row.key: row.body for row in reader.rows(t.jobs, bucket)}
    if job_id not in jobs:
        return None
    steps = [decode_step.of_bytes(row.body) for row in reader.rows(t.steps, job_id)]
    outboxes = [row.body for row in reader.rows(t.outbox, bucket) if row.key.startswith(f"{job_id}.")]
    return JobRecord(
        job=decode_job.of_bytes(jobs[job_id]),
        steps=tuple(sorted(steps, key=lambda step: step.step_index)),
        outbox=decode_outbox.of_bytes(outboxes[-1]) if outboxes else None,
    )


def _table_of_truth(known: "Invariants") -> str:
    return known.tables.ledger if known.layout is LayoutName.LEDGER else known.tables.steps


def _event_bodies(known: "Invariants", reader: StoreReader, truth: JobInvariants) -> list[bytes]:
    if known.layout is LayoutName.TABLE and known.spans:
        return [row.body for row in reader.rows(known.tables.events, truth.job_id)]
    rows = reader.rows(_table_of_truth(known), truth.job_id)
    return [row.body for row in rows if row.key.startswith("EVENT#")]


def _check_copies(
    known: "Invariants", reader: StoreReader, truth: JobInvariants, events: list[bytes]
) -> None:
    """The other tables show what the truth says, and nothing else."""
    record, t = truth.record, known.tables
    assert record is not None
    bucket = tenant_bucket(record.job.tenant_norm, record.job.created_at_ms)
    jobs = {row.key: row.body for row in reader.rows(t.jobs, bucket)}
    if truth.job_id not in jobs or decode_job.of_bytes(jobs[truth.job_id]) != record.job:
        raise Violation("I6", truth.job_id, "the copy of JOB is not what the job is")
    if [row.body for row in reader.rows(t.events, truth.job_id)] != events:
        raise Violation("I6", truth.job_id, "the copies of the events are not the events")
    shown = {
        row.key: decode_outbox.of_bytes(row.body)
        for row in reader.rows(t.outbox, bucket)
        if row.key.startswith(f"{truth.job_id}.")
    }
    rows = reader.rows(_table_of_truth(known), truth.job_id)
    outboxes = [decode_outbox.of_bytes(row.body) for row in rows if row.key.startswith("OUTBOX#")]
    if shown != {outbox.outbox_id: outbox for outbox in outboxes}:
        raise Violation("I6", truth.job_id, "the copies of the outbox rows are not the outbox rows")
