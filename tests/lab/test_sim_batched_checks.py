"""Judging by the hundred comes to the verdict that judging at once does, and names the same act."""

import msgspec
import pytest
from tests.lab.test_sim_run import Picky

from lucius_lab.planted_bugs import Bug, planted
from lucius_lab.sim import batched_checks as later
from lucius_lab.sim import run
from lucius_lab.sim.batched_checks import BatchedChecks
from lucius_lab.sim.run import SimShape, simulate
from lucius_lab.sim.watch import StoreReader, Violation


class Silent:
    """A store in which nothing is left."""

    def partitions(self, table: str) -> list[str]:
        return []

    def rows(self, table: str, partition: str) -> list[object]:
        return []


def test_what_was_told_is_judged_in_its_order_once_everything_rests() -> None:
    told: list[object] = []

    class Scribe(Picky):
        def committed(self, ops, *, now_ms, by):  # type: ignore[no-untyped-def]
            told.append((ops, now_ms, by))

        def answered(self, job_id: str, *, key: str, duplicate: bool) -> None:
            told.append((job_id, key, duplicate))

        def settled(self, body: bytes, *, now_ms: int) -> None:
            told.append((body, now_ms))

        def replied(self, *reply: object, stop: bool) -> None:
            told.append((*reply, stop))

        def rerun_asked(self, job_id: str, first: int) -> None:
            told.append((job_id, first))

        def lost(self, table: str, partition: str, key: str, *, now_ms: int) -> None:
            told.append((table, partition, key, now_ms))

        def passed(self, *, now_ms: int) -> None:
            told.append(now_ms)

        def started(self, name: str, *, opens: bool, relays: bool, offset_ms: int) -> None:
            told.append((name, opens, relays, offset_ms))

        def stood_still(self, name: str, *, from_ms: int, until_ms: int) -> None:
            told.append((name, from_ms, until_ms))

    watch = BatchedChecks(Scribe())
    watch.committed((), now_ms=1, by="api")
    watch.answered("job_1", key="k", duplicate=False)
    watch.replied(("job_1", "step_01", 1, "lease"), "ACK", "applied", stop=True)
    watch.rerun_asked("job_1", 2)
    watch.started("api-1", opens=True, relays=False, offset_ms=7)
    watch.stood_still("api-1", from_ms=2, until_ms=5)
    watch.settled(b"{}", now_ms=2)
    watch.lost("due", "03", "key", now_ms=2)
    watch.passed(now_ms=3)
    watch.committed((), now_ms=3, by="reconciler")
    assert told == []
    assert watch.at_rest(Silent()) == []  # type: ignore[arg-type]
    assert told == [
        ((), 1, "api"),
        ("job_1", "k", False),
        (("job_1", "step_01", 1, "lease"), "ACK", "applied", True),
        ("job_1", 2),
        ("api-1", True, False, 7),
        ("api-1", 2, 5),
        (b"{}", 2),
        ("due", "03", "key", 2),
        3,
        ((), 3, "reconciler"),
    ]


def test_a_breach_is_found_at_rest_and_no_later_than_the_bound() -> None:
    watch = BatchedChecks(Picky())
    for _ in range(3):
        watch.committed((), now_ms=1, by="api")
    assert [violation.name for violation in watch.at_rest(Silent())] == ["PICKY"]  # type: ignore[arg-type]
    watch = BatchedChecks(Picky())
    with pytest.raises(Violation, match="PICKY"):
        for _ in range(later.ACTS_MAX):
            watch.committed((), now_ms=1, by="api")


@pytest.mark.parametrize("acts_max", [1, 7, 512])
def test_a_breach_ends_the_run_where_it_happens(acts_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was found later, what is told is the run that ended at the act itself."""
    monkeypatch.setattr(later, "ACTS_MAX", acts_max)
    broken = 0
    with planted(Bug.EVENT_SKIPPED):
        for seed in range(12):
            outcome = simulate(seed)
            story = simulate(seed, SimShape(record=True))  # which is judged at once
            assert [str(one) for one in outcome.violations] == [str(one) for one in story.violations]
            assert (outcome.trace_hash, outcome.commits) == (story.trace_hash, story.commits)
            broken += not outcome.passed
    assert broken


def test_a_run_that_keeps_every_promise_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[bool] = []
    plain = run._Run.outcome

    def outcome(self: run._Run) -> run.SimOutcome:
        runs.append(isinstance(self.watch, BatchedChecks))
        return plain(self)

    monkeypatch.setattr(run._Run, "outcome", outcome)
    assert simulate(5).passed
    assert simulate(5, msgspec.structs.replace(SimShape(), record=True)).passed
    assert runs == [True, False]


def test_what_was_found_later_is_told_though_nothing_is_found_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def at_rest(self: BatchedChecks, reader: StoreReader) -> list[Violation]:
        return [Violation("LATER", "", "found by the hundred alone")]

    monkeypatch.setattr(BatchedChecks, "at_rest", at_rest)
    assert [violation.name for violation in simulate(5).violations] == ["LATER"]
