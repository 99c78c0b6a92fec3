"""Workflows for tests that run workers in processes of their own."""

import asyncio
import os
from pathlib import Path
from typing import Any

from lucius.lifebook.failures import StepFailed
from lucius.lifebook.workflows import StepRun, step, workflow

RAN_VARIABLE = "TEST_LIFEBOOK_RAN"


@workflow("told")
class Told:
    """Fails and sleeps as its input says."""

    @step(credits="0.1")
    async def first(self, run: StepRun) -> Any:
        await asyncio.sleep(run.input.get("sleep", 0))
        if run.attempt <= run.input.get("fails", 0):
            raise StepFailed("TOLD", "as it was told")
        return {"attempt": run.attempt}

    @step(credits="0.1")
    async def second(self, run: StepRun) -> Any:
        if run.attempt == 1:
            await asyncio.sleep(run.input.get("sleep_second", 0))
        if run.redrives == 0 and run.attempt <= run.input.get("fails_second", 0):
            raise StepFailed("TOLD", "as it was told")
        return run.token

    @step(credits="0")
    def third(self, run: StepRun) -> Any:
        """In a thread, since it is no coroutine."""
        return run.token


@workflow("five")
class Five:
    """Notes each step that begins, so that a test can tell which ran again."""

    async def _note(self, run: StepRun) -> Any:
        path = os.environ.get(RAN_VARIABLE)
        if path is not None:
            with Path(path).open("a", encoding="utf-8") as notes:
                notes.write(f"{run.job_id} {run.index} {os.getpid()}\n")
        await asyncio.sleep(0.01)
        return run.index

    @step(credits="0.125")
    async def one(self, run: StepRun) -> Any:
        return await self._note(run)

    @step(credits="0.125")
    async def two(self, run: StepRun) -> Any:
        return await self._note(run)

    @step(credits="0.125")
    async def three(self, run: StepRun) -> Any:
        return await self._note(run)

    @step(credits="0.125")
    async def four(self, run: StepRun) -> Any:
        return await self._note(run)

    @step(credits="0.125")
    async def five(self, run: StepRun) -> Any:
        return await self._note(run)
