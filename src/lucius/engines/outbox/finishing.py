"""What must not be left half done is carried to its end, also where whoever waits for it goes away."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def to_its_end(
    work: Coroutine[Any, Any, T], *, on_cancel: Callable[[], object] | None = None
) -> tuple[T, bool]:
    """What came of it, and whether whoever waits was cancelled meanwhile: then they have to see to it that
    the cancellation is not forgotten. `on_cancel` is called as soon as that happens."""
    task = asyncio.create_task(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
            if on_cancel is not None:
                on_cancel()
    return task.result(), cancelled
