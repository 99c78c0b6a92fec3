"""What can go wrong, as exceptions.

In: a problem document, a broken connection, a job that ended badly. Out: something to catch. No text here
ever holds a key: the words are the server's, or name the address alone.
"""

from lucius.client.models import FieldFault, Job
from lucius.core.states import JobState


class LuciusError(Exception):
    """Why there is no answer to use.

    `code` is the stable code of a refusal (`TENANT_LIMIT`), None if the server did not give one. `errors`
    names the fields at fault. `body` is the problem document as it came.
    """

    def __init__(
        self,
        code: str | None,
        status: int | None,
        message: str,
        errors: tuple[FieldFault, ...] = (),
        *,
        retry_after_seconds: int | None = None,
        body: bytes | None = None,
    ) -> None:
        fields = "".join(f"; {fault.pointer or '/'}: {fault.message}" for fault in errors)
        super().__init__((f"{code}: {message}" if code else message) + fields)
        self.code = code
        self.status = status
        self.message = message
        self.errors = errors
        self.retry_after_seconds = retry_after_seconds
        self.body = body


class Unreachable(LuciusError):
    """The API did not answer, or only a gateway did (`status`). `sent`: the request may yet have arrived."""

    def __init__(self, message: str, *, status: int | None = None, sent: bool = True) -> None:
        super().__init__(None, status, message)
        self.sent = sent


class JobEnded(LuciusError):
    """A job that was waited for ended otherwise than well; `job` is how it ended."""

    def __init__(self, job: Job) -> None:
        trouble = ": ".join(said for said in (job.error_code, job.error_message) if said)
        head = f"{job.job_id} {job.state}"
        super().__init__(job.error_code, None, f"{head}: {trouble}" if trouble else head)
        self.args = (self.message,)
        self.job = job


class JobFailed(JobEnded):
    """FAILED_FINAL."""


class JobCancelled(JobEnded):
    """CANCELLED."""


class JobStillOpen(LuciusError):
    """The time given was up before the job ended; `job` is how it was seen last. The job goes on."""

    def __init__(self, job: Job, within_seconds: float) -> None:
        super().__init__(
            None, None, f"{job.job_id} is still {job.state} after {within_seconds:g} s; it goes on"
        )
        self.job = job


def ended_well(job: Job) -> Job:
    """The job, if it succeeded; else the exception that fits."""
    if job.succeeded:
        return job
    raise JobCancelled(job) if job.state == JobState.CANCELLED else JobFailed(job)
