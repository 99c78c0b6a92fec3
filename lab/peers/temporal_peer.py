"""Temporal: a workflow of three activities, on a server that is tuned as `lucius dev` tunes its own."""

import asyncio
import os
import sys
from datetime import timedelta

from shape import ended, load_arguments, measured, ready, step
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

QUEUE = "peers"


@activity.defn
async def one(job: dict) -> dict:
    return step(job, "one")


@activity.defn
async def two(job: dict) -> dict:
    return step(job, "two")


@activity.defn
async def three(job: dict) -> dict:
    return step(job, "three")


@workflow.defn(sandboxed=False)
class ThreeSteps:
    @workflow.run
    async def run(self, job: dict) -> dict:
        for each in (one, two, three):
            job = await workflow.execute_activity(each, job, start_to_close_timeout=timedelta(seconds=30))
        return job


async def main() -> None:
    if sys.argv[1] == "setup":
        return
    client = await Client.connect(sys.argv[2])
    if sys.argv[1] == "worker":
        worker = Worker(
            client,
            task_queue=QUEUE,
            workflows=[ThreeSteps],
            activities=[one, two, three],
            workflow_runner=UnsandboxedWorkflowRunner(),
        )
        ready()
        await worker.run()
    else:

        async def run(job: dict) -> None:
            name = f"job-{os.getpid()}-{job['number']}"
            await client.execute_workflow(ThreeSteps.run, job, id=name, task_queue=QUEUE)
            ended(job)

        await measured(run, *load_arguments())


asyncio.run(main())
# The library's threads may still call Python while it shuts down, which aborts the process.
sys.stdout.flush()
os._exit(0)
