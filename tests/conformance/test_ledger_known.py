"""A job that is read anew is decoded only if somebody changed it since: its ETag tells."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lucius.core.inputs import Pause
from lucius.core.states import JobState

if TYPE_CHECKING:
    from tests.conformance.ledger_house import EVERY_STORE, LAYOUTS, World, opened_world, submit
else:
    from ledger_house import EVERY_STORE, LAYOUTS, World, opened_world, submit


@pytest.fixture(params=EVERY_STORE)
async def store_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=LAYOUTS, ids=lambda layout: layout.value)
async def world(request: pytest.FixtureRequest, store_kind: str, tmp_path: Path) -> AsyncIterator[World]:
    async with opened_world(store_kind, request.param, tmp_path) as ready:
        yield ready


async def test_what_nobody_changed_is_not_decoded_again(world: World) -> None:
    house = world.house()
    await house.warm()
    job_id = await submit(house)
    known, fresh = await house.ledger.load(job_id), await house.ledger.load(job_id, fresh=True)
    assert known is not None and fresh is not None
    assert fresh.record is known.record
    assert (known.cached, fresh.cached) == (True, False)
    assert fresh.etag == known.etag


async def test_what_another_changed_is_seen(world: World) -> None:
    house, other = world.house(), world.house()
    await house.warm()
    job_id = await submit(house)
    known = await house.ledger.load(job_id)
    await other.progress.apply(job_id, Pause())
    fresh = await house.ledger.load(job_id, fresh=True)
    assert known is not None and fresh is not None
    assert fresh.record.job.state is JobState.PAUSED
    assert fresh.record == (await world.records())[job_id]
    assert fresh.etag != known.etag
