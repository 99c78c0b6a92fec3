"""What an event does to a record: each pair of state and fact, in the table or not."""

from itertools import product
from typing import Any

import msgspec
import pytest
from tests.core.machine import START_MS, born

from lucius.core.fold import IllegalMove, fold
from lucius.core.model import Event, JobRecord, Outbox
from lucius.core.states import EVIDENCE, JOB_MOVES, STEP_MOVES, Fact, JobState, OutboxState, StepState

J, S = JobState, StepState
replace = msgspec.structs.replace
AT_MS = START_MS + 5_000

# What an event must carry for its effect to be applied; the choice of a resume is laid in by the test.
DATA: dict[Fact, dict[str, Any]] = {
    Fact.ATTEMPT_BEGUN: {"lease_id": "lease_new"},
    Fact.DIRECTIVE_PUBLISHED: {"deadline_at_ms": AT_MS + 1},
    Fact.PUBLISH_FAILED: {"next_attempt_at_ms": AT_MS + 2, "code": "PUBLISH_FAILED", "message": "away"},
    Fact.STEP_ACKED: {"deadline_at_ms": AT_MS + 3},
    Fact.STEP_PROGRESSED: {
        "deadline_at_ms": AT_MS + 4,
        "progress": 40,
        "note": "page 4",
        "recorded_at_ms": AT_MS,
    },
    Fact.STEP_SUCCEEDED: {"output_ref": {"uri": "s3://out/1"}},
    Fact.STEP_RETRYING: {
        "next_attempt_at_ms": AT_MS + 5,
        "code": "BUSY",
        "message": "later",
        "reason": "RESULT",
    },
    Fact.STEP_FAILED: {"code": "BROKEN", "message": "no", "reason": "RESULT"},
    Fact.STEP_CANCELLED: {},
    Fact.JOB_SUCCEEDED: {"final_output": "s3://out/1"},
    Fact.JOB_FAILED: {"code": "BROKEN", "message": "no"},
    Fact.SLA_ESCALATED: {"open_ms": 5_000},
}


def record_in(job_state: JobState, step_state: StepState) -> JobRecord:
    """A record in these two states, possible or not: a table must hold for both."""
    record = born(2)
    step = replace(record.steps[0], state=step_state)
    return replace(record, job=replace(record.job, state=job_state), steps=(step, *record.steps[1:]))


def event_of(fact: Fact, *, to: JobState = J.IN_PROGRESS, step_id: str = "step_01") -> Event:
    data = {**DATA.get(fact, {}), **({"to": to.value} if fact is Fact.JOB_RESUMED else {})}
    return Event(seq=3, type=fact, at_ms=AT_MS, step_id=step_id, attempt_no=2, data=data)


@pytest.mark.parametrize("fact", Fact)
@pytest.mark.parametrize("step_state", StepState)
@pytest.mark.parametrize("job_state", JobState)
def test_a_pair_moves_as_the_tables_say_or_not_at_all(
    job_state: JobState, step_state: StepState, fact: Fact
) -> None:
    record, event = record_in(job_state, step_state), event_of(fact)
    as_it_was = msgspec.msgpack.encode(record)
    job_targets = JOB_MOVES[fact].get(job_state)
    step_target = STEP_MOVES[fact].get(step_state) if fact in STEP_MOVES else step_state
    if job_targets is None or step_target is None:
        with pytest.raises(IllegalMove, match=fact.value):
            fold(record, event)
    else:
        after = fold(record, event)
        assert after.job.state is (job_targets[0] if len(job_targets) == 1 else J.IN_PROGRESS)
        assert after.steps[0].state is step_target
        assert after.steps[1] is record.steps[1], "an event moves the step it speaks of, and no other"
        assert (after.job.seq, after.job.updated_at_ms) == (3, AT_MS)
    assert msgspec.msgpack.encode(record) == as_it_was


@pytest.mark.parametrize(("state", "to"), list(product([J.PAUSING, J.PAUSED], JobState)))
def test_a_resume_goes_where_the_table_lets_it(state: JobState, to: JobState) -> None:
    record, event = record_in(state, S.DISPATCHING), event_of(Fact.JOB_RESUMED, to=to)
    if to in JOB_MOVES[Fact.JOB_RESUMED][state]:
        assert fold(record, event).job.state is to
    else:
        with pytest.raises(IllegalMove, match=to.value):
            fold(record, event)


@pytest.mark.parametrize("fact", sorted(STEP_MOVES))
def test_a_step_that_the_job_does_not_have_is_illegal(fact: Fact) -> None:
    with pytest.raises(IllegalMove, match="step_77"):
        fold(record_in(J.IN_PROGRESS, S.DISPATCHING), event_of(fact, step_id="step_77"))


def folded(job_state: JobState, step_state: StepState, fact: Fact) -> JobRecord:
    return fold(record_in(job_state, step_state), event_of(fact))


def outbox_of(record: JobRecord) -> Outbox:
    assert record.outbox is not None
    return record.outbox


