"""Whatever happens, in whichever order and at whatever time: the rules hold, and every job can end."""

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.invariants import check
from tests.core.machine import (
    DAY_MS,
    HOUR_MS,
    START_MS,
    Edge,
    ack,
    born,
    focus,
    give,
    hand_out,
    published,
    result,
    right_inputs,
    target,
    wrong_inputs,
)
from tests.core.sequencer import look, next_ask_ms

from lucius.core.draft import Decision
from lucius.core.due import next_due_ms
from lucius.core.inputs import Cancel, ResultStatus, Resume, Tick
from lucius.core.model import JobRecord, StepPolicy
from lucius.core.states import Engine, JobState, StepState

# With nobody answering: a deadline, a retry that nobody takes, the escalation, the end; and once more for
# the attempts that begin without a wait.
LOOKS_MAX = 12


class Move(NamedTuple):
    """Something happens: after so much time, or when the next thing is due."""

    span_ms: int | None
    wrong: bool
    pick: int


def _backoffs() -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.sampled_from([0, 1, 30_000, HOUR_MS]), min_size=1, max_size=3).map(tuple)


POLICIES = st.builds(
    StepPolicy,
    max_attempts=st.integers(1, 4),
    ack_timeout_ms=st.sampled_from([1, 30_000]),
    lease_ms=st.sampled_from([1, 900_000, 2 * DAY_MS]),
    max_duration_ms=st.sampled_from([1_000, HOUR_MS, DAY_MS]),
    backoff_publish_ms=_backoffs(),
    backoff_ack_ms=_backoffs(),
    backoff_result_ms=_backoffs(),
    dispatch_timeout_ms=st.sampled_from([0, HOUR_MS, DAY_MS]),
    publish_attempts_max=st.integers(0, 3),
)
RECORDS = st.builds(
    born,
    st.integers(1, 3),
    POLICIES,
    engine=st.sampled_from(Engine),
    sla_ms=st.sampled_from([HOUR_MS, DAY_MS, 7 * DAY_MS]),
    stop_on_pause=st.booleans(),
)
FORWARD = st.sampled_from([None, None, 0, 0, 1, 9_999, 10_000, 30_000, 900_000, HOUR_MS, 2 * DAY_MS])
# Several machines write, and their clocks differ.
ANY_CLOCK = FORWARD | st.integers(-5_000, 5_000)


def _moves(clock: st.SearchStrategy[int | None]) -> st.SearchStrategy[list[Move]]:
    wrong = st.sampled_from([False, False, False, True])
    return st.lists(st.builds(Move, clock, wrong, st.integers(0, 1_000)), max_size=40)


def _play(record: JobRecord, moves: list[Move]) -> tuple[JobRecord, int]:
    at_ms = START_MS
    for move in moves:
        at_ms = _moved(record, at_ms, move.span_ms)
        inputs = wrong_inputs(record) if move.wrong else right_inputs(record)
        edge = give(record, inputs[move.pick % len(inputs)], at_ms)
        check(edge)
        record = edge.after
    return record, at_ms


def _moved(record: JobRecord, at_ms: int, span_ms: int | None) -> int:
    if span_ms is not None:
        return at_ms + span_ms
    due_ms = next_due_ms(record, at_ms)
    if due_ms is None:
        return at_ms
    asks_ms = next_ask_ms(record) if record.job.engine is Engine.TEMPORAL else None
    return max(at_ms, due_ms if asks_ms is None else min(due_ms, asks_ms))


def _worked_off(record: JobRecord, at_ms: int) -> JobRecord:
    """A good worker takes what there is, and waits for what is not due yet."""
    record = give(record, Resume(), at_ms).after
    for _ in range(8 * len(record.steps)):
        if record.job.terminal:
            break
        step = focus(record)
        of = target(step)
        match step.state:
            case StepState.DISPATCHING:
                edges = [give(record, hand_out(of), at_ms)]
            case StepState.INITIATED if record.awaits_dispatch(step):
                edges = [give(record, published(of), at_ms)]
            case StepState.INITIATED:
                edges = [give(record, ack(of), at_ms)]
            case StepState.PROCESSING:
                edges = [give(record, result(of, ResultStatus.SUCCEEDED), at_ms)]
            case _:
                at_ms = _moved(record, at_ms, None)
                edges = look(record, at_ms)
        assert edges[-1].after is not record, "a good worker is never stuck"
        record = _checked(edges)
    return record


