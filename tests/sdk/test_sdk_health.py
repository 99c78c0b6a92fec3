"""`/livez`, `/readyz` and `/metrics` of a service that runs in a program of its author's."""

import asyncio

import httpx2
import pytest
from tests.sdk.test_sdk_runner import MemoryTransport, NoWorkspace, made, until

from lucius.assembly.clock_and_ids import new_hex
from lucius.sdk import Runner, Service
from lucius.sdk.health import service_checks, serving_health
from lucius.telemetry import AttemptMetrics


class Held(NoWorkspace):
    """An object that is written can be read."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    async def read(self, uri: str) -> bytes:
        return self.objects[uri]

    async def write(self, uri: str, data: bytes) -> None:
        self.objects[uri] = data


async def test_a_service_says_whether_it_lives_and_is_ready() -> None:
    transport, workspace = MemoryTransport(), Held()
    served = Service("ocr", made)
    runner = Runner(served, transport, workspace, now_ms=lambda: 1, wait_seconds=0.01)
    running = asyncio.create_task(runner.run())
    metrics = AttemptMetrics("ocr", clock=lambda: 0, now_ms=lambda: 1, new_id=new_hex, take=lambda _: None)
    checks = service_checks(served, runner, workspace, "az://artifacts/")
    async with serving_health(checks, port=0, metrics=metrics) as port, httpx2.AsyncClient() as client:
        base = f"http://127.0.0.1:{port}"
        assert (await client.get(f"{base}/livez")).json() == {"status": "ok"}
        ready = await client.get(f"{base}/readyz")
        assert (ready.status_code, ready.json()) == (
            200,
            {"status": "ok", "checks": {"orchestrator": "ok", "workspace": "ok"}},
        )
        assert list(workspace.objects) == ["az://artifacts/_ready/ocr"]
        assert "lucius_service_attempts" in (await client.get(f"{base}/metrics")).text
        transport.lease_faults = 10_000
        await until(lambda: runner.status().lease_failures > 0)
        ready = await client.get(f"{base}/readyz")
        assert (ready.status_code, ready.json()["status"]) == (503, "failing")
        assert "leases failed" in ready.json()["checks"]["orchestrator"]
        assert (await client.get(f"{base}/livez")).status_code == 200
        head = await client.head(f"{base}/livez")
        assert (head.status_code, head.content) == (200, b"")
        other, posted = await client.get(f"{base}/v1/jobs"), await client.post(f"{base}/livez")
        assert (other.status_code, other.json()["code"]) == (404, "NOT_FOUND")
        assert (posted.status_code, posted.json()["code"]) == (405, "METHOD_NOT_ALLOWED")
        assert posted.headers["allow"] == "GET, HEAD"
        assert other.headers["content-type"] == "application/problem+json"
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    runner.stop()
    await running


async def test_an_address_that_is_taken_is_said_before_anything_runs() -> None:
    async with serving_health({}, port=0) as port:
        with pytest.raises(OSError, match="in use"):
            async with serving_health({}, port=port):
                pass
