"""What one commit writes, and in which order.

A plan has three parts. `first` announces: due and dispatch rows, which name the job version they wait for.
`truth` is the job's own rows, one atomic batch guarded by JOB's ETag. `then` tidies: rows that are no longer
needed, and the closing writes of a job that has ended. On a store whose commits may span partitions the three
are one commit; on one whose commits may not, they are written in this order, and every crash in between
leaves a due row behind that finishes the work. That is why the removal of due rows always comes last.
"""

from collections.abc import Callable, Sequence

import msgspec

from lucius.core.decide import is_dispatchable
from lucius.core.due import AHEAD_MS, is_due_at_once, next_due_ms, pulled_in_due
from lucius.core.model import Event, Job, JobRecord, Outbox
from lucius.core.priority import rank_ms
from lucius.core.states import JOB_TERMINAL, STEP_UNDER_WAY, Engine, Fact, JobState, Mode, OutboxState
from lucius.ledger.layout import Layout
from lucius.ledger.names import (
    Tables,
    dispatch_key,
    dispatch_partition,
    dlq_left_partition,
    ended_lane_list,
    ended_tenant_list,
    lane_list,
    lane_partition,
    month_of,
    newest_first_key,
    search_key,
    search_name,
    search_partition,
    tenant_list,
    time_key,
)
from lucius.ledger.rows import DispatchRow, DueRow, ListRow, Loaded, RetentionRow, SlotRow, encode
from lucius.ledger.store import Bound, Op, discard, put
from lucius.ledger.usage import usage_puts
from lucius.ledger.webhooks import first_try

_replace = msgspec.structs.replace
_TEMPORAL = Engine.TEMPORAL  # looked up once: the members of an enum are slow to reach

# Few jobs end in these: each has lists of its own, by which they are found among many that succeeded.
LISTED_ENDS = frozenset({JobState.FAILED_FINAL, JobState.CANCELLED})

# How long an announcement may wait for the commit it announces before it is taken for abandoned.
GRACE_MS = 30_000


