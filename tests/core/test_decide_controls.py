"""Cancel, pause and resume, sentence by sentence."""

from collections.abc import Callable

import pytest
from tests.core.machine import (
    DAY_MS,
    MINUTE_MS,
    SLA_MS,
    Walk,
    born,
    hand_out,
    initiated,
    processing,
    retrying,
    target,
)

from lucius.core.decide import is_dispatchable
from lucius.core.draft import Outcome
from lucius.core.due import next_due_ms
from lucius.core.explain import attempts_max
from lucius.core.inputs import Cancel, DispatchNow, Pause, Resume
from lucius.core.model import StepPolicy
from lucius.core.refusal import Code
from lucius.core.replies import STOPPED, why_to_stop
from lucius.core.states import Engine, Fact, JobState, OutboxState, StepState

J, S = JobState, StepState
Make = Callable[..., Walk]


def waiting(count: int = 1) -> Walk:
    """A job whose first directive waits to leave."""
    return Walk(born(count))


def queued(count: int = 1) -> Walk:
    """A job whose first attempt another engine will begin."""
    return Walk(born(count, engine=Engine.TEMPORAL))


def given(make: Make, *controls: Cancel | Pause | Resume, count: int = 1) -> Walk:
    walk = make(count)
    for control in controls:
        walk.give(control)
    return walk


# Cancel.


@pytest.mark.parametrize("make", [initiated, processing])
def test_cancel_with_a_step_under_way_is_cancelling_until_that_step_ends(make: Make) -> None:
    walk = given(make, Cancel(), count=2)
    assert walk.job.state is J.CANCELLING and walk.facts[-1] is Fact.JOB_CANCELLING
    deadline_at_ms = walk.step.lease_expires_at_ms
    assert next_due_ms(walk.record, walk.at_ms) == deadline_at_ms
    walk.tick_when_due()
    assert walk.states == (J.CANCELLED, S.CANCELLED)
    assert walk.record.steps[1].state is S.CANCELLED


@pytest.mark.parametrize("make", [waiting, retrying, queued])
def test_cancel_with_none_under_way_is_cancelled_at_once(make: Make) -> None:
    walk = given(make, Cancel(), count=2)
    assert walk.job.state is J.CANCELLED and walk.job.completed_at_ms == walk.at_ms
    assert [step.state for step in walk.record.steps] == [S.CANCELLED, S.CANCELLED]
    assert not is_dispatchable(walk.record)


def test_cancel_closes_the_waiting_outbox_row() -> None:
    walk = given(waiting, Cancel())
    assert walk.record.outbox is not None and walk.record.outbox.state is OutboxState.CANCELLED
    assert walk.refused(hand_out(target(walk.step))).code is Code.STALE_ATTEMPT
    assert walk.published().outcome is Outcome.UNCHANGED


def test_cancel_keeps_the_success_of_the_step_under_way() -> None:
    walk = given(processing, Cancel(), count=2)
    walk.succeed("s3://out/1")
    assert walk.job.state is J.CANCELLED
    assert [step.state for step in walk.record.steps] == [S.SUCCEEDED, S.CANCELLED]
    assert walk.record.steps[0].result_ref == {"uri": "s3://out/1"}
    assert walk.job.attempts_total == 1, "no further step is begun"


def test_cancel_is_kept_even_where_the_last_step_succeeds() -> None:
    walk = given(processing, Cancel())
    walk.succeed()
    assert walk.states == (J.CANCELLED, S.SUCCEEDED) and walk.job.final_output is None


def test_cancel_keeps_the_final_failure_of_the_step_and_fails_no_job() -> None:
    walk = given(processing, Cancel(), count=2)
    walk.fail_final("UNREADABLE")
    assert walk.job.state is J.CANCELLED and walk.job.error_code is None
    assert [step.state for step in walk.record.steps] == [S.FAILED_FINAL, S.CANCELLED]
    assert walk.step.last_error_code == "UNREADABLE"


@pytest.mark.parametrize("attempts", [1, 3])
@pytest.mark.parametrize(
    ("make", "end", "code"),
    [
        (processing, Walk.fail_retry, "UNSPECIFIED"),
        (processing, Walk.tick_when_due, "LEASE_EXPIRED"),
        (initiated, Walk.tick_when_due, "ACK_TIMEOUT"),
    ],
)
def test_cancel_makes_of_a_retryable_failure_a_cancelled_step_and_keeps_the_error(
    make: Make, end: Callable[[Walk], object], code: str, attempts: int
) -> None:
    walk: Walk = make(2, StepPolicy(max_attempts=attempts))
    walk.give(Cancel())
    end(walk)
    assert walk.states == (J.CANCELLED, S.CANCELLED)
    assert walk.step.last_error_code == code and walk.job.error_code is None
    assert Fact.STEP_RETRYING not in walk.facts and Fact.JOB_FAILED not in walk.facts
    assert walk.job.attempts_total == 1


