"""A stand-in for the ledger behind the invoker: one job, few rules, nothing stored.

It answers the workflow's questions as the invoker does, so that the workflow can be led into every corner by
a script and measured with nothing behind it. The real rules are `core`'s.
"""

import dataclasses

import msgspec

from lucius.contracts.internal import (
    AttemptRequest,
    ExpireRequest,
    InternalAnswer,
    Position,
    PublishRequest,
    Verdict,
)
from lucius.core.inputs import ExpireReason
from lucius.core.states import JOB_TERMINAL, JobState, StepState


class StandInTimeouts(msgspec.Struct, frozen=True, kw_only=True):
    steps: int = 3
    attempts_max: int = 3
    ack_timeout_ms: int = 30_000
    lease_ms: int = 900_000
    backoff_ms: int = 0


@dataclasses.dataclass(kw_only=True)
class StandInLedger:
    job_id: str
    timeouts: StandInTimeouts
    version: int = 1
    job_state: JobState = JobState.QUEUED
    index: int = 0
    step_state: StepState = StepState.PENDING
    attempt_no: int = 0
    lease_id: str | None = None
    published: bool = False
    deadline_at_ms: int | None = None
    next_attempt_at_ms: int | None = None
    trail: list[str] = dataclasses.field(default_factory=list)

    @property
    def step_id(self) -> str:
        return f"step_{self.index + 1:02d}"

    @property
    def under_way(self) -> bool:
        return self.published and self.step_state in (StepState.INITIATED, StepState.PROCESSING)

    def position(self) -> Position:
        if self.job_state in JOB_TERMINAL:
            return Position(version=self.version, job_state=self.job_state)
        return Position(
            version=self.version,
            job_state=self.job_state,
            stepId=self.step_id,
            step_index=self.index,
            step_state=self.step_state,
            attempt_no=self.attempt_no,
            lease_id=self.lease_id,
            published=self.published,
            deadline_at_ms=self.deadline_at_ms,
            next_attempt_at_ms=self.next_attempt_at_ms,
        )

    def answer(self, verdict: Verdict, again_in_ms: int | None = None) -> InternalAnswer:
        return InternalAnswer(verdict=verdict, position=self.position(), again_in_ms=again_in_ms)

    def attempt(self, ask: AttemptRequest) -> InternalAnswer:
        """Begins it; the caller publishes."""
        if (refused := self._barred()) is not None:
            return refused
        if self._is_current(ask):
            return self.answer(Verdict.GO)
        waits = self.step_state in (StepState.PENDING, StepState.FAILED_RETRY)
        if not waits or (ask.stepId, ask.attempt_no) != (self.step_id, self.attempt_no + 1):
            return self.answer(Verdict.MOVED)
        self._note("begun", ask.attempt_no)
        self.step_state, self.attempt_no, self.lease_id = StepState.INITIATED, ask.attempt_no, ask.lease_id
        self.published, self.deadline_at_ms, self.next_attempt_at_ms = False, None, None
        return self.answer(Verdict.GO)

    def publish(self, ask: AttemptRequest | PublishRequest, now_ms: int) -> InternalAnswer:
        if (refused := self._barred()) is not None:
            return refused
        if not self._is_current(ask) or self.step_state is not StepState.INITIATED:
            return self.answer(Verdict.MOVED)
        if not self.published:
            self._note("published", self.attempt_no)
            self.published, self.deadline_at_ms = True, now_ms + self.timeouts.ack_timeout_ms
            self.next_attempt_at_ms = None
        return self.answer(Verdict.GO)

    def put_off(self, until_ms: int) -> None:
        """The bus would not take the directive."""
        self._note("publish_failed", self.attempt_no)
        self.next_attempt_at_ms = until_ms

    def expire(self, ask: ExpireRequest, now_ms: int) -> InternalAnswer:
        if self.job_state in JOB_TERMINAL:
            return self.answer(Verdict.STOP)
        waited_for = StepState.INITIATED if ask.reason is ExpireReason.ACK_TIMEOUT else StepState.PROCESSING
        due = self.deadline_at_ms is not None and self.deadline_at_ms <= now_ms
        if not self._is_current(ask) or self.step_state is not waited_for or not due:
            return self.answer(Verdict.MOVED)
        self._retry_or_fail(ask.reason.value, now_ms)
        return self.answer(Verdict.GO)

    def ack(self, now_ms: int) -> None:
        self._note("acked", self.attempt_no)
        self.step_state, self.deadline_at_ms = StepState.PROCESSING, now_ms + self.timeouts.lease_ms
        if self.job_state is JobState.QUEUED:
            self.job_state = JobState.IN_PROGRESS

    def result(self, status: StepState, now_ms: int) -> None:
        if self.step_state is StepState.INITIATED:
            self.ack(now_ms)
        if status is StepState.SUCCEEDED:
            self._note("succeeded", self.attempt_no)
            self._go_on()
        elif status is StepState.FAILED_FINAL:
            self._note("failed", self.attempt_no)
            self.job_state = JobState.FAILED_FINAL
        else:
            self._retry_or_fail("FAILED_RETRY", now_ms)

    def cancel(self) -> None:
        self._note("cancel", self.attempt_no)
        self.job_state = JobState.CANCELLING if self.under_way else JobState.CANCELLED

    def pause(self) -> None:
        self._note("pause", self.attempt_no)
        self.job_state = JobState.PAUSING if self.under_way else JobState.PAUSED

    def resume(self) -> None:
        self._note("resume", self.attempt_no)
        self.job_state = JobState.IN_PROGRESS

    def _barred(self) -> InternalAnswer | None:
        if self.job_state in JOB_TERMINAL or self.job_state is JobState.CANCELLING:
            return self.answer(Verdict.STOP)
        if self.job_state in (JobState.PAUSED, JobState.PAUSING):
            return self.answer(Verdict.HOLD)
        return None

    def _is_current(self, ask: AttemptRequest | PublishRequest | ExpireRequest) -> bool:
        named = (ask.stepId, ask.attempt_no, ask.lease_id)
        return named == (self.step_id, self.attempt_no, self.lease_id)

    def _go_on(self) -> None:
        if self.index + 1 == self.timeouts.steps:
            self.job_state = JobState.SUCCEEDED
            return
        self.index += 1
        self.step_state, self.attempt_no, self.lease_id = StepState.PENDING, 0, None
        self.published, self.deadline_at_ms, self.next_attempt_at_ms = False, None, None
        self._settle()

    def _retry_or_fail(self, reason: str, now_ms: int) -> None:
        self._note(reason, self.attempt_no)
        if self.job_state is not JobState.CANCELLING and self.attempt_no == self.timeouts.attempts_max:
            self.job_state = JobState.FAILED_FINAL
            return
        self.step_state, self.published, self.deadline_at_ms = StepState.FAILED_RETRY, False, None
        self.next_attempt_at_ms = now_ms + self.timeouts.backoff_ms
        self._settle()

    def _settle(self) -> None:
        if self.job_state is JobState.CANCELLING:
            self.job_state = JobState.CANCELLED
        elif self.job_state is JobState.PAUSING:
            self.job_state = JobState.PAUSED

    def _note(self, fact: str, attempt_no: int) -> None:
        self.version += 1
        self.trail.append(f"{self.step_id}/{attempt_no} {fact}")
