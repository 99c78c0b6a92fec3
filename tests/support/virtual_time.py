"""Tests in virtual time: what waits there takes no time, and an hour passes in a few steps."""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

from lucius_lab.sim.loop import SimLoop

P = ParamSpec("P")


def virtual(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    @wraps(test)
    def played(*args: P.args, **kwargs: P.kwargs) -> None:
        loop = SimLoop(1, start_ms=1_800_000_000_000)
        loop.run(test(*args, **kwargs), steps_max=1_000_000, seconds_max=86_400)

    return played
