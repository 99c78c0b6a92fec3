"""The rules that hold always, by their numbers, and the ACK clock."""

from collections.abc import Callable

import pytest
from tests.core.machine import (
    DAY_MS,
    MINUTE_MS,
    SECOND_MS,
    SLA_MS,
    Target,
    Walk,
    ack,
    born,
    hand_out,
    initiated,
    notes,
    processing,
    progress,
    replies,
    result,
    retrying,
    target,
)

from lucius.core.attempt import AttemptRef
from lucius.core.decide import is_dispatchable
from lucius.core.draft import Decision, Outcome
from lucius.core.due import next_due_ms
from lucius.core.inputs import Ack, Cancel, HandOut, Pause, Progress, Reply, Result, ResultStatus
from lucius.core.model import StepPolicy
from lucius.core.refusal import Code
from lucius.core.replies import EVIDENCE_MAX, PROGRESS_EVIDENCE_MAX
from lucius.core.states import STEP_ACTIVE, Fact, JobState, OutboxState, StepState

J, S = JobState, StepState
Kind = type[Ack] | type[Progress] | type[Result]
TYPES: list[Kind] = [Ack, Progress, Result]


def reply_of(kind: Kind, of: Target) -> Reply:
    if kind is Ack:
        return ack(of)
    return progress(of, 50) if kind is Progress else result(of, ResultStatus.SUCCEEDED)


def other_than(of: Target, wrong: str) -> Target:
    return {
        "attempt_no": of._replace(attempt_no=2),
        "lease_id": of._replace(lease_id="lease of another"),
        "step_id": of._replace(step_id="step_02"),
    }[wrong]


def succeeded() -> Walk:
    walk = processing(2)
    walk.succeed()
    walk.ack()
    walk.succeed()
    return walk


def failed() -> Walk:
    walk = initiated(2, StepPolicy(max_attempts=1))
    walk.tick_when_due()
    return walk


def cancelled() -> Walk:
    walk = Walk(born(2))
    walk.give(Cancel())
    return walk


def cancelling() -> Walk:
    walk = processing(2)
    walk.give(Cancel())
    return walk


ENDED: list[Callable[[], Walk]] = [succeeded, failed, cancelled]


# 1. Terminal states never change. What arrives later is recorded as an event and changes nothing else.


@pytest.mark.parametrize("ended", ENDED)
def test_rule_1_a_terminal_job_never_changes(ended: Callable[[], Walk]) -> None:
    walk = ended().wait(10 * SLA_MS)
    before = walk.record
    for given in replies(target(walk.step)):
        walk.give(given)
    for note in notes(target(walk.step)):
        if isinstance(note, HandOut):
            assert walk.refused(note).code is Code.STALE_ATTEMPT
        else:
            assert walk.give(note).outcome is Outcome.UNCHANGED
    assert walk.tick().outcome is Outcome.UNCHANGED
    assert walk.job.state is before.job.state and walk.job.completed_at_ms == before.job.completed_at_ms
    assert walk.record.steps == before.steps and walk.record.outbox == before.outbox
    assert next_due_ms(walk.record, walk.at_ms) is None


@pytest.mark.parametrize("ended", ENDED)
def test_rule_1_what_arrives_after_the_end_is_recorded(ended: Callable[[], Walk]) -> None:
    walk = ended()
    given = progress(target(walk.step), 99)
    decision = walk.give(given)
    assert decision.outcome is Outcome.RECORDED
    assert [(event.type, event.data) for event in decision.events] == [
        (Fact.REPLY_LATE, {"reply": given.content()})
    ]


def test_rule_1_a_late_success_of_a_failed_step_stays_evidence() -> None:
    walk = failed()
    assert walk.succeed("s3://out/late").outcome is Outcome.RECORDED
    assert walk.states == (J.FAILED_FINAL, S.FAILED_FINAL) and walk.step.result_ref is None


# 2. At most one step of a job is between DISPATCHING and PROCESSING at any time.


