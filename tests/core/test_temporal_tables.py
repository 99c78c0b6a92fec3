"""The tables of the temporal engine: those of the outbox engine without DISPATCHING, pair by pair."""

from itertools import product
from typing import Any

import msgspec
import pytest
from tests.core.machine import born, new_job, new_steps
from tests.core.test_fold import AT_MS, event_of

from lucius.core.decide import create
from lucius.core.fold import IllegalMove, fold
from lucius.core.model import JobRecord, StepPolicy
from lucius.core.states import (
    JOB_MOVES,
    JOB_TABLES,
    STEP_MOVES,
    STEP_TABLES,
    Engine,
    Fact,
    JobState,
    StepState,
)

J, S = JobState, StepState
replace = msgspec.structs.replace
JOBS, STEPS = JOB_TABLES[Engine.TEMPORAL], STEP_TABLES[Engine.TEMPORAL]


def record_in(job_state: JobState, step_state: StepState) -> JobRecord:
    """A record in these two states, possible or not, with an outbox row for effects to work on."""
    outbox = born(2).outbox
    record = create(
        new_job(engine=Engine.TEMPORAL), new_steps(2, StepPolicy()), now_ms=AT_MS, lease_id=""
    ).record
    step = replace(record.steps[0], state=step_state)
    job = replace(record.job, state=job_state)
    return JobRecord(job=job, steps=(step, *record.steps[1:]), outbox=outbox)


@pytest.mark.parametrize("fact", Fact)
def test_a_pair_moves_as_the_tables_say_or_not_at_all(fact: Fact) -> None:
    event = event_of(fact)
    for job_state, step_state in product(JobState, StepState):
        record = record_in(job_state, step_state)
        job_targets = JOBS[fact].get(job_state)
        step_target = STEPS[fact].get(step_state) if fact in STEPS else step_state
        if job_targets is None or step_target is None:
            with pytest.raises(IllegalMove, match=fact.value):
                fold(record, event)
            continue
        after = fold(record, event)
        assert after.job.state is (job_targets[0] if len(job_targets) == 1 else J.IN_PROGRESS)
        assert after.steps[0].state is step_target


def test_nothing_is_ever_dispatching() -> None:
    def words(table: Any) -> set[str]:
        return {word for row in table.values() for source, to in row.items() for word in (source, *_many(to))}

    assert J.DISPATCHING not in words(JOBS)
    assert S.DISPATCHING not in words(STEPS)
    with pytest.raises(IllegalMove):
        fold(record_in(J.DISPATCHING, S.PENDING), event_of(Fact.ATTEMPT_BEGUN))


def test_the_moves_that_only_this_engine_has() -> None:
    step_moves = {(fact, source, to) for fact, row in STEPS.items() for source, to in row.items()}
    known = {(fact, source, to) for fact, row in STEP_MOVES.items() for source, to in row.items()}
    assert step_moves - known == {
        (Fact.ATTEMPT_BEGUN, S.PENDING, S.INITIATED),
        (Fact.ATTEMPT_BEGUN, S.FAILED_RETRY, S.INITIATED),
        (Fact.DIRECTIVE_PUBLISHED, S.INITIATED, S.INITIATED),
        (Fact.PUBLISH_FAILED, S.INITIATED, S.INITIATED),
        (Fact.PUBLISH_HURRIED, S.INITIATED, S.INITIATED),
    }
    job_moves = {(fact, source, to) for fact, row in JOBS.items() for source, to in row.items()}
    known_jobs = {(fact, source, to) for fact, row in JOB_MOVES.items() for source, to in row.items()}
    assert job_moves - known_jobs == {
        (Fact.ATTEMPT_BEGUN, J.QUEUED, (J.QUEUED,)),
        (Fact.DIRECTIVE_PUBLISHED, J.QUEUED, (J.QUEUED,)),
        (Fact.PUBLISH_FAILED, J.QUEUED, (J.QUEUED,)),
        (Fact.PUBLISH_HURRIED, J.QUEUED, (J.QUEUED,)),
        (Fact.STEP_ACKED, J.QUEUED, (J.IN_PROGRESS,)),
        (Fact.STEP_RETRYING, J.QUEUED, (J.QUEUED,)),
        (Fact.JOB_CANCELLING, J.QUEUED, (J.CANCELLING,)),
        (Fact.JOB_PAUSING, J.QUEUED, (J.PAUSING,)),
        (Fact.JOB_RESUMED, J.PAUSING, (J.QUEUED, J.IN_PROGRESS)),
        (Fact.JOB_RESUMED, J.PAUSED, (J.QUEUED, J.IN_PROGRESS)),
    }


def test_no_two_moves_of_the_outbox_engine_fall_together_and_disagree() -> None:
    """A state that takes another's place keeps its own moves."""
    stands = {J.DISPATCHING: J.QUEUED}
    for fact, row in JOB_MOVES.items():
        if {J.QUEUED, J.DISPATCHING} <= row.keys():
            queued, dispatching = (
                {stands.get(to, to) for to in row[source]} for source in (J.QUEUED, J.DISPATCHING)
            )
            assert queued == dispatching, fact
    for fact, steps in STEP_MOVES.items():
        if {S.INITIATED, S.DISPATCHING} <= steps.keys():
            assert steps[S.INITIATED] is steps[S.DISPATCHING], fact


@pytest.mark.parametrize(("state", "to"), list(product([J.PAUSING, J.PAUSED], JobState)))
def test_a_resume_goes_where_the_table_lets_it(state: JobState, to: JobState) -> None:
    record, event = record_in(state, S.INITIATED), event_of(Fact.JOB_RESUMED, to=to)
    if to in (J.QUEUED, J.IN_PROGRESS):
        assert fold(record, event).job.state is to
    else:
        with pytest.raises(IllegalMove, match=to.value):
            fold(record, event)


def _many(to: object) -> tuple[object, ...]:
    return to if isinstance(to, tuple) else (to,)
