"""One NATS server for all tests of this folder."""

from collections.abc import Iterator

import pytest

from lucius.bus.nats_server import NatsServer, free_port


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("nats"), port=free_port())
    server.start()
    yield server
    server.kill()
