"""The tables of the machine, pair by pair: every state with every fact."""

from collections.abc import Hashable, Iterable, Mapping
from itertools import product
from typing import TypeVar

import pytest

from lucius.core.states import (
    EVIDENCE,
    JOB_MOVES,
    JOB_OPEN,
    JOB_TERMINAL,
    STEP_ACTIVE,
    STEP_MOVES,
    STEP_OPEN,
    STEP_TERMINAL,
    STEP_UNDER_WAY,
    Fact,
    JobState,
    StepState,
)

J, S = JobState, StepState
Node = TypeVar("Node", bound=Hashable)

JOB_PAIRS = list(product(JobState, Fact))
STEP_PAIRS = list(product(StepState, Fact))
# Facts whose name begins otherwise and which nevertheless move the step they speak of.
STEP_FACTS = {Fact.ATTEMPT_BEGUN, Fact.DIRECTIVE_PUBLISHED, Fact.PUBLISH_FAILED, Fact.PUBLISH_HURRIED} | {
    fact for fact in Fact if fact.startswith("STEP_")
}


def _job_edges() -> dict[JobState, set[JobState]]:
    edges: dict[JobState, set[JobState]] = {state: set() for state in JobState}
    for row in JOB_MOVES.values():
        for source, targets in row.items():
            edges[source].update(targets)
    return edges


def _step_edges() -> dict[StepState, set[StepState]]:
    edges: dict[StepState, set[StepState]] = {state: set() for state in StepState}
    for row in STEP_MOVES.values():
        for source, target in row.items():
            edges[source].add(target)
    return edges


def _reachable(start: Node, edges: Mapping[Node, Iterable[Node]]) -> set[Node]:
    seen, waiting = {start}, [start]
    while waiting:
        for target in edges[waiting.pop()]:
            if target not in seen:
                seen.add(target)
                waiting.append(target)
    return seen


def test_terminal_and_open_states_divide_all_states() -> None:
    assert set(JobState) == JOB_OPEN | JOB_TERMINAL and not JOB_OPEN & JOB_TERMINAL
    assert set(StepState) == STEP_OPEN | STEP_TERMINAL and not STEP_OPEN & STEP_TERMINAL
    assert STEP_UNDER_WAY < STEP_ACTIVE < STEP_OPEN
    assert S.PENDING not in STEP_ACTIVE and S.FAILED_RETRY not in STEP_ACTIVE


def test_each_fact_has_its_rows() -> None:
    assert set(JOB_MOVES) == set(Fact)
    assert set(STEP_MOVES) == STEP_FACTS
    assert all(JOB_MOVES.values()) and all(STEP_MOVES.values()), "a row without an entry can never happen"


@pytest.mark.parametrize(("state", "fact"), JOB_PAIRS)
def test_a_job_pair_is_absent_or_leads_to_states(state: JobState, fact: Fact) -> None:
    targets = JOB_MOVES[fact].get(state)
    if targets is None:
        assert state not in JOB_MOVES[fact]
        return
    assert targets and len(set(targets)) == len(targets)
    assert all(isinstance(target, JobState) for target in targets)
    if state in JOB_TERMINAL:
        assert targets == (state,), "a terminal job never changes"
    if fact in EVIDENCE or fact is Fact.SLA_ESCALATED:
        assert targets == (state,), "what is only noted moves nothing"


@pytest.mark.parametrize(("state", "fact"), STEP_PAIRS)
def test_a_step_pair_is_absent_or_leads_to_a_state(state: StepState, fact: Fact) -> None:
    target = STEP_MOVES.get(fact, {}).get(state)
    if target is None:
        assert state not in STEP_MOVES.get(fact, {})
        return
    assert isinstance(target, StepState)
    assert state not in STEP_TERMINAL, "no fact speaks of a step that has ended"


def test_several_targets_belong_to_a_resume_alone() -> None:
    chosen = {(fact, state) for state, fact in JOB_PAIRS if len(JOB_MOVES[fact].get(state, ())) > 1}
    assert chosen == {(Fact.JOB_RESUMED, J.PAUSING), (Fact.JOB_RESUMED, J.PAUSED)}
    for targets in JOB_MOVES[Fact.JOB_RESUMED].values():
        assert set(targets) == {J.QUEUED, J.DISPATCHING, J.IN_PROGRESS}


