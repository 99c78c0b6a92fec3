"""The work of the services under chaos: each piece is written down before it is answered for.

In: a directive whose payload names a file. Out: a line in it, and a reference that names the attempt.
"""

import asyncio
import os

import msgspec

from lucius.sdk import Task


class DoneWork(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of work that was done, by whom and for which attempt."""

    job_id: str
    step_id: str
    attempt_no: int
    lease_id: str
    pid: int

    @property
    def uri(self) -> str:
        """Names the attempt: the result that a job ends with shows whose work it was."""
        return f"s3://chaos/{self.job_id}/{self.step_id}/{self.attempt_no}/{self.lease_id}"


async def work(task: Task) -> dict[str, str]:
    given = task.directive
    done = DoneWork(
        job_id=given.job_id,
        step_id=given.step_id,
        attempt_no=given.attempt_no,
        lease_id=given.lease_id,
        pid=os.getpid(),
    )
    await asyncio.sleep(float(task.payload["seconds"]))
    # One write to a file that is only appended to: lines of several processes never mix.
    descriptor = os.open(str(task.payload["effects"]), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, msgspec.json.encode(done) + b"\n")
    finally:
        os.close(descriptor)
    return {"uri": done.uri}
