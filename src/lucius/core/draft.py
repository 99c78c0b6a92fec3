"""A decision in the making: facts are noted one by one, and the record follows them."""

from enum import StrEnum
from typing import Any

import msgspec

from lucius.core.due import is_backoff_over
from lucius.core.fold import fold
from lucius.core.model import Event, JobRecord, Step
from lucius.core.states import JOB_TERMINAL, STEP_OPEN, Engine, Fact, JobState, StepState

# Looked up once: the members of an enum are slow to reach, and every commit asks for these.
_OUTBOX = Engine.OUTBOX
_CANCELLING, _PAUSING, _PAUSED = JobState.CANCELLING, JobState.PAUSING, JobState.PAUSED
_PENDING, _FAILED_RETRY = StepState.PENDING, StepState.FAILED_RETRY


class Outcome(StrEnum):
    APPLIED = "applied"
    DUPLICATE = "duplicate"
    RECORDED = "recorded"
    STALE = "stale"
    OTHER_TENANT = "other_tenant"
    UNCHANGED = "unchanged"


class Decision(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What is true now. Nothing has happened yet: the caller commits it, or drops it."""

    record: JobRecord
    events: tuple[Event, ...] = ()
    outcome: Outcome = Outcome.APPLIED
    stop: bool = False


class Draft:
    __slots__ = ("events", "lease_id", "now_ms", "record")

    def __init__(self, record: JobRecord, *, now_ms: int, lease_id: str) -> None:
        self.record = record
        self.now_ms = now_ms
        self.lease_id = lease_id
        self.events: list[Event] = []

    def note(
        self,
        fact: Fact,
        step: Step | None = None,
        *,
        step_id: str | None = None,
        attempt_no: int | None = None,
        **data: Any,
    ) -> None:
        if step is not None:
            step_id = step.step_id
            attempt_no = step.attempt_no if attempt_no is None else attempt_no
        event = Event(
            seq=self.record.job.seq + 1,
            type=fact,
            at_ms=self.now_ms,
            step_id=step_id,
            attempt_no=attempt_no,
            data=data,
        )
        self.record = fold(self.record, event)
        self.events.append(event)

    def progressed(self, step: Step, *, in_trail: bool, **data: Any) -> None:
        """A progress report: always kept in the row, only now and then in the trail."""
        if in_trail:
            self.note(Fact.STEP_PROGRESSED, step, **data)
            return
        event = Event(
            seq=self.record.job.seq,
            type=Fact.STEP_PROGRESSED,
            at_ms=self.now_ms,
            step_id=step.step_id,
            attempt_no=step.attempt_no,
            data=data,
        )
        self.record = fold(self.record, event)

    def step(self, step: Step) -> Step:
        """The step as it is by now."""
        return self.record.steps[step.step_index]

    def decision(self, outcome: Outcome = Outcome.APPLIED, *, stop: bool = False) -> Decision:
        return Decision(record=self.record, events=tuple(self.events), outcome=outcome, stop=stop)

    def settle(self) -> None:
        """Goes on as far as the job may: begins the next attempt, or ends, pauses or cancels the job."""
        job, current = self.record.job, self.record.current
        state = job.state
        if state in JOB_TERMINAL or (current is not None and self.record.is_under_way(current)):
            return
        if state is _CANCELLING:
            self.cancel_rest()
        elif state is _PAUSING and current is not None:
            self.note(Fact.JOB_PAUSED)
        elif state is _PAUSED:
            return
        elif current is None:
            self._succeed()
        # On the temporal engine the job's workflow asks for the attempt.
        elif job.engine is _OUTBOX and self.is_time_to_begin(current):
            self.begin(current, self.lease_id)

    def cancel_rest(self) -> None:
        self.note(Fact.JOB_CANCELLED)
        for step in self.record.steps:
            if step.state in STEP_OPEN:
                self.note(Fact.STEP_CANCELLED, step)

    def fail(self, step: Step, *, reason: str, code: str, message: str, **more: Any) -> None:
        """The step is lost; so is the job, unless it is being cancelled anyway."""
        self.note(Fact.STEP_FAILED, step, reason=reason, code=code, message=message, **more)
        if self.record.job.state is _CANCELLING:
            self.settle()
        else:
            self.note(Fact.JOB_FAILED, code=code, message=message)

    def is_time_to_begin(self, step: Step) -> bool:
        """Whether the step waits for an attempt, and for nothing else."""
        if step.state is _FAILED_RETRY:
            return is_backoff_over(step, self.now_ms)
        return step.state is _PENDING

    def begin(self, step: Step, lease_id: str, *, lease_expected_at_ms: int | None = None) -> None:
        data: dict[str, Any] = {"lease_id": lease_id}
        if lease_expected_at_ms is not None:
            data["lease_expected_at_ms"] = lease_expected_at_ms
        self.note(Fact.ATTEMPT_BEGUN, step, attempt_no=step.attempt_no + 1, **data)

    def _succeed(self) -> None:
        last = self.record.steps[-1].result_ref or {}
        uri = last.get("uri")
        self.note(
            Fact.JOB_SUCCEEDED, final_output=uri if isinstance(uri, str) else self.record.job.output_uri
        )