def test_rule_2_the_next_step_is_begun_by_the_end_of_the_one_before() -> None:
    walk = Walk(born(3))
    for index in range(3):
        for move in (walk.hand_out, walk.ack):
            active = [step.step_index for step in walk.record.steps if step.state in STEP_ACTIVE]
            assert active == [index]
            move()
        walk.succeed()
    assert walk.job.state is J.SUCCEEDED


# 3. A reply counts only for the current attempt and lease, while the step is active.


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("wrong", ["attempt_no", "lease_id", "step_id"])
def test_rule_3_a_reply_counts_only_for_the_current_attempt(wrong: str, kind: Kind) -> None:
    walk = initiated(2)
    decision = walk.give(reply_of(kind, other_than(target(walk.step), wrong)))
    assert (decision.outcome, decision.stop) == (Outcome.STALE, True)
    assert walk.facts[-1] is Fact.REPLY_STALE
    assert walk.states == (J.DISPATCHING, S.INITIATED) and not walk.step.acked


@pytest.mark.parametrize("kind", TYPES)
def test_rule_3_a_zombie_of_an_earlier_attempt_is_not_heard(kind: Kind) -> None:
    walk = retrying()
    zombie = target(walk.step)
    walk.tick_when_due()
    assert walk.give(reply_of(kind, zombie)).outcome is Outcome.STALE
    assert (walk.step.state, walk.step.attempt_no) == (S.DISPATCHING, 2)


@pytest.mark.parametrize("wrong", ["attempt_no", "lease_id", "step_id"])
def test_rule_3_a_note_of_another_attempt_does_not_count_either(wrong: str) -> None:
    walk = Walk(born(2))
    for note in notes(other_than(target(walk.step), wrong)):
        if isinstance(note, HandOut):
            assert walk.refused(note).code is Code.STALE_ATTEMPT
        else:
            assert walk.give(note).outcome is Outcome.UNCHANGED
    assert walk.states == (J.DISPATCHING, S.DISPATCHING)


# 4. A RESULT implies its ACK, from any active state.


@pytest.mark.parametrize("status", ResultStatus)
@pytest.mark.parametrize("state", sorted(STEP_ACTIVE))
def test_rule_4_a_result_implies_its_ack(state: StepState, status: ResultStatus) -> None:
    walk = {S.DISPATCHING: lambda: Walk(born()), S.INITIATED: initiated, S.PROCESSING: processing}[state]()
    walk.facts.clear()
    decision = walk.give(result(target(walk.step), status))
    assert decision.outcome is Outcome.APPLIED
    implied = {
        S.DISPATCHING: [Fact.DIRECTIVE_PUBLISHED, Fact.STEP_ACKED],
        S.INITIATED: [Fact.STEP_ACKED],
        S.PROCESSING: [],
    }[state]
    assert walk.facts[: len(implied)] == implied
    assert all(event.data["implied"] is True for event in decision.events[: len(implied)])
    assert Fact.STEP_ACKED not in walk.facts[len(implied) :]
    assert walk.step.acked and walk.step.resulted
    assert walk.record.outbox is not None and walk.record.outbox.state is OutboxState.SENT


def test_rule_4_the_note_of_publishing_may_come_after_the_reply() -> None:
    walk = Walk(born())
    walk.ack()
    assert walk.published().outcome is Outcome.UNCHANGED
    assert walk.publish_failed().outcome is Outcome.UNCHANGED
    assert walk.step.state is S.PROCESSING


# 5. The outcome of a reply: the first rule that matches.


def _stale_while_ended() -> tuple[Walk, Reply]:
    walk = failed()
    return walk, ack(target(walk.step)._replace(lease_id="lease of another"))


def _duplicate_while_ended() -> tuple[Walk, Reply]:
    walk = succeeded()
    return walk, result(target(walk.step), ResultStatus.SUCCEEDED)


def _duplicate_while_retrying() -> tuple[Walk, Reply]:
    walk = retrying()
    return walk, result(target(walk.step), ResultStatus.FAILED_RETRY)


