"""A process's clock beside a wall clock that is set: it never goes back, and its pace hardly changes."""

from hypothesis import given
from hypothesis import strategies as st

from lucius.core.clock import SteadyClock

SECOND_NS = 1_000_000_000
HOUR = 3_600
START_NS = 1_800_000_000 * SECOND_NS


class Readings:
    """Both clocks of a machine, at the same pace; the wall clock can be set."""

    def __init__(self) -> None:
        self.steady_ns = 77 * SECOND_NS
        self.wall_offset_ns = START_NS
        self.on_set: list[int] = []
        self.clock = SteadyClock(self.wall_ns, lambda: self.steady_ns, on_set=self.on_set.append)

    def wall_ns(self) -> int:
        return self.steady_ns + self.wall_offset_ns

    def set_wall(self, by_seconds: float) -> None:
        self.wall_offset_ns += round(by_seconds * SECOND_NS)

    def pass_seconds(self, seconds: float, *, every: float = 1.0) -> float:
        """How many seconds the clock says have passed meanwhile."""
        before = self.clock.now_ms()
        left = seconds
        while left > 0:
            self.steady_ns += round(min(every, left) * SECOND_NS)
            left -= every
            self.clock.now_ms()
        return (self.clock.now_ms() - before) / 1000


def test_it_is_the_wall_clock_while_that_is_not_set() -> None:
    readings = Readings()
    readings.pass_seconds(1_000)
    assert readings.clock.now_ms() == readings.wall_ns() // 1_000_000
    assert readings.on_set == []


def test_the_small_steps_of_a_time_service_are_followed_within_a_minute() -> None:
    readings = Readings()
    for seconds in (0.4, -0.7, 2.5):
        readings.set_wall(seconds)
        readings.pass_seconds(60)
        assert readings.clock.now_ms() == readings.wall_ns() // 1_000_000


def test_a_jump_ahead_makes_no_deadline_pass() -> None:
    readings = Readings()
    readings.set_wall(HOUR)
    assert 30 <= readings.pass_seconds(30) <= 33.1
    assert readings.clock.behind_ms > 3_500_000


def test_a_jump_back_stops_no_timer() -> None:
    readings = Readings()
    readings.set_wall(-40 * 24 * HOUR)
    assert 26.9 <= readings.pass_seconds(30) <= 30


def test_after_a_jump_it_comes_back_to_the_wall_clock() -> None:
    for by in (HOUR, -HOUR):
        readings = Readings()
        readings.set_wall(by)
        readings.pass_seconds(12 * HOUR, every=10.0)
        assert readings.clock.now_ms() == readings.wall_ns() // 1_000_000


def test_a_reading_each_microsecond_follows_as_fast_as_one_each_second() -> None:
    readings = Readings()
    readings.set_wall(0.001)
    readings.pass_seconds(0.02, every=0.000_001)
    assert readings.clock.now_ms() == readings.wall_ns() // 1_000_000


def test_a_process_that_stood_still_knows_how_long() -> None:
    readings = Readings()
    readings.pass_seconds(5)
    assert readings.pass_seconds(120, every=120) == 120


def test_a_clock_that_was_set_is_told_of_once() -> None:
    readings = Readings()
    readings.set_wall(HOUR)
    readings.pass_seconds(100)
    readings.set_wall(-HOUR)
    readings.pass_seconds(300)
    readings.set_wall(-HOUR)
    readings.pass_seconds(100)
    assert [round(by_ms / 3_600_000) for by_ms in readings.on_set] == [1, -1]


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0, 100)), max_size=20))
def test_it_never_goes_back_and_never_runs_away(moves: list[tuple[float, float]]) -> None:
    readings = Readings()
    for set_by, seconds in moves:
        readings.set_wall(set_by)
        said = readings.pass_seconds(seconds, every=7.3)
        assert 0.9 * seconds - 0.01 <= said <= 1.1 * seconds + 0.01
