"""Work on documents in processes of their own, within bounds of time and memory.

In: the name of a piece of work, its arguments and a document. Out: what the process made of it; or `Final`
for a document over which it died, ran out of memory or took too long: another attempt would end the same way.

A process is used again for the next document, so that work on small ones costs little more than the way
there; it is ended after one that was large or slow. The processes are reached through threads, so that they
outlive an event loop, and end with their standard input.
"""

import asyncio
import atexit
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any
from typing import Final as Constant

import msgspec

from lucius.sdk import Final, Task
from lucius.services.child_environment import child_environment
from lucius.services.work_frames import FRAME_BYTES_MAX, HEAD, Failed, take_frame
from lucius.services.work_slots import PLACES_MAX, WorkSlots

MEMORY_BYTES_MAX: Constant = 256 * 1024**2
"""Above what the process has when it starts."""
MODEL_BYTES_MAX: Constant = 256 * 1024**2
"""More where a model is loaded."""
ASK_SECONDS_MAX: Constant = 30
# A machine under load gives a process less than all of a processor.
WALL_FACTOR: Constant = 4
TASK_SECONDS_MAX: Constant = 3600.0
TASKS_MAX: Constant = 500  # of one process, before another takes its place
IDLE_BYTES_MAX: Constant = 128 * 1024**2
SLOW_SECONDS: Constant = 1.0
SLOW_NICE: Constant = 10

OUT_OF_MEMORY: Constant = "WORK_OUT_OF_MEMORY"
TIME_EXCEEDED: Constant = "WORK_TIME_EXCEEDED"
DIED: Constant = "WORK_PROCESS_DIED"

# Linux ends a process with SIGKILL where the machine has no memory left; allocators in C++ and Rust give up
# with SIGABRT.
_OF_MEMORY: Constant = (signal.SIGKILL, signal.SIGABRT)


def death(returncode: int | None) -> Final:
    """What the end of a process says about the document it worked on."""
    if returncode == -signal.SIGXCPU:
        return Final(TIME_EXCEEDED, "the work on this document took more time than a document may take")
    if returncode is not None and -returncode in _OF_MEMORY:
        return Final(OUT_OF_MEMORY, "the work on this document took more memory than a document may take")
    how = f"by signal {-returncode}" if returncode is not None and returncode < 0 else "of itself"
    return Final(DIED, f"the process that worked on this document ended {how}")


def slow_down(pid: int) -> None:
    """Work that takes long goes on where nothing else wants the processor. For good: a process may not take
    this back."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, SLOW_NICE)
    with suppress(OSError):  # where sessions share processors before processes do
        Path(f"/proc/{pid}/autogroup").write_text(str(SLOW_NICE))


_REST: Constant = msgspec.json.encode({"work": "rest", "seconds_max": ASK_SECONDS_MAX, "arguments": {}})


class WorkProcess:
    """One process. Its verbs block: they are called in threads."""

    def __init__(self, memory_bytes_max: int) -> None:
        # -P: the folder in which we were started is not searched for modules.
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-P", "-m", "lucius.services.work_child", str(memory_bytes_max)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**child_environment(), "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C is for us: what is under way is finished
        )
        self.memory_bytes_max = memory_bytes_max
        self.tasks = 0
        self.spent = False
        """Whether it is not to be used again."""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def exchange(self, head: bytes, body: bytes) -> tuple[bytes, bytes]:
        """Raises `EOFError` or `OSError` where it died."""
        to, back = self._process.stdin, self._process.stdout
        if to is None or back is None:
            raise EOFError
        to.write(HEAD.pack(len(head), len(body)))
        to.write(head)
        to.write(body)
        to.flush()
        found = take_frame(back, FRAME_BYTES_MAX)
        if found is None:
            raise EOFError
        return found

    def rest(self) -> int:
        """Drops the task. Returns the bytes of memory that the process has now."""
        try:
            head, _ = self.exchange(_REST, b"")
            used: int = msgspec.json.decode(head)["made"]["bytes"]
        except (EOFError, OSError, ValueError):
            return sys.maxsize
        return used

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()

    def end(self) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self._process.wait()

    def died(self) -> int | None:
        """How it ended, where it did by itself: its pipes close a moment before."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout=1)
        return None


