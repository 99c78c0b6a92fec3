"""What the ledger promises of a job's own rows, on a storage account."""

from collections.abc import AsyncIterator

import pytest
from tests.conformance import test_ledger_conformance
from tests.conformance.ledger_setup import LAYOUTS, Deployment, World
from tests.smoke.borrowed import borrowed
from tests.smoke.real_tables import real_store

globals().update(borrowed(test_ledger_conformance, "world", "deployment"))


@pytest.fixture(params=LAYOUTS, ids=lambda layout: layout.value)
async def world(request: pytest.FixtureRequest, real_account: str) -> AsyncIterator[World]:
    async with real_store(real_account) as store:
        yield World(store, request.param, frugal=True)


@pytest.fixture
async def deployment(world: World) -> Deployment:
    ready = world.deployment()
    await ready.warm()
    return ready
