"""An event loop whose time is virtual: it stands still while anything is ready, then jumps to the next
timer."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Stuck(Exception):
    """Everything waits, and for nothing that time could bring."""


class _Selector(selectors.SelectSelector):
    def __init__(self, loop: "VirtualLoop") -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Stuck
        self._loop.now_seconds += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """No sockets and no threads: only tasks, timers, locks."""

    def __init__(self) -> None:
        self.now_seconds = 0.0
        super().__init__(_Selector(self))
        self.set_exception_handler(lambda loop, context: None)

    def time(self) -> float:
        return self.now_seconds


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main)
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
