"""A process's clock: goes forward at the pace of a stopwatch, and follows the wall clock at a bounded rate.

In: two readings, of the wall clock (which can be set, in either direction) and of a steady counter (which can
not, and which goes on while the process or the machine sleeps). Out: the time that this process goes by.
Arithmetic only: the system is asked by `chance`.

The clock begins with what the wall clock says. While both agree it says the same. Once the wall clock was set
it goes on as before, at most a tenth faster or slower, until they agree again: so no jump fails a lease, a
time-out or an SLA, none makes a timer stand still, and of two times that one process writes the later is not
the smaller one.
"""

from collections.abc import Callable
from typing import Final

SLEW_PARTS: Final = 10
"""The clock is corrected by at most one part in so many of the time that has passed."""
READ_EVERY_NS: Final = 5_000_000
"""While both agree the wall clock is read this often: a reading of the time is asked for many times a job."""
SET_NS: Final = 60_000_000_000
"""A wall clock that is this far away was set; less is what clocks do by themselves."""


class SteadyClock:
    """`on_set` gets how many milliseconds the wall clock is ahead (or behind, if negative), once each time it
    was set."""

    __slots__ = (
        "_behind_ns",
        "_is_reported",
        "_now_ns",
        "_on_set",
        "_steady_at_ns",
        "_steady_ns",
        "_wall_ns",
    )

    def __init__(
        self,
        wall_ns: Callable[[], int],
        steady_ns: Callable[[], int],
        *,
        on_set: Callable[[int], None] | None = None,
    ) -> None:
        self._wall_ns = wall_ns
        self._steady_ns = steady_ns
        self._on_set = on_set
        self._is_reported = False
        self._now_ns = wall_ns()
        self._steady_at_ns = steady_ns()
        self._behind_ns = 0

    def now_ms(self) -> int:
        steady_ns = self._steady_ns()
        passed_ns = steady_ns - self._steady_at_ns
        floor_ns = self._now_ns
        if not self._behind_ns:
            if passed_ns < READ_EVERY_NS:
                return (floor_ns + passed_ns) // 1_000_000
            floor_ns += READ_EVERY_NS  # what was answered since is less
        if passed_ns > 0:
            self._steady_at_ns = steady_ns
            expected_ns = self._now_ns + passed_ns
            behind_ns = self._wall_ns() - expected_ns
            correction_max_ns = passed_ns // SLEW_PARTS
            if behind_ns > correction_max_ns:
                correction_ns = correction_max_ns
            elif behind_ns < -correction_max_ns:
                correction_ns = -correction_max_ns
            else:
                correction_ns = behind_ns
            self._now_ns = max(expected_ns + correction_ns, floor_ns)
            self._behind_ns = expected_ns + behind_ns - self._now_ns
            if self._on_set is not None and (self._is_reported or abs(self._behind_ns) > SET_NS):
                self._report()
        return self._now_ns // 1_000_000

    @property
    def behind_ms(self) -> int:
        """How far the wall clock is ahead of this one, as of the last reading; negative if it is behind."""
        return self._behind_ns // 1_000_000

    def _report(self) -> None:
        was_set = abs(self._behind_ns) > SET_NS
        if was_set and not self._is_reported and self._on_set is not None:
            self._on_set(self.behind_ms)
        self._is_reported = was_set
