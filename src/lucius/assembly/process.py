"""What every process of Lucius has: what it is for, its duties, and its readiness checks."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

import structlog

from lucius.assembly.workflow_engine import Check
from lucius.bus.port import Bus
from lucius.ledger.memory import MemoryStore
from lucius.ledger.names import Tables
from lucius.ledger.quarantine import Quarantine
from lucius.ledger.sqlite.disk_room import room_fault
from lucius.ledger.store import StoreError, TableStore, put
from lucius.registry.port import Registry
from lucius.telemetry.health import Degraded

log = structlog.get_logger("lucius.assembly")


class Part(Enum):
    """`API` serves requests, `RECONCILER` sees to what time and the outbox ask for, `ALL` does both.

    On the temporal engine the `ORCHESTRATOR` serves requests, and the `INVOKER` sees to all the rest, that
    of jobs of the outbox engine too."""

    ALL = "all"
    API = "api"
    RECONCILER = "reconciler"
    ORCHESTRATOR = "orchestrator"
    INVOKER = "invoker"

    @property
    def reconciles(self) -> bool:
        return self not in (Part.API, Part.ORCHESTRATOR)

    @property
    def admits(self) -> bool:
        """Whether it takes commands."""
        return self not in (Part.RECONCILER, Part.INVOKER)

    @property
    def siblings(self) -> str:
        """The processes that share the lanes with it: a reconciler leaves the rows of temporal jobs alone, so
        an invoker must not leave it any lanes."""
        return "invokers" if self is Part.INVOKER else "reconcilers"


class NotShareable(Exception):
    """A store or bus that lives in one process cannot be that of several."""


def check_shareable(store: TableStore, bus: Bus | None) -> None:
    if isinstance(store, MemoryStore):
        raise NotShareable("a ledger in memory lives in one process, and others would not see its jobs")
    if bus is not None and not bus.shared:
        raise NotShareable("a bus in memory lives in one process, and others would not get its messages")


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
            self._tasks[name].add_done_callback(_log_end)

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


async def every(seconds: float, duty: Callable[[], Awaitable[None]], *, rest_factor: float = 0.0) -> None:
    """So often, even if the duty takes part of that time; one that takes longer rests for half of it.
    `rest_factor`: it rests for so many times as long as it took, at least."""
    now = asyncio.get_running_loop().time
    took_seconds = 0.0
    while True:
        await asyncio.sleep(max(seconds - took_seconds, seconds / 2, took_seconds * rest_factor))
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


def _log_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (fault := task.exception()) is not None:
        log.error("duty_ended", duty=task.get_name(), exc_info=fault)


def ledger_check(store: TableStore, tables: Tables, file: Path | None = None) -> Check:
    """`file`: where the store keeps all that it is given; None: elsewhere, or nowhere."""
    # A full disk serves reads and takes an empty commit: only a write tells.
    written = put(tables.meta, "checks", "ready", b"{}")

    async def check() -> str | None:
        try:
            await store.commit([written])
        except StoreError as fault:
            return str(fault)
        return None if file is None else await asyncio.to_thread(room_fault, file)

    return check


def rows_check(quarantine: Quarantine) -> Check:
    """Damage stops only the jobs that it hit: the process stays ready and reports it."""

    async def check() -> str | None:
        words = quarantine.words()
        return None if words is None else Degraded(words)

    return check


def protocols_check(registry: Registry) -> Check:
    async def check() -> str | None:
        return None if registry.all() else "no protocol is known"

    return check