def _of_a_finished_step() -> tuple[Walk, Reply]:
    walk = processing(2)
    of = target(walk.step)
    walk.succeed()
    return walk, progress(of, 70)


def _never_given_before_the_end() -> tuple[Walk, Reply]:
    walk = failed()
    return walk, ack(target(walk.step))


def _progress_while_retrying() -> tuple[Walk, Reply]:
    walk = retrying()
    return walk, progress(target(walk.step), 70)


def _ack_after_its_timeout() -> tuple[Walk, Reply]:
    walk = initiated()
    walk.tick_when_due()
    return walk, ack(target(walk.step))


def _result_after_the_lease() -> tuple[Walk, Reply]:
    walk = processing()
    walk.tick_when_due()
    return walk, result(target(walk.step), ResultStatus.SUCCEEDED)


def _ack_overtaken_by_progress() -> tuple[Walk, Reply]:
    walk = initiated()
    walk.progress(10)
    return walk, ack(target(walk.step))


def _progress_again() -> tuple[Walk, Reply]:
    walk = processing()
    walk.progress(10)
    return walk, progress(target(walk.step), 10)


@pytest.mark.parametrize(
    ("situation", "outcome"),
    [
        (_stale_while_ended, Outcome.STALE),
        (_duplicate_while_ended, Outcome.DUPLICATE),
        (_duplicate_while_retrying, Outcome.DUPLICATE),
        (_ack_overtaken_by_progress, Outcome.DUPLICATE),
        (_of_a_finished_step, Outcome.RECORDED),
        (_never_given_before_the_end, Outcome.RECORDED),
        (_progress_while_retrying, Outcome.STALE),
        (_ack_after_its_timeout, Outcome.STALE),
        (_result_after_the_lease, Outcome.STALE),
        (_progress_again, Outcome.APPLIED),
    ],
)
def test_rule_5_the_first_match_is_the_outcome(
    situation: Callable[[], tuple[Walk, Reply]], outcome: Outcome
) -> None:
    walk, reply = situation()
    states, evidence = walk.states, walk.job.evidence_count
    decision = walk.give(reply)
    assert decision.outcome is outcome
    assert walk.states == states
    if outcome is not Outcome.APPLIED:
        assert [event.data["reply"] for event in decision.events] == [reply.content()]
        assert (decision.events[0].step_id, decision.events[0].attempt_no) == (
            reply.step_id,
            reply.attempt_no,
        )
        assert walk.job.evidence_count == evidence + 1


@pytest.mark.parametrize("make", [processing, succeeded])
def test_rule_5_at_most_a_hundred_pieces_of_evidence_are_kept(make: Callable[[], Walk]) -> None:
    walk = make()
    for _ in range(EVIDENCE_MAX):
        assert len(walk.ack().events) == 1
    assert EVIDENCE_MAX == walk.job.evidence_count == 100
    before = walk.record
    decision = walk.ack()
    assert decision.outcome is Outcome.DUPLICATE and not decision.events
    assert walk.record is before, "a reply too many is answered all the same, and changes nothing"


def test_rule_5_signs_of_life_leave_room_for_the_result_that_follows_them() -> None:
    walk = succeeded()
    late = target(walk.record.steps[0])
    for _ in range(PROGRESS_EVIDENCE_MAX):
        assert len(walk.give(progress(late, 50)).events) == 1
    too_many = walk.give(progress(late, 50))
    assert too_many.outcome is Outcome.RECORDED and not too_many.events
    for _ in range(EVIDENCE_MAX - PROGRESS_EVIDENCE_MAX):
        assert len(walk.give(result(late, ResultStatus.SUCCEEDED)).events) == 1
    assert not walk.give(result(late, ResultStatus.SUCCEEDED)).events


# 7. `stop` is true once the job is cancelling or the attempt is no longer current.


def _stop_of(walk: Walk, reply: Reply) -> bool:
    decision: Decision = walk.give(reply)
    return decision.stop


