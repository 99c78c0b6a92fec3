"""Leases over HTTP where Service Bus carries the directives: the first one in time, narrow ones quickly, an
empty answer in time, and a refusal only while the bus is away. Microsoft's SDK against the emulator."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.assembly.test_assembly import COMMAND, embedded
from tests.conformance.bus_setups import wall_clock_ms
from tests.conformance.service_bus_setup_sdk import SOCKETS_ARE_LEFT, a_bus, sockets_collected, topology

from lucius.api.app import make_app
from lucius.assembly import Embedded
from lucius.assembly.clock_and_ids import new_lease_id
from lucius.bus.service_bus.bus import ServiceBusBus
from lucius.contracts.envelope import parse_envelope
from lucius.core.refusal import Refused
from lucius.core.routing import LANES, lane_of
from lucius.jobs.submit import Submitted
from lucius.ledger.memory import MemoryStore
from lucius.sdk.lane_watch import AGAIN_SECONDS_MAX, HOLD_SECONDS
from lucius_lab.emulators.service_bus.server import ServiceBusEmulator, serve

WARM_DIRECTIVES = 5
WARM_SECONDS_MAX = 1.0
COLD_SECONDS_MAX = 10.0
LATE_SECONDS_MAX = 0.5  # an empty answer, beyond what the caller wanted to wait
AWAY_SECONDS_MAX = 5.0
CALM_SECONDS = 0.5

pytestmark = [pytest.mark.xdist_group("servicebus-faults"), SOCKETS_ARE_LEFT]


def _tenants() -> dict[int, str]:
    """One for each lane."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < LANES:
        found.setdefault(lane_of(f"tenant {number}"), f"tenant {number}")
        number += 1
    return found


TENANTS = _tenants()


class Setup:
    def __init__(self, emulator: ServiceBusEmulator, bus: ServiceBusBus, lucius: Embedded) -> None:
        self.emulator = emulator
        self.bus = bus
        self.lucius = lucius
        transport = httpx2.ASGITransport(make_app(lucius.deployment))
        self.client = httpx2.AsyncClient(transport=transport, base_url="http://house", timeout=60)

    async def submit(self, lane: int) -> str:
        parsed = parse_envelope({**COMMAND, "tenant_id": TENANTS[lane], "idempotency_key": new_lease_id()})
        assert not isinstance(parsed, Refused), parsed
        accepted = await self.lucius.deployment.submitter.submit(parsed)
        assert isinstance(accepted, Submitted)
        return accepted.job_id

    async def published(self, *lanes: int) -> list[str]:
        """Jobs whose directives are on the bus."""
        jobs = [await self.submit(lane) for lane in lanes]
        async with asyncio.timeout(30):
            for job_id in jobs:
                while (await self._step_state(job_id)) != "INITIATED":
                    await asyncio.sleep(0.02)
        return jobs

    async def _step_state(self, job_id: str) -> str:
        loaded = await self.lucius.deployment.ledger.load(job_id, fresh=True)
        assert loaded is not None
        return str(loaded.record.steps[0].state)

    async def lease(self, *, most: int = 1, wait_seconds: float = 0) -> tuple[httpx2.Response, float]:
        """The answer, and how long it took."""
        now = asyncio.get_running_loop().time
        asked_at = now()
        wish = {"service": "ocr", "max": most, "wait_seconds": wait_seconds}
        answer = await self.client.post("/v1/directives:lease", json=wish)
        return answer, now() - asked_at

    async def leased(self, **wish: Any) -> list[str]:
        answer, _ = await self.lease(**wish)
        assert answer.status_code == 200, answer.text
        return [one["jobId"] for one in answer.json()["directives"]]

    async def warm_up(self) -> None:
        """Until every lane is open."""
        (job_id,) = await self.published(0)
        assert await self.leased(wait_seconds=30) == [job_id]
        await asyncio.sleep(CALM_SECONDS)

    @property
    def reading(self) -> int:
        """How many lanes are open for the service."""
        return len(self.bus._receivers) - LANES  # the other ones are for replies


@asynccontextmanager
async def opened(folder: Path, **more: Any) -> AsyncIterator[Setup]:
    """`more`: whether there are sessions."""
    async with AsyncExitStack() as stack:
        scheme = topology(lock_ms=30_000, **more)
        emulator = await stack.enter_async_context(serve(now_ms=wall_clock_ms, topology=scheme))
        bus = await stack.enter_async_context(a_bus(emulator, **more))
        lucius = embedded(MemoryStore(), folder, bus=bus)
        await lucius.start({})
        setup = Setup(emulator, bus, lucius)
        stack.push_async_callback(lucius.stop)
        stack.push_async_callback(setup.client.aclose)
        yield setup


@pytest.fixture(autouse=True)
def no_sockets_left() -> Iterator[None]:
    with sockets_collected():
        yield


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[Setup]:
    async with opened(tmp_path) as setup:
        yield setup


async def test_the_first_lease_of_a_service_is_answered_within_its_wait(setup: Setup) -> None:
    (job_id,) = await setup.published(11)
    answer, seconds = await setup.lease(wait_seconds=COLD_SECONDS_MAX)
    assert answer.status_code == 200, answer.text
    assert [one["jobId"] for one in answer.json()["directives"]] == [job_id]
    assert seconds < COLD_SECONDS_MAX


