"""What follows when the attempts of a step are used: the end, another service, or a wait for a person."""

import msgspec
import pytest
from tests.core.machine import MINUTE_MS, SECOND_MS, START_MS, Walk, new_job, new_steps, result, target

from lucius.core.decide import create
from lucius.core.explain import WaitsFor, explain
from lucius.core.inputs import Cancel, HandOut, Published, ResultStatus, Resume
from lucius.core.model import ATTEMPT_NO_MAX, StepPolicy
from lucius.core.refusal import Code
from lucius.core.states import Engine, Fact, JobState, StepState

replace = msgspec.structs.replace
ONCE = StepPolicy(max_attempts=1)
PARKS = StepPolicy(max_attempts=1, parks_exhausted=True)


def _walk(policy: StepPolicy, *fallback: str, engine: Engine = Engine.OUTBOX) -> Walk:
    steps = tuple(replace(step, fallback=fallback) for step in new_steps(1, policy))
    return Walk(create(new_job(engine=engine), steps, now_ms=START_MS, lease_id="lease_0").record)


def _fail(walk: Walk, code: str = "BUSY") -> None:
    walk.hand_out()
    walk.fail_retry(code)


def test_a_fallback_begins_at_once_with_attempts_of_its_own() -> None:
    walk = _walk(StepPolicy(max_attempts=2, backoff_result_ms=(SECOND_MS,)), "service-b")
    _fail(walk)
    walk.wait(SECOND_MS).tick()
    _fail(walk)
    step = walk.step
    assert (step.service, step.tried, step.fallback) == ("service-b", ("service-1",), ())
    assert (step.state, step.attempt_no, step.attempts_counted) == (StepState.DISPATCHING, 3, 1)
    assert walk.record.outbox is not None and walk.record.outbox.service == "service-b"
    _fail(walk)
    walk.wait(SECOND_MS).tick()
    _fail(walk, "STILL_BUSY")
    assert (walk.job.state, walk.job.error_code, walk.step.attempt_no) == (
        JobState.FAILED_FINAL,
        "STILL_BUSY",
        4,
    )


def test_a_final_failure_asks_no_other_service() -> None:
    walk = _walk(ONCE, "service-b")
    walk.hand_out()
    walk.fail_final("UNREADABLE")
    assert walk.states == (JobState.FAILED_FINAL, StepState.FAILED_FINAL)


def test_a_workflow_asks_for_the_attempt_at_the_fallback() -> None:
    walk = _walk(ONCE, "service-b", engine=Engine.TEMPORAL)
    assert walk.step.state is StepState.PENDING
    from tests.core.machine import begin

    walk.give(begin(walk.record))
    walk.published()
    walk.fail_retry("BUSY")
    assert (walk.step.state, walk.step.service) == (StepState.FAILED_RETRY, "service-b")
    walk.give(begin(walk.record))
    assert walk.record.outbox is not None and walk.record.outbox.service == "service-b"


def test_explain_names_the_service_that_is_stood_in_for() -> None:
    walk = _walk(ONCE, "service-b")
    _fail(walk)
    told = explain(
        walk.record,
        (),
        now_ms=walk.at_ms,
        service_asked_at_ms=None,
        over_bus=False,
        tenant_in_flight=1,
        tenant_max=10,
    )
    assert told.service == "service-b"
    assert "service-b stands in for service-1, whose attempts at step_01 are used" in told.hints
    assert (told.attempt_no, told.attempts_max) == (2, 2)


