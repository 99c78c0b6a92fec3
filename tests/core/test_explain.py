"""Explanations: in each of ten situations, the words and the fields an operator gets."""

from datetime import UTC, datetime

import msgspec
import pytest
from tests.core.machine import DAY_MS, MINUTE_MS, SECOND_MS, START_MS, born, explored, result, target
from tests.core.outcomes import ExplainedWalk, begun, explained, sent

from lucius.core.explain import ASKED_LATELY_MS, ActionName, Explanation, RunAgain, WaitsFor
from lucius.core.inputs import Cancel, Pause, ResultStatus, Resume
from lucius.core.model import Event, StepPolicy
from lucius.core.replies import is_late_success
from lucius.core.states import Engine, Fact, JobState

# START_MS is 2027-01-15 08:00:00 UTC.


def test_waiting_for_a_worker_nobody_has_seen() -> None:
    walk = begun()
    walk.wait(14 * MINUTE_MS)
    told = walk.explained()
    assert told.summary == (
        "waiting for a worker of service-1 to take step_01 since 08:00:00; "
        "no worker has asked for directives of service service-1 since this process started"
    )
    assert (told.waiting_for, told.since_ms, told.state) == (WaitsFor.WORKER, START_MS, JobState.DISPATCHING)
    assert told.next is not None and told.next.at_ms is None
    assert told.next.what == (
        "a worker of service-1 takes attempt 1 of 3; "
        "no clock runs until then but the SLA's, which fails the job at 2027-01-29 08:00:00"
    )
    assert told.hints == ("start a worker of service-1: it asks for its work here",)


def test_waiting_for_a_broker_that_takes_no_more_is_not_waiting_for_a_worker() -> None:
    walk = begun()
    walk.wait(MINUTE_MS)
    told = walk.explained(over_bus=True)
    assert told.summary == (
        "waiting for the directive of attempt 1 of 3 at step_01 to be published since 08:00:00"
    )
    assert told.waiting_for is WaitsFor.PUBLISH
    assert len(told.hints) == 1 and "full of directives that no worker acknowledges?" in told.hints[0]


def test_waiting_for_a_worker_that_went_away() -> None:
    walk = begun()
    walk.wait(20 * MINUTE_MS)
    told = walk.explained(service_asked_at_ms=walk.at_ms - 14 * MINUTE_MS)
    assert told.summary.endswith(
        "; no worker leases directives of service service-1; the last one asked 14 min ago"
    )
    assert told.service_asked_at_ms == walk.at_ms - 14 * MINUTE_MS


def test_waiting_for_a_worker_that_is_busy() -> None:
    walk = begun()
    walk.wait(MINUTE_MS)
    told = walk.explained(service_asked_at_ms=walk.at_ms - 3 * SECOND_MS)
    assert told.summary == (
        "waiting for a worker of service-1 to take step_01 since 08:00:00; the last one asked 3 s ago"
    )
    assert told.hints == ("workers of service-1 are there: they are busy, or do not lease lane 15",)
    silent = walk.explained(service_asked_at_ms=walk.at_ms - ASKED_LATELY_MS)
    assert "no worker leases directives of service service-1" in silent.summary


def test_waiting_for_an_ack() -> None:
    walk = sent()
    walk.wait(5 * SECOND_MS)
    told = walk.explained()
    assert told.summary == (
        "waiting for an ACK from service-1 since 08:00:07; attempt 2 of 3 begins at 08:01:37 if none comes"
    )
    assert (told.waiting_for, told.since_ms) == (WaitsFor.ACK, START_MS + 7 * SECOND_MS)
    assert told.next is not None
    assert (told.next.what, told.next.at_ms) == (
        "attempt 2 of 3 begins if none comes",
        START_MS + 97 * SECOND_MS,
    )
    assert (told.attempt_no, told.attempts_max, told.service) == (1, 3, "service-1")


