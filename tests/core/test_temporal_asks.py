"""What a workflow may ask of the machine, and when a job of the temporal engine must be looked at."""

import pytest
from tests.core.machine import (
    HOUR_MS,
    MINUTE_MS,
    SECOND_MS,
    SLA_MS,
    START_MS,
    Walk,
    ack,
    begin,
    born,
    target,
)
from tests.core.outcomes import explained

from lucius.contracts.internal import position_of
from lucius.core.decide import is_dispatchable, is_publishable
from lucius.core.draft import Outcome
from lucius.core.due import ALARM_AFTER_MS, ALARM_EVERY_MS_MAX, PAUSED_RECHECK_MS, is_due_at_once, next_due_ms
from lucius.core.explain import Explanation, WaitsFor
from lucius.core.inputs import BeginAttempt, Cancel, Expire, ExpireReason, Pause, Resume
from lucius.core.model import StepPolicy
from lucius.core.refusal import Code
from lucius.core.states import Engine, Fact, JobState, OutboxState, StepState

J, S = JobState, StepState


def queued(count: int = 1, policy: StepPolicy | None = None) -> Walk:
    return Walk(born(count, policy, engine=Engine.TEMPORAL))


def begun(count: int = 1, policy: StepPolicy | None = None) -> Walk:
    walk = queued(count, policy)
    walk.give(begin(walk.record))
    return walk


def expire(walk: Walk, reason: ExpireReason) -> Outcome:
    of = target(walk.step)
    ask = Expire(step_id=of.step_id, attempt_no=of.attempt_no, lease_id=of.lease_id, reason=reason)
    return walk.give(ask).outcome


def test_an_attempt_begins_when_it_is_asked_for_and_not_before() -> None:
    walk = queued()
    assert walk.states == (J.QUEUED, S.PENDING) and walk.record.outbox is None
    walk.tick()
    assert walk.states == (J.QUEUED, S.PENDING)
    walk.give(BeginAttempt(step_id="step_01", attempt_no=1, lease_id="mine"))
    assert walk.states == (J.QUEUED, S.INITIATED)
    outbox = walk.record.outbox
    assert outbox is not None and (outbox.state, outbox.lease_id) == (OutboxState.PENDING, "mine")
    assert walk.step.lease_expires_at_ms is None, "no clock runs before the directive has left"
    assert is_publishable(walk.record) and not is_dispatchable(walk.record)


@pytest.mark.parametrize(
    "ask",
    [
        BeginAttempt(step_id="step_01", attempt_no=2, lease_id="other"),
        BeginAttempt(step_id="step_01", attempt_no=1, lease_id="other"),
        BeginAttempt(step_id="step_02", attempt_no=1, lease_id="other"),
        BeginAttempt(step_id="step_09", attempt_no=1, lease_id="other"),
    ],
)
def test_what_does_not_fit_changes_nothing(ask: BeginAttempt) -> None:
    walk = begun(2)
    assert walk.give(ask).outcome is Outcome.UNCHANGED


def test_a_lease_is_never_used_twice() -> None:
    walk = begun(policy=StepPolicy(backoff_result_ms=(0,)))
    walk.fail_retry()
    used = walk.step.lease_id or ""
    ask = BeginAttempt(step_id="step_01", attempt_no=2, lease_id=used)
    assert walk.give(ask).outcome is Outcome.UNCHANGED
    assert walk.give(begin(walk.record)).outcome is Outcome.APPLIED


def test_the_outbox_engine_takes_no_such_wishes() -> None:
    walk = Walk(born())
    assert walk.refused(begin(walk.record)).code is Code.STALE_ATTEMPT
    of = target(walk.step)
    for reason in ExpireReason:
        ask = Expire(step_id=of.step_id, attempt_no=1, lease_id=of.lease_id, reason=reason)
        assert walk.refused(ask).code is Code.STALE_ATTEMPT


def test_a_tick_runs_no_attempt_out() -> None:
    walk = begun()
    walk.published()
    walk.wait(HOUR_MS)
    assert walk.tick().outcome is Outcome.UNCHANGED
    assert expire(walk, ExpireReason.LEASE_EXPIRED) is Outcome.UNCHANGED
    assert expire(walk, ExpireReason.PUBLISH_FAILED) is Outcome.UNCHANGED
    assert expire(walk, ExpireReason.ACK_TIMEOUT) is Outcome.APPLIED
    assert walk.states == (J.QUEUED, S.FAILED_RETRY)
    assert expire(walk, ExpireReason.ACK_TIMEOUT) is Outcome.UNCHANGED


def test_before_it_is_published_a_cancel_is_immediate_and_a_pause_holds_the_row() -> None:
    walk = begun()
    walk.give(Pause())
    assert walk.states == (J.PAUSED, S.INITIATED)
    lease_id = walk.step.lease_id
    walk.give(Resume())
    assert (walk.job.state, walk.step.lease_id, walk.step.attempt_no) == (J.QUEUED, lease_id, 1)
    walk.give(Cancel())
    assert walk.states == (J.CANCELLED, S.CANCELLED)


def test_once_it_is_published_both_wait_for_its_end() -> None:
    walk = begun()
    walk.published()
    walk.give(Pause())
    assert walk.states == (J.PAUSING, S.INITIATED)
    walk.give(Cancel())
    assert walk.states == (J.CANCELLING, S.INITIATED)


