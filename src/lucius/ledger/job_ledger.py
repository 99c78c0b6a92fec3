"""The jobs: create, load, commit, and the evidence that arrives when a job is over.

A record that was read or written lately is kept in memory with its ETag. That is safe because a commit is
refused when the ETag is no longer the row's: a caller whose decision writes nothing must ask again with
`fresh=True` before it believes what it saw.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum

import msgspec

from lucius.core.draft import Decision
from lucius.core.model import Event, Job, JobRecord
from lucius.core.replies import EVIDENCE_MAX, evidence_max
from lucius.core.states import Mode
from lucius.ledger.columns import shown_key
from lucius.ledger.commit_plan import GRACE_MS, CommitPlan, CommitPlanner
from lucius.ledger.idempotency import KeyClaim, KeyHolder, KeyTaken
from lucius.ledger.layout import Layout, OnePartition, SpreadTables
from lucius.ledger.names import Tables, dlq_left_partition
from lucius.ledger.projections import Projections
from lucius.ledger.quarantine import Quarantine
from lucius.ledger.rows import (
    DueRow,
    Loaded,
    Tombstone,
    decode_idempotency,
    encode,
    version_in,
    version_of,
)
from lucius.ledger.store import (
    COMMIT_BYTES_MAX,
    Bound,
    Conflict,
    Op,
    StoreError,
    StoreUnavailable,
    TableStore,
    Unreadable,
    delete,
    discard,
    insert,
    replace,
)

CACHE_RECORDS_MAX = 2_048
ANNOUNCE_TRIES_MAX = 100
# Each lost try means that another event took a number, and there are never more than this.
EVIDENCE_TRIES_MAX = EVIDENCE_MAX + 1


class LayoutName(Enum):
    LEDGER = "ledger"
    TABLE = "table"


class JobLedger:
    def __init__(
        self,
        store: TableStore,
        layout: LayoutName,
        tables: Tables | None = None,
        *,
        slot_bounds: Callable[[str, Mode], tuple[Bound, ...]] | None = None,
    ) -> None:
        """`slot_bounds`: how many jobs may be in flight, with a new one of this tenant and mode."""
        self.store = store
        self.tables = tables or Tables()
        self.layout: Layout
        self.projections: Projections | None = None
        if layout is LayoutName.LEDGER:
            # A store whose commits may span has views for people, and is given no columns to write.
            self.layout = OnePartition(self.tables.ledger, shown=not store.spans)
        elif store.spans:
            self.layout = SpreadTables(self.tables)
        else:
            truth = OnePartition(self.tables.steps)
            self.layout = truth
            self.projections = Projections(store, self.tables, truth)
        self._spans = store.spans
        self.planner = CommitPlanner(self.layout, self.tables, spans=self._spans, slot_bounds=slot_bounds)
        self._cache: OrderedDict[str, Loaded] = OrderedDict()
        self.quarantine = Quarantine()

    @property
    def job_bytes_max(self) -> int | None:
        """The most that all rows of a job may hold, so that one commit can change them; None: any amount."""
        return None if self._spans else COMMIT_BYTES_MAX // 4 * 3  # rows are sent in base 64

    # Reading

    async def load(self, job_id: str, *, fresh: bool = False) -> Loaded | None:
        """Raises `Unreadable` for a job that is there and cannot be read."""
        if not fresh:
            cached = self._cache.get(job_id)
            if cached is not None:
                return cached
        loaded = await self.peek(job_id, self._cache.get(job_id))
        if loaded is None:
            self._cache.pop(job_id, None)
        else:
            self._remember(loaded)
        return loaded

    def remembered(self, job_id: str) -> JobRecord | None:
        """The job as it was read or written last, if that is not long ago: for what may be old."""
        known = self._cache.get(job_id)
        return None if known is None else known.record

    async def peek(self, job_id: str, known: Loaded | None = None) -> Loaded | None:
        """The job past the memory, which is for jobs that are being worked on."""
        try:
            loaded = await self.layout.load(self.store, job_id, known)
        except Unreadable as fault:
            self._cache.pop(job_id, None)
            if fault.place is not None:
                self.quarantine.note(fault.place, fault, job_id=job_id)
            raise
        self.quarantine.let_job_go(job_id)
        return loaded

    async def events(self, job_id: str, *, after_seq: int = 0, limit: int) -> list[Event]:
        """Raises `Unreadable` where one that is there cannot be read."""
        try:
            return await self.layout.events(self.store, job_id, after_seq, limit)
        except Unreadable as fault:
            if fault.place is not None:
                self.quarantine.note(fault.place, fault)
            raise

    async def key_holder(self, partition: str, key: str) -> KeyHolder | None:
        row = await self.store.get(self.tables.idempotency, partition, key)
        if row is None:
            return None
        try:
            return KeyHolder(
                row=decode_idempotency.at(self.tables.idempotency, partition, row), etag=row.etag
            )
        except Unreadable as fault:
            if fault.place is not None:
                self.quarantine.note(fault.place, fault)
            raise

    # Creating

    async def create(self, decision: Decision, claim: KeyClaim, now_ms: int) -> Loaded:
        """Creates the job and claims its key; raises `KeyTaken` if another job was faster."""
        plan = self.planner.creation(decision.record, decision.events, now_ms)
        idempotency = self._claim_op(claim, plan.record)
        if self._spans:
            ops = (idempotency, *plan.truth, *plan.first, *plan.then)
            try:
                etags = await self.store.commit(ops)
            except Conflict as conflict:
                if conflict.op is idempotency or conflict.index == 0:
                    raise KeyTaken from conflict
                raise
            return self._created(plan, etags[1])
        await self._announce(self._without_dispatch(plan.first))
        try:
            await self.store.commit([idempotency])
        except Conflict as conflict:
            await self._withdraw(plan.record.job)
            raise KeyTaken from conflict
        try:
            return await self._finish_creation(plan)
        except Conflict as conflict:
            raise KeyTaken from conflict  # by this very job, which is there by now or waits to be finished

    async def finish(self, decision: Decision, now_ms: int) -> Loaded:
        """Creates the job whose key was claimed by a process that got no further."""
        job_id = decision.record.job.job_id
        tombstone = await self.layout.tombstone(self.store, job_id)
        etag = None if tombstone is None else tombstone.etag
        plan = self.planner.creation(decision.record, decision.events, now_ms, tombstone_etag=etag)
        if self._spans:
            etags = await self.store.commit((*plan.truth, *plan.first, *plan.then))
            return self._created(plan, etags[0])
        await self._announce(self._without_dispatch(plan.first))
        return await self._finish_creation(plan)

    async def _finish_creation(self, plan: CommitPlan) -> Loaded:
        job_id = plan.record.job.job_id
        try:
            await self._announce([op for op in plan.first if op.table == self.tables.dispatch])
            etags = await self.store.commit(plan.truth)
        except Conflict:
            # A tombstone was set meanwhile, or another process created the job. The announcement may have
            # come after that process cleaned up or ended: announce it once more, and a process that finds the
            # row checks it again.
            with suppress(Conflict):
                await self._announce(plan.first[:1])
            raise
        loaded = self._created(plan, etags[0])
        with suppress(StoreError):
            if self.projections is not None:
                await self.projections.write(plan.record, await self.events(job_id, limit=10))
            await self._tidy(plan.then, plan.record.job)
        return loaded

    def _without_dispatch(self, ops: Sequence[Op]) -> list[Op]:
        return [op for op in ops if op.table != self.tables.dispatch]

    def _created(self, plan: CommitPlan, etag: str) -> Loaded:
        loaded = Loaded(record=plan.record, etag=etag)
        self._remember(loaded)
        return loaded

    def _claim_op(self, claim: KeyClaim, record: JobRecord) -> Op:
        row = claim.row_for(record.job)
        body, shown = encode(row), None if self._spans else shown_key(row)
        if claim.etag is None:
            return insert(self.tables.idempotency, claim.partition, claim.key, body, shown)
        return replace(self.tables.idempotency, claim.partition, claim.key, body, claim.etag, shown)

    async def _withdraw(self, job: Job) -> None:
        """Takes back what was announced for a job whose key went to another. No other process knows its
        id."""
        lists = self.planner.list_discards(job.job_id, job.tenant_norm, job.lane, job.created_at_ms)
        await self.write_each([self.planner.slot_discard(job.tenant_norm, job.job_id), *lists])
        if job.due_at_ms is not None:
            await self.write_each([self.planner.due_discard(job.lane, job.due_at_ms, job.job_id)])

    async def give_up(self, job_id: str, lane: int, row: DueRow, now_ms: int) -> bool:
        """Takes back what was announced for a job that never came; False if it is coming after all.

        What stands there is noted before the tombstone is set and removed only if it is still the same: rows
        of a process that creates the job after that are not touched.
        """
        lists = self.planner.list_discards(job_id, row.tenant_norm, lane, row.created_at_ms)
        places = [self.planner.slot_discard(row.tenant_norm, job_id), *lists]
        found = [(op, await self.store.get(op.table, op.partition, op.key)) for op in places]
        if not await self.bury(job_id, row.version, now_ms):
            return False
        for op, there in found:
            if there is not None:
                with suppress(Conflict):
                    await self.store.commit([delete(op.table, op.partition, op.key, there.etag)])
        return True

    async def bury(self, job_id: str, announced_version: int, now_ms: int) -> bool:
        """Puts a tombstone where a job was announced and never created, anew if there is one already, so that
        no creation under way succeeds; False if one was faster."""
        if self._spans or announced_version > 1:
            return True  # created in one commit, or created and long deleted
        body = encode(Tombstone(tombstone=True, at_ms=now_ms))
        there = await self.layout.tombstone(self.store, job_id)
        etag = None if there is None else there.etag
        try:
            await self.store.commit([self.layout.tombstone_write(job_id, body, etag)])
        except Conflict:
            return False
        return True

    # Changing

    async def commit(self, before: Loaded, decision: Decision, now_ms: int) -> Loaded:
        """Writes a decision; raises `Conflict` if the job is no longer the one that was decided upon."""
        plan = self.planner.change(before, decision.record, decision.events, now_ms)
        return await self._execute(plan, decision.events)

    async def rearm(self, before: Loaded, now_ms: int) -> Loaded:
        """Moves the job's due row to its next deadline."""
        return await self._execute(self.planner.change(before, before.record, (), now_ms, rearms=True), ())

    async def fence(self, before: Loaded, now_ms: int) -> Loaded:
        """Takes the ETag away from a writer that was announced long ago, so that its commit fails."""
        return await self._execute(self.planner.change(before, before.record, (), now_ms), ())

    async def restore(self, before: Loaded, missing: Sequence[Op]) -> Loaded:
        """Puts lost rows back around a job. Where commits may span, JOB guards them: nothing is put beside a
        job that has moved on. Where they may not, `Conflict` says that a row is there after all."""
        if not self._spans:
            for op in missing:
                await self.store.commit([op])
            return before
        record = before.record
        job = msgspec.structs.replace(record.job, version=record.job.version + 1)
        try:
            etags = await self.store.commit([self.layout.job_write(job, before.etag), *missing])
        except Conflict:
            self._cache.pop(job.job_id, None)
            raise
        loaded = Loaded(record=msgspec.structs.replace(record, job=job), etag=etags[0])
        self._remember(loaded)
        return loaded

    async def _execute(self, plan: CommitPlan, events: Sequence[Event]) -> Loaded:
        announced: list[Op] = []
        try:
            if self._spans:
                etags = await self.store.commit((*plan.truth, *plan.first, *plan.then))
            else:
                await self._announce(plan.first, announced)
                etags = await self.store.commit(plan.truth)
        except Conflict:
            self._cache.pop(plan.record.job.job_id, None)
            await self._take_back(plan.record.job, announced)
            raise
        loaded = Loaded(record=plan.record, etag=etags[0])
        self._remember(loaded)
        if not self._spans:
            # The fact is committed. What cannot be tidied now is met again through the rows that are left.
            with suppress(StoreError):
                if self.projections is not None:
                    await self.projections.write(plan.record, events)
                await self._tidy(plan.then, plan.record.job)
        return loaded

    async def do_chores(self, record: JobRecord) -> None:
        """Repeats what a job's end asks for; harmless however often. Where commits may span, the end and its
        closing writes were one commit, and what came after it is not to be undone."""
        if self._spans:
            return
        if self.projections is not None:
            await self.projections.complete(record)
        await self._tidy(self.planner.closing_ops(record.job), record.job)

    async def append_evidence(self, record: JobRecord, event: Event) -> bool:
        """A late answer to a terminal job: JOB stays as it is, the event claims the next free number."""
        job, kept_max = record.job, evidence_max(event.data["reply"].get("type", ""))
        for _ in range(EVIDENCE_TRIES_MAX):
            later = await self.events(job.job_id, after_seq=job.seq, limit=EVIDENCE_MAX + 1)
            if job.evidence_count + len(later) >= kept_max:
                return False
            numbered = msgspec.structs.replace(event, seq=job.seq + len(later) + 1)
            try:
                await self._write_evidence(job, later, numbered)
            except Conflict:
                continue
            return await self._kept_evidence(job, numbered)
        return False

    async def _write_evidence(self, job: Job, later: Sequence[Event], event: Event) -> None:
        if self.projections is None:
            await self.store.commit([self.layout.event_write(job, event)])
            return
        # The copy comes after the fact: a row sees to it if we cannot. It is not met before the fact had its
        # time to be written, for JOB, which stays as it is, cannot show whether it was.
        announced: list[Op] = []
        row = self.planner.due_put(job, event.at_ms + GRACE_MS, event.at_ms)
        await self._announce([row], announced)
        await self.store.commit([self.layout.event_write(job, event)])
        with suppress(StoreError):
            await self.projections.write_late(job, [*later, event])
            await self.store.commit(announced)  # refused where another answer of this moment needs it, too

    async def _kept_evidence(self, job: Job, event: Event) -> bool:
        """Retention removes JOB after the events: evidence that finds no JOB came too late, and goes too."""
        if await self.load(job.job_id, fresh=True) is not None:
            return True
        write = self.layout.event_write(job, event)
        await self.write_each([discard(write.table, write.partition, write.key)])
        if self.projections is not None:
            await self.write_each([self.projections.event_discard(job.job_id, event)])
        return False

    # Rows around the truth

    async def _announce(self, ops: Sequence[Op], announced: list[Op] | None = None) -> None:
        """Writes what comes before a fact, one by one. Each announcer changes the due or dispatch row, so
        that a process which looked at it before cannot remove it. A row that announces a later version than
        ours shows that our commit would be refused: `Conflict`. `announced` gets what takes each row back."""
        for op in ops:
            if op.table not in (self.tables.due, self.tables.dispatch):
                await self.store.commit([op])
                continue
            etag = await self._announce_one(op)
            if announced is not None:
                announced.append(delete(op.table, op.partition, op.key, etag))

    async def _announce_one(self, op: Op) -> str:
        write = insert(op.table, op.partition, op.key, op.body)
        for _ in range(ANNOUNCE_TRIES_MAX):
            try:
                (etag,) = await self.store.commit([write])
            except Conflict:
                there = await self.store.get(op.table, op.partition, op.key)
            else:
                return etag
            if there is None:
                write = insert(op.table, op.partition, op.key, op.body)
            elif version_of(there) > version_in(op.body):
                raise Conflict(0, op)
            else:
                write = replace(op.table, op.partition, op.key, op.body, there.etag)
        raise StoreUnavailable(f"{op.table}/{op.partition}/{op.key} changed too often")

    async def _take_back(self, job: Job, announced: Sequence[Op]) -> None:
        """Removes the announcements of a commit that was refused, but for those that the job as it is now
        stands by. Writers that announced the same version are refused as this one was, once that version is
        written; a writer that announces a later one changes the row, and then it stays."""
        if not announced:
            return
        loaded = await self.load(job.job_id, fresh=True)
        if loaded is not None and loaded.record.job.version < job.version:
            return  # another writer may still write it: a process that finds the row sees what became of it
        wanted = set() if loaded is None else self.planner.places(loaded.record)
        for op in announced:
            if (op.table, op.partition, op.key) not in wanted:
                with suppress(Conflict):
                    await self.store.commit([op])

    async def _tidy(self, ops: Sequence[Op], job: Job) -> None:
        """Writes what comes after a fact, one by one where commits may not span; each may be repeated."""
        for op in ops:
            if op.table in (self.tables.due, self.tables.dispatch):
                await self._retire(op, job.version)
                continue
            await self.store.commit([op])
            if op.table == self.tables.dlq and await self.left_dlq(job):
                await self.store.commit([self.planner.dlq_discard(job)])

    async def _retire(self, op: Op, version: int) -> None:
        """Removes a row that this version no longer needs, unless a later one announced it again."""
        there = await self.store.get(op.table, op.partition, op.key)
        if there is None or there.damage:
            return  # what a damaged row announces is not known: whatever meets it later sees to it
        if version_of(there) <= version:
            with suppress(Conflict):
                await self.store.commit([delete(op.table, op.partition, op.key, there.etag)])

    async def left_dlq(self, job: Job) -> bool:
        """Whether a finally failed job was taken up again."""
        partition = dlq_left_partition(job.lane)
        return await self.store.get(self.tables.dlq, partition, job.job_id) is not None

    async def write_each(self, ops: Sequence[Op]) -> None:
        """One by one where commits may not span; each may be repeated."""
        if self._spans and ops:
            await self.store.commit(ops)
            return
        for op in ops:
            await self.store.commit([op])

    async def leave_dlq(self, job: Job) -> None:
        """The job was taken up again: it leaves the list of failed jobs that wait for an operator."""
        await self.write_each([self.planner.dlq_left_put(job), self.planner.dlq_discard(job)])

    def forget(self, job_id: str) -> None:
        self._cache.pop(job_id, None)

    def _remember(self, loaded: Loaded) -> None:
        cache, record = self._cache, loaded.record
        job_id = record.job.job_id
        cache[job_id] = Loaded(record=record, etag=loaded.etag, cached=True)
        cache.move_to_end(job_id)
        if len(cache) > CACHE_RECORDS_MAX:
            cache.popitem(last=False)
