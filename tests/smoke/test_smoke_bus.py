"""The suite of every bus, on a Service Bus namespace."""

from collections.abc import AsyncIterator

import pytest
from tests.conformance import test_bus as suite
from tests.conformance.bus_setups import Opened
from tests.smoke.borrowed import borrowed
from tests.smoke.real_bus import real_bus

from lucius.bus.port import Bus

globals().update(borrowed(suite, "deployment", "bus"))


@pytest.fixture
async def deployment(real_namespace: str) -> AsyncIterator[Opened]:
    async with real_bus(real_namespace) as ready:
        yield ready


@pytest.fixture
def bus(deployment: Opened) -> Bus:
    return deployment.bus
