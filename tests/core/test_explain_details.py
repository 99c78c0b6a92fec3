"""Explanations to the letter: every field of every situation, short trails, and odd spans of time."""

import time
from collections.abc import Callable

import msgspec
import pytest
from tests.core.machine import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, START_MS, born, result, target
from tests.core.outcomes import ExplainedWalk, begun, cancelling, explained, pausing, sent, unpublished

from lucius.core.explain import Next, WaitsFor, step_in_focus
from lucius.core.inputs import Cancel, Pause, ResultStatus, Tick
from lucius.core.model import Event, JobRecord, Step, StepPolicy
from lucius.core.replies import not_adoptable
from lucius.core.states import Engine, Fact, StepState

replace = msgspec.structs.replace


def _unbegun() -> ExplainedWalk:
    return ExplainedWalk(born(engine=Engine.TEMPORAL))


def _acked() -> ExplainedWalk:
    walk = sent()
    walk.wait(3 * SECOND_MS)
    walk.ack()
    return walk


def _retrying() -> ExplainedWalk:
    walk = _acked()
    walk.fail_retry("BUSY")
    return walk


def _paused() -> ExplainedWalk:
    walk = begun()
    walk.wait(5 * SECOND_MS)
    walk.give(Pause())
    return walk


def _at(seconds: int) -> int:
    return START_MS + seconds * SECOND_MS


UNDO = ("resume the job to undo the pause",)
BEGINS = "the engine begins attempt 1 of 3"
AGAIN = "the directive of attempt 1 of 3 is published again"
RESUMED = "a client resumes the job, and it goes on with step_01"
STOPPED = "service-1 answers or its time runs out, and the job is cancelled"

# A situation; what is waited for, since when; what comes next, and when.
SITUATIONS = [
    (_unbegun, WaitsFor.ENGINE, 0, BEGINS, None),
    (unpublished, WaitsFor.PUBLISH, 0, AGAIN, 30),
    (sent, WaitsFor.ACK, 7, "attempt 2 of 3 begins if none comes", 97),
    (_acked, WaitsFor.RESULT, 10, "attempt 2 of 3 begins if no RESULT comes", 940),
    (_retrying, WaitsFor.RETRY, 10, "attempt 2 of 3 begins", 40),
    (_paused, WaitsFor.RESUME, 5, RESUMED, None),
    (pausing, WaitsFor.ACK, 7, "step_01 ends, and the job pauses unless it succeeded", 37),
    (cancelling, WaitsFor.ACK, 7, STOPPED, 37),
]


@pytest.mark.parametrize(("situation", "waiting_for", "since", "what", "next_at"), SITUATIONS)
def test_every_field_of(
    situation: Callable[[], ExplainedWalk], waiting_for: WaitsFor, since: int, what: str, next_at: int | None
) -> None:
    walk = situation()
    walk.wait(SECOND_MS)
    told = walk.explained(service_asked_at_ms=5, tenant_in_flight=6, tenant_max=7)
    assert (told.job_id, told.state, told.step_id) == ("job_1", walk.job.state, "step_01")
    assert (told.waiting_for, told.since_ms) == (waiting_for, _at(since))
    assert told.next == Next(what=what, at_ms=None if next_at is None else _at(next_at))
    assert (told.attempt_no, told.attempts_max, told.service) == (walk.step.attempt_no, 3, "service-1")
    assert (told.service_asked_at_ms, told.tenant_in_flight, told.tenant_max) == (5, 6, 7)
    assert (told.hints == UNDO) == (situation is pausing)
    assert told.late_answers == ()


def test_an_end_says_when_it_was() -> None:
    for given in (ResultStatus.SUCCEEDED, ResultStatus.FAILED_FINAL):
        walk = _acked()
        walk.wait(SECOND_MS)
        walk.give(result(target(walk.step), given))
        walk.wait(DAY_MS)
        assert walk.explained().since_ms == _at(11)


def test_without_a_trail_the_rows_say_since_when() -> None:
    """Only the end of a long trail may be at hand."""
    for situation, expected in (
        (begun, 0),
        (sent, 7),
        (_acked, 7),  # the row knows when the directive left, not when the ACK came
        (pausing, 7),
        (cancelling, 7),
    ):
        walk = situation()
        walk.wait(MINUTE_MS)
        walk.events.clear()
        assert walk.explained().since_ms == _at(expected), situation


