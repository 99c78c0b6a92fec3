"""The machine, as tables.

A job is a row of steps, run one after the other. Whatever happens to it is written down as an *event* whose
type is a `Fact`. A fact moves the step it speaks of and the job around it, and the two tables below say from
which state to which. A pair that is not in a table is illegal: `fold` refuses it, so no code path can invent
a move. `decide` never touches a state itself; it only chooses which facts are true.

The lifecycle of a step whose service answers well:

    PENDING -ATTEMPT_BEGUN-> DISPATCHING -DIRECTIVE_PUBLISHED-> INITIATED -STEP_ACKED-> PROCESSING
            -STEP_SUCCEEDED-> SUCCEEDED

What a reply implies is written down too: a RESULT that overtakes its ACK is recorded as STEP_ACKED (implied)
followed by STEP_SUCCEEDED, so the tables need no shortcuts.

The tables in full are those of the outbox engine. The temporal engine's are the same without the passing
state DISPATCHING: a step whose attempt has begun is INITIATED, published or not, and its job stays QUEUED
until the first ACK. `STEP_TABLES` and `JOB_TABLES` hold both.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class JobState(StrEnum):
    QUEUED = "QUEUED"
    DISPATCHING = "DISPATCHING"
    IN_PROGRESS = "IN_PROGRESS"
    PAUSING = "PAUSING"
    PAUSED = "PAUSED"
    CANCELLING = "CANCELLING"
    SUCCEEDED = "SUCCEEDED"
    FAILED_FINAL = "FAILED_FINAL"
    CANCELLED = "CANCELLED"


class StepState(StrEnum):
    PENDING = "PENDING"
    DISPATCHING = "DISPATCHING"
    INITIATED = "INITIATED"
    PROCESSING = "PROCESSING"
    FAILED_RETRY = "FAILED_RETRY"
    SUCCEEDED = "SUCCEEDED"
    FAILED_FINAL = "FAILED_FINAL"
    CANCELLED = "CANCELLED"


class OutboxState(StrEnum):
    PENDING = "PENDING"
    SENT = "SENT"
    FAILED_FINAL = "FAILED_FINAL"
    CANCELLED = "CANCELLED"


class Engine(StrEnum):
    OUTBOX = "outbox"
    TEMPORAL = "temporal"


class Mode(StrEnum):
    DEFAULT = "DEFAULT"
    BURST = "BURST"


class Fact(StrEnum):
    """What can be true of a job: the types of its events."""

    JOB_CREATED = "JOB_CREATED"
    ATTEMPT_BEGUN = "ATTEMPT_BEGUN"
    DIRECTIVE_PUBLISHED = "DIRECTIVE_PUBLISHED"
    PUBLISH_FAILED = "PUBLISH_FAILED"
    PUBLISH_HURRIED = "PUBLISH_HURRIED"
    STEP_ACKED = "STEP_ACKED"
    STEP_PROGRESSED = "STEP_PROGRESSED"
    STEP_SUCCEEDED = "STEP_SUCCEEDED"
    STEP_RETRYING = "STEP_RETRYING"
    STEP_FAILED = "STEP_FAILED"
    STEP_CANCELLED = "STEP_CANCELLED"
    JOB_SUCCEEDED = "JOB_SUCCEEDED"
    JOB_FAILED = "JOB_FAILED"
    JOB_CANCELLING = "JOB_CANCELLING"
    JOB_CANCELLED = "JOB_CANCELLED"
    JOB_PAUSING = "JOB_PAUSING"
    JOB_PAUSED = "JOB_PAUSED"
    JOB_RESUMED = "JOB_RESUMED"
    SLA_ESCALATED = "SLA_ESCALATED"
    REPLY_DUPLICATE = "REPLY_DUPLICATE"
    REPLY_LATE = "REPLY_LATE"
    REPLY_STALE = "REPLY_STALE"
    REPLY_REFUSED = "REPLY_REFUSED"


J, S = JobState, StepState

JOB_TERMINAL: Final = frozenset({J.SUCCEEDED, J.FAILED_FINAL, J.CANCELLED})
STEP_TERMINAL: Final = frozenset({S.SUCCEEDED, S.FAILED_FINAL, S.CANCELLED})
STEP_ACTIVE: Final = frozenset({S.DISPATCHING, S.INITIATED, S.PROCESSING})
STEP_UNDER_WAY: Final = frozenset({S.INITIATED, S.PROCESSING})
JOB_OPEN: Final = frozenset(JobState) - JOB_TERMINAL
# A cancelling job ends with its step's deadline; a paused one does not age.
JOB_AGEING: Final = JOB_OPEN - {J.CANCELLING, J.PAUSED}
STEP_OPEN: Final = frozenset(StepState) - STEP_TERMINAL

EVIDENCE: Final = frozenset({Fact.REPLY_DUPLICATE, Fact.REPLY_LATE, Fact.REPLY_STALE, Fact.REPLY_REFUSED})


def _stay(*states: JobState) -> dict[JobState, tuple[JobState, ...]]:
    return {state: (state,) for state in states}


def _all_to(target: JobState, *states: JobState) -> dict[JobState, tuple[JobState, ...]]:
    return dict.fromkeys(states, (target,))


# Facts about a step: from which step state to which. A fact that is not here speaks of the job alone.
STEP_MOVES: Final[Mapping[Fact, Mapping[StepState, StepState]]] = {
    Fact.ATTEMPT_BEGUN: {S.PENDING: S.DISPATCHING, S.FAILED_RETRY: S.DISPATCHING},
    Fact.DIRECTIVE_PUBLISHED: {S.DISPATCHING: S.INITIATED},
    Fact.PUBLISH_FAILED: {S.DISPATCHING: S.DISPATCHING},
    Fact.PUBLISH_HURRIED: {S.DISPATCHING: S.DISPATCHING},
    Fact.STEP_ACKED: {S.INITIATED: S.PROCESSING},
    Fact.STEP_PROGRESSED: {S.PROCESSING: S.PROCESSING},
    Fact.STEP_SUCCEEDED: {S.PROCESSING: S.SUCCEEDED},
    Fact.STEP_RETRYING: {S.INITIATED: S.FAILED_RETRY, S.PROCESSING: S.FAILED_RETRY},
    Fact.STEP_FAILED: dict.fromkeys(STEP_OPEN, S.FAILED_FINAL),
    Fact.STEP_CANCELLED: dict.fromkeys(STEP_OPEN, S.CANCELLED),
}

# Every fact: in which job states it may be recorded, and where the job goes. More than one target means that
# the event itself names the one that was chosen (a resume returns to where the pause came from).
JOB_MOVES: Final[Mapping[Fact, Mapping[JobState, tuple[JobState, ...]]]] = {
    Fact.JOB_CREATED: _stay(J.QUEUED),
    Fact.ATTEMPT_BEGUN: {J.QUEUED: (J.DISPATCHING,), **_stay(J.DISPATCHING, J.IN_PROGRESS)},
    # A pause may overtake the note that a directive left: then a step is under way after all.
    Fact.DIRECTIVE_PUBLISHED: {J.PAUSED: (J.PAUSING,), **_stay(J.DISPATCHING, J.IN_PROGRESS, J.PAUSING)},
    Fact.PUBLISH_FAILED: _stay(J.DISPATCHING, J.IN_PROGRESS, J.PAUSED),
    Fact.PUBLISH_HURRIED: _stay(J.DISPATCHING, J.IN_PROGRESS),
    Fact.STEP_ACKED: {J.DISPATCHING: (J.IN_PROGRESS,), **_stay(J.IN_PROGRESS, J.PAUSING, J.CANCELLING)},
    Fact.STEP_PROGRESSED: _stay(J.IN_PROGRESS, J.PAUSING, J.CANCELLING),
    Fact.STEP_SUCCEEDED: _stay(J.IN_PROGRESS, J.PAUSING, J.CANCELLING),
    Fact.STEP_RETRYING: _stay(J.DISPATCHING, J.IN_PROGRESS, J.PAUSING),
    Fact.STEP_FAILED: _stay(*JOB_OPEN),
    # Steps are cancelled around the job: the one under way before it, those that are left after it.
    Fact.STEP_CANCELLED: _stay(J.CANCELLING, J.CANCELLED),
    # A rerun that adopts a late success may have nothing left to run.
    Fact.JOB_SUCCEEDED: _all_to(J.SUCCEEDED, J.QUEUED, J.IN_PROGRESS, J.PAUSING),
    Fact.JOB_FAILED: _all_to(J.FAILED_FINAL, J.QUEUED, J.DISPATCHING, J.IN_PROGRESS, J.PAUSING, J.PAUSED),
    Fact.JOB_CANCELLING: _all_to(J.CANCELLING, J.DISPATCHING, J.IN_PROGRESS, J.PAUSING),
    Fact.JOB_CANCELLED: _all_to(J.CANCELLED, *JOB_OPEN),
    Fact.JOB_PAUSING: _all_to(J.PAUSING, J.DISPATCHING, J.IN_PROGRESS),
    Fact.JOB_PAUSED: _all_to(J.PAUSED, J.QUEUED, J.DISPATCHING, J.IN_PROGRESS, J.PAUSING),
    Fact.JOB_RESUMED: {
        J.PAUSING: (J.QUEUED, J.DISPATCHING, J.IN_PROGRESS),
        J.PAUSED: (J.QUEUED, J.DISPATCHING, J.IN_PROGRESS),
    },
    Fact.SLA_ESCALATED: _stay(*JOB_AGEING),
    Fact.REPLY_DUPLICATE: _stay(*JobState),
    Fact.REPLY_LATE: _stay(*JobState),
    Fact.REPLY_STALE: _stay(*JobState),
    Fact.REPLY_REFUSED: _stay(*JobState),
}


# On the temporal engine nothing is ever DISPATCHING: what is said of it holds for the state in its place.
_STEP_STANDS: Final = {S.DISPATCHING: S.INITIATED}
_JOB_STANDS: Final = {J.DISPATCHING: J.QUEUED}


def _job_row(row: Mapping[JobState, tuple[JobState, ...]]) -> dict[JobState, tuple[JobState, ...]]:
    return {
        _JOB_STANDS.get(source, source): tuple(
            dict.fromkeys(_JOB_STANDS.get(target, target) for target in targets)
        )
        for source, targets in row.items()
    }


def _step_row(row: Mapping[StepState, StepState]) -> dict[StepState, StepState]:
    return {
        _STEP_STANDS.get(source, source): _STEP_STANDS.get(target, target) for source, target in row.items()
    }


STEP_TABLES: Final[Mapping[Engine, Mapping[Fact, Mapping[StepState, StepState]]]] = {
    Engine.OUTBOX: STEP_MOVES,
    Engine.TEMPORAL: {fact: _step_row(row) for fact, row in STEP_MOVES.items()},
}
JOB_TABLES: Final[Mapping[Engine, Mapping[Fact, Mapping[JobState, tuple[JobState, ...]]]]] = {
    Engine.OUTBOX: JOB_MOVES,
    Engine.TEMPORAL: {fact: _job_row(row) for fact, row in JOB_MOVES.items()},
}