def test_an_attempt_begins_with_a_clean_slate() -> None:
    record = record_in(J.IN_PROGRESS, S.FAILED_RETRY)
    worn = replace(
        record.steps[0],
        acked=True,
        resulted=True,
        progress=70,
        progress_note="page 7",
        progress_event_at_ms=START_MS,
        next_attempt_at_ms=AT_MS,
        last_error_code="BUSY",
    )
    after = fold(replace(record, steps=(worn, *record.steps[1:])), event_of(Fact.ATTEMPT_BEGUN))
    step, outbox = after.steps[0], outbox_of(after)
    assert (step.attempt_no, step.lease_id, step.attempt_began_at_ms) == (2, "lease_new", AT_MS)
    assert not step.acked and not step.resulted
    assert (step.progress, step.progress_note, step.progress_event_at_ms) == (None, None, None)
    assert (step.lease_expires_at_ms, step.next_attempt_at_ms) == (None, None)
    assert step.last_error_code == "BUSY", "why the last attempt failed stays in sight"
    assert (outbox.attempt_no, outbox.lease_id, outbox.state) == (2, "lease_new", OutboxState.PENDING)
    assert (outbox.outbox_id, outbox.lane, outbox.service) == (
        "job_1.00.002",
        step.routing.lane,
        step.service,
    )
    assert outbox.due_at_ms == AT_MS and outbox.failures == 0
    assert after.job.attempts_total == record.job.attempts_total + 1


def test_publishing_closes_the_outbox_row() -> None:
    after = folded(J.DISPATCHING, S.DISPATCHING, Fact.DIRECTIVE_PUBLISHED)
    assert outbox_of(after).state is OutboxState.SENT and outbox_of(after).sent_at_ms == AT_MS
    assert after.steps[0].lease_expires_at_ms == AT_MS + 1


def test_a_failed_publish_is_counted_and_the_first_one_remembered() -> None:
    once = folded(J.DISPATCHING, S.DISPATCHING, Fact.PUBLISH_FAILED)
    twice = fold(once, replace(event_of(Fact.PUBLISH_FAILED), at_ms=AT_MS + 60_000, seq=4))
    assert (outbox_of(once).failures, outbox_of(twice).failures) == (1, 2)
    assert outbox_of(twice).first_failed_at_ms == AT_MS
    assert outbox_of(twice).due_at_ms == twice.steps[0].next_attempt_at_ms == AT_MS + 2
    assert twice.steps[0].last_error_code == "PUBLISH_FAILED"


def test_a_hurried_publish_is_due_at_once() -> None:
    waiting = folded(J.DISPATCHING, S.DISPATCHING, Fact.PUBLISH_FAILED)
    after = fold(waiting, replace(event_of(Fact.PUBLISH_HURRIED), at_ms=AT_MS + 1, seq=4))
    assert outbox_of(after).due_at_ms == AT_MS + 1 and after.steps[0].next_attempt_at_ms is None
    assert outbox_of(after).failures == 1, "what failed before still counts"


@pytest.mark.parametrize(
    ("job_state", "fact", "closed"),
    [
        (J.DISPATCHING, Fact.STEP_FAILED, OutboxState.FAILED_FINAL),
        (J.CANCELLED, Fact.STEP_CANCELLED, OutboxState.CANCELLED),
    ],
)
def test_an_open_outbox_row_ends_with_its_step(job_state: JobState, fact: Fact, closed: OutboxState) -> None:
    after = folded(job_state, S.DISPATCHING, fact)
    assert outbox_of(after).state is closed and outbox_of(after).sent_at_ms is None
    assert after.steps[0].completed_at_ms == AT_MS


@pytest.mark.parametrize("fact", [Fact.STEP_FAILED, Fact.STEP_CANCELLED])
def test_an_outbox_row_is_closed_once(fact: Fact) -> None:
    sent = folded(J.DISPATCHING, S.DISPATCHING, Fact.DIRECTIVE_PUBLISHED)
    cancelling = replace(sent, job=replace(sent.job, state=J.CANCELLING))
    after = fold(cancelling, replace(event_of(fact), at_ms=AT_MS + 9, seq=4))
    assert after.outbox is sent.outbox


@pytest.mark.parametrize("fact", sorted(EVIDENCE))
@pytest.mark.parametrize("state", JobState)
def test_evidence_is_counted_in_every_state(state: JobState, fact: Fact) -> None:
    record = record_in(state, S.PROCESSING)
    after = fold(record, event_of(fact))
    assert after.job.evidence_count == record.job.evidence_count + 1
    assert after.steps is record.steps and after.outbox is record.outbox


@pytest.mark.parametrize(
    "fact", [Fact.JOB_RESUMED, Fact.JOB_CANCELLED, Fact.JOB_FAILED, Fact.DIRECTIVE_PUBLISHED]
)
def test_a_pause_is_counted_however_it_ends(fact: Fact) -> None:
    record = record_in(J.PAUSED, S.DISPATCHING)
    paused = replace(record.job, paused_at_ms=AT_MS - 3_000, paused_total_ms=1_000, resume_to=J.DISPATCHING)
    after = fold(replace(record, job=paused), event_of(fact))
    assert after.job.paused_total_ms == 4_000 and after.job.paused_at_ms is None


def test_a_pause_that_ends_before_it_began_counts_nothing() -> None:
    record = record_in(J.PAUSED, S.DISPATCHING)
    paused = replace(record.job, paused_at_ms=AT_MS + 3_000, resume_to=J.DISPATCHING)
    assert fold(replace(record, job=paused), event_of(Fact.JOB_RESUMED)).job.paused_total_ms == 0


def test_a_cancel_forgets_the_way_back() -> None:
    record = record_in(J.PAUSING, S.INITIATED)
    pausing = replace(record, job=replace(record.job, resume_to=J.DISPATCHING))
    after = fold(pausing, event_of(Fact.JOB_CANCELLING))
    assert after.job.resume_to is None
    acked = fold(after, replace(event_of(Fact.STEP_ACKED), seq=4))
    assert acked.job.resume_to is None, "an ACK that comes later does not bring it back"
