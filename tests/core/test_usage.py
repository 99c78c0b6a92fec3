"""Usage: what a RESULT reports counts once, with the attempt that it ends."""

from typing import Any

import pytest
from tests.core.machine import target
from tests.core.outcomes import ExplainedWalk, sent

from lucius.core.inputs import Cancel, Result, ResultStatus
from lucius.core.usage import OTHER, SUM_NAMES_MAX, added, is_usage_name, number_problem


def told(walk: ExplainedWalk, status: ResultStatus, **usage: float) -> None:
    of = target(walk.step)
    walk.give(
        Result(
            step_id=of.step_id,
            attempt_no=of.attempt_no,
            lease_id=of.lease_id,
            content=dict,
            status=status,
            output_ref={"uri": "s3://out/1"},
            usage=usage,
        )
    )


def test_a_success_is_summed_by_step_and_job() -> None:
    walk = sent(2)
    told(walk, ResultStatus.SUCCEEDED, pages=3, usd=0.5)
    walk.hand_out()
    told(walk, ResultStatus.SUCCEEDED, pages=4)
    assert walk.job.usage == {"pages": 7, "usd": 0.5}
    assert [step.usage for step in walk.record.steps] == [{"pages": 3, "usd": 0.5}, {"pages": 4}]


@pytest.mark.parametrize("status", [ResultStatus.FAILED_RETRY, ResultStatus.FAILED_FINAL])
def test_a_failure_counts_too(status: ResultStatus) -> None:
    walk = sent()
    told(walk, status, tokens=9)
    assert walk.job.usage == {"tokens": 9}
    (event,) = [event for event in walk.events if "usage" in event.data]
    assert event.attempt_no == 1 and event.data["usage"] == {"tokens": 9}


def test_a_failure_of_a_cancelled_job_counts_too() -> None:
    walk = sent()
    walk.give(Cancel())
    told(walk, ResultStatus.FAILED_RETRY, tokens=9)
    assert walk.job.terminal and walk.job.usage == {"tokens": 9}


def test_what_is_repeated_or_too_late_does_not_count() -> None:
    walk = sent()
    of = target(walk.step)
    reply = Result(
        step_id=of.step_id,
        attempt_no=of.attempt_no,
        lease_id=of.lease_id,
        content=lambda: {"type": "RESULT", "usage": {"pages": 1}},
        status=ResultStatus.FAILED_RETRY,
        usage={"pages": 1},
    )
    walk.give(reply)
    walk.give(reply)
    assert walk.job.usage == {"pages": 1}


def test_without_usage_nothing_changes_hands() -> None:
    walk = sent()
    before = walk.job.usage
    walk.succeed()
    assert walk.job.usage is before


def test_sums_are_bounded() -> None:
    sums: dict[str, int | float] = {}
    for number in range(SUM_NAMES_MAX + 5):
        sums = added(sums, {f"n{number}": 1})
    assert len(sums) == SUM_NAMES_MAX + 1 and sums[OTHER] == 5


@pytest.mark.parametrize("value", [True, "1", None, [], float("nan"), float("inf"), -1, 10**15 + 1])
def test_what_cannot_be_summed(value: Any) -> None:
    assert number_problem(value) is not None


def test_names() -> None:
    assert all(map(is_usage_name, ("pages", "gpt-4.in_tokens", "A" * 64)))
    assert not any(map(is_usage_name, ("", "1a", "a b", "a\n", "é", "A" * 65)))
