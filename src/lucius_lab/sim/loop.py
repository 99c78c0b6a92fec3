"""The event loop of a simulation: virtual time, a seeded scheduler, and processes that can die.

In: coroutines of simulated processes, and a seed. Out: the same order of events for the same seed.
Time stands still while anything is ready, then jumps to the next timer. Among the handles that are ready the
seed picks one. Each handle belongs to the process in whose context it runs; the handles of a process that
died are dropped, so that its coroutines never go on, and those of a frozen one wait until it thaws.

It offers what tasks, futures, timeouts, locks and threads of asyncio ask of a loop. There are no sockets,
signals or subprocesses here: what a simulated process cannot do, it cannot do by mistake.
"""

import asyncio
from asyncio import AbstractEventLoop, Future, Task
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from heapq import heappop, heappush
from math import inf
from random import Random
from types import MethodType
from typing import Any, Never, TypeVar

from lucius.core.clock import SteadyClock

T = TypeVar("T")

CLOSE_TRIES_MAX = 5
TASKS_PRUNED_ABOVE = 64
_ON_TIMEOUT: Any = asyncio.Timeout._on_timeout  # type: ignore[attr-defined]


class Exhausted(Exception):
    """The simulation used more steps or more virtual time than it was given."""


class Process:
    """One life of a simulated process: its name, its clock, and whether it is still there."""

    __slots__ = (
        "calls",
        "clock",
        "context",
        "dead",
        "frozen_from",
        "frozen_until",
        "index",
        "life",
        "loop",
        "mortal",
        "name",
        "offset_ms",
        "tasks",
    )

    def __init__(
        self,
        loop: "SimLoop",
        name: str,
        index: int,
        *,
        life: int = 1,
        offset_ms: int = 0,
        mortal: bool = True,
    ) -> None:
        self.loop = loop
        self.name = name
        self.index = index
        self.life = life
        self.offset_ms = offset_ms
        """How far the clock on its wall is off."""
        self.clock: SteadyClock | None = None  # once that was set
        self.mortal = mortal
        self.dead = False
        self.frozen_from = 0.0
        self.frozen_until = 0.0
        self.tasks: list[tuple[Task[Any], Context]] = []
        self.calls: dict[Future[Any], None] = {}  # what others wait for, and learn in vain once it is dead
        self.context = Context()
        self.context.run(PROCESS.set, self)

    def now_ms(self) -> int:
        """What time it is for this process, which begins with what the clock on its wall says."""
        if self.clock is None:
            return self.loop.wall_ms + self.offset_ms
        return self.clock.now_ms()

    def set_wall(self, offset_ms: int) -> None:
        """The clock on its wall is set. Before that first happens both clocks say the same."""
        if self.clock is None and offset_ms != self.offset_ms:
            self.clock = SteadyClock(self._wall_ns, self._steady_ns)
        self.offset_ms = offset_ms

    def _wall_ns(self) -> int:
        return (self.loop.wall_ms + self.offset_ms) * 1_000_000

    def _steady_ns(self) -> int:
        return self.loop.wall_ms * 1_000_000

    def freeze(self, seconds: float) -> None:
        """The process does nothing for that time. A standstill that is under way becomes longer, never
        shorter: what it holds back goes on at one time, and the watch knows when."""
        now = self.loop.time()
        if self.frozen_until <= now:
            self.frozen_from = now
        self.frozen_until = max(self.frozen_until, now + seconds)

    def die(self) -> None:
        self.dead = True
        self.frozen_until = inf  # one look shows that it does not run

    def spawn(self, coro: Coroutine[Any, Any, T], *, name: str | None = None) -> "Task[T]":
        return self.loop.create_task(coro, name=name, context=self.context.copy())


PROCESS: ContextVar[Process | None] = ContextVar("lucius_sim_process", default=None)


_Handle = tuple[Callable[..., object], tuple[Any, ...], Context, Process | None]
"""Callback, arguments, context, process. A tuple, because there are millions of them, and nothing is made
faster than a tuple."""


