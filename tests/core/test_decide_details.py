"""What a decision leaves behind to the letter: the moments in the rows, the words in the trail."""

import msgspec
import pytest
from tests.core.machine import (
    HOUR_MS,
    SECOND_MS,
    START_MS,
    Walk,
    born,
    hand_out,
    initiated,
    new_job,
    new_steps,
    processing,
    retrying,
    target,
)

from lucius.core.decide import create
from lucius.core.draft import Decision
from lucius.core.inputs import Cancel, Control, DispatchNow, Pause, Resume, Tick
from lucius.core.model import Event, Outbox, StepPolicy
from lucius.core.refusal import Code, Refused
from lucius.core.states import Fact, JobState, OutboxState, StepState

replace = msgspec.structs.replace
NO_REASON = "the service gave no reason"
LATER_MS = START_MS + 5 * SECOND_MS


def _event(decision: Decision, fact: Fact) -> Event:
    (event,) = [event for event in decision.events if event.type is fact]
    return event


def _outbox(walk: Walk) -> Outbox:
    assert walk.record.outbox is not None
    return walk.record.outbox


def test_a_success_says_when_the_step_and_the_job_were_done() -> None:
    walk = processing(2)
    walk.wait(5 * SECOND_MS)
    walk.succeed()
    first = walk.record.steps[0]
    assert (first.completed_at_ms, first.updated_at_ms, first.state) == (
        LATER_MS,
        LATER_MS,
        StepState.SUCCEEDED,
    )
    assert walk.job.completed_at_ms is None


def test_a_hurried_directive_is_due_at_once() -> None:
    walk = Walk(born())
    walk.publish_failed()
    walk.wait(5 * SECOND_MS)
    walk.give(DispatchNow())
    row = _outbox(walk)
    assert (row.due_at_ms, row.updated_at_ms, row.state) == (LATER_MS, LATER_MS, OutboxState.PENDING)
    assert walk.step.next_attempt_at_ms is None


def test_a_row_that_leaves_says_when() -> None:
    walk = Walk(born())
    walk.wait(5 * SECOND_MS)
    walk.hand_out()
    row = _outbox(walk)
    assert (row.state, row.sent_at_ms, row.updated_at_ms) == (OutboxState.SENT, LATER_MS, LATER_MS)


def test_a_row_that_is_given_up_says_when() -> None:
    walk = Walk(born(1, StepPolicy(publish_attempts_max=1)))
    walk.wait(5 * SECOND_MS)
    failed = walk.publish_failed("away")
    row = _outbox(walk)
    assert (row.state, row.sent_at_ms, row.updated_at_ms) == (OutboxState.FAILED_FINAL, None, LATER_MS)
    expected = {"reason": "PUBLISH", "code": "PUBLISH_FAILED", "message": "away"}
    assert _event(failed, Fact.STEP_FAILED).data == expected


def test_a_row_that_is_cancelled_says_when() -> None:
    walk = Walk(born())
    walk.wait(5 * SECOND_MS)
    walk.give(Cancel())
    row = _outbox(walk)
    assert (row.state, row.sent_at_ms, row.updated_at_ms) == (OutboxState.CANCELLED, None, LATER_MS)


def test_what_ends_is_due_no_more() -> None:
    walk = retrying()
    assert walk.step.next_attempt_at_ms is not None
    walk.give(Cancel())
    assert walk.step.next_attempt_at_ms is None and walk.step.lease_expires_at_ms is None
    done = processing()
    done.succeed()
    assert done.step.next_attempt_at_ms is None and done.step.lease_expires_at_ms is None


