"""What holds for every test."""

import logging
import warnings
from asyncio.selector_events import BaseSelectorEventLoop
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import structlog
from hypothesis import settings

from lucius.engines.temporal.client import TemporalTarget
from lucius.engines.temporal.dev_server import dev_server

# How long one example takes says how busy the machine is. A test as a whole is bounded by its timeout.
settings.register_profile("lucius", deadline=None)
settings.load_profile("lucius")

# Tests of a group run one after the other, and most of their time they wait. The longest begin first, so that
# they wait beside the many others that keep a core busy, and not for each other at the end.
LONG_GROUPS = (
    "heavy",
    "azurite",
    "servicebus",
    "servicebus-faults",
    "certify",
    "temporal",
    "browser",
    "postgres",
    "servicebus-sessions",
    "app_configuration",
    "azure-local",
    "nats",
    "lifebook",
    "schemathesis",
    "parts",
    "compose",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    mark = item.get_closest_marker("xdist_group")
    group = None if mark is None else mark.args[0]
    return LONG_GROUPS.index(group) if group in LONG_GROUPS else len(LONG_GROUPS)


@pytest.fixture(scope="session", autouse=True)
def loggers_keep_nothing() -> Iterator[None]:
    """A logger that keeps what it was given first would say it to the end of all tests."""
    configure = structlog.configure

    def for_a_while(**wanted: Any) -> None:
        configure(**{**wanted, "cache_logger_on_first_use": False})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structlog, "configure", for_a_while)
        yield


@pytest.fixture(scope="session", autouse=True)
def loops_end_without_connections() -> Iterator[None]:
    """A connection that a test leaves open fails that test, and not a later one in which it is collected."""
    close = BaseSelectorEventLoop.close

    def checked(loop: Any) -> None:
        transports = [] if loop.is_closed() else loop._transports.values()
        left = [each for each in transports if not each.is_closing()]
        told = [f"{each} of {each.get_protocol()} with {each.get_extra_info('peername')}" for each in left]
        for each in left:
            each.abort()
            each._call_connection_lost(None)
        close(loop)
        if told:  # an error, but where a library is known to leave connections behind
            warnings.warn(f"left open: {told}", pytest.PytestUnraisableExceptionWarning, stacklevel=2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BaseSelectorEventLoop, "close", checked)
        yield


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """Commands that run in this process set up their own logs, on a stream that is gone after the test."""
    before, root = structlog.get_config(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.configure(**before)
    root.handlers[:] = [handler for handler in root.handlers if handler in handlers]
    root.setLevel(level)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def temporal(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TemporalTarget]:
    """A Temporal server with its data in a file."""
    folder: Path = tmp_path_factory.mktemp("temporal")
    async with dev_server(folder / "temporal.db", log_file=folder / "temporal.log") as target:
        yield target
