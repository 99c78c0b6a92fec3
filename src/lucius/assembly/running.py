"""What runs in the background of a process, from its start to its end."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Protocol

import structlog

from lucius.ledger.store import StoreError

log = structlog.get_logger("lucius.assembly")


class Stoppable(Protocol):
    """Something that finishes what it has begun before it ends."""

    async def run(self) -> None: ...

    def stop(self) -> None: ...


class Duties:
    """The tasks of a process. Those that must finish are asked to, the others are cancelled."""

    def __init__(self) -> None:
        self._finishing: dict[str, Stoppable] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def begin(
        self, loops: Mapping[str, Coroutine[Any, Any, None]], finishing: Mapping[str, Stoppable]
    ) -> None:
        self._finishing = dict(finishing)
        runs = {name: one.run() for name, one in finishing.items()}
        for name, loop in {**loops, **runs}.items():
            self._tasks[name] = asyncio.create_task(loop, name=f"lucius {name}")
            self._tasks[name].add_done_callback(_tell_of_end)

    async def end(self) -> None:
        for one in self._finishing.values():
            one.stop()
        await asyncio.gather(*(self._tasks[name] for name in self._finishing), return_exceptions=True)
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def check(self) -> str | None:
        """A duty that ended is a fault of ours, and only a new start mends it."""
        ended = ", ".join(task.get_name() for task in self._tasks.values() if task.done())
        return f"no longer running: {ended}" if ended else None


async def every(seconds: float, duty: Callable[[], Awaitable[None]]) -> None:
    """So often, even if the duty takes part of that time; one that takes longer rests for half of it."""
    now = asyncio.get_running_loop().time
    took_seconds = 0.0
    while True:
        await asyncio.sleep(max(seconds - took_seconds, seconds / 2))
        began = now()
        try:
            await duty()
        except StoreError as fault:
            log.warning("duty_failed", error=str(fault))
        took_seconds = now() - began


def settle_memory() -> None:
    """Called once everything is loaded: what lives as long as the process is not looked at by the garbage
    collector again, and short-lived rows die by reference count, so it need not look often. Loading leaves
    next to no garbage: looking for it first would only take time."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _tell_of_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (fault := task.exception()) is not None:
        log.error("duty_ended", duty=task.get_name(), exc_info=fault)
