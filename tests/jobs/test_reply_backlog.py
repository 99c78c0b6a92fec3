"""How long deadlines wait for answers: on a lane that never falls silent, and beside a ledger that fails now
and then."""

import asyncio

from tests.support.publisher_setup import LANE, Deployment, MovingWorld, Worker
from tests.support.virtual_time import virtual

from lucius.core.model import JobRecord
from lucius.jobs.reply_backlog import ANSWER_GRACE_MS, OPENING_MS, DeadlineGrace, StartupGrace

PATIENCE_SECONDS = ANSWER_GRACE_MS / 1000
OVERDUE_SECONDS = 60


async def overdue(deployment: Deployment) -> JobRecord:
    """A job whose ACK should have come."""
    job_id = await deployment.submit()
    await deployment.look()
    await Worker(deployment.world).take_one()
    loaded = await deployment.ledger.load(job_id)
    assert loaded is not None
    await asyncio.sleep(OVERDUE_SECONDS)
    return loaded.record


def waits(deployment: Deployment, reply_backlog: DeadlineGrace, record: JobRecord) -> bool:
    return reply_backlog.puts_off(record, deployment.world.now_ms())


@virtual
async def test_on_a_lane_that_is_never_silent_an_outage_has_its_time() -> None:
    deployment = Deployment(MovingWorld(), hints=False)
    record, reply_backlog = await overdue(deployment), deployment.reply_backlog
    reply_backlog.still_read(LANE)
    assert not waits(deployment, reply_backlog, record), "its first time was over long ago"
    reply_backlog.behind(LANE)
    assert waits(deployment, reply_backlog, record)
    await asyncio.sleep(PATIENCE_SECONDS - 1)
    reply_backlog.still_read(LANE)
    assert waits(deployment, reply_backlog, record)
    await asyncio.sleep(2)
    assert not waits(deployment, reply_backlog, record)


@virtual
async def test_a_lane_that_is_read_while_the_ledger_is_away_has_not_caught_up() -> None:
    deployment = Deployment(MovingWorld(), hints=False)
    record, reply_backlog = await overdue(deployment), deployment.reply_backlog
    reply_backlog.behind(LANE)
    reply_backlog.ledger_away()
    await asyncio.sleep(2 * PATIENCE_SECONDS)
    reply_backlog.still_read(LANE)
    assert waits(deployment, reply_backlog, record)


@virtual
async def test_deadlines_that_cannot_be_read_now_and_then_do_not_stop_the_clock() -> None:
    """A failure takes as much time as the deadlines could not be read, and no more."""
    deployment = Deployment(MovingWorld(), hints=False)
    record, reply_backlog = await overdue(deployment), deployment.reply_backlog
    reply_backlog.still_read(LANE)
    reply_backlog.ledger_read(LANE)
    reply_backlog.behind(LANE)
    for second in range(round(2 * PATIENCE_SECONDS)):
        await asyncio.sleep(1)
        (reply_backlog.ledger_read if second % 3 else reply_backlog.ledger_failed)(LANE)
    assert not waits(deployment, reply_backlog, record)


@virtual
async def test_deadlines_that_cannot_be_read_at_all_leave_answers_their_time() -> None:
    deployment = Deployment(MovingWorld(), hints=False)
    record, reply_backlog = await overdue(deployment), deployment.reply_backlog
    reply_backlog.behind(LANE)
    for _ in range(round(3 * PATIENCE_SECONDS)):
        await asyncio.sleep(1)
        reply_backlog.ledger_failed(LANE)
    assert waits(deployment, reply_backlog, record)


@virtual
async def test_what_ran_out_before_a_door_was_open_waits_for_a_moment() -> None:
    deployment = Deployment(MovingWorld(), hints=False)
    record = await overdue(deployment)
    opened = StartupGrace(now_ms=deployment.world.now_ms)
    assert waits(deployment, opened, record)
    await asyncio.sleep(OPENING_MS / 1000 - 0.001)
    assert waits(deployment, opened, record)
    await asyncio.sleep(0.001)
    assert not waits(deployment, opened, record)


@virtual
async def test_what_runs_out_while_the_door_is_open_waits_for_nobody() -> None:
    deployment = Deployment(MovingWorld(), hints=False)
    job_id = await deployment.submit()
    await deployment.look()
    loaded = await deployment.ledger.load(job_id)
    assert loaded is not None
    step = loaded.record.steps[0]
    assert step.lease_expires_at_ms is not None
    await asyncio.sleep((step.lease_expires_at_ms - deployment.world.now_ms() - 1) / 1000)
    opened = StartupGrace(now_ms=deployment.world.now_ms)
    assert not waits(deployment, opened, loaded.record)
    await asyncio.sleep(0.001)
    assert deployment.world.now_ms() == step.lease_expires_at_ms
    assert not waits(deployment, opened, loaded.record)