class _Timer:
    """A timer as asyncio knows them."""

    __slots__ = ("_when", "handle")

    def __init__(self, handle: _Handle, when: float) -> None:
        self.handle: _Handle | None = handle
        self._when = when

    def cancel(self) -> None:
        self.handle = None

    def cancelled(self) -> bool:
        return self.handle is None

    def when(self) -> float:
        return self._when


# Most of what the abstract loop offers is missing here on purpose.
_Base: Any = AbstractEventLoop


class SimLoop(_Base):  # type: ignore[misc]
    def __init__(self, seed: int, *, start_ms: int) -> None:
        self._start_ms = start_ms
        self.wall_ms = start_ms
        """What `now_ms` answers."""
        self.steps = 0
        self.on_fault: Callable[[str, BaseException], None] | None = None
        self.before_step: Callable[[Process], None] | None = None
        """Called before each handle of a process; it may kill that process."""
        self.now = 0.0
        """Seconds since the beginning, as `time` answers it."""
        self._bits = Random(f"schedule {seed}").getrandbits  # noqa: S311
        self._ready: list[_Handle | _Timer] = []
        self._timers: list[tuple[float, int, _Timer | Future[None]]] = []
        self._sequence = 0
        self._doomed: list[Process] = []
        self._stopped = False
        self._steps_max = 0
        self._seconds_max = 0.0
        self._over: Future[None] = Future(loop=self)
        self._over.set_result(None)

    # Time

    def time(self) -> float:
        return self.now

    def now_ms(self) -> int:
        """The true time, which no process knows exactly."""
        return self.wall_ms

    def skip(self, ms: int) -> None:
        """Moves the true time ahead by so much, though no task waited."""
        self._start_ms += ms
        self.wall_ms += ms

    # What asyncio asks of a loop

    get_debug = staticmethod(bool)  # False, and without a frame of its own: every future asks

    def set_debug(self, enabled: bool) -> None:
        pass

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def create_future(self) -> "Future[Any]":
        return Future(loop=self)

    def create_task(
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> "Task[T]":
        if context is None:
            context = copy_context()
        task = Task(coro, loop=self, name=name or "task", context=context)
        process = context.get(PROCESS)
        if process is not None:
            tasks = process.tasks
            tasks.append((task, context))
            if len(tasks) > TASKS_PRUNED_ABOVE and not len(tasks) & (len(tasks) - 1):
                process.tasks = [each for each in tasks if _is_open(each[0])]
        return task

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> _Timer | None:
        """What is called soon cannot be taken back, but for the end of a timeout whose time was over when it
        began: nothing else in asyncio ever does."""
        if context is None:
            context = copy_context()
        handle = (callback, args, context, context.get(PROCESS))
        if type(callback) is not MethodType or callback.__func__ is not _ON_TIMEOUT:
            self._ready.append(handle)
            return None
        timer = _Timer(handle, self.now)
        self._ready.append(timer)
        return timer

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> _Timer:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> _Timer:
        if context is None:
            context = copy_context()
        timer = _Timer((callback, args, context, context.get(PROCESS)), when)
        self._at(when, timer)
        return timer

    def run_in_executor(self, executor: object, func: Callable[..., T], *args: Any) -> "Future[T]":
        """Runs it inline, some time later: a thread is done when the seed says so."""
        future: Future[T] = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as fault:
                future.set_exception(fault)

        self.call_later((1 + self._bits(10)) / 100_000, run)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        fault = context.get("exception")
        if self.on_fault is not None and isinstance(fault, BaseException):
            self.on_fault(str(context.get("message")), fault)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    async def shutdown_asyncgens(self) -> None:
        pass

    def close(self) -> None:
        pass

    # What simulated things ask of it

    def pause(self, seconds: float) -> "Future[None]":
        """Done after that time: cheaper than a sleep, for the many small waits of stores and buses.

        It is to be awaited at once: where nothing else can happen before it is over, it is over already.
        """
        when, timers = self.now + seconds, self._timers
        if (
            not self._ready
            and (not timers or when < timers[0][0])
            and when <= self._seconds_max
            and self.steps < self._steps_max
            and self.before_step is None
            and not self._stopped
            and not self._doomed
        ):
            self.steps += 1
            self.now = when
            self.wall_ms = self._start_ms + int(when * 1000 + 1e-6)
            return self._over
        future: Future[None] = Future(loop=self)
        self._sequence += 1
        heappush(timers, (when, self._sequence, future))
        return future

    async def never(self) -> Never:
        """Waits for ever: for what a process that is gone would have done next."""
        while True:
            await Future(loop=self)

    def kill(self, process: Process) -> None:
        """Nothing of this process runs from now on. Its coroutines are put away between two handles, because
        one of them may be the caller."""
        if not process.dead:
            process.die()
            self._doomed.append(process)

    def halt(self) -> None:
        """Ends `run` after the handle that runs now."""
        self._stopped = True

    def run(self, main: Coroutine[Any, Any, None], *, steps_max: int, seconds_max: float) -> None:
        """Runs until `main` is done, or `halt` is called; raises what `main` raises."""
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            task = self.create_task(main)
            task.add_done_callback(lambda _: self.halt())
            self._steps_max, self._seconds_max = steps_max, seconds_max
            self._turn()
            if task.done():
                task.result()
        finally:
            asyncio._set_running_loop(outer)

    def put_away(self, process: Process) -> None:
        """Closes what is left of a process. Whatever its `finally` clauses try, it no longer counts."""
        process.die()
        for task, context in process.tasks:
            if task.done():
                task._log_traceback = False
            else:
                _close(task, context)
        process.tasks.clear()

    # The heart

    def _at(self, when: float, what: "_Timer | Future[None]") -> None:
        self._sequence += 1
        heappush(self._timers, (when, self._sequence, what))

    def _turn(self) -> None:
        ready, bits, doomed = self._ready, self._bits, self._doomed
        steps_max, spied = self._steps_max, self.before_step is not None
        self._stopped = False
        while not self._stopped:
            count = len(ready)
            if count > 1:
                index = bits(20) % count
                item = ready[index]
                ready[index] = ready[-1]
                ready.pop()
            elif count:
                item = ready.pop()
            else:
                self._jump()
                continue
            handle = item.handle if isinstance(item, _Timer) else item
            if handle is None:
                continue
            callback, args, context, process = handle
            if (
                process is not None
                and (process.frozen_until > self.now or spied)
                and self._held(process, item)
            ):
                continue
            self.steps += 1
            if self.steps > steps_max:
                raise Exhausted(f"more than {steps_max} steps, at {self.now:.3f} s")
            context.run(callback, *args)
            if doomed:
                self.put_away(doomed.pop())

    def _held(self, process: Process, item: _Handle | _Timer) -> bool:
        """Whether this handle of a process does not run now: it is dead, or stands still."""
        if self.before_step is not None and not process.dead:
            self.before_step(process)
        if process.dead:
            return True
        if process.frozen_until <= self.now:
            return False
        timer = item if isinstance(item, _Timer) else _Timer(item, process.frozen_until)
        self._at(process.frozen_until, timer)
        return True

    def _jump(self) -> None:
        """Nothing is ready: on to the next moment at which something is."""
        timers, seconds_max = self._timers, self._seconds_max
        if not timers:
            raise Exhausted(f"nothing will ever happen again, at {self.now:.3f} s")
        when = timers[0][0]
        if when > seconds_max:
            raise Exhausted(f"more than {seconds_max:g} s of virtual time")
        if when > self.now:
            self.now = when
            self.wall_ms = self._start_ms + int(when * 1000 + 1e-6)
        now = self.now
        while True:
            what = heappop(timers)[2]
            if not isinstance(what, _Timer):
                if not what.done():
                    what.set_result(None)
            elif what.handle is not None:
                self._ready.append(what)  # it may still be cancelled
            if not timers or timers[0][0] > now:
                return


def _is_open(task: "Task[Any]") -> bool:
    """Not done, or failed and its fault not retrieved yet: the task that would retrieve it may die first."""
    return not task.done() or bool(task._log_traceback)


def _close(task: "Task[Any]", context: Context) -> None:
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coro: Any = task.get_coro()
    for _ in range(CLOSE_TRIES_MAX):
        try:
            context.run(coro.close)
        except BaseException:  # noqa: S112
            continue  # a `finally` that waits for something: it will not get it
        return
