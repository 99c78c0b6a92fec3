"""awa: a job of three steps is three of its jobs, each of which inserts the next."""

import asyncio
import sys
from dataclasses import asdict, dataclass

from awa import AsyncClient
from shape import WORKER_CONCURRENCY, load_arguments, measured, ready, step, told

QUEUE = "jobs"


@dataclass
class One:
    job: dict


@dataclass
class Two:
    job: dict


@dataclass
class Three:
    job: dict


async def work(client: AsyncClient) -> None:
    @client.task(One, queue=QUEUE)
    async def one(given) -> None:
        await client.insert(Two(step(asdict(given.args)["job"], "one")), queue=QUEUE)

    @client.task(Two, queue=QUEUE)
    async def two(given) -> None:
        await client.insert(Three(step(asdict(given.args)["job"], "two")), queue=QUEUE)

    @client.task(Three, queue=QUEUE)
    async def three(given) -> None:
        told(step(asdict(given.args)["job"], "three"))

    await client.start([(QUEUE, WORKER_CONCURRENCY)], poll_interval_ms=10)
    ready()
    await asyncio.Event().wait()


async def main() -> None:
    async with AsyncClient(sys.argv[2], 20) as client:
        if sys.argv[1] == "setup":
            await client.migrate()
        elif sys.argv[1] == "worker":
            await work(client)
        else:
            await measured(lambda job: client.insert(One(job), queue=QUEUE), *load_arguments())


asyncio.run(main())
