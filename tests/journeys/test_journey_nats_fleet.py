"""Many jobs over NATS, through two APIs, two reconcilers and two processes of each service: one reconciler is
killed half way, and every job ends once."""

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.journeys.nats_fleet import SERVICES, Clients, NatsFleet
from tests.sizes import size

from lucius_lab.chaos.run import ChaosPlan, run

# About half a minute; the limit leaves room for others that use the machine, and for many more jobs.
pytestmark = [pytest.mark.xdist_group("heavy"), pytest.mark.timeout(900)]

JOBS = size(250, 2_000)
KILLS = size(12, 24)
TWICE_EVERY = 5  # a fifth of the commands are sent twice


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[NatsFleet]:
    fleet = NatsFleet(tmp_path, apis=2, reconcilers=2, workers=2)
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.kill_all()


async def test_every_job_ends_once_though_a_reconciler_is_killed(fleet: NatsFleet) -> None:
    clients, began = Clients([api.url for api in fleet.apis]), time.monotonic()
    submitting = asyncio.create_task(_submitted(clients, fleet))
    try:
        await fleet.until_done(JOBS * len(SERVICES) // 2)
        await asyncio.to_thread(fleet.reconcilers[0].kill)
        jobs = await submitting
        states = await clients.states(jobs)
    finally:
        submitting.cancel()
        await clients.close()
    print(f"{JOBS} jobs in {time.monotonic() - began:.1f} s")
    assert Counter(states.values()) == {"SUCCEEDED": JOBS}
    assert await fleet.findings(states) == []
    await asyncio.to_thread(fleet.stop)
    assert _reconcilers(fleet.data) == []  # the one that was killed was forgotten by the other


async def test_kills_of_everybody_and_of_the_server(tmp_path: Path) -> None:
    report = await run(ChaosPlan(kills=KILLS, seed=5, bus="nats"), tmp_path)
    assert report.findings == []
    assert report.killed["nats"] > 0
    assert report.jobs > KILLS


async def _submitted(clients: Clients, fleet: NatsFleet) -> list[str]:
    """Each command's job; those that are sent twice go to the other API the second time."""

    async def one(number: int) -> str:
        command = fleet.command(number)
        job_id = await clients.submit(command, number)
        if number % TWICE_EVERY == 0:
            assert await clients.submit(command, number + 1) == job_id
        return job_id

    jobs = await asyncio.gather(*(one(number) for number in range(JOBS)))
    assert len(set(jobs)) == JOBS
    return jobs


def _reconcilers(data: Path) -> list[str]:
    connection = sqlite3.connect(f"file:{data / 'lucius.db'}?mode=ro", uri=True)
    try:
        return [key for (key,) in connection.execute("SELECT rk FROM lucius_meta WHERE pk = 'reconcilers'")]
    finally:
        connection.close()
