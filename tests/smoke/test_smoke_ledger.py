"""What the ledger promises of a job's own rows, on a storage account."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
from tests.conformance import test_ledger_conformance
from tests.smoke.borrowed import borrowed
from tests.smoke.real_tables import real_store

if TYPE_CHECKING:
    from tests.conformance.ledger_house import LAYOUTS, House, World
else:
    from ledger_house import LAYOUTS, House, World

globals().update(borrowed(test_ledger_conformance, "world", "house"))


@pytest.fixture(params=LAYOUTS, ids=lambda layout: layout.value)
async def world(request: pytest.FixtureRequest, real_account: str) -> AsyncIterator[World]:
    async with real_store(real_account) as store:
        yield World(store, request.param, frugal=True)


@pytest.fixture
async def house(world: World) -> House:
    ready = world.house()
    await ready.warm()
    return ready
