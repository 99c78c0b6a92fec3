"""What should have happened by now is told as overdue, never as yet to come; and who is missing is named."""

from collections.abc import Callable

import pytest
from tests.core.machine import DAY_MS, SECOND_MS, START_MS, born, explored
from tests.core.outcomes import ExplainedWalk, begun, cancelling, explained, pausing, sent, unpublished

from lucius.core.explain import NOT_RUN_HERE, OVERDUE_AFTER_MS, UNBEGUN_AFTER_MS
from lucius.core.inputs import Cancel, Pause
from lucius.core.states import Engine

RECONCILER = "no reconciler seems to run: is `lucius reconciler` (or `lucius invoker`) up?"
WORKER = (
    "no worker or invoker of the temporal engine seems to run: are `lucius worker`, `lucius invoker` and "
    "Temporal up?"
)
MISSED = "and no process has acted on it"


def _acked() -> ExplainedWalk:
    walk = sent()
    walk.ack()
    return walk


def _retrying() -> ExplainedWalk:
    walk = _acked()
    walk.fail_retry("BUSY")
    return walk


# A situation; how many seconds after the start its deadline is; how the summary ends then; what comes next.
SITUATIONS = [
    (
        sent,
        37,
        f"since 08:00:07; it was due at 08:00:37, {MISSED}; attempt 2 of 3 begins once a process does",
        "attempt 2 of 3 begins once a process acts on the deadline",
    ),
    (
        _acked,
        907,
        f"; its lease ran out at 08:15:07, {MISSED}; attempt 2 of 3 begins once a process does",
        "attempt 2 of 3 begins once a process acts on the deadline",
    ),
    (_retrying, 37, f"; attempt 2 of 3 was due at 08:00:37, {MISSED}", "attempt 2 of 3 begins"),
    (
        pausing,
        37,
        f": waiting for an ACK from service-1 since 08:00:07; it was due at 08:00:37, {MISSED}",
        "step_01 ends, and the job pauses unless it succeeded",
    ),
    (
        cancelling,
        37,
        f"the job is cancelled when it answers; its time was over at 08:00:37, {MISSED}",
        "service-1 answers or a process acts on the deadline, and the job is cancelled",
    ),
    (
        unpublished,
        30,
        f"the next try was due at 08:00:30, {MISSED}; the job fails at 2027-01-16 08:00:00 if none succeeds",
        "the directive of attempt 1 of 3 is published again",
    ),
]


@pytest.mark.parametrize(("situation", "passes", "ending", "what"), SITUATIONS)
def test_a_deadline_that_nobody_acts_on(
    situation: Callable[[], ExplainedWalk], passes: int, ending: str, what: str
) -> None:
    walk = situation()
    walk.at_ms = START_MS + passes * SECOND_MS + OVERDUE_AFTER_MS
    in_time = walk.explained()
    assert MISSED not in in_time.summary, "a little late is not overdue"
    assert in_time.next is not None and in_time.next.at_ms is not None and RECONCILER not in in_time.hints
    walk.at_ms += 1
    told = walk.explained()
    assert told.summary.endswith(ending), told.summary
    assert told.next is not None and (told.next.what, told.next.at_ms) == (what, None)
    assert (told.waiting_for, told.since_ms) == (in_time.waiting_for, in_time.since_ms)
    assert told.hints[0] == RECONCILER and told.hints[1:] == in_time.hints
    alone = walk.explained(alone=True)
    assert (alone.summary, alone.hints) == (told.summary, in_time.hints), "whoever answers does the rest too"


def test_a_directive_that_should_have_been_given_up() -> None:
    walk = unpublished()
    walk.wait(DAY_MS + OVERDUE_AFTER_MS + 1)
    assert walk.explained().summary.endswith(
        f"the next try was due at 2027-01-15 08:00:30, {MISSED}; the job's end was due at 08:00:00, {MISSED}"
    )


def test_an_sla_whose_end_nobody_saw_to() -> None:
    walk = begun()
    walk.tick_when_due()
    walk.at_ms = START_MS + 14 * DAY_MS + OVERDUE_AFTER_MS
    assert walk.explained().hints[-1].endswith("it fails at 08:00:00 with SLA_EXCEEDED")
    walk.at_ms += 1
    told = walk.explained()
    assert told.hints[0] == RECONCILER
    assert told.hints[-1] == (
        f"the job is open longer than its SLA of 7 d; its end with SLA_EXCEEDED was due at 08:00:00, {MISSED}"
    )
    walk.give(Pause())
    paused = walk.explained()
    assert paused.hints[-1] == "the job is open longer than its SLA of 7 d", "a paused job does not age"
    assert RECONCILER not in paused.hints


def test_a_step_that_no_engine_begins() -> None:
    walk = ExplainedWalk(born(engine=Engine.TEMPORAL))
    walk.wait(UNBEGUN_AFTER_MS)
    assert walk.explained().hints == ()
    walk.wait(1)
    told = walk.explained()
    assert told.summary == "waiting for the engine to begin step_01 since 08:00:00"
    assert told.hints == (WORKER,)


def test_a_job_whose_engine_does_not_run_here_says_so_until_it_ends() -> None:
    walk = ExplainedWalk(born(engine=Engine.TEMPORAL))
    assert walk.explained().hints == ()
    assert walk.explained(alone=True).hints == (NOT_RUN_HERE,)
    walk.wait(UNBEGUN_AFTER_MS + 1)
    assert walk.explained(alone=True).hints == (NOT_RUN_HERE,), "and who else might be missing is no question"
    walk.give(Pause())
    assert walk.explained(alone=True).hints[0] == NOT_RUN_HERE
    walk.give(Cancel())
    assert walk.explained(alone=True).hints == ()
    assert begun().explained(alone=True).hints == begun().explained().hints


@pytest.mark.parametrize("engine", Engine)
def test_nothing_is_foretold_for_a_time_that_has_passed(engine: Engine) -> None:
    """Whatever a job gets into, if nobody moves it for a month."""
    nodes, _ = explored(2, engine)
    for node in nodes:
        now_ms = node.at_ms + 30 * DAY_MS
        told = explained(node.record, now_ms)
        assert told.next is None or told.next.at_ms is None or told.next.at_ms >= now_ms, told