def test_what_is_foretold_of_a_missing_ack_comes_true() -> None:
    walk = sent()
    told = walk.explained()
    walk.tick_when_due()
    walk.tick_when_due()
    assert told.next is not None and walk.at_ms == told.next.at_ms
    assert walk.step.attempt_no == 2


def test_the_last_attempt_has_nothing_after_it() -> None:
    walk = sent(1, StepPolicy(max_attempts=1))
    assert walk.explained().summary == (
        "waiting for an ACK from service-1 since 08:00:07; the job fails at 08:00:37 if none comes"
    )
    walk.ack()
    assert walk.explained().summary == (
        "service-1 works on step_01 since 08:00:07; its lease runs out at 08:15:07; "
        "the job fails at 08:15:07 if no RESULT comes"
    )


def test_waiting_for_a_result_under_a_lease() -> None:
    walk = sent()
    walk.wait(3 * SECOND_MS)
    walk.ack()
    walk.wait(MINUTE_MS)
    walk.progress(40, "page 2")
    told = walk.explained()
    assert told.summary == (
        "service-1 works on step_01 since 08:00:10 (40 % done: page 2); its lease runs out at 08:16:10; "
        "attempt 2 of 3 begins at 08:16:40 if no RESULT comes"
    )
    assert (told.waiting_for, told.since_ms) == (WaitsFor.RESULT, START_MS + 10 * SECOND_MS)


def test_backing_off() -> None:
    walk = sent(2)
    walk.ack()
    walk.wait(10 * SECOND_MS)
    walk.fail_retry("BUSY")
    told = walk.explained()
    assert told.summary == (
        "attempt 1 of 3 at step_01 failed at 08:00:17: BUSY: the service said BUSY; "
        "attempt 2 of 3 begins at 08:00:47"
    )
    assert (told.waiting_for, told.since_ms) == (WaitsFor.RETRY, walk.at_ms)
    assert told.next is not None and told.next.at_ms == walk.at_ms + 30 * SECOND_MS


def test_paused() -> None:
    walk = sent(2)
    walk.succeed()
    walk.wait(MINUTE_MS)
    walk.give(Pause())
    walk.wait(DAY_MS)
    told = walk.explained()
    assert told.summary == "paused since 2027-01-15 08:01:07; once resumed it goes on with step_02"
    assert (told.waiting_for, told.step_id, told.service) == (WaitsFor.RESUME, "step_02", "service-2")
    assert told.hints == ("resume it, or cancel it; a paused job does not age",)


def test_pausing() -> None:
    walk = sent(2)
    walk.wait(MINUTE_MS)
    walk.ack()
    walk.wait(MINUTE_MS)
    walk.give(Pause())
    told = walk.explained()
    assert told.summary == (
        "pausing since 08:02:07, once step_01 ends: service-1 works on step_01 since 08:01:07; "
        "its lease runs out at 08:16:07"
    )
    assert (told.state, told.waiting_for) == (JobState.PAUSING, WaitsFor.RESULT)
    walk.give(Resume())
    assert walk.explained().summary.startswith("service-1 works on step_01 since 08:01:07")


def test_cancelling() -> None:
    walk = sent()
    walk.ack()
    walk.wait(MINUTE_MS)
    walk.give(Cancel())
    walk.wait(SECOND_MS)
    told = walk.explained()
    assert told.summary == (
        "cancelling since 08:01:07: service-1 has step_01 and is told to stop; "
        "the job is cancelled when it answers, or at 08:15:07 if it keeps silent"
    )
    assert told.next is not None and told.next.at_ms == START_MS + 15 * MINUTE_MS + 7 * SECOND_MS
    walk.fail_retry("STOPPED")
    ended = walk.explained()
    assert ended.summary == "cancelled at 08:01:08; it can be run again"
    assert (ended.waiting_for, ended.next, ended.since_ms) == (None, None, walk.at_ms)


