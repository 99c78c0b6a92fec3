"""The outbox engine and the sdk over a real NATS server that is killed in the middle of the work."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from tests.sdk.test_sdk_runner import NoWorkspace
from tests.support.publisher_setup import Deployment, World

from lucius.bus.memory import MemoryBus
from lucius.bus.nats.bus import NatsBus
from lucius.bus.nats.names import NatsLimits
from lucius.bus.nats.server import NatsServer, free_port
from lucius.core.model import StepPolicy
from lucius.sdk import Runner, Service, Task
from lucius.sdk.bus_transport import BusTransport

JOBS = 200
SERVICES = ("ocr", "embedding", "sis")
STEPS = len(SERVICES)
POLICY = StepPolicy(
    max_attempts=20,
    ack_timeout_ms=10_000,
    backoff_publish_ms=(200,),
    backoff_ack_ms=(200,),
    backoff_result_ms=(200,),
)

pytestmark = pytest.mark.xdist_group("nats")


class NatsWorld(World):
    """The clock is the wall's, since the server has one of its own."""

    def __init__(self, bus: NatsBus) -> None:
        super().__init__()
        self.bus = cast("MemoryBus", bus)  # a deployment asks no more of it than the port has

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class Done:
    """What the services did: how often each attempt, and whether ever twice at the same time."""

    def __init__(self) -> None:
        self.attempts: Counter[tuple[str, str, int, str]] = Counter()
        self.under_way: Counter[tuple[str, str, int, str]] = Counter()
        self.side_by_side = 0

    async def handler(self, task: Task) -> dict[str, Any]:
        key = task.directive.key
        self.attempts[key] += 1
        self.under_way[key] += 1
        self.side_by_side = max(self.side_by_side, self.under_way[key])
        await asyncio.sleep(0.005)
        self.under_way[key] -= 1
        return {"uri": f"s3://results/{task.directive.step_id}"}


@asynccontextmanager
async def serving(bus: NatsBus, world: World, done: Done, service: str) -> AsyncIterator[None]:
    async with BusTransport(bus, service, now_ms=world.now_ms) as transport:
        runner = Runner(
            Service(service, done.handler), transport, NoWorkspace(), now_ms=world.now_ms, concurrency=16
        )
        running = asyncio.create_task(runner.run())
        try:
            yield
        finally:
            runner.stop()
            async with asyncio.timeout(10):
                await running


@asynccontextmanager
async def sweeping(deployment: Deployment) -> AsyncIterator[None]:
    running = asyncio.create_task(deployment.sweeper.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.wait({running})


async def test_every_job_ends_well_though_the_server_is_killed(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats", port=free_port())
    server.start()
    await server.ready()
    async with AsyncExitStack() as stack:
        stack.callback(server.kill)
        limits = NatsLimits(lock_ms=3_000)
        # A connection for the orchestrator and two for services, as if they were processes of their own.
        buses = [await _opened(stack, server, limits) for _ in range(3)]
        world, done = NatsWorld(buses[0]), Done()
        deployment = Deployment(world, policy=POLICY)
        for context in (deployment.consuming(), deployment.relaying(), sweeping(deployment)):
            await stack.enter_async_context(context)
        for bus in buses[1:]:
            for service in SERVICES:
                await stack.enter_async_context(serving(bus, world, done, service))
        jobs = [
            await deployment.submit("OCR_EMBEDDING_SIS", tenant_id=f"tenant_{number % 40}")
            for number in range(JOBS)
        ]
        await _until(lambda: len(done.attempts) > JOBS)
        server.kill()
        await asyncio.sleep(0.5)  # some publishes and replies meet nobody
        server.start()
        await server.ready()
        states = await ended(deployment, jobs)
        assert states == {("SUCCEEDED",) * (STEPS + 1): JOBS}
    assert done.side_by_side == 1
    assert len({(job, step) for job, step, _, _ in done.attempts}) == JOBS * STEPS


async def _opened(stack: AsyncExitStack, server: NatsServer, limits: NatsLimits) -> NatsBus:
    bus = await NatsBus.open([server.url], now_ms=lambda: time.time_ns() // 1_000_000, limits=limits)
    stack.push_async_callback(bus.close)
    return bus


async def _until(true: Any) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.01)


async def ended(deployment: Deployment, jobs: list[str]) -> Counter[tuple[str, ...]]:
    async with asyncio.timeout(120):
        for job_id in jobs:
            while (await deployment.record(job_id)).job.state not in ("SUCCEEDED", "FAILED_FINAL"):
                await asyncio.sleep(0.02)
    return Counter([await deployment.states(job_id) for job_id in jobs])
