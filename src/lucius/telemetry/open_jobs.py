"""How many jobs are open, by state, request type and tenant.

In: commits, and the open jobs that a census finds in the ledger after a start. Out: counts. A commit says
which state a job left and which it entered, so counting costs no reading; but jobs that were open before this
process began are only known once they were met. Until the census is over, who was counted as what is kept by
job id; after that the record is dropped, and every open job is in the counts.
"""

from collections import Counter
from collections.abc import Iterator

from lucius.core.states import JOB_OPEN, JobState

Place = tuple[JobState, str, str]
"""State, request type, tenant."""


class OpenJobs:
    def __init__(self) -> None:
        self._counts: Counter[Place] = Counter()
        self._met: dict[str, Place] | None = {}
        self._shown: dict[tuple[str, str], int] = {}  # a figure that was shown goes to zero, not away

    def moved(
        self, job_id: str, left: JobState | None, entered: JobState, request_type: str, tenant: str
    ) -> None:
        met = self._met
        if met is None:
            if left is not entered:
                if left is not None and left in JOB_OPEN:
                    self._leaves((left, request_type, tenant))
                if entered in JOB_OPEN:
                    self._counts[(entered, request_type, tenant)] += 1
            return
        known = met.get(job_id)
        if known is not None and known[0] in JOB_OPEN:
            self._leaves(known)
        met[job_id] = place = (entered, request_type, tenant)
        if entered in JOB_OPEN:
            self._counts[place] += 1

    def _leaves(self, place: Place) -> None:
        """A place that is empty goes, or every tenant there ever was would stay."""
        left = self._counts[place] - 1
        if left:
            self._counts[place] = left
        else:
            del self._counts[place]

    def found(self, job_id: str, state: JobState, request_type: str, tenant: str) -> None:
        """The census found a job: it counts unless a commit was reported already."""
        if self._met is not None and job_id not in self._met:
            self.moved(job_id, None, state, request_type, tenant)

    def census_over(self) -> None:
        self._met = None

    def counts(self) -> Iterator[tuple[tuple[str, str], float]]:
        sums: Counter[tuple[str, str]] = Counter(self._shown)
        for (state, request_type, _), count in self._counts.items():
            sums[state.value, request_type] += max(0, count)
        self._shown = dict.fromkeys(sums, 0)
        yield from sums.items()

    def by_tenant(self) -> Iterator[tuple[tuple[str, str, str], int]]:
        """By tenant, state and request type."""
        for (state, request_type, tenant), count in self._counts.items():
            yield (tenant, state.value, request_type), max(0, count)
