"""The outbox engine and the sdk over Service Bus, while every connection is cut each five seconds."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest
from tests.conformance.bus_setups import wall_clock_ms
from tests.conformance.service_bus_setup_sdk import SOCKETS_ARE_LEFT, sockets_collected, topology
from tests.engines.outbox.test_outbox_over_nats import (
    POLICY,
    SERVICES,
    STEPS,
    Done,
    NatsWorld,
    ended,
    serving,
    sweeping,
)
from tests.sizes import size
from tests.support.publisher_setup import Deployment

from lucius.bus.nats.bus import NatsBus
from lucius.bus.service_bus.bus import ServiceBusBus
from lucius.bus.service_bus.connection import NamespaceAccess
from lucius.bus.service_bus.names import ServiceBusLimits
from lucius_lab.emulators.service_bus.server import ServiceBusEmulator, serve

DROP_EVERY_SECONDS = 5.0
DROPS = size(2, 12)
LOCK_MS = 5_000
TENANTS = 4  # whose lanes are at work
JOBS_MIN = 21  # however slow the machine is

pytestmark = [pytest.mark.xdist_group("servicebus-faults"), SOCKETS_ARE_LEFT]


@pytest.fixture(autouse=True)
def no_sockets_left() -> Iterator[None]:
    with sockets_collected():
        yield


@pytest.mark.parametrize("sessions", [False, True])
async def test_no_job_is_lost_and_none_is_done_twice(sessions: bool) -> None:
    async with AsyncExitStack() as stack:
        emulator = await stack.enter_async_context(
            serve(now_ms=wall_clock_ms, topology=topology(lock_ms=LOCK_MS, sessions=sessions))
        )
        # A connection for the orchestrator and one for services, as if they were processes of their own.
        ours, theirs = [await _opened(stack, emulator, sessions=sessions) for _ in range(2)]
        world, done = NatsWorld(ours), Done()
        deployment = Deployment(world, policy=POLICY)
        for context in (deployment.consuming(), deployment.relaying(), sweeping(deployment)):
            await stack.enter_async_context(context)
        for service in SERVICES:
            await stack.enter_async_context(serving(theirs, world, done, service))
        over = asyncio.Event()
        submitting = asyncio.create_task(_submit(deployment, over))
        for _ in range(DROPS):
            await asyncio.sleep(DROP_EVERY_SECONDS)
            emulator.drop()
        over.set()
        jobs = await submitting
        states = await ended(deployment, jobs)
        assert states == {("SUCCEEDED",) * (STEPS + 1): len(jobs)}
        assert len(jobs) >= JOBS_MIN
    assert emulator.dropped > DROPS * 16
    assert done.side_by_side == 1
    assert max(done.attempts.values()) == 1
    assert len({(job, step) for job, step, _, _ in done.attempts}) == len(jobs) * STEPS


async def _submit(deployment: Deployment, over: asyncio.Event) -> list[str]:
    jobs: list[str] = []
    while not over.is_set() or len(jobs) < JOBS_MIN:
        jobs.append(await deployment.submit("OCR_EMBEDDING_SIS", tenant_id=f"tenant_{len(jobs) % TENANTS}"))
        await asyncio.sleep(0.2)
    return jobs


async def _opened(stack: AsyncExitStack, emulator: ServiceBusEmulator, *, sessions: bool) -> Any:
    bus = await ServiceBusBus.open(
        NamespaceAccess(connection_string=emulator.connection_string),
        now_ms=wall_clock_ms,
        limits=ServiceBusLimits(sessions=sessions),
    )
    stack.push_async_callback(bus.close)
    return cast("NatsBus", bus)  # the scene asks no more of it than the port has
