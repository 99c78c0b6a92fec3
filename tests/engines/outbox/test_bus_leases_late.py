"""A poller is not kept by a bus that says nothing, and what the bus does later gets lost for nobody."""

import asyncio
from typing import Any

import pytest
from tests.engines.outbox.test_bus_leases import leased, leases_of, published
from tests.support.publisher_setup import LANE, Deployment, World
from tests.support.virtual_time import virtual

from lucius.core.refusal import Code, Refused
from lucius.engines.outbox.bus_leases import LATE_SECONDS_MAX, BusLeases

SILENT_SECONDS = 15.0
LONG_SECONDS = 60.0


async def seconds_until_refused(leases: BusLeases, wait_ms: int) -> float:
    now = asyncio.get_running_loop().time
    asked_at = now()
    refused = await leases.lease("ocr", directives_max=1, wait_ms=wait_ms)
    assert isinstance(refused, Refused), refused
    assert (refused.code, refused.retry_after_seconds) == (Code.SYSTEM_SATURATED, 1)
    return now() - asked_at


async def silence(deployment: Deployment, verb: str, patch: pytest.MonkeyPatch) -> None:
    """The bus answers this verb late, though it has done by then what it was asked for."""
    receiver = await deployment.world.bus.directives("ocr", LANE)
    owner = deployment.world.bus if verb == "directives" else type(receiver)
    does = getattr(owner, verb)

    async def slow(*args: Any, **kwargs: Any) -> Any:
        done = await does(*args, **kwargs)
        await asyncio.sleep(SILENT_SECONDS)
        return done

    patch.setattr(owner, verb, slow)


@pytest.mark.parametrize("verb", ["directives", "receive", "complete"])
@virtual
async def test_a_silent_bus_is_said_to_be_so_when_the_wait_is_over(verb: str) -> None:
    deployment = Deployment(World())
    leases = leases_of(deployment)
    job_id = await published(deployment)
    with pytest.MonkeyPatch.context() as patch:
        await silence(deployment, verb, patch)
        for wait_ms in (1_000, 0):
            assert await seconds_until_refused(leases, wait_ms) <= wait_ms / 1000 + LATE_SECONDS_MAX + 0.01
            if verb != "directives":
                break  # it was taken
    await asyncio.sleep(SILENT_SECONDS)
    if verb == "receive":
        deployment.world.clock_ms += 31_000  # its lock runs out: nobody heard that it was taken
    (directive,) = await leased(leases)
    assert (directive["jobId"], directive["attempt_no"]) == (job_id, 1)
    assert await leased(leases, wait_ms=0) == []
    await leases.end()


@virtual
async def test_an_end_waits_for_what_goes_on_for_pollers_who_were_sent_home() -> None:
    deployment = Deployment(World())
    leases = leases_of(deployment)
    await published(deployment)
    with pytest.MonkeyPatch.context() as patch:
        await silence(deployment, "complete", patch)
        await seconds_until_refused(leases, 0)
        leases.close()
        async with asyncio.timeout(LONG_SECONDS):
            await leases.end()
    assert len(asyncio.all_tasks()) == 1


@virtual
async def test_a_silent_ledger_keeps_nobody_either(monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = Deployment(World())
    leases = leases_of(deployment)

    async def silent() -> frozenset[str]:
        await asyncio.sleep(LONG_SECONDS)
        return frozenset({"ocr"})

    monkeypatch.setattr(leases._services, "all", silent)
    assert await seconds_until_refused(leases, 1_000) <= 1 + LATE_SECONDS_MAX + 0.01
    await leases.end()
