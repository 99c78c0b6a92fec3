"""A process that stood still: what came meanwhile is read before deadlines that passed meanwhile count."""

import asyncio
from collections.abc import Callable, Sequence

import pytest
from tests.support.invoker_setup import Deployment as InvokerDeployment
from tests.support.invoker_setup import Workflows
from tests.support.publisher_setup import Deployment, MovingWorld, Worker, World
from tests.support.virtual_time import virtual

from lucius.assembly.kernel import Kernel
from lucius.contracts.internal import Verdict
from lucius.core.inputs import Ack, ExpireReason, HandOut
from lucius.core.states import Fact
from lucius.engines.outbox.sweeper import Sweeper
from lucius.jobs.reply_backlog import (
    OPENING_MS,
    STOOD_STILL_EVERY_MS,
    STOOD_STILL_MS,
    ReplyBacklog,
    StandstillClock,
    StartupGrace,
)
from lucius.jobs.writer import Applied
from lucius.ledger.store import Op

FREEZE_MS = 120_000
LOOK_MS = 1_000
ACK_TIMEOUT_MS = 30_000


class Reconciler:
    """A sweeper as a process runs it, beside the deployment that owns the jobs."""

    def __init__(
        self, deployment: Deployment, grace: ReplyBacklog | StartupGrace, *, look_ms: int = LOOK_MS
    ) -> None:
        self.deployment, self.world, self.grace = deployment, deployment.world, grace
        world = self.world
        self.kernel = kernel = Kernel(
            world.store, deployment.kernel.options, now_ms=world.now_ms, ids=world, grace=grace
        )
        self.sweeper = Sweeper(
            kernel.indexes, kernel.due_handler, now_ms=world.now_ms, look_every_ms=look_ms, beat=grace.beat
        )

    def stand_still(self, ms: int) -> None:
        """The clock goes on, and nothing of this process runs: the loop's time does not move either."""
        self.world.clock_ms += ms


class SlowWorld(MovingWorld):
    commit_ms = 0

    def _before_commit(self, ops: Sequence[Op]) -> None:
        super()._before_commit(ops)
        self.clock_ms += self.commit_ms


Patient = Callable[..., ReplyBacklog | StartupGrace]


async def handed_out(deployment: Deployment) -> tuple[str, Ack]:
    job_id = await deployment.submit()
    await deployment.look()
    directive = await Worker(deployment.world).take_one()
    ack = Ack(step_id=directive["stepId"], attempt_no=1, lease_id=directive["lease_id"], content=dict)
    return job_id, ack


async def settled(grace: ReplyBacklog | StartupGrace) -> None:
    """Its start is long ago, and its lanes were found empty."""
    await asyncio.sleep(15)
    if isinstance(grace, ReplyBacklog):
        for lane in range(16):
            grace.caught_up(lane)


@pytest.mark.parametrize("patient", [StartupGrace, ReplyBacklog])
@virtual
async def test_an_answer_that_came_meanwhile_counts(patient: Patient) -> None:
    deployment = Deployment(MovingWorld(), hints=False)
    reconciler = Reconciler(deployment, patient(now_ms=deployment.world.now_ms))
    running = asyncio.create_task(reconciler.sweeper.run())
    await settled(reconciler.grace)
    job_id, ack = await handed_out(deployment)
    await asyncio.sleep(3)
    reconciler.stand_still(FREEZE_MS)
    await asyncio.sleep(OPENING_MS / 1000 - 1)
    assert Fact.STEP_RETRYING not in await deployment.facts(job_id)
    assert (await deployment.apply(job_id, ack)).outcome == "applied"
    running.cancel()


@pytest.mark.parametrize("patient", [StartupGrace, ReplyBacklog])
@virtual
async def test_without_an_answer_the_attempt_is_given_up_soon_after(patient: Patient) -> None:
    deployment = Deployment(MovingWorld(), hints=False)
    reconciler = Reconciler(deployment, patient(now_ms=deployment.world.now_ms))
    running = asyncio.create_task(reconciler.sweeper.run())
    await settled(reconciler.grace)
    job_id, _ = await handed_out(deployment)
    await asyncio.sleep(3)
    reconciler.stand_still(FREEZE_MS)
    await asyncio.sleep(10 + 2 * LOOK_MS / 1000)
    assert Fact.STEP_RETRYING in await deployment.facts(job_id)
    running.cancel()


@pytest.mark.parametrize("patient", [StartupGrace, ReplyBacklog])
@virtual
async def test_a_deadline_that_passes_while_the_process_runs_waits_for_nobody(patient: Patient) -> None:
    deployment = Deployment(MovingWorld(), hints=False)
    reconciler = Reconciler(deployment, patient(now_ms=deployment.world.now_ms))
    running = asyncio.create_task(reconciler.sweeper.run())
    await settled(reconciler.grace)
    job_id, _ = await handed_out(deployment)
    await asyncio.sleep((ACK_TIMEOUT_MS + LOOK_MS) / 1000)
    assert Fact.STEP_RETRYING in await deployment.facts(job_id)
    running.cancel()


