"""The event table of the lifecycle, row by row."""

import msgspec
import pytest
from tests.core.machine import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    OUTPUT_URI,
    SECOND_MS,
    START_MS,
    Walk,
    born,
    initiated,
    new_job,
    new_steps,
    processing,
    result,
    retrying,
    target,
)

from lucius.core.decide import create, is_dispatchable
from lucius.core.draft import Outcome
from lucius.core.due import next_due_ms
from lucius.core.inputs import DispatchNow, ResultStatus
from lucius.core.model import StepPolicy
from lucius.core.states import Engine, Fact, JobState, OutboxState, StepState

J, S = JobState, StepState


# created


def test_created_a_job_is_queued_and_its_steps_are_pending() -> None:
    decision = create(
        new_job(engine=Engine.TEMPORAL), new_steps(3, StepPolicy()), now_ms=START_MS, lease_id="lease_0"
    )
    assert [event.type for event in decision.events] == [Fact.JOB_CREATED]
    assert decision.record.job.state is J.QUEUED
    assert [step.state for step in decision.record.steps] == [S.PENDING] * 3
    assert decision.record.outbox is None and decision.record.job.current_step_id is None


def test_created_on_the_outbox_engine_the_first_attempt_begins_with_the_job() -> None:
    decision = create(new_job(), new_steps(2, StepPolicy()), now_ms=START_MS, lease_id="lease_0")
    assert [event.type for event in decision.events] == [Fact.JOB_CREATED, Fact.ATTEMPT_BEGUN]
    assert [event.seq for event in decision.events] == [1, 2]
    assert decision.events[0].data["steps"] == ["TYPE_1", "TYPE_2"]
    assert decision.record.job.state is J.DISPATCHING
    assert [step.state for step in decision.record.steps] == [S.DISPATCHING, S.PENDING]


def test_created_as_a_rerun_it_begins_at_the_first_step_without_a_result() -> None:
    done, *rest = new_steps(2, StepPolicy())
    job = new_job()
    done = msgspec.structs.replace(done, state=S.SUCCEEDED, result_ref={"uri": "s3://out/1"})
    job = msgspec.structs.replace(job, rerun_of="job_0")
    decision = create(job, (done, *rest), now_ms=START_MS, lease_id="lease_0")
    assert decision.events[0].data["reused"] == ["step_01"]
    assert decision.record.job.current_step_id == "step_02"
    assert [step.state for step in decision.record.steps] == [S.SUCCEEDED, S.DISPATCHING]
    assert decision.record.job.attempts_total == 1


# attempt begun


def test_attempt_begun_records_a_lease_and_writes_an_outbox_row() -> None:
    walk = Walk(born())
    outbox = walk.record.outbox
    assert walk.states == (J.DISPATCHING, S.DISPATCHING)
    assert (walk.step.attempt_no, walk.step.lease_id) == (1, "lease_0")
    assert outbox is not None and (outbox.state, outbox.lease_id) == (OutboxState.PENDING, "lease_0")
    assert (walk.job.attempts_total, walk.job.current_step_id, walk.job.current_step_index) == (
        1,
        "step_01",
        0,
    )


def test_attempt_begun_again_counts_up_and_renews_the_lease() -> None:
    walk = retrying()
    first = walk.step.lease_id
    walk.tick_when_due()
    assert walk.states == (J.IN_PROGRESS, S.DISPATCHING)
    assert walk.step.attempt_no == walk.job.attempts_total == 2
    assert walk.step.lease_id != first


# directive published


@pytest.mark.parametrize("how", ["hand_out", "published"])
def test_directive_published_starts_the_ack_clock(how: str) -> None:
    walk = Walk(born()).wait(HOUR_MS)
    (walk.hand_out if how == "hand_out" else walk.published)()
    assert walk.states == (J.DISPATCHING, S.INITIATED)
    assert walk.step.lease_expires_at_ms == walk.at_ms + 30 * SECOND_MS
    assert walk.record.outbox is not None and walk.record.outbox.state is OutboxState.SENT


def test_directive_published_twice_is_noted_once() -> None:
    walk = initiated()
    assert walk.published().outcome is Outcome.UNCHANGED


# ACK


def test_ack_from_initiated_starts_the_lease() -> None:
    walk = initiated().wait(SECOND_MS)
    assert walk.ack().outcome is Outcome.APPLIED
    assert walk.states == (J.IN_PROGRESS, S.PROCESSING)
    assert walk.step.lease_expires_at_ms == walk.at_ms + 15 * MINUTE_MS


def test_ack_from_dispatching_notes_the_publishing_too() -> None:
    walk = Walk(born())
    decision = walk.ack()
    assert walk.facts == [Fact.DIRECTIVE_PUBLISHED, Fact.STEP_ACKED]
    assert decision.events[0].data["implied"] is True and "implied" not in decision.events[1].data
    assert walk.states == (J.IN_PROGRESS, S.PROCESSING)
    assert walk.record.outbox is not None and walk.record.outbox.state is OutboxState.SENT


