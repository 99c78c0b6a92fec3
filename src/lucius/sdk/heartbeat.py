"""Signs of life for work under way: one timer for the whole runner, so that a short directive pays nothing.

In: tasks as their handlers begin and end, progress as handlers report it. Out: PROGRESS, in time for each
lease; and a task that learns from the answer that it no longer counts.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextvars import Context, copy_context
from functools import partial
from typing import Any

from lucius.sdk import messages
from lucius.sdk.directive import Directive, Json
from lucius.sdk.ports import ReplyAnswer
from lucius.sdk.task import Task

# Signs of life that are due within this time go together.
HEARTBEAT_SECONDS = 0.02

Reply = Callable[[Directive, dict[str, Json]], Awaitable[ReplyAnswer | None]]


class Heartbeat:
    def __init__(self, reply: Reply, *, now_ms: Callable[[], int], interval_seconds: float) -> None:
        """`interval_seconds`: how often a handler's own words are sent at most."""
        self._reply = reply
        self._now_ms = now_ms
        self._interval_seconds = interval_seconds
        self._timer: asyncio.TimerHandle | None = None
        self._context: Context | None = None  # of the runner: signs of life belong to no directive's own
        self._active: dict[Task[Any], None] = {}  # in the order of their beginning
        self._beats: dict[Task[Any], asyncio.Task[None]] = {}

    def start(self) -> None:
        self._context = copy_context()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def active(self) -> Iterable[Task[Any]]:
        return self._active

    def beats(self) -> Iterable["asyncio.Task[None]"]:
        """Those on their way."""
        return self._beats.values()

    def began(self, task: Task[Any]) -> None:
        task.sent_at = _time()
        self._active[task] = None
        self._expect(_due(task))

    def ended(self, task: Task[Any]) -> None:
        self._active.pop(task, None)
        if (beat := self._beats.pop(task, None)) is not None:
            beat.cancel()  # a sign of life that arrives after the RESULT is only noise

    async def report(self, task: Task[Any]) -> None:
        """Sends the first progress at once and later ones at most every `interval_seconds`."""
        silent = _time() - (task.sent_at or 0.0)
        if not task.reported or silent >= self._interval_seconds:
            await self._beat(task)

    async def confirm(self, task: Task[Any]) -> None:
        """Sends an overdue heartbeat now: a task that slept for long learns what became of its attempt."""
        if _time() >= _due(task):
            await self._beat(task)

    async def _beat(self, task: Task[Any]) -> None:
        task.sent_at = _time()
        task.reported = True
        message = messages.progress(task.directive, self._now_ms(), task.percent, task.note)
        answer = await self._reply(task.directive, message)
        if answer is not None and (answer.stop or answer.not_ours):
            task.stop_requested = True

    def _expect(self, due: float) -> None:
        """The heartbeat comes at that time at the latest. While nothing is worked on, there is none."""
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(due, self._beat_all, context=self._context)

    def _beat_all(self) -> None:
        self._timer = None
        now = _time()
        for task in self._active:
            if task.stop_requested or task in self._beats:
                continue
            if (due := _due(task)) > now + HEARTBEAT_SECONDS:
                self._expect(due)
                continue
            beat = asyncio.create_task(self._beat(task))
            self._beats[task] = beat
            beat.add_done_callback(partial(self._beaten, task))

    def _beaten(self, task: Task[Any], _: "asyncio.Task[None]") -> None:
        if self._beats.pop(task, None) is not None and task in self._active:
            self._expect(max(_due(task), _time() + HEARTBEAT_SECONDS))


def _time() -> float:
    return asyncio.get_running_loop().time()


def _due(task: Task[Any]) -> float:
    """When the next sign of life is due, on the loop's clock."""
    return (task.sent_at or 0.0) + task.heartbeat_seconds
