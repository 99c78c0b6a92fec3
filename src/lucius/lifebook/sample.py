"""The workflow that `lucius lifebook dev` shows: it counts the words of a text, in three steps."""

import asyncio
from typing import Final

from lucius.lifebook.workflows import StepRun, step, workflow

STEP_SECONDS: Final = 0.4
TEXT: Final = "A job is worked through its steps, whatever crashes on the way."


@workflow("sample")
class SampleWorkflow:
    @step(credits="0.25", timeout_seconds=30)
    async def fetch(self, run: StepRun) -> dict[str, str]:
        await asyncio.sleep(STEP_SECONDS)
        return {"text": str(run.input.get("text", TEXT))[:1_000]}

    @step(credits="0.5", timeout_seconds=30)
    async def count(self, run: StepRun) -> dict[str, int]:
        await asyncio.sleep(STEP_SECONDS)
        return {"words": len(run.results[0]["text"].split())}

    @step(credits="0.25", timeout_seconds=30)
    async def report(self, run: StepRun) -> dict[str, str]:
        await asyncio.sleep(STEP_SECONDS)
        return {"summary": f"{run.results[1]['words']} words"}
