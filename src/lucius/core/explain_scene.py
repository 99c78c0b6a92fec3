"""What an explanation is told from: a job, the step in focus, its trail, and the time.

In: what is known. Out: the moments that the words speak of. Pure.
"""

from collections.abc import Sequence

import msgspec

from lucius.core.hints import is_overdue
from lucius.core.model import Event, Job, JobRecord, Step
from lucius.core.states import Fact
from lucius.core.wording import clock


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """What every situation is told from. `step` is the one the job is at, or its last."""

    record: JobRecord
    step: Step
    events: Sequence[Event]
    now_ms: int
    asked_at_ms: int | None
    over_bus: bool

    @property
    def job(self) -> Job:
        return self.record.job

    def clock(self, at_ms: int) -> str:
        return clock(at_ms, self.now_ms)

    def is_overdue(self, at_ms: int) -> bool:
        return is_overdue(at_ms, self.now_ms)

    @property
    def missed_ms(self) -> int | None:
        """The deadline of a step under way, if it has passed and nobody has acted on it."""
        at_ms = self.step.lease_expires_at_ms
        return at_ms if at_ms is not None and self.is_overdue(at_ms) else None

    @property
    def waits_since_ms(self) -> int:
        """Since when an attempt that has begun might have left: not while the job was paused."""
        step = self.step
        begun_ms = self.last(Fact.ATTEMPT_BEGUN) or step.attempt_began_at_ms or step.updated_at_ms
        return max(begun_ms, self.last(Fact.JOB_RESUMED) or 0)

    def last(self, fact: Fact) -> int | None:
        """When this was last true of the job, or of the step's present attempt where it speaks of a step."""
        found = (
            event.at_ms
            for event in reversed(self.events)
            if event.type is fact
            and event.step_id in (None, self.step.step_id)
            and event.attempt_no in (None, self.step.attempt_no)
        )
        return next(found, None)