class WorkSession:
    """A process for one task."""

    def __init__(self, process: WorkProcess, threads: ThreadPoolExecutor, ask_seconds_max: int) -> None:
        self._process = process
        self._threads = threads
        self._ask_seconds_max = ask_seconds_max
        self.at_rest = True
        """Whether it waits to be asked: where it does not, it died, or is at work that was given up."""

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, name: str, body: bytes = b"", **arguments: Any) -> tuple[dict[str, Any], bytes]:
        loop = asyncio.get_running_loop()
        seconds_max = self._ask_seconds_max
        head = msgspec.json.encode({"work": name, "seconds_max": seconds_max, "arguments": arguments})
        slow = loop.call_later(SLOW_SECONDS, self._slow_down)
        self.at_rest = False
        exchange = loop.run_in_executor(self._threads, self._process.exchange, head, body)
        try:
            async with asyncio.timeout(seconds_max * WALL_FACTOR):
                answered, made = await exchange
        except TimeoutError:
            raise Final(TIME_EXCEEDED, f"a piece of the work took over {seconds_max} seconds") from None
        except (EOFError, OSError, ValueError):
            raise death(await loop.run_in_executor(self._threads, self._process.died)) from None
        finally:
            slow.cancel()
        self.at_rest = True
        said = msgspec.json.decode(answered)
        if (failed := said.get("failed")) is not None:
            raise _failure(msgspec.convert(failed, Failed))
        return said["made"], made

    def _slow_down(self) -> None:
        self._process.spent = True
        slow_down(self._process.pid)


def _failure(failed: Failed) -> Exception:
    if failed.code == OUT_OF_MEMORY:
        return death(-signal.SIGABRT)
    if failed.code is None:
        # A fault of the code, as it would be in our own process: the runner logs it and tries again.
        return RuntimeError(f"{failed.message} in the process that works on documents")
    return Final(failed.code, failed.message)


class WorkProcesses:
    """Those that wait for work, and the places for it."""

    def __init__(
        self,
        *,
        places: WorkSlots | None = None,
        ask_seconds_max: int = ASK_SECONDS_MAX,
        memory_bytes_max: int = MEMORY_BYTES_MAX,
    ) -> None:
        self.places = WorkSlots() if places is None else places
        self._ask_seconds_max = ask_seconds_max
        self._memory_bytes_max = memory_bytes_max
        self._idle: list[WorkProcess] = []
        self._closed = False
        self._lock = Lock()
        self._threads = ThreadPoolExecutor(2 * PLACES_MAX, "lucius-work")

    @asynccontextmanager
    async def session(self, task: Task, *, model: bool = False) -> AsyncIterator[WorkSession]:
        """For one task, which has a place already. `model`: it loads one, and so needs more memory."""
        task.raise_if_stopped()
        loop = asyncio.get_running_loop()
        memory_bytes_max = self._memory_bytes_max + (MODEL_BYTES_MAX if model else 0)
        process = await loop.run_in_executor(self._threads, self._taken, memory_bytes_max)
        session = WorkSession(process, self._threads, self._ask_seconds_max)
        try:
            async with asyncio.timeout(TASK_SECONDS_MAX):
                yield session
        except TimeoutError:
            raise Final(TIME_EXCEEDED, f"the work took over {TASK_SECONDS_MAX:g} seconds") from None
        finally:
            if not session.at_rest:
                process.spent = True
                process.kill()
            self._threads.submit(self._put_back, process)

    def warm_up(self) -> None:
        """Starts a process, so that the first document need not wait for one. Blocks for a moment."""
        self._put_back(self._taken(self._memory_bytes_max))

    def close(self) -> None:
        """Ends those that wait; those at work end with their tasks."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for process in idle:
            process.end()

    def _taken(self, memory_bytes_max: int) -> WorkProcess:
        while True:
            with self._lock:
                fitting = [each for each in self._idle if each.memory_bytes_max == memory_bytes_max]
                process = fitting[-1] if fitting else None
                if process is not None:
                    self._idle.remove(process)
            if process is None:
                process = WorkProcess(memory_bytes_max)
                process.rest()  # once it answers, its start is behind it and counts for no document
                return process
            if process.alive:
                return process
            process.end()

    def _put_back(self, process: WorkProcess) -> None:
        process.tasks += 1
        if process.spent or process.tasks >= TASKS_MAX or process.rest() > IDLE_BYTES_MAX:
            process.end()
            return
        with self._lock:
            self._idle.append(process)
            over = self._idle.pop(0) if self._closed or len(self._idle) > PLACES_MAX else None
        if over is not None:
            over.end()


_PROCESSES = WorkProcesses()
atexit.register(_PROCESSES.close)


def work_processes() -> WorkProcesses:
    """Those of this process of ours, shared by all its services."""
    return _PROCESSES
