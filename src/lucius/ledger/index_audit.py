"""Compares the indexes with the jobs, and puts right what does not agree.

In: jobs and index rows, a bounded page at a time. Out: findings, and the repair of each. The rows around a
job can be rebuilt from it; a commit never leaves one out, but a damaged file, a restored table or a person
may.

A repair never breaks an invariant, whatever other processes do meanwhile:

- A finding counts only while the job is the one that was compared: its ETag is looked at before and after.
- Where commits may span, the rows of an open job are put back in one commit that replaces JOB under its ETag.
- Where they may not, a row is inserted only if there is none. Due and dispatch rows that are too much do no
  harm: the sweeper and the dispatcher load the job that they name. A slot or list row is looked at again once
  it is written, and taken back if the job has ended meanwhile.
- A row that names no job is removed under its ETag, and only if it was met twice, `grace_ms` apart: where
  commits may not span, it is written before its job. A creator that was slower than that gets it back with
  the next pass.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any

import msgspec

from lucius.core.decide import is_dispatchable
from lucius.core.model import Job, JobRecord
from lucius.ledger.commit_plan import GRACE_MS
from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.names import is_search_partition, split_dispatch_key, split_time_key
from lucius.ledger.rows import (
    ROW_SCHEMA,
    DispatchRow,
    DueRow,
    IdempotencyRow,
    ListRow,
    Loaded,
    PointerRow,
    RetentionRow,
    SlotRow,
    encode,
    version_of,
)
from lucius.ledger.store import (
    Conflict,
    Op,
    Row,
    Scanned,
    StoreError,
    StoreUnavailable,
    Verb,
    delete,
    insert,
    replace,
)

ANSWER_GRACE_MS = 2 * GRACE_MS
SUSPECTS_MAX = 10_000
COMPARE_TRIES_MAX = 3

Place = tuple[str, str]


class IndexKind(StrEnum):
    """What a row is for."""

    DUE = "due"
    DISPATCH = "dispatch"
    LIST = "list"
    SEARCH = "search"
    SLOT = "slot"
    KEY = "key"
    POINTER = "pointer"
    DLQ = "dlq"
    RETENTION = "retention"
    COPY = "copy"


class IndexFault(StrEnum):
    LOST = "lost"  # an index lacks the row of a job
    WRONG = "wrong"  # the row is there and says something else, or cannot be decoded
    ORPHAN = "orphan"  # the row names a job that does not want it


class IndexFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A row that does not agree with its job. `ops`: what puts it right."""

    kind: IndexKind
    fault: IndexFault
    job_id: str
    table: str
    partition: str
    key: str
    ops: tuple[Op, ...] = ()

    @property
    def place(self) -> str:
        return f"{self.table}/{self.partition}/{self.key}"


class ComparedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it was compared with the indexes."""

    loaded: Loaded
    findings: tuple[IndexFinding, ...]

    @property
    def job_id(self) -> str:
        return self.loaded.record.job.job_id

    @property
    def hid(self) -> bool:
        """Whether the job could not be found by its id, so that the rest was not looked at."""
        return self.findings[0].kind is IndexKind.POINTER


class IndexAudit:
    def __init__(
        self,
        ledger: JobLedger,
        *,
        now_ms: Callable[[], int],
        grace_ms: int = ANSWER_GRACE_MS,
        kinds: frozenset[IndexKind] = frozenset(IndexKind),
    ) -> None:
        """`grace_ms`: how long a row without a job is left to a creator that may be slow."""
        self._ledger = ledger
        self._store = ledger.store
        self._t = ledger.tables
        self._now_ms = now_ms
        self._grace_ms = grace_ms
        self._kinds = kinds
        self._suspects: OrderedDict[tuple[str, str, str], tuple[str, int]] = OrderedDict()
        self.rows_read = 0
        """A caller that goes through all jobs slowly paces itself by this."""

    # Jobs, and the rows that each should have

    async def jobs(self, after: Place | None, limit: int) -> list[Scanned]:
        """The rows of all jobs, in the order in which they lie."""
        table, key = self._ledger.layout.job_rows
        rows = await self._store.scan(table, after=after, limit=limit, key=key)
        self.rows_read += len(rows) + 1
        return rows

    async def compare(self, row: Scanned, lanes: frozenset[int] | None = None) -> ComparedJob | None:
        """A job's row as `jobs` gave it, and what is wrong around that job; None where nothing is. Jobs of
        other lanes are left to others. Raises where the job cannot be decoded."""
        if row.damage or is_later(row.body):
            return None
        job = self._ledger.layout.job_in(row)
        if job is None or (lanes is not None and job.lane not in lanes):
            return None
        if self._is_fresh(job):
            return None
        pointer = await self._pointer_finding(job)
        if pointer is not None:
            alone = Loaded(record=JobRecord(job=job, steps=()), etag=row.etag)
            return ComparedJob(loaded=alone, findings=(pointer,))
        return await self.compare_job(job.job_id)

    async def compare_job(self, job_id: str) -> ComparedJob | None:
        loaded = await self._load(job_id)
        for _ in range(COMPARE_TRIES_MAX):
            if loaded is None or self._is_fresh(loaded.record.job):
                return None
            findings = await self._findings(loaded.record)
            if not findings:
                return None
            # Something may be just moving. What is missing while the job stays the same is lost.
            again = await self._load(job_id, loaded)
            if again is not None and again.etag == loaded.etag:
                return ComparedJob(loaded=loaded, findings=tuple(findings))
            loaded = again
        return None

    async def mend(self, compared: ComparedJob) -> list[IndexFinding]:
        """Puts right what was found around a job; what was put right. A job that has moved on is met
        again."""
        record = compared.loaded.record
        try:
            if compared.hid:
                await self._mend_pointer(compared)
            elif record.job.terminal:
                await self._mend_ended(compared)
            else:
                await self._mend_open(compared)
        except Conflict:
            return []
        return list(compared.findings)

    def _is_fresh(self, job: Job) -> bool:
        """The closing writes of a job that has just ended may be under way."""
        ended_at_ms = job.completed_at_ms or job.updated_at_ms
        return job.terminal and not self._store.spans and abs(self._now_ms() - ended_at_ms) < GRACE_MS

    async def _findings(self, record: JobRecord) -> list[IndexFinding]:
        job = record.job
        checks = self._ended_checks(job) if job.terminal else self._open_checks(record)
        found: list[IndexFinding] = []
        for kind, op in checks:
            if kind in self._kinds and (finding := await self._check(kind, op, job)) is not None:
                found.append(finding)
        if IndexKind.COPY in self._kinds:
            found += await self._copy_finding(job)
        return found

    def _open_checks(self, record: JobRecord) -> list[tuple[IndexKind, Op]]:
        job, planner, now_ms = record.job, self._ledger.planner, self._now_ms()
        waiting = record.outbox if is_dispatchable(record) else None
        checks = [
            (IndexKind.DUE, planner.due_put_again(record, now_ms)),
            (IndexKind.SLOT, planner.slot_put(job)),
            *((IndexKind.LIST, op) for op in planner.list_puts(job)),
            *((IndexKind.SEARCH, op) for op in planner.search_puts(job)),
        ]
        if waiting is not None:
            checks.append((IndexKind.DISPATCH, planner.dispatch_put(job, waiting, now_ms)))
        if job.rerun_of is None:
            checks.append((IndexKind.KEY, self._key_put(job)))
        return checks

    def _ended_checks(self, job: Job) -> list[tuple[IndexKind, Op]]:
        """What the job's end wrote; webhooks keep a state of their own, which must not begin again."""
        kinds = {
            self._t.inflight: IndexKind.SLOT,
            self._t.job_index: IndexKind.LIST,
            self._t.dlq: IndexKind.DLQ,
            self._t.retention: IndexKind.RETENTION,
        }
        planner = self._ledger.planner
        searched = planner.search_puts(job) if self._store.spans else []  # else they are closing writes, too
        ops = (*searched, *planner.closing_ops(job))
        return [
            (IndexKind.SEARCH if is_search_partition(op.partition) else kinds[op.table], op)
            for op in ops
            if op.table in kinds
        ]

    async def _check(self, kind: IndexKind, op: Op, job: Job) -> IndexFinding | None:
        """Whether the row is what `op` would write, or gone if it would remove it."""
        there = await self._get(op.table, op.partition, op.key)
        if op.verb is Verb.DISCARD:
            if there is None:
                return None
            removal = delete(op.table, op.partition, op.key, there.etag)
            return self._finding(kind, IndexFault.ORPHAN, job.job_id, op, removal)
        if there is None:
            if kind is IndexKind.DLQ and await self._left_dlq(job):
                return None
            write = insert(op.table, op.partition, op.key, op.body)
            return self._finding(kind, IndexFault.LOST, job.job_id, op, write)
        if not there.damage and _says_the_same(kind, there.body, op.body):
            return None
        write = replace(op.table, op.partition, op.key, op.body, there.etag)
        return self._finding(kind, IndexFault.WRONG, job.job_id, op, write)

    def _finding(self, kind: IndexKind, fault: IndexFault, job_id: str, at: Op, write: Op) -> IndexFinding:
        return IndexFinding(
            kind=kind,
            fault=fault,
            job_id=job_id,
            table=at.table,
            partition=at.partition,
            key=at.key,
            ops=(write,),
        )

    def _key_put(self, job: Job) -> Op:
        row = IdempotencyRow(job_id=job.job_id, fingerprint=job.fingerprint, created_at_ms=job.created_at_ms)
        return insert(self._t.idempotency, job.tenant_norm, job.idempotency_hash, encode(row))

    async def _left_dlq(self, job: Job) -> bool:
        mark = self._ledger.planner.dlq_left_put(job)
        return await self._get(mark.table, mark.partition, mark.key) is not None

    async def _pointer_finding(self, job: Job) -> IndexFinding | None:
        """Where jobs lie by tenant and month, a row says in which month: without it the job is not found."""
        for op in self._ledger.layout.created(job):
            if IndexKind.POINTER in self._kinds and await self._get(op.table, op.partition, op.key) is None:
                return self._finding(IndexKind.POINTER, IndexFault.LOST, job.job_id, op, op)
        return None

    async def _copy_finding(self, job: Job) -> list[IndexFinding]:
        if self._ledger.projections is None or abs(self._now_ms() - job.updated_at_ms) < GRACE_MS:
            return []  # copies come after the commit
        place = self._ledger.projections.place(job)
        there = await self._get(*place)
        if there is not None and version_of(there) >= job.version:
            return []
        fault = IndexFault.LOST if there is None else IndexFault.WRONG
        table, partition, key = place
        return [
            IndexFinding(
                kind=IndexKind.COPY, fault=fault, job_id=job.job_id, table=table, partition=partition, key=key
            )
        ]

    async def _mend_open(self, compared: ComparedJob) -> None:
        loaded, ledger = compared.loaded, self._ledger
        job = loaded.record.job
        ops = [op for finding in compared.findings for op in finding.ops]
        if job.due_at_ms is None:
            await ledger.rearm(loaded, self._now_ms())
            return
        if ops:
            await ledger.restore(loaded, ops)
        if self._store.spans:
            return
        if ledger.projections is not None and len(ops) < len(compared.findings):
            await ledger.projections.complete(loaded.record)
        await self._take_back(job, ops)

    async def _take_back(self, job: Job, written: Sequence[Op]) -> None:
        """The job may have ended while its rows were written: its end removes what was there by then, and
        what came after that is removed here."""
        now = await self._ledger.layout.job(self._store, job.job_id)
        self.rows_read += 1
        if now is not None and not now.terminal:
            return
        for op in written:
            if op.table == self._t.inflight or (now is None and op.table == self._t.job_index):
                there = await self._get(op.table, op.partition, op.key)
                if there is not None:
                    with suppress(Conflict):
                        await self._store.commit([delete(op.table, op.partition, op.key, there.etag)])

    async def _mend_pointer(self, compared: ComparedJob) -> None:
        """JOB alone was read. It guards the row while the job is open; one that has ended does not change."""
        job = compared.loaded.record.job
        ops = [op for finding in compared.findings for op in finding.ops]
        if not job.terminal:
            next_job = msgspec.structs.replace(job, version=job.version + 1)
            ops = [self._ledger.layout.job_write(next_job, compared.loaded.etag), *ops]
        await self._store.commit(ops)
        self._ledger.forget(job.job_id)

    async def _mend_ended(self, compared: ComparedJob) -> None:
        """Where commits may not span, the closing writes are done once more. Where they may, they were one
        commit with the end, and what came after it (a dead letter that was taken up) is not undone: each row
        by itself, with the one that schedules the job's deletion, should that be under way."""
        job = compared.loaded.record.job
        if not self._store.spans:
            await self._ledger.do_chores(compared.loaded.record)
            return
        ops = [op for finding in compared.findings for op in finding.ops]
        kept = self._ledger.planner.closing_ops(job)[-1]
        if not any((op.table, op.key) == (kept.table, kept.key) for op in ops):
            ops.append(kept)
        await self._store.commit(ops)

    # Rows that name no job

    @property
    def doubts(self) -> int:
        """Rows that were met once without their job."""
        return len(self._suspects)

    @property
    def index_tables(self) -> tuple[str, ...]:
        """Those whose rows are looked at one by one. A due row is met by the sweeper when its time comes."""
        return self._t.dispatch, self._t.inflight, self._t.job_index

    async def orphans(
        self, table: str, after: Place | None, limit: int, lanes: frozenset[int] | None = None
    ) -> tuple[list[IndexFinding], Place | None]:
        """What is too much among the next rows of an index, and where to go on; None: this was the end."""
        rows = await self._store.scan(table, after=after, limit=limit)
        self.rows_read += len(rows) + 1
        looked = [await self._orphan(table, row, lanes) for row in rows if not row.damage]
        found = [finding for finding in looked if finding is not None]
        return found, rows[-1].place if len(rows) == limit else None

    async def remove(self, finding: IndexFinding) -> bool:
        """Whether it was still the same."""
        try:
            await self._store.commit(finding.ops)
        except Conflict:
            return False
        return True

    async def _orphan(self, table: str, row: Scanned, lanes: frozenset[int] | None) -> IndexFinding | None:
        kind = _kind_of(self._t.dispatch, self._t.inflight, table, row)
        job_id = row.key if kind is IndexKind.SLOT else _job_named(kind, row)
        if kind not in self._kinds or job_id is None or not _is_ours(kind, row.partition, lanes):
            return None
        try:
            if kind is IndexKind.DISPATCH:
                wanted = await self._is_dispatch_wanted(row, job_id)
            else:
                wanted = await self._job(job_id) is not None
        except StoreUnavailable:
            raise
        except (StoreError, msgspec.MsgspecError):
            return None  # a job that cannot be read may want it
        place = (table, row.partition, row.key)
        if wanted:
            self._suspects.pop(place, None)
            return None
        if not self._is_abandoned(place, row.etag):
            return None
        return IndexFinding(
            kind=kind,
            fault=IndexFault.ORPHAN,
            job_id=job_id,
            table=table,
            partition=row.partition,
            key=row.key,
            ops=(delete(table, row.partition, row.key, row.etag),),
        )

    def _is_abandoned(self, place: tuple[str, str, str], etag: str) -> bool:
        """Whether the very same row was met without its job a while ago."""
        now_ms = self._now_ms()
        seen = self._suspects.get(place)
        if seen is None or seen[0] != etag or now_ms < seen[1]:
            self._suspects[place] = (etag, now_ms)
            self._suspects.move_to_end(place)
            if len(self._suspects) > SUSPECTS_MAX:
                self._suspects.popitem(last=False)
            return False
        return now_ms - seen[1] >= self._grace_ms

    async def _is_dispatch_wanted(self, row: Scanned, job_id: str) -> bool:
        loaded = await self._load(job_id)
        outbox = None if loaded is None else loaded.record.outbox
        if loaded is None or outbox is None or not is_dispatchable(loaded.record):
            return False
        op = self._ledger.planner.dispatch_put(loaded.record.job, outbox, 0)
        return (op.partition, op.key) == row.place

    # Reading past the cache: an audit should not push out the jobs that are being worked on.

    async def _load(self, job_id: str, known: Loaded | None = None) -> Loaded | None:
        self.rows_read += 1
        return await self._ledger.layout.load(self._store, job_id, known)

    async def _job(self, job_id: str) -> Job | None:
        self.rows_read += 1
        return await self._ledger.layout.job(self._store, job_id)

    async def _get(self, table: str, partition: str, key: str) -> Row | None:
        self.rows_read += 1
        return await self._store.get(table, partition, key)