def test_ack_of_a_later_step_leaves_the_job_in_progress() -> None:
    walk = processing(2)
    walk.succeed()
    assert walk.states == (J.IN_PROGRESS, S.DISPATCHING)
    walk.ack()
    assert walk.states == (J.IN_PROGRESS, S.PROCESSING)


# RESULT


@pytest.mark.parametrize("count", [1, 2, 3])
def test_result_succeeded_begins_the_next_step_or_ends_the_job(count: int) -> None:
    walk = Walk(born(count))
    for index in range(count):
        assert walk.job.current_step_index == index
        walk.hand_out()
        walk.ack()
        walk.succeed(f"s3://out/{index}")
        assert walk.record.steps[index].result_ref == {"uri": f"s3://out/{index}"}
    assert walk.job.state is J.SUCCEEDED
    assert walk.job.final_output == f"s3://out/{count - 1}"
    assert walk.job.completed_at_ms == walk.at_ms
    assert walk.job.attempts_total == count


def test_result_succeeded_without_a_reference_leaves_the_envelope_s_as_final_output() -> None:
    walk = processing()
    walk.succeed(None)
    assert (walk.job.state, walk.job.final_output) == (J.SUCCEEDED, OUTPUT_URI)


def test_result_succeeded_and_the_next_step_s_outbox_row_are_one_decision() -> None:
    walk = processing(2)
    decision = walk.succeed()
    assert [event.type for event in decision.events] == [Fact.STEP_SUCCEEDED, Fact.ATTEMPT_BEGUN]
    assert walk.record.outbox is not None and walk.record.outbox.step_id == "step_02"


@pytest.mark.parametrize(
    ("failures", "wait_ms"), [(1, 30 * SECOND_MS), (2, 2 * MINUTE_MS), (3, 10 * MINUTE_MS)]
)
def test_result_failed_retry_waits_out_the_result_backoff(failures: int, wait_ms: int) -> None:
    walk = processing(policy=StepPolicy(max_attempts=9))
    for _ in range(failures - 1):
        walk.fail_retry()
        walk.tick_when_due()
    walk.fail_retry("BUSY")
    assert walk.states == (J.IN_PROGRESS, S.FAILED_RETRY)
    assert (walk.step.last_error_code, walk.step.last_error_message) == ("BUSY", "the service said BUSY")
    assert walk.step.next_attempt_at_ms == walk.at_ms + wait_ms == next_due_ms(walk.record, walk.at_ms)
    assert walk.wait(wait_ms - 1).tick().outcome is Outcome.UNCHANGED
    walk.wait(1).tick()
    assert (walk.step.state, walk.step.attempt_no) == (S.DISPATCHING, failures + 1)


def test_the_last_backoff_repeats() -> None:
    walk = processing(policy=StepPolicy(max_attempts=9, backoff_result_ms=(1_000, 2_000)))
    for expected_ms in (1_000, 2_000, 2_000, 2_000):
        walk.fail_retry()
        assert walk.step.next_attempt_at_ms == walk.at_ms + expected_ms
        walk.tick_when_due()


def test_a_backoff_of_nothing_begins_the_next_attempt_at_once() -> None:
    walk = processing(policy=StepPolicy(backoff_result_ms=(0,)))
    decision = walk.fail_retry()
    assert [event.type for event in decision.events] == [Fact.STEP_RETRYING, Fact.ATTEMPT_BEGUN]
    assert (walk.step.state, walk.step.attempt_no) == (S.DISPATCHING, 2)


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_result_failed_retry_with_none_left_is_final(attempts: int) -> None:
    walk = processing(2, StepPolicy(max_attempts=attempts))
    for _ in range(attempts - 1):
        walk.fail_retry("BUSY")
        assert walk.job.state is J.IN_PROGRESS
        walk.tick_when_due()
    walk.fail_retry("BUSY")
    assert walk.states == (J.FAILED_FINAL, S.FAILED_FINAL)
    assert (walk.job.error_code, walk.job.error_message) == ("BUSY", "the service said BUSY")
    assert walk.job.attempts_total == attempts
    assert walk.record.steps[1].state is S.PENDING


def test_result_failed_final_is_final_whatever_is_left() -> None:
    walk = processing()
    walk.fail_final("UNREADABLE")
    assert walk.states == (J.FAILED_FINAL, S.FAILED_FINAL)
    assert (walk.job.error_code, walk.step.last_error_code) == ("UNREADABLE", "UNREADABLE")
    assert walk.job.completed_at_ms == walk.step.completed_at_ms == walk.at_ms


def test_a_failure_without_a_reason_still_has_a_code() -> None:
    walk = processing()
    walk.give(result(target(walk.step), ResultStatus.FAILED_FINAL))
    assert walk.job.error_code == "UNSPECIFIED" and walk.job.error_message


# ACK_TIMEOUT, LEASE_EXPIRED


