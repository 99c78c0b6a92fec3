"""Waiting for a job that another process moves."""

import asyncio

import pytest
from tests.support.publisher_setup import Deployment, World
from tests.support.virtual_time import virtual

from lucius.api import job_waits as waiting
from lucius.api.job_waits import JobWaits
from lucius.core.inputs import Cancel
from lucius.core.model import JobRecord
from lucius.core.states import JobState

WAIT_MS = 60_000
HEARD_SECONDS_MAX = 20


async def test_an_end_that_another_process_wrote_is_seen_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at the next regular look, which may be far off: a short job would seem to take that long."""
    monkeypatch.setattr(waiting, "LOOK_EVERY_SECONDS", 10 * HEARD_SECONDS_MAX)
    world = World()
    deployment, other = Deployment(world, hints=False), Deployment(world, hints=False)
    job_id = await deployment.submit()
    waiter = asyncio.create_task(JobWaits(deployment.ledger, shared=True).job(job_id, WAIT_MS))
    await asyncio.sleep(0)
    await other.apply(job_id, Cancel())
    async with asyncio.timeout(HEARD_SECONDS_MAX):
        record = await waiter
    assert isinstance(record, JobRecord)
    assert record.job.state is JobState.CANCELLED


async def test_who_waits_looks_again_when_told_to_and_waits_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting, "LOOK_FIRST_SECONDS", 10 * HEARD_SECONDS_MAX)
    monkeypatch.setattr(waiting, "LOOK_EVERY_SECONDS", 10 * HEARD_SECONDS_MAX)
    world = World()
    deployment, other = Deployment(world, hints=False), Deployment(world, hints=False)
    job_id = await deployment.submit()
    caller = JobWaits(deployment.ledger, shared=True)
    waiter = asyncio.create_task(caller.job(job_id, WAIT_MS))
    await asyncio.sleep(0.05)
    caller.look_again(job_id)  # too early: it has not ended
    caller.look_again("another")
    await asyncio.sleep(0.05)
    assert not waiter.done()
    await other.apply(job_id, Cancel())
    caller.look_again(job_id)
    async with asyncio.timeout(HEARD_SECONDS_MAX):
        record = await waiter
    assert isinstance(record, JobRecord)
    assert record.job.state is JobState.CANCELLED


@virtual
async def test_a_wait_ends_by_the_clock_of_the_loop() -> None:
    deployment = Deployment(World(), hints=False)
    job_id = await deployment.submit()
    record = await JobWaits(deployment.ledger).job(job_id, WAIT_MS)
    assert isinstance(record, JobRecord) and not record.job.terminal
    assert asyncio.get_running_loop().time() == pytest.approx(WAIT_MS / 1000)


def test_the_longer_one_has_waited_the_rarer_are_looks() -> None:
    shared = JobWaits(Deployment(World()).ledger, shared=True)
    assert [shared._pause_seconds(waited) for waited in (0, 0.1, 0.4, 2, 60)] == [0.025, 0.025, 0.1, 0.5, 1.0]
    shared.notified = True
    assert shared._pause_seconds(0) == 1.0
    alone = JobWaits(Deployment(World()).ledger)
    assert alone._pause_seconds(0) == 1.0