@pytest.mark.parametrize("kind", TYPES)
def test_rule_7_a_cancelling_job_asks_its_service_to_stop(kind: Kind) -> None:
    walk = cancelling()
    assert _stop_of(walk, reply_of(kind, target(walk.step)))


@pytest.mark.parametrize("kind", [Ack, Progress])
def test_rule_7_a_current_attempt_goes_on(kind: Kind) -> None:
    for walk in (Walk(born()), initiated(), processing()):
        assert not _stop_of(walk, reply_of(kind, target(walk.step)))
        assert not _stop_of(walk, reply_of(kind, target(walk.step))), "repeating it changes nothing"


def test_rule_7_a_pause_lets_the_step_under_way_finish() -> None:
    walk = processing()
    walk.give(Pause())
    assert not walk.progress(10).stop


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("make", [retrying, succeeded, failed, cancelled])
def test_rule_7_an_attempt_that_is_no_longer_current_stops(make: Callable[[], Walk], kind: Kind) -> None:
    walk = make()
    of = target(walk.step)
    attempt = AttemptRef(
        job_id=walk.record.job.job_id, step_id=of.step_id, attempt_no=of.attempt_no, lease_id=of.lease_id
    )
    assert not attempt.is_current(walk.record)
    assert _stop_of(walk, reply_of(kind, of))


def test_rule_7_a_service_that_stopped_ends_the_cancelling_job() -> None:
    walk = cancelling()
    decision = walk.fail_retry("STOPPED")
    assert decision.stop and walk.states == (J.CANCELLED, S.CANCELLED)
    assert walk.step.last_error_code == "STOPPED"


# The ACK clock.


def test_the_ack_clock_waiting_for_a_worker_fails_nobody() -> None:
    walk = Walk(born())
    assert next_due_ms(walk.record, walk.at_ms) == walk.job.created_at_ms + walk.job.sla_ms
    assert walk.wait(SLA_MS - 1).tick().outcome is Outcome.UNCHANGED
    assert walk.states == (J.DISPATCHING, S.DISPATCHING) and walk.step.lease_expires_at_ms is None
    assert is_dispatchable(walk.record)


def test_the_ack_clock_the_hand_out_commits_sent_initiated_and_the_deadline() -> None:
    walk = Walk(born()).wait(DAY_MS)
    decision = walk.hand_out()
    assert [event.type for event in decision.events] == [Fact.DIRECTIVE_PUBLISHED]
    assert walk.record.outbox is not None and walk.record.outbox.state is OutboxState.SENT
    assert walk.record.outbox.sent_at_ms == walk.at_ms
    assert walk.step.state is S.INITIATED
    assert (
        walk.step.lease_expires_at_ms == walk.at_ms + 30 * SECOND_MS == next_due_ms(walk.record, walk.at_ms)
    )


def test_the_ack_clock_does_not_run_where_taking_the_directive_is_its_ack() -> None:
    walk = Walk(born())
    decision = walk.give(hand_out(target(walk.step), picked_up=True))
    assert [event.type for event in decision.events] == [Fact.DIRECTIVE_PUBLISHED, Fact.STEP_ACKED]
    assert walk.states == (J.IN_PROGRESS, S.PROCESSING)
    assert walk.step.lease_expires_at_ms == walk.at_ms + 15 * MINUTE_MS
    assert walk.ack().outcome is Outcome.DUPLICATE


def test_the_ack_clock_one_attempt_is_handed_out_once() -> None:
    walk = initiated()
    assert walk.refused(hand_out(target(walk.step))).code is Code.STALE_ATTEMPT


def test_the_ack_clock_what_was_handed_out_waits_for_its_timeout() -> None:
    walk = initiated()
    walk.tick_when_due()
    assert walk.step.state is S.FAILED_RETRY and walk.step.last_error_code == "ACK_TIMEOUT"
    walk.wait(MINUTE_MS).tick()
    assert is_dispatchable(walk.record) and walk.step.attempt_no == 2
