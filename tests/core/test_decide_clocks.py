"""Progress reports and the SLA: the clocks that run beside a step's own deadlines, and their defaults."""

import pytest
from tests.core.machine import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    SECOND_MS,
    SLA_MS,
    START_MS,
    Walk,
    born,
    initiated,
    processing,
)

from lucius.core.draft import Outcome
from lucius.core.due import backoff_ms, next_due_ms
from lucius.core.inputs import Cancel, Pause, Resume, Tick
from lucius.core.model import StepPolicy
from lucius.core.replies import PROGRESS_EVENT_EVERY_MS
from lucius.core.states import Fact, JobState, OutboxState, StepState

J, S = JobState, StepState


def test_the_defaults_of_a_step() -> None:
    policy = StepPolicy()
    assert policy.max_attempts == 3
    assert (policy.ack_timeout_ms, policy.lease_ms) == (30 * SECOND_MS, 15 * MINUTE_MS)
    assert (policy.max_duration_ms, policy.dispatch_timeout_ms) == (DAY_MS, DAY_MS)
    assert policy.publish_attempts_max == 0
    assert policy.backoff_publish_ms == policy.backoff_result_ms == (30_000, 120_000, 600_000)
    assert policy.backoff_ack_ms == (60_000, 300_000, 900_000)


@pytest.mark.parametrize(("failures", "expected_ms"), [(1, 5), (2, 7), (3, 7), (100, 7)])
def test_the_last_backoff_repeats(failures: int, expected_ms: int) -> None:
    assert backoff_ms((5, 7), failures) == expected_ms


# PROGRESS.


@pytest.mark.parametrize("handed_out", [False, True])
def test_progress_implies_its_ack(handed_out: bool) -> None:
    walk = initiated() if handed_out else Walk(born())
    walk.facts.clear()
    walk.progress(5, "page 1")
    assert walk.facts == [Fact.DIRECTIVE_PUBLISHED, Fact.STEP_ACKED, Fact.STEP_PROGRESSED][handed_out:]
    assert walk.states == (J.IN_PROGRESS, S.PROCESSING) and walk.step.acked
    assert walk.record.outbox is not None and walk.record.outbox.state is OutboxState.SENT


def test_progress_renews_the_lease_and_keeps_value_and_note() -> None:
    walk = processing().wait(10 * MINUTE_MS)
    walk.progress(40, "page 4")
    assert walk.step.lease_expires_at_ms == walk.at_ms + 15 * MINUTE_MS
    assert (walk.step.progress, walk.step.progress_note) == (40, "page 4")


def test_progress_of_a_lower_value_only_renews() -> None:
    walk = processing()
    walk.progress(40, "page 4")
    walk.wait(MINUTE_MS).progress(30, "page 3")
    assert (walk.step.progress, walk.step.progress_note) == (40, "page 4")
    assert walk.step.lease_expires_at_ms == walk.at_ms + 15 * MINUTE_MS


def test_progress_of_the_same_value_brings_its_note() -> None:
    walk = processing()
    walk.progress(40, "page 4")
    walk.progress(40, "page 4, again")
    assert (walk.step.progress, walk.step.progress_note) == (40, "page 4, again")


def test_progress_without_a_note_leaves_the_note() -> None:
    walk = processing()
    walk.progress(40, "page 4")
    walk.progress(50)
    assert (walk.step.progress, walk.step.progress_note) == (50, "page 4")


def test_progress_is_in_the_trail_once_in_ten_seconds() -> None:
    walk = processing()
    assert PROGRESS_EVENT_EVERY_MS == 10 * SECOND_MS
    walk.facts.clear()
    for value in range(60):
        decision = walk.progress(value)
        assert decision.outcome is Outcome.APPLIED
        assert len(decision.events) == (1 if value % 10 == 0 else 0)
        assert walk.step.progress == value, "the row is always up to date"
        assert walk.step.lease_expires_at_ms == walk.at_ms + 15 * MINUTE_MS
        walk.wait(SECOND_MS)
    assert walk.facts == [Fact.STEP_PROGRESSED] * 6


