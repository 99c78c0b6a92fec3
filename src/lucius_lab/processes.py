"""Parts of Lucius as real processes, started by their command line and known by what they print.

In: arguments of `lucius`. Out: processes that can be killed, stopped, and started again on the same port.
"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from lucius_lab import forks

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0
LOOK_SECONDS = 0.02


class ProcessFault(Exception):
    """A process did not do what was asked of it. The text holds what it said last."""


class _PartStarted(msgspec.Struct):
    url: str | None = None


class PartProcess:
    """`lucius api`, `lucius reconciler`, `lucius service run …` or `lucius dev`.

    One that listens takes a free port at its first start unless it is given one, and the same after that.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        *arguments: str,
        port_option: str | None = None,
        port: int = 0,
        env: Mapping[str, str] | None = None,
        within: Sequence[str] = (),
    ) -> None:
        """`within`: a command line that runs another, such as one in a network of its own."""
        self.name = name
        self.url = ""
        self._arguments = arguments
        self._port_option = port_option
        self._port = port
        self._env = {**os.environ, **(env or {})}
        self._within = within
        self._folder = folder
        self._out = folder / f"{name}.out"
        self._stderr = folder / f"{name}.err"
        self._process: forks.Running | None = None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ProcessFault(f"{self.name} was never started")
        return self._process.pid

    @property
    def stderr(self) -> str:
        return self._stderr.read_text(encoding="utf-8", errors="replace")

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        self.begin()
        self.await_up()

    def begin(self) -> None:
        """Starts it, and does not wait until it is up."""
        self._folder.mkdir(parents=True, exist_ok=True)
        arguments = [*self._arguments, "--json", "--log-level", "warning"]
        if self._port_option is not None:
            arguments += [self._port_option, str(self._port)]
        with self._stderr.open("ab") as stderr, self._out.open("wb") as out:
            self._process = forks.start(
                arguments, env=self._env, folder=self._folder, out=out, err=stderr, within=self._within
            )

    @property
    def up(self) -> bool:
        """Whether it has said that it is up, since it was started last."""
        line = self._out.read_bytes()
        if not line.endswith(b"\n"):
            return False
        self.url = msgspec.json.decode(line, type=_PartStarted).url or ""
        self._port = int(self.url.rpartition(":")[2] or 0)
        return True

    def await_up(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self.up:
            if not self.running:
                raise ProcessFault(f"{self.name} ended at its start: {self.stderr[-2_000:]}")
            if time.monotonic() > deadline:
                raise ProcessFault(f"{self.name} is not up: {self.stderr[-2_000:]}")
            time.sleep(LOOK_SECONDS)

    def kill(self) -> None:
        """As a power cut would: nothing is finished, nothing is said."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def ask_to_stop(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def ended(self) -> int:
        """The exit code, once it ends."""
        if self._process is None:
            raise ProcessFault(f"{self.name} was never started")
        try:
            return self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise ProcessFault(f"{self.name} does not stop: {self.stderr[-2_000:]}") from None

    def stop(self) -> int:
        self.ask_to_stop()
        return self.ended()