class _Schema(msgspec.Struct, frozen=True):
    v: int = 0


_schema = msgspec.json.Decoder(_Schema)
_ROWS: dict[IndexKind, msgspec.json.Decoder[Any]] = {
    IndexKind.DUE: msgspec.json.Decoder(DueRow),
    IndexKind.DISPATCH: msgspec.json.Decoder(DispatchRow),
    IndexKind.LIST: msgspec.json.Decoder(ListRow),
    IndexKind.SEARCH: msgspec.json.Decoder(ListRow),
    IndexKind.DLQ: msgspec.json.Decoder(ListRow),
    IndexKind.SLOT: msgspec.json.Decoder(SlotRow),
    IndexKind.KEY: msgspec.json.Decoder(IdempotencyRow),
    IndexKind.RETENTION: msgspec.json.Decoder(RetentionRow),
    IndexKind.POINTER: msgspec.json.Decoder(PointerRow),
}
# What these rows say follows from the job alone. The others say when and by which process they were written.
_FIXED = frozenset({IndexKind.LIST, IndexKind.SEARCH, IndexKind.DLQ, IndexKind.SLOT, IndexKind.RETENTION})


def _says_the_same(kind: IndexKind, there: bytes, expected: bytes) -> bool:
    """Rows that are not fixed need only be readable: a dispatch row of another attempt is mended by the
    dispatcher that meets it. A row of a later version is not ours to judge."""
    if is_later(there):
        return True
    try:
        row = _ROWS[kind].decode(there)
    except msgspec.MsgspecError:
        return False
    return kind not in _FIXED or row == _ROWS[kind].decode(expected)