@pytest.mark.parametrize(("failures", "wait_ms"), [(1, MINUTE_MS), (2, 5 * MINUTE_MS), (3, 15 * MINUTE_MS)])
def test_ack_timeout_is_a_retryable_failure_with_the_ack_backoff(failures: int, wait_ms: int) -> None:
    walk = Walk(born(policy=StepPolicy(max_attempts=9)))
    for _ in range(failures - 1):
        walk.hand_out()
        walk.tick_when_due()
        walk.tick_when_due()
    walk.hand_out()
    assert walk.wait(30 * SECOND_MS - 1).tick().outcome is Outcome.UNCHANGED
    walk.wait(1).tick()
    assert walk.states == (J.DISPATCHING, S.FAILED_RETRY)
    assert walk.step.last_error_code == "ACK_TIMEOUT"
    assert walk.step.next_attempt_at_ms == walk.at_ms + wait_ms


def test_lease_expired_is_a_retryable_failure_with_the_result_backoff() -> None:
    walk = processing()
    assert walk.wait(15 * MINUTE_MS - 1).tick().outcome is Outcome.UNCHANGED
    walk.wait(1).tick()
    assert walk.states == (J.IN_PROGRESS, S.FAILED_RETRY)
    assert walk.step.last_error_code == "LEASE_EXPIRED"
    assert walk.step.next_attempt_at_ms == walk.at_ms + 30 * SECOND_MS


@pytest.mark.parametrize(("acked", "code"), [(False, "ACK_TIMEOUT"), (True, "LEASE_EXPIRED")])
def test_a_timeout_of_the_last_attempt_is_final(acked: bool, code: str) -> None:
    walk = (processing if acked else initiated)(policy=StepPolicy(max_attempts=1))
    walk.tick_when_due()
    assert walk.states == (J.FAILED_FINAL, S.FAILED_FINAL)
    assert walk.job.error_code == walk.step.last_error_code == code


# publish failed


def test_publish_failed_keeps_attempt_and_lease_and_waits_out_the_publish_backoff() -> None:
    walk = Walk(born())
    before = target(walk.step)
    for wait_ms in (30 * SECOND_MS, 2 * MINUTE_MS, 10 * MINUTE_MS, 10 * MINUTE_MS):
        walk.publish_failed()
        assert walk.states == (J.DISPATCHING, S.DISPATCHING)
        assert target(walk.step) == before
        assert walk.step.next_attempt_at_ms == walk.at_ms + wait_ms
        assert walk.record.outbox is not None and walk.record.outbox.due_at_ms == walk.at_ms + wait_ms
        walk.wait(wait_ms)
    assert is_dispatchable(walk.record)
    walk.published()
    assert walk.step.state is S.INITIATED and walk.step.next_attempt_at_ms is None
    assert walk.job.attempts_total == 1


def test_publish_failed_for_a_day_is_final() -> None:
    walk = Walk(born())
    walk.publish_failed("first")
    walk.wait(HOUR_MS).publish_failed("second")
    assert walk.wait(23 * HOUR_MS - 1).tick().outcome is Outcome.UNCHANGED
    walk.wait(1).tick()
    assert walk.states == (J.FAILED_FINAL, S.FAILED_FINAL)
    assert (walk.job.error_code, walk.job.error_message) == ("PUBLISH_FAILED", "second")
    assert walk.record.outbox is not None and walk.record.outbox.state is OutboxState.FAILED_FINAL


def test_publish_failed_is_forgiven_once_the_directive_has_left() -> None:
    walk = Walk(born())
    walk.publish_failed()
    walk.published()
    walk.tick_when_due()
    walk.wait(DAY_MS).tick()
    assert walk.states == (J.DISPATCHING, S.DISPATCHING) and walk.step.attempt_no == 2
    assert walk.record.outbox is not None and walk.record.outbox.failures == 0


def test_publish_failed_once_more_after_a_day_is_final() -> None:
    walk = Walk(born())
    walk.publish_failed()
    walk.wait(DAY_MS).publish_failed()
    assert walk.states == (J.FAILED_FINAL, S.FAILED_FINAL)


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_publish_failed_as_often_as_allowed_is_final(limit: int) -> None:
    walk = Walk(born(policy=StepPolicy(publish_attempts_max=limit)))
    for _ in range(limit - 1):
        walk.publish_failed()
        assert walk.job.state is J.DISPATCHING
    walk.publish_failed()
    assert walk.states == (J.FAILED_FINAL, S.FAILED_FINAL)
    assert walk.job.error_code == "PUBLISH_FAILED"
    assert walk.record.outbox is not None and walk.record.outbox.state is OutboxState.FAILED_FINAL


def test_publish_failed_without_a_limit_is_tried_for_the_whole_day() -> None:
    walk = Walk(born(policy=StepPolicy(publish_attempts_max=0)))
    for _ in range(100):
        walk.wait(MINUTE_MS).publish_failed()
    assert walk.states == (J.DISPATCHING, S.DISPATCHING)


def test_a_retry_of_the_outbox_makes_a_waiting_row_due_now() -> None:
    walk = Walk(born())
    assert walk.give(DispatchNow()).outcome is Outcome.UNCHANGED, "it is due already"
    walk.publish_failed()
    walk.wait(SECOND_MS).give(DispatchNow())
    assert walk.record.outbox is not None and walk.record.outbox.due_at_ms == walk.at_ms
    assert walk.step.next_attempt_at_ms is None
    assert walk.facts == [Fact.PUBLISH_FAILED, Fact.PUBLISH_HURRIED]
