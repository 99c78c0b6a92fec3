"""When attempts are given up, held against the true time, which no process knows.

In: each job before and after a commit, whose commit it was, and when; which clock each life of a process
began with, and when one stood still. Out: nothing, or a `Violation`. What a process does that began with a
wrong clock is not judged.
"""

import msgspec

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


class _TimeAllowance(msgspec.Struct, frozen=True, gc=False):
    """An attempt was given time: how much, when in truth, and by whose clock."""

    span_ms: int
    at_ms: int
    offset_ms: int


class ClockInvariants:
    def __init__(self) -> None:
        self._offsets: dict[str, int] = {}
        self._still: dict[str, tuple[int, int]] = {}
        self._given: dict[str, _TimeAllowance] = {}

    def started(self, name: str, offset_ms: int) -> None:
        self._offsets[name] = offset_ms
        self._still.pop(name, None)

    def stood_still(self, name: str, from_ms: int, until_ms: int) -> None:
        if until_ms - from_ms >= STILL_MS_MIN:
            self._still[name] = (from_ms, until_ms)

    def changed(self, before: JobRecord, after: JobRecord, by: str, now_ms: int) -> None:
        if before.steps is after.steps:
            return
        job_id = after.job.job_id
        for step, later in zip(before.steps, after.steps, strict=True):
            if later is step or (later.state, later.updated_at_ms) == (step.state, step.updated_at_ms):
                continue
            if later.state in STEP_UNDER_WAY and later.lease_expires_at_ms is not None:
                span_ms = later.lease_expires_at_ms - later.updated_at_ms
                self._given[job_id] = _TimeAllowance(span_ms, now_ms, self._offsets.get(by, 0))
            elif step.state in STEP_UNDER_WAY and later.state in _LOST and later.last_error_code in _CODES:
                self._given_up(job_id, by, now_ms, step.lease_expires_at_ms or 0)

    def _given_up(self, job_id: str, by: str, now_ms: int, deadline_ms: int) -> None:
        given, offset_ms = self._given.get(job_id), self._offsets.get(by, 0)
        if given is None or abs(offset_ms) > OFFSET_MS_MAX or abs(given.offset_ms) > OFFSET_MS_MAX:
            return
        slack_ms = offset_ms - given.offset_ms + SLEWED_MS_MAX + given.span_ms // 10
        early_ms = given.span_ms - slack_ms - (now_ms - given.at_ms)
        if early_ms > 0:
            raise Violation("I15", job_id, f"an attempt was given up at least {early_ms} ms before its time")
        from_ms, until_ms = self._still.get(by, (0, 0))
        missed = deadline_ms - offset_ms < until_ms - SLEWED_MS_MAX and given.at_ms < from_ms
        if missed and until_ms <= now_ms < until_ms + ANSWERS_MS:
            late_ms = now_ms - until_ms
            raise Violation("I16", job_id, f"an attempt was given up {late_ms} ms after {by} stood still")
