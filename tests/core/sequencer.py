"""What a workflow does, in a few lines: it looks where the job stands and asks for the next thing.

In: a record of the temporal engine, the time. Out: what to ask for now, and when to ask next. Knows nothing
that a position does not say, so that what it brings about a real workflow can bring about too.
"""

from tests.core.machine import Edge, begin, give

from lucius.contracts.internal import Position, position_of
from lucius.core.inputs import Ask, Expire, ExpireReason, Tick
from lucius.core.model import JobRecord
from lucius.core.states import Engine, JobState, StepState

ASKS_MAX = 10


def reason_of(at: Position) -> ExpireReason:
    if at.step_state is StepState.PROCESSING:
        return ExpireReason.LEASE_EXPIRED
    return ExpireReason.ACK_TIMEOUT if at.published else ExpireReason.PUBLISH_FAILED


def next_ask_ms(record: JobRecord) -> int | None:
    """When something is to be asked for, if nothing else happens; None: only news help."""
    at = position_of(record)
    if at.terminal or at.job_state is JobState.PAUSED:
        return None
    if at.step_state in (StepState.PENDING, StepState.FAILED_RETRY):
        return at.next_attempt_at_ms or record.job.created_at_ms
    return at.deadline_at_ms


def ask_now(record: JobRecord, now_ms: int) -> Ask | None:
    """What a workflow asks for at this moment. Publishing is not among it: tests do that themselves."""
    at, due_ms = position_of(record), next_ask_ms(record)
    if due_ms is None or due_ms > now_ms:
        return None
    if at.step_state in (StepState.PENDING, StepState.FAILED_RETRY):
        return begin(record)
    assert at.stepId is not None and at.lease_id is not None
    return Expire(step_id=at.stepId, attempt_no=at.attempt_no, lease_id=at.lease_id, reason=reason_of(at))


def look(record: JobRecord, now_ms: int) -> list[Edge]:
    """What time alone brings about: on the outbox engine a tick, on the temporal one what the workflow asks,
    a tick, and what it asks then."""
    if record.job.engine is Engine.OUTBOX:
        return [give(record, Tick(), now_ms)]
    # A deadline comes before the SLA and a due retry after it, as within a tick of the outbox engine.
    asked = follow(record, now_ms) if isinstance(ask_now(record, now_ms), Expire) else []
    ticked = give(asked[-1].after if asked else record, Tick(), now_ms)
    return [*asked, ticked, *follow(ticked.after, now_ms)]


def follow(record: JobRecord, now_ms: int, *, begins_only: bool = False) -> list[Edge]:
    """Asks until there is nothing to ask for at this moment; `begins_only`: a time that is over can wait."""
    edges: list[Edge] = []
    while record.job.engine is Engine.TEMPORAL and (ask := ask_now(record, now_ms)) is not None:
        if begins_only and isinstance(ask, Expire):
            break
        assert len(edges) < ASKS_MAX, "a workflow would go round in circles"
        edges.append(give(record, ask, now_ms))
        assert edges[-1].after is not record, f"{ask} changed nothing"
        record = edges[-1].after
    return edges
