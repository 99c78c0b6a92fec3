"""A clock that ran ahead and was set right: what its times still mean."""

import pytest
from tests.core.machine import HOUR_MS, MINUTE_MS, SECOND_MS, Walk, born, initiated, processing

from lucius.core.draft import Outcome
from lucius.core.due import (
    AHEAD_MS,
    deadline_of,
    is_backoff_over,
    pulled_in_due,
    pulled_in_ms,
    ran_ahead,
)
from lucius.core.inputs import Tick
from lucius.core.states import Fact, StepState


def failed() -> Walk:
    """An attempt failed, and the next waits out its backoff of 30 s."""
    walk = processing()
    walk.fail_retry()
    assert walk.step.state is StepState.FAILED_RETRY
    return walk


def test_clocks_differ_by_a_minute_at_most() -> None:
    assert not ran_ahead(1_000_000 + AHEAD_MS, 1_000_000)
    assert ran_ahead(1_000_001 + AHEAD_MS, 1_000_000)


def test_a_deadline_of_a_clock_ahead_is_as_far_away_as_it_was_then() -> None:
    walk = initiated()
    now_ms = walk.step.updated_at_ms - HOUR_MS
    assert pulled_in_ms(walk.record, now_ms) == now_ms + 30 * SECOND_MS
    deadline = deadline_of(walk.record)
    assert deadline is not None
    sla_ms = now_ms + 7 * 24 * HOUR_MS
    pulled = pulled_in_due(walk.record, walk.step, now_ms, sla_ms)
    assert pulled == (now_ms + 30 * SECOND_MS, deadline.at_ms)


def test_what_is_due_before_it_is_due_then() -> None:
    walk = initiated()
    now_ms = walk.step.updated_at_ms - HOUR_MS
    at_ms = now_ms + 30 * SECOND_MS
    assert pulled_in_due(walk.record, walk.step, now_ms, at_ms) == (at_ms, None)


@pytest.mark.parametrize("ahead_ms", [0, AHEAD_MS])
def test_a_deadline_that_a_clock_may_have_set_is_believed(ahead_ms: int) -> None:
    walk = initiated()
    assert pulled_in_ms(walk.record, walk.step.updated_at_ms - ahead_ms) is None


def test_what_waits_for_a_worker_has_no_deadline_to_pull_in() -> None:
    walk = Walk(born())
    now_ms = walk.step.updated_at_ms - HOUR_MS
    assert pulled_in_ms(walk.record, now_ms) is None
    assert pulled_in_due(walk.record, walk.step, now_ms, 7) == (7, None)


def test_a_deadline_is_over_when_it_is_said_to_be() -> None:
    walk = initiated()
    deadline = deadline_of(walk.record)
    assert deadline is not None
    walk.at_ms -= HOUR_MS
    assert walk.give(Tick(passed_ms=deadline.at_ms - 1)).outcome is Outcome.UNCHANGED
    walk.give(Tick(passed_ms=deadline.at_ms))
    assert walk.facts[-1] is Fact.STEP_RETRYING
    assert walk.step.updated_at_ms == walk.at_ms
    assert walk.step.next_attempt_at_ms == walk.at_ms + MINUTE_MS


def test_a_backoff_of_a_clock_ahead_is_over() -> None:
    walk = failed()
    assert not is_backoff_over(walk.step, walk.at_ms)
    assert not is_backoff_over(walk.step, walk.step.updated_at_ms - AHEAD_MS)
    now_ms = walk.step.updated_at_ms - HOUR_MS
    assert is_backoff_over(walk.step, now_ms)
    assert pulled_in_due(walk.record, walk.step, now_ms, now_ms + 2 * HOUR_MS) == (now_ms, None)
    walk.at_ms = now_ms
    walk.give(Tick())
    assert walk.facts[-1] is Fact.ATTEMPT_BEGUN