@pytest.mark.parametrize("make", [waiting, processing])
def test_cancel_again_changes_nothing(make: Make) -> None:
    walk = given(make, Cancel())
    assert walk.give(Cancel()).outcome is Outcome.UNCHANGED


def test_cancel_of_a_job_that_ended_otherwise_is_refused() -> None:
    for end in (Walk.succeed, Walk.fail_final):
        walk = processing()
        end(walk)
        assert walk.refused(Cancel()).code is Code.JOB_TERMINAL


@pytest.mark.parametrize("make", [waiting, retrying, queued])
def test_cancel_works_on_a_paused_job(make: Make) -> None:
    walk = given(make, Pause(), Cancel())
    assert walk.states == (J.CANCELLED, S.CANCELLED) and walk.job.resume_to is None


@pytest.mark.parametrize("make", [initiated, processing])
def test_cancel_works_on_a_pausing_job_and_forgets_the_pause(make: Make) -> None:
    walk = given(make, Pause(), Cancel())
    assert walk.job.state is J.CANCELLING and walk.job.resume_to is None
    walk.tick_when_due()
    assert walk.states == (J.CANCELLED, S.CANCELLED)


def test_cancel_does_not_run_hot_once_the_job_is_past_its_sla() -> None:
    walk = Walk(born(policy=StepPolicy(lease_ms=DAY_MS)))
    walk.wait(SLA_MS - MINUTE_MS).hand_out()
    walk.ack()
    walk.give(Cancel())
    deadline_at_ms = walk.step.lease_expires_at_ms
    walk.wait(2 * MINUTE_MS)
    assert walk.tick().outcome is Outcome.UNCHANGED
    assert next_due_ms(walk.record, walk.at_ms) == deadline_at_ms


# Pause.


@pytest.mark.parametrize("make", [initiated, processing])
def test_pause_with_a_step_under_way_is_pausing_until_that_step_ends(make: Make) -> None:
    walk = given(make, Pause(), count=2)
    assert walk.states == (J.PAUSING, make().step.state)
    walk.succeed()
    assert walk.states == (J.PAUSED, S.SUCCEEDED) and walk.job.paused_at_ms == walk.at_ms
    assert [step.state for step in walk.record.steps] == [S.SUCCEEDED, S.PENDING]
    assert walk.job.attempts_total == 1, "the next step waits"


@pytest.mark.parametrize("make", [waiting, retrying, queued])
def test_pause_with_none_under_way_is_paused_at_once(make: Make) -> None:
    walk = given(make, Pause())
    assert walk.job.state is J.PAUSED and walk.facts[-1] is Fact.JOB_PAUSED


def test_pause_holds_a_row_that_waits_for_dispatch_with_its_attempt_and_lease() -> None:
    walk = waiting()
    of = target(walk.step)
    walk.give(Pause())
    assert not is_dispatchable(walk.record)
    assert walk.refused(hand_out(of)).code is Code.STALE_ATTEMPT
    assert walk.give(DispatchNow()).outcome is Outcome.UNCHANGED
    walk.wait(DAY_MS).give(Resume())
    assert is_dispatchable(walk.record) and target(walk.step) == of
    walk.hand_out()
    assert walk.step.state is S.INITIATED


def test_pause_gives_nothing_up_that_could_not_be_published() -> None:
    walk = waiting()
    walk.publish_failed()
    walk.give(Pause())
    assert walk.wait(DAY_MS).tick().outcome is Outcome.UNCHANGED
    walk.give(Resume())
    assert is_dispatchable(walk.record)


def test_pause_may_be_overtaken_by_a_directive_that_had_left() -> None:
    walk = given(waiting, Pause())
    walk.wait(MINUTE_MS).published()
    assert walk.states == (J.PAUSING, S.INITIATED)
    assert walk.job.paused_total_ms == MINUTE_MS
    walk.fail_retry()
    assert walk.states == (J.PAUSED, S.FAILED_RETRY)


def test_pause_and_a_success_of_the_last_step_end_the_job() -> None:
    walk = given(processing, Pause())
    walk.succeed("s3://out/1")
    assert walk.job.state is J.SUCCEEDED and walk.job.final_output == "s3://out/1"


