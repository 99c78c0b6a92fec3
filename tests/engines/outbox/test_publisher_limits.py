"""The publisher where its service is limited: what waits stays in the ledger, and leaves in its turn."""

import asyncio
from typing import Any

import msgspec
from tests.support.publisher_setup import Deployment, Message, MovingWorld, Worker, ack
from tests.support.virtual_time import virtual

from lucius.core.flow import Rate, ServiceLimits
from lucius.core.inputs import Result, ResultStatus


def _success(directive: Message) -> Result:
    return Result(
        step_id=directive["stepId"],
        attempt_no=directive["attempt_no"],
        lease_id=directive["lease_id"],
        content=dict,
        status=ResultStatus.SUCCEEDED,
    )


@virtual
async def test_no_more_directives_are_out_than_the_service_may_have() -> None:
    deployment = Deployment(MovingWorld())
    deployment.registry.limits["ocr"] = ServiceLimits(concurrency=2)
    worker = Worker(deployment.world)
    async with deployment.relaying():
        jobs = [await deployment.submit() for _ in range(4)]
        await asyncio.sleep(3)
        taken = await worker.take()
        assert len(taken) == 2
        waiting = [job_id for job_id in jobs if (await deployment.states(job_id))[1] == "DISPATCHING"]
        assert len(waiting) == 2
        record = await deployment.record(waiting[0])
        assert record.steps[0].lease_expires_at_ms is None, "no clock runs"
        directive = msgspec.json.decode(taken[0].body)
        await deployment.apply(directive["jobId"], ack(directive))
        await asyncio.sleep(1)
        assert await worker.take() == [], "an ACK gives no place up"
        await deployment.apply(directive["jobId"], _success(directive))
        await asyncio.sleep(0.1)
        assert len(await worker.take()) == 1


@virtual
async def test_directives_leave_at_the_rate_of_their_service() -> None:
    deployment = Deployment(MovingWorld())
    deployment.registry.limits["ocr"] = ServiceLimits(rate=Rate(tokens=10, per_ms=1_000, burst=1))
    worker = Worker(deployment.world)
    async with deployment.relaying():
        for _ in range(40):
            await deployment.submit()
        await asyncio.sleep(2)
        assert 18 <= len(await worker.take()) <= 22


@virtual
async def test_what_comes_too_late_to_be_published_asks_again() -> None:
    """A publisher that stood still after its grants publishes no more at once than its rate and one burst."""
    deployment = Deployment(MovingWorld())
    deployment.registry.limits["ocr"] = ServiceLimits(
        concurrency=50, rate=Rate(tokens=4, per_ms=1_000, burst=2)
    )
    publisher, goes_on, left_at = deployment.publisher, asyncio.Event(), list[float]()
    load, publish, now = (
        publisher._load_waiting,
        deployment.world.bus.publish_directive,
        asyncio.get_running_loop().time,
    )

    async def stands_still(*args: Any) -> Any:
        await goes_on.wait()
        return await load(*args)

    async def publish_directive(directive: Any) -> None:
        left_at.append(now())
        await publish(directive)

    publisher._load_waiting = stands_still  # type: ignore[method-assign,assignment]
    deployment.world.bus.publish_directive = publish_directive  # type: ignore[method-assign]
    async with deployment.relaying():
        for number in range(32):  # tenants in several lanes, each of which asks by itself
            await deployment.submit(tenant_id=f"tenant {number}")
        await asyncio.sleep(5)
        goes_on.set()
        await asyncio.sleep(9)
    assert len(left_at) == 32
    assert max(sum(first <= each < first + 1 for each in left_at) for first in left_at) <= 4 + 2


@virtual
async def test_a_directive_that_the_bus_refuses_holds_no_place() -> None:
    deployment = Deployment(MovingWorld())
    deployment.registry.limits["ocr"] = ServiceLimits(concurrency=1)
    refused = iter([True])

    async def refuse_first(*_: object) -> None:
        if next(refused, False):
            raise ValueError("the message is too large")

    worker, publish = Worker(deployment.world), deployment.world.bus.publish_directive

    async def publish_directive(directive: object) -> None:
        await refuse_first()
        await publish(directive)  # type: ignore[arg-type]

    deployment.world.bus.publish_directive = publish_directive  # type: ignore[method-assign]
    async with deployment.relaying():
        await deployment.submit()
        await deployment.submit()
        await asyncio.sleep(2)
        assert len(await worker.take()) == 1
