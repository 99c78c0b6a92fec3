"""The decisions about a job: pure functions from a record to the next one, or to a refusal.

In: a job, what happened, the time, a policy. Out: the job as it is to be written, or why nothing is. Nothing
here reads or writes. Statuses change through the table of moves alone.
"""

from decimal import Decimal
from typing import Any, Final

import msgspec

from lucius.lifebook.failures import AttemptFailure
from lucius.lifebook.job import LifebookJob
from lucius.lifebook.message import JobMessage
from lucius.lifebook.refusals import RunCode, RunRefused
from lucius.lifebook.states import MOVES, TERMINAL, Status, StatusMove

SECOND_MS: Final = 1_000
HOUR_MS: Final = 3_600_000
WORKER_LOST: Final = AttemptFailure("WORKER_LOST", "The worker of this attempt stopped; its lease ran out.")


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Spans of time, all in milliseconds, and what depends on the deployment."""

    lease_ms: int = 60_000
    skew_ms: int = 5_000
    """How far the clocks of two workers may be apart."""
    backoffs_ms: tuple[int, ...] = (30_000, 120_000, 600_000, 1_800_000)
    retention_ms: int = 90 * 24 * HOUR_MS
    pending_grace_ms: int = 60_000
    queued_grace_ms: int = 6 * HOUR_MS
    chore_grace_ms: int = 60_000
    receives_max: int = 5
    credits_held: bool = False
    """Whether credits are held at a balance, so that the rest has to be released at the end."""


def backoff_ms(policy: Policy, attempts: int) -> int:
    """How long to wait after the attempt of this number, from 1; the last backoff repeats."""
    return policy.backoffs_ms[min(max(attempts, 1), len(policy.backoffs_ms)) - 1]


def moved(
    job: LifebookJob, *moves: StatusMove, policy: Policy, now_ms: int, **changes: Any
) -> LifebookJob | RunRefused:
    """The job after these moves, with these changes; refused where the table has no entry."""
    status = job.status
    for move in moves:
        target = MOVES[move].get(status)
        if target is None:
            return RunRefused(RunCode.ILLEGAL_MOVE, f"{move} is not possible for a job that is {status}.")
        status = target
    after = msgspec.structs.replace(
        job, status=status, version=job.version + 1, updated_at=max(now_ms, job.updated_at), **changes
    )
    if after.status in TERMINAL and job.status not in TERMINAL:
        after = _ended(after, policy)
    return msgspec.structs.replace(after, sweep_at=sweep_at(after, policy))


def _ended(job: LifebookJob, policy: Policy) -> LifebookJob:
    unsettled = policy.credits_held and job.credits_reserved > 0
    return msgspec.structs.replace(
        job,
        completed_at=job.updated_at,
        ttl_at=(job.updated_at + policy.retention_ms) // SECOND_MS,
        lease_owner=None,
        lease_expires_at=None,
        next_attempt_at=None,
        settled_at=None if unsettled else job.updated_at,
    )


def sweep_at(job: LifebookJob, policy: Policy) -> int | None:
    """When a sweeper looks at the job if nothing happens to it until then."""
    match job.status:
        case Status.PENDING:
            return job.updated_at + policy.pending_grace_ms
        case Status.QUEUED | Status.FAILED:
            return max(job.updated_at, job.next_attempt_at or 0) + policy.queued_grace_ms
        case Status.RUNNING:
            return (job.lease_expires_at or job.updated_at) + policy.skew_ms + policy.lease_ms
        case _:
            return None if job.settled_at is not None else job.updated_at + policy.chore_grace_ms


class Take(msgspec.Struct, frozen=True):
    """The job as its worker takes it."""

    job: LifebookJob


class Write(msgspec.Struct, frozen=True):
    """The delivery finds something to write down; then it is judged again."""

    job: LifebookJob


class Postpone(msgspec.Struct, frozen=True):
    """Not now: the message comes again after this long, and no attempt is counted."""

    wait_ms: int
    reason: str


class Drop(msgspec.Struct, frozen=True):
    """There is nothing to do for this message, now or later."""

    reason: str


class Bury(msgspec.Struct, frozen=True):
    """The job is dead: its message is left to fail until the queue moves it to the dead-letter queue."""

    reason: str


class Poison(msgspec.Struct, frozen=True):
    """No worker will ever make sense of this message."""

    reason: str


Judgement = Take | Write | Postpone | Drop | Bury | Poison


def judge(
    job: LifebookJob | None, message: JobMessage, *, policy: Policy, now_ms: int, owner: str
) -> Judgement | RunRefused:
    """What a delivery of this message means for the job as it is now."""
    if job is None:
        return Poison("There is no job with this id.")
    if job.workspace_id != message.workspace_id:
        return Poison("The message names another workspace than its job.")
    if job.status is Status.DEAD:
        return Bury("The job is dead.")
    if job.terminal:
        return Drop(f"The job is {job.status}.")
    if message.attempt < job.message_attempt:
        return Drop("A newer message stands for the job.")
    if message.attempt > job.attempts + 1:
        return Drop("The message is for an attempt of an earlier life of the job.")
    if job.status is Status.RUNNING:
        return _judge_running(job, policy=policy, now_ms=now_ms)
    if (job.next_attempt_at or 0) > now_ms:
        return Postpone((job.next_attempt_at or 0) - now_ms, "The next attempt is not due.")
    return _start(job, policy=policy, now_ms=now_ms, owner=owner)


def _judge_running(job: LifebookJob, *, policy: Policy, now_ms: int) -> Judgement | RunRefused:
    free_at = (job.lease_expires_at or 0) + policy.skew_ms
    if free_at > now_ms:
        return Postpone(free_at - now_ms, "Another worker holds the job.")
    after = lost(job, policy=policy, now_ms=now_ms)
    return after if isinstance(after, RunRefused) else Write(after)


def _start(job: LifebookJob, *, policy: Policy, now_ms: int, owner: str) -> Take | RunRefused:
    after = moved(
        job,
        StatusMove.STARTED,
        policy=policy,
        now_ms=now_ms,
        started_at=now_ms if job.started_at is None else job.started_at,
        lease_owner=owner,
        lease_expires_at=now_ms + policy.lease_ms,
        next_attempt_at=None,
    )
    return after if isinstance(after, RunRefused) else Take(after)


def lost(job: LifebookJob, *, policy: Policy, now_ms: int) -> LifebookJob | RunRefused:
    """The lease ran out: the attempt is counted, or the cancel that no worker saw takes effect."""
    if (job.lease_expires_at or 0) + policy.skew_ms > now_ms:
        return RunRefused(RunCode.LEASE_LOST, "The lease has not run out.")
    if job.cancel_requested_at is not None:
        return moved(job, StatusMove.CANCELED, policy=policy, now_ms=now_ms, attempts=job.attempts + 1)
    since_ms = job.lease_expires_at or now_ms
    return _attempt_over(job, StatusMove.ATTEMPT_LOST, WORKER_LOST, since_ms, policy=policy, now_ms=now_ms)


def failed(
    job: LifebookJob, why: AttemptFailure, *, owner: str, policy: Policy, now_ms: int
) -> LifebookJob | RunRefused:
    if (other := _not_held(job, owner)) is not None:
        return other
    return _attempt_over(job, StatusMove.ATTEMPT_FAILED, why, now_ms, policy=policy, now_ms=now_ms)


def _attempt_over(
    job: LifebookJob, move: StatusMove, why: AttemptFailure, since_ms: int, *, policy: Policy, now_ms: int
) -> LifebookJob | RunRefused:
    attempts = job.attempts + 1
    dies = why.final or attempts >= job.max_attempts
    return moved(
        job,
        *((move, StatusMove.DIED) if dies else (move,)),
        policy=policy,
        now_ms=now_ms,
        attempts=attempts,
        last_error_code=why.code,
        last_error_message=why.message,
        lease_owner=None,
        lease_expires_at=None,
        next_attempt_at=since_ms + backoff_ms(policy, attempts),
    )


def renewed(job: LifebookJob, *, owner: str, policy: Policy, now_ms: int) -> LifebookJob | RunRefused:
    if (other := _not_held(job, owner)) is not None:
        return other
    until_ms = max(now_ms + policy.lease_ms, job.lease_expires_at or 0)
    return moved(job, StatusMove.RENEWED, policy=policy, now_ms=now_ms, lease_expires_at=until_ms)


def checkpointed(
    job: LifebookJob, note: str, *, owner: str, policy: Policy, now_ms: int
) -> LifebookJob | RunRefused:
    if (other := _not_held(job, owner)) is not None:
        return other
    return moved(job, StatusMove.CHECKPOINTED, policy=policy, now_ms=now_ms, checkpoint=note)


def step_done(
    job: LifebookJob, *, index: int, result: str, credits_: Decimal, owner: str, policy: Policy, now_ms: int
) -> LifebookJob | RunRefused:
    """The cursor, the result and the credits of a step, in one write; after the last step the end of the
    job."""
    if (other := _not_held(job, owner)) is not None:
        return other
    if job.step_cursor != index:
        return RunRefused(
            RunCode.ILLEGAL_MOVE, f"Step {index} is not the step at the cursor, {job.step_cursor}."
        )
    if credits_ < 0 or job.credits_spent + credits_ > job.credits_reserved:
        return RunRefused(
            RunCode.CREDITS_INSUFFICIENT, "The step costs more than what is left of the reserve."
        )
    last = index + 1 >= job.steps_total
    return moved(
        job,
        *((StatusMove.STEP_DONE, StatusMove.COMPLETED) if last else (StatusMove.STEP_DONE,)),
        policy=policy,
        now_ms=now_ms,
        step_cursor=index + 1,
        results=(*job.results, result),
        checkpoint=None,
        credits_spent=job.credits_spent + credits_,
        attempts=job.attempts + 1 if last else job.attempts,
        lease_expires_at=now_ms + policy.lease_ms,
    )


def yielded(
    job: LifebookJob, *, owner: str, again_at_ms: int, policy: Policy, now_ms: int
) -> LifebookJob | RunRefused:
    if (other := _not_held(job, owner)) is not None:
        return other
    return moved(
        job,
        StatusMove.YIELDED,
        policy=policy,
        now_ms=now_ms,
        lease_owner=None,
        lease_expires_at=None,
        next_attempt_at=again_at_ms,
    )


def canceled_by_worker(
    job: LifebookJob, *, owner: str, policy: Policy, now_ms: int
) -> LifebookJob | RunRefused:
    if (other := _not_held(job, owner)) is not None:
        return other
    return moved(job, StatusMove.CANCELED, policy=policy, now_ms=now_ms, attempts=job.attempts + 1)


def canceled(
    job: LifebookJob, *, policy: Policy, now_ms: int, why: AttemptFailure | None = None
) -> LifebookJob | RunRefused:
    """At once where no step runs; else the worker is asked. Asking again changes nothing."""
    if job.status is Status.CANCELED:
        return job
    if job.terminal:
        return RunRefused(
            RunCode.JOB_TERMINAL, f"The job is {job.status}; what has ended cannot be canceled."
        )
    error = {} if why is None else {"last_error_code": why.code, "last_error_message": why.message}
    if job.status is not Status.RUNNING:
        return moved(job, StatusMove.CANCELED, policy=policy, now_ms=now_ms, **error)
    if job.cancel_requested_at is not None:
        return job
    return moved(job, StatusMove.CANCEL_REQUESTED, policy=policy, now_ms=now_ms, cancel_requested_at=now_ms)


def enqueued(job: LifebookJob, attempt: int, *, policy: Policy, now_ms: int) -> LifebookJob | RunRefused:
    """A message for this attempt was sent. A job that runs or has ended already needs no note of it."""
    if job.status is Status.RUNNING or job.terminal:
        return job
    if job.message_attempt > attempt:
        return job
    return moved(job, StatusMove.ENQUEUED, policy=policy, now_ms=now_ms, message_attempt=attempt)


def redriven(job: LifebookJob, *, policy: Policy, now_ms: int) -> LifebookJob | RunRefused:
    """A dead job gets all its attempts again; cursor, results and what was spent stay."""
    if job.status is not Status.DEAD:
        return RunRefused(RunCode.JOB_NOT_DEAD, f"The job is {job.status}; only a dead job can be redriven.")
    if policy.credits_held and job.settled_at is None:
        return RunRefused(
            RunCode.SYSTEM_SATURATED, "The credits of the job are not settled yet; try again shortly."
        )
    return moved(
        job,
        StatusMove.REDRIVEN,
        policy=policy,
        now_ms=now_ms,
        attempts=0,
        message_attempt=0,
        redrives=job.redrives + 1,
        completed_at=None,
        ttl_at=None,
        settled_at=None,
        cancel_requested_at=None,
    )


def settled(job: LifebookJob, *, policy: Policy, now_ms: int) -> LifebookJob | RunRefused:
    if job.settled_at is not None:
        return job
    return moved(job, StatusMove.SETTLED, policy=policy, now_ms=now_ms, settled_at=now_ms)


def not_paid(
    job: LifebookJob, why: AttemptFailure, *, policy: Policy, now_ms: int
) -> LifebookJob | RunRefused:
    """The balance is too small for a job that was never enqueued: a new one is canceled, a redriven one
    dead."""
    if job.status is not Status.PENDING:
        return RunRefused(RunCode.ILLEGAL_MOVE, f"The job is {job.status}, so its credits were held.")
    move = StatusMove.DIED if job.redrives else StatusMove.CANCELED
    return moved(
        job, move, policy=policy, now_ms=now_ms, last_error_code=why.code, last_error_message=why.message
    )


def hold_id_of(job: LifebookJob) -> str:
    """The name of what is held for this life of the job."""
    return f"{job.job_id}:{job.redrives}"


def _not_held(job: LifebookJob, owner: str) -> RunRefused | None:
    if job.status is Status.RUNNING and job.lease_owner == owner:
        return None
    return RunRefused(RunCode.LEASE_LOST, f"The job is {job.status} and not held by this run of the worker.")