def test_a_reply_may_be_faster_than_the_note_that_its_directive_left() -> None:
    walk = begun()
    walk.give(ack(target(walk.step)))
    assert walk.facts[-2:] == [Fact.DIRECTIVE_PUBLISHED, Fact.STEP_ACKED]
    assert walk.states == (J.IN_PROGRESS, S.PROCESSING)
    assert walk.published().outcome is Outcome.UNCHANGED


def test_the_position_says_when_each_clock_runs_out() -> None:
    walk = queued()
    assert position_of(walk.record).deadline_at_ms is None
    walk = begun(policy=StepPolicy(dispatch_timeout_ms=HOUR_MS))
    assert position_of(walk.record).deadline_at_ms is None
    walk.publish_failed()
    at = position_of(walk.record)
    assert (at.published, at.next_attempt_at_ms, at.deadline_at_ms) == (
        False,
        walk.at_ms + 30 * SECOND_MS,
        walk.at_ms + HOUR_MS,
    )
    walk.published()
    at = position_of(walk.record)
    assert (at.published, at.deadline_at_ms) == (True, walk.at_ms + 30 * SECOND_MS)
    walk.ack()
    assert position_of(walk.record).deadline_at_ms == walk.at_ms + 15 * MINUTE_MS
    walk.succeed()
    at = position_of(walk.record)
    assert at.terminal and at.deadline_at_ms is None


def test_the_alarm_is_set_after_the_moment_when_the_workflow_should_ask() -> None:
    walk = queued()
    assert next_due_ms(walk.record, walk.at_ms) == START_MS + ALARM_AFTER_MS
    walk.give(begin(walk.record))
    walk.publish_failed()
    assert next_due_ms(walk.record, walk.at_ms) == walk.at_ms + 30 * SECOND_MS + ALARM_AFTER_MS
    walk.published()
    assert next_due_ms(walk.record, walk.at_ms) == walk.at_ms + 30 * SECOND_MS + ALARM_AFTER_MS
    walk.ack()
    assert next_due_ms(walk.record, walk.at_ms) == walk.at_ms + 15 * MINUTE_MS + ALARM_AFTER_MS
    walk.fail_retry()
    assert next_due_ms(walk.record, walk.at_ms) == walk.at_ms + 30 * SECOND_MS + ALARM_AFTER_MS
    walk.give(Pause())
    assert next_due_ms(walk.record, walk.at_ms) == walk.at_ms + PAUSED_RECHECK_MS


def test_an_alarm_that_changed_nothing_is_set_again_later_and_later() -> None:
    walk = queued()
    for waited_ms in (ALARM_AFTER_MS, MINUTE_MS, 10 * MINUTE_MS):
        now_ms = START_MS + waited_ms
        assert next_due_ms(walk.record, now_ms) == now_ms + max(waited_ms, ALARM_AFTER_MS)
    now_ms = START_MS + 5 * HOUR_MS
    assert next_due_ms(walk.record, now_ms) == now_ms + ALARM_EVERY_MS_MAX
    assert next_due_ms(walk.record, START_MS + SLA_MS - 1) == START_MS + SLA_MS


@pytest.mark.parametrize("engine", Engine)
def test_only_controls_of_this_engine_are_due_at_once(engine: Engine) -> None:
    walk = Walk(born(engine=engine))
    if engine is Engine.TEMPORAL:
        assert not is_due_at_once(walk.job, walk.give(begin(walk.record)).events)
    for wish in (Pause(), Resume(), Cancel()):
        events = walk.give(wish).events
        assert is_due_at_once(walk.job, events) is (engine is Engine.TEMPORAL)


@pytest.mark.parametrize(
    ("wish", "state"), [(Pause(), JobState.PAUSING), (Cancel(), JobState.CANCELLING)], ids=["pause", "cancel"]
)
def test_a_control_during_an_attempt_is_due_at_once_too(wish: Pause | Cancel, state: JobState) -> None:
    walk = queued()
    walk.give(begin(walk.record))
    walk.published()
    events = walk.give(wish).events
    assert walk.job.state is state
    assert is_due_at_once(walk.job, events)


def test_a_workflow_may_be_late_by_half_a_minute_and_is_looked_after_every_hour_at_least() -> None:
    assert (ALARM_AFTER_MS, ALARM_EVERY_MS_MAX) == (30 * SECOND_MS, HOUR_MS)


def _explained(walk: Walk) -> Explanation:
    return explained(walk.record, walk.at_ms, over_bus=True, tenant_max=9)


def test_why_a_job_waits_for_its_workflow_its_publish_or_its_service() -> None:
    walk = queued()
    assert _explained(walk).waiting_for is WaitsFor.ENGINE
    walk.give(begin(walk.record))
    told = _explained(walk)
    assert told.waiting_for is WaitsFor.PUBLISH
    assert "attempt 1 of 3" in told.summary and "lane 15" in told.hints[0]
    assert told.next is not None and told.next.at_ms is None
    walk.publish_failed()
    told = _explained(walk)
    assert told.waiting_for is WaitsFor.PUBLISH and "failed once" in told.summary
    assert told.hints == ("is the bus up? retry the outbox to try every waiting directive at once",)
    walk.published()
    assert _explained(walk).waiting_for is WaitsFor.ACK
    walk.ack()
    assert _explained(walk).waiting_for is WaitsFor.RESULT
