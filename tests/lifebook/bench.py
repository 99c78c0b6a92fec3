"""How many runs a second one worker process moves, and how many calls of AWS a run takes, on the stand-ins.

`python -m tests.lifebook.bench [RUNS]` prints a table. The stand-ins are the bound: the figures say nothing
about AWS, the calls a run do.
"""

import asyncio
import statistics
import sys
import time
from contextlib import ExitStack
from typing import Any

from tests.lifebook import servers
from tests.lifebook.deployed import Deployed, deployed
from tests.lifebook.simulation import quiet_logs

from lucius.lifebook.process import LifebookProcess
from lucius.lifebook.runs import AcceptedRun, RunRequest
from lucius.lifebook.workflows import StepRun, WorkflowRegistry, step, workflow_of

IN_FLIGHT = 32
LONE_RUNS = 15
LOOK_SECONDS = 0.005


class Bare:
    """Five steps that do nothing."""

    @step(credits="0.125")
    async def one(self, run: StepRun) -> Any:
        return None

    @step(credits="0.125")
    async def two(self, run: StepRun) -> Any:
        return None

    @step(credits="0.125")
    async def three(self, run: StepRun) -> Any:
        return None

    @step(credits="0.125")
    async def four(self, run: StepRun) -> Any:
        return None

    @step(credits="0.125")
    async def five(self, run: StepRun) -> Any:
        return None


async def _submit(place: Deployed) -> str:
    told = await place.lifebook.runs.submit(RunRequest(workspace_id="ws", user_id="u", workflow_id="bare"))
    assert isinstance(told, AcceptedRun), told
    return told.job.job_id


async def _ended(place: Deployed, job_id: str) -> None:
    while (job := await place.lifebook.writer.get(job_id)) is None or job.settled_at is None:
        await asyncio.sleep(LOOK_SECONDS)


async def _measure(variables: dict[str, str], runs: int, own: dict[str, str]) -> dict[str, float]:
    async with deployed(variables, **own) as place:
        registry: WorkflowRegistry = place.lifebook.workflows
        registry.replace(workflow_of(Bare, "bare"))
        process = LifebookProcess(
            worker=place.lifebook.worker(),
            queue=place.lifebook.queue,
            sweeper=None,
            concurrency=IN_FLIGHT,
            sweep_seconds=60,
            poll_seconds=1,
        )
        aws = place.lifebook.aws
        before, began = aws.calls, time.monotonic()
        ids = []
        for start in range(0, runs, IN_FLIGHT):
            ids += await asyncio.gather(*(_submit(place) for _ in range(min(IN_FLIGHT, runs - start))))
        asked_calls, asked_seconds = aws.calls - before, time.monotonic() - began
        working = asyncio.create_task(process.run())
        before, began = aws.calls, time.monotonic()
        while (await place.lifebook.queue.depths()).waiting:
            await asyncio.sleep(0.1)
        looked = aws.calls
        for job_id in ids:
            await _ended(place, job_id)
        seconds = time.monotonic() - began
        worked_calls = looked - before
        lone = []
        for _ in range(LONE_RUNS):
            began = time.monotonic()
            await _ended(place, await _submit(place))
            lone.append(time.monotonic() - began)
        process.stop()
        await working
        return {
            "accepted a second": runs / asked_seconds,
            "completed a second": runs / seconds,
            "calls to ask for a run": asked_calls / runs,
            "calls to work through one": worked_calls / runs,
            "lone run, ms (median)": 1000 * statistics.median(lone),
        }


def main(arguments: list[str]) -> int:
    quiet_logs()
    runs = int(arguments[0]) if arguments else 200
    with ExitStack() as stack:
        ministack = stack.enter_context(servers.ministack())
        local = stack.enter_context(servers.dynamodb_local())
        mixed = {**ministack, "AWS_ENDPOINT_URL_DYNAMODB": local["AWS_ENDPOINT_URL_DYNAMODB"]}
        for name, variables in (("ministack", ministack), ("DynamoDB Local, queue on ministack", mixed)):
            for credits_, own in (("off", {"LIFEBOOK_CREDITS": "off"}), ("table", {})):
                found = asyncio.run(_measure(variables, runs, own))
                sys.stdout.write(f"{name}, credits {credits_}\n")
                for what, figure in found.items():
                    sys.stdout.write(f"  {what:<28} {figure:8.1f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
