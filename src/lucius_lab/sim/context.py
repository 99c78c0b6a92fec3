"""What every simulated object uses: the loop, the faults, the trace, and the watches.

It also knows how a process dies, and how one process calls another: the call runs in the process that is
called and dies with it, and a caller that dies is noticed as one that hangs up.
"""

from asyncio import Future, Task
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Never, TypeVar

from lucius.ledger.store import Op
from lucius_lab.sim.damage import RowDamage
from lucius_lab.sim.faults import FaultKind, Faults, Site
from lucius_lab.sim.loop import PROCESS, Process, SimLoop
from lucius_lab.sim.trace import Trace
from lucius_lab.sim.watch import SimListener, Violation

T = TypeVar("T")

CALL_TIMEOUT_SECONDS = 40.0


def _latencies() -> tuple[float, ...]:
    """In seconds, by chance: most are a few milliseconds, one in a hundred is long."""
    quick = [0.0002 + 0.000003 * at for at in range(900)]
    slow = [0.003 + 0.0004 * at for at in range(114)]
    late = [0.1 + 0.08 * at for at in range(10)]
    return tuple(quick + slow + late)


LATENCIES = _latencies()


class ProcessGone(BaseException):
    """A dead process tried to act. It is never caught: no task of the process is left."""


class PeerUnreachable(Exception):
    """The process that was called is not there, died meanwhile, or its answer was lost: nothing is known
    about the outcome."""


class SimContext:
    def __init__(self, loop: SimLoop, faults: Faults, trace: Trace, watch: SimListener | None) -> None:
        self.loop = loop
        self.faults = faults
        self.trace = trace
        self.watch = watch
        self.violations: list[Violation] = []
        self.on_death: Callable[[Process], None] = lambda process: None
        self.commits = 0
        self.damage = RowDamage()

    # Faults

    def fault(self, kind: FaultKind, process: Process, what: str = "", number: int | None = None) -> None:
        self.trace.fault(self.faults.note(kind, process, what, number))

    async def crash_here(self, kind: FaultKind, process: Process, what: str, number: int) -> Never:
        """The process dies at this very moment."""
        self.fault(kind, process, what, number)
        self.kill(process)
        await self.loop.never()

    def kill(self, process: Process) -> None:
        if process.dead:
            return
        self.loop.kill(process)
        for waiting in list(process.calls):
            if isinstance(waiting, Task):
                waiting.cancel()
            elif not waiting.done():
                waiting.set_exception(PeerUnreachable(f"{process.name} died"))
        process.calls.clear()
        self.on_death(process)

    # What happened

    def committed(self, process: Process, ops: Sequence[Op]) -> None:
        self.commits += 1
        self.trace.commit(process, ops)
        if self.watch is None:
            return
        try:
            self.watch.committed(ops, now_ms=self.loop.now_ms(), by=process.name)
        except Violation as violation:
            self.broken(violation)

    def broken(self, violation: Violation) -> None:
        """A promise was broken: there is nothing more to learn from this run."""
        self.violations.append(violation)
        self.trace.line("watch", f"✗✗ {violation}")
        self.loop.halt()

    # Calls from one process to another

    async def call(self, caller: Process, callee: Process, serve: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs `serve` in the process that is called; raises `PeerUnreachable` if its answer never comes."""
        loop, faults = self.loop, self.faults
        lost = faults.at(Site.CALL, caller)
        chance, number = faults.entropy, faults.number
        if chance & 1:
            await loop.pause(LATENCIES[chance >> 1 & 1023])
        if callee.dead:
            raise PeerUnreachable(f"{callee.name} is not there")
        if lost is not None:
            self.fault(lost, caller, f"to {callee.name}", number)
            raise PeerUnreachable(f"the call did not reach {callee.name}")
        answer: Future[T] = loop.create_future()
        task = callee.spawn(self._served(serve, answer, callee), name="call")
        callee.calls[answer] = None
        caller.calls[task] = None
        try:
            result = await answer
        finally:
            callee.calls.pop(answer, None)
            caller.calls.pop(task, None)
            if not caller.dead and (not answer.done() or answer.cancelled()):
                task.cancel()  # the caller hung up
        lost = faults.at(Site.ANSWER, caller)
        if lost is not None:
            self.fault(lost, caller, f"from {callee.name}")
            raise PeerUnreachable(f"the answer of {callee.name} was lost")
        return result

    async def _served(self, serve: Callable[[], Awaitable[T]], answer: "Future[T]", callee: Process) -> None:
        try:
            result = await serve()
        except Exception as fault:
            if not answer.done():
                answer.set_exception(fault)
            return
        if not answer.done():
            answer.set_result(result)


def here() -> Process:
    """The process whose code runs now."""
    process = PROCESS.get()
    assert process is not None
    return process
