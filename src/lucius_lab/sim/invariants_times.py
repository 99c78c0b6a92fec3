"""When attempts are given up, held against the true time, which no process knows.

In: each job before and after a commit, whose commit it was, and when; which clock each life of a process
began with, and when one stood still. Out: nothing, or a `Violation`. What a process does that began with a
wrong clock is not judged.
"""

import msgspec

from lucius.core.clock import SLEW_PARTS
from lucius.core.model import JobRecord
from lucius.core.states import STEP_UNDER_WAY, StepState
from lucius_lab.sim.watch import Violation

_CODES = frozenset({"ACK_TIMEOUT", "LEASE_EXPIRED"})
_LOST = frozenset({StepState.FAILED_RETRY, StepState.FAILED_FINAL})
OFFSET_MS_MAX = 2_000  # by so much the clocks of a deployment may differ
SLEWED_MS_MAX = 1_500  # by so much a clock that follows one that was set may be off after a while
# Looks of a simulation are rare: a standstill that ends before the next look is not noticed.
STILL_MS_MIN = 9_500
ANSWERS_MS = 5_000
# A commit shows that its process stood still since it was decided, the first time for sure. The process gives
# answers their time, also where a deadline passes up to two seconds later; its clock may be slewed.
COMMIT_STILL_MS_MIN = 1_500
PASSES_MS_MAX = 500
ROUNDED_MS = 1
READ_MS_MAX = 100  # from a look at the clock to the commit of what was decided by it


class _Standstill(msgspec.Struct, frozen=True, gc=False):
    from_ms: int
    until_ms: int
    is_first: bool  # of this life of the process


class _TimeAllowance(msgspec.Struct, frozen=True, gc=False):
    """An attempt was given time: how much, when in truth, and by whose clock. `offset_ms`: how far that was
    off when the process began; `slewed_ms`: how far it was off by then, as it follows clocks that are set.
    `across`: the process stood still between deciding that and committing it."""

    span_ms: int
    at_ms: int
    offset_ms: int
    slewed_ms: int
    across: _Standstill | None


_NEVER = _Standstill(0, 0, False)


class ClockInvariants:
    def __init__(self) -> None:
        self._offsets: dict[str, int] = {}
        self._still: dict[str, _Standstill] = {}
        self._given: dict[str, _TimeAllowance] = {}
        self._began_ms = 0

    def started(self, name: str, offset_ms: int) -> None:
        self._offsets[name] = offset_ms
        self._still.pop(name, None)

    def stood_still(self, name: str, from_ms: int, until_ms: int) -> None:
        before = self._still.get(name)
        longer = before is not None and before.from_ms == from_ms
        is_first = before is None or (longer and before.is_first)
        self._still[name] = _Standstill(from_ms, until_ms, is_first)

    def changed(self, before: JobRecord, after: JobRecord, by: str, now_ms: int) -> None:
        self._began_ms = self._began_ms or now_ms
        if before.steps is after.steps:
            return
        job_id = after.job.job_id
        for step, later in zip(before.steps, after.steps, strict=True):
            if later is step or (later.state, later.updated_at_ms) == (step.state, step.updated_at_ms):
                continue
            if later.state in STEP_UNDER_WAY and later.lease_expires_at_ms is not None:
                given = self._allowance(later.updated_at_ms, later.lease_expires_at_ms, by, now_ms)
                self._given[job_id] = given
            elif step.state in STEP_UNDER_WAY and later.state in _LOST and later.last_error_code in _CODES:
                self._given_up(job_id, by, now_ms, step.lease_expires_at_ms or 0, later.updated_at_ms)

    def _allowance(self, decided_ms: int, deadline_ms: int, by: str, now_ms: int) -> _TimeAllowance:
        span_ms, offset_ms = deadline_ms - decided_ms, self._offsets.get(by, 0)
        still, slewed_max_ms = self._still.get(by, _NEVER), self._slewed_max_ms(now_ms)
        if self._slept(by, decided_ms, now_ms):
            at_ms = min(now_ms, still.from_ms)
            return _TimeAllowance(span_ms, at_ms, offset_ms, offset_ms - slewed_max_ms, still)
        return _TimeAllowance(span_ms, now_ms, offset_ms, self._slewed(by, decided_ms, now_ms), None)

    def _slept(self, by: str, decided_ms: int, now_ms: int) -> bool:
        """Between deciding and committing."""
        still = self._still.get(by, _NEVER)
        decided_at_ms = decided_ms - self._offsets.get(by, 0)
        return still.until_ms <= now_ms + ROUNDED_MS and decided_at_ms < still.until_ms - SLEWED_MS_MAX

    def _slewed_max_ms(self, now_ms: int) -> int:
        """How far a clock that only ever follows can have come from where it began."""
        return (now_ms - self._began_ms) // SLEW_PARTS + READ_MS_MAX

    def _slewed(self, by: str, decided_ms: int, now_ms: int) -> int:
        """How far the clock was off by which this was decided; not more than following explains."""
        offset_ms, most_ms = self._offsets.get(by, 0), self._slewed_max_ms(now_ms)
        return min(max(decided_ms - now_ms, offset_ms - most_ms), offset_ms + most_ms)

    def _given_up(self, job_id: str, by: str, now_ms: int, deadline_ms: int, decided_ms: int) -> None:
        given, offset_ms = self._given.get(job_id), self._offsets.get(by, 0)
        if given is None or abs(offset_ms) > OFFSET_MS_MAX or abs(given.offset_ms) > OFFSET_MS_MAX:
            return
        if self._slept(by, decided_ms, now_ms):
            slewed_ms = offset_ms + self._slewed_max_ms(now_ms)
        else:
            slewed_ms = self._slewed(by, decided_ms, now_ms)
        # A job's times never run backwards, so a clock that is behind is not always seen in them.
        apart_ms = max(slewed_ms - given.slewed_ms + READ_MS_MAX, offset_ms - given.offset_ms + SLEWED_MS_MAX)
        slack_ms = apart_ms + given.span_ms // SLEW_PARTS
        early_ms = given.span_ms - slack_ms - (now_ms - given.at_ms)
        if early_ms > 0:
            raise Violation("I15", job_id, f"an attempt was given up at least {early_ms} ms before its time")
        still = self._still.get(by, _NEVER)
        long_ms, passed_ms = still.until_ms - still.from_ms, deadline_ms - offset_ms - still.until_ms
        if given.across is still:
            missed = still.is_first and long_ms >= COMMIT_STILL_MS_MIN and passed_ms < PASSES_MS_MAX
        else:
            missed = long_ms >= STILL_MS_MIN and passed_ms < -SLEWED_MS_MAX and given.at_ms < still.from_ms
        if missed and still.until_ms <= now_ms < still.until_ms + ANSWERS_MS:
            late_ms = now_ms - still.until_ms
            raise Violation("I16", job_id, f"an attempt was given up {late_ms} ms after {by} stood still")
