"""A process that stood still: what came meanwhile is read before deadlines that passed meanwhile count."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from lucius.contracts.internal import ExpireReason, Verdict
from lucius.core.inputs import Ack
from lucius.core.states import Fact
from lucius.engines.outbox.sweeper import Sweeper
from lucius.ledger.indexes import Indexes
from lucius.ledger.watchers import Watchers
from lucius.progress.due import DueKeeper
from lucius.progress.heard import OPENING_MS, STOOD_STILL_EVERY_MS, STOOD_STILL_MS, Beat, Heard, JustOpened

if TYPE_CHECKING:
    from tests.rooms.invoker_house import House as InvokerHouse
    from tests.rooms.invoker_house import Workflows
    from tests.rooms.relay_house import House, MovingWorld, Worker, World
    from tests.rooms.virtual import virtual
else:
    from invoker_house import House as InvokerHouse
    from invoker_house import Workflows
    from relay_house import House, MovingWorld, Worker, World
    from virtual import virtual

FREEZE_MS = 120_000
LOOK_MS = 1_000
ACK_TIMEOUT_MS = 30_000


class Reconciler:
    """A sweeper as a process runs it, beside the house that owns the jobs."""

    def __init__(self, house: House, patience: Heard | JustOpened) -> None:
        self.house, self.world, self.patience = house, house.world, patience
        now_ms, indexes = self.world.now_ms, Indexes(house.ledger)
        keeper = DueKeeper(
            house.ledger,
            indexes,
            Watchers(),
            now_ms=now_ms,
            new_lease_id=self.world.new_lease_id,
            patience=patience,
        )
        self.sweeper = Sweeper(indexes, keeper, now_ms=now_ms, look_every_ms=LOOK_MS, beat=patience.beat)

    def stand_still(self, ms: int) -> None:
        """The clock goes on, and nothing of this process runs: the loop's time does not move either."""
        self.world.clock_ms += ms


Patient = Callable[..., Heard | JustOpened]


async def handed_out(house: House) -> tuple[str, Ack]:
    job_id = await house.submit()
    await house.look()
    directive = await Worker(house.world).take_one()
    ack = Ack(step_id=directive["stepId"], attempt_no=1, lease_id=directive["lease_id"], content=dict)
    return job_id, ack


async def settled(patience: Heard | JustOpened) -> None:
    """Its start is long ago, and its lanes were found empty."""
    await asyncio.sleep(15)
    if isinstance(patience, Heard):
        for lane in range(16):
            patience.caught_up(lane)


@pytest.mark.parametrize("patient", [JustOpened, Heard])
@virtual
async def test_an_answer_that_came_meanwhile_counts(patient: Patient) -> None:
    house = House(MovingWorld(), hints=False)
    reconciler = Reconciler(house, patient(now_ms=house.world.now_ms))
    running = asyncio.create_task(reconciler.sweeper.run())
    await settled(reconciler.patience)
    job_id, ack = await handed_out(house)
    await asyncio.sleep(3)
    reconciler.stand_still(FREEZE_MS)
    await asyncio.sleep(OPENING_MS / 1000 - 1)
    assert Fact.STEP_RETRYING not in await house.facts(job_id)
    assert (await house.apply(job_id, ack)).outcome == "applied"
    running.cancel()


@pytest.mark.parametrize("patient", [JustOpened, Heard])
@virtual
async def test_without_an_answer_the_attempt_is_given_up_soon_after(patient: Patient) -> None:
    house = House(MovingWorld(), hints=False)
    reconciler = Reconciler(house, patient(now_ms=house.world.now_ms))
    running = asyncio.create_task(reconciler.sweeper.run())
    await settled(reconciler.patience)
    job_id, _ = await handed_out(house)
    await asyncio.sleep(3)
    reconciler.stand_still(FREEZE_MS)
    await asyncio.sleep(10 + 2 * LOOK_MS / 1000)
    assert Fact.STEP_RETRYING in await house.facts(job_id)
    running.cancel()


@pytest.mark.parametrize("patient", [JustOpened, Heard])
@virtual
async def test_a_deadline_that_passes_while_the_process_runs_waits_for_nobody(patient: Patient) -> None:
    house = House(MovingWorld(), hints=False)
    reconciler = Reconciler(house, patient(now_ms=house.world.now_ms))
    running = asyncio.create_task(reconciler.sweeper.run())
    await settled(reconciler.patience)
    job_id, _ = await handed_out(house)
    await asyncio.sleep((ACK_TIMEOUT_MS + LOOK_MS) / 1000)
    assert Fact.STEP_RETRYING in await house.facts(job_id)
    running.cancel()


async def test_a_workflow_that_asks_first_is_told_to_come_again() -> None:
    """The invoker's HTTP server may run before its sweeper does."""
    house = InvokerHouse(World(), Workflows())
    for lane in range(16):
        house.heard.caught_up(lane)
    job_id = await house.submit()
    assert (await house.attempt(job_id)).verdict is Verdict.GO
    house.heard.beat.ran(again_in_ms=LOOK_MS)
    house.world.clock_ms += FREEZE_MS
    told = await house.expire(job_id, ExpireReason.ACK_TIMEOUT)
    assert told.verdict is Verdict.WAIT
    for _ in range(10):
        house.world.clock_ms += LOOK_MS
        house.heard.beat.ran(again_in_ms=LOOK_MS)
    told = await house.expire(job_id, ExpireReason.ACK_TIMEOUT)
    assert told.verdict is Verdict.GO


class Told:
    def __init__(self) -> None:
        self.now_ms, self.times = 0, 0
        self.beat = Beat(self.count, now_ms=lambda: self.now_ms)

    def count(self) -> None:
        self.times += 1

    def after(self, ms: int) -> int:
        self.now_ms += ms
        self.beat.look()
        return self.times


def test_a_process_that_never_said_when_it_runs_again_misses_nothing() -> None:
    assert Told().after(1_000_000) == 0


def test_it_is_told_once_of_each_standstill() -> None:
    told = Told()
    told.beat.ran(again_in_ms=500)
    assert told.after(500 + STOOD_STILL_MS) == 0
    told.beat.ran()
    assert told.after(60_000) == 1
    assert told.after(0) == 1
    assert told.after(60_000) == 2


def test_a_process_that_is_late_all_the_time_counts_deadlines_at_last() -> None:
    """Each of these is too short for a standstill, and too long for a loop that has nothing to do."""
    told = Told()
    told.beat.ran()
    lateness_ms = 2 * STOOD_STILL_MS
    times = [told.after(lateness_ms) for _ in range(3 * STOOD_STILL_EVERY_MS // lateness_ms)]
    assert times[-1] <= 3