def test_rows_that_lack_a_moment_fall_back_on_their_last_change() -> None:
    """Rows written by an older version may lack what was added later."""
    for situation in (begun, sent, _acked):
        walk = situation()
        walk.events.clear()
        (step,) = walk.record.steps
        bare = replace(step, attempt_began_at_ms=None, updated_at_ms=_at(20))
        walk.record = replace(walk.record, steps=(bare,))
        assert walk.explained().since_ms == _at(20), situation
    ended = _acked()
    ended.succeed()
    job = replace(ended.job, completed_at_ms=None, updated_at_ms=_at(20))
    ended.record = replace(ended.record, job=job)
    assert ended.explained().since_ms == _at(20)
    paused = _paused()
    job = replace(paused.job, paused_at_ms=None, updated_at_ms=_at(20))
    paused.record = replace(paused.record, job=job)
    assert paused.explained().since_ms == _at(20)
    failed = unpublished()
    assert failed.record.outbox is not None
    outbox = replace(failed.record.outbox, first_failed_at_ms=None, updated_at_ms=_at(20))
    failed.record = replace(failed.record, outbox=outbox)
    assert failed.explained().since_ms == _at(20)


def test_the_trail_is_asked_for_the_right_fact() -> None:
    """What happened to the job later does not count as the moment that is waited since."""
    walk = sent(1, StepPolicy(lease_ms=HOUR_MS))
    walk.wait(3 * SECOND_MS)
    walk.ack()
    walk.wait(SECOND_MS)
    walk.progress(10)
    walk.wait(SECOND_MS)
    walk.give(Pause())
    walk.wait(SECOND_MS)
    walk.record = replace(walk.record, job=replace(walk.job, updated_at_ms=_at(50)))
    assert walk.explained().since_ms == _at(12)
    walk.give(Cancel())
    walk.record = replace(walk.record, job=replace(walk.job, updated_at_ms=_at(50)))
    assert walk.explained().since_ms == _at(13)
    waiting = begun()
    (step,) = waiting.record.steps
    late = replace(step, attempt_began_at_ms=_at(30), updated_at_ms=_at(40))
    waiting.record = replace(waiting.record, steps=(late,))
    began = Event(seq=9, type=Fact.ATTEMPT_BEGUN, at_ms=_at(20), step_id="step_01", attempt_no=1)
    waiting.events.append(began)
    assert waiting.explained().since_ms == _at(20)
    other = replace(began, step_id="step_02", at_ms=_at(25))
    earlier = replace(began, attempt_no=2, at_ms=_at(26))
    waiting.events += [other, earlier]
    assert waiting.explained().since_ms == _at(20), "another step's and another attempt's do not count"


def test_an_ack_is_waited_for_since_the_directive_left() -> None:
    walk = sent()
    (step,) = walk.record.steps
    walk.record = replace(
        walk.record, steps=(replace(step, attempt_began_at_ms=_at(30), updated_at_ms=_at(40)),)
    )
    assert walk.explained().since_ms == _at(7)


def test_times_are_utc_wherever_the_process_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert "since 08:00:07" in sent().explained().summary
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_cancelling_job_without_a_deadline_promises_none() -> None:
    walk = cancelling()
    (step,) = walk.record.steps
    walk.record = replace(walk.record, steps=(replace(step, lease_expires_at_ms=None),))
    told = walk.explained()
    assert told.summary.endswith("; the job is cancelled when it answers")
    assert told.next is not None and told.next.at_ms is None


def test_a_step_without_a_deadline_is_due_now() -> None:
    for situation, again in ((sent, 60), (_acked, 30)):
        walk = situation()
        (step,) = walk.record.steps
        walk.record = replace(walk.record, steps=(replace(step, lease_expires_at_ms=None),))
        told = walk.explained()
        assert told.next is not None and told.next.at_ms == walk.at_ms + again * SECOND_MS
    walk = _retrying()
    (step,) = walk.record.steps
    walk.record = replace(walk.record, steps=(replace(step, next_attempt_at_ms=None),))
    told = walk.explained()
    assert told.next is not None and told.next.at_ms == walk.at_ms


def test_the_step_in_focus_is_the_open_one_or_the_one_the_job_ended_at() -> None:
    walk = sent(3)
    walk.succeed()
    assert step_in_focus(walk.record).step_id == "step_02"
    walk.give(Cancel())
    assert step_in_focus(walk.record).step_id == "step_02", "all are ended: the one that was begun last"
    never = ExplainedWalk(born(3, engine=Engine.TEMPORAL))
    never.give(Cancel())
    assert step_in_focus(never.record).step_id == "step_03", "none was begun: the last"


def test_a_failure_without_words() -> None:
    walk = _acked()
    walk.fail_final("BROKEN")
    bare = replace(walk.job, error_code=None, error_message=None)
    walk.record = replace(walk.record, job=bare)
    assert walk.explained().summary.startswith("finally failed: no reason was given (step_01, at ")
    walk.record = replace(walk.record, job=replace(bare, error_code="BROKEN"))
    assert walk.explained().summary.startswith("finally failed: BROKEN (step_01, at ")


