"""Rates: what leaves in any second, however late each directive leaves after it was granted."""

from collections.abc import Iterator
from random import Random

import pytest
from msgspec.structs import replace

from lucius.core.flow import (
    EMPTY_FLOW,
    LATE_MS,
    FlowReason,
    FlowRequest,
    Rate,
    ServiceLimits,
    SlowDown,
    take,
)

SECOND_MS = 1_000
RATES = [
    Rate(tokens=100, per_ms=SECOND_MS, burst=10),
    Rate(tokens=100, per_ms=SECOND_MS, burst=1),
    Rate(tokens=100, per_ms=SECOND_MS, burst=200),
    Rate(tokens=1_000, per_ms=SECOND_MS, burst=1),
    Rate(tokens=1_000, per_ms=SECOND_MS, burst=100),
    Rate(tokens=4, per_ms=SECOND_MS, burst=2),
    Rate(tokens=1, per_ms=SECOND_MS, burst=1),
    Rate(tokens=600, per_ms=60 * SECOND_MS, burst=1),
]


def most_in(span_ms: int, times_ms: list[int]) -> int:
    times, most, first = sorted(times_ms), 0, 0
    for last, at_ms in enumerate(times):
        while times[first] <= at_ms - span_ms:
            first += 1
        most = max(most, last - first + 1)
    return most


def _asks(numbers: Iterator[int], many: int) -> list[FlowRequest]:
    return [
        FlowRequest(f"job_{number}", f"lease-{number}", "t")
        for number in (next(numbers) for _ in range(many))
    ]


@pytest.mark.parametrize("rate", RATES, ids=lambda rate: f"{rate.tokens}/{rate.per_ms}ms burst {rate.burst}")
@pytest.mark.parametrize("seed", range(4))
def test_no_more_leave_in_any_second_than_the_rate_and_one_burst_though_each_is_late(
    rate: Rate, seed: int
) -> None:
    chance, limits, numbers = Random(seed), ServiceLimits(rate=rate), iter(range(10**9))
    state, now_ms, left_at_ms = EMPTY_FLOW, 10**12, list[int]()
    stalled_until_ms = now_ms
    while now_ms < 10**12 + 8 * SECOND_MS:
        now_ms += chance.choice((1, 5, 20))
        taken = take(state, limits, _asks(numbers, chance.randrange(1, 60)), now_ms)
        state = taken.state
        assert taken.late_ms is not None and taken.late_ms >= LATE_MS
        # Many leave at the last moment, together with the first of those that follow.
        if now_ms > stalled_until_ms:
            stalled_until_ms = now_ms + chance.randrange(taken.late_ms + 1)
        left = min(max(now_ms, stalled_until_ms), now_ms + taken.late_ms)
        left_at_ms += [left for _ in taken.granted]
    a_second = rate.tokens * SECOND_MS // rate.per_ms
    assert most_in(SECOND_MS, left_at_ms) <= a_second + rate.burst
    if rate.burst >= a_second / 20:  # a bucket that lasts until the next ask
        assert len(left_at_ms) >= 0.85 * 8 * a_second, "and not far fewer"


def test_an_attempt_that_has_its_place_pays_again_for_leaving() -> None:
    """The process that took its place may have died at any moment since."""
    limits = ServiceLimits(concurrency=5, rate=Rate(tokens=4, per_ms=SECOND_MS, burst=2))
    asks = [FlowRequest("job_1", "lease-1", "t"), FlowRequest("job_2", "lease-2", "t")]
    first = take(EMPTY_FLOW, limits, asks, 10**12)
    assert len(first.granted) == 2
    again = take(first.state, limits, asks, 10**12)
    assert not again.granted
    assert {wait.reason for wait in again.waits.values()} == {FlowReason.RATE}
    later = take(again.state, limits, asks, 10**12 + 500)
    assert len(later.granted) == 2
    assert later.state.slots.keys() == {"job_1", "job_2"}


def test_what_leaves_ahead_of_its_time_is_counted_at_the_time_at_which_it_leaves() -> None:
    limits, numbers = ServiceLimits(rate=Rate(tokens=10, per_ms=SECOND_MS, burst=1)), iter(range(99))
    ahead = take(EMPTY_FLOW, limits, _asks(numbers, 1), 10**12, leave_at_ms=10**12 + 300)
    assert len(ahead.granted) == 1
    assert not take(ahead.state, limits, _asks(numbers, 1), 10**12 + 300).granted
    assert take(ahead.state, limits, _asks(numbers, 1), 10**12 + 400).granted


def test_a_service_that_asked_for_less_is_not_given_more_by_late_directives() -> None:
    chance, rate, numbers = Random(1), Rate(tokens=100, per_ms=SECOND_MS, burst=10), iter(range(10**6))
    limits, now_ms, left_at_ms = ServiceLimits(rate=rate), 10**12, list[int]()
    state = take(EMPTY_FLOW, limits, [], now_ms).state
    state = replace(state, slow=SlowDown(share=0.25, since_ms=now_ms, rate=rate))
    while now_ms < 10**12 + 5 * SECOND_MS:
        now_ms += 10
        taken = take(state, limits, _asks(numbers, 5), now_ms)
        state = taken.state
        left_at_ms += [now_ms + chance.choice((0, taken.late_ms or 0)) for _ in taken.granted]
    assert most_in(SECOND_MS, left_at_ms) <= 25 + 10
