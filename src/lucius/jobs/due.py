"""What to do with a row of the due index that has come due, or one of the dispatch index that fits no job.

A row is moved, never just deleted. The handler loads the job of a row it meets: for an open one it does what
is due and writes the next row; for an ended one it repeats the chores; for one that was announced but is not
there yet it waits, and after a grace period fences it off, so that a slow writer fails instead of being
forgotten.

A row of a job of the temporal engine is an alarm: its workflow is told where the job stands, and only then
is the row moved or, once the job has ended, removed. While an open job has no workflow its row stays, so that
the process that starts workflows finds it. A handler without a signaller leaves these rows alone.
"""

from collections.abc import Callable
from enum import StrEnum

import structlog

from lucius.core.decide import is_dispatchable
from lucius.core.draft import Outcome
from lucius.core.due import deadline_of, pulled_in_due, ran_ahead
from lucius.core.inputs import DispatchNow, Tick
from lucius.core.model import JobRecord
from lucius.core.states import Engine, StepState
from lucius.jobs.reply_backlog import DeadlineGrace
from lucius.jobs.workflows import WorkflowSignaller, WorkflowsUnavailable, signal_position
from lucius.jobs.writer import Applied, JobWriter
from lucius.ledger.commit_plan import GRACE_MS
from lucius.ledger.indexes import DispatchEntry, DueEntry, Indexes
from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.rows import Loaded
from lucius.ledger.store import Conflict
from lucius.telemetry.context import Subject

# How long workflows are left in peace after they could not be reached.
QUIET_MS = 1_000
FIRST_SEEN_MAX = 10_000

log = structlog.get_logger("lucius.due")


class DueOutcome(StrEnum):
    ACTED = "acted"
    MOVED = "moved"
    CHORES = "chores"
    WAITING = "waiting"
    CLEARED = "cleared"
    LOST_RACE = "lost_race"
    NOT_OURS = "not_ours"  # the row is left to another process