def test_progress_extends_an_attempt_to_its_longest_duration_and_no_further() -> None:
    walk = processing(policy=StepPolicy(max_duration_ms=HOUR_MS))
    published_at_ms = walk.at_ms
    for _ in range(5):
        walk.wait(10 * MINUTE_MS).progress(50)
    assert walk.step.lease_expires_at_ms == published_at_ms + HOUR_MS
    walk.wait(10 * MINUTE_MS).tick()
    assert walk.step.state is S.FAILED_RETRY and walk.step.last_error_code == "LEASE_EXPIRED"


@pytest.mark.parametrize("acked_after_ms", [SECOND_MS, 30 * SECOND_MS])
def test_whoever_tells_of_progress_is_not_worse_off_than_whoever_keeps_silent(acked_after_ms: int) -> None:
    """The ACK leads beyond the longest duration; progress takes nothing of that away and adds nothing."""
    walk = Walk(born(policy=StepPolicy(lease_ms=MINUTE_MS, max_duration_ms=MINUTE_MS)))
    walk.hand_out()
    walk.wait(acked_after_ms).ack()
    deadline_ms = walk.step.lease_expires_at_ms
    assert deadline_ms == walk.at_ms + MINUTE_MS
    for value in range(3):
        walk.wait(15 * SECOND_MS).progress(value)
        assert walk.step.lease_expires_at_ms == deadline_ms


def test_the_longest_duration_counts_from_publishing() -> None:
    walk = Walk(born(policy=StepPolicy(max_duration_ms=HOUR_MS))).wait(5 * HOUR_MS)
    walk.hand_out()
    published_at_ms = walk.at_ms
    walk.wait(20 * SECOND_MS).ack()
    walk.wait(14 * MINUTE_MS).progress(50)
    assert walk.step.lease_expires_at_ms == walk.at_ms + 15 * MINUTE_MS
    for _ in range(4):
        walk.wait(10 * MINUTE_MS).progress(50)
    assert walk.step.lease_expires_at_ms == published_at_ms + HOUR_MS


def test_a_new_attempt_begins_without_progress() -> None:
    walk = processing()
    walk.progress(90, "nearly")
    walk.fail_retry()
    assert (walk.step.progress, walk.step.progress_note) == (90, "nearly"), (
        "how far the last attempt came stays in sight until the next"
    )
    walk.tick_when_due()
    assert walk.step.attempt_no == 2 and not walk.step.progress_note and walk.step.progress is None
    walk.progress(10)
    assert walk.step.progress == 10 and walk.facts[-1] is Fact.STEP_PROGRESSED


# The SLA.


def test_a_job_is_escalated_at_its_sla_and_fails_at_twice() -> None:
    walk = Walk(born(2))
    assert walk.wait(SLA_MS - 1).tick().outcome is Outcome.UNCHANGED
    walk.wait(1).tick()
    assert walk.facts == [Fact.SLA_ESCALATED] and walk.job.escalated_at_ms == walk.at_ms
    assert walk.states == (J.DISPATCHING, S.DISPATCHING), "an escalated job goes on"
    assert next_due_ms(walk.record, walk.at_ms) == START_MS + 2 * SLA_MS
    assert walk.wait(SLA_MS - 1).tick().outcome is Outcome.UNCHANGED
    walk.wait(1).tick()
    assert walk.states == (J.FAILED_FINAL, S.FAILED_FINAL)
    assert walk.job.error_code == walk.step.last_error_code == "SLA_EXCEEDED"
    assert walk.record.outbox is not None and walk.record.outbox.state is OutboxState.FAILED_FINAL


def test_an_escalated_job_may_still_succeed() -> None:
    walk = Walk(born()).wait(SLA_MS)
    walk.tick()
    walk.hand_out()
    walk.ack()
    walk.succeed()
    assert walk.job.state is J.SUCCEEDED


