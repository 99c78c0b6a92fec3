"""Processes of Lucius that begin as copies of one that has loaded all modules already.

In: arguments of `lucius`, an environment, a folder and files to write to. Out: a process of its own, which
can be asked and killed as one that `subprocess` started. Most of a start is loading modules: a run
that starts and kills hundreds of processes can kill more of them this way. From there on the copy does what
`python -m lucius.cli.main` does.

The process that is copied gets each start through a socket. It ends when the process that started it ends,
and ends its copies first.
"""

import atexit
import importlib
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final, Protocol

import msgspec

from lucius.guard import own_environment, own_python

PROGRAM: Final = "lucius.cli.main"
# What the parts load, each a moment after its start. None of them begins a thread, which a copy would lack.
LOADED: Final = (
    "lucius.cli.dev",
    "lucius.cli.parts",
    "lucius.cli.service",
    "lucius.cli.temporal_parts",
    "lucius.engines.temporal.worker",
    "lucius.bus.nats.bus",
)
# Read before Python runs its first line, or by libraries while they load.
READ_AT_THE_START: Final = ("LD_", "PYTHON", "MALLOC_", "SSL_")
SIZE_BYTES: Final = 4
STATUS_BYTES: Final = 8


class Running(Protocol):
    """What `subprocess.Popen` is, as far as it is used."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


class _Request(msgspec.Struct, array_like=True):
    arguments: list[str]
    env: dict[str, str]
    folder: str


def start(
    arguments: Sequence[str],
    *,
    env: Mapping[str, str],
    folder: Path,
    out: IO[bytes] | None,
    err: IO[bytes],
    within: Sequence[str] = (),
) -> Running:
    """Starts `lucius` with these arguments; `out` None is the caller's own. `within`: a command line that
    becomes another."""
    if within or any(
        os.environ.get(name) != env.get(name) for name in {*env, *os.environ} if _read_early(name)
    ):
        line = [*within, *own_python("-m", PROGRAM, *arguments)]
        return subprocess.Popen(line, stdout=out, stderr=err, env=own_environment(env), cwd=folder)  # noqa: S603
    request = _Request(list(arguments), dict(env), str(folder.resolve()))
    return _original().copy(request, (1 if out is None else out.fileno(), err.fileno()))


def run(
    *arguments: str, env: Mapping[str, str] | None = None, folder: Path | None = None, seconds: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """What `lucius` said and how it ended; `env` None is the caller's own, as is `folder`."""
    with TemporaryFile() as out, TemporaryFile() as err:
        whole = os.environ if env is None else env
        process = start(arguments, env=whole, folder=folder or Path.cwd(), out=out, err=err)
        try:
            code = process.wait(seconds)
        finally:
            process.kill()
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess(arguments, code, out.read().decode(), err.read().decode())


def _read_early(name: str) -> bool:
    return name.startswith(READ_AT_THE_START)


class _Copy:
    """Its number comes through the pipe first, and how it ended last."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._status: int | None = None
        self._lock = threading.Lock()
        weakref.finalize(self, os.close, pipe)
        status = os.read(pipe, STATUS_BYTES)
        if not status:
            raise OSError("the process that is copied has ended")
        self.pid = int.from_bytes(status, "little")

    def poll(self) -> int | None:
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        while (status := self._look(None if until is None else until - time.monotonic())) is None:
            if until is not None and time.monotonic() >= until:
                raise subprocess.TimeoutExpired(PROGRAM, timeout or 0)
        return status

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _look(self, seconds: float | None) -> int | None:
        if self._status is None and select.select([self._pipe], [], [], seconds and max(0.0, seconds))[0]:
            with self._lock:
                if self._status is None:
                    status = os.read(self._pipe, STATUS_BYTES)
                    self._status = (
                        int.from_bytes(status, "little", signed=True) if status else -signal.SIGKILL
                    )
        return self._status


class _Original:
    """The process that is copied, from outside."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(own_python("-m", __name__), stdin=theirs.fileno())  # noqa: S603

    def copy(self, request: _Request, files: tuple[int, int]) -> _Copy:
        message = msgspec.msgpack.encode(request)
        pipe, theirs = os.pipe()
        try:
            with self._lock:
                socket.send_fds(self._socket, [len(message).to_bytes(SIZE_BYTES, "little")], [*files, theirs])
                self._socket.sendall(message)
        finally:
            os.close(theirs)
        return _Copy(pipe)

    def end(self) -> None:
        self._socket.close()
        self._process.wait()


_lock = threading.Lock()
_originals: list[_Original] = []


def _original() -> _Original:
    with _lock:
        if not _originals:
            _originals.append(_Original())
            atexit.register(_originals[0].end)
        return _originals[0]


class _Born(Exception):
    """This is the copy."""


def _serve() -> None:
    """Copies itself for each request. Returns in the original, at its end; raises in a copy."""
    asked = socket.socket(fileno=os.dup(0))
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    pipes: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([asked.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _report_ended(pipes)
        if asked.fileno() in ready:
            size, fds, _, _ = socket.recv_fds(asked, SIZE_BYTES, 3)
            if not size:
                break
            message = asked.recv(int.from_bytes(size, "little"), socket.MSG_WAITALL)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for fd in (asked.detach(), woken, wake, *pipes.values(), fds[2]):
                    os.close(fd)
                _become(msgspec.msgpack.decode(message, type=_Request), *fds[:2])
                raise _Born
            pipes[pid] = fds[2]
            os.write(fds[2], pid.to_bytes(STATUS_BYTES, "little"))
            for fd in fds[:2]:
                os.close(fd)
    for pid in pipes:
        os.kill(pid, signal.SIGKILL)


def _report_ended(pipes: dict[int, int]) -> None:
    while pipes:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        pipe = pipes.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        with suppress(BrokenPipeError):  # the reader is gone
            os.write(pipe, code.to_bytes(STATUS_BYTES, "little", signed=True))
        os.close(pipe)


def _become(request: _Request, out: int, err: int) -> None:
    """What a new process has: its own folder, environment, arguments, streams and signals."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for fd, place in ((nothing, 0), (out, 1), (err, 2)):
        os.dup2(fd, place)
        os.close(fd)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.env)
    sys.argv = [PROGRAM, *request.arguments]


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in LOADED:
        with suppress(ImportError):  # of what is not installed
            importlib.import_module(name)
    try:
        _serve()
    except _Born:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    else:
        return
    runpy.run_module(PROGRAM, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
