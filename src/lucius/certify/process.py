"""The service as a process that can be started, killed and asked to end.

In: a command line, an environment. Out: a process group of its own, and what it said last. A kill meets the
whole group, as the end of a container does; SIGTERM meets the process alone, as container runtimes send it.
"""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

SAID_BYTES_MAX = 2_000
KILLED_SECONDS_MAX = 10.0


class ServiceProcess:
    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], log: Path) -> None:
        self._command = list(command)
        self._env = dict(env)
        self._log = log
        self._process: asyncio.subprocess.Process | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def returncode(self) -> int | None:
        return None if self._process is None else self._process.returncode

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def said(self) -> str:
        """The end of its output, for evidence."""
        try:
            return self._log.read_bytes()[-SAID_BYTES_MAX:].decode(errors="replace").strip()
        except OSError:
            return ""

    async def start(self) -> None:
        """Raises `OSError` where there is no such program."""
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env,
                start_new_session=True,
            )

    async def kill(self) -> None:
        """As a power cut would: nothing is finished, nothing is said. What a wrapper left behind goes too."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(TimeoutError):
            async with asyncio.timeout(KILLED_SECONDS_MAX):
                await self._process.wait()

    def ask_to_stop(self) -> None:
        if self.running and self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    async def ended(self, seconds: float | None) -> bool:
        if self._process is None:
            return True
        try:
            async with asyncio.timeout(seconds):
                await self._process.wait()
        except TimeoutError:
            return False
        return True
