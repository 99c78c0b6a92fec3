"""The ledger over a wire that fails, and with processes that die at their writes: real requests to Azurite.

The suites beside this one play every operation at every write on the in-process store that refuses what
Azure refuses. Here each operation is played on Azurite itself, with a process that dies at one of its writes,
on one layout or the other; and a day's work goes through a proxy that fails a fifth of all calls.
"""

import asyncio
import random
from itertools import cycle
from pathlib import Path

import pytest
from tests.conformance.azure_faults import Call, Fault, fault_proxy
from tests.conformance.azurite_setup import azurite, open_store
from tests.conformance.ledger_checks import check_always, check_at_rest, run_out
from tests.conformance.ledger_plays import PLAYS
from tests.conformance.ledger_setup import LAYOUTS, Deployment, Died, Trial, World, opened_world, submit

from lucius.core.states import JobState
from lucius.ledger.job_ledger import LayoutName
from lucius.ledger.memory import MemoryStore
from lucius.ledger.store import StoreError

pytestmark = pytest.mark.xdist_group("azurite")
JOBS = 12
FAILED_SHARE = 0.2
ASKED_MAX = 20


@pytest.mark.parametrize(("name", "layout"), list(zip(PLAYS, cycle(LAYOUTS), strict=False)))
async def test_a_process_dies_at_one_of_its_writes(name: str, layout: LayoutName, tmp_path: Path) -> None:
    play = PLAYS[name]
    rehearsal = World(MemoryStore(spans=False), layout)
    act = await play.prepare(rehearsal)
    deployment = rehearsal.deployment()
    await act(deployment)
    # Which write it is differs between operations and layouts, and is the same each time.
    chance = random.Random(f"{name} {layout.value}")
    number, after = chance.randrange(len(deployment.store.commits)), chance.random() < 0.5
    async with opened_world("azurite", layout, tmp_path) as world:
        act = await play.prepare(world)
        with pytest.raises(Died):
            await act(world.deployment(Trial(at=number, dies_before=not after, dies_after=after)))
        await check_always(world)
        await run_out(world)
        records = await check_at_rest(world)
        assert {record.job.state for record in records.values()} <= play.ends


class Fails:
    """A fifth of all calls, by a number that is the same each time."""

    def __init__(self, number: int) -> None:
        self._chance = random.Random(number)
        self.count = 0

    def __call__(self, _: Call) -> Fault | None:
        if self._chance.random() >= FAILED_SHARE:
            return None
        self.count += 1
        kinds = [kind for kind in Fault if kind is not Fault.LATE]
        # Half of them are what a throttled account says.
        return Fault.BUSY if self._chance.random() < 0.5 else self._chance.choice(kinds)


async def _until_it_works(deployment: Deployment, number: int) -> str:
    """A client who asks again until he gets an answer."""
    for _ in range(ASKED_MAX):
        try:
            return await submit(deployment, number, request_type="OCR_EMBEDDING", key=f"k{number}")
        except StoreError:
            continue
    raise AssertionError("nobody answered")


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_throttled_store_loses_no_job_and_doubles_none(layout: LayoutName) -> None:
    async with fault_proxy(azurite().port) as proxy:
        store = await open_store(connection_string=proxy.connection_string)
        world = World(store, layout, frugal=True)
        fails = proxy.choose = Fails(11)
        deployments = [world.deployment() for _ in range(3)]
        made = await asyncio.gather(*(_until_it_works(deployments[n % 3], n) for n in range(JOBS)))
        assert len(set(made)) == JOBS
        again = await asyncio.gather(*(_until_it_works(deployments[(n + 1) % 3], n) for n in range(JOBS)))
        assert again == made
        await run_out(world)
        assert fails.count > JOBS
        proxy.once()
        records = await check_at_rest(world)
        assert set(records) == set(made)
        for record in records.values():
            assert record.job.state is JobState.SUCCEEDED
            assert record.job.attempts_total == 2  # one a step: nothing was handed out twice, or lost
        await store.close()
