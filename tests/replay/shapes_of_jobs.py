"""The shapes that a job gives to its workflow: how it goes, and what its user wishes."""

import asyncio

from tests.replay.shape import LONG_MS, SHORT_MS, first, give_up, in_order, shape, silence
from tests.replay.temporal_setup_replay import LABELS, Deployment

from lucius.contracts.internal import AttemptRequest, InternalAnswer, Verdict
from lucius.core.states import JobState, StepState
from lucius.engines.temporal.client import StartOptions
from lucius.engines.temporal.workflow import JOB_FAILED
from lucius.jobs.workflows import StartOutcome
from lucius_lab.bench.stand_in_invoker import StandInInvoker
from lucius_lab.bench.stand_in_ledger import StandInLedger, StandInTimeouts


@shape
async def success(deployment: Deployment) -> StandInLedger:
    deployment.invoker.script = in_order
    stand_in = await deployment.begin(timeouts=StandInTimeouts(steps=3))
    assert await deployment.end(stand_in) == JobState.SUCCEEDED
    assert deployment.invoker.calls == ["attempt"] * 3
    assert [line for line in stand_in.trail if line.startswith("step_03")] == [
        "step_03/1 begun",
        "step_03/1 published",
        "step_03/1 acked",
        "step_03/1 succeeded",
    ]
    return stand_in


@shape
async def success_by_activities(deployment: Deployment) -> StandInLedger:
    stand_in = await deployment.begin(
        timeouts=StandInTimeouts(steps=2), options=StartOptions(local_calls=False)
    )
    assert await deployment.end(stand_in) == JobState.SUCCEEDED
    assert deployment.invoker.calls == ["attempt"] * 2
    return stand_in


@shape
async def success_with_labels(deployment: Deployment) -> StandInLedger:
    deployment.invoker.script = in_order
    stand_in = await deployment.begin(labels=LABELS)
    assert await deployment.end(stand_in) == JobState.SUCCEEDED
    return stand_in


@shape
async def retry(deployment: Deployment) -> StandInLedger:
    deployment.invoker.script = first(give_up)
    stand_in = await deployment.begin(timeouts=StandInTimeouts(steps=2, backoff_ms=SHORT_MS))
    assert await deployment.end(stand_in) == JobState.SUCCEEDED
    assert deployment.invoker.calls == ["attempt"] * 3
    assert "step_01/2 succeeded" in stand_in.trail
    return stand_in


@shape
async def retries_exhausted(deployment: Deployment) -> StandInLedger:
    deployment.invoker.script = give_up
    stand_in = await deployment.begin(timeouts=StandInTimeouts(steps=2, attempts_max=2))
    assert await deployment.end(stand_in) == JOB_FAILED
    assert deployment.invoker.calls == ["attempt"] * 2
    return stand_in


@shape
async def final_failure(deployment: Deployment) -> StandInLedger:
    async def fail(invoker: StandInInvoker, stand_in: StandInLedger) -> None:
        await invoker.result(stand_in, StepState.FAILED_FINAL)

    deployment.invoker.script = fail
    stand_in = await deployment.begin(timeouts=StandInTimeouts(steps=3))
    assert await deployment.end(stand_in) == JOB_FAILED
    assert deployment.invoker.calls == ["attempt"]
    return stand_in


@shape
async def ack_timeout(deployment: Deployment) -> StandInLedger:
    deployment.invoker.script = first(silence)
    stand_in = await deployment.begin(timeouts=StandInTimeouts(steps=1, ack_timeout_ms=SHORT_MS))
    assert await deployment.end(stand_in) == JobState.SUCCEEDED
    assert "step_01/1 ACK_TIMEOUT" in stand_in.trail
    assert "step_01/2 succeeded" in stand_in.trail
    return stand_in


@shape
async def lease_expiry(deployment: Deployment) -> StandInLedger:
    async def acknowledge(invoker: StandInInvoker, stand_in: StandInLedger) -> None:
        await invoker.ack(stand_in)

    deployment.invoker.script = first(acknowledge)
    stand_in = await deployment.begin(timeouts=StandInTimeouts(steps=1, lease_ms=SHORT_MS))
    assert await deployment.end(stand_in) == JobState.SUCCEEDED
    assert "step_01/1 LEASE_EXPIRED" in stand_in.trail
    return stand_in


@shape
async def ack_untold(deployment: Deployment) -> StandInLedger:
    """Without `step_ack` signals a deadline is found to have moved when it is asked about."""
    asked = asyncio.Event()

    def notice(invoker: StandInInvoker, stand_in: StandInLedger, call: str) -> InternalAnswer | int | None:
        if call == "expire":
            asked.set()
        return None

    async def slowly(invoker: StandInInvoker, stand_in: StandInLedger) -> None:
        await invoker.ack(stand_in, told=False)
        await asked.wait()
        await invoker.result(stand_in, StepState.SUCCEEDED)

    deployment.invoker.interfere, deployment.invoker.script = notice, slowly
    stand_in = await deployment.begin(timeouts=StandInTimeouts(steps=1, ack_timeout_ms=SHORT_MS))
    assert await deployment.end(stand_in) == JobState.SUCCEEDED
    assert deployment.invoker.calls == ["attempt", "expire"]
    assert "step_01/1 succeeded" in stand_in.trail
    return stand_in