def is_later(body: bytes) -> bool:
    """Whether a later version of Lucius wrote this."""
    try:
        return _schema.decode(body).v > ROW_SCHEMA
    except msgspec.MsgspecError:
        return False


def _kind_of(dispatch: str, inflight: str, table: str, row: Scanned) -> IndexKind:
    if table == dispatch:
        return IndexKind.DISPATCH
    if table == inflight:
        return IndexKind.SLOT
    if is_search_partition(row.partition):
        return IndexKind.SEARCH
    return IndexKind.POINTER if row.partition.startswith("job#") else IndexKind.LIST


def _job_named(kind: IndexKind, row: Scanned) -> str | None:
    """None where the key is not one of ours."""
    if kind is IndexKind.POINTER:
        return row.partition.removeprefix("job#")
    if kind is IndexKind.SEARCH:
        return row.key.rpartition("#")[2] or None
    try:
        return split_dispatch_key(row.key)[2] if kind is IndexKind.DISPATCH else split_time_key(row.key)[1]
    except ValueError:
        return None


def _is_ours(kind: IndexKind, partition: str, lanes: frozenset[int] | None) -> bool:
    """Of an index without lanes each process looks at all rows: removing one twice is harmless."""
    if lanes is None or kind is not IndexKind.DISPATCH:
        return True
    lane = partition.rpartition("#")[2]
    return lane.isdecimal() and int(lane) in lanes
