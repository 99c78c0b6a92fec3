"""Steps that are no coroutines: they run in threads, and cannot be stopped."""

import asyncio
import subprocess
import sys
import threading
from decimal import Decimal
from typing import Any

from tests.lifebook.api_setup import Deployment
from tests.lifebook.servers import TOP

from lucius.lifebook.workflows import StepRun, WorkflowRegistry, step, workflow_of

RUN = {"workspace_id": "ws", "user_id": "u"}
HANGING = 16
LET_GO = threading.Event()

# A worker whose step hangs for ever is told to stop once the attempt has failed.
ENDING = """
import asyncio, time
from tests.lifebook.api_setup import Deployment
from lucius.lifebook.workflows import WorkflowRegistry, step, workflow_of

class Hangs:
    @step(timeout_seconds=0.05)
    def hang(self, run):
        time.sleep(3600)

async def main():
    deployment = Deployment(workflows=WorkflowRegistry([workflow_of(Hangs, "hangs")]))
    asked = {"workspace_id": "w", "user_id": "u", "workflow_id": "hangs"}
    await deployment.ask("POST", "/v1/runs", 202, json=asked)
    await deployment.work()
    print({str(job.last_error_code) for job in deployment.table.jobs.values()})

asyncio.run(main())
"""


class Hanging:
    @step(timeout_seconds=0.1)
    def only(self, run: StepRun) -> None:
        LET_GO.wait(30)


class Blocking:
    @step(timeout_seconds=20)
    def only(self, run: StepRun) -> Any:
        match run.input["do"]:
            case "exit":
                sys.exit(3)
            case "keep":
                if run.checkpoint is None:
                    run.keep_blocking({"at": 1})
                    raise RuntimeError
        return {"checkpoint": run.checkpoint, "main": threading.current_thread() is threading.main_thread()}


async def _run(
    deployment: Deployment, count: int, workflow_id: str = "blocking", attempts: int = 2, **given: Any
) -> list[dict[str, Any]]:
    asked = {**RUN, "workflow_id": workflow_id, "input": given, "max_attempts": attempts}
    ids = [(await deployment.ask("POST", "/v1/runs", 202, json=asked))["job_id"] for _ in range(count)]
    await asyncio.gather(*(deployment.work() for _ in range(min(count, 20))))
    return [await deployment.ask("GET", f"/v1/runs/{job_id}", 200) for job_id in ids]


async def _deployment() -> Deployment:
    known = WorkflowRegistry([workflow_of(Blocking, "blocking"), workflow_of(Hanging, "hanging")])
    deployment = Deployment(workflows=known)
    await deployment.balances.grant("ws", Decimal(100))
    return deployment


async def test_a_step_runs_beside_the_loop() -> None:
    (job,) = await _run(await _deployment(), 1, do="nothing")
    assert job["results"] == [{"checkpoint": None, "main": False}]


async def test_a_checkpoint_is_kept_from_a_thread() -> None:
    (job,) = await _run(await _deployment(), 1, do="keep")
    assert (job["status"], job["attempts"]) == ("completed", 2)
    assert job["results"][0]["checkpoint"] == {"at": 1}


async def test_a_step_that_ends_the_process_ends_its_attempt() -> None:
    (job,) = await _run(await _deployment(), 1, do="exit")
    assert (job["status"], job["last_error_code"]) == ("dead", "STEP_EXITED")


async def test_steps_that_hang_keep_no_others_from_running() -> None:
    """More of them than a pool of threads has places."""
    deployment = await _deployment()
    try:
        jobs = await _run(deployment, HANGING, "hanging", attempts=1)
        assert {job["last_error_code"] for job in jobs} == {"STEP_TIMEOUT"}
        (job,) = await _run(deployment, 1, do="nothing")
        assert job["status"] == "completed"
    finally:
        LET_GO.set()


def test_a_step_that_hangs_does_not_keep_its_process_from_ending() -> None:
    done = subprocess.run([sys.executable, "-c", ENDING], cwd=TOP, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert "STEP_TIMEOUT" in done.stdout
