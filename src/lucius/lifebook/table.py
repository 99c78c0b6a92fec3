"""The port to the table of jobs.

In: jobs, and what they were before. Out: whether a write held. Every write is conditional: on the version and
the holder of the lease that the writer saw, or on nothing being there yet. What must hold together is one
transaction: a job and the guard of its key, the end of a job and its event.
"""

from typing import Protocol

import msgspec

from lucius.lifebook.job import AnalyticsEvent, Guard, JobSummary, LifebookJob

PAGE_ROWS_MAX = 200


class TableUnavailable(Exception):
    """The table or the queue did not take or give something, repeatedly. Nothing is known of whether it was
    written."""


class SummaryPage(msgspec.Struct, frozen=True):
    """A page of a workspace's jobs, newest first. It may be short, or empty, and not the last: `cursor`
    tells."""

    rows: tuple[JobSummary, ...]
    cursor: str | None


class BadCursor(Exception):
    """The cursor was not given out by this table, or for another workspace."""


class JobTable(Protocol):
    async def create(self, job: LifebookJob, guard: Guard, *, now_ms: int) -> Guard | None:
        """Writes both, or neither. The guard that is there already and has not expired, if it is
        another's."""

    async def get(self, job_id: str, *, now_ms: int) -> LifebookJob | None:
        """The job as it was written last; none if it has expired."""

    async def replace(
        self, before: LifebookJob, after: LifebookJob, *, event: AnalyticsEvent | None = None
    ) -> bool:
        """Writes `after` if the job is still `before`, together with the event. When the end of the job is
        written or taken back, its guard expires, or stays, with it. True as well if exactly this was written
        before."""

    async def discard(self, job: LifebookJob) -> bool:
        """Removes a job that was only just created, and its guard, if it was not changed since."""

    async def page(
        self, workspace_id: str, *, now_ms: int, rows_max: int, cursor: str | None = None
    ) -> SummaryPage:
        """Jobs of a workspace, newest first, expired ones left out."""

    async def due(self, shard: str, *, now_ms: int, rows_max: int) -> list[str]:
        """Keys of jobs and events whose time to be looked at has come, the longest due first."""

    async def event(self, event_id: str) -> AnalyticsEvent | None: ...

    async def note_sent(self, event: AnalyticsEvent, *, now_ms: int, ttl_at: int) -> None:
        """The event was sent; it is kept until `ttl_at` and not looked at again."""
