"""The log of a simulation: no line leaves it, and an error that the code only logged is a broken promise.

Each duty catches what it does not expect, logs it, and goes on: right for a running Lucius, a defect here.
"""

import asyncio
import gc
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, Never

import structlog

from lucius_lab.sim.context import SimContext
from lucius_lab.sim.loop import PROCESS
from lucius_lab.sim.watch import Violation

_ERROR = 40
_WARNING = 30


@contextmanager
def rare_collections() -> Iterator[None]:
    """Nearly all that a simulation leaves behind dies by reference count; looking for the rest can wait until
    its end, when little of it is still there to be looked at. It waits no longer: memory that was used a
    moment ago is used again sooner than memory that is new, and a tenth of the time depends on that."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect(1)


@contextmanager
def unlisted_tasks() -> Iterator[None]:
    """No code asks asyncio for all tasks of a simulation: each of its processes knows its own. To list them
    costs more than to make them. Where asyncio lists them in another way, nothing is changed."""
    listed = getattr(asyncio.tasks, "_all_tasks", None)
    if listed is None or "add" in vars(listed):
        yield
        return
    listed.add = id  # whatever takes one task and does nothing
    try:
        yield
    finally:
        del listed.add


@contextmanager
def quiet_logs(context: SimContext) -> Iterator[None]:
    before = structlog.get_config()
    level = _WARNING if context.trace.record else _ERROR

    def drop(logger: object, method: str, event: MutableMapping[str, Any]) -> Never:
        process = PROCESS.get()
        name = "?" if process is None else process.name
        if process is None or not process.dead:
            fields = " ".join(f"{key}={value!r}" for key, value in event.items() if key != "exc_info")
            context.trace.line(name, f"{method}: {fields}")
            if method in ("error", "exception", "critical"):
                context.broken(Violation("UNEXPECTED", str(event.get("jobId", "")), f"{name}: {fields}"))
        raise structlog.DropEvent

    structlog.configure(
        processors=[drop],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.configure(**before)
