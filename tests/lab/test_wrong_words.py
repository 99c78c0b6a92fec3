"""Events that say what the rules do not give are found, though rows and events agree with each other."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.core.machine import SECOND_MS, Walk, born

from lucius.core import decide, replies
from lucius.core.draft import Decision, Draft, Outcome
from lucius.core.due import deadline_of
from lucius.core.fold import fold
from lucius.core.inputs import Cancel, Input, Pause, PublishFailed, Resume, Tick
from lucius.core.model import Event, JobRecord, Step, StepPolicy
from lucius.core.states import STEP_OPEN, Fact, JobState, StepState
from lucius_lab.sim.invariants_events import wrong_end, wrong_reuse, wrong_words
from lucius_lab.sim.run import simulate

SEEDS_MAX = 60
ONCE = StepPolicy(max_attempts=1)

replace = msgspec.structs.replace


class RecordedWalk(Walk):
    """A walk that keeps each event with the record before it."""

    def __init__(self, record: JobRecord) -> None:
        super().__init__(record)
        self.recorded: list[tuple[JobRecord, Event]] = []

    def give(self, given: Input) -> Decision:
        before = self.record
        decision = super().give(given)
        for event in decision.events:
            self.recorded.append((before, event))
            before = fold(before, event)
        return decision

    def said(self, fact: Fact) -> tuple[JobRecord, Event]:
        return next(each for each in self.recorded if each[1].type is fact)


def _through(policy: StepPolicy | None = None) -> RecordedWalk:
    """Tried twice, then through, with a pause on the way."""
    walk = RecordedWalk(born(1, policy))
    walk.hand_out()
    walk.give(Pause())
    walk.give(Resume())
    walk.ack()
    walk.wait(SECOND_MS)
    walk.progress(50)
    walk.fail_retry("SIM_BUSY")
    walk.wait(30 * SECOND_MS)
    walk.give(Tick())
    walk.hand_out()
    walk.wait(31 * SECOND_MS)
    walk.give(Tick())  # no ACK
    walk.wait(3_600 * SECOND_MS)
    walk.give(Tick())
    walk.hand_out()
    walk.ack()
    walk.succeed()
    return walk


def _lost() -> RecordedWalk:
    walk = RecordedWalk(born(2, ONCE))
    walk.hand_out()
    walk.ack()
    walk.fail_retry("SIM_BUSY")
    return walk


def _judged(before: JobRecord, event: Event, *, acked: bool = True, lost: Event | None = None) -> str | None:
    return wrong_words(before, event, acked=acked, lost=lost)


def test_what_the_rules_give_is_not_wrong() -> None:
    for walk in (_through(), _lost()):
        acked, lost = False, None
        for before, event in walk.recorded:
            assert _judged(before, event, acked=acked, lost=lost) is None, event
            acked = acked or event.type is Fact.STEP_ACKED
            lost = event if event.type is Fact.STEP_FAILED else lost
        assert wrong_end(walk.record) is None
    assert {event.type for _, event in _through().recorded} >= {
        Fact.ATTEMPT_BEGUN,
        Fact.STEP_PROGRESSED,
        Fact.STEP_RETRYING,
        Fact.JOB_RESUMED,
        Fact.JOB_SUCCEEDED,
    }


@pytest.mark.parametrize(
    ("fact", "changed", "told"),
    [
        (Fact.DIRECTIVE_PUBLISHED, {"deadline_at_ms": 1}, "the ACK is given"),
        (Fact.STEP_ACKED, {"deadline_at_ms": 1}, "the lease is given"),
        (Fact.STEP_PROGRESSED, {"deadline_at_ms": 1 << 50}, "beyond max_duration"),
        (Fact.STEP_RETRYING, {"next_attempt_at_ms": 1}, "as the policy says"),
        (Fact.STEP_RETRYING, {"reason": "LEASE_EXPIRED"}, "LEASE_EXPIRED struck before the time"),
        (Fact.STEP_SUCCEEDED, {"output_ref": {"uri": "s3://results/job_1/step_01/1"}}, "another attempt"),
        (Fact.JOB_RESUMED, {"to": "IN_PROGRESS"}, "it goes on as IN_PROGRESS"),
        (Fact.JOB_SUCCEEDED, {"final_output": "s3://elsewhere"}, "its output is not"),
    ],
)
def test_an_event_that_says_something_else(fact: Fact, changed: dict[str, Any], told: str) -> None:
    before, event = _through().said(fact)
    acked = fact is not Fact.JOB_RESUMED
    assert _judged(before, event, acked=acked) is None
    found = _judged(before, replace(event, data={**event.data, **changed}), acked=acked)
    assert found is not None and told in found


def test_a_publish_that_failed_is_tried_again_as_the_policy_says() -> None:
    walk = RecordedWalk(born(1, StepPolicy(backoff_publish_ms=(0, 5_000), publish_attempts_max=3)))
    step = walk.record.steps[0]
    lost = PublishFailed(
        step_id=step.step_id,
        attempt_no=step.attempt_no,
        lease_id=step.lease_id or "",
        error_message="the bus is down",
    )
    for _ in range(2):
        walk.give(lost)
    failed = [each for each in walk.recorded if each[1].type is Fact.PUBLISH_FAILED]
    assert [_judged(*each) for each in failed] == [None, None]
    before, event = failed[1]
    for changed in ({"failures": 1}, {"next_attempt_at_ms": event.at_ms}):
        assert _judged(before, replace(event, data={**event.data, **changed})) is not None
    policy = replace(before.steps[0].policy, publish_attempts_max=2)
    given_up = replace(before, steps=(replace(before.steps[0], policy=policy),))
    assert "again after 2 failures" in (_judged(given_up, event) or "")


def test_an_event_before_its_time() -> None:
    walk = _through()
    early = [(before, event) for before, event in walk.recorded if event.attempt_no == 2]
    before, event = next(each for each in early if each[1].type is Fact.ATTEMPT_BEGUN)
    assert "before its time" in (_judged(before, replace(event, at_ms=event.at_ms - 1)) or "")
    before, event = next(each for each in early if each[1].data.get("reason") == "ACK_TIMEOUT")
    moved = replace(
        event,
        at_ms=event.at_ms - 2 * SECOND_MS,
        data={**event.data, "next_attempt_at_ms": event.data["next_attempt_at_ms"] - 2 * SECOND_MS},
    )
    assert _judged(before, moved) == "ACK_TIMEOUT struck before the time was over"


def test_a_failure_that_could_be_tried_again_and_one_that_could_not() -> None:
    before, event = _lost().said(Fact.STEP_FAILED)
    steps = (replace(before.steps[0], policy=StepPolicy()), *before.steps[1:])
    assert "for good after attempt 1 of 3" in (_judged(replace(before, steps=steps), event) or "")
    assert _judged(before, replace(event, data={**event.data, "reason": "SLA"})) == "the SLA is not over"
    given_up = replace(event, data={**event.data, "reason": "PUBLISH"})
    assert _judged(before, given_up) == "publishing was given up before its time"
    before, event = _through().said(Fact.STEP_RETRYING)
    steps = (replace(before.steps[0], policy=ONCE),)
    assert "no attempts left" in (_judged(replace(before, steps=steps), event) or "")


def test_the_error_of_a_job_is_that_of_its_step() -> None:
    walk = _lost()
    (_, lost), (before, event) = walk.said(Fact.STEP_FAILED), walk.said(Fact.JOB_FAILED)
    assert _judged(before, event, lost=lost) is None
    for changed in ({"code": "OTHER"}, {"message": "other"}):
        assert _judged(before, replace(event, data={**event.data, **changed}), lost=lost) is not None
    assert _judged(before, event) is not None


def test_an_end_leaves_no_step_open() -> None:
    walk = RecordedWalk(born(2))
    walk.give(Cancel())
    assert wrong_end(walk.record) is None
    steps = (walk.record.steps[0], replace(walk.record.steps[1], state=StepState.PENDING))
    assert wrong_end(replace(walk.record, steps=steps)) == "the job is CANCELLED, and step_02 is not over"


def test_a_rerun_reuses_what_had_succeeded() -> None:
    walk = RecordedWalk(born(3))
    for _ in range(2):
        walk.hand_out()
        walk.succeed()
    old, fresh = walk.record, born(3)
    done = [replace(step, attempt_no=0) for step in old.steps[:2]]
    again = replace(fresh, job=replace(fresh.job, rerun_of="job_1"), steps=(*done, fresh.steps[2]))
    assert wrong_reuse(again, old) is None
    assert wrong_reuse(fresh, None) is None
    assert wrong_reuse(replace(again, steps=(done[0], *fresh.steps[1:])), old) is not None
    other = replace(done[1], result_ref={"uri": "s3://elsewhere"})
    assert wrong_reuse(replace(again, steps=(done[0], other, fresh.steps[2])), old) is not None
    assert wrong_reuse(replace(again, job=fresh.job), None) == "a new job begins with results"


# Bugs that rows and events agree upon, planted into the real code.


def _impatient(self: Draft, step: Step) -> bool:
    return step.state in (StepState.FAILED_RETRY, StepState.PENDING)


def _first_output(self: Draft) -> None:
    self.note(Fact.JOB_SUCCEEDED, final_output=(self.record.steps[0].result_ref or {}).get("uri"))


def _error_before(self: Draft, step: Step, *, reason: str, code: str, message: str) -> None:
    self.note(Fact.STEP_FAILED, step, reason=reason, code=code, message=message)
    if self.record.job.state is JobState.CANCELLING:
        self.settle()
    else:
        self.note(Fact.JOB_FAILED, code=step.last_error_code or code, message=message)


def _cancel_begun(self: Draft) -> None:
    self.note(Fact.JOB_CANCELLED)
    for step in self.record.steps:
        if step.state in STEP_OPEN and step.attempt_no:
            self.note(Fact.STEP_CANCELLED, step)


def _always_going(draft: Draft) -> Decision:
    if draft.record.job.state not in (JobState.PAUSED, JobState.PAUSING):
        return draft.decision(Outcome.UNCHANGED)
    draft.note(Fact.JOB_RESUMED, to=JobState.IN_PROGRESS.value)
    draft.settle()
    return draft.decision()


def _timeless(draft: Draft, until_ms: int) -> None:
    step, deadline = draft.record.current, deadline_of(draft.record)
    if step is not None and deadline is not None:
        decide._run_out(draft, step, deadline.reason)


def _one_attempt_early(
    draft: Draft,
    step: Step,
    reason: str,
    backoffs_ms: tuple[int, ...],
    code: str,
    message: str,
    **more: Any,
) -> None:
    if step.attempt_no + 1 >= step.policy.max_attempts and draft.record.job.state is not JobState.CANCELLING:
        draft.fail(step, reason=reason, code=code, message=message)
    else:
        _retry_or_fail(draft, step, reason, backoffs_ms, code, message, **more)


_retry_or_fail = replies.retry_or_fail

PLANTED: dict[str, list[tuple[object, str, Callable[..., object]]]] = {
    "the backoff is ignored": [(Draft, "is_time_to_begin", _impatient)],
    "the output is that of the first step": [(Draft, "_succeed", _first_output)],
    "the job tells the error before the last": [(Draft, "fail", _error_before)],
    "steps that never began stay open": [(Draft, "cancel_rest", _cancel_begun)],
    "a resumed job is always under way": [(decide, "_resume", _always_going)],
    "time runs out at once": [(decide, "_check_deadline", _timeless)],
    "an attempt is missing": [
        (decide, "retry_or_fail", _one_attempt_early),
        (replies, "retry_or_fail", _one_attempt_early),
    ],
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_bug_that_rows_and_events_agree_upon_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, name, planted in PLANTED[bug]:
        monkeypatch.setattr(place, name, planted)
    found = next((broken for seed in range(SEEDS_MAX) if (broken := simulate(seed).violations)), None)
    assert found is not None, f"not found with {SEEDS_MAX} seeds"
    assert found[0].name == "I13", found
