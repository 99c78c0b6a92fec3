"""A step that is a job of Lucius: it submits a command and waits for the job's end.

In: a function from the step's run to the members of a command, and a client of Lucius. Out: what the job
made. The idempotency key of the command is the step's token, so that a step that runs again finds the job it
submitted before. Where the step has little time left it says `NotYet`, and goes on waiting in another call.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from lucius.lifebook.failures import NotYet, StepFailed
from lucius.lifebook.workflows import StepRun

HOLD_SECONDS_MAX: Final = 20.0
SPARE_SECONDS: Final = 5.0
AGAIN_SECONDS: Final = 15.0
SUCCEEDED: Final = "SUCCEEDED"


class AcceptedJob(Protocol):
    @property
    def job_id(self) -> str: ...


class LuciusJob(Protocol):
    @property
    def terminal(self) -> bool: ...

    @property
    def state(self) -> str: ...

    @property
    def final_output(self) -> Any: ...

    @property
    def error_code(self) -> str | None: ...


class LuciusClient(Protocol):
    """What is asked of a client; `lucius.client.Lucius` fits."""

    async def submit(self, envelope: Mapping[str, Any], *, idempotency_key: str) -> AcceptedJob: ...

    async def job(self, job_id: str, wait_seconds: float) -> LuciusJob: ...

    async def aclose(self) -> None: ...


def lucius_step(
    command: Callable[[StepRun], Mapping[str, Any]], *, client: Callable[[], Any]
) -> Callable[[Any, StepRun], Any]:
    """The body of a step. Mark it like any other: `ocr = step(credits="1")(lucius_step(command,
    client=Lucius))`."""

    async def run_job(self: Any, run: StepRun) -> Any:
        lucius: LuciusClient = client()
        try:
            job_id = await _job_of(lucius, run, command)
            return _outcome(job_id, await _awaited(lucius, job_id, run))
        finally:
            await lucius.aclose()

    return run_job


async def _job_of(lucius: LuciusClient, run: StepRun, command: Callable[[StepRun], Mapping[str, Any]]) -> str:
    """The job that was submitted before, or a new one. A redrive submits anew what failed for good."""
    kept = run.checkpoint if isinstance(run.checkpoint, dict) else {}
    job_id = kept.get("job_id")
    if isinstance(job_id, str):
        if kept.get("redrives") == run.redrives:
            return job_id
        job = await lucius.job(job_id, wait_seconds=0)
        if not job.terminal or str(job.state) == SUCCEEDED:
            return job_id
    key = f"{run.token}:{run.redrives}" if run.redrives else run.token
    accepted = await lucius.submit(command(run), idempotency_key=key)
    await run.keep({"job_id": accepted.job_id, "redrives": run.redrives})
    return accepted.job_id


async def _awaited(lucius: LuciusClient, job_id: str, run: StepRun) -> LuciusJob:
    while (left := run.seconds_left() - SPARE_SECONDS) > 0:
        job = await lucius.job(job_id, wait_seconds=min(left, HOLD_SECONDS_MAX))
        if job.terminal:
            return job
    raise NotYet(AGAIN_SECONDS)


def _outcome(job_id: str, job: LuciusJob) -> dict[str, Any]:
    if str(job.state) == SUCCEEDED:
        return {"job_id": job_id, "final_output": job.final_output}
    code = job.error_code or f"LUCIUS_{job.state}"
    raise StepFailed(code, f"The job of Lucius ended as {job.state}.", final=True)
