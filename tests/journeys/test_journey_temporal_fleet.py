"""Two invokers and two workers on one ledger, and workflows that somebody ends: every move is made once."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionStatus
from tests.journeys import temporal_fleet as fleets
from tests.sizes import size
from tests.support.api_setup import until
from tests.support.metric_names import check_names

pytestmark = [pytest.mark.xdist_group("heavy"), pytest.mark.timeout(600)]

JOBS = size(24, 100)
ROUNDS_MAX = 20
MORE_JOBS = 6  # a round, beside one that is done by hand


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[fleets.Fleet]:
    fleet = fleets.Fleet(tmp_path)
    try:
        await fleet.start(invokers=2, workers=2)
        yield fleet
    finally:
        await fleet.close()


async def test_no_move_is_made_twice_whoever_ends_workflows(fleet: fleets.Fleet) -> None:
    temporal = await Client.connect(fleet.address)
    async with httpx2.AsyncClient(base_url=fleet.orchestrator.url, timeout=90) as client:
        halfway = await _ended_halfway(client, temporal)
        between = await _ended_between_steps(client, temporal)
        jobs = await fleets.submit(client, [fleets.command(n, fleet.effects, 0.01) for n in range(JOBS)])
        ended = await fleets.ends(client, jobs)
        assert Counter(job["state"] for job in ended.values()) == {"SUCCEEDED": JOBS}
        assert {job["attempts_total"] for job in ended.values()} == {fleets.STEPS}
        for _ in (halfway, between):  # repair has started both anew, and neither begins with the first step
            directive = await fleets.leased(client)
            assert (directive["stepId"], directive["attempt_no"]) == ("step_02", 1)
            await fleets.call_back(client, directive, "ACK")
            await fleets.call_back(client, directive, "RESULT")
        mended = await fleets.ends(client, [halfway, between])
        assert [job["state"] for job in mended.values()] == ["SUCCEEDED"] * 2
        more, by_hand = await _until_all_took_part(fleet, client, temporal)
    jobs += more
    for job_id in (halfway, between, *by_hand):
        assert await fleets.check_story(fleet.data, job_id) == [("step_01", 1), ("step_02", 1)]
    for job_id in jobs:
        steps = [(f"step_{n:02}", 1) for n in range(1, fleets.STEPS + 1)]
        assert await fleets.check_story(fleet.data, job_id) == steps
    everyone = [*jobs, halfway, between, *by_hand]
    assert await fleets.workflow_states(fleet.address, everyone) == {WorkflowExecutionStatus.COMPLETED}
    await _check_figures(fleet, started=len(everyone))
    await fleet.stop()


async def _ended_halfway(client: httpx2.AsyncClient, temporal: Client) -> str:
    """Its workflow is terminated in the middle of an attempt, whose result finds nobody to tell."""
    (job_id,) = await fleets.submit(client, [fleets.by_hand(1)])
    directive = await fleets.leased(client)
    assert (await fleets.call_back(client, directive, "ACK")).json()["outcome"] == "applied"
    await _terminate(temporal, job_id)
    assert (await fleets.call_back(client, directive, "RESULT")).json()["outcome"] == "applied"
    assert await _states(client, job_id) == ["SUCCEEDED", "PENDING"]
    return job_id


async def _ended_between_steps(client: httpx2.AsyncClient, temporal: Client) -> str:
    """Its workflow is terminated after one step and before the next; a resume is met by nobody."""
    (job_id,) = await fleets.submit(client, [fleets.by_hand(2)])
    directive = await fleets.leased(client)
    assert (await client.post(f"/v1/jobs/{job_id}:pause")).json()["state"] == "PAUSING"
    assert (await fleets.call_back(client, directive, "RESULT")).json()["outcome"] == "applied"

    async def paused() -> bool:
        return bool((await client.get(f"/v1/jobs/{job_id}")).json()["state"] == "PAUSED")

    await until(paused, seconds=fleets.SECONDS_MAX)
    await _terminate(temporal, job_id)
    resumed: dict[str, Any] = (await client.post(f"/v1/jobs/{job_id}:resume")).json()
    assert resumed["state"] == "IN_PROGRESS"
    return job_id


async def _terminate(temporal: Client, job_id: str) -> None:
    """Once it has no question open: while it has, it would go on with the answer until it notices."""
    await _answered(temporal, job_id)
    await temporal.get_workflow_handle(job_id).terminate("a test")


async def _answered(temporal: Client, job_id: str) -> None:
    async def answered() -> bool:
        history = await temporal.get_workflow_handle(job_id).fetch_history()
        return EventType.EVENT_TYPE_MARKER_RECORDED in [event.event_type for event in history.events]

    await until(answered, seconds=fleets.SECONDS_MAX)


async def _states(client: httpx2.AsyncClient, job_id: str) -> list[str]:
    job = (await client.get(f"/v1/jobs/{job_id}")).json()
    return [step["state"] for step in job["steps"]]


async def _until_all_took_part(
    fleet: fleets.Fleet, client: httpx2.AsyncClient, temporal: Client
) -> tuple[list[str], list[str]]:
    """Submits jobs, with or without a service, until each invoker and each worker has had its share of all
    that this test is about: which worker takes a job, and which invoker a reply, is the servers' choice."""
    jobs: list[str] = []
    by_hand: list[str] = []
    for number in range(ROUNDS_MAX):
        if not await _missing(fleet):
            break
        numbers = range(JOBS + number * MORE_JOBS, JOBS + (number + 1) * MORE_JOBS)
        several = await fleets.submit(client, [fleets.command(n, fleet.effects, 0.01) for n in numbers])
        (slow,) = await fleets.submit(client, [fleets.by_hand(3 + number)])
        for step in ("step_01", "step_02"):
            directive = await fleets.leased(client)
            assert (directive["jobId"], directive["stepId"]) == (slow, step)
            await _answered(temporal, slow)
            await fleets.call_back(client, directive, "ACK")
            await fleets.call_back(client, directive, "RESULT")
        ended = await fleets.ends(client, [*several, slow])
        assert {job["state"] for job in ended.values()} == {"SUCCEEDED"}
        jobs += several
        by_hand.append(slow)
    assert await _missing(fleet) == []
    return jobs, by_hand