def test_a_job_that_ended_while_pausing_has_nowhere_to_go_back_to() -> None:
    done, failed = processing(), processing()
    for walk in (done, failed):
        walk.give(Pause())
        assert walk.job.resume_to is JobState.IN_PROGRESS
    done.succeed()
    failed.fail_final()
    assert (done.job.state, done.job.resume_to) == (JobState.SUCCEEDED, None)
    assert (failed.job.state, failed.job.resume_to) == (JobState.FAILED_FINAL, None)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (None, {"code": "UNSPECIFIED", "message": NO_REASON}),
        ("BUSY", {"code": "BUSY", "message": "the service said BUSY"}),
    ],
)
def test_the_words_of_a_failed_result_are_kept_in_the_trail(
    code: str | None, expected: dict[str, str]
) -> None:
    final, last, again, cancelled = (
        processing(),
        processing(1, StepPolicy(max_attempts=1)),
        processing(),
        processing(),
    )
    said = {"reason": "RESULT", **expected}
    assert _event(final.fail_final(code), Fact.STEP_FAILED).data == said
    ended = last.fail_retry(code)
    assert _event(ended, Fact.STEP_FAILED).data == {**said, "exhausted": True}
    assert _event(ended, Fact.JOB_FAILED).data == expected
    retry = {**said, "next_attempt_at_ms": again.at_ms + 30 * SECOND_MS}
    assert _event(again.fail_retry(code), Fact.STEP_RETRYING).data == retry
    cancelled.give(Cancel())
    assert _event(cancelled.fail_retry(code), Fact.STEP_CANCELLED).data == said
    for walk in (final, last, again, cancelled):
        kept = (walk.step.last_error_code, walk.step.last_error_message)
        assert kept == (expected["code"], expected["message"])


def test_the_words_of_a_deadline_are_kept_in_the_trail() -> None:
    unacknowledged = {
        "reason": "ACK_TIMEOUT",
        "code": "ACK_TIMEOUT",
        "message": "no ACK within 30 s of publishing",
    }
    ran_out = {
        "reason": "LEASE_EXPIRED",
        "code": "LEASE_EXPIRED",
        "message": "the lease ran out before a RESULT came",
    }
    for start, said in ((initiated, unacknowledged), (processing, ran_out)):
        last = start(1, StepPolicy(max_attempts=1))
        assert _event(last.tick_when_due(), Fact.STEP_FAILED).data == {**said, "exhausted": True}
        assert last.step.resulted is False
        cancelled = start()
        cancelled.give(Cancel())
        assert _event(cancelled.tick_when_due(), Fact.STEP_CANCELLED).data == said


def test_a_failed_publish_is_told_in_the_trail_and_in_the_row() -> None:
    walk = Walk(born())
    walk.publish_failed("away")
    walk.wait(5 * SECOND_MS)
    event = _event(walk.publish_failed("still away"), Fact.PUBLISH_FAILED)
    again_ms = LATER_MS + 120 * SECOND_MS
    assert event.data == {
        "code": "PUBLISH_FAILED",
        "message": "still away",
        "failures": 2,
        "next_attempt_at_ms": again_ms,
    }
    row = _outbox(walk)
    assert (row.failures, row.due_at_ms, row.updated_at_ms) == (2, again_ms, LATER_MS)
    assert row.first_failed_at_ms == START_MS
    kept = (walk.step.last_error_code, walk.step.last_error_message, walk.step.next_attempt_at_ms)
    assert kept == ("PUBLISH_FAILED", "still away", again_ms)


def test_a_reply_that_overtakes_the_publish_implies_both_clocks() -> None:
    walk = Walk(born())
    walk.wait(5 * SECOND_MS)
    decision = walk.progress(10)
    published, acked = (_event(decision, fact) for fact in (Fact.DIRECTIVE_PUBLISHED, Fact.STEP_ACKED))
    assert published.data == {"deadline_at_ms": LATER_MS + 30 * SECOND_MS, "implied": True}
    assert acked.data == {"deadline_at_ms": LATER_MS + 900 * SECOND_MS, "implied": True}
    explicit = Walk(born())
    told = _event(explicit.ack(), Fact.STEP_ACKED)
    assert told.data == {"deadline_at_ms": START_MS + 900 * SECOND_MS}


def test_a_progress_that_is_not_in_the_trail_is_in_the_rows() -> None:
    walk = processing()
    walk.progress(10)
    seq = walk.job.seq
    walk.wait(5 * SECOND_MS)
    decision = walk.progress(20, "more")
    assert (decision.events, walk.job.seq) == ((), seq)
    assert (walk.step.progress, walk.step.progress_note, walk.step.updated_at_ms) == (20, "more", LATER_MS)
    assert walk.job.updated_at_ms == LATER_MS


