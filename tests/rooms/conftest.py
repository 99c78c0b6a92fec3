"""What the tests of several rooms share."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from lucius.engines.temporal.client import TemporalTarget
from lucius.engines.temporal.server import dev_server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def temporal(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TemporalTarget]:
    """A Temporal server with its data in a file."""
    folder: Path = tmp_path_factory.mktemp("temporal")
    async with dev_server(folder / "temporal.db", log_file=folder / "temporal.log") as target:
        yield target
