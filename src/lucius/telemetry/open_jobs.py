"""How many jobs are open, by state, request type, tenant and what they wait for.

In: commits, and the open jobs that a census finds in the ledger after a start. Out: counts. A commit says
which place a job left and which it entered, so counting costs no reading; but jobs that were open before this
process began are only known once they were met. Until the census is over, who was counted as what is kept by
job id; after that the record is dropped, and every open job is in the counts.
"""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from lucius.core.states import JobState
from lucius.core.why import Wait


class OpenPlace(NamedTuple):
    state: JobState
    request_type: str
    tenant: str
    wait: Wait


class OpenJobs:
    def __init__(self) -> None:
        self.counted_at_ms: int | None = None
        """When the census ended; None: it has not, and some are missing."""
        self._counts: dict[OpenPlace, int] = {}  # a Counter would answer each question with a call in Python
        self._met: dict[str, OpenPlace | None] | None = {}
        self._shown: dict[tuple[str, str], int] = {}  # a figure that was shown goes to zero, not away

    def moved(self, job_id: str, left: OpenPlace | None, entered: OpenPlace | None) -> None:
        """None: it was not there, or it has ended."""
        met = self._met
        if met is not None:
            left = met.get(job_id)
            met[job_id] = entered
        if left == entered:
            return
        if left is not None:
            self._leaves(left)
        if entered is not None:
            self._counts[entered] = self._counts.get(entered, 0) + 1

    def _leaves(self, place: OpenPlace) -> None:
        """A place that is empty goes, or every tenant there ever was would stay."""
        left = self._counts.get(place, 0) - 1
        if left:
            self._counts[place] = left
        else:
            del self._counts[place]

    def found(self, job_id: str, place: OpenPlace) -> None:
        """The census found a job: it counts unless a commit was reported already."""
        if self._met is not None and job_id not in self._met:
            self.moved(job_id, None, place)

    def census_over(self) -> None:
        self._met = None

    def counts(self) -> Iterator[tuple[tuple[str, str], float]]:
        sums: Counter[tuple[str, str]] = Counter(self._shown)
        for place, count in self._counts.items():
            sums[place.state.value, place.request_type] += max(0, count)
        self._shown = dict.fromkeys(sums, 0)
        yield from sums.items()

    def by_tenant(self) -> Iterator[tuple[tuple[str, str, str], int]]:
        """By tenant, state and request type."""
        sums: Counter[tuple[str, str, str]] = Counter()
        for place, count in self._counts.items():
            sums[place.tenant, place.state.value, place.request_type] += max(0, count)
        yield from sums.items()

    def waits(self) -> Counter[tuple[str, Wait]]:
        """By tenant and what they wait for."""
        sums: Counter[tuple[str, Wait]] = Counter()
        for place, count in self._counts.items():
            if count > 0:
                sums[place.tenant, place.wait] += count
        return sums