def test_a_job_is_escalated_once() -> None:
    walk = Walk(born()).wait(SLA_MS)
    walk.tick()
    assert walk.wait(HOUR_MS).tick().outcome is Outcome.UNCHANGED
    assert walk.facts.count(Fact.SLA_ESCALATED) == 1


def test_a_step_under_way_ends_with_its_job_at_twice_the_sla() -> None:
    walk = Walk(born(policy=StepPolicy(lease_ms=DAY_MS))).wait(2 * SLA_MS - HOUR_MS)
    walk.tick()
    walk.hand_out()
    walk.ack()
    walk.wait(HOUR_MS).tick()
    assert walk.states == (J.FAILED_FINAL, S.FAILED_FINAL) and walk.job.error_code == "SLA_EXCEEDED"
    decision = walk.succeed()
    assert (decision.outcome, decision.stop) == (Outcome.RECORDED, True)


def test_pauses_are_not_counted_towards_the_sla() -> None:
    walk = Walk(born()).wait(DAY_MS)
    for _ in range(2):
        walk.give(Pause())
        assert walk.wait(30 * DAY_MS).tick().outcome is Outcome.UNCHANGED
        walk.give(Resume())
        walk.wait(DAY_MS)
    assert walk.job.paused_total_ms == 60 * DAY_MS
    assert next_due_ms(walk.record, walk.at_ms) == START_MS + 60 * DAY_MS + SLA_MS
    assert walk.tick().outcome is Outcome.UNCHANGED
    walk.wait(4 * DAY_MS - 1).tick()
    assert Fact.SLA_ESCALATED not in walk.facts
    walk.wait(1).tick()
    assert walk.facts[-1] is Fact.SLA_ESCALATED


def test_a_pausing_job_ages_while_its_step_works() -> None:
    walk = Walk(born(policy=StepPolicy(lease_ms=30 * DAY_MS)))
    walk.hand_out()
    walk.ack()
    walk.give(Pause())
    walk.wait(SLA_MS).tick()
    assert walk.facts[-1] is Fact.SLA_ESCALATED and walk.job.state is J.PAUSING


def test_a_cancelling_job_ends_with_its_step_and_not_by_its_sla() -> None:
    walk = Walk(born(policy=StepPolicy(lease_ms=30 * DAY_MS)))
    walk.hand_out()
    walk.ack()
    walk.give(Cancel())
    assert walk.wait(3 * SLA_MS).tick().outcome is Outcome.UNCHANGED
    walk.tick_when_due()
    assert walk.states == (J.CANCELLED, S.CANCELLED) and Fact.SLA_ESCALATED not in walk.facts


def test_a_deadline_and_the_sla_that_pass_together_are_both_seen() -> None:
    walk = initiated().wait(SLA_MS)
    walk.facts.clear()
    walk.tick()
    assert walk.facts == [Fact.STEP_RETRYING, Fact.SLA_ESCALATED]


def test_a_pause_does_not_use_up_the_time_to_publish() -> None:
    walk = Walk(born(policy=StepPolicy(dispatch_timeout_ms=HOUR_MS, backoff_publish_ms=(MINUTE_MS,))))
    walk.publish_failed()
    walk.give(Pause())
    walk.wait(5 * HOUR_MS).give(Resume())
    assert walk.give(Tick()).outcome is Outcome.UNCHANGED, "four hours and more were spent in the pause"
    walk.wait(HOUR_MS).give(Tick())
    assert (walk.job.state, walk.job.error_code) == (J.FAILED_FINAL, "PUBLISH_FAILED")


def test_a_publish_that_goes_on_failing_is_not_tried_in_a_circle() -> None:
    walk = Walk(born(policy=StepPolicy(backoff_publish_ms=(0,))))
    waits = []
    for _ in range(3):
        walk.publish_failed()
        waits.append((walk.step.next_attempt_at_ms or 0) - walk.at_ms)
    assert waits == [0, 1_000, 1_000]
