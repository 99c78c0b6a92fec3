"""How long deadlines wait for answers: on a lane that never falls silent, and beside a ledger that fails now
and then."""

import asyncio
from typing import TYPE_CHECKING

from lucius.core.model import JobRecord
from lucius.progress.heard import OPENING_MS, PATIENCE_MS, JustOpened, Patience

if TYPE_CHECKING:
    from tests.rooms.relay_house import LANE, House, MovingWorld, Worker
    from tests.rooms.virtual import virtual
else:
    from relay_house import LANE, House, MovingWorld, Worker
    from virtual import virtual

PATIENCE_SECONDS = PATIENCE_MS / 1000
OVERDUE_SECONDS = 60


async def overdue(house: House) -> JobRecord:
    """A job whose ACK should have come."""
    job_id = await house.submit()
    await house.look()
    await Worker(house.world).take_one()
    loaded = await house.ledger.load(job_id)
    assert loaded is not None
    await asyncio.sleep(OVERDUE_SECONDS)
    return loaded.record


def waits(house: House, heard: Patience, record: JobRecord) -> bool:
    return heard.puts_off(record, house.world.now_ms())


@virtual
async def test_on_a_lane_that_is_never_silent_an_outage_has_its_time() -> None:
    house = House(MovingWorld(), hints=False)
    record, heard = await overdue(house), house.heard
    heard.still_read(LANE)
    assert not waits(house, heard, record), "its first time was over long ago"
    heard.behind(LANE)
    assert waits(house, heard, record)
    await asyncio.sleep(PATIENCE_SECONDS - 1)
    heard.still_read(LANE)
    assert waits(house, heard, record)
    await asyncio.sleep(2)
    assert not waits(house, heard, record)


@virtual
async def test_a_lane_that_is_read_while_the_ledger_is_away_has_not_caught_up() -> None:
    house = House(MovingWorld(), hints=False)
    record, heard = await overdue(house), house.heard
    heard.behind(LANE)
    heard.ledger_away()
    await asyncio.sleep(2 * PATIENCE_SECONDS)
    heard.still_read(LANE)
    assert waits(house, heard, record)


@virtual
async def test_deadlines_that_cannot_be_read_now_and_then_do_not_stop_the_clock() -> None:
    """A failure takes as much time as the deadlines could not be read, and no more."""
    house = House(MovingWorld(), hints=False)
    record, heard = await overdue(house), house.heard
    heard.still_read(LANE)
    heard.ledger_read(LANE)
    heard.behind(LANE)
    for second in range(round(2 * PATIENCE_SECONDS)):
        await asyncio.sleep(1)
        (heard.ledger_read if second % 3 else heard.ledger_failed)(LANE)
    assert not waits(house, heard, record)


@virtual
async def test_deadlines_that_cannot_be_read_at_all_leave_answers_their_time() -> None:
    house = House(MovingWorld(), hints=False)
    record, heard = await overdue(house), house.heard
    heard.behind(LANE)
    for _ in range(round(3 * PATIENCE_SECONDS)):
        await asyncio.sleep(1)
        heard.ledger_failed(LANE)
    assert waits(house, heard, record)


@virtual
async def test_what_ran_out_before_a_door_was_open_waits_for_a_moment() -> None:
    house = House(MovingWorld(), hints=False)
    record = await overdue(house)
    opened = JustOpened(now_ms=house.world.now_ms)
    assert waits(house, opened, record)
    await asyncio.sleep(OPENING_MS / 1000 - 0.001)
    assert waits(house, opened, record)
    await asyncio.sleep(0.001)
    assert not waits(house, opened, record)


@virtual
async def test_what_runs_out_while_the_door_is_open_waits_for_nobody() -> None:
    house = House(MovingWorld(), hints=False)
    job_id = await house.submit()
    await house.look()
    loaded = await house.ledger.load(job_id)
    assert loaded is not None
    step = loaded.record.steps[0]
    assert step.lease_expires_at_ms is not None
    await asyncio.sleep((step.lease_expires_at_ms - house.world.now_ms() - 1) / 1000)
    opened = JustOpened(now_ms=house.world.now_ms)
    assert not waits(house, opened, loaded.record)
    await asyncio.sleep(0.001)
    assert house.world.now_ms() == step.lease_expires_at_ms
    assert not waits(house, opened, loaded.record)
