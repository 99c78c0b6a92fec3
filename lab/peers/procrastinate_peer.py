"""Procrastinate: a job of three steps is three of its jobs, each of which defers the next."""

import asyncio
import sys

import procrastinate
from shape import STEPS, WORKER_CONCURRENCY, load_arguments, measured, ready, step, told

app = procrastinate.App(
    connector=procrastinate.PsycopgConnector(conninfo=sys.argv[2], min_size=4, max_size=20)
)


@app.task(name="one", queue="jobs")
async def one(job: dict) -> None:
    await two.defer_async(job=step(job, "one"))


@app.task(name="two", queue="jobs")
async def two(job: dict) -> None:
    await three.defer_async(job=step(job, "two"))


@app.task(name="three", queue="jobs")
async def three(job: dict) -> None:
    told(step(job, "three"))


async def main() -> None:
    async with app.open_async():
        if sys.argv[1] == "setup":
            await app.schema_manager.apply_schema_async()
        elif sys.argv[1] == "worker":
            ready()
            await app.run_worker_async(
                queues=["jobs"], concurrency=WORKER_CONCURRENCY, fetch_job_polling_interval=1.0
            )
        else:
            await measured(lambda job: one.defer_async(job=job), *load_arguments())


assert (one.name, two.name, three.name) == STEPS
asyncio.run(main())
