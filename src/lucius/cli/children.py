"""Parts that `lucius dev` runs as processes of their own, and keeps running.

In: the command line of a part. Out: a process that is started again should it end, and that does not outlive
us, however we end (see `lucius.guard`).
"""

import asyncio
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from contextlib import suppress

import httpx2
import msgspec
import structlog

from lucius.cli.serving import say
from lucius.guard import guarded, own_environment, own_python

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0
AGAIN_SECONDS_FIRST = 0.2
AGAIN_SECONDS_MAX = 5.0
CHECK_SECONDS_MAX = 2.0

log = structlog.get_logger("lucius.dev")


class ChildFailed(Exception):
    """It did not come up. It has said why itself."""


class _ChildStarted(msgspec.Struct):
    pid: int
    url: str | None = None


class _Ready(msgspec.Struct):
    checks: dict[str, str]


class ChildProcess:
    def __init__(self, name: str, *arguments: str, env: Mapping[str, str]) -> None:
        """`arguments` of `lucius`; the part must take `--json`."""
        self.name = name
        self._arguments = arguments
        self._env = env
        self._process: Process | None = None
        self._up: _ChildStarted | None = None
        self._keeping: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Its own, not that of its guard; None while it is not up."""
        return None if self._up is None else self._up.pid

    async def start(self) -> None:
        """Returns once it is up. Raises `ChildFailed`."""
        await self._begin()
        self._keeping = asyncio.create_task(self._keep(), name=f"lucius {self.name}")

    async def stop(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait({self._keeping})
        if self._process is not None:
            await _end(self._process)

    async def check(self) -> str | None:
        """What it says of itself."""
        if self._up is None:
            return "it has ended and is being started again"
        if self._up.url is None:
            return None
        try:
            async with httpx2.AsyncClient(timeout=CHECK_SECONDS_MAX, trust_env=False) as client:
                answer = await client.get(f"{self._up.url}/readyz")
            checks = msgspec.json.decode(answer.content, type=_Ready).checks
        except (httpx2.HTTPError, msgspec.MsgspecError) as fault:
            return f"no answer: {type(fault).__name__}"
        return ", ".join(f"{name}: {said}" for name, said in checks.items() if said != "ok") or None

    async def _begin(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *guarded(*own_python("-m", "lucius.cli.main", *self._arguments, "--json")),
            stdin=PIPE,
            stdout=PIPE,
            env=own_environment(self._env),
            start_new_session=True,  # an interrupt at the keyboard is for us: the parts go after us
        )
        try:
            self._up = await self._announced(self._process)
        except BaseException:
            await _end(self._process)
            raise
        log.info("part_up", part=self.name, pid=self._up.pid, url=self._up.url)

    async def _announced(self, process: Process) -> _ChildStarted:
        assert process.stdout is not None
        line = asyncio.ensure_future(process.stdout.readline())
        ended = asyncio.ensure_future(process.wait())
        try:
            # It may end its output and live on, or end while a program of its own holds the stream.
            await asyncio.wait({line, ended}, timeout=START_SECONDS_MAX, return_when=asyncio.FIRST_COMPLETED)
            if line.done():
                if said := line.result():
                    return msgspec.json.decode(said, type=_ChildStarted)
                # Its output ends a moment before it does.
                await asyncio.wait({ended}, timeout=STOP_SECONDS_MAX)
            code = ended.result() if ended.done() else None
            why = "did not come up in time" if code is None else f"ended at its start ({code})"
            raise ChildFailed(f"The {self.name} {why}.")
        finally:
            line.cancel()
            ended.cancel()
            await asyncio.wait({line, ended})

    async def _keep(self) -> None:
        wait_seconds = AGAIN_SECONDS_FIRST
        while True:
            assert self._process is not None
            code = await self._process.wait()
            if self._up is not None:
                say(f"The {self.name} ended ({code}) and is started again.")
                wait_seconds = AGAIN_SECONDS_FIRST
            self._up = None
            await _end(self._process)  # of which a program of its own may be left
            await asyncio.sleep(wait_seconds)
            wait_seconds = min(2 * wait_seconds, AGAIN_SECONDS_MAX)
            try:
                await self._begin()
            except ChildFailed as fault:
                say(str(fault))


async def _end(process: Process) -> None:
    """Asks it to stop, and sees to it that nothing of it is left."""
    assert process.stdin is not None
    with suppress(ProcessLookupError):
        process.terminate()  # its guard passes it on
    try:
        await asyncio.wait_for(process.wait(), STOP_SECONDS_MAX)
    except TimeoutError:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    process.stdin.close()
