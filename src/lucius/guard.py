"""A process between us and a program that we start: it ends the program when we are gone, however we ended.

In: the command line of a program, to `guarded`. Out: one that runs it below a guard. The guard's standard
input is a pipe, of which the owner holds the other end: it ends when the owner does, whichever of its threads
had started the program. Then the guard asks the program to end, and kills it if it does not. Where the system
can (Linux), the program is killed with its guard, too. What the guard is told by a signal it passes on,
`SIGQUIT` as a kill; it ends as the program ends.

It is run as a file of its own by an interpreter that looks neither at the current folder nor at variables,
and knows nothing but the standard library.
"""

import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence

GRACE_SECONDS = 5.0  # for a program whose owner is gone
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
NOT_STARTED = 127
KILLED_BY = 128  # and the number of the signal: as a shell puts it
SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG

_OWNER = 0


def guarded(
    *command: str, stop: signal.Signals = signal.SIGTERM, grace_seconds: float = GRACE_SECONDS
) -> list[str]:
    """The command line to start instead, with a pipe as its standard input and in a session of its own."""
    return [sys.executable, "-I", "-S", __file__, str(int(stop)), str(grace_seconds), *command]


def own_python(*arguments: str) -> list[str]:
    """Python with these arguments, which does not look for modules in the current folder."""
    return [sys.executable, "-P", *arguments]


def own_environment(ours: Mapping[str, str] | None = None) -> dict[str, str]:
    """For a program in Python of ours. An empty entry in PYTHONPATH, as `:/some/folder` has one, stands for
    the current folder: it goes, and what was named stays."""
    env = dict(os.environ if ours is None else ours)
    if "PYTHONPATH" in env:
        named = [folder for folder in env["PYTHONPATH"].split(os.pathsep) if folder]
        env["PYTHONPATH"] = os.pathsep.join(named)
    return env


def main(stop: int, grace_seconds: float, command: Sequence[str]) -> int:
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    for number in (*PASSED_ON, signal.SIGCHLD):
        signal.signal(number, _on_signal)
    child = _start(command)
    _let_go_of_streams()
    owner_is_there, kill_at = True, float("inf")
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            if not owner_is_there:
                _end_the_rest()
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else KILLED_BY - code
        if time.monotonic() >= kill_at:
            os.kill(child, signal.SIGKILL)
            kill_at = float("inf")
        left = None if kill_at == float("inf") else max(0.0, kill_at - time.monotonic())
        readable = select.select([wake, _OWNER] if owner_is_there else [wake], [], [], left)[0]
        if wake in readable:
            for received in os.read(wake, 1_024):
                if received in PASSED_ON:
                    os.kill(child, signal.SIGKILL if received == signal.SIGQUIT else received)
        if _OWNER in readable and not _reads():
            owner_is_there, kill_at = False, time.monotonic() + grace_seconds
            os.kill(child, stop)


def _start(command: Sequence[str]) -> int:
    guard = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        signal.set_wakeup_fd(-1)
        for number in (*PASSED_ON, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        _end_with_parent(guard)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, _OWNER)
        os.execvp(command[0], list(command))  # noqa: S606 - this is what we are for
    except OSError as fault:
        os.write(2, f"{command[0]}: {fault.strerror}\n".encode())
    finally:
        os._exit(NOT_STARTED)


def _end_with_parent(parent: int) -> None:
    """Tied to the thread that started it, of which a guard has one."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(NOT_STARTED)


def _let_go_of_streams() -> None:
    """They are the program's: who reads them sees them end when it does."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(null, stream)


def _reads() -> bool:
    """Whether the owner is still there."""
    try:
        return bool(os.read(_OWNER, 1_024))
    except OSError:
        return False


def _end_the_rest() -> None:
    """What the program has left behind in our group, and us with it."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)


def _on_signal(number: int, frame: object) -> None:
    """What came lies in the pipe."""


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
