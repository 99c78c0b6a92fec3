"""The temporal engine on hosts that share nothing but PostgreSQL, NATS and Temporal: two orchestrators, two
invokers and two workers, each with a folder of its own. Parts and the database are killed while jobs run."""

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import pytest
from temporalio.client import WorkflowExecutionStatus
from tests.journeys import temporal_fleet as fleets
from tests.sizes import size

from lucius_lab.emulators.postgres import PostgresServer

pytestmark = [pytest.mark.xdist_group("heavy"), pytest.mark.timeout(600)]

JOBS = size(16, 200)


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    folder = Path(tempfile.mkdtemp(prefix="lucius-temporal-pg-"))
    made = PostgresServer(folder)
    made.start()
    yield made
    made.kill()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def fleet(tmp_path: Path, server: PostgresServer) -> AsyncIterator[fleets.Fleet]:
    fleet = fleets.Fleet(tmp_path, store=server.url())
    try:
        await fleet.start(invokers=2, workers=2, orchestrators=2)
        yield fleet
    finally:
        await fleet.close()


async def test_jobs_of_either_orchestrator_end_once_though_parts_and_the_database_are_killed(
    fleet: fleets.Fleet, server: PostgresServer
) -> None:
    one, other = (
        httpx2.AsyncClient(base_url=part.url, timeout=90, transport=httpx2.AsyncHTTPTransport(retries=50))
        for part in fleet.orchestrators
    )
    async with one, other:
        commands = [fleets.command(n, fleet.effects, 0.05) for n in range(JOBS)]
        jobs = await fleets.submit(one, commands[::2]) + await fleets.submit(other, commands[1::2])
        # The same command at the other orchestrator is the same job.
        assert await fleets.submit(other, commands[:1]) == jobs[:1]
        await fleets.steps_done(fleet.effects, 2)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        for part in (fleet.invokers[1], fleet.workers[0], fleet.orchestrators[0]):
            await asyncio.to_thread(part.kill)
            await asyncio.to_thread(part.start)
        ended = await fleets.ends(other, jobs)
    assert Counter(job["state"] for job in ended.values()) == {"SUCCEEDED": JOBS}
    assert await fleets.workflow_states(fleet.address, jobs) == {WorkflowExecutionStatus.COMPLETED}
    states = {job_id: job["state"] for job_id, job in ended.items()}
    assert await fleets.findings(server.url(), states, fleet.effects) == []
    await fleet.stop()
