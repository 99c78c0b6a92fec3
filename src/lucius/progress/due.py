"""What to do with a row of the due index that has come due, or one of the dispatch index that fits no job.

A row is moved, never just deleted. Whoever meets one loads the job: an open one gets what is due done and its
next row written; an ended one gets its chores repeated; one that was announced but is not there yet is waited
for, and after a grace period fenced off, so that a slow writer fails instead of being forgotten.

A row of a job of the temporal engine is an alarm: its workflow is told where the job stands, and only then
is the row moved or, once the job has ended, removed. While an open job has no workflow its row stays, so that
whoever starts workflows finds it. A keeper that cannot tell workflows anything leaves these rows alone.
"""

from collections.abc import Callable
from enum import StrEnum

import structlog

from lucius.core.decide import decide, is_dispatchable
from lucius.core.draft import Decision, Outcome
from lucius.core.due import deadline_of, pulled_in_due, ran_ahead
from lucius.core.inputs import DispatchNow, Tick
from lucius.core.model import JobRecord
from lucius.core.states import Engine, StepState
from lucius.ledger.indexes import DispatchEntry, DueEntry, Indexes
from lucius.ledger.jobs import JobLedger
from lucius.ledger.plan import GRACE_MS
from lucius.ledger.rows import Loaded
from lucius.ledger.store import Conflict
from lucius.ledger.watchers import Watchers
from lucius.progress.heard import Patience
from lucius.progress.workflows import Signaller, WorkflowsUnavailable, tell_position

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


class DueKeeper:
    def __init__(
        self,
        ledger: JobLedger,
        indexes: Indexes,
        watchers: Watchers,
        *,
        now_ms: Callable[[], int],
        new_lease_id: Callable[[], str],
        signaller: Signaller | None = None,
        patience: Patience | None = None,
    ) -> None:
        """`patience`: with attempts whose time is over; None: no answer is waited for beyond it."""
        self._ledger = ledger
        self._signaller = signaller
        self._patience = patience
        self._quiet_until_ms = 0
        self._first_seen: dict[str, int] = {}  # rows that a clock that ran ahead has written, by their ETag
        self._indexes = indexes
        self._watchers = watchers
        self._now_ms = now_ms
        self._new_lease_id = new_lease_id

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
            if has_workflow and await self._tell(loaded.record) is None:
                return DueOutcome.WAITING
            await self._drop(entry)
            return DueOutcome.CHORES
        if job.due_at_ms != entry.at_ms:
            await self._drop(entry)
            return DueOutcome.CLEARED
        if entry.at_ms > now_ms:
            return await self._pull_in(loaded, now_ms)
        return await (self._ring if has_workflow else self._tick)(loaded, entry, now_ms)

    async def _pull_in(self, loaded: Loaded, now_ms: int) -> DueOutcome:
        """The row is not due yet by our clock, and was written by one that ran ahead. What waits for a worker
        takes its place among those that wait now; deadlines run from now on."""
        record = loaded.record
        outbox, step = record.outbox, record.current
        if outbox is not None and outbox.due_at_ms > now_ms and ran_ahead(outbox.updated_at_ms, now_ms):
            decision = decide(record, DispatchNow(), now_ms=now_ms, lease_id="")
            assert isinstance(decision, Decision)
            if decision.outcome is not Outcome.UNCHANGED:
                after = await self._ledger.commit(loaded, decision, now_ms)
                self._watchers.tell(record, after.record, decision.events)
                return DueOutcome.ACTED
        due_at_ms = record.job.due_at_ms
        if step is None or due_at_ms is None or not ran_ahead(step.updated_at_ms, now_ms):
            return DueOutcome.WAITING
        if pulled_in_due(record, step, now_ms, due_at_ms)[0] == due_at_ms:
            return DueOutcome.WAITING
        waits_for_workflow = record.job.engine is Engine.TEMPORAL and step.state is StepState.FAILED_RETRY
        if waits_for_workflow and not await self._tell(record):
            return DueOutcome.WAITING
        await self._ledger.rearm(loaded, now_ms)
        return DueOutcome.MOVED

    async def _ring(self, loaded: Loaded, entry: DueEntry, now_ms: int) -> DueOutcome:
        """Does what an alarm asks for. A row that stays is met again."""
        given = _tick_of(loaded.record, entry, now_ms)
        decision = decide(loaded.record, given, now_ms=now_ms, lease_id=self._new_lease_id())
        assert isinstance(decision, Decision)
        if decision.outcome is not Outcome.UNCHANGED:
            after = await self._ledger.commit(loaded, decision, now_ms)
            self._watchers.tell(loaded.record, after.record, decision.events)
            await self._tell(after.record)
            return DueOutcome.ACTED
        if not await self._tell(loaded.record):
            return DueOutcome.WAITING
        await self._ledger.rearm(loaded, now_ms)
        return DueOutcome.MOVED

    async def _tell(self, record: JobRecord) -> bool | None:
        """Whether the job has a workflow, which knows by now where the job stands; None: who can tell?"""
        if self._signaller is None or self._now_ms() < self._quiet_until_ms:
            return None
        try:
            return await tell_position(self._signaller, record, now_ms=self._now_ms())
        except WorkflowsUnavailable as fault:
            # One answer is enough for all rows of this round.
            self._quiet_until_ms = self._now_ms() + QUIET_MS
            log.warning("workflow_not_told", jobId=record.job.job_id, error=str(fault))
            return None

    async def _tick(self, loaded: Loaded, entry: DueEntry, now_ms: int) -> DueOutcome:
        if self._patience is not None and self._patience.puts_off(loaded.record, now_ms):
            return DueOutcome.WAITING
        given = _tick_of(loaded.record, entry, now_ms)
        decision = decide(loaded.record, given, now_ms=now_ms, lease_id=self._new_lease_id())
        assert isinstance(decision, Decision)
        if decision.outcome is Outcome.UNCHANGED:
            await self._ledger.rearm(loaded, now_ms)
            return DueOutcome.MOVED
        after = await self._ledger.commit(loaded, decision, now_ms)
        self._watchers.tell(loaded.record, after.record, decision.events)
        return DueOutcome.ACTED

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
    outbox, row = loaded.record.outbox, entry.row
    return outbox is not None and (outbox.step_id, outbox.attempt_no, outbox.lease_id) == (
        row.step_id,
        row.attempt_no,
        row.lease_id,
    )