def test_pause_and_a_final_failure_end_the_job() -> None:
    walk = given(processing, Pause(), count=2)
    walk.fail_final("UNREADABLE")
    assert walk.job.state is J.FAILED_FINAL and walk.job.error_code == "UNREADABLE"


@pytest.mark.parametrize("end", [Walk.fail_retry, Walk.tick_when_due])
def test_pause_a_due_retry_waits(end: Callable[[Walk], object]) -> None:
    walk = given(processing, Pause())
    end(walk)
    assert walk.states == (J.PAUSED, S.FAILED_RETRY)
    assert walk.wait(DAY_MS).tick().outcome is Outcome.UNCHANGED
    walk.give(Resume())
    assert walk.states == (J.IN_PROGRESS, S.DISPATCHING) and walk.step.attempt_no == 2


@pytest.mark.parametrize("make", [waiting, processing])
def test_pause_again_changes_nothing(make: Make) -> None:
    walk = given(make, Pause())
    assert walk.give(Pause()).outcome is Outcome.UNCHANGED


def test_pause_of_an_ended_job_is_refused() -> None:
    walk = processing()
    walk.succeed()
    assert walk.refused(Pause()).code is Code.JOB_TERMINAL


def test_pause_a_paused_job_is_looked_at_again_and_again() -> None:
    walk = given(waiting, Pause())
    due_at_ms = next_due_ms(walk.record, walk.at_ms)
    assert due_at_ms is not None and due_at_ms > walk.at_ms
    assert walk.tick_when_due().outcome is Outcome.UNCHANGED


# A pause that asks the worker to stop.

ONCE = StepPolicy(max_attempts=1)
MAKERS = [initiated, processing]


def stoppable(make: Make = processing, policy: StepPolicy = ONCE) -> Walk:
    """A job whose step has `stop_on_pause`, under way and paused."""
    walk = Walk(born(2, policy, stop_on_pause=True))
    walk.hand_out()
    if make is processing:
        walk.ack()
    walk.give(Pause())
    return walk


@pytest.mark.parametrize("make", MAKERS)
def test_a_worker_is_told_to_stop_by_the_answer_to_its_next_message(make: Make) -> None:
    walk = stoppable(make)
    assert walk.job.state is J.PAUSING
    assert walk.ack().stop and walk.progress(10).stop and walk.ack().outcome is Outcome.DUPLICATE
    assert why_to_stop(walk.record) == "the job is being paused"


@pytest.mark.parametrize("make", MAKERS)
def test_an_attempt_that_a_pause_stopped_does_not_count(make: Make) -> None:
    walk = stoppable(make)
    lease_id = walk.step.lease_id
    walk.fail_retry(STOPPED)
    assert walk.states == (J.PAUSED, S.FAILED_RETRY) and walk.step.last_error_code == STOPPED
    walk.wait(DAY_MS).give(Resume())
    assert walk.step.state is S.DISPATCHING, "at once, and not after a backoff"
    assert (walk.step.attempt_no, attempts_max(walk.step)) == (2, 2) and walk.step.lease_id != lease_id
    walk.hand_out()
    walk.fail_retry("BUSY")
    assert walk.states == (J.FAILED_FINAL, S.FAILED_FINAL), "its one attempt has failed by now"


def test_each_pause_may_stop_an_attempt_and_backoffs_count_failures_alone() -> None:
    walk = stoppable(policy=StepPolicy(max_attempts=2, backoff_result_ms=(1_000, 9_000)))
    for number in (2, 3):
        walk.fail_retry(STOPPED)
        walk.give(Resume())
        assert walk.step.attempt_no == number
        walk.hand_out()
        walk.give(Pause())
    walk.give(Resume())
    walk.fail_retry("BUSY")
    assert walk.step.next_attempt_at_ms == walk.at_ms + 1_000
    walk.tick_when_due()
    assert (walk.step.attempt_no, attempts_max(walk.step)) == (4, 4)


def test_a_worker_that_stops_after_the_resume_was_asked_to_all_the_same() -> None:
    walk = stoppable()
    walk.give(Resume())
    assert not walk.progress(10).stop, "a worker that was not told yet goes on"
    walk.fail_retry(STOPPED)
    assert walk.states == (J.IN_PROGRESS, S.DISPATCHING) and walk.step.attempt_no == 2
    walk.hand_out()
    walk.fail_retry(STOPPED)
    assert walk.job.state is J.FAILED_FINAL, "this one was not asked to stop"


