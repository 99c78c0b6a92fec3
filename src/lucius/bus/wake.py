"""A bell: one waits for it, for so long at most, and others ring it.

Like an event under a timeout, which the hot loops pay for with a cancellation and five times the calls.
"""

import asyncio


class WakeEvent:
    """For one who waits at a time. Once rung, it stays so until it is muted."""

    __slots__ = ("_rung", "_waiting")

    def __init__(self) -> None:
        self._rung = False
        self._waiting: asyncio.Future[None] | None = None

    def ring(self) -> None:
        self._rung = True
        if self._waiting is not None:
            _end(self._waiting)

    def mute(self) -> None:
        self._rung = False

    async def wait(self, seconds_max: float | None = None) -> bool:
        """Whether it rang."""
        if self._rung:
            return True
        loop = asyncio.get_running_loop()
        waiting = self._waiting = loop.create_future()
        timer = None if seconds_max is None else loop.call_later(seconds_max, _end, waiting)
        try:
            await waiting
        finally:
            self._waiting = None
            if timer is not None:
                timer.cancel()
        return self._rung


def _end(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)
