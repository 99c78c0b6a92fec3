"""The one shape of a write: load, decide, write if the version still holds, else again.

In: the id of a job and a decision. Out: the job as it was written, or the refusal. The end of a job is
written together with its event. An illegal move is logged and changes nothing.
"""

from collections.abc import Callable
from typing import Final

import structlog

from lucius.lifebook.analytics import event_of_end
from lucius.lifebook.job import LifebookJob
from lucius.lifebook.machine import Policy
from lucius.lifebook.refusals import RunCode, RunRefused
from lucius.lifebook.table import JobTable

log = structlog.get_logger("lucius.lifebook")

TRIES_MAX: Final = 30

Decide = Callable[[LifebookJob, int], LifebookJob | RunRefused]


class Contended(Exception):
    """A job changed under every try to write it."""


class LifebookWriter:
    def __init__(self, *, table: JobTable, policy: Policy, now_ms: Callable[[], int]) -> None:
        self.table = table
        self.policy = policy
        self.now_ms = now_ms

    async def get(self, job_id: str) -> LifebookJob | None:
        return await self.table.get(job_id, now_ms=self.now_ms())

    async def change(
        self, job_id: str, decide: Decide, *, known: LifebookJob | None = None
    ) -> LifebookJob | RunRefused:
        """`known`: the job as the caller wrote or read it last, which saves a read where it still holds."""
        job = known
        for _ in range(TRIES_MAX):
            if job is None and (job := await self.get(job_id)) is None:
                return RunRefused(RunCode.JOB_NOT_FOUND, f"There is no job {job_id}.")
            after = decide(job, self.now_ms())
            if isinstance(after, RunRefused):
                if after.code is RunCode.ILLEGAL_MOVE:
                    log.warning("illegal_move", job_id=job_id, status=job.status, why=after.message)
                return after
            if after is job or await self.write(job, after):
                return after
            job = None
        raise Contended(f"Job {job_id} changed {TRIES_MAX} times while it was to be written.")

    async def write(self, before: LifebookJob, after: LifebookJob) -> bool:
        ends = after.terminal and not before.terminal
        return await self.table.replace(
            before, after, event=event_of_end(after, self.policy) if ends else None
        )