def test_a_worker_that_stops_of_its_own_accord_has_failed() -> None:
    walk = Walk(born(1, ONCE, stop_on_pause=True))
    walk.hand_out()
    walk.fail_retry(STOPPED)
    assert walk.job.state is J.FAILED_FINAL


@pytest.mark.parametrize("end", [lambda walk: walk.fail_retry("BUSY"), Walk.tick_when_due])
def test_any_other_failure_counts_though_a_pause_asked_to_stop(end: Callable[[Walk], object]) -> None:
    walk = stoppable()
    end(walk)
    assert walk.job.state is J.FAILED_FINAL


def test_success_goes_before_the_pause_and_the_next_worker_is_not_told_to_stop() -> None:
    walk = stoppable()
    walk.succeed()
    assert walk.states == (J.PAUSED, S.SUCCEEDED)
    walk.give(Resume())
    walk.hand_out()
    assert not walk.ack().stop


def test_a_cancel_after_the_pause_cancels_the_step_that_stopped() -> None:
    walk = stoppable()
    walk.give(Cancel())
    assert walk.progress(10).stop and why_to_stop(walk.record) == "the job is being cancelled"
    walk.fail_retry(STOPPED)
    assert walk.states == (J.CANCELLED, S.CANCELLED)


def test_a_directive_that_overtook_the_pause_is_told_to_stop() -> None:
    walk = Walk(born(1, ONCE, stop_on_pause=True))
    walk.give(Pause())
    walk.published()
    assert walk.states == (J.PAUSING, S.INITIATED) and walk.ack().stop
    walk.fail_retry(STOPPED)
    assert walk.states == (J.PAUSED, S.FAILED_RETRY)


def test_without_the_word_in_its_protocol_a_pause_stops_no_worker() -> None:
    walk = given(processing, Pause())
    assert not walk.progress(10).stop and why_to_stop(walk.record) is None


# Resume.


@pytest.mark.parametrize(
    ("make", "state"),
    [(waiting, J.DISPATCHING), (queued, J.QUEUED), (initiated, J.DISPATCHING), (processing, J.IN_PROGRESS)],
)
def test_resume_goes_back_to_where_the_pause_came_from(make: Make, state: JobState) -> None:
    walk = given(make, Pause())
    step = walk.step
    walk.give(Resume())
    assert walk.job.state is state and walk.job.resume_to is None
    assert walk.step == step, "the step under way or waiting is untouched"


def test_resume_goes_to_in_progress_once_anything_was_acknowledged() -> None:
    walk = given(initiated, Pause())
    ways_back = [walk.job.resume_to]
    walk.ack()
    assert [*ways_back, walk.job.resume_to] == [J.DISPATCHING, J.IN_PROGRESS]
    walk.give(Resume())
    assert walk.states == (J.IN_PROGRESS, S.PROCESSING)


def test_resume_after_an_unanswered_directive_goes_back_to_dispatching() -> None:
    walk = given(initiated, Pause())
    walk.tick_when_due()
    assert walk.states == (J.PAUSED, S.FAILED_RETRY)
    walk.give(Resume())
    assert walk.states == (J.DISPATCHING, S.FAILED_RETRY), "its backoff is not over"
    walk.tick_when_due()
    assert walk.states == (J.DISPATCHING, S.DISPATCHING)


def test_resume_goes_on_from_the_first_step_that_has_not_succeeded() -> None:
    walk = given(processing, Pause(), count=3)
    walk.succeed()
    walk.wait(DAY_MS).give(Resume())
    assert walk.job.state is J.IN_PROGRESS and walk.job.current_step_id == "step_02"
    assert [step.state for step in walk.record.steps] == [S.SUCCEEDED, S.DISPATCHING, S.PENDING]


@pytest.mark.parametrize("make", [waiting, initiated, processing, retrying, queued])
def test_resume_of_a_job_that_is_not_paused_changes_nothing(make: Make) -> None:
    assert make().give(Resume()).outcome is Outcome.UNCHANGED


def test_resume_of_an_ended_job_is_refused() -> None:
    walk = processing()
    walk.succeed()
    assert walk.refused(Resume()).code is Code.JOB_TERMINAL


@pytest.mark.parametrize("control", [Pause(), Resume()])
@pytest.mark.parametrize("make", [initiated, processing])
def test_pause_and_resume_of_a_cancelling_job_are_refused(make: Make, control: Pause | Resume) -> None:
    assert given(make, Cancel()).refused(control).code is Code.JOB_CANCELLING