def test_a_job_that_was_cancelled_when_all_was_done_is_run_again_from_a_step() -> None:
    for steps, how in ((1, ", from a step, for all of them had succeeded"), (2, "")):
        walk = ExplainedWalk(born(steps))
        walk.ack()
        walk.give(Cancel())
        walk.succeed()
        assert walk.job.state is JobState.CANCELLED
        assert walk.explained().summary == f"cancelled at 08:00:00; it can be run again{how}"


def test_times_are_written_as_instants_where_a_page_shows_them_in_its_own_zone() -> None:
    walk = sent()
    short, long = walk.explained(), walk.explained(instants=True)
    assert "since 08:00:07" in short.summary
    day = f"{datetime.fromtimestamp(START_MS / 1000, UTC):%Y-%m-%d}"
    assert f"since {day}T08:00:07Z" in long.summary
    assert short.summary == long.summary.replace(f"{day}T", "").replace("Z", "")


def test_the_tenants_limit() -> None:
    told = begun().explained(tenant_in_flight=1_000, tenant_max=1_000)
    assert told.hints[-1] == "the tenant has 1,000 jobs in flight, its limit: new commands are refused"
    assert (told.tenant_in_flight, told.tenant_max) == (1_000, 1_000)
    below = begun().explained(tenant_in_flight=999, tenant_max=1_000)
    assert not any("in flight" in hint for hint in below.hints)


def test_publishing_fails() -> None:
    walk = begun()
    walk.wait(7 * SECOND_MS)
    walk.publish_failed()
    assert walk.explained().summary.startswith("publishing to service-1 failed once since 08:00:07: ")
    walk.wait(30 * SECOND_MS)
    walk.publish_failed()
    told = walk.explained()
    assert told.summary == (
        "publishing to service-1 failed 2 times since 08:00:07: the broker is away; "
        "the next try is at 08:02:37, and the job fails at 2027-01-16 08:00:07 if none succeeds"
    )
    assert told.waiting_for is WaitsFor.PUBLISH
    assert told.next is not None and told.next.at_ms == walk.at_ms + 2 * MINUTE_MS
    assert told.hints == ("is the bus up? retry the outbox to try every waiting directive at once",)
    bounded = begun(1, StepPolicy(publish_attempts_max=3))
    bounded.publish_failed()
    assert bounded.explained().summary.endswith(", and the job fails after 3 failures")


def test_finally_failed() -> None:
    walk = sent()
    walk.wait(SECOND_MS)
    walk.fail_final("BROKEN")
    told = walk.explained()
    assert told.summary == (
        "finally failed: BROKEN: the service said BROKEN (step_01, at 08:00:08); it can be run again"
    )
    assert (told.state, told.waiting_for, told.next) == (JobState.FAILED_FINAL, None, None)
    assert told.since_ms == walk.at_ms


def test_done() -> None:
    walk = sent()
    walk.wait(SECOND_MS)
    walk.succeed("s3://w/1")
    told = walk.explained()
    assert told.summary == "succeeded at 08:00:08; the result is at s3://w/1"
    assert (told.waiting_for, told.next, told.hints) == (None, None, ())


def test_a_late_success_is_evidence_that_may_be_adopted() -> None:
    walk = sent(2, StepPolicy(max_attempts=1))
    late = target(walk.step)
    walk.tick_when_due()
    assert walk.job.state is JobState.FAILED_FINAL
    walk.wait(SECOND_MS)
    walk.succeed("s3://w/late")
    (event,) = walk.explained().late_answers
    assert (event.type, event.step_id, event.attempt_no) == (Fact.REPLY_LATE, *late[:2])
    assert is_late_success(event)
    hint = f"attempt 1 at step_01 succeeded too late (event {event.seq}): its result can be adopted"
    assert walk.explained().hints == (hint,)


def names(told: Explanation) -> list[ActionName]:
    return [action.name for action in told.actions]