def _checked(edges: list[Edge]) -> JobRecord:
    for edge in edges:
        check(edge)
    return edges[-1].after


def _left_alone(record: JobRecord, at_ms: int) -> tuple[JobRecord, int]:
    """Time passes and nobody answers, until nothing more changes."""
    for _ in range(LOOKS_MAX):
        if record.job.terminal or record.job.state is JobState.PAUSED:
            break
        at_ms = _moved(record, at_ms, None)
        record = _checked(look(record, at_ms))
        if record.job.engine is Engine.TEMPORAL and record.job.state is not JobState.CANCELLING:
            at_ms = max(at_ms, _sla_ms(record))  # alarms ring in between, and change nothing
            record = _checked(look(record, at_ms))
    return record, at_ms


def _sla_ms(record: JobRecord) -> int:
    job = record.job
    spans = 1 if job.escalated_at_ms is None else 2
    return 0 if job.terminal else job.created_at_ms + job.paused_total_ms + spans * job.sla_ms


@given(record=RECORDS, moves=_moves(FORWARD))
@settings(max_examples=250, deadline=None)
def test_a_good_worker_ends_every_job(record: JobRecord, moves: list[Move]) -> None:
    played, at_ms = _play(record, moves)
    ended = _worked_off(played, at_ms)
    assert ended.job.terminal
    if played.job.terminal:
        assert ended.job.state is played.job.state
    elif played.job.state is JobState.CANCELLING:
        assert ended.job.state is JobState.CANCELLED
    else:
        assert ended.job.state is JobState.SUCCEEDED or ended.job.error_code == "SLA_EXCEEDED"


@given(record=RECORDS, moves=_moves(FORWARD))
@settings(max_examples=250, deadline=None)
def test_time_alone_ends_every_job_that_is_not_paused(record: JobRecord, moves: list[Move]) -> None:
    left, at_ms = _left_alone(*_play(record, moves))
    if left.job.state is JobState.PAUSED:
        left, at_ms = _left_alone(give(left, Resume(), at_ms).after, at_ms)
    assert left.job.terminal, f"still {left.job.state} after {LOOKS_MAX} looks"


@given(record=RECORDS, moves=_moves(FORWARD))
@settings(max_examples=100, deadline=None)
def test_a_paused_job_waits_as_long_as_it_takes(record: JobRecord, moves: list[Move]) -> None:
    left, at_ms = _left_alone(*_play(record, moves))
    if left.job.state is JobState.PAUSED:
        edge = give(left, Tick(), at_ms + 1_000 * DAY_MS)
        assert edge.after is left
        resumed = give(left, Resume(), at_ms + 1_000 * DAY_MS).after
        open_ms = at_ms + 1_000 * DAY_MS - resumed.job.created_at_ms - resumed.job.paused_total_ms
        assert open_ms <= at_ms - START_MS
    else:
        assert left.job.terminal


@given(record=RECORDS, moves=_moves(FORWARD))
@settings(max_examples=100, deadline=None)
def test_a_cancel_and_one_deadline_end_every_job(record: JobRecord, moves: list[Move]) -> None:
    played, at_ms = _play(record, moves)
    edge = give(played, Cancel(), at_ms)
    check(edge)
    if edge.after.job.state is JobState.CANCELLING:
        at_ms = _moved(edge.after, at_ms, None)
        edge = look(edge.after, at_ms)[0]
        check(edge)
    expected = played.job.state if played.job.terminal else JobState.CANCELLED
    assert edge.after.job.state is expected


@given(record=RECORDS, moves=_moves(ANY_CLOCK))
@settings(max_examples=250, deadline=None)
def test_clocks_that_differ_break_no_rule(record: JobRecord, moves: list[Move]) -> None:
    played, at_ms = _play(record, moves)
    edge = give(played, Tick(), at_ms)
    assert isinstance(edge.answer, Decision)
    assert edge.after.job.paused_total_ms >= 0
