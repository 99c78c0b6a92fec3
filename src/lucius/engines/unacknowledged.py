"""Jobs whose directive is out on a lane and not acknowledged, as far as this process knows.

In: commits, in the order in which they are heard of. Out: which jobs take a place in the lane's window.
"""

from lucius.core.model import Job


class Unacknowledged(dict[str, int]):
    """Job ids, each with the job's version that said so; 0 while it is being sent."""

    __slots__ = ()

    def entered(self, job: Job) -> None:
        self[job.job_id] = max(job.version, self.get(job.job_id, 0))

    def left(self, job: Job) -> None:
        """Commits are told of when their answers come: an earlier one may be heard of after a later one."""
        if self.get(job.job_id, job.version + 1) <= job.version:
            del self[job.job_id]