def test_pauses_put_off_the_end_of_an_sla() -> None:
    walk = begun()
    walk.tick_when_due()
    job = replace(walk.job, paused_total_ms=HOUR_MS)
    walk.record = replace(walk.record, job=job)
    assert walk.explained().hints[-1].endswith("it fails at 2027-01-29 09:00:00 with SLA_EXCEEDED")


@pytest.mark.parametrize(
    ("silent_ms", "words"),
    [
        (-5_000, "0 s"),
        (0, "0 s"),
        (999, "0 s"),
        (1_999, "1 s"),
        (2 * MINUTE_MS - 1, "119 s"),
        (2 * MINUTE_MS, "2 min"),
        (2 * HOUR_MS - 1, "119 min"),
        (2 * HOUR_MS, "2 h"),
        (3 * HOUR_MS - 1, "2 h"),
        (2 * DAY_MS - 1, "47 h"),
        (2 * DAY_MS, "2 d"),
        (30 * DAY_MS, "30 d"),
    ],
)
def test_a_span_is_told_in_the_unit_of_which_there_are_two(silent_ms: int, words: str) -> None:
    walk = begun()
    told = walk.explained(service_asked_at_ms=walk.at_ms - silent_ms)
    assert told.summary.endswith(f"the last one asked {words} ago")


def _with_states(*states: StepState) -> JobRecord:
    record = born(len(states))
    steps: tuple[Step, ...] = tuple(
        replace(step, state=state) for step, state in zip(record.steps, states, strict=True)
    )
    return replace(record, steps=steps)


def test_a_result_can_be_adopted_once_all_before_it_have_theirs() -> None:
    done, failed, pending = StepState.SUCCEEDED, StepState.FAILED_FINAL, StepState.PENDING
    record = _with_states(done, failed, pending)
    assert not_adoptable(record, "step_01") is None
    assert not_adoptable(record, "step_02") is None
    assert not_adoptable(record, "step_03") == "needs the result of step_02, which did not succeed"
    everything = "is not a step of the job; it has step_01, step_02, step_03"
    assert not_adoptable(record, "step_04") == everything
    assert not_adoptable(record, None) == everything


def test_only_late_successes_that_are_of_use_are_hinted_at() -> None:
    done, failed, pending = StepState.SUCCEEDED, StepState.FAILED_FINAL, StepState.PENDING
    walk = ExplainedWalk(_with_states(done, failed, pending))
    reply = {"reply": {"type": "RESULT", "status": "SUCCEEDED"}}
    for seq, step_id in enumerate(["step_01", "step_02", "step_03", "step_09", None], start=11):
        walk.events.append(
            Event(seq=seq, type=Fact.REPLY_LATE, at_ms=START_MS, step_id=step_id, attempt_no=1, data=reply)
        )
    hints = [hint for hint in walk.explained().hints if "too late" in hint]
    assert len(hints) == 1 and "step_02 succeeded too late (event 12)" in hints[0]
    assert len(walk.explained().late_answers) == 5


def test_the_latest_five_late_successes_are_hinted_at() -> None:
    walk = ExplainedWalk(_with_states(StepState.FAILED_FINAL))
    reply = {"reply": {"type": "RESULT", "status": "SUCCEEDED"}}
    for seq in range(11, 18):
        walk.events.append(
            Event(seq=seq, type=Fact.REPLY_LATE, at_ms=START_MS, step_id="step_01", attempt_no=1, data=reply)
        )
    hints = [hint for hint in walk.explained().hints if "too late" in hint]
    assert [hint.split("event ")[1][:2] for hint in hints] == ["13", "14", "15", "16", "17"]


def test_a_tick_past_everything_leaves_the_words_of_the_end() -> None:
    walk = begun(2)
    walk.wait(15 * DAY_MS)
    walk.give(Tick())
    told = walk.explained()
    assert told.summary.startswith(
        "finally failed: SLA_EXCEEDED: open for more than twice its SLA of 604800 s (step_01"
    )
    assert told.step_id == "step_01"


def test_an_unusual_priority_is_explained() -> None:
    walk = begun()
    assert not any("priority" in hint for hint in walk.explained().hints)
    for priority, words in ((9, "20 min earlier"), (0, "25 min later")):
        job = msgspec.structs.replace(walk.record.job, priority=priority)
        record = msgspec.structs.replace(walk.record, job=job)
        for over_bus in (False, True):
            told = explained(record, walk.at_ms, walk.events, over_bus=over_bus)
            assert told.hints[-1] == (
                f"its priority is {priority}: among the tenant's jobs it leaves as if it had begun to wait "
                f"{words}"
            )