class CommitPlan(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    record: JobRecord
    first: tuple[Op, ...]
    truth: tuple[Op, ...]
    then: tuple[Op, ...]


class CommitPlanner:
    """Turns a change of a record into ops. Pure: reads nothing, writes nothing."""

    def __init__(
        self,
        layout: Layout,
        tables: Tables,
        *,
        spans: bool,
        slot_bounds: Callable[[str, Mode], tuple[Bound, ...]] | None = None,
    ) -> None:
        """`slot_bounds`: how many slots there may be, with that of a tenant's new job; None: any number."""
        self._layout = layout
        self._slot_bounds = slot_bounds
        self._t = tables
        self._spans = spans

    def creation(
        self, record: JobRecord, events: Sequence[Event], now_ms: int, *, tombstone_etag: str | None = None
    ) -> CommitPlan:
        if record.job.terminal and self._spans:
            return self._creation_ended(record, events)
        # The first due row comes soon: it clears up after a crash where creation is not one commit, and a
        # job that is under way is often done by then and never needs another. One that waits for a worker
        # may wait long, in great company: where nothing can be left half done, it is not met before its SLA.
        due_at_ms = next_due_ms(record, now_ms) or now_ms
        if not (self._spans and is_dispatchable(record)):
            due_at_ms = min(due_at_ms, now_ms + GRACE_MS)
        job = _replace(record.job, version=1, due_at_ms=due_at_ms, steps_count=len(record.steps))
        record = _replace(record, job=job)
        truth = [self._layout.job_write(job, tombstone_etag), *self._layout.created(job)]
        truth += [self._layout.step_write(job, step) for step in record.steps]
        truth += [self._layout.event_write(job, event) for event in events]
        waiting = record.outbox if is_dispatchable(record) else None
        first = [
            self.due_put(job, due_at_ms, now_ms, announces=waiting),
            self._new_slot(job),
            *self.list_puts(job),
        ]
        if record.outbox is not None:
            truth.append(self._layout.outbox_write(record, record.outbox))
        if waiting is not None:
            first.append(self.dispatch_put(job, waiting, now_ms))
        # A job that has nothing to run ends as it is created: its closing writes follow at once.
        then = self.search_puts(job)
        if job.terminal:
            then += [*self.closing_ops(job), self.due_discard(job.lane, due_at_ms, job.job_id)]
        return CommitPlan(record=record, first=tuple(first), truth=tuple(truth), then=tuple(then))

    def _creation_ended(self, record: JobRecord, events: Sequence[Event]) -> CommitPlan:
        """A job that has nothing to run, in one commit: it never holds a slot and never falls due."""
        job = _replace(record.job, version=1, steps_count=len(record.steps))
        record = _replace(record, job=job)
        truth = [self._layout.job_write(job, None), *self._layout.created(job)]
        truth += [self._layout.step_write(job, step) for step in record.steps]
        truth += [self._layout.event_write(job, event) for event in events]
        then = (*self.search_puts(job), *self.closing_ops(job))
        return CommitPlan(record=record, first=(), truth=tuple(truth), then=then)

    def change(
        self, before: Loaded, after: JobRecord, events: Sequence[Event], now_ms: int, *, rearms: bool = False
    ) -> CommitPlan:
        """`rearms`: what the due row stood for is done, and it moves on."""
        old, layout = before.record, self._layout
        was = old.outbox if is_dispatchable(old) else None
        waiting = after.outbox if is_dispatchable(after) else None
        first, due_then, due_at_ms = self._due_moves(old, after, waiting, events, now_ms, rearms=rearms)
        job = _replace(after.job, version=old.job.version + 1, due_at_ms=due_at_ms)
        record = JobRecord(job=job, steps=after.steps, outbox=after.outbox)
        truth = [layout.job_write(job, before.etag)]
        if after.steps is not old.steps:
            for step, step_before in zip(after.steps, old.steps, strict=True):
                if step is not step_before:
                    truth.append(layout.step_write(job, step))
        if after.outbox is not old.outbox:
            overtaken = _overtaken(old.outbox, after.outbox, events)
            if overtaken is not None:
                truth.append(layout.outbox_write(record, overtaken))
            if after.outbox is not None:
                truth.append(layout.outbox_write(record, after.outbox))
        truth += [layout.event_write(job, event) for event in events]
        ends = job.state in JOB_TERMINAL and old.job.state not in JOB_TERMINAL
        then = self.closing_ops(job) if ends else []
        if was is not waiting and (was is None or waiting is None or not _same_place(job, was, waiting)):
            if waiting is not None:
                first.append(self.dispatch_put(job, waiting, now_ms))
            if was is not None:
                then.append(self._dispatch_discard(job, was))
        if job.usage is not old.job.usage:
            first += usage_puts(self._t.meta, old, job, events)
        return CommitPlan(record=record, first=tuple(first), truth=tuple(truth), then=(*then, *due_then))

    def closing_ops(self, job: Job) -> list[Op]:
        """What is left to do once a job has ended. May be repeated at will.

        The row that schedules the job's deletion comes last: if the job is deleted while another writer is at
        work on it, what that writer wrote is found through this row and removed.
        """
        completed_at_ms = job.completed_at_ms or job.updated_at_ms
        lane = lane_partition(job.lane)
        ops = [self.slot_discard(job.tenant_norm, job.job_id), *self.list_puts(job)]
        if not self._spans:
            ops += self.search_puts(job)  # a crash may have left them out as the job was created
        ops += self.ended_puts(job)
        if job.state is JobState.FAILED_FINAL:
            key = newest_first_key(completed_at_ms, job.job_id)
            ops.append(put(self._t.dlq, lane, key, encode(_ended_row(job))))
        ops += first_try(self._t, job)
        kept = RetentionRow(
            tenant_norm=job.tenant_norm,
            idempotency_hash=job.idempotency_hash,
            created_at_ms=job.created_at_ms,
            ended=job.state.value if job.state in LISTED_ENDS else None,
            names=search_names(job),
        )
        ops.append(put(self._t.retention, lane, time_key(completed_at_ms, job.job_id), encode(kept)))
        return ops

    def dlq_discard(self, job: Job) -> Op:
        key = newest_first_key(job.completed_at_ms or job.updated_at_ms, job.job_id)
        return discard(self._t.dlq, lane_partition(job.lane), key)

    def dlq_left_put(self, job: Job) -> Op:
        """Says that the job was taken up again, so that closing writes repeated later do not bring its row
        back."""
        return put(
            self._t.dlq, dlq_left_partition(job.lane), job.job_id, encode(_list_row(job, state=job.state))
        )

    def due_put(
        self,
        job: Job,
        at_ms: int,
        now_ms: int,
        *,
        announces: Outbox | None = None,
        version: int | None = None,
        passed_ms: int | None = None,
    ) -> Op:
        """`version`: the one that the row waits for, where it is not yet the job's."""
        row = DueRow(
            version=job.version if version is None else version,
            written_at_ms=now_ms,
            tenant_norm=job.tenant_norm,
            created_at_ms=job.created_at_ms,
            service=None if announces is None else announces.service,
            dispatch_at_ms=None if announces is None else rank_ms(job, announces),
            passed_ms=passed_ms,
        )
        return put(self._t.due, lane_partition(job.lane), time_key(at_ms, job.job_id), encode(row))

    def due_put_again(self, record: JobRecord, now_ms: int) -> Op:
        """The row on which an open job relies, when it was lost. It is found as one of a clock that ran ahead
        while anything is that it stands for, or the job would wait for the time that the clock said."""
        job, step, outbox = record.job, record.current, record.outbox
        written_at_ms = max(
            now_ms, 0 if step is None else step.updated_at_ms, 0 if outbox is None else outbox.updated_at_ms
        )
        return self.due_put(
            job,
            now_ms if job.due_at_ms is None else job.due_at_ms,
            written_at_ms,
            announces=outbox if is_dispatchable(record) else None,
        )

    def due_discard(self, lane: int, at_ms: int, job_id: str) -> Op:
        return discard(self._t.due, lane_partition(lane), time_key(at_ms, job_id))

    def places(self, record: JobRecord) -> set[tuple[str, str, str]]:
        """Where the due and dispatch rows of a job stand that it relies on; once it has ended, the row that
        its end put there for its closing writes, which the process that ended it may not have done."""
        job, found = record.job, set()
        due_at_ms = job.completed_at_ms if job.terminal else job.due_at_ms
        if due_at_ms is not None:
            found.add((self._t.due, lane_partition(job.lane), time_key(due_at_ms, job.job_id)))
        if record.outbox is not None and is_dispatchable(record):
            partition = dispatch_partition(record.outbox.service, record.outbox.lane)
            key = dispatch_key_of(job, record.outbox)
            found.add((self._t.dispatch, partition, key))
        return found

    def slot_put(self, job: Job) -> Op:
        return put(self._t.inflight, job.tenant_norm, job.job_id, encode(SlotRow(mode=job.mode.value)))

    def _new_slot(self, job: Job) -> Op:
        op = self.slot_put(job)
        return (
            op
            if self._slot_bounds is None
            else _replace(op, bounds=self._slot_bounds(job.tenant_norm, job.mode))
        )

    def slot_discard(self, tenant_norm: str, job_id: str) -> Op:
        return discard(self._t.inflight, tenant_norm, job_id)

    def list_puts(self, job: Job) -> list[Op]:
        key, month = newest_first_key(job.created_at_ms, job.job_id), month_of(job.created_at_ms)
        body = encode(_list_row(job, state=job.state if job.terminal else None))
        return [
            put(self._t.job_index, tenant_list(job.tenant_norm, month), key, body),
            put(self._t.job_index, lane_list(job.lane, month), key, body),
        ]

    def ended_puts(self, job: Job) -> list[Op]:
        """The lists of the state that the job ended in, where that has lists of its own."""
        if job.state not in LISTED_ENDS:
            return []
        key, month = newest_first_key(job.created_at_ms, job.job_id), month_of(job.created_at_ms)
        state, body = job.state.value, encode(_ended_row(job))
        return [
            put(self._t.job_index, ended_tenant_list(state, job.tenant_norm, month), key, body),
            put(self._t.job_index, ended_lane_list(state, job.lane, month), key, body),
        ]

    def search_puts(self, job: Job) -> list[Op]:
        """A row for each name by which the job is searched. They say nothing that changes."""
        names = search_names(job)
        if not names:
            return []
        partition, body = search_partition(job.lane), encode(_list_row(job, state=None))
        index, at_ms, job_id = self._t.job_index, job.created_at_ms, job.job_id
        return [put(index, partition, search_key(name, at_ms, job_id), body) for name in names]

    def list_discards(
        self,
        job_id: str,
        tenant_norm: str,
        lane: int,
        created_at_ms: int,
        *,
        ended: str | None = None,
        names: Sequence[str] = (),
    ) -> list[Op]:
        """`ended` and `names`: as in `RetentionRow`."""
        key, month = newest_first_key(created_at_ms, job_id), month_of(created_at_ms)
        partitions = [tenant_list(tenant_norm, month), lane_list(lane, month)]
        if ended is not None:
            partitions += [
                ended_tenant_list(ended, tenant_norm, month),
                ended_lane_list(ended, lane, month),
            ]
        index, searched = self._t.job_index, search_partition(lane)
        return [
            *(discard(index, partition, key) for partition in partitions),
            *(discard(index, searched, search_key(name, created_at_ms, job_id)) for name in names),
        ]

    def _due_moves(
        self,
        old: JobRecord,
        after: JobRecord,
        waiting: Outbox | None,
        events: Sequence[Event],
        now_ms: int,
        *,
        rearms: bool,
    ) -> tuple[list[Op], list[Op], int | None]:
        """A deadline that moved later costs nothing: the old row fires and is moved then."""
        job, armed_at_ms, version = after.job, old.job.due_at_ms, old.job.version + 1
        at_once = is_due_at_once(job, events)
        wanted_at_ms = next_due_ms(after, now_ms)
        if wanted_at_ms is None:
            armed = self._armed(job, armed_at_ms)
            if (self._spans and not at_once) or old.job.terminal:
                return [], armed, None
            # The closing writes come after the commit: a row that is due at once has them done if this
            # process dies. One that also stands for a workflow to notify stays until the workflow was
            # notified.
            row = self.due_put(job, now_ms, now_ms, version=version)
            swept = [] if at_once else [self.due_discard(job.lane, now_ms, job.job_id)]
            return [row], swept if armed_at_ms == now_ms else [*armed, *swept], None
        passed_ms, written_at_ms, step = None, now_ms, after.current
        if step is not None and step.updated_at_ms > now_ms + AHEAD_MS:
            # The row is found as one of a clock that ran ahead while anything in it is.
            written_at_ms = step.updated_at_ms
            wanted_at_ms, passed_ms = pulled_in_due(after, step, now_ms, wanted_at_ms)
        if at_once:
            wanted_at_ms = now_ms
        if armed_at_ms is not None:
            # A due alarm of the temporal engine is left for the reconciler, which answers it.
            is_past = job.engine is _TEMPORAL and not rearms
            stays = armed_at_ms <= wanted_at_ms and (is_past or now_ms < armed_at_ms)
            if stays or (armed_at_ms == wanted_at_ms and now_ms < armed_at_ms):
                return [], [], armed_at_ms
        is_under_way = step is not None and waiting is None and step.state in STEP_UNDER_WAY
        if is_under_way and passed_ms is None and not rearms and job.engine is not _TEMPORAL:
            wanted_at_ms = _due_for_later_steps_ms(after, wanted_at_ms, now_ms)
        row = self.due_put(
            job, wanted_at_ms, written_at_ms, announces=waiting, version=version, passed_ms=passed_ms
        )
        # One that is overdue and stays says when: should our clock run ahead, it is found by that.
        return [row], [] if armed_at_ms == wanted_at_ms else self._armed(job, armed_at_ms), wanted_at_ms

    def _armed(self, job: Job, at_ms: int | None) -> list[Op]:
        return [] if at_ms is None else [self.due_discard(job.lane, at_ms, job.job_id)]

    def dispatch_put(self, job: Job, outbox: Outbox, now_ms: int) -> Op:
        row = DispatchRow(
            version=job.version,
            written_at_ms=max(now_ms, outbox.updated_at_ms),  # where its own time was written
            step_id=outbox.step_id,
            attempt_no=outbox.attempt_no,
            lease_id=outbox.lease_id,
            due_at_ms=None if rank_ms(job, outbox) == outbox.due_at_ms else outbox.due_at_ms,
            request_type=job.request_type,
        )
        partition = dispatch_partition(outbox.service, outbox.lane)
        return put(self._t.dispatch, partition, dispatch_key_of(job, outbox), encode(row))

    def _dispatch_discard(self, job: Job, outbox: Outbox) -> Op:
        partition = dispatch_partition(outbox.service, outbox.lane)
        return discard(self._t.dispatch, partition, dispatch_key_of(job, outbox))


def _overtaken(old: Outbox | None, after: Outbox | None, events: Sequence[Event]) -> Outbox | None:
    """The row of an attempt whose result came before the note that it was published, if the same commit
    begins the next one: a record has only its latest row, so this one would wait in the ledger for ever."""
    if old is None or after is None or old.outbox_id == after.outbox_id:
        return None
    if old.state is not OutboxState.PENDING:
        return None
    for event in events:
        if event.type is Fact.DIRECTIVE_PUBLISHED and event.step_id == old.step_id:
            at_ms = event.at_ms
            return _replace(old, state=OutboxState.SENT, sent_at_ms=at_ms, updated_at_ms=at_ms)
    return None


def dispatch_key_of(job: Job, outbox: Outbox) -> str:
    return dispatch_key(job.tenant_norm, rank_ms(job, outbox), job.job_id)


def _same_place(job: Job, one: Outbox, other: Outbox) -> bool:
    """Whether the dispatch index holds both in one row."""
    same_lane = one.service == other.service and one.lane == other.lane
    return same_lane and rank_ms(job, one) == rank_ms(job, other) and one.due_at_ms == other.due_at_ms


def search_names(job: Job) -> tuple[str, ...]:
    """What a client calls the job. A correlation id that was made here is part of the job's id."""
    names: tuple[str, ...] = () if job.doc_id is None else (search_name(job.doc_id),)
    if job.correlation_id in job.job_id or not job.correlation_id:
        return names
    correlation = search_name(job.correlation_id)
    return names if correlation in names else (*names, correlation)


def _ended_row(job: Job) -> ListRow:
    return _replace(_list_row(job, state=job.state), error_code=job.error_code)


def _list_row(job: Job, *, state: JobState | None) -> ListRow:
    return ListRow(
        job_id=job.job_id,
        tenant_norm=job.tenant_norm,
        request_type=job.request_type,
        created_at_ms=job.created_at_ms,
        lane=job.lane,
        state=None if state is None else state.value,
    )


def _due_for_later_steps_ms(record: JobRecord, at_ms: int, now_ms: int) -> int:
    """A row that is due by the time when the shortest lease of the steps to come would end, if it began now,
    stays when that step begins: a job whose steps are quick writes no other."""
    index = record.job.current_step_index or 0
    return min((at_ms, *(now_ms + step.policy.lease_ms for step in record.steps[index + 1 :])))