@pytest.mark.parametrize("patient", [StartupGrace, ReplyBacklog])
@virtual
async def test_a_start_that_takes_long_is_a_standstill(patient: Patient) -> None:
    """It was made, and then counted slots, or was frozen, before its sweeper ran for the first time."""
    deployment = Deployment(MovingWorld(), hints=False)
    job_id, ack = await handed_out(deployment)
    await asyncio.sleep(3)
    reconciler = Reconciler(deployment, patient(now_ms=deployment.world.now_ms))
    reconciler.stand_still(FREEZE_MS)
    running = asyncio.create_task(reconciler.sweeper.run())
    await asyncio.sleep(OPENING_MS / 1000 - 1)
    assert Fact.STEP_RETRYING not in await deployment.facts(job_id)
    assert (await deployment.apply(job_id, ack)).outcome == "applied"
    running.cancel()


@pytest.mark.parametrize("patient", [StartupGrace, ReplyBacklog])
@virtual
async def test_what_is_committed_long_after_it_was_decided_leaves_with_time_to_answer(
    patient: Patient,
) -> None:
    """The standstill is shorter than the sweeper's next look is away: only the commit shows it."""
    world = SlowWorld()
    deployment = Deployment(world, hints=False)
    reconciler = Reconciler(deployment, patient(now_ms=world.now_ms), look_ms=FREEZE_MS)
    running = asyncio.create_task(reconciler.sweeper.run())
    await settled(reconciler.grace)
    job_id = await deployment.submit()
    outbox = (await deployment.record(job_id)).outbox
    assert outbox is not None
    given = HandOut(step_id=outbox.step_id, attempt_no=1, lease_id=outbox.lease_id, picked_up=False)
    world.commit_ms = ACK_TIMEOUT_MS
    assert isinstance(await reconciler.kernel.writer.apply(job_id, given), Applied)
    world.commit_ms = 0
    await reconciler.sweeper.sweep()
    await asyncio.sleep(1)
    assert Fact.STEP_RETRYING not in await deployment.facts(job_id)
    reconciler.grace.beat.ran(again_in_ms=10_000)
    await asyncio.sleep(10)
    await reconciler.sweeper.sweep()
    assert Fact.STEP_RETRYING in await deployment.facts(job_id), "without an answer it is given up soon after"
    running.cancel()


async def test_a_workflow_that_asks_first_is_told_to_come_again() -> None:
    """The invoker's HTTP server may run before its sweeper does."""
    deployment = InvokerDeployment(World(), Workflows())
    for lane in range(16):
        deployment.reply_backlog.caught_up(lane)
    job_id = await deployment.submit()
    assert (await deployment.attempt(job_id)).verdict is Verdict.GO
    deployment.reply_backlog.beat.ran(again_in_ms=LOOK_MS)
    deployment.world.clock_ms += FREEZE_MS
    answer = await deployment.expire(job_id, ExpireReason.ACK_TIMEOUT)
    assert answer.verdict is Verdict.WAIT
    for _ in range(10):
        deployment.world.clock_ms += LOOK_MS
        deployment.reply_backlog.beat.ran(again_in_ms=LOOK_MS)
    answer = await deployment.expire(job_id, ExpireReason.ACK_TIMEOUT)
    assert answer.verdict is Verdict.GO


class StandstillCount:
    def __init__(self) -> None:
        self.now_ms, self.standstills = 0, 0
        self.beat = StandstillClock(self.count, now_ms=lambda: self.now_ms)

    def count(self) -> None:
        self.standstills += 1

    def after(self, ms: int) -> int:
        self.now_ms += ms
        self.beat.look()
        return self.standstills


def test_a_process_that_never_said_when_it_runs_again_misses_nothing() -> None:
    assert StandstillCount().after(1_000_000) == 0


def test_it_is_told_once_of_each_standstill() -> None:
    count = StandstillCount()
    count.beat.ran(again_in_ms=500)
    assert count.after(500 + STOOD_STILL_MS) == 0
    count.beat.ran()
    assert count.after(60_000) == 1
    assert count.after(0) == 1
    assert count.after(60_000) == 2


def test_a_store_that_is_slow_all_the_time_is_no_standstill() -> None:
    count = StandstillCount()
    for _ in range(3 * STOOD_STILL_EVERY_MS // 5_000):
        decided_ms = count.now_ms
        count.now_ms += 5_000
        count.beat.committed(decided_ms)
    assert count.standstills <= 3


def test_a_process_that_is_late_all_the_time_counts_deadlines_at_last() -> None:
    """Each of these is too short for a standstill, and too long for a loop that has nothing to do."""
    count = StandstillCount()
    count.beat.ran()
    lateness_ms = 2 * STOOD_STILL_MS
    standstills = [count.after(lateness_ms) for _ in range(3 * STOOD_STILL_EVERY_MS // lateness_ms)]
    assert standstills[-1] <= 3
