"""What an operator may do about a job that waits, or should know of it: words beside an explanation."""

from collections.abc import Sequence
from typing import Final

from lucius.core.late import is_late_success, not_adoptable
from lucius.core.model import Event, Job, JobRecord
from lucius.core.states import Engine, JobState, StepState
from lucius.core.wording import ago, clock

HINTED_ANSWERS_MAX: Final = 5
# Timers, retries and answers on their way make what is due a little late on a system that is well.
OVERDUE_AFTER_MS: Final = 5_000
UNBEGUN_AFTER_MS: Final = 30_000

BUS_HINT: Final = "is the bus up? POST /v1/admin/outbox/retry tries every waiting directive at once"

NOT_RUN_HERE: Final = (
    "this job runs on the temporal engine, which does not run here: start `lucius dev --engine temporal` on "
    "this folder, and the job goes on"
)
# Whoever pauses a job stops its clock, and whoever cancels it lets only its step's deadline count.
_AGELESS: Final = frozenset({JobState.PAUSED, JobState.CANCELLING})
_NOBODY_ACTS: Final = {
    Engine.OUTBOX: "no reconciler seems to run: is `lucius reconciler` (or `lucius invoker`) up?",
    Engine.TEMPORAL: (
        "no worker or invoker of the temporal engine seems to run: are `lucius worker`, `lucius invoker` and "
        "Temporal up?"
    ),
}


def is_overdue(at_ms: int, now_ms: int) -> bool:
    return now_ms - at_ms > OVERDUE_AFTER_MS


def was_due(at_ms: int, now_ms: int) -> str:
    return f"was due at {clock(at_ms, now_ms)}, and nobody has acted on it"


def engine_hints(job: Job, *, alone: bool, overdue: bool) -> list[str]:
    """Whether anybody is there to move the job. `alone`: no other process is, and this one runs the outbox
    engine only; what is late there waits for this process itself."""
    if job.terminal:
        return []
    if alone:
        return [NOT_RUN_HERE] if job.engine is Engine.TEMPORAL else []
    return [_NOBODY_ACTS[job.engine]] if overdue else []


def late_hints(record: JobRecord, late: Sequence[Event]) -> list[str]:
    """Successes that came too late, with what it takes to make use of them."""
    missed = [event for event in late if is_late_success(event) and _is_missed(record, event.step_id)]
    when = "" if record.job.terminal else "once the job has ended, "
    return [
        f"attempt {event.attempt_no} at {event.step_id} succeeded too late (event {event.seq}): {when}"
        f'take its result with :adopt {{"stepId": "{event.step_id}", "seq": {event.seq}}}'
        for event in missed[-HINTED_ANSWERS_MAX:]
    ]


def _is_missed(record: JobRecord, step_id: str | None) -> bool:
    step = record.step(step_id or "")
    return (
        step is not None and step.state is not StepState.SUCCEEDED and not_adoptable(record, step_id) is None
    )


def sla_hints(job: Job, now_ms: int) -> list[str]:
    if job.terminal or job.escalated_at_ms is None:
        return []
    long = f"the job is open longer than its SLA of {ago(job.sla_ms)}"
    if (fails_ms := sla_end_ms(job)) is None:
        return [long]
    if is_overdue(fails_ms, now_ms):
        return [f"{long}; its end with SLA_EXCEEDED {was_due(fails_ms, now_ms)}"]
    return [f"{long}; unless it ends or is paused it fails at {clock(fails_ms, now_ms)} with SLA_EXCEEDED"]


def is_sla_overdue(job: Job, now_ms: int) -> bool:
    ends_ms = sla_end_ms(job)
    return ends_ms is not None and is_overdue(ends_ms, now_ms)


def sla_end_ms(job: Job) -> int | None:
    """When it fails though nothing else ends it; None where no such clock runs."""
    if job.terminal or job.state in _AGELESS:
        return None
    return job.created_at_ms + job.paused_total_ms + 2 * job.sla_ms


def limit_hints(in_flight: int, in_flight_max: int) -> list[str]:
    if in_flight < in_flight_max:
        return []
    return [f"the tenant has {in_flight:,} jobs in flight, its limit: new commands are refused"]
