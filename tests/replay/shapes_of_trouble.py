"""The shapes that trouble around a job gives to its workflow: full lanes, dead invokers, unknown words."""

import asyncio
import dataclasses
from typing import Any

import msgspec
from tests.replay.shape import SHORT_MS, first, in_order, shape
from tests.replay.temporal_setup_replay import Deployment

from lucius.contracts.internal import InternalAnswer, StepSignal, Verdict
from lucius.core.states import JobState, StepState
from lucius.engines.temporal.client import StartOptions
from lucius.engines.temporal.workflow import JOB_NOT_FOUND
from lucius_lab.bench.stand_in_invoker import StandInInvoker, succeed
from lucius_lab.bench.stand_in_ledger import StandInLedger, StandInTimeouts


@shape
async def window_full(deployment: Deployment) -> StandInLedger:
    def full(invoker: StandInInvoker, stand_in: StandInLedger, call: str) -> InternalAnswer | int | None:
        return stand_in.answer(Verdict.WAIT, again_in_ms=SHORT_MS) if len(invoker.calls) <= 2 else None

    deployment.invoker.interfere = full
    stand_in = await deployment.begin()
    assert await deployment.end(stand_in) == JobState.SUCCEEDED
    assert deployment.invoker.calls == ["attempt"] * 3
    return stand_in


@shape
async def history_grows(deployment: Deployment) -> StandInLedger:
    """A job that waits for long goes on in a new run, and the runs together are one workflow."""

    def full(invoker: StandInInvoker, stand_in: StandInLedger, call: str) -> InternalAnswer | int | None:
        return stand_in.answer(Verdict.WAIT, again_in_ms=1) if len(invoker.calls) <= 12 else None

    deployment.invoker.interfere = full
    stand_in = await deployment.begin(options=StartOptions(history_events_max=30))
    began = (await deployment.handle(stand_in).describe()).run_id
    assert await deployment.end(stand_in) == JobState.SUCCEEDED
    ended = await deployment.handle(stand_in).describe()
    assert ended.run_id != began
    assert ended.history_length < 60
    return stand_in


@shape
async def bus_away(deployment: Deployment) -> StandInLedger:
    """The attempt is begun but its directive could not leave: the same attempt is published later."""

    def no_bus(invoker: StandInInvoker, stand_in: StandInLedger, call: str) -> InternalAnswer | int | None:
        if call == "attempt":
            stand_in.step_state, stand_in.attempt_no, stand_in.lease_id = StepState.INITIATED, 1, "lease"
            stand_in.put_off(invoker.now_ms() + SHORT_MS)
            return stand_in.answer(Verdict.GO)
        return None

    deployment.invoker.interfere = no_bus
    stand_in = await deployment.begin()
    assert await deployment.end(stand_in) == JobState.SUCCEEDED
    assert deployment.invoker.calls == ["attempt", "publish"]
    return stand_in


@shape
async def invoker_away(deployment: Deployment) -> StandInLedger:
    """A local call is made once; the server's retries go on until the invoker answers."""

    def away(invoker: StandInInvoker, stand_in: StandInLedger, call: str) -> InternalAnswer | int | None:
        return 503 if len(invoker.calls) <= 3 else None

    deployment.invoker.interfere = away
    stand_in = await deployment.begin()
    assert await deployment.end(stand_in) == JobState.SUCCEEDED
    assert deployment.invoker.calls == ["attempt"] * 4
    return stand_in


@shape
async def ended_while_the_invoker_was_away(deployment: Deployment) -> StandInLedger:
    """A workflow that cannot ask still hears: it ends with its job."""
    asked = asyncio.Event()

    def away(invoker: StandInInvoker, stand_in: StandInLedger, call: str) -> InternalAnswer | int | None:
        if len(invoker.calls) > 1:  # by the server's retries
            asked.set()
        return 503

    deployment.invoker.interfere = away
    stand_in = await deployment.begin()
    await asked.wait()
    await deployment.invoker.control(stand_in, "cancel")
    assert await deployment.end(stand_in) == JobState.CANCELLED
    return stand_in


@shape
async def job_unknown(deployment: Deployment) -> StandInLedger:
    stand_in = deployment.invoker.create(f"job_{deployment.name}", StandInTimeouts(steps=1))
    deployment.invoker.forget(stand_in)
    await deployment.start(stand_in)
    assert await deployment.end(stand_in) == JOB_NOT_FOUND
    return stand_in


