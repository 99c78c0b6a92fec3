"""Starting workflows: a burst waits for its turn alone, and a Temporal that is away is spared."""

import asyncio
from contextvars import ContextVar

import msgspec
from tests.core.machine import born
from tests.support.virtual_time import virtual

from lucius.contracts.internal import Position
from lucius.core.model import JobRecord
from lucius.core.states import Engine
from lucius.engines.temporal.workflow_starts import STARTS_MAX, WorkflowStarts
from lucius.jobs.workflows import StartOutcome, WorkflowLabels, WorkflowsUnavailable

START_SECONDS = 0.1
BATCH = 500
ASKED_BY: ContextVar[str] = ContextVar("asked_by", default="nobody")


class ClusterSetup:
    """Starts that take a while each, and fail while nobody is there."""

    def __init__(self) -> None:
        self.away = False
        self.under_way = self.most = 0
        self.asked: list[str] = []
        self.askers: list[str] = []

    async def start(
        self, job_id: str, position: Position, labels: WorkflowLabels | None = None, *, is_open: bool = False
    ) -> StartOutcome:
        self.asked.append(job_id)
        self.askers.append(ASKED_BY.get())
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(START_SECONDS)
        self.under_way -= 1
        if self.away:
            raise WorkflowsUnavailable("nobody is there")
        return StartOutcome.STARTED


def job(number: int) -> JobRecord:
    record = born(engine=Engine.TEMPORAL)
    return msgspec.structs.replace(record, job=msgspec.structs.replace(record.job, job_id=f"job_{number}"))


def create(starting: WorkflowStarts, count: int) -> list[str]:
    records = [job(number) for number in range(count)]
    for record in records:
        starting.watch(None, record, ())
    return [record.job.job_id for record in records]


@virtual
async def test_a_burst_is_started_in_turn_without_a_pause() -> None:
    cluster = ClusterSetup()
    starting = WorkflowStarts(cluster)
    jobs = create(starting, BATCH)
    began = asyncio.get_running_loop().time()
    await starting.idle()
    assert sorted(cluster.asked) == sorted(jobs)
    assert starting.outcomes == {"started": BATCH}
    assert cluster.most == STARTS_MAX, "no more than these are under way at a time"
    assert asyncio.get_running_loop().time() - began < 3 * START_SECONDS


@virtual
async def test_a_place_that_becomes_free_is_given_at_once_and_in_order() -> None:
    cluster = ClusterSetup()
    starting = WorkflowStarts(cluster, starts_max=1)
    jobs = create(starting, 5)
    await starting.idle()
    assert (cluster.asked, cluster.most) == (jobs, 1)


@virtual
async def test_what_is_more_than_may_wait_is_left_to_repair() -> None:
    cluster = ClusterSetup()
    starting = WorkflowStarts(cluster, starts_max=2, waiting_max=3)
    jobs = create(starting, 7)
    await starting.idle()
    assert sorted(cluster.asked) == jobs[:5]
    assert starting.outcomes == {"left_to_repair": 2, "started": 5}


@virtual
async def test_workflows_that_are_away_are_asked_once_more_and_not_for_each_that_waits() -> None:
    cluster = ClusterSetup()
    cluster.away = True
    starting = WorkflowStarts(cluster, starts_max=10)
    create(starting, BATCH)
    await starting.idle()
    assert starting.outcomes == {"unavailable": 11, "left_to_repair": BATCH - 11}
    cluster.most = 0
    create(starting, BATCH)
    await starting.idle()
    assert (len(cluster.asked), cluster.most) == (12, 1), "one at a time, as long as none succeeds"
    cluster.away = False
    create(starting, BATCH)
    await starting.idle()
    assert (starting.outcomes["started"], cluster.most) == (BATCH, 10)


@virtual
async def test_an_outage_that_is_over_soon_costs_only_those_that_met_it() -> None:
    cluster = ClusterSetup()
    cluster.away = True
    starting = WorkflowStarts(cluster, starts_max=10)
    create(starting, BATCH)
    await asyncio.sleep(1.5 * START_SECONDS)
    cluster.away = False
    await starting.idle()
    assert starting.outcomes == {"unavailable": 10, "started": BATCH - 10}


@virtual
async def test_the_end_of_the_process_waits_for_no_queue() -> None:
    cluster = ClusterSetup()
    starting = WorkflowStarts(cluster, starts_max=10)
    create(starting, BATCH)
    await asyncio.sleep(0)
    began = asyncio.get_running_loop().time()
    await starting.close()
    create(starting, 1)
    await starting.idle()
    assert asyncio.get_running_loop().time() - began < 2 * START_SECONDS
    assert starting.outcomes == {"started": 10, "left_to_repair": BATCH - 10 + 1}


@virtual
async def test_a_start_that_waited_is_still_its_own_requests() -> None:
    """Whoever's turn it is, what is logged of it names the request that created the job."""
    cluster = ClusterSetup()
    starting = WorkflowStarts(cluster, starts_max=1)
    for asker in ("one", "two", "three"):
        ASKED_BY.set(asker)
        create(starting, 1)
    await starting.idle()
    assert cluster.askers == ["one", "two", "three"]