@shape
async def clocks_differ(deployment: Deployment) -> StandInLedger:
    """The ledger's clock is behind: the deadline has not come for it, and the workflow asks again."""

    def not_yet(invoker: StandInInvoker, stand_in: StandInLedger, call: str) -> InternalAnswer | int | None:
        if call == "expire" and invoker.calls.count("expire") == 1:
            return stand_in.answer(Verdict.MOVED)
        return None

    deployment.invoker.interfere, deployment.invoker.script = not_yet, first(silence)
    stand_in = await deployment.begin(timeouts=StandInTimeouts(steps=1, ack_timeout_ms=SHORT_MS))
    assert await deployment.end(stand_in) == JobState.SUCCEEDED
    assert deployment.invoker.calls == ["attempt", "expire", "expire", "attempt"]
    return stand_in


@shape
async def pause_and_resume(deployment: Deployment) -> StandInLedger:
    paused = asyncio.Event()

    async def paused_meanwhile(invoker: StandInInvoker, stand_in: StandInLedger) -> None:
        await invoker.control(stand_in, "pause")
        await invoker.result(stand_in, StepState.SUCCEEDED)
        paused.set()

    deployment.invoker.script = first(paused_meanwhile)
    stand_in = await deployment.begin(timeouts=StandInTimeouts(steps=2))
    await paused.wait()
    view = await deployment.handle(stand_in).query("position")
    assert view["position"]["job_state"] == JobState.PAUSED
    assert view["next"] is None
    assert deployment.invoker.calls == ["attempt"]
    await deployment.invoker.control(stand_in, "resume")
    assert await deployment.end(stand_in) == JobState.SUCCEEDED
    return stand_in


@shape
async def held(deployment: Deployment) -> StandInLedger:
    """The pause is in the ledger before the workflow asks, and nobody told it."""
    asked = asyncio.Event()

    def pause_first(
        invoker: StandInInvoker, stand_in: StandInLedger, call: str
    ) -> InternalAnswer | int | None:
        if not asked.is_set():
            stand_in.pause()
            asked.set()
        return None

    deployment.invoker.interfere = pause_first
    stand_in = await deployment.begin()
    await asked.wait()
    await deployment.invoker.control(stand_in, "resume")
    assert await deployment.end(stand_in) == JobState.SUCCEEDED
    assert deployment.invoker.calls == ["attempt", "attempt"]
    return stand_in


@shape
async def cancel_under_way(deployment: Deployment) -> StandInLedger:
    async def cancelled_meanwhile(invoker: StandInInvoker, stand_in: StandInLedger) -> None:
        await invoker.control(stand_in, "cancel")
        assert stand_in.job_state is JobState.CANCELLING
        await invoker.result(stand_in, StepState.FAILED_RETRY)

    deployment.invoker.script = cancelled_meanwhile
    stand_in = await deployment.begin(timeouts=StandInTimeouts(steps=2))
    assert await deployment.end(stand_in) == JobState.CANCELLED
    assert deployment.invoker.calls == ["attempt"]
    return stand_in


@shape
async def cancel_between_attempts(deployment: Deployment) -> StandInLedger:
    """A workflow that rests for a minute hears the cancel at once."""
    failed = asyncio.Event()

    async def fail_once(invoker: StandInInvoker, stand_in: StandInLedger) -> None:
        await invoker.result(stand_in, StepState.FAILED_RETRY)
        failed.set()

    deployment.invoker.script = fail_once
    stand_in = await deployment.begin(timeouts=StandInTimeouts(steps=1, backoff_ms=LONG_MS))
    await failed.wait()
    await deployment.invoker.control(stand_in, "cancel")
    assert await deployment.end(stand_in) == JobState.CANCELLED
    assert deployment.invoker.calls == ["attempt"]
    return stand_in


@shape
async def late_and_double_signals(deployment: Deployment) -> StandInLedger:
    """Old news, the same news twice, and nonsense change nothing."""

    async def chatter(invoker: StandInInvoker, stand_in: StandInLedger) -> None:
        handle = deployment.handle(stand_in)
        before = {"position": {"version": 0, "job_state": "SUCCEEDED"}}
        await handle.signal("step_result", {"jobId": stand_in.job_id, **before})
        await handle.signal("step_ack", {"position": "nowhere"})
        await handle.signal("step_result", "not even an object")
        await invoker.ack(stand_in)
        await invoker.signal(stand_in, "step_ack")
        await invoker.result(stand_in, StepState.SUCCEEDED)
        await invoker.signal(stand_in, "step_result")

    deployment.invoker.script = first(chatter)
    stand_in = await deployment.begin(timeouts=StandInTimeouts(steps=2))
    assert await deployment.end(stand_in) == JobState.SUCCEEDED
    assert deployment.invoker.calls == ["attempt"] * 2
    return stand_in


