"""Processes for a journey, all of which are gone when it ends."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import httpx2
import pytest
from tests.journeys.browser import Browser, Page
from tests.journeys.harness import Curl, Lucius, Worker
from tests.support.api_setup import QUICK, Caller


class Launch(Protocol):
    def __call__(self, *options: str, env: dict[str, str] | None = None, start: bool = True) -> Lucius: ...


class Hire(Protocol):
    def __call__(self, url: str, services: Sequence[str], *options: str) -> Worker: ...


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Starts `lucius dev` with these options."""
    with ExitStack() as stack:
        count = 0

        def start_one(*options: str, env: dict[str, str] | None = None, start: bool = True) -> Lucius:
            nonlocal count
            count += 1
            lucius = Lucius(tmp_path / f"lucius-{count}", *options, env=env)
            stack.callback(lucius.kill)
            if start:
                lucius.start()
            return lucius

        yield start_one


@pytest.fixture
def hire(tmp_path: Path) -> Iterator[Hire]:
    """Starts a worker of these services."""
    with ExitStack() as stack:
        count = 0

        def start_one(url: str, services: Sequence[str], *options: str) -> Worker:
            nonlocal count
            count += 1
            worker = Worker(url, services, tmp_path / f"worker-{count}.log", *options)
            stack.callback(worker.stop)
            return worker

        yield start_one


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lucius]:
    """One server for the journeys that do it no harm; it also knows a protocol with short times."""
    folder = tmp_path_factory.mktemp("shared")
    (folder / "protocols").mkdir()
    (folder / "protocols" / "quick.yaml").write_text(QUICK)
    lucius = Lucius(folder, "--protocols", str(folder / "protocols"))
    lucius.start()
    yield lucius
    lucius.kill()


@pytest.fixture
async def caller_at() -> AsyncIterator[Callable[[Lucius], Caller]]:
    """A client of a running server."""
    clients: list[httpx2.AsyncClient] = []

    def open_one(lucius: Lucius) -> Caller:
        clients.append(httpx2.AsyncClient(base_url=lucius.url, timeout=60))
        return Caller(clients[-1])

    yield open_one
    for client in clients:
        await client.aclose()


@pytest.fixture
async def caller(shared: Lucius, caller_at: Callable[[Lucius], Caller]) -> Caller:
    return caller_at(shared)


@pytest.fixture
def curl(shared: Lucius) -> Curl:
    return Curl(shared.url)


@pytest.fixture(scope="session")
def browser_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    process = Browser(tmp_path_factory.mktemp("browser"))
    yield process
    process.stop()


@pytest.fixture
async def page(browser_process: Browser) -> AsyncIterator[Page]:
    async with browser_process.page() as opened:
        await opened.size(1280)
        yield opened
