"""Load, decide, commit, and tell who is waiting."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Protocol

import msgspec

from lucius.core.decide import decide
from lucius.core.draft import Decision, Outcome
from lucius.core.inputs import Input
from lucius.core.model import JobRecord
from lucius.core.refusal import Code, Refused
from lucius.ledger.commit_listeners import CommitListeners
from lucius.ledger.direct_dispatch import DirectDispatch
from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.rows import Loaded
from lucius.ledger.store import Conflict, StoreUnavailable
from lucius.telemetry.context import Subject, forget_subject, name_subject

TRIES_MAX = 100

_EVIDENCE = frozenset({Outcome.DUPLICATE, Outcome.RECORDED, Outcome.STALE})
_UNCHANGED = Outcome.UNCHANGED  # looked up once: the members of an enum are slow to reach


class Applied(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    record: JobRecord
    outcome: Outcome
    stop: bool


class _Turns:
    """Those who write to one job one after the other, in the order in which they came. Without it, who has
    lost a race would lose the next one to those who come new and need not read again."""

    __slots__ = ("lock", "takers")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.takers = 0


class InputHandler(Protocol):
    """Whoever takes what happens to a job."""

    async def apply(self, job_id: str, given: Input) -> Applied | Refused: ...


class JobWriter:
    def __init__(
        self,
        ledger: JobLedger,
        listeners: CommitListeners,
        direct_dispatch: DirectDispatch | None = None,
        *,
        now_ms: Callable[[], int],
        new_lease_id: Callable[[], str],
    ) -> None:
        self._ledger = ledger
        self._listeners = listeners
        self._direct_dispatch = direct_dispatch or DirectDispatch()
        self._now_ms = now_ms
        self._new_lease_id = new_lease_id
        self._turns: dict[str, _Turns] = {}  # of jobs that several write to at the moment
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
        turns.takers += 1
        try:
            async with turns.lock:
                return await self._insist(subject, given)
        finally:
            turns.takers -= 1
            if not turns.takers:
                del self._turns[job_id]

    async def _insist(self, subject: Subject, given: Input) -> Applied | Refused:
        for tried in range(TRIES_MAX):
            if (applied := await self._try(subject, given, fresh=tried > 0)) is not None:
                return applied
        raise StoreUnavailable(f"{subject.job_id} changed {TRIES_MAX} times while it was being written")

    async def _try(self, subject: Subject, given: Input, *, fresh: bool) -> Applied | Refused | None:
        """None if somebody else was quicker."""
        job_id = subject.job_id
        loaded = await self._ledger.load(job_id, fresh=fresh)
        if loaded is None:
            return Refused(Code.JOB_NOT_FOUND, f"there is no job {job_id}")
        subject.job = loaded.record.job
        now_ms = self._now_ms()
        decision = decide(loaded.record, given, now_ms=now_ms, lease_id=self._new_lease_id())
        writes = isinstance(decision, Decision) and decision.outcome is not _UNCHANGED
        if not writes and loaded.cached and not loaded.record.job.terminal:
            # A decision that writes nothing is not checked by a commit: look at the store first.
            return await self._try(subject, given, fresh=True)
        if isinstance(decision, Refused):
            return decision
        if not writes:
            return Applied(record=loaded.record, outcome=decision.outcome, stop=decision.stop)
        try:
            return await self._write(loaded, decision, now_ms)
        except Conflict:
            return None

    async def _write(self, loaded: Loaded, decision: Decision, now_ms: int) -> Applied:
        record = decision.record
        if loaded.record.job.terminal and decision.outcome in _EVIDENCE:
            for event in decision.events:
                await self._ledger.append_evidence(loaded.record, event)
            record = loaded.record
        else:
            decision, hand = self._direct_dispatch.reach(loaded.record, decision, now_ms)
            try:
                record = (await self._ledger.commit(loaded, decision, now_ms)).record
            except BaseException:
                if hand is not None:
                    hand.release()
                raise
            if hand is not None:
                hand.deliver(record)
        self._listeners.tell(loaded.record, record, decision.events)
        return Applied(record=record, outcome=decision.outcome, stop=decision.stop)