class DueHandler:
    def __init__(
        self,
        ledger: JobLedger,
        indexes: Indexes,
        writer: JobWriter,
        *,
        now_ms: Callable[[], int],
        signaller: WorkflowSignaller | None = None,
        grace: DeadlineGrace | None = None,
    ) -> None:
        """`grace`: with attempts whose time is over; None: no answer is waited for beyond it."""
        self._ledger = ledger
        self._signaller = signaller
        self._grace = grace
        self._quiet_until_ms = 0
        self._first_seen: dict[str, int] = {}  # rows that a clock that ran ahead has written, by their ETag
        self._indexes = indexes
        self._writer = writer
        self._now_ms = now_ms

    async def meet(self, entry: DueEntry) -> DueOutcome:
        try:
            return await self._meet(entry)
        except Conflict:
            return DueOutcome.LOST_RACE  # the row is met again if it is still there

    async def _meet(self, entry: DueEntry) -> DueOutcome:
        now_ms = self._now_ms()
        loaded = await self._ledger.load(entry.job_id, fresh=True)
        if loaded is None:
            return await self._never_created(entry, now_ms)
        if loaded.record.job.version < entry.row.version:
            if self._is_young(entry, now_ms):
                return DueOutcome.WAITING
            loaded = await self._ledger.fence(loaded, now_ms)
        job = loaded.record.job
        has_workflow = job.engine is Engine.TEMPORAL
        if has_workflow and self._signaller is None:
            return DueOutcome.NOT_OURS
        if job.terminal:
            await self._ledger.do_chores(loaded.record)
            if has_workflow and await self._signal(loaded.record) is None:
                return DueOutcome.WAITING
            await self._drop(entry)
            return DueOutcome.CHORES
        if job.due_at_ms != entry.at_ms:
            await self._drop(entry)
            return DueOutcome.CLEARED
        if entry.at_ms > now_ms:
            return await self._pull_in(loaded, now_ms)
        return await (self._move_workflow if has_workflow else self._tick)(loaded, entry, now_ms)

    async def _pull_in(self, loaded: Loaded, now_ms: int) -> DueOutcome:
        """The row is not due yet by our clock, and was written by one that ran ahead. What waits for a worker
        takes its place among those that wait now; deadlines run from now on."""
        record = loaded.record
        outbox, step = record.outbox, record.current
        early = outbox is not None and outbox.due_at_ms > now_ms and ran_ahead(outbox.updated_at_ms, now_ms)
        if early and await self._change(loaded, DispatchNow(), now_ms) is not None:
            return DueOutcome.ACTED
        due_at_ms = record.job.due_at_ms
        if step is None or due_at_ms is None or not ran_ahead(step.updated_at_ms, now_ms):
            return DueOutcome.WAITING
        if pulled_in_due(record, step, now_ms, due_at_ms)[0] == due_at_ms:
            return DueOutcome.WAITING
        waits_for_workflow = record.job.engine is Engine.TEMPORAL and step.state is StepState.FAILED_RETRY
        if waits_for_workflow and not await self._signal(record):
            return DueOutcome.WAITING
        await self._ledger.rearm(loaded, now_ms)
        return DueOutcome.MOVED

    async def _move_workflow(self, loaded: Loaded, entry: DueEntry, now_ms: int) -> DueOutcome:
        """Does what an alarm asks for. A row that stays is met again."""
        after = await self._change(loaded, _tick_of(loaded.record, entry, now_ms), now_ms)
        if after is not None:
            await self._signal(after)
            return DueOutcome.ACTED
        if not await self._signal(loaded.record):
            return DueOutcome.WAITING
        await self._ledger.rearm(loaded, now_ms)
        return DueOutcome.MOVED

    async def _signal(self, record: JobRecord) -> bool | None:
        """Whether the job has a workflow, which knows by now where the job stands; None: who can tell?"""
        if self._signaller is None or self._now_ms() < self._quiet_until_ms:
            return None
        try:
            return await signal_position(self._signaller, record, now_ms=self._now_ms())
        except WorkflowsUnavailable as fault:
            # One answer is enough for all rows of this round.
            self._quiet_until_ms = self._now_ms() + QUIET_MS
            ids = Subject(record.job.job_id, record.current, record.job).ids()
            log.warning("workflow_not_told", **ids, error=str(fault))
            return None

    async def _tick(self, loaded: Loaded, entry: DueEntry, now_ms: int) -> DueOutcome:
        if self._grace is not None and self._grace.puts_off(loaded.record, now_ms):
            return DueOutcome.WAITING
        if await self._change(loaded, _tick_of(loaded.record, entry, now_ms), now_ms) is not None:
            return DueOutcome.ACTED
        await self._ledger.rearm(loaded, now_ms)
        return DueOutcome.MOVED

    async def _change(self, loaded: Loaded, given: DispatchNow | Tick, now_ms: int) -> JobRecord | None:
        """The job as it is after `given`; None if that changes nothing."""
        applied = await self._writer.apply_to(loaded, given, now_ms)
        assert isinstance(applied, Applied), "the clock is never refused"
        return None if applied.outcome is Outcome.UNCHANGED else applied.record

    async def _never_created(self, entry: DueEntry, now_ms: int) -> DueOutcome:
        if self._is_young(entry, now_ms):
            return DueOutcome.WAITING
        if not await self._ledger.give_up(entry.job_id, entry.lane, entry.row, now_ms):
            return DueOutcome.LOST_RACE
        await self._drop(entry)
        return DueOutcome.CLEARED

    async def _drop(self, entry: DueEntry) -> None:
        """Removes a due row, and first the dispatch row announced with it if the job does not want that."""
        announced = await self._indexes.announced_dispatch(entry)
        if announced is not None:
            await self._meet_dispatch(announced)
        await self._indexes.drop_due(entry)

    async def meet_undeliverable(self, entry: DispatchEntry) -> DueOutcome:
        """A dispatch row whose job did not want it handed out: is it stale, or early?"""
        try:
            return await self._meet_dispatch(entry)
        except Conflict:
            return DueOutcome.LOST_RACE

    async def _meet_dispatch(self, entry: DispatchEntry) -> DueOutcome:
        now_ms, row = self._now_ms(), entry.row
        young = self._is_young(entry, now_ms)
        loaded = await self._ledger.load(entry.job_id, fresh=True)
        if loaded is None:
            if young:
                return DueOutcome.WAITING
            if not await self._ledger.bury(entry.job_id, row.version, now_ms):
                return DueOutcome.LOST_RACE
        elif loaded.record.job.version < row.version:
            if young:
                return DueOutcome.WAITING
            loaded = await self._ledger.fence(loaded, now_ms)
        if loaded is not None and self._wanted(loaded, entry):
            if _names_attempt(loaded, entry):
                return DueOutcome.WAITING
            await self._indexes.mend_dispatch(entry, loaded.record, now_ms)
            return DueOutcome.MOVED
        await self._indexes.drop_dispatch(entry)
        return DueOutcome.CLEARED

    def _is_young(self, entry: DueEntry | DispatchEntry, now_ms: int) -> bool:
        """Whether the commit that a row announces may still come. A row that was written by a clock that ran
        ahead is as old as the time since it was first seen."""
        written_at_ms = entry.row.written_at_ms
        if ran_ahead(written_at_ms, now_ms):
            if entry.etag not in self._first_seen and len(self._first_seen) >= FIRST_SEEN_MAX:
                del self._first_seen[next(iter(self._first_seen))]
            written_at_ms = self._first_seen.setdefault(entry.etag, now_ms)
        return now_ms - written_at_ms < GRACE_MS

    def _wanted(self, loaded: Loaded, entry: DispatchEntry) -> bool:
        outbox = loaded.record.outbox
        return (
            outbox is not None
            and is_dispatchable(loaded.record)
            and (outbox.service, outbox.lane, outbox.due_at_ms) == (entry.service, entry.lane, entry.at_ms)
        )


def _tick_of(record: JobRecord, entry: DueEntry, now_ms: int) -> Tick:
    """The deadline that a row was pulled in for is over with it, unless another one has been set since. A
    process whose own clock runs as far ahead as the one that set the deadline goes by its clock."""
    passed_ms, deadline, step = entry.row.passed_ms, deadline_of(record), record.current
    if passed_ms is None or deadline is None or step is None or deadline.at_ms != passed_ms:
        return Tick()
    return Tick(passed_ms=passed_ms) if ran_ahead(step.updated_at_ms, now_ms) else Tick()


def _names_attempt(loaded: Loaded, entry: DispatchEntry) -> bool:
    outbox = loaded.record.outbox
    return outbox is not None and entry.attempt.is_of(outbox)
