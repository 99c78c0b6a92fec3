"""The status machine of a Lifebook job, as a table.

A job has one status; what happens to it is a *move*. `MOVES` says for every move from which status to which.
A pair that is not in the table is illegal: it is refused as a value, logged, and nothing is written. Diagrams
and tests are drawn from the same table. Several moves may be written at once: an attempt that fails for the
last time is `ATTEMPT_FAILED` followed by `DIED`, in one write.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class Status(StrEnum):
    """The seven statuses of the contract, in its order."""

    PENDING = "pending"
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    DEAD = "dead"
    CANCELED = "canceled"


class Trigger(StrEnum):
    MANUAL = "manual"
    SCHEDULE = "schedule"
    WEBHOOK = "webhook"
    FILE_DROP = "file_drop"


class StatusMove(StrEnum):
    """What can happen to a job after its creation."""

    ENQUEUED = "ENQUEUED"
    STARTED = "STARTED"
    RENEWED = "RENEWED"
    CHECKPOINTED = "CHECKPOINTED"
    STEP_DONE = "STEP_DONE"
    YIELDED = "YIELDED"
    ATTEMPT_FAILED = "ATTEMPT_FAILED"
    ATTEMPT_LOST = "ATTEMPT_LOST"
    COMPLETED = "COMPLETED"
    DIED = "DIED"
    CANCEL_REQUESTED = "CANCEL_REQUESTED"
    CANCELED = "CANCELED"
    SETTLED = "SETTLED"
    REDRIVEN = "REDRIVEN"


S = Status

TERMINAL: Final = frozenset({S.COMPLETED, S.DEAD, S.CANCELED})
OPEN: Final = frozenset(Status) - TERMINAL


def _stay(*statuses: Status) -> dict[Status, Status]:
    return {status: status for status in statuses}


MOVES: Final[Mapping[StatusMove, Mapping[Status, Status]]] = {
    # A message may be sent again for a job that has one, and a delivery may overtake the note that it was
    # sent.
    StatusMove.ENQUEUED: {S.PENDING: S.QUEUED, **_stay(S.QUEUED, S.FAILED)},
    StatusMove.STARTED: dict.fromkeys((S.PENDING, S.QUEUED, S.FAILED), S.RUNNING),
    StatusMove.RENEWED: _stay(S.RUNNING),
    StatusMove.CHECKPOINTED: _stay(S.RUNNING),
    StatusMove.STEP_DONE: _stay(S.RUNNING),
    StatusMove.YIELDED: {S.RUNNING: S.QUEUED},
    StatusMove.ATTEMPT_FAILED: {S.RUNNING: S.FAILED},
    StatusMove.ATTEMPT_LOST: {S.RUNNING: S.FAILED},
    StatusMove.COMPLETED: {S.RUNNING: S.COMPLETED},
    # A redriven job whose workspace has too few credits dies before it is enqueued.
    StatusMove.DIED: {S.FAILED: S.DEAD, S.PENDING: S.DEAD},
    StatusMove.CANCEL_REQUESTED: _stay(S.RUNNING),
    StatusMove.CANCELED: dict.fromkeys((S.PENDING, S.QUEUED, S.RUNNING, S.FAILED), S.CANCELED),
    StatusMove.SETTLED: _stay(S.COMPLETED, S.DEAD, S.CANCELED),
    StatusMove.REDRIVEN: {S.DEAD: S.PENDING},
}

MEANINGS: Final[Mapping[StatusMove, str]] = {
    StatusMove.ENQUEUED: "A message for the job is in the queue.",
    StatusMove.STARTED: "A worker took the job under a lease of its own.",
    StatusMove.RENEWED: "The heartbeat of the worker made the lease longer.",
    StatusMove.CHECKPOINTED: "The running step kept a note for a later attempt.",
    StatusMove.STEP_DONE: "A step ended well: cursor, result and credits in one write.",
    StatusMove.YIELDED: "The worker gave the job back, or a step waits for something; no attempt is counted.",
    StatusMove.ATTEMPT_FAILED: "A step failed, or its worker could not go on; the attempt is counted.",
    StatusMove.ATTEMPT_LOST: "The lease ran out: the worker crashed or was cut off; its attempt is counted.",
    StatusMove.COMPLETED: "All steps are done.",
    StatusMove.DIED: "No attempts are left, or the failure cannot be repaired by another.",
    StatusMove.CANCEL_REQUESTED: "The job was canceled while a step ran; the worker sees it before the next "
    "step.",
    StatusMove.CANCELED: "The job is canceled and no step of it runs.",
    StatusMove.SETTLED: "The credits that were reserved and not spent are back at the workspace.",
    StatusMove.REDRIVEN: "An operator gave a dead job new attempts; finished steps stay finished.",
}
