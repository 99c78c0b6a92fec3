"""Every line about an attempt names it in full (specification 001, 20)."""

import asyncio
from collections.abc import Iterator

import httpx2
import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment
from tests.support.api_setup import until
from tests.support.invoker_setup import Deployment, Workflows, internal_api
from tests.support.log_lines import Lines, caught
from tests.support.publisher_setup import TENANT, Worker, World, fates

from lucius.bus.memory import PublishFault
from lucius.engines.temporal.activities import InvokerCalls

SECRET = "a-secret-of-many-letters"
IDS = {"stepId": "step_01", "attempt_no": 1, "lease_id": "L1-step_01", "tenant_id": TENANT}


@pytest.fixture
def lines() -> Iterator[Lines]:
    with caught("info") as found:
        yield found


@pytest.fixture
def deployment() -> Deployment:
    return Deployment(World(lock_ms=30_000), Workflows())


async def test_a_directive_that_the_bus_did_not_take(lines: Lines, deployment: Deployment) -> None:
    job_id = await deployment.submit()
    deployment.world.bus.on_publish = fates(PublishFault.REFUSED)
    await deployment.publish_in_vain(job_id)
    assert lines.one("publish_failed").items() >= {"jobId": job_id, **IDS}.items()
    assert lines.one("publish_failed")["correlation_id"]


async def test_a_reply_that_waits_and_a_workflow_that_is_not_told(
    lines: Lines, deployment: Deployment
) -> None:
    job_id, world = await deployment.submit(), deployment.world
    await deployment.attempt(job_id)
    worker = Worker(world)
    directive = await worker.take_one()
    running = asyncio.create_task(deployment.consumer.run())
    try:
        deployment.workflows.deaf = True
        await worker.reply("RESULT", directive, status="SUCCEEDED", output_ref={"uri": "s3://out/1"})

        async def told() -> bool:
            return bool(lines.all("workflow_not_told") and lines.all("reply_waits_for_ledger"))

        await until(told, seconds=10)
        deployment.workflows.deaf = False
    finally:
        deployment.consumer.stop()
        await running
    for event in ("workflow_not_told", "reply_waits_for_ledger"):
        for line in lines.all(event):
            assert line.items() >= {"jobId": job_id, **IDS}.items(), event


async def test_a_ledger_that_fails_a_workflows_call(lines: Lines, deployment: Deployment) -> None:
    job_id = await deployment.submit()
    ask = {**IDS, "jobId": job_id}
    async with internal_api(deployment, SECRET) as url:
        headers = {"authorization": f"Bearer {SECRET}"}
        async with httpx2.AsyncClient(base_url=url, headers=headers) as client:
            deployment.world.ledger_down = True
            answer = await client.post("/v1/internal/steps/attempt", json=ask)
    assert answer.status_code == 503
    assert lines.one("store_fault").items() >= ask.items()


async def test_a_call_that_failed(lines: Lines) -> None:
    calls = InvokerCalls("http://127.0.0.1:1", SECRET)
    ask = {**IDS, "jobId": "job_1"}
    with pytest.raises(ApplicationError, match="no answer"):
        await ActivityEnvironment().run(calls.publish, ask)
    await calls.close()
    assert lines.one("invoker_call_failed").items() >= ask.items()
    assert calls.outcomes == {("publish", "INVOKER_UNREACHABLE"): 1}
