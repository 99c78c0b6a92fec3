"""The one shape of a write: load, decide, dispatch directly, commit, call the listeners.

`apply` repeats it until the commit holds; `apply_to` tries once, on a job that the caller has read; `create`
begins a job."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Protocol

import msgspec

from lucius.core.decide import create, decide
from lucius.core.draft import Decision, Outcome
from lucius.core.inputs import Input
from lucius.core.model import Job, JobRecord, Json, Step
from lucius.core.refusal import Code, Refused
from lucius.jobs.direct_dispatch import ReserveWaiter, no_waiter, with_hand_out
from lucius.jobs.reply_backlog import StandstillClock
from lucius.ledger.commit_listeners import CommitListeners
from lucius.ledger.idempotency import KeyClaim
from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.rows import Loaded
from lucius.ledger.store import Conflict, StoreUnavailable
from lucius.telemetry.context import Subject, forget_subject, name_subject

TRIES_MAX = 100

_EVIDENCE = frozenset({Outcome.DUPLICATE, Outcome.RECORDED, Outcome.STALE, Outcome.OTHER_TENANT})
_UNCHANGED = Outcome.UNCHANGED  # looked up once: the members of an enum are slow to reach


class Applied(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    record: JobRecord
    outcome: Outcome
    stop: bool


class _Turns:
    """The writes to one job of this process, one after the other in the order in which they came. Without it,
    a write that lost a race would lose the next one to newcomers, which need not read again."""

    __slots__ = ("callers", "lock")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.callers = 0


class InputHandler(Protocol):
    """Takes what happens to a job: the writer, or an engine in front of it."""

    async def apply(self, job_id: str, given: Input) -> Applied | Refused: ...


class JobWriter:
    def __init__(
        self,
        ledger: JobLedger,
        listeners: CommitListeners,
        *,
        now_ms: Callable[[], int],
        new_lease_id: Callable[[], str],
        beat: StandstillClock | None = None,
    ) -> None:
        """`beat`: is told how long a decision waited for its commit."""
        self._beat = beat
        self._ledger = ledger
        self._listeners = listeners
        self._now_ms = now_ms
        self._new_lease_id = new_lease_id
        self.reserve_waiter: ReserveWaiter = no_waiter
        """Set where a dispatcher hands out from the ledger: finds a worker that waits for an attempt."""
        self._turns: dict[str, _Turns] = {}  # of jobs with several writes under way
        self.outcomes: Counter[tuple[str, str]] = Counter()
        """How often which input had which outcome, or was refused with which code."""

    async def apply(self, job_id: str, given: Input) -> Applied | Refused:
        subject = Subject(job_id, given)
        named = name_subject(subject)
        try:
            applied = await self._apply(subject, given)
        finally:
            forget_subject(named)
        outcome = applied.code if isinstance(applied, Refused) else applied.outcome
        self.outcomes[(type(given).__name__, outcome)] += 1
        return applied

    async def _apply(self, subject: Subject, given: Input) -> Applied | Refused:
        job_id = subject.job_id
        turns = self._turns.get(job_id)
        if turns is None:
            if (applied := await self._try(subject, given, fresh=False)) is not None:
                return applied
            turns = self._turns.setdefault(job_id, _Turns())
        turns.callers += 1
        try:
            async with turns.lock:
                return await self._insist(subject, given)
        finally:
            turns.callers -= 1
            if not turns.callers:
                del self._turns[job_id]

    async def _insist(self, subject: Subject, given: Input) -> Applied | Refused:
        for tried in range(TRIES_MAX):
            if (applied := await self._try(subject, given, fresh=tried > 0)) is not None:
                return applied
        raise StoreUnavailable(f"{subject.job_id} changed {TRIES_MAX} times while it was being written")

    async def _try(self, subject: Subject, given: Input, *, fresh: bool) -> Applied | Refused | None:
        """None if another writer was quicker."""
        job_id = subject.job_id
        loaded = await self._ledger.load(job_id, fresh=fresh)
        if loaded is None:
            return Refused(Code.JOB_NOT_FOUND, f"there is no job {job_id}")
        subject.job = loaded.record.job
        try:
            applied = await self.apply_to(loaded, given, self._now_ms())
        except Conflict:
            return None
        wrote = isinstance(applied, Applied) and applied.outcome is not _UNCHANGED
        if not wrote and loaded.cached and not loaded.record.job.terminal:
            # A decision that writes nothing is not checked by a commit: look at the store first.
            return await self._try(subject, given, fresh=True)
        return applied

    async def apply_to(self, loaded: Loaded, given: Input, now_ms: int) -> Applied | Refused:
        """One try, on a job that the caller has just read. Raises `Conflict` if it has changed since."""
        decision = decide(loaded.record, given, now_ms=now_ms, lease_id=self._new_lease_id())
        if isinstance(decision, Refused):
            return decision
        if decision.outcome is _UNCHANGED:
            return Applied(record=loaded.record, outcome=decision.outcome, stop=decision.stop)
        if loaded.record.job.terminal and decision.outcome in _EVIDENCE:
            for event in decision.events:
                await self._ledger.append_evidence(loaded.record, event)
            record = loaded.record
            self._listeners.notify(loaded.record, record, decision.events)
        else:
            record = await self._commit(loaded, decision, now_ms)
        return Applied(record=record, outcome=decision.outcome, stop=decision.stop)

    async def create(
        self,
        job: Job,
        steps: tuple[Step, ...],
        claim: KeyClaim | None,
        *,
        now_ms: int,
        adopted: dict[str, Json] | None = None,
    ) -> JobRecord:
        """Creates a job and claims its idempotency key; raises `KeyTaken` if another job was faster.

        `claim`: None if the key was claimed for this job by a process that got no further; then `Conflict`
        says that the job has been created meanwhile. `adopted`: the late success that the job begins with.
        """
        decision = create(job, steps, now_ms=now_ms, lease_id=self._new_lease_id(), adopted=adopted)
        return await self._commit(claim, decision, now_ms)

    async def _commit(self, before: Loaded | KeyClaim | None, decision: Decision, now_ms: int) -> JobRecord:
        """Writes a decision, in the same commit hands out the attempt it begins if a worker waits for it,
        and calls the listeners. `before`: what was decided upon; of a new job, the claim of its key."""
        known = before.record if isinstance(before, Loaded) else None
        decision, waiter = with_hand_out(self.reserve_waiter, known, decision, now_ms)
        try:
            if isinstance(before, Loaded):
                written = await self._ledger.commit(before, decision, now_ms)
            elif before is not None:
                written = await self._ledger.create(decision, before, now_ms)
            else:
                written = await self._ledger.finish(decision, now_ms)
        except BaseException:
            if waiter is not None:
                waiter.release()
            raise
        finally:
            if self._beat is not None:  # also of a commit that took effect and gave no answer
                self._beat.committed(now_ms)
        if waiter is not None:
            waiter.deliver(written.record)
        self._listeners.notify(known, written.record, decision.events)
        return written.record
