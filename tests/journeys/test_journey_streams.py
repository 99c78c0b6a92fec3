"""The power goes out while hundreds listen: whoever comes back has every event once; every end is told."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import httpx2
from tests.journeys.conftest import Hire, Launch
from tests.journeys.harness import Lucius
from tests.sizes import size
from tests.support.api_setup import Caller, envelope, until
from tests.support.sse_client import SSE, said
from tests.support.webhook_receiver import Received, receiver, status_line

JOBS = size(250, 500)
STEPS = 3
KILLS = 2

STEP = """
  - step_type: {name}
    service: {service}
    payload_key: {service}
    max_attempts: 20
    ack_timeout: 5s
    lease: 60s
    backoff: {{publish: [0], ack: [0], result: [0]}}
"""
SERVICES = ("stream_a", "stream_b", "stream_c")
STREAM = "protocol_id: stream_v1\nrequest_types: [STREAM]\nsteps:" + "".join(
    STEP.format(name=service.upper(), service=service) for service in SERVICES
)


class Listener:
    """Follows one job as a browser does: comes back with the last id it got, until it is told to stop."""

    def __init__(self, client: httpx2.AsyncClient, job_id: str) -> None:
        self._client = client
        self._path = f"/v1/jobs/{job_id}/events"
        self.job_id = job_id
        self.events: list[dict[str, Any]] = []
        self.torn = 0

    async def follow(self) -> None:
        while True:
            headers = {**SSE, "last-event-id": str(self.events[-1]["seq"] if self.events else 0)}
            try:
                async with self._client.stream("GET", self._path, headers=headers) as response:
                    if response.status_code == 204:
                        return
                    if response.status_code == 200:
                        async for each in said(response):
                            assert each.id == str(each.data["seq"])
                            self.events.append(each.data)
                        continue
                    assert response.status_code == 503
            except httpx2.TransportError:
                self.torn += bool(self.events)
            await asyncio.sleep(0.1)


async def test_every_event_once_across_power_cuts(
    launch: "Launch", hire: "Hire", caller_at: "Callable[[Lucius], Caller]", tmp_path: Any
) -> None:
    (tmp_path / "protocols").mkdir()
    (tmp_path / "protocols" / "stream.yaml").write_text(STREAM)
    lucius = launch("--protocols", str(tmp_path / "protocols"))
    caller = caller_at(lucius)
    commands = [envelope(request_type="STREAM", tenant_id=f"t{number % 10}") for number in range(JOBS)]
    answer = await caller.post("/v1/orchestrate:batch", {"commands": commands})
    ids = [item["jobId"] for item in answer.json()["items"]]
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=JOBS)
    async with httpx2.AsyncClient(base_url=lucius.url, timeout=60, limits=limits) as client:
        listeners = [Listener(client, job_id) for job_id in ids]
        following = asyncio.gather(*(listener.follow() for listener in listeners))
        await until(_heard(listeners, JOBS * 2), seconds=60)  # everybody listens, nothing is done yet
        worker = hire(lucius.url, SERVICES, "--threads", "2")
        for kill in range(KILLS):
            # In the middle: a part of all results has been given, and most streams are open.
            lane_leases = (kill + 1) * JOBS * STEPS * 2 // (KILLS + 2)

            async def enough(lane_leases: int = lane_leases) -> bool:
                return worker.lines() >= lane_leases

            await until(enough, seconds=120)
            lucius.kill()
            await asyncio.sleep(0.2)
            await asyncio.to_thread(lucius.start)
        async with asyncio.timeout(180):
            await following
    assert sum(listener.torn for listener in listeners) > JOBS // 2
    for listener in listeners:
        seqs = [event["seq"] for event in listener.events]
        assert seqs == list(range(1, len(seqs) + 1))
        # A worker that heard nothing in the cut says its last word again, maybe when nobody listens any more.
        trail = await caller.events(listener.job_id)
        assert listener.events == trail[: len(seqs)]
        assert "JOB_SUCCEEDED" in [event["type"] for event in listener.events]
        assert {event["type"] for event in trail[len(seqs) :]} <= {"REPLY_DUPLICATE"}


def _heard(listeners: list[Listener], count: int) -> Any:
    async def look() -> bool:
        return sum(len(listener.events) for listener in listeners) >= count

    return look


async def test_an_orderly_stop_ends_open_streams(
    launch: "Launch", caller_at: "Callable[[Lucius], Caller]"
) -> None:
    lucius = launch()
    caller = caller_at(lucius)
    job_id = await caller.submit()
    read = 0

    async def listen(client: httpx2.AsyncClient) -> int:
        nonlocal read
        async with client.stream("GET", f"/v1/jobs/{job_id}/events", headers=SSE) as response:
            events = 0
            async for _ in said(response):
                events += 1
                read += 1
            return events

    async with httpx2.AsyncClient(base_url=lucius.url, timeout=60) as client:
        listening = [asyncio.create_task(listen(client)) for _ in range(50)]

        async def all_there() -> bool:
            return read >= 100

        await until(all_there)
        began = time.monotonic()
        lucius.ask_to_stop()
        assert await asyncio.gather(*listening) == [2] * 50  # ended, not torn off
        assert await asyncio.to_thread(lucius.ended) == 0
    assert time.monotonic() - began < 10
    assert "Traceback" not in lucius.stderr


async def test_a_webhook_that_failed_is_sent_after_a_power_cut(
    launch: "Launch", caller_at: "Callable[[Lucius], Caller]"
) -> None:
    allowed = {"LUCIUS_CALLBACK_ALLOW_HTTP": "true", "LUCIUS_CALLBACK_ALLOW_PRIVATE": "true"}
    lucius = launch(env=allowed)
    caller = caller_at(lucius)

    def answering(request: Received) -> bytes:
        return status_line(503)

    async with receiver(answering) as there:

        async def told() -> bool:
            return bool(there.received)

        callback = {"completed": f"http://127.0.0.1:{there.port}/done"}
        job_id = await caller.submit(callback_urls=callback)
        await caller.finish(job_id, "ocr")
        await until(told)
        await asyncio.sleep(0.3)  # the failure is noted
        lucius.kill()
        there.received.clear()
        there.answering = lambda request: status_line(200)
        await asyncio.to_thread(lucius.start)
        await until(told, seconds=20)
        assert there.received[0].headers["webhook-id"] == f"msg_{job_id}"
        secrets = lucius.data / "keys" / "webhook-secrets.json"
        assert secrets.stat().st_mode & 0o777 == 0o600
        assert "whsec_" not in lucius.stderr
