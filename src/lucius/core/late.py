"""Successes that came too late to count: which they are, and which can still be made to."""

from typing import Final

from lucius.core.model import Event, JobRecord
from lucius.core.states import Fact, StepState

LATE: Final = frozenset({Fact.REPLY_LATE, Fact.REPLY_STALE})


def is_late_success(event: Event) -> bool:
    """Whether this is evidence of a success that came too late to count."""
    reply = event.data.get("reply")
    return (
        event.type in LATE
        and isinstance(reply, dict)
        and reply.get("type") == "RESULT"
        and reply.get("status") == "SUCCEEDED"
    )


def not_adoptable(record: JobRecord, step_id: str | None) -> str | None:
    """Why a late success of this step cannot be taken over; None if it can: all before it have a result."""
    step = record.step(step_id or "")
    if step is None:
        known = ", ".join(each.step_id for each in record.steps)
        return f"is not a step of the job; it has {known}"
    for earlier in record.steps[: step.step_index]:
        if earlier.state is not StepState.SUCCEEDED:
            return f"needs the result of {earlier.step_id}, which did not succeed"
    return None