async def _missing(fleet: fleets.Fleet) -> list[str]:
    """What an invoker or a worker has not done yet, or the test would say nothing about two."""
    found = []
    async with httpx2.AsyncClient(timeout=20) as client:
        for invoker in fleet.invokers:
            figures = (await client.get(f"{invoker.url}/metrics")).text
            if 'lucius_internal_calls_total{call="attempt"' not in figures:
                found.append(f"{invoker.url}: attempt")
            told = [line for line in figures.splitlines() if line.startswith("lucius_workflow_signals_total")]
            told = [line for line in told if "step_result" in line]
            # Half of the replies come to the invoker that does not hold the question: it signals.
            found += [
                f"{invoker.url}: {outcome}"
                for outcome in ("answered", "heard")
                if not any(f'outcome="{outcome}"' in line for line in told)
            ]
        for worker in fleet.workers:
            figures = (await client.get(f"{worker.url}/metrics")).text
            # The attempt that outlasts the question: of others the worker hears the end with the answer.
            if 'lucius_invoker_calls_total{call="begin",outcome="go"}' not in figures:
                found.append(f"{worker.url}: begin")
            if not re.search(
                r"temporal_workflow_task_execution_latency_seconds_count{.*LuciusJob.*} \d", figures
            ):
                found.append(f"{worker.url}: workflow task")
    return found


async def _check_figures(fleet: fleets.Fleet, *, started: int) -> None:
    async with httpx2.AsyncClient(timeout=20) as client:
        starts = (await client.get(f"{fleet.orchestrator.url}/metrics")).text
        assert f'lucius_workflow_starts_total{{outcome="started"}} {started}.0' in starts
        for kind, part in (
            ("orchestrator", fleet.orchestrator),
            ("service", fleet.service),
            *(("invoker", invoker) for invoker in fleet.invokers),
            *(("worker", worker) for worker in fleet.workers),
        ):
            check_names(kind, (await client.get(f"{part.url}/metrics")).text)
        ready = await asyncio.gather(*(client.get(f"{part.url}/readyz") for part in fleet.parts))
        assert {answer.status_code for answer in ready} == {200}
