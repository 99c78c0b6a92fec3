"""Work on the commands of batches, so much at a time.

In: commands, by their size. Out: leave to begin. What is read of a command takes many times its bytes, and to
check hundreds of them in one go would keep every other caller waiting.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

BYTES_AT_ONCE: Final = 128 * 1024
COMMANDS_AT_ONCE: Final = 256


class Turns:
    """First come, first served. One command has its turn however large it is."""

    def __init__(self, bytes_at_once: int = BYTES_AT_ONCE, commands_at_once: int = COMMANDS_AT_ONCE) -> None:
        self._bytes_at_once = bytes_at_once
        self._commands_at_once = commands_at_once
        self._bytes = 0
        self._commands = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def turn(self, size: int) -> AsyncIterator[None]:
        if self._waiting or not self._has_room(size):
            await self._wait(size)
        else:
            self._begin(size)
        try:
            yield
        finally:
            self._end(size)

    def _has_room(self, size: int) -> bool:
        if not self._commands:
            return True
        return self._bytes + size <= self._bytes_at_once and self._commands < self._commands_at_once

    def _begin(self, size: int) -> None:
        self._bytes += size
        self._commands += 1

    def _end(self, size: int) -> None:
        self._bytes -= size
        self._commands -= 1
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self._has_room(self._waiting[0][0]):
            size, leave = self._waiting.popleft()
            if not leave.done():
                self._begin(size)
                leave.set_result(None)

    async def _wait(self, size: int) -> None:
        leave: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, leave))
        try:
            await leave
        except asyncio.CancelledError:
            if leave.done() and not leave.cancelled():
                self._end(size)
            raise
