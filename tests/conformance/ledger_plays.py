"""The operations that a process may die in: how to get to each of them, and how the job may end.

In: a `World`. Out: the act itself, to be done by whichever process the test likes.
"""

from collections.abc import Awaitable, Callable

import msgspec
import pytest
from tests.conformance.ledger_setup import Deployment, Died, Trial, World, submit

from lucius.core.attempt import AttemptRef
from lucius.core.inputs import Cancel, Pause, Result, ResultStatus, Resume
from lucius.core.states import JobState
from lucius.ledger.commit_plan import GRACE_MS

Act = Callable[[Deployment], Awaitable[object]]
S, F, C = JobState.SUCCEEDED, JobState.FAILED_FINAL, JobState.CANCELLED


class Play(msgspec.Struct, frozen=True, kw_only=True):
    """An operation: how to get to it, and how the job may end, asked once or asked again after the crash."""

    prepare: Callable[[World], Awaitable[Act]]
    ends: frozenset[JobState]
    ends_when_asked_again: frozenset[JobState]


async def handed_out(world: World, request_type: str = "OCR_EMBEDDING") -> AttemptRef:
    deployment = world.deployment()
    await submit(deployment, request_type=request_type)
    (attempt,) = await deployment.take("ocr")
    return attempt


async def acked(world: World, request_type: str = "OCR_EMBEDDING") -> AttemptRef:
    attempt = await handed_out(world, request_type)
    await world.deployment().ack(attempt)
    return attempt


async def ended(world: World, status: ResultStatus) -> AttemptRef:
    attempt = await acked(world, "OCR")
    await world.deployment().result(attempt, status, "BROKEN")
    world.clock.now_ms += 5
    return attempt


async def submit_first(world: World) -> Act:
    return lambda deployment: submit(deployment, request_type="OCR_EMBEDDING", key="k")


async def hand_out(world: World) -> Act:
    await submit(world.deployment(), request_type="OCR_EMBEDDING")
    return lambda deployment: deployment.take("ocr")


async def ack(world: World) -> Act:
    attempt = await handed_out(world)
    return lambda deployment: deployment.ack(attempt)


async def result_middle(world: World) -> Act:
    attempt = await acked(world)
    world.clock.now_ms += 5
    return lambda deployment: deployment.result(attempt)


async def result_at_once(world: World) -> Act:
    attempt = await handed_out(world)
    return lambda deployment: deployment.result(attempt)


async def result_last(world: World) -> Act:
    attempt = await acked(world, "OCR")
    world.clock.now_ms += 5
    return lambda deployment: deployment.result(attempt)


async def result_retryable(world: World) -> Act:
    attempt = await acked(world)
    return lambda deployment: deployment.result(attempt, ResultStatus.FAILED_RETRY, "BUSY")


async def result_final(world: World) -> Act:
    attempt = await acked(world)
    world.clock.now_ms += 5
    return lambda deployment: deployment.result(attempt, ResultStatus.FAILED_FINAL, "BROKEN")


async def ack_timeout(world: World) -> Act:
    await handed_out(world)
    world.clock.now_ms += 30_000
    return lambda deployment: deployment.sweeper.sweep()


async def lease_expiry(world: World) -> Act:
    await acked(world)
    world.clock.now_ms += 450_000
    await world.deployment().sweeper.sweep()  # the row of the ACK deadline is moved
    world.clock.now_ms += 450_000
    return lambda deployment: deployment.sweeper.sweep()


async def retry_begins(world: World) -> Act:
    attempt = await acked(world)
    await world.deployment().result(attempt, ResultStatus.FAILED_RETRY, "BUSY")
    world.clock.now_ms += 30_000
    return lambda deployment: deployment.sweeper.sweep()


async def row_moved(world: World) -> Act:
    """The row of the ACK's deadline comes due; the ACK has moved the deadline to the end of the lease."""
    await acked(world)
    world.clock.now_ms += GRACE_MS
    return lambda deployment: deployment.sweeper.sweep()


async def cancel_waiting(world: World) -> Act:
    job_id = await submit(world.deployment(), request_type="OCR_EMBEDDING")
    world.clock.now_ms += 5
    return lambda deployment: deployment.writer.apply(job_id, Cancel())


async def cancel_under_way(world: World) -> Act:
    attempt = await acked(world)
    return lambda deployment: deployment.writer.apply(attempt.job_id, Cancel())


async def cancelled_by_timeout(world: World) -> Act:
    attempt = await handed_out(world)
    await world.deployment().writer.apply(attempt.job_id, Cancel())
    world.clock.now_ms += 30_000
    return lambda deployment: deployment.sweeper.sweep()


async def pause_waiting(world: World) -> Act:
    job_id = await submit(world.deployment(), request_type="OCR_EMBEDDING")
    return lambda deployment: deployment.writer.apply(job_id, Pause())


async def pause_under_way(world: World) -> Act:
    attempt = await acked(world)
    return lambda deployment: deployment.writer.apply(attempt.job_id, Pause())


async def resume_waiting(world: World) -> Act:
    job_id = await submit(world.deployment(), request_type="OCR_EMBEDDING")
    await world.deployment().writer.apply(job_id, Pause())
    return lambda deployment: deployment.writer.apply(job_id, Resume())