def test_what_may_be_done_is_named_for_those_who_offer_it() -> None:
    walk = sent(2, StepPolicy(max_attempts=1))
    assert names(walk.explained()) == []
    walk.give(Pause())
    assert names(walk.explained()) == [ActionName.RESUME]
    walk.give(Resume())
    late = walk.step
    walk.tick_when_due()
    walk.wait(SECOND_MS)
    walk.give(result(target(late), ResultStatus.SUCCEEDED, uri="s3://w/late"))
    told = walk.explained()
    assert names(told) == [ActionName.ADOPT, ActionName.REDRIVE, ActionName.RERUN]
    (event,) = told.late_answers
    assert (told.actions[0].step_id, told.actions[0].seq) == ("step_01", event.seq)


def test_what_was_adopted_or_run_again_is_not_offered_again() -> None:
    walk = sent(2, StepPolicy(max_attempts=1))
    late = walk.step
    walk.tick_when_due()
    walk.wait(SECOND_MS)
    walk.give(result(target(late), ResultStatus.SUCCEEDED, uri="s3://w/late"))
    (event,) = walk.explained().late_answers
    adopted = RunAgain(job_id="job_2", adoptions={("step_01", event.seq): "job_2"})
    told = walk.explained(again=adopted)
    assert (told.actions, told.hints, told.again) == ((), (), adopted)
    assert told.summary.endswith("; it was run again as job_2")
    rerun = walk.explained(again=RunAgain(job_id="job_3"))
    assert names(rerun) == [ActionName.ADOPT]
    failed = walk.explained(again=RunAgain())
    assert names(failed) == [ActionName.ADOPT, ActionName.REDRIVE, ActionName.RERUN]


def test_a_late_success_of_an_open_job_waits_for_its_end() -> None:
    walk = sent(2)
    zombie = target(walk.step)
    walk.tick_when_due()
    walk.tick_when_due()
    (event,) = walk.give(result(zombie, ResultStatus.SUCCEEDED, uri="s3://w/late")).events
    told = walk.explained()
    assert (event.type, told.late_answers) == (Fact.REPLY_STALE, (event,))
    assert any("its result can be adopted once the job has ended" in hint for hint in told.hints)


@pytest.mark.parametrize("kind", ["ACK", "PROGRESS"])
def test_only_a_success_is_a_late_success(kind: str) -> None:
    event = Event(seq=3, type=Fact.REPLY_LATE, at_ms=START_MS, step_id="step_01", data={})
    for reply in ({"type": kind, "status": "SUCCEEDED"}, {"type": "RESULT", "status": "FAILED_RETRY"}, "x"):
        assert not is_late_success(msgspec.structs.replace(event, data={"reply": reply}))
    good = {"reply": {"type": "RESULT", "status": "SUCCEEDED"}}
    assert is_late_success(msgspec.structs.replace(event, data=good))
    assert not is_late_success(msgspec.structs.replace(event, type=Fact.REPLY_DUPLICATE, data=good))


def test_a_job_past_its_sla_says_when_it_fails() -> None:
    walk = begun()
    walk.tick_when_due()
    told = walk.explained()
    assert told.hints[-1] == (
        "the job is open longer than its SLA of 7 d; unless it ends or is paused it fails at "
        "2027-01-29 08:00:00 with SLA_EXCEEDED"
    )


def test_an_engine_that_has_not_begun_yet() -> None:
    walk = ExplainedWalk(born(engine=Engine.TEMPORAL))
    told = walk.explained()
    assert told.summary == "waiting for the engine to begin step_01 since 08:00:00"
    assert told.waiting_for is WaitsFor.ENGINE


@pytest.mark.parametrize("engine", Engine)
def test_every_situation_can_be_explained(engine: Engine) -> None:
    """Whatever a job gets into, there are words for it, and what comes next is not in doubt."""
    nodes, _ = explored(2, engine)
    for node in nodes:
        told = explained(node.record, node.at_ms, tenant_max=2)
        assert "None" not in told.summary, told
        ended = node.record.job.terminal
        assert (told.waiting_for is None) == (told.next is None) == ended
