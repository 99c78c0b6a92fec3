"""Certificates for an agent: Lucius plays itself against a worker that the user starts.

In: a service, samples of work, rules. Out: the environment that the worker shall have, and later what became
of it. `lucius certify` does it, as a process of ours: no command of a caller is ever run, and no file of this
machine is named to the worker.
"""

import asyncio
import json
import re
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from lucius.guard import guarded, own_environment, own_python

BEGIN_SECONDS_MAX: Final = 30.0
SAID_CHARS_MAX: Final = 2_000
_variables = re.compile(r"\b(LUCIUS_[A-Z_]+)=(\S+)")


class NotCertified(Exception):
    """There is no certificate. The text says why."""


class CertifyRun:
    """One certificate that is being made."""

    def __init__(self, number: int, folder: "TemporaryDirectory[str]", process: Process) -> None:
        self.number = number
        self.environment: dict[str, str] = {}
        self._folder = folder
        self._process = process
        self._said = ""
        self._addressed = asyncio.Event()
        self._saying = asyncio.ensure_future(self._listen())
        self._outcome = asyncio.ensure_future(self._end())

    async def addressed(self) -> None:
        """Waits until it is known where the worker shall come. Raises `NotCertified`."""
        known = asyncio.ensure_future(self._addressed.wait())
        await asyncio.wait({known, self._outcome}, timeout=BEGIN_SECONDS_MAX, return_when="FIRST_COMPLETED")
        known.cancel()
        if not self.environment:
            await self.close()
            raise NotCertified(self._last_words() or "it did not begin")

    @property
    def going_on(self) -> bool:
        return not self._outcome.done()

    async def outcome(self, within_seconds: float) -> dict[str, Any] | None:
        """The certificate; None: not yet. Raises `NotCertified`."""
        await asyncio.wait({self._outcome}, timeout=within_seconds)
        if self.going_on:
            return None
        found = self._outcome.result()
        if found is None:
            raise NotCertified(self._last_words() or "it came to nothing")
        return found

    async def close(self) -> None:
        with suppress(ProcessLookupError):
            self._process.terminate()
        await asyncio.wait({self._outcome})

    async def _listen(self) -> None:
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            text = line.decode(errors="replace")
            self._said = (self._said + text)[-SAID_CHARS_MAX:]
            if not self.environment and text.startswith("Start the service "):
                self.environment = dict(_variables.findall(text))
                self._addressed.set()

    async def _end(self) -> dict[str, Any] | None:
        assert self._process.stdout is not None
        try:
            written = await self._process.stdout.read()
            await self._process.wait()
            await self._saying
        finally:
            self._folder.cleanup()
        try:
            found = json.loads(written)
        except ValueError:
            return None
        return found if isinstance(found, dict) else None

    def _last_words(self) -> str:
        return self._said.strip().rpartition("\n")[2]


class CertifyRuns:
    """One at a time: each plays all of Lucius."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = own_environment(environment)
        self._turn = asyncio.Lock()
        self._run: CertifyRun | None = None
        self._count = 0

    async def begin(
        self, service: str, step_type: str, samples: Mapping[str, Any] | None, rules: Sequence[str]
    ) -> CertifyRun:
        """Raises `NotCertified`."""
        async with self._turn:
            if self._run is not None and self._run.going_on:
                raise NotCertified(f"certificate {self._run.number} is being made: one at a time")
            self._run = await self._begun(service, step_type, samples, rules)
            await self._run.addressed()
            return self._run

    async def _begun(
        self, service: str, step_type: str, samples: Mapping[str, Any] | None, rules: Sequence[str]
    ) -> CertifyRun:
        folder = TemporaryDirectory(prefix="lucius-certify-")
        line = ["certify", "--json", "--service", service, "--step-type", step_type]
        line += ["--data", str(Path(folder.name, "data"))]
        line += [word for rule in rules for word in ("--rule", rule)]
        if samples is not None:
            line += ["--sample", _written(samples, folder.name)]
        process = await asyncio.create_subprocess_exec(
            *guarded(*own_python("-m", "lucius.cli.main", *line)),
            stdin=PIPE,  # what the guard knows us by
            stdout=PIPE,
            stderr=PIPE,
            env=self._environment,
            start_new_session=True,
        )
        self._count += 1
        return CertifyRun(self._count, folder, process)

    def numbered(self, number: int) -> CertifyRun:
        """Raises `NotCertified`."""
        if self._run is None or self._run.number != number:
            raise NotCertified(f"there is no certificate {number}; the last one is kept alone")
        return self._run


def _written(samples: Mapping[str, Any], folder: str) -> str:
    file = Path(folder, "samples.json")
    file.write_text(json.dumps(samples), encoding="utf-8")
    return str(file)
