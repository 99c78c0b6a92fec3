"""What `explain` says comes next is what comes: at the end of a pause, of the attempts, of the SLA."""

from tests.core.machine import SECOND_MS, START_MS, born
from tests.core.outcomes import ExplainedWalk, begun, sent

from lucius.core.explain import Next, WaitsFor
from lucius.core.inputs import Pause, Resume, Tick
from lucius.core.model import StepPolicy
from lucius.core.states import JobState

ONCE = StepPolicy(max_attempts=1)


def _at(seconds: int) -> int:
    return START_MS + seconds * SECOND_MS


def _next(walk: ExplainedWalk) -> Next:
    coming = walk.explained().next
    assert coming is not None
    return coming


def test_a_step_before_the_last_ends_in_the_pause() -> None:
    walk = sent(2)
    walk.give(Pause())
    assert _next(walk) == Next(what="step_01 ends, and the job pauses", at_ms=_at(37))


def test_a_worker_that_is_told_to_stop_is_named() -> None:
    walk = ExplainedWalk(born(2, ONCE, stop_on_pause=True))
    walk.hand_out()
    walk.give(Pause())
    assert walk.explained().summary.endswith("service-1 is told to stop")
    walk.fail_retry("STOPPED")
    walk.give(Resume())
    explained = walk.explained()
    assert (explained.attempt_no, explained.attempts_max) == (2, 2)


def test_the_last_attempt_does_not_end_in_the_pause() -> None:
    walk = sent(2, ONCE)
    walk.give(Pause())
    what = "step_01 ends, and the job pauses; if no answer comes, the job fails"
    assert _next(walk) == Next(what=what, at_ms=_at(37))
    walk.wait(30 * SECOND_MS)
    walk.give(Tick())
    assert (walk.job.state, walk.job.updated_at_ms) == (JobState.FAILED_FINAL, _at(37))


def test_a_worker_is_waited_for_since_the_job_goes_on() -> None:
    for over_bus, waiting_for in ((False, WaitsFor.WORKER), (True, WaitsFor.PUBLISH)):
        walk = begun()
        walk.give(Pause())
        walk.wait(90 * SECOND_MS)
        walk.give(Resume())
        walk.wait(SECOND_MS)
        told = walk.explained(over_bus=over_bus)
        assert (told.waiting_for, told.since_ms) == (waiting_for, _at(90))
        assert "since 08:01:30" in told.summary


def test_a_pause_before_the_attempt_began_does_not_count() -> None:
    walk = begun()
    walk.give(Pause())
    walk.give(Resume())
    walk.wait(7 * SECOND_MS)
    walk.hand_out()
    walk.wait(2 * SECOND_MS)
    walk.ack()
    walk.fail_retry("BUSY")
    walk.wait(30 * SECOND_MS)
    walk.give(Tick())
    told = walk.explained()
    assert (told.attempt_no, told.waiting_for, told.since_ms) == (2, WaitsFor.WORKER, _at(39))


def test_what_would_come_after_the_end_of_the_sla_does_not_come() -> None:
    walk = ExplainedWalk(born(sla_ms=10 * SECOND_MS))
    walk.hand_out()
    walk.ack()
    what = "the job fails with SLA_EXCEEDED unless it ends before"
    assert _next(walk) == Next(what=what, at_ms=_at(20))
    walk.give(Pause())  # the step under way keeps its job's clock running
    assert _next(walk) == Next(what=what, at_ms=_at(20))
    walk.give(Resume())
    walk.wait(20 * SECOND_MS)
    walk.give(Tick())
    assert (walk.job.state, walk.job.error_code) == (JobState.FAILED_FINAL, "SLA_EXCEEDED")


def test_what_comes_before_the_end_of_the_sla_is_told_as_ever() -> None:
    walk = ExplainedWalk(born(sla_ms=60 * SECOND_MS))
    walk.hand_out()
    assert _next(walk) == Next(what="attempt 2 of 3 begins if none comes", at_ms=_at(90))


def test_a_publish_that_would_come_too_late_is_not_foretold() -> None:
    walk = ExplainedWalk(born(1, StepPolicy(backoff_publish_ms=(30_000,), dispatch_timeout_ms=8_000)))
    walk.publish_failed()
    walk.wait(SECOND_MS)
    told = walk.explained(over_bus=True)
    assert told.next is not None
    assert told.next.what == "the job fails, for its directive could not be published"
    assert told.next.at_ms == START_MS + 8_000
    assert told.summary.endswith("the next try would come too late: the job fails at 08:00:08")
    walk.wait(7 * SECOND_MS)
    walk.give(Tick())
    assert (walk.job.state, walk.job.error_code) == (JobState.FAILED_FINAL, "PUBLISH_FAILED")
