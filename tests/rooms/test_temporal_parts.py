"""The parts of the temporal engine, put together as the commands do it: who writes, who shares the lanes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lucius.assembly import Part
from lucius.core.inputs import Cancel
from lucius.core.model import JobRecord
from lucius.core.states import JobState
from lucius.engines.outbox.lanes import ALL_LANES, LaneShare
from lucius.ledger.jobs import JobLedger, LayoutName
from lucius.ledger.memory import MemoryStore
from lucius.progress.apply import Applied
from lucius.sdk import Task

if TYPE_CHECKING:
    from tests.rooms.temporal_town import Town
    from tests.rooms.test_assembly import submitted
else:
    from temporal_town import Town
    from test_assembly import submitted

pytestmark = pytest.mark.xdist_group("temporal")

WAIT_MS = 60_000


@pytest.fixture
async def town(tmp_path: Path) -> AsyncIterator[Town]:
    async with AsyncExitStack() as stack:
        yield Town(tmp_path, stack)


async def test_the_orchestrator_writes_a_job_into_being_and_the_invoker_all_the_rest(town: Town) -> None:
    began = asyncio.Event()

    async def work(task: Task) -> dict[str, str]:
        began.set()
        return {"uri": task.input_uri}

    await town.open({"ocr": work})
    job_id = await submitted(town.orchestrator)
    record = await town.orchestrator.house.waiting.job(job_id, WAIT_MS)
    assert isinstance(record, JobRecord) and record.job.state is JobState.SUCCEEDED
    assert began.is_set()
    # One commit, in which the job comes into being; whatever was written later, another wrote.
    (creation,) = town.written[Part.ORCHESTRATOR].about_jobs()
    keys = sorted(key for _, table, key in creation if table == "lucius_ledger")
    assert keys == ["EVENT#00000001", "JOB", "STEP#0#step_01"]
    assert ("insert", "lucius_ledger", "JOB") in creation
    moves = [
        rows
        for rows in town.written[Part.INVOKER].about_jobs()
        if ("replace", "lucius_ledger", "JOB") in rows
    ]
    assert len(moves) >= 2  # a reply may be faster than a note, and bring it along
    assert not any(("insert", "lucius_ledger", "JOB") in rows for rows in moves)


async def test_a_control_is_passed_on_and_not_written(town: Town) -> None:
    await town.open({})
    job_id = await submitted(town.orchestrator)
    cancelled = await town.orchestrator.house.progress.apply(job_id, Cancel())
    assert isinstance(cancelled, Applied)
    assert cancelled.record.job.state in (JobState.CANCELLED, JobState.CANCELLING)
    assert len(town.written[Part.ORCHESTRATOR].about_jobs()) == 1
    assert town.orchestrator.progress.outcomes.total() == 0
    assert town.invoker.progress.outcomes["Cancel", "applied"] == 1


async def test_invokers_share_lanes_among_themselves_and_leave_none_to_reconcilers() -> None:
    """A reconciler leaves rows of temporal jobs alone: in a lane of its own nobody would meet them."""
    ledger = JobLedger(MemoryStore(), LayoutName.LEDGER)
    shares = {
        part: [
            LaneShare(ledger, f"{part.value}-{n}", now_ms=lambda: 1_000, partition=part.siblings)
            for n in range(2)
        ]
        for part in (Part.INVOKER, Part.RECONCILER)
    }
    for _ in range(2):
        for pair in shares.values():
            for share in pair:
                await share.renew()
    for one, other in shares.values():
        assert one.lanes() | other.lanes() == ALL_LANES
        assert not one.lanes() & other.lanes()
    invoker, _ = shares[Part.INVOKER]
    await invoker.leave()
    assert invoker.lanes() == frozenset()