async def test_a_first_lease_that_does_not_wait_is_empty_and_opens_for_the_next(setup: Setup) -> None:
    (job_id,) = await setup.published(11)
    answer, seconds = await setup.lease()
    assert answer.status_code == 200, answer.text
    assert seconds < LATE_SECONDS_MAX + WARM_SECONDS_MAX  # sixteen connections are being opened meanwhile
    await asyncio.sleep(COLD_SECONDS_MAX / 2)
    assert setup.reading == LANES  # though nobody asks
    taken = [one["jobId"] for one in answer.json()["directives"]] or await setup.leased()
    assert taken == [job_id]


async def test_narrow_leases_take_what_lies_on_several_lanes_at_once(setup: Setup) -> None:
    await setup.warm_up()
    jobs = await setup.published(1, 4, 7, 10, 13)
    now = asyncio.get_running_loop().time
    began, found = now(), list[str]()
    while len(found) < len(jobs) and now() - began < COLD_SECONDS_MAX:
        found += await setup.leased(wait_seconds=2)
    assert now() - began < WARM_SECONDS_MAX
    assert sorted(found) == sorted(jobs)


async def test_narrow_leases_by_a_slow_worker_count_few_deliveries(setup: Setup) -> None:
    """What was too many goes back once, and is then asked for alone."""
    await setup.warm_up()
    jobs = await setup.published(*range(LANES))
    found: list[str] = []
    counts: Counter[int] = Counter()
    for _ in range(4):
        found += await setup.leased(wait_seconds=5)
        await asyncio.sleep(HOLD_SECONDS + CALM_SECONDS)
    receivers = [await setup.bus.directives("ocr", lane) for lane in range(LANES)]
    for receiver in receivers:
        for delivery in await receiver.receive(messages_max=1, wait_ms=500):
            counts[delivery.delivery_count] += 1
            await receiver.give_back(delivery, delay_ms=0)
        await receiver.close()
    assert len(set(found)) == 4
    assert set(found) <= set(jobs)
    assert counts.total() == LANES - 4
    assert max(counts) <= 3  # went back once, perhaps was looked for once more, and this look


async def test_with_sessions_narrow_leases_take_each_directive_once(tmp_path: Path) -> None:
    async with opened(tmp_path, sessions=True) as setup:
        jobs = await setup.published(1, 4, 7, 10, 13)
        found: list[str] = []
        async with asyncio.timeout(30):
            while len(found) < len(jobs):
                found += await setup.leased(wait_seconds=COLD_SECONDS_MAX)
        assert sorted(found) == sorted(jobs)
        assert await setup.leased() == []


async def test_wide_leases_take_all_at_once(setup: Setup) -> None:
    await setup.warm_up()
    jobs = await setup.published(*range(LANES), *range(LANES))
    found: list[str] = []
    leases = 0
    while len(found) < len(jobs) and leases < 10:
        found += await setup.leased(most=100, wait_seconds=2)
        leases += 1
    assert sorted(found) == sorted(jobs)
    assert leases <= 4


async def test_where_nothing_is_the_answer_is_empty_and_in_time(setup: Setup) -> None:
    await setup.published(3)
    assert len(await setup.leased(wait_seconds=10)) == 1
    for wait_seconds in (0.0, 1.0, 10.0):
        answer, seconds = await setup.lease(wait_seconds=wait_seconds)
        assert (answer.status_code, answer.json()) == (200, {"directives": []})
        assert wait_seconds <= seconds < wait_seconds + LATE_SECONDS_MAX


async def test_a_waiting_lease_gets_what_comes_on_any_lane_at_once(setup: Setup) -> None:
    await setup.warm_up()
    for lane in (2, 9, 15):
        waiting = asyncio.create_task(setup.lease(wait_seconds=20))
        await asyncio.sleep(CALM_SECONDS)
        (job_id,) = await setup.published(lane)
        answer, seconds = await waiting
        assert [one["jobId"] for one in answer.json()["directives"]] == [job_id]
        assert seconds < CALM_SECONDS + WARM_SECONDS_MAX


@pytest.mark.parametrize("warm", [False, True])
async def test_while_the_bus_is_away_a_lease_is_refused_quickly_and_then_goes_on(
    setup: Setup, warm: bool
) -> None:
    if warm:
        await setup.warm_up()
    (job_id,) = await setup.published(5)
    await setup.emulator.down()
    answer, seconds = await setup.lease(wait_seconds=20)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert seconds < AWAY_SECONDS_MAX
    answer, seconds = await setup.lease(wait_seconds=20)
    assert answer.status_code == 503
    assert seconds < AGAIN_SECONDS_MAX + LATE_SECONDS_MAX  # it is known by now
    await setup.emulator.up()
    found: list[str] = []
    async with asyncio.timeout(30):
        while not found:
            answer, _ = await setup.lease(wait_seconds=5)
            if answer.status_code == 200:
                found = [one["jobId"] for one in answer.json()["directives"]]
            else:
                await asyncio.sleep(float(answer.headers["retry-after"]))
    assert found == [job_id]


async def test_lanes_of_a_service_that_nobody_asks_for_are_closed_and_opened_again(setup: Setup) -> None:
    setup.lucius._bus_wiring.leases._idle_seconds = CALM_SECONDS  # type: ignore[union-attr]
    await setup.warm_up()
    async with asyncio.timeout(10):
        while setup.reading:
            await asyncio.sleep(0.05)
    (job_id,) = await setup.published(8)
    assert await setup.leased(wait_seconds=COLD_SECONDS_MAX) == [job_id]