@shape
async def words_of_tomorrow(deployment: Deployment) -> StandInLedger:
    """States that this worker does not know make it wait for news, not fall over."""

    async def newer_words(invoker: StandInInvoker, stand_in: StandInLedger) -> None:
        strange = {"version": stand_in.version + 1, "job_state": "HIBERNATING", "stepId": stand_in.step_id}
        told = {"jobId": stand_in.job_id, "position": {**strange, "step_state": "DREAMING", "moon": 3}}
        await deployment.handle(stand_in).signal("step_ack", told)
        view = await deployment.handle(stand_in).query("position")
        assert view["position"]["step_state"] == "DREAMING"
        stand_in.version += 2
        await invoker.result(stand_in, StepState.SUCCEEDED)

    deployment.invoker.script = newer_words
    stand_in = await deployment.begin()
    assert await deployment.end(stand_in) == JobState.SUCCEEDED
    return stand_in


@shape
async def signals_by_hand(deployment: Deployment) -> StandInLedger:
    """Whatever an operator types, it is heard without harm."""

    async def meddled_with(invoker: StandInInvoker, stand_in: StandInLedger) -> None:
        for name in ("step_ack", "step_result", "pause", "resume", "cancel"):
            await deployment.handle(stand_in).signal(name)
            await deployment.handle(stand_in).signal(name, "junk")
            await deployment.handle(stand_in).signal(
                name, args=[{"position": {"version": 99, "job_state": "X"}}, 2]
            )
        await succeed(invoker, stand_in)

    deployment.invoker.script = first(meddled_with)
    stand_in = await deployment.begin(timeouts=StandInTimeouts(steps=2))
    assert await deployment.end(stand_in) == JobState.SUCCEEDED
    assert deployment.invoker.calls == ["attempt", "attempt"]
    return stand_in


def copied(stand_in: StandInLedger) -> dict[str, Any]:
    return dataclasses.asdict(stand_in) | {"timeouts": stand_in.timeouts}


@shape
async def ledger_put_back(deployment: Deployment) -> StandInLedger:
    """The ledger is an older copy of itself: its answer counts, though the workflow knew more."""
    return await _put_back(deployment, gone_on=False)


@shape
async def ledger_put_back_and_gone_on(deployment: Deployment) -> StandInLedger:
    """It has as many commits as before by now, and others."""
    return await _put_back(deployment, gone_on=True)


async def _put_back(deployment: Deployment, *, gone_on: bool) -> StandInLedger:
    copies: list[dict[str, Any]] = []

    async def put_back(invoker: StandInInvoker, stand_in: StandInLedger) -> None:
        if not copies:
            copies.append(copied(stand_in))
            await in_order(invoker, stand_in)
        elif len(copies) == 1:
            copies.append({})
            vars(stand_in).update(copies[0] | ({"version": stand_in.version} if gone_on else {}))
        else:
            await succeed(invoker, stand_in)

    deployment.invoker.script = put_back
    stand_in = await deployment.begin(timeouts=StandInTimeouts(steps=2, ack_timeout_ms=SHORT_MS))
    assert await deployment.end(stand_in) == JobState.SUCCEEDED
    assert stand_in.trail == [
        "step_01/1 begun",
        "step_01/1 published",
        "step_01/1 ACK_TIMEOUT",
        "step_01/2 begun",
        "step_01/2 published",
        "step_01/2 acked",
        "step_01/2 succeeded",
        "step_02/1 begun",
        "step_02/1 published",
        "step_02/1 acked",
        "step_02/1 succeeded",
    ]
    return stand_in


@shape
async def ledger_put_back_unasked(deployment: Deployment) -> StandInLedger:
    """A workflow that waits for news alone, and asks nothing, is told by the alarm of its job."""
    return await _put_back_unasked(deployment, gone_on=False)


@shape
async def ledger_put_back_unasked_and_gone_on(deployment: Deployment) -> StandInLedger:
    return await _put_back_unasked(deployment, gone_on=True)


async def _put_back_unasked(deployment: Deployment, *, gone_on: bool) -> StandInLedger:
    paused = asyncio.Event()

    async def paused_and_put_back(invoker: StandInInvoker, stand_in: StandInLedger) -> None:
        copy = copied(stand_in)
        await invoker.control(stand_in, "pause")
        await invoker.result(stand_in, StepState.SUCCEEDED)
        vars(stand_in).update(copy | ({"version": stand_in.version} if gone_on else {}))
        paused.set()

    deployment.invoker.script = first(paused_and_put_back)
    stand_in = await deployment.begin(timeouts=StandInTimeouts(steps=2, ack_timeout_ms=SHORT_MS))
    await paused.wait()
    stale = StepSignal(jobId=stand_in.job_id, position=stand_in.position())
    await deployment.invoker.notify(stand_in, "resume", stale)
    assert (await deployment.handle(stand_in).query("position"))["position"]["job_state"] == JobState.PAUSED
    await deployment.invoker.notify(stand_in, "resume", msgspec.structs.replace(stale, alarm=True))
    assert await deployment.end(stand_in) == JobState.SUCCEEDED
    assert stand_in.trail[:3] == ["step_01/1 begun", "step_01/1 published", "step_01/1 ACK_TIMEOUT"]
    return stand_in
