"""From a failing seed to the fewest faults that still make it fail.

Each fault has a number that names its decision for ever, so a run may be repeated with only some of them. The
faults are halved, then thinned out one by one, for as long as the same promise is broken (delta debugging).
"""

from collections.abc import Callable, Sequence

import msgspec

from lucius_lab.sim.run import SimOutcome, SimShape, simulate

RUNS_MAX = 400


class Shrunk(msgspec.Struct, frozen=True, kw_only=True):
    only: tuple[int, ...]  # the decisions that are left
    outcome: SimOutcome
    runs: int


def shrink(seed: int, shape: SimShape, *, report: Callable[[int, int], None] | None = None) -> Shrunk | None:
    """None if the seed does not fail. `report` gets how many runs there were and how many faults are left."""
    outcome = simulate(seed, shape)
    if outcome.passed:
        return None
    return _Shrinking(seed, shape, outcome, report).shrunk()


class _Shrinking:
    def __init__(
        self, seed: int, shape: SimShape, outcome: SimOutcome, report: Callable[[int, int], None] | None
    ) -> None:
        self._seed = seed
        self._shape = shape
        self._name = outcome.violations[0].name
        self._report = report
        self._best = outcome
        self._runs = 1

    def shrunk(self) -> Shrunk:
        numbers = list(dict.fromkeys(fault.number for fault in self._best.faults))
        parts = 2
        while len(numbers) >= 1 and self._runs < RUNS_MAX:
            fewer = self._without_one_part(numbers, parts)
            if fewer is not None:
                numbers, parts = fewer, max(parts - 1, 2)
            elif parts >= len(numbers):
                break
            else:
                parts = min(len(numbers), parts * 2)
        return Shrunk(only=tuple(numbers), outcome=self._best, runs=self._runs)

    def _without_one_part(self, numbers: Sequence[int], parts: int) -> list[int] | None:
        size = -(-len(numbers) // parts)
        for begin in range(0, len(numbers), size):
            if self._runs >= RUNS_MAX:
                return None
            left = [*numbers[:begin], *numbers[begin + size :]]
            outcome = self._fails(left)
            if outcome is not None:
                self._best = outcome
                # Faults that no longer come about are not needed either.
                happened = {fault.number for fault in outcome.faults}
                return [number for number in left if number in happened]
        return None

    def _fails(self, numbers: Sequence[int]) -> SimOutcome | None:
        self._runs += 1
        outcome = simulate(self._seed, msgspec.structs.replace(self._shape, only=frozenset(numbers)))
        if self._report is not None:
            self._report(self._runs, len(numbers))
        failed = not outcome.passed and outcome.violations[0].name == self._name
        return outcome if failed else None