async def resume_between_steps(world: World) -> Act:
    attempt = await acked(world)
    await world.deployment().writer.apply(attempt.job_id, Pause())
    await world.deployment().result(attempt)
    return lambda deployment: deployment.writer.apply(attempt.job_id, Resume())


async def rerun(world: World) -> Act:
    attempt = await ended(world, ResultStatus.FAILED_FINAL)
    return lambda deployment: deployment.reruns.rerun(attempt.job_id, from_step=None, key=None)


async def redrive(world: World) -> Act:
    attempt = await ended(world, ResultStatus.FAILED_FINAL)
    return lambda deployment: deployment.reruns.rerun(attempt.job_id, from_step=None, key="again")


async def late_successes(
    world: World, request_type: str = "OCR", *, times: int = 1
) -> tuple[AttemptRef, int]:
    """A cancelled job whose first step has succeeded too late, and the last event that tells of it."""
    attempt = await acked(world, request_type)
    await world.deployment().writer.apply(attempt.job_id, Cancel())
    world.clock.now_ms += 900_000
    await world.deployment().sweeper.sweep()
    await world.deployment().sweeper.sweep()  # the first one may only have moved the row
    late = Result(
        step_id=attempt.step_id,
        attempt_no=attempt.attempt_no,
        lease_id=attempt.lease_id,
        content=lambda: {"type": "RESULT", "status": "SUCCEEDED", "output_ref": {"uri": "s3://out/late"}},
        status=ResultStatus.SUCCEEDED,
    )
    for _ in range(times):
        await world.deployment().writer.apply(attempt.job_id, late)
    world.clock.now_ms += 5
    return attempt, (await world.events(attempt.job_id))[-1].seq


async def adopt(world: World, request_type: str = "OCR", key: str | None = "adopt") -> Act:
    """The one step left has succeeded too late: a job that ends as it is born."""
    attempt, seq = await late_successes(world, request_type)
    return lambda deployment: deployment.reruns.adopt(
        attempt.job_id, step_id=attempt.step_id, seq=seq, key=key
    )


async def adopt_unnamed(world: World) -> Act:
    return await adopt(world, key=None)


async def adopt_first(world: World) -> Act:
    return await adopt(world, "OCR_EMBEDDING")


async def adopt_first_unnamed(world: World) -> Act:
    return await adopt(world, "OCR_EMBEDDING", key=None)


async def evidence(world: World) -> Act:
    attempt = await ended(world, ResultStatus.SUCCEEDED)
    return lambda deployment: deployment.result(attempt)


async def finish(world: World) -> Act:
    """The key is claimed, the job was never created."""
    dying = world.deployment(Trial(at=lambda ops: any(op.key == "JOB" for op in ops), dies_before=True))
    with pytest.raises(Died):
        await submit(dying, request_type="OCR_EMBEDDING", key="k")
    world.clock.now_ms += 5
    return lambda deployment: submit(deployment, request_type="OCR_EMBEDDING", key="k")


async def finish_buried(world: World) -> Act:
    act = await finish(world)
    world.clock.now_ms += GRACE_MS + 1
    await world.deployment().sweeper.sweep()
    assert await world.records() == {}
    return act


def _play(prepare: Callable[[World], Awaitable[Act]], once: set[JobState], again: set[JobState]) -> Play:
    return Play(prepare=prepare, ends=frozenset(once), ends_when_asked_again=frozenset(again))


PLAYS = {
    "submit": _play(submit_first, {S}, {S}),
    "hand-out": _play(hand_out, {S}, {S}),
    "ack": _play(ack, {S}, {S}),
    "result-middle": _play(result_middle, {S}, {S}),
    "result-at-once": _play(result_at_once, {S}, {S}),
    "result-last": _play(result_last, {S}, {S}),
    "result-retryable": _play(result_retryable, {S}, {S}),
    "result-final": _play(result_final, {S, F}, {F}),
    "ack-timeout": _play(ack_timeout, {S}, {S}),
    "lease-expiry": _play(lease_expiry, {S}, {S}),
    "retry-begins": _play(retry_begins, {S}, {S}),
    "row-moved": _play(row_moved, {S}, {S}),
    "cancel-waiting": _play(cancel_waiting, {S, C}, {C}),
    "cancel-under-way": _play(cancel_under_way, {S, C}, {C}),
    "cancelled-by-timeout": _play(cancelled_by_timeout, {C}, {C}),
    "pause-waiting": _play(pause_waiting, {S}, {S}),
    "pause-under-way": _play(pause_under_way, {S}, {S}),
    "resume-waiting": _play(resume_waiting, {S}, {S}),
    "resume-between-steps": _play(resume_between_steps, {S}, {S}),
    "rerun": _play(rerun, {S, F}, {S, F}),
    "redrive": _play(redrive, {S, F}, {S, F}),
    "adopt": _play(adopt, {S, C}, {S, C}),
    "adopt-unnamed": _play(adopt_unnamed, {S, C}, {S, C}),
    "adopt-first": _play(adopt_first, {S, C}, {S, C}),
    "adopt-first-unnamed": _play(adopt_first_unnamed, {S, C}, {S, C}),
    "evidence": _play(evidence, {S}, {S}),
    "finish": _play(finish, {S}, {S}),
    "finish-buried": _play(finish_buried, {S}, {S}),
}

# Where everything about a job commits together there is no key without a job.
WITHOUT_SPANS = frozenset({"finish", "finish-buried"})
