"""The parts of the temporal engine, put together as the commands do it: who writes, who shares the lanes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.assembly.test_assembly import submitted
from tests.support.temporal_setup import ClusterSetup

from lucius.assembly import Part
from lucius.core.inputs import Cancel
from lucius.core.model import JobRecord
from lucius.core.states import JobState
from lucius.engines.lane_leases import ALL_LANES, LaneLeases
from lucius.jobs.writer import Applied
from lucius.ledger.job_ledger import JobLedger, LayoutName
from lucius.ledger.memory import MemoryStore
from lucius.sdk import Task

pytestmark = pytest.mark.xdist_group("temporal")

WAIT_MS = 60_000


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterSetup]:
    async with AsyncExitStack() as stack:
        yield ClusterSetup(tmp_path, stack)


async def test_the_orchestrator_writes_a_job_into_being_and_the_invoker_all_the_rest(
    cluster: ClusterSetup,
) -> None:
    began = asyncio.Event()

    async def work(task: Task) -> dict[str, str]:
        began.set()
        return {"uri": task.input_uri}

    await cluster.open({"ocr": work})
    job_id = await submitted(cluster.orchestrator)
    record = await cluster.orchestrator.deployment.waiting.job(job_id, WAIT_MS)
    assert isinstance(record, JobRecord) and record.job.state is JobState.SUCCEEDED
    assert began.is_set()
    # One commit, in which the job comes into being; whatever was written later, another wrote.
    (creation,) = cluster.written[Part.ORCHESTRATOR].about_jobs()
    keys = sorted(key for _, table, key in creation if table == "lucius_ledger")
    assert keys == ["EVENT#00000001", "JOB", "STEP#0#step_01"]
    assert ("insert", "lucius_ledger", "JOB") in creation
    moves = [
        rows
        for rows in cluster.written[Part.INVOKER].about_jobs()
        if ("replace", "lucius_ledger", "JOB") in rows
    ]
    assert len(moves) >= 2  # a reply may be faster than a note, and bring it along
    assert not any(("insert", "lucius_ledger", "JOB") in rows for rows in moves)


async def test_a_control_is_passed_on_and_not_written(cluster: ClusterSetup) -> None:
    await cluster.open({})
    job_id = await submitted(cluster.orchestrator)
    cancelled = await cluster.orchestrator.deployment.inputs.apply(job_id, Cancel())
    assert isinstance(cancelled, Applied)
    assert cancelled.record.job.state in (JobState.CANCELLED, JobState.CANCELLING)
    assert len(cluster.written[Part.ORCHESTRATOR].about_jobs()) == 1
    assert cluster.orchestrator.writer.outcomes.total() == 0
    assert cluster.invoker.writer.outcomes["Cancel", "applied"] == 1


async def test_invokers_share_lanes_among_themselves_and_leave_none_to_reconcilers() -> None:
    """A reconciler leaves rows of temporal jobs alone: in a lane of its own nobody would meet them."""
    ledger = JobLedger(MemoryStore(), LayoutName.LEDGER)
    shares = {
        part: [
            LaneLeases(ledger, f"{part.value}-{n}", now_ms=lambda: 1_000, partition=part.siblings)
            for n in range(2)
        ]
        for part in (Part.INVOKER, Part.RECONCILER)
    }
    for _ in range(2):
        for pair in shares.values():
            for lane_leases in pair:
                await lane_leases.renew()
    for one, other in shares.values():
        assert one.lanes() | other.lanes() == ALL_LANES
        assert not one.lanes() & other.lanes()
    invoker, _ = shares[Part.INVOKER]
    await invoker.leave()
    assert invoker.lanes() == frozenset()
