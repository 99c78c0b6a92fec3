"""One attempt of a step, as one value: what a directive carries out, and what a reply has to name."""

import msgspec

from lucius.core.model import JobRecord, Outbox, Step
from lucius.core.states import STEP_ACTIVE


class AttemptRef(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    job_id: str
    step_id: str
    attempt_no: int
    lease_id: str

    @classmethod
    def of(cls, job_id: str, step: Step | Outbox) -> "AttemptRef":
        """The attempt that a step is at, or that an outbox row is for."""
        return cls(
            job_id=job_id, step_id=step.step_id, attempt_no=step.attempt_no, lease_id=step.lease_id or ""
        )

    def is_of(self, step: Step | Outbox) -> bool:
        """Whether the step is at this attempt, or the outbox row is for it."""
        return (step.step_id, step.attempt_no, step.lease_id) == (
            self.step_id,
            self.attempt_no,
            self.lease_id,
        )

    def is_current(self, record: JobRecord) -> bool:
        """Whether this attempt is the one that the orchestrator waits for."""
        step = record.step(self.step_id)
        return step is not None and not record.job.terminal and self.is_of(step) and step.state in STEP_ACTIVE