def test_every_state_is_reached_from_the_first() -> None:
    assert _reachable(J.QUEUED, _job_edges()) == set(JobState)
    assert _reachable(S.PENDING, _step_edges()) == set(StepState)


@pytest.mark.parametrize("state", sorted(JOB_OPEN))
def test_every_open_job_can_end(state: JobState) -> None:
    assert _reachable(state, _job_edges()) & JOB_TERMINAL
    assert J.CANCELLED in _job_edges()[state], "a cancel ends any open job once nothing is under way"


@pytest.mark.parametrize("state", sorted(STEP_OPEN))
def test_every_open_step_can_end(state: StepState) -> None:
    assert {S.FAILED_FINAL, S.CANCELLED} <= _step_edges()[state]
    assert S.SUCCEEDED in _reachable(state, _step_edges())


def test_terminal_states_lead_nowhere() -> None:
    assert all(_reachable(state, _job_edges()) == {state} for state in JOB_TERMINAL)
    assert all(_reachable(state, _step_edges()) == {state} for state in STEP_TERMINAL)


def test_after_the_end_only_evidence_and_the_steps_of_a_cancel_are_recorded() -> None:
    recorded = {
        (state, fact) for state, fact in JOB_PAIRS if state in JOB_TERMINAL and state in JOB_MOVES[fact]
    }
    evidence = set(product(JOB_TERMINAL, EVIDENCE))
    assert recorded == evidence | {(J.CANCELLED, Fact.STEP_CANCELLED)}


def test_evidence_is_taken_in_every_state() -> None:
    assert all(set(JOB_MOVES[fact]) == set(JobState) for fact in EVIDENCE)


def test_each_end_has_one_fact() -> None:
    ends = {
        (target, fact)
        for fact, row in JOB_MOVES.items()
        for source, targets in row.items()
        for target in targets
        if target in JOB_TERMINAL and source != target
    }
    assert ends == {
        (J.SUCCEEDED, Fact.JOB_SUCCEEDED),
        (J.FAILED_FINAL, Fact.JOB_FAILED),
        (J.CANCELLED, Fact.JOB_CANCELLED),
    }


def test_a_cancelling_job_can_only_become_cancelled() -> None:
    assert _job_edges()[J.CANCELLING] == {J.CANCELLING, J.CANCELLED}


def test_an_attempt_begins_only_in_a_running_job_and_an_idle_step() -> None:
    assert set(JOB_MOVES[Fact.ATTEMPT_BEGUN]) == {J.QUEUED, J.DISPATCHING, J.IN_PROGRESS}
    assert set(STEP_MOVES[Fact.ATTEMPT_BEGUN]) == STEP_OPEN - STEP_ACTIVE
    begins = {
        fact
        for fact, row in STEP_MOVES.items()
        for s, t in row.items()
        if s not in STEP_ACTIVE and t in STEP_ACTIVE
    }
    assert begins == {Fact.ATTEMPT_BEGUN}


def test_a_step_succeeds_only_after_its_acknowledgement() -> None:
    assert STEP_MOVES[Fact.STEP_SUCCEEDED] == {S.PROCESSING: S.SUCCEEDED}
    before_processing = {s for s, targets in _step_edges().items() if S.PROCESSING in targets} - {
        S.PROCESSING
    }
    assert before_processing == {S.INITIATED}


def test_only_a_step_under_way_can_be_retried() -> None:
    assert set(STEP_MOVES[Fact.STEP_RETRYING]) == STEP_UNDER_WAY


def test_a_paused_job_has_no_step_that_answers() -> None:
    answers = {Fact.STEP_ACKED, Fact.STEP_PROGRESSED, Fact.STEP_SUCCEEDED, Fact.STEP_RETRYING}
    assert not [fact for fact in answers if J.PAUSED in JOB_MOVES[fact]]
    assert JOB_MOVES[Fact.DIRECTIVE_PUBLISHED][J.PAUSED] == (J.PAUSING,)