def test_a_progress_without_a_number_keeps_its_note_and_the_number_before() -> None:
    walk = processing()
    (event,) = walk.progress(None, "page 3 of 9").events
    assert (event.data["progress"], event.data["note"]) == (None, "page 3 of 9")
    walk.progress(40, "page 4 of 9")
    walk.progress(None, "page 5 of 9")
    assert (walk.step.progress, walk.step.progress_note) == (40, "page 5 of 9")
    walk.progress(None)
    walk.progress(10, "page 1 of 9")  # of a number that falls, nothing counts but the sign of life
    assert (walk.step.progress, walk.step.progress_note) == (40, "page 5 of 9")


def test_a_rerun_tells_what_is_reused_and_what_is_adopted() -> None:
    done = replace(new_steps(1, StepPolicy())[0], state=StepState.SUCCEEDED)
    steps = new_steps(3, StepPolicy())
    ready = (done, replace(steps[1], state=StepState.SUCCEEDED), steps[2])
    job = replace(new_job(), rerun_of="job_0")
    adopted = {"stepId": "step_02", "seq": 9}
    told = _event(
        create(job, ready, now_ms=START_MS, lease_id="lease", adopted=adopted), Fact.JOB_CREATED
    ).data
    assert (told["rerun_of"], told["reused"], told["adopted"]) == ("job_0", ["step_01"], adopted)
    plain = _event(create(job, ready, now_ms=START_MS, lease_id="lease"), Fact.JOB_CREATED).data
    assert plain["reused"] == ["step_01", "step_02"] and "adopted" not in plain
    first = _event(create(new_job(), steps, now_ms=START_MS, lease_id="lease"), Fact.JOB_CREATED).data
    assert first == {
        "request_type": "OCR",
        "protocol_id": "ocr_v1",
        "engine": "outbox",
        "steps": ["TYPE_1", "TYPE_2", "TYPE_3"],
    }


def test_refusals_say_why() -> None:
    sent = initiated()
    assert sent.refused(hand_out(target(sent.step))) == Refused(
        Code.STALE_ATTEMPT, "this attempt does not wait to be handed out"
    )
    cancelling = processing()
    cancelling.give(Cancel())
    wishes: list[Control] = [Pause(), Resume()]
    for wish in wishes:
        assert cancelling.refused(wish) == Refused(Code.JOB_CANCELLING, "the job is being cancelled")
    ended = processing()
    ended.succeed()
    wishes = [Cancel(), Pause()]
    for wish in wishes:
        assert ended.refused(wish) == Refused(Code.JOB_TERMINAL, "the job has already ended: SUCCEEDED")


def test_a_publish_that_time_gives_up_keeps_the_last_words() -> None:
    walk = Walk(born(1, StepPolicy(dispatch_timeout_ms=60 * SECOND_MS)))
    walk.publish_failed("away")
    silent = Walk(walk.record)
    said = {"reason": "PUBLISH", "code": "PUBLISH_FAILED", "message": "away"}
    assert _event(walk.wait(60 * SECOND_MS).tick(), Fact.STEP_FAILED).data == said
    bare = replace(silent.step, last_error_message=None)
    silent.record = replace(silent.record, steps=(bare,))
    told = _event(silent.wait(60 * SECOND_MS).tick(), Fact.STEP_FAILED).data
    assert told["message"] == "the directive could not be published"


def test_a_job_that_is_open_too_long_says_so_in_the_trail() -> None:
    walk = Walk(born(sla_ms=60 * SECOND_MS))
    escalated = _event(walk.wait(60 * SECOND_MS).tick(), Fact.SLA_ESCALATED)
    assert escalated.data == {"open_ms": 60 * SECOND_MS}
    said = {"code": "SLA_EXCEEDED", "message": "open for more than twice its SLA of 60 s"}
    failed = walk.wait(60 * SECOND_MS).tick()
    assert _event(failed, Fact.STEP_FAILED).data == {"reason": "SLA", **said}
    assert _event(failed, Fact.JOB_FAILED).data == said


def test_a_job_tells_the_error_that_it_failed_of() -> None:
    walk = Walk(born(policy=StepPolicy(max_attempts=2)))
    for code in ("FIRST", "SECOND"):
        walk.wait(HOUR_MS)
        walk.give(Tick())
        walk.hand_out()
        walk.ack()
        walk.fail_retry(code)
    assert (walk.job.state, walk.job.error_code) == (JobState.FAILED_FINAL, "SECOND")
    assert walk.job.error_message == walk.step.last_error_message
