"""A bare workflow of the shape of a job's, to measure ours against: steps of one activity and one signal, or
two where ACKs are signalled too.

It knows no positions, deadlines, pauses or repairs: what it costs is what Temporal costs. Its activity makes
the same kind of HTTP call, and its signal comes from the same process as ours.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx2
import msgspec
from temporalio import activity, workflow

from lucius.contracts.internal import StepSignal
from lucius.core.states import JOB_TERMINAL, StepState
from lucius_lab.bench.stand_in_invoker import StandInInvoker
from lucius_lab.bench.stand_in_ledger import StandInLedger

BARE_WORKFLOW = "BareJob"
BARE_ACTIVITY = "bare_step"
BARE_SIGNAL = "done"
CALL_SECONDS_MAX = 5


@workflow.defn(name=BARE_WORKFLOW)
class BareWorkflow:
    def __init__(self) -> None:
        self._done = 0

    @workflow.run
    async def run(self, given: dict[str, Any]) -> int:
        call = workflow.execute_local_activity if given["local_calls"] else workflow.execute_activity
        for step in range(given["steps"]):
            await call(BARE_ACTIVITY, given, start_to_close_timeout=timedelta(seconds=CALL_SECONDS_MAX))
            heard = (step + 1) * given["signals"]
            await workflow.wait_condition(lambda expected=heard: self._done >= expected)  # type: ignore[misc]
        return self._done

    @workflow.signal(name=BARE_SIGNAL)
    def done(self, told: dict[str, Any]) -> None:
        self._done += 1


class BareCalls:
    def __init__(self, url: str) -> None:
        self._client = httpx2.AsyncClient(base_url=url, timeout=CALL_SECONDS_MAX, trust_env=False)

    def activities(self) -> list[Callable[..., Any]]:
        return [self.step]

    @activity.defn(name=BARE_ACTIVITY)
    async def step(self, given: dict[str, Any]) -> dict[str, Any]:
        response = await self._client.post("/v1/internal/bare", content=msgspec.json.encode(given))
        answer: dict[str, Any] = msgspec.json.decode(response.content)
        return answer


class BareInvoker(StandInInvoker):
    """Says yes to every call and signals at once, as often as a step is signalled."""

    signals = 1

    async def _answer(self, head: str, body: bytes) -> tuple[int, bytes]:
        if not head.startswith("post /v1/internal/bare "):
            return await super()._answer(head, body)
        stand_in = self.stand_ins[msgspec.json.decode(body)["jobId"]]
        stand_in.result(StepState.SUCCEEDED, self.now_ms())
        # The worker may be at the last step before the signals of the one before it have returned here.
        self._spawn(self._tell(stand_in, last=stand_in.job_state in JOB_TERMINAL))
        return 200, msgspec.json.encode({"position": stand_in.position()})

    async def _tell(self, stand_in: StandInLedger, *, last: bool) -> None:
        for _ in range(self.signals):
            await self.notify(
                stand_in, BARE_SIGNAL, StepSignal(jobId=stand_in.job_id, position=stand_in.position())
            )
        if last:
            self._look(stand_in)
