"""One NATS server for all tests of this folder, the end of the one Azurite, and a world on every store."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.conformance import azurite_setup as azurite_deployment
from tests.conformance.ledger_setup import EVERY_STORE, LAYOUTS, World, opened_world

from lucius.bus.nats.server import NatsServer, free_port


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("nats"), port=free_port())
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="session", autouse=True)
def azurite_ends() -> Iterator[None]:
    yield
    azurite_deployment.stop()


@pytest.fixture(params=EVERY_STORE)
async def store_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=LAYOUTS, ids=lambda layout: layout.value)
async def world(request: pytest.FixtureRequest, store_kind: str, tmp_path: Path) -> AsyncIterator[World]:
    async with opened_world(store_kind, request.param, tmp_path) as ready:
        yield ready
