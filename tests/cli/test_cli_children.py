"""Parts that another process keeps running: they come up or say that they did not, and are started again."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from lucius.bus.nats.server import free_port
from lucius.cli import children
from lucius.cli.children import ChildFailed, ChildProcess

pytestmark = pytest.mark.xdist_group("temporal")

# Nobody is at either address: a worker waits for both, so it needs neither to be up.
ENV = {
    **os.environ,
    "LUCIUS_INTERNAL_SECRET": "a-secret-of-many-letters",
    "LUCIUS_TEMPORAL_ADDRESS": "127.0.0.1:9",
    "LUCIUS_INVOKER_URL": "http://127.0.0.1:9",
}


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


def worker(stack: AsyncExitStack, *options: str) -> ChildProcess:
    child = ChildProcess("worker", "worker", "--log-level", "error", *options, env=ENV)
    stack.push_async_callback(child.stop)
    return child


async def test_one_that_ends_at_its_start_is_told(stack: AsyncExitStack) -> None:
    with pytest.raises(ChildFailed, match=r"The worker ended at its start \(2\)"):
        await worker(stack, "--health-port", "no-port").start()


async def test_one_that_says_nothing_and_takes_its_time_to_end_is_told_as_ended(
    stack: AsyncExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nexec >&-\nsleep 0.3\nexit 2\n")
    program.chmod(0o755)
    monkeypatch.setattr(children, "own_python", lambda *arguments: [str(program)])
    with pytest.raises(ChildFailed, match=r"The worker ended at its start \(2\)"):
        await worker(stack).start()


async def test_one_that_is_killed_is_started_again_and_stopped_in_the_end(
    stack: AsyncExitStack, capfd: pytest.CaptureFixture[str]
) -> None:
    child = worker(stack, "--health-port", str(free_port()))
    await child.start()
    first = child.pid
    assert first is not None
    assert "temporal: " in (await child.check() or "")  # it says itself what it lacks
    os.kill(first, signal.SIGKILL)
    async with asyncio.timeout(60):
        while child.pid in (None, first):
            await asyncio.sleep(0.02)
    assert "The worker ended (137) and is started again." in capfd.readouterr().err
    second = child.pid
    assert second is not None
    await child.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(second, 0)
