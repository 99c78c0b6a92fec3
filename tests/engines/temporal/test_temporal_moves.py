"""What the workflow does next, state by state, without Temporal."""

import random

import msgspec
import pytest

from lucius.contracts.internal import Position, Verdict
from lucius.core.inputs import ExpireReason
from lucius.core.states import JOB_OPEN, JOB_TERMINAL, STEP_OPEN, JobState, StepState
from lucius.engines.temporal import workflow as workflow_module
from lucius.engines.temporal.moves import (
    IN_VAIN_FIRST_MS,
    IN_VAIN_MOST_MS,
    NOTHING,
    InvokerReply,
    Move,
    MoveKind,
    WorkflowPosition,
    next_move,
    pause_after_ms,
)

RUNNING = sorted(JOB_OPEN - {JobState.PAUSED})


def standing(**members: object) -> WorkflowPosition:
    given = {"version": 5, "job_state": "IN_PROGRESS", "stepId": "step_01", "attempt_no": 1, "lease_id": "a"}
    return msgspec.convert({**given, **members}, WorkflowPosition)


@pytest.mark.parametrize("job_state", RUNNING)
@pytest.mark.parametrize("step_state", [StepState.PENDING, StepState.FAILED_RETRY])
def test_a_step_that_waits_is_begun_when_its_time_has_come(job_state: str, step_state: str) -> None:
    at = standing(job_state=job_state, step_state=step_state)
    assert next_move(at) == Move(ask=MoveKind.BEGIN)
    later = msgspec.structs.replace(at, next_attempt_at_ms=77)
    assert next_move(later) == Move(ask=MoveKind.BEGIN, from_ms=77)


@pytest.mark.parametrize("job_state", RUNNING)
def test_a_step_under_way_is_left_alone_until_its_deadline(job_state: str) -> None:
    sent = standing(job_state=job_state, step_state="INITIATED", published=True, deadline_at_ms=9)
    assert next_move(sent) == Move(ask=MoveKind.EXPIRE, from_ms=9, reason=ExpireReason.ACK_TIMEOUT)
    acked = msgspec.structs.replace(sent, step_state="PROCESSING")
    assert next_move(acked) == Move(ask=MoveKind.EXPIRE, from_ms=9, reason=ExpireReason.LEASE_EXPIRED)


def test_an_attempt_whose_directive_has_not_left_is_published_or_given_up() -> None:
    at = standing(step_state="INITIATED", published=False)
    assert next_move(at) == Move(ask=MoveKind.PUBLISH)
    backing_off = msgspec.structs.replace(at, next_attempt_at_ms=50, deadline_at_ms=80)
    assert next_move(backing_off) == Move(ask=MoveKind.PUBLISH, from_ms=50)
    too_late = msgspec.structs.replace(at, next_attempt_at_ms=90, deadline_at_ms=80)
    assert next_move(too_late) == Move(ask=MoveKind.EXPIRE, from_ms=80, reason=ExpireReason.PUBLISH_FAILED)


@pytest.mark.parametrize("step_state", sorted(STEP_OPEN))
def test_a_paused_job_waits_for_news_whatever_its_step_does(step_state: str) -> None:
    at = standing(job_state="PAUSED", step_state=step_state, deadline_at_ms=1, next_attempt_at_ms=1)
    assert next_move(at) is NOTHING


@pytest.mark.parametrize("job_state", sorted(JOB_TERMINAL))
def test_nothing_is_asked_for_a_job_that_has_ended(job_state: str) -> None:
    at = WorkflowPosition(version=9, job_state=job_state)
    assert at.terminal
    assert next_move(at) is NOTHING


def test_words_it_does_not_know_make_it_ask_or_wait() -> None:
    assert next_move(standing(job_state="HIBERNATING", step_state="PENDING")) == Move(ask=MoveKind.BEGIN)
    assert next_move(standing(step_state="DREAMING", deadline_at_ms=1)) is NOTHING


def test_every_member_of_a_position_that_matters_is_read() -> None:
    position = Position(
        version=3,
        job_state=JobState.IN_PROGRESS,
        stepId="step_02",
        step_index=1,
        step_state=StepState.PROCESSING,
        attempt_no=2,
        lease_id="b",
        published=True,
        deadline_at_ms=7,
        next_attempt_at_ms=8,
    )
    read = msgspec.to_builtins(msgspec.convert(msgspec.to_builtins(position), WorkflowPosition))
    assert read == {key: value for key, value in msgspec.to_builtins(position).items() if key != "step_index"}


def answer(verdict: Verdict, version: int, again_in_ms: int | None = None) -> InvokerReply:
    return InvokerReply(verdict=verdict, position=standing(version=version), again_in_ms=again_in_ms)


def test_an_answer_with_something_new_is_followed_at_once() -> None:
    for verdict in (Verdict.GO, Verdict.MOVED, Verdict.HOLD, Verdict.STOP):
        assert pause_after_ms(standing(), answer(verdict, 6), in_vain=3) == 0


def test_a_full_window_is_waited_for_even_if_the_attempt_was_begun() -> None:
    assert pause_after_ms(standing(), answer(Verdict.WAIT, 6, 40), in_vain=0) == 40
    assert pause_after_ms(standing(), answer(Verdict.WAIT, 5, 0), in_vain=0) == 1
    assert pause_after_ms(standing(), answer(Verdict.WAIT, 5), in_vain=9) == IN_VAIN_FIRST_MS


def test_an_answer_that_changes_nothing_is_not_asked_for_in_a_circle() -> None:
    pauses = [pause_after_ms(standing(), answer(Verdict.MOVED, 5), in_vain=times) for times in range(40)]
    assert pauses == sorted(pauses)
    assert pauses[0] == IN_VAIN_FIRST_MS
    assert pauses[-1] == IN_VAIN_MOST_MS


def test_a_lease_depends_on_its_attempt_and_not_on_those_asked_for_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker that is killed in the middle of a call leaves no trace of it; the next one skips it."""

    def leases(*attempts: tuple[str, int]) -> list[str]:
        chance = random.Random(7)
        monkeypatch.setattr("temporalio.workflow.random", lambda: chance)
        position = {"version": 1, "job_state": "QUEUED", "stepId": "step_01"}
        played = workflow_module.JobWorkflow({"jobId": "job_1", "position": position})
        return [played._lease_for(step_id, attempt_no) for step_id, attempt_no in attempts]

    told = leases(("step_01", 1), ("step_02", 1), ("step_02", 2), ("step_03", 1), ("step_03", 1))
    assert len(set(told)) == 4 and {len(lease) for lease in told} == {24}
    assert leases(("step_01", 1), ("step_02", 2), ("step_03", 1)) == [told[0], told[2], told[4]]
