"""Jobs as they move, over a real socket: the newest state of each, and nothing of others."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from msgspec.structs import replace
from tests.support.api_setup import Callers, Deployment, check_problem, until
from tests.support.auth_setup import guarded
from tests.support.sse_client import SSE, served

from lucius.api import job_feed, job_stream
from lucius.api.job_feed import MOVED_MAX

Message = tuple[str, dict[str, Any]]


async def messages(response: httpx2.Response) -> AsyncIterator[Message]:
    event = ""
    async for line in response.aiter_lines():
        name, _, value = line.partition(": ")
        if name == "event":
            event = value
        elif name == "data":
            yield event, json.loads(value)


@asynccontextmanager
async def following(url: str, query: str = "", **headers: str) -> AsyncIterator[AsyncIterator[Message]]:
    async with (
        httpx2.AsyncClient(timeout=20) as client,
        client.stream("GET", f"{url}/v1/jobs:stream{query}", headers={**SSE, **headers}) as response,
    ):
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["cache-control"] == "no-store"
        coming = messages(response)
        first = await anext(coming)
        assert first[0] == "overview"
        yield coming


async def next_job(coming: AsyncIterator[Message]) -> dict[str, Any]:
    async with asyncio.timeout(15):
        async for event, data in coming:
            if event == "job":
                return data
    raise AssertionError("the stream ended")


async def test_a_job_is_told_as_it_moves_and_the_overview_follows(deployment: Deployment) -> None:
    async with served(deployment.lucius) as url, following(url) as coming:
        job_id = await deployment.submit(tenant_id="Acme")
        told = await next_job(coming)
        assert told.keys() == {
            *("job_id", "tenant_id", "state", "request_type", "current_step_id", "created_at", "updated_at")
        }
        assert (told["job_id"], told["tenant_id"], told["request_type"]) == (job_id, "Acme", "OCR")
        await deployment.finish(job_id, "ocr")
        while told["state"] != "SUCCEEDED":
            told = await next_job(coming)
        job = await deployment.job(job_id)
        assert told["updated_at"] == job["updated_at"]
        async with asyncio.timeout(15):
            async for event, data in coming:
                if event == "overview" and data["totals"]["succeeded"]:
                    break
        overview = (await deployment.http.get("/v1/overview?window=15m")).json()
        assert data.keys() == overview.keys() - {"series", "latency", "step_seconds", "starts_at"}


async def test_other_tenants_jobs_are_not_told(callers: Callers) -> None:
    deployment = await guarded(callers)
    root = await deployment.holding("submit", "read")
    limited = await deployment.key("read", tenants=("acme",))
    authorization = {"authorization": f"Bearer {limited.text}"}
    root_key = await deployment.key("read")
    whole = {"authorization": f"Bearer {root_key.text}"}
    async with (
        served(deployment.lucius) as url,
        following(url, **authorization) as coming,
        following(url, "?tenant_id=globex", **whole) as coming_theirs,
    ):
        theirs = await root.submit(tenant_id="globex")
        ours = await root.submit(tenant_id="acme")
        assert (await next_job(coming))["job_id"] == ours
        assert (await next_job(coming_theirs))["job_id"] == theirs
    for query in ("?tenant_id=globex", "?tenant_id=acme%20x"):
        response = await deployment.caller(limited.text).http.get(f"/v1/jobs:stream{query}", headers=SSE)
        check_problem(response, 403, "FORBIDDEN")


async def test_a_caller_whose_key_is_revoked_hears_no_more(
    callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_stream, "ASK_AGAIN_SECONDS", 0.05)
    deployment = await guarded(callers)
    key = await deployment.key("read")
    async with served(deployment.lucius) as url, following(url, authorization=f"Bearer {key.text}") as coming:
        await deployment.lucius.deployment.keys.revoke(key.key.key_id)
        async with asyncio.timeout(15):
            assert [event async for event, _ in coming if event == "job"] == []


async def test_what_cannot_be_told_is_counted_and_the_newest_state_wins(deployment: Deployment) -> None:
    moved = job_feed.MovedJobs(lambda tenant: tenant == "acme")
    jobs = []
    for _ in range(MOVED_MAX + 5):
        loaded = await deployment.lucius.deployment.ledger.load(await deployment.submit())
        assert loaded is not None
        jobs.append(loaded.record.job)
    for job in jobs:
        moved.offer(job)
    moved.offer(replaced := replace(jobs[-1], version=jobs[-1].version + 1))
    moved.offer(jobs[-1])  # an older state that another process told of later
    moved.offer(replace(jobs[0], tenant_norm="globex"))
    taken = list(iter(moved.take, None))
    assert taken == [*jobs[5:-1], replaced]
    assert (moved.take_missed(), moved.take_missed()) == (5, 0)


async def test_a_stream_tells_of_a_bounded_number_of_jobs_a_second(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(deployment.lucius) as url, following(url) as coming:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for _ in range(60):
            await deployment.submit()
        seen: set[str] = set()
        async with asyncio.timeout(20):
            missed = 0
            while len(seen) + missed < 60:
                event, data = await anext(coming)
                if event == "job":
                    seen.add(data["job_id"])
                missed += data["jobs"] if event == "missed" else 0
        assert len(seen) <= (loop.time() - began) * job_feed.MESSAGES_PER_SECOND_MAX + 1


async def test_jobs_that_another_process_moves_are_told(deployment: Deployment) -> None:
    """The note of another process names the job alone."""
    job_id = await deployment.submit()
    async with served(deployment.lucius) as url, following(url) as coming:
        deployment.lucius.has_events("job_absent")
        deployment.lucius.moved(job_id)
        assert (await next_job(coming))["job_id"] == job_id


async def test_a_stream_has_to_be_asked_for_as_one(deployment: Deployment) -> None:
    check_problem(await deployment.http.get("/v1/jobs:stream"), 422, "INVALID_REQUEST")
    for query in ("state=QUEUED", "tenant_id=", "tenant_id=a&tenant_id=b", "tenant_id=%00"):
        response = await deployment.http.get(f"/v1/jobs:stream?{query}", headers=SSE)
        check_problem(response, 422, "INVALID_REQUEST")


async def test_a_process_that_ends_lets_its_streams_go(deployment: Deployment) -> None:
    async with served(deployment.lucius) as url, following(url) as coming:
        deployment.lucius.let_go()
        async with asyncio.timeout(15):
            assert [event async for event, _ in coming if event == "job"] == []
    check_problem(await deployment.http.get("/v1/jobs:stream", headers=SSE), 503, "SYSTEM_SATURATED")


async def test_there_are_so_many_streams_and_no_more(callers: Callers) -> None:
    deployment = await callers.open({"LUCIUS_STREAMS_MAX": "1"})
    async with served(deployment.lucius) as url, following(url):
        response = await deployment.http.get("/v1/jobs:stream", headers=SSE)
        check_problem(response, 503, "SYSTEM_SATURATED")
    await until(lambda: asyncio.sleep(0, deployment.lucius.streams.open_count == 0))
