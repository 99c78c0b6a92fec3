"""Bugs, planted one at a time: each is found within a few seeds, by the rule that names it."""

from functools import cache

import msgspec
import pytest

from lucius.core import decide, fold, replies
from lucius.core import flow as flowing
from lucius.core.clock import SteadyClock
from lucius.core.draft import Draft
from lucius.core.states import JOB_MOVES, Fact
from lucius.engines import flow_control
from lucius.engines.flow_control import FlowControl
from lucius.engines.outbox import fair_share
from lucius.engines.outbox.far_rows import FarRows
from lucius.engines.reply_consumer import ReplyConsumer
from lucius.jobs import writer as apply
from lucius.jobs.reply_backlog import StandstillClock
from lucius.ledger.commit_plan import CommitPlanner
from lucius.ledger.index_audit import IndexAudit
from lucius.ledger.indexes import Indexes
from lucius.ledger.job_ledger import JobLedger
from lucius_lab.planted_bugs import FITTING, Bug, planted
from lucius_lab.sim.run import SimOutcome, simulate

SEEDS_MAX = 3_000

# One worker runs them all, so that no seed is simulated twice.
pytestmark = pytest.mark.xdist_group("planted-bugs")


class Found(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    rule: str
    text: str


@cache
def without_bug(seed: int) -> SimOutcome:
    return simulate(seed)


@cache
def found(bug: Bug) -> Found | None:
    """The first seed whose run breaks a promise."""
    with planted(bug):
        for seed in range(SEEDS_MAX):
            outcome = simulate(seed)
            if not outcome.passed:
                first = outcome.violations[0]
                return Found(seed=seed, rule=first.name, text=first.text)
    return None


@pytest.mark.parametrize("bug", Bug, ids=[bug.name.lower() for bug in Bug])
def test_a_planted_bug_is_found_by_the_rule_that_names_it(bug: Bug) -> None:
    caught = found(bug)
    assert caught is not None, f"{bug.name} ({bug.value}) was not found with {SEEDS_MAX} seeds"
    assert caught.rule in FITTING[bug], f"{bug.name} was taken for {caught.rule}: {caught.text}"
    for seed in range(caught.seed + 1):
        assert without_bug(seed).violations == (), f"seed {seed} breaks a promise without any bug"


def test_all_are_caught(capsys: pytest.CaptureFixture[str]) -> None:
    caught = {bug: one for bug in Bug if (one := found(bug)) is not None}
    with capsys.disabled():
        print()
        for bug, one in caught.items():
            print(f"{bug.name:22} caught by {one.rule:4} after {one.seed + 1:3} seeds: {one.text}")
    assert len(caught) == len(Bug)


def test_a_bug_is_gone_when_its_context_is() -> None:
    before, right = without_bug(0).trace_hash, _seams()
    for bug in Bug:
        with planted(bug):
            assert _seams() != right, f"{bug.name} is planted somewhere else"
        assert _seams() == right
    assert simulate(0).trace_hash == before


def _seams() -> list[object]:
    """Every place that a bug is planted in."""
    return [
        replies._outcome,
        JobLedger.create,
        JobLedger._execute,
        ReplyConsumer._handle,
        IndexAudit._open_checks,
        Draft.note,
        Indexes.due,
        CommitPlanner.change,
        decide._cancel,
        decide._tick,
        apply._EVIDENCE,
        fold._EFFECTS[Fact.ATTEMPT_BEGUN],
        dict(JOB_MOVES),
        SteadyClock.now_ms,
        FarRows.page,
        StandstillClock.look,
        FlowControl.watch,
        FlowControl._give_up,
        flowing._Taking._full,
        flowing._Taking._paid,
        fair_share.TenantTurns.start,
        fair_share._Round._share_of,
        flow_control._ServiceFlow.take_in,
        fold._EFFECTS[Fact.STEP_RETRYING],
    ]
