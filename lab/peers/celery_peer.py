"""Celery on Redis: a chain of three tasks."""

import asyncio
import os
import sys

from celery import Celery, chain
from shape import WORKER_CONCURRENCY, in_threads, load_arguments, measured, ready, step, told

URL = os.environ["PEERS_URL"]
app = Celery("peers", broker=URL, backend=URL)
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=8,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)


@app.task(name="one")
def one(job: dict) -> dict:
    return step(job, "one")


@app.task(name="two")
def two(job: dict) -> dict:
    return step(job, "two")


@app.task(name="three")
def three(job: dict) -> dict:
    done = step(job, "three")
    told(done)
    return done


def main() -> None:
    role = sys.argv[1]
    if role == "worker":
        ready()
        app.worker_main(
            [
                "worker",
                "--loglevel=ERROR",
                "--pool=threads",
                f"--concurrency={WORKER_CONCURRENCY}",
                "--without-gossip",
                "--without-mingle",
                "--without-heartbeat",
                f"--hostname=peer-{os.getpid()}@%h",
            ]
        )
    elif role == "load":
        jobs, in_flight, first = load_arguments()
        start = in_threads(lambda job: chain(one.s(job), two.s(), three.s()).apply_async(), in_flight)
        asyncio.run(measured(start, jobs, in_flight, first))


main()
