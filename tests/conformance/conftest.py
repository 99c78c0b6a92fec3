"""One NATS server for all tests of this folder, and the end of the one Azurite."""

from collections.abc import Iterator

import pytest
from tests.conformance import azurite_house

from lucius.bus.nats_server import NatsServer, free_port


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("nats"), port=free_port())
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="session", autouse=True)
def azurite_ends() -> Iterator[None]:
    yield
    azurite_house.stop()
