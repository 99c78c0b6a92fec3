"""The status machine: every pair of status and move, and the pages drawn from the table."""

import itertools
from pathlib import Path

import pytest
from tests.lifebook.samples import NOW, POLICY, a_job

from lucius.lifebook import documents
from lucius.lifebook.job import LifebookJob
from lucius.lifebook.machine import moved
from lucius.lifebook.refusals import RunCode, RunRefused
from lucius.lifebook.states import MEANINGS, MOVES, OPEN, TERMINAL, Status, StatusMove

TOP = Path(__file__).parents[2]

# Written out by hand, so that a slip in the table is seen.
LEGAL = {
    ("pending", "ENQUEUED", "queued"),
    ("queued", "ENQUEUED", "queued"),
    ("failed", "ENQUEUED", "failed"),
    ("pending", "STARTED", "running"),
    ("queued", "STARTED", "running"),
    ("failed", "STARTED", "running"),
    ("running", "RENEWED", "running"),
    ("running", "CHECKPOINTED", "running"),
    ("running", "STEP_DONE", "running"),
    ("running", "YIELDED", "queued"),
    ("running", "ATTEMPT_FAILED", "failed"),
    ("running", "ATTEMPT_LOST", "failed"),
    ("running", "COMPLETED", "completed"),
    ("failed", "DIED", "dead"),
    ("pending", "DIED", "dead"),
    ("running", "CANCEL_REQUESTED", "running"),
    ("pending", "CANCELED", "canceled"),
    ("queued", "CANCELED", "canceled"),
    ("running", "CANCELED", "canceled"),
    ("failed", "CANCELED", "canceled"),
    ("completed", "SETTLED", "completed"),
    ("dead", "SETTLED", "dead"),
    ("canceled", "SETTLED", "canceled"),
    ("dead", "REDRIVEN", "pending"),
}


@pytest.mark.parametrize(("status", "move"), list(itertools.product(Status, StatusMove)))
def test_every_pair_moves_as_the_table_says_or_is_refused(status: Status, move: StatusMove) -> None:
    job = a_job(status=status)
    after = moved(job, move, policy=POLICY, now_ms=NOW)
    target = {to for at, by, to in LEGAL if (at, by) == (status, move)}
    if not target:
        assert isinstance(after, RunRefused)
        assert after.code is RunCode.ILLEGAL_MOVE
        assert status in after.message
    else:
        assert isinstance(after, LifebookJob)
        assert {after.status} == target
        assert after.version == job.version + 1


def test_the_statuses_are_those_of_the_contract() -> None:
    assert [*Status] == ["pending", "queued", "running", "completed", "failed", "dead", "canceled"]
    assert set(TERMINAL) == {"completed", "dead", "canceled"}
    assert set(Status) == OPEN | TERMINAL
    assert set(MEANINGS) == set(MOVES) == set(StatusMove)


@pytest.mark.parametrize("status", list(Status))
def test_every_open_job_is_swept_and_only_ended_ones_expire(status: Status) -> None:
    for move in StatusMove:
        after = moved(a_job(status=status, steps_total=1), move, policy=POLICY, now_ms=NOW)
        if not isinstance(after, LifebookJob) or status in TERMINAL:
            continue
        assert (after.ttl_at is not None) == after.terminal
        assert (after.completed_at is not None) == after.terminal
        assert (after.sweep_at is not None) == (not after.terminal)


def test_the_reference_is_drawn_from_the_declarations() -> None:
    written = (TOP / "docs" / "lifebook" / "reference.md").read_text(encoding="utf-8")
    assert written == documents.page(), "run `make docs`"


def test_the_diagram_shows_every_change_of_status() -> None:
    drawn = documents.diagram()
    for at, by, to in LEGAL:
        if at != to:
            (line,) = [each for each in drawn.splitlines() if each.startswith(f"    {at} --> {to} :")]
            assert by in line
