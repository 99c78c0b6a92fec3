"""DBOS: a workflow of three steps on a queue, started by a client in another process."""

import asyncio
import sys
import threading

from dbos import DBOS, DBOSClient
from shape import WORKER_CONCURRENCY, ended, in_threads, load_arguments, measured, ready, step

QUEUE = "jobs"
VERSION = "peers"
POLL_SECONDS = 0.01  # one second unless told


@DBOS.step()
def one(job: dict) -> dict:
    return step(job, "one")


@DBOS.step()
def two(job: dict) -> dict:
    return step(job, "two")


@DBOS.step()
def three(job: dict) -> dict:
    return step(job, "three")


@DBOS.workflow()
def three_steps(job: dict) -> dict:
    return three(two(one(job)))


def launch(url: str, *, works: bool) -> None:
    DBOS(
        config={
            "name": "peers",
            "system_database_url": url,
            "application_version": VERSION,
            "console_log_level": "ERROR",
            "log_level": "ERROR",
        }
    )
    DBOS.launch()
    if works:
        DBOS.register_queue(QUEUE, worker_concurrency=WORKER_CONCURRENCY, polling_interval_sec=POLL_SECONDS)


def main() -> None:
    role, url = sys.argv[1:3]
    if role == "load":
        client = DBOSClient(system_database_url=url)
        options = {"workflow_name": three_steps.__qualname__, "queue_name": QUEUE, "app_version": VERSION}
        jobs, in_flight, first = load_arguments()
        # One second unless told: often for a few, and not so often that many are a burden.
        look_seconds = max(0.005, 0.002 * in_flight)

        def run(job: dict) -> None:
            client.enqueue(options, job).get_result(polling_interval_sec=look_seconds)
            ended(job)

        asyncio.run(measured(in_threads(run, in_flight), jobs, in_flight, first))
        return
    launch(url, works=role == "worker")
    if role == "worker":
        ready()
        threading.Event().wait()
    DBOS.destroy()


main()
