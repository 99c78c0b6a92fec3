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


class Move(StrEnum):
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


MOVES: Final[Mapping[Move, Mapping[Status, Status]]] = {
    # A message may be sent again for a job that has one, and a delivery may overtake the note that it was
    # sent.
    Move.ENQUEUED: {S.PENDING: S.QUEUED, **_stay(S.QUEUED, S.FAILED)},
    Move.STARTED: dict.fromkeys((S.PENDING, S.QUEUED, S.FAILED), S.RUNNING),
    Move.RENEWED: _stay(S.RUNNING),
    Move.CHECKPOINTED: _stay(S.RUNNING),
    Move.STEP_DONE: _stay(S.RUNNING),
    Move.YIELDED: {S.RUNNING: S.QUEUED},
    Move.ATTEMPT_FAILED: {S.RUNNING: S.FAILED},
    Move.ATTEMPT_LOST: {S.RUNNING: S.FAILED},
    Move.COMPLETED: {S.RUNNING: S.COMPLETED},
    # A redriven job whose workspace has too few credits dies before it is enqueued.
    Move.DIED: {S.FAILED: S.DEAD, S.PENDING: S.DEAD},
    Move.CANCEL_REQUESTED: _stay(S.RUNNING),
    Move.CANCELED: dict.fromkeys((S.PENDING, S.QUEUED, S.RUNNING, S.FAILED), S.CANCELED),
    Move.SETTLED: _stay(S.COMPLETED, S.DEAD, S.CANCELED),
    Move.REDRIVEN: {S.DEAD: S.PENDING},
}

MEANINGS: Final[Mapping[Move, str]] = {
    Move.ENQUEUED: "A message for the job is in the queue.",
    Move.STARTED: "A worker took the job under a lease of its own.",
    Move.RENEWED: "The heartbeat of the worker made the lease longer.",
    Move.CHECKPOINTED: "The running step kept a note for a later attempt.",
    Move.STEP_DONE: "A step ended well: cursor, result and credits in one write.",
    Move.YIELDED: "The worker gave the job back, or a step waits for something; no attempt is counted.",
    Move.ATTEMPT_FAILED: "A step failed, or its worker could not go on; the attempt is counted.",
    Move.ATTEMPT_LOST: "The lease ran out: the worker crashed or was cut off; its attempt is counted.",
    Move.COMPLETED: "All steps are done.",
    Move.DIED: "No attempts are left, or the failure cannot be repaired by another.",
    Move.CANCEL_REQUESTED: "The job was canceled while a step ran; the worker sees it before the next step.",
    Move.CANCELED: "The job is canceled and no step of it runs.",
    Move.SETTLED: "The credits that were reserved and not spent are back at the workspace.",
    Move.REDRIVEN: "An operator gave a dead job new attempts; finished steps stay finished.",
}