def test_a_parked_job_waits_and_has_fresh_attempts_once_resumed() -> None:
    walk = _walk(PARKS)
    _fail(walk, "DOWN")
    assert walk.states == (JobState.PAUSED, StepState.FAILED_RETRY)
    assert walk.job.paused_reason == "EXHAUSTED: DOWN: the service said DOWN"
    walk.wait(MINUTE_MS).tick()
    assert walk.job.state is JobState.PAUSED
    told = explain(
        walk.record,
        (),
        now_ms=walk.at_ms,
        service_asked_at_ms=None,
        over_bus=False,
        tenant_in_flight=1,
        tenant_max=10,
    )
    assert told.waiting_for is WaitsFor.RESUME
    assert "the attempts of step_01 at service-1 are used: DOWN" in told.summary
    walk.give(Resume())
    assert (walk.step.state, walk.step.attempt_no) == (StepState.DISPATCHING, 2)
    assert walk.record.job.paused_reason is None
    _fail(walk, "DOWN")
    assert (walk.job.state, walk.step.attempt_no) == (JobState.PAUSED, 2)
    walk.give(Cancel())
    assert walk.record.job.state is JobState.CANCELLED


def test_a_job_is_parked_once_its_fallbacks_are_used() -> None:
    walk = _walk(PARKS, "service-b")
    _fail(walk)
    assert walk.job.state is not JobState.PAUSED
    _fail(walk)
    assert (walk.job.state, walk.step.service) == (JobState.PAUSED, "service-b")


def test_attempts_are_numbered_up_to_a_bound() -> None:
    walk = _walk(PARKS, "service-b")
    step = replace(walk.step, attempt_no=ATTEMPT_NO_MAX, attempts_forgiven=ATTEMPT_NO_MAX)
    walk.record = replace(walk.record, steps=(step,))
    assert walk.record.outbox is not None
    walk.record = replace(walk.record, outbox=replace(walk.record.outbox, attempt_no=ATTEMPT_NO_MAX))
    _fail(walk)
    assert walk.job.state is JobState.FAILED_FINAL


def test_a_probe_that_fails_costs_no_attempt() -> None:
    walk = _walk(StepPolicy(max_attempts=2, backoff_result_ms=(SECOND_MS,)))
    for number in range(1, 6):
        walk.give(HandOut(**target(walk.step)._asdict(), probe=True))
        assert walk.step.probing
        walk.fail_retry("DOWN")
        assert (walk.step.attempt_no, walk.step.attempts_counted) == (number, 0)
        walk.wait(SECOND_MS).tick()
    _fail(walk)
    assert (walk.step.probing, walk.step.attempts_counted) == (False, 1)


def test_a_published_directive_may_be_a_probe() -> None:
    walk = _walk(ONCE)
    walk.give(Published(**target(walk.step)._asdict(), probe=True))
    walk.fail_retry("DOWN")
    assert walk.states == (JobState.IN_PROGRESS, StepState.FAILED_RETRY)


def test_a_hand_out_that_comes_after_its_time_is_refused() -> None:
    walk = _walk(ONCE)
    given = HandOut(**target(walk.step)._asdict(), not_after_ms=walk.at_ms)
    walk.wait(1)
    assert walk.refused(given).code is Code.STALE_ATTEMPT
    walk.wait(-1).give(given)
    assert walk.step.state is StepState.INITIATED


@pytest.mark.parametrize("wait_ms", [0, 90_000])
def test_retry_after_takes_the_place_of_the_backoff(wait_ms: int) -> None:
    walk = _walk(StepPolicy(backoff_result_ms=(SECOND_MS,)))
    walk.hand_out()
    walk.give(
        replace(result(target(walk.step), ResultStatus.FAILED_RETRY, code="429"), retry_after_ms=wait_ms)
    )
    if wait_ms:
        assert walk.step.next_attempt_at_ms == walk.at_ms + wait_ms
    else:
        assert walk.step.attempt_no == 2


@pytest.mark.parametrize("status", [ResultStatus.FAILED_RETRY, ResultStatus.SUCCEEDED])
def test_slow_down_is_in_the_trail(status: ResultStatus) -> None:
    walk = _walk(StepPolicy())
    walk.hand_out()
    said = walk.give(replace(result(target(walk.step), status), slow_down=True))
    facts = {event.type: event.data for event in said.events}
    fact = Fact.STEP_RETRYING if status is ResultStatus.FAILED_RETRY else Fact.STEP_SUCCEEDED
    assert facts[fact]["slow_down"] is True
