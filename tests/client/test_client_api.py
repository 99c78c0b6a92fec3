"""The client against the real API of a deployment in this process."""

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from tests.support.api_setup import Deployment, callers, envelope, quick_deployment

from lucius.api.app import make_app
from lucius.client import BY_CONTENT, Accepted, JobCancelled, Lucius, LuciusError, Problem, RetryPolicy

__all__ = ["callers", "quick_deployment"]

QUICK = {"request_type": "QUICK"}


@pytest.fixture
async def lucius(quick_deployment: "Deployment") -> AsyncIterator[Lucius]:
    transport = httpx2.ASGITransport(make_app(quick_deployment.lucius.deployment), raise_app_exceptions=False)
    retry = RetryPolicy(retries_max=1, total_seconds_max=0.5)
    async with Lucius("http://house", "", transport=transport, retry=retry) as client:
        yield client


async def test_a_job_from_its_command_to_its_end(lucius: Lucius, quick_deployment: "Deployment") -> None:
    accepted = await lucius.submit(envelope(**QUICK), correlation_id="c-7")
    assert accepted.state == "QUEUED"
    await quick_deployment.finish(
        accepted.job_id, "quick", status="SUCCEEDED", output_ref={"uri": "s3://out/x.json"}
    )
    job = await lucius.wait(accepted.job_id, within_seconds=10)
    assert (job.succeeded, job.final_output, job.correlation_id) == (True, "s3://out/x.json", "c-7")
    assert [step.state for step in job.steps] == ["SUCCEEDED"]
    assert await lucius.steps(job.job_id) == job.steps
    trail = [event async for event in lucius.events(job.job_id)]
    assert [event.seq for event in trail] == list(range(1, len(trail) + 1))
    assert (trail[0].type, trail[-1].type) == ("JOB_CREATED", "JOB_SUCCEEDED")
    assert [event async for event in lucius.watch(job.job_id)] == trail
    assert [event async for event in lucius.watch(job.job_id, after=len(trail))] == []


async def test_the_same_content_may_be_one_job_or_two(lucius: Lucius) -> None:
    command = envelope(**QUICK)
    first, second = await lucius.submit(command), await lucius.submit(command)
    assert first.job_id != second.job_id
    third = await lucius.submit(command, idempotency_key=BY_CONTENT)
    fourth = await lucius.submit(command, idempotency_key=BY_CONTENT)
    assert (third.duplicate, fourth.duplicate, fourth.job_id) == (False, True, third.job_id)


async def test_controls_and_running_again(lucius: Lucius) -> None:
    job_id = (await lucius.submit(envelope(**QUICK))).job_id
    assert (await lucius.pause(job_id)).state in ("PAUSING", "PAUSED")
    assert (await lucius.resume(job_id)).state not in ("PAUSING", "PAUSED")
    assert (await lucius.cancel(job_id)).state == "CANCELLED"
    with pytest.raises(LuciusError) as caught:
        await lucius.pause(job_id)
    assert caught.value.code == "JOB_TERMINAL"
    again = await lucius.rerun(job_id, idempotency_key="again")
    assert again.rerun_of == job_id
    assert (await lucius.rerun(job_id, idempotency_key="again")).job_id == again.job_id
    listed = [job.job_id async for job in lucius.jobs(tenant_id="acme", limit=1)]
    assert listed[:2] == [again.job_id, job_id]
    page = await lucius.jobs_page(tenant_id="acme", limit=1)
    assert ([job.job_id for job in page.items], page.next_cursor is None) == ([again.job_id], False)


async def test_run_tells_that_somebody_cancelled(lucius: Lucius) -> None:
    command = envelope(**QUICK)
    accepted = await lucius.submit(command, idempotency_key="k")
    await lucius.cancel(accepted.job_id)
    with pytest.raises(JobCancelled) as caught:
        await lucius.run(command, idempotency_key="k")
    assert caught.value.job.job_id == accepted.job_id


async def test_a_final_failure_is_in_the_dead_letter_list_and_can_be_driven_again(
    lucius: Lucius, quick_deployment: "Deployment"
) -> None:
    job_id = (await lucius.submit(envelope(**QUICK))).job_id
    failure: dict[str, Any] = {"status": "FAILED_FINAL", "error": {"code": "BAD", "message": "no"}}
    await quick_deployment.finish(job_id, "quick", **failure)
    assert (await lucius.wait(job_id)).state == "FAILED_FINAL"
    assert [job.job_id async for job in lucius.dlq(error_code="BAD")] == [job_id]
    assert [job async for job in lucius.dlq(error_code="WORSE")] == []
    assert (await lucius.redrive(job_id)).rerun_of == job_id
    assert await lucius.retry_outbox() >= 0


async def test_a_batch_of_good_and_bad(lucius: Lucius) -> None:
    good, bad = await lucius.batch([envelope(**QUICK), envelope(request_type="QUICKER")])
    assert isinstance(good, Accepted)
    assert isinstance(bad, Problem)
    assert (bad.code, bad.status) == ("UNKNOWN_REQUEST_TYPE", 422)
    assert "QUICK" in bad.message


async def test_the_registry_the_plan_and_the_reasons(lucius: Lucius) -> None:
    protocols = {protocol.protocol_id: protocol for protocol in await lucius.protocols()}
    assert await lucius.protocol("quick_v1") == protocols["quick_v1"]
    assert protocols["quick_v1"].steps[0]["service"] == "quick"
    plan = await lucius.plan(envelope(**QUICK))
    assert (plan.accepted, plan.protocol_id, plan.lane is not None) == (True, "quick_v1", True)
    assert not (await lucius.plan(envelope(request_type="NONE"))).accepted
    job_id = (await lucius.submit(envelope(**QUICK))).job_id
    assert (await lucius.explain(job_id))["jobId"] == job_id
    with pytest.raises(LuciusError) as caught:
        await lucius.adopt(job_id, "step_01", 1)
    assert caught.value.status is not None
    assert 400 <= caught.value.status < 500
    with pytest.raises(LuciusError, match="JOB_NOT_FOUND"):
        await lucius.explain("job_none")
