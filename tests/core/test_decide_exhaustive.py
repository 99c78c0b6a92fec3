"""Every situation a job can get into, with everything that can happen in it.

The situations are found by the machine itself, breadth first from a job's creation; what must hold of each
edge between them is in `invariants`.
"""

from itertools import product
from typing import get_args

import msgspec
import pytest
from tests.core.invariants import INVARIANTS
from tests.core.machine import explored, focus, give

from lucius.core.draft import Decision, Outcome
from lucius.core.inputs import Ask, Control, Input, Note, Reply, Tick
from lucius.core.states import JOB_TABLES, STEP_TABLES, Engine, Fact, JobState, StepState

# What was explored is kept, by each worker for itself.
pytestmark = pytest.mark.xdist_group("machine")

J, S = JobState, StepState

SHAPES = [*((count, Engine.OUTBOX) for count in (1, 2, 3)), *((count, Engine.TEMPORAL) for count in (1, 2))]
KINDS = {kind for part in get_args(Input) for kind in (get_args(part) or (part,))}

# A job's state with the state of the step it is at: all that can be seen together on the outbox engine.
TOGETHER = {
    *product([J.DISPATCHING], [S.DISPATCHING, S.INITIATED, S.FAILED_RETRY]),
    *product([J.IN_PROGRESS], [S.DISPATCHING, S.INITIATED, S.PROCESSING, S.FAILED_RETRY]),
    *product([J.PAUSING, J.CANCELLING], [S.INITIATED, S.PROCESSING]),
    *product([J.PAUSED], [S.DISPATCHING, S.FAILED_RETRY]),
    *product([J.CANCELLED], [S.SUCCEEDED, S.FAILED_FINAL, S.CANCELLED]),
    (J.SUCCEEDED, S.SUCCEEDED),
    (J.FAILED_FINAL, S.FAILED_FINAL),
}


@pytest.mark.parametrize(("count", "engine"), SHAPES)
@pytest.mark.parametrize("rule", sorted(INVARIANTS))
def test_every_edge_keeps(rule: str, count: int, engine: Engine) -> None:
    _, edges = explored(count, engine)
    assert edges
    for edge in edges:
        INVARIANTS[rule](edge)


@pytest.mark.parametrize(("count", "engine"), SHAPES)
def test_deciding_touches_nothing(count: int, engine: Engine) -> None:
    nodes, _ = explored(count, engine)
    assert all(msgspec.msgpack.encode(node.record) == node.as_found for node in nodes)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_states_seen_together_are_these(count: int) -> None:
    nodes, _ = explored(count)
    # Between two steps a pause may find the first one done and the next not begun.
    between = {(J.PAUSED, S.SUCCEEDED)} if count > 1 else set()
    assert {(node.record.job.state, focus(node.record).state) for node in nodes} == TOGETHER | between


@pytest.mark.parametrize("count", [1, 2])
def test_on_the_temporal_engine_queued_and_initiated_stand_for_dispatching(count: int) -> None:
    nodes, _ = explored(count, Engine.TEMPORAL)
    job_stands, step_stands = {J.DISPATCHING: J.QUEUED}, {S.DISPATCHING: S.INITIATED}
    expected = {(job_stands.get(job, job), step_stands.get(step, step)) for job, step in TOGETHER}
    # A job whose workflow has not begun an attempt yet; and one of two steps between them.
    expected |= {(J.QUEUED, S.PENDING), (J.PAUSED, S.PENDING)}
    if count > 1:
        expected |= {(J.IN_PROGRESS, S.SUCCEEDED), (J.PAUSED, S.SUCCEEDED), (J.FAILED_FINAL, S.SUCCEEDED)}
    assert {(node.record.job.state, focus(node.record).state) for node in nodes} == expected


def test_the_inputs_are_all_there_are() -> None:
    assert {*get_args(Reply), *get_args(Note), *get_args(Control), *get_args(Ask), Tick} == KINDS
    assert len(KINDS) == 13


@pytest.mark.parametrize(("count", "engine"), SHAPES)
def test_every_input_meets_every_situation(count: int, engine: Engine) -> None:
    nodes, edges = explored(count, engine)
    together = {(node.record.job.state, focus(node.record).state) for node in nodes}
    met = {(edge.before.job.state, focus(edge.before).state, type(edge.given)) for edge in edges}
    assert met == {(*pair, kind) for pair, kind in product(together, KINDS)}


def test_every_row_of_the_tables_is_used() -> None:
    """Facts that no input can make true would be dead letters."""
    seen = {
        event.type
        for count, engine in SHAPES
        for edge in explored(count, engine)[1]
        if isinstance(edge.answer, Decision)
        for event in edge.answer.events
    }
    assert seen == set(Fact) - {Fact.JOB_CREATED}


@pytest.mark.parametrize("engine", Engine)
def test_jobs_are_escalated_in_the_states_that_the_table_names(engine: Engine) -> None:
    seen = {
        edge.before.job.state
        for edge in explored(2, engine)[1]
        if isinstance(edge.answer, Decision)
        and any(event.type is Fact.SLA_ESCALATED for event in edge.answer.events)
    }
    # On the outbox engine a job's first attempt begins with the job.
    unseen = {J.QUEUED} if engine is Engine.OUTBOX else set()
    assert seen | unseen == set(JOB_TABLES[engine][Fact.SLA_ESCALATED])


@pytest.mark.parametrize(("count", "engine"), SHAPES)
def test_no_state_changes_without_its_fact(count: int, engine: Engine) -> None:
    for edge in explored(count, engine)[1]:
        if not isinstance(edge.answer, Decision):
            continue
        facts = {event.type for event in edge.answer.events}
        if edge.before.job.state is not edge.after.job.state:
            assert any(edge.after.job.state in _job_targets(engine, fact) for fact in facts)
        for before, after in zip(edge.before.steps, edge.after.steps, strict=True):
            if before.state is not after.state:
                assert any(after.state in STEP_TABLES[engine].get(fact, {}).values() for fact in facts)


@pytest.mark.parametrize(("count", "engine"), SHAPES)
def test_the_same_input_twice_is_applied_once(count: int, engine: Engine) -> None:
    """A redelivered reply or note, and a control or a question given again, find their work done."""
    for edge in explored(count, engine)[1]:
        if not isinstance(edge.answer, Decision) or edge.answer.outcome is not Outcome.APPLIED:
            continue
        again = give(edge.after, edge.given, edge.at_ms)
        facts = {event.type for event in edge.answer.events}
        if isinstance(again.answer, Decision) and again.answer.outcome is Outcome.APPLIED:
            repeated = {event.type for event in again.answer.events}
            assert repeated <= {Fact.PUBLISH_FAILED, Fact.STEP_PROGRESSED, Fact.STEP_FAILED, Fact.JOB_FAILED}
            assert repeated <= facts or Fact.PUBLISH_FAILED in facts


def _job_targets(engine: Engine, fact: Fact) -> set[JobState]:
    return {state for targets in JOB_TABLES[engine][fact].values() for state in targets}