@shape
async def begun_in_the_middle(deployment: Deployment) -> StandInLedger:
    """The workflow starts with what was true at creation, and the job is long past that."""
    stand_in = deployment.invoker.create(f"job_{deployment.name}", StandInTimeouts(steps=3))
    at_creation = stand_in.position()
    stand_in.index, stand_in.version = 1, 9
    assert await deployment.start(stand_in, position=at_creation) is StartOutcome.STARTED
    assert await deployment.end(stand_in) == JobState.SUCCEEDED
    assert deployment.invoker.calls == ["attempt"] * 3
    assert not [line for line in stand_in.trail if line.startswith("step_01")]
    return stand_in


async def _orphaned(deployment: Deployment) -> StandInLedger:
    """A job whose workflow was killed while its first step of two was under way."""
    handed_out = asyncio.Event()

    async def take(invoker: StandInInvoker, stand_in: StandInLedger) -> None:
        await invoker.ack(stand_in)
        handed_out.set()

    deployment.invoker.script = first(take)
    stand_in = await deployment.begin(timeouts=StandInTimeouts(steps=2))
    await handed_out.wait()
    await deployment.handle(stand_in).terminate("to be repaired")
    return stand_in


@shape
async def repaired(deployment: Deployment) -> StandInLedger:
    """A workflow that was killed while a step was under way: another takes over where the job stands."""
    stand_in = await _orphaned(deployment)
    assert await deployment.start(stand_in) is StartOutcome.STARTED
    assert await deployment.start(stand_in) is StartOutcome.RUNNING
    await deployment.invoker.result(stand_in, StepState.SUCCEEDED)
    assert await deployment.end(stand_in) == JobState.SUCCEEDED
    assert await deployment.start(stand_in) is StartOutcome.RUNNING
    assert deployment.invoker.calls == ["attempt"] * 3, "the second workflow asks first for what is under way"
    return stand_in


@shape
async def repaired_unheard(deployment: Deployment) -> StandInLedger:
    """The RESULT was told to a workflow that is no more, and the next one knows of an older position."""
    stand_in = await _orphaned(deployment)
    position = stand_in.position()
    stand_in.result(StepState.SUCCEEDED, deployment.invoker.now_ms())
    assert await deployment.start(stand_in, position=position) is StartOutcome.STARTED
    assert await deployment.end(stand_in) == JobState.SUCCEEDED
    assert stand_in.trail.count("step_01/1 succeeded") == 1
    return stand_in


@shape
async def told_by_answers(deployment: Deployment) -> StandInLedger:
    """Every step was done by the time that its question was answered: nothing is signalled."""

    def done_at_once(invoker: StandInInvoker, stand_in: StandInLedger, call: str) -> InternalAnswer | None:
        ask = AttemptRequest(
            jobId=stand_in.job_id, stepId=stand_in.step_id, attempt_no=1, lease_id=f"L-{stand_in.step_id}"
        )
        assert stand_in.attempt(ask).verdict is Verdict.GO
        assert stand_in.publish(ask, invoker.now_ms()).verdict is Verdict.GO
        stand_in.result(StepState.SUCCEEDED, invoker.now_ms())
        return stand_in.answer(Verdict.MOVED)

    deployment.invoker.interfere = done_at_once
    stand_in = await deployment.begin(timeouts=StandInTimeouts(steps=3))
    assert await deployment.end(stand_in) == JobState.SUCCEEDED
    assert deployment.invoker.calls == ["attempt"] * 3
    return stand_in


@shape
async def answer_lost(deployment: Deployment) -> StandInLedger:
    """A signal comes while the question is open whose answer is the RESULT: the server lets the task fail
    that would end the workflow, and the next one knows of the attempt from the signal alone."""

    async def signalled_and_done(invoker: StandInInvoker, stand_in: StandInLedger) -> InternalAnswer | None:
        if len(invoker.calls) > 1:
            return None
        ask = AttemptRequest(jobId=stand_in.job_id, stepId=stand_in.step_id, attempt_no=1, lease_id="L")
        assert stand_in.attempt(ask).verdict is Verdict.GO
        assert stand_in.publish(ask, invoker.now_ms()).verdict is Verdict.GO
        await invoker.signal(stand_in, "resume")
        stand_in.result(StepState.SUCCEEDED, invoker.now_ms())
        return stand_in.answer(Verdict.MOVED)

    deployment.invoker.interfere = lambda invoker, stand_in, call: signalled_and_done(invoker, stand_in)
    stand_in = await deployment.begin(timeouts=StandInTimeouts(steps=1))
    assert await deployment.end(stand_in) == JobState.SUCCEEDED
    assert deployment.invoker.calls == ["attempt"] * 2
    return stand_in
