"""Runs: asking for one, looking at it, stopping it, giving it new attempts.

In: requests that were parsed. Out: jobs, or refusals. A job is created with its key in one transaction, its
credits are held, and only then is it enqueued; a crash in between leaves a `pending` job that a sweeper takes
further, and all of these may be repeated.
"""

from collections.abc import Callable
from decimal import Decimal
from hashlib import sha256
from typing import Any, Final

import msgspec
import structlog

from lucius.core.canonical import canonical_json
from lucius.core.model import Json
from lucius.lifebook import machine
from lucius.lifebook.chores import Chores
from lucius.lifebook.codec import decimal_text, guard_id_of
from lucius.lifebook.failures import AttemptFailure
from lucius.lifebook.job import Guard, LifebookJob
from lucius.lifebook.message import message_for
from lucius.lifebook.queue import JobQueue
from lucius.lifebook.refusals import InputFault, RunCode, RunRefused
from lucius.lifebook.states import Status, Trigger
from lucius.lifebook.workflows import INPUT_BYTES_MAX, BadStepValue, Workflow, WorkflowRegistry, encoded
from lucius.lifebook.writer import LifebookWriter

log = structlog.get_logger("lucius.lifebook")

CREATE_TRIES_MAX: Final = 3
TEXT_CHARACTERS_MAX: Final = 256
TOO_FEW: Final = AttemptFailure(
    "CREDITS_INSUFFICIENT", "The balance of the workspace is too small for this run."
)


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    workspace_id: str
    user_id: str
    workflow_id: str
    trigger_type: Trigger = Trigger.MANUAL
    input: Json = None
    idempotency_key: str | None = None
    credits_estimate: Decimal | None = None
    max_attempts: int | None = None
    trace_id: str | None = None


class AcceptedRun(msgspec.Struct, frozen=True):
    job: LifebookJob
    duplicate: bool


class Runs:
    def __init__(
        self,
        *,
        writer: LifebookWriter,
        queue: JobQueue,
        chores: Chores,
        workflows: WorkflowRegistry,
        new_id: Callable[[], str],
        max_attempts: int,
        credits_max: Decimal,
    ) -> None:
        self._writer = writer
        self._queue = queue
        self._chores = chores
        self._workflows = workflows
        self._new_id = new_id
        self._max_attempts = max_attempts
        self._credits_max = credits_max

    async def submit(self, request: RunRequest) -> AcceptedRun | RunRefused:
        known = self._workflows.get(request.workflow_id)
        if known is None:
            names = ", ".join(self._workflows.names()) or "none"
            text = f"There is no workflow {request.workflow_id!r}. Known are: {names}."
            return RunRefused(RunCode.UNKNOWN_WORKFLOW, text, (InputFault("/workflow_id", text),))
        for _ in range(CREATE_TRIES_MAX):
            job = self._new_job(request, known)
            if isinstance(job, RunRefused):
                return job
            done = await self._create(job)
            if done is not None:
                return done
        return RunRefused(RunCode.SYSTEM_SATURATED, "The key of this run is being freed; try again shortly.")

    async def _create(self, job: LifebookJob) -> AcceptedRun | RunRefused | None:
        guard = Guard(
            guard_id=guard_id_of(job.workspace_id, job.idempotency_key),
            job_id=job.job_id,
            fingerprint=job.fingerprint,
        )
        found = await self._writer.table.create(job, guard, now_ms=job.created_at)
        if found is None:
            done = await self.enqueue(job)
            if isinstance(done, RunRefused):
                # A refused run leaves nothing behind, so that its key may be used again.
                await self._writer.table.discard(job)
                return done
            return AcceptedRun(done, duplicate=False)
        if found.fingerprint != job.fingerprint:
            text = "The idempotency key was used in this workspace for a run with other parameters."
            return RunRefused(RunCode.IDEMPOTENCY_KEY_REUSED, text, (InputFault("/idempotency_key", text),))
        there = await self._writer.get(found.job_id)
        return None if there is None else AcceptedRun(there, duplicate=True)

    async def enqueue(self, job: LifebookJob, *, delay_ms: int = 0) -> LifebookJob | RunRefused:
        """Holds the credits of a job that is still to be enqueued, sends its message, notes that it was
        sent."""
        if job.status is Status.PENDING and not await self._chores.held(job):
            # A hold is refused as well when this caller is late: the job was enqueued, and has ended since.
            now = await self._writer.get(job.job_id)
            if now is not None and (now.status is not Status.PENDING or now.redrives != job.redrives):
                return now
            return RunRefused(RunCode.CREDITS_INSUFFICIENT, TOO_FEW.message)
        message = message_for(job)
        await self._queue.send(message, delay_ms=delay_ms)
        policy = self._writer.policy
        return await self._writer.change(
            job.job_id,
            lambda now, at: machine.enqueued(now, message.attempt, policy=policy, now_ms=at),
            known=job,
        )

    async def not_paid(self, job: LifebookJob) -> None:
        """Ends a job whose credits could not be held."""
        policy = self._writer.policy
        ended = await self._writer.change(
            job.job_id, lambda now, at: machine.not_paid(now, TOO_FEW, policy=policy, now_ms=at), known=job
        )
        if isinstance(ended, LifebookJob) and ended.terminal:
            await self._chores.after_end(ended)

    async def cancel(self, job_id: str) -> LifebookJob | RunRefused:
        policy = self._writer.policy
        before = await self._writer.get(job_id)
        job = await self._writer.change(
            job_id, lambda now, at: machine.canceled(now, policy=policy, now_ms=at), known=before
        )
        if isinstance(job, LifebookJob) and job.terminal and before is not None and not before.terminal:
            await self._chores.after_end(job)
            log.info("job_ended", job_id=job_id, status=job.status)
        return job

    async def redrive(self, job_id: str) -> LifebookJob | RunRefused:
        policy = self._writer.policy
        dead = await self._writer.get(job_id)
        if dead is not None and dead.status is Status.DEAD:
            await self._chores.settle(dead)
        job = await self._writer.change(
            job_id, lambda now, at: machine.redriven(now, policy=policy, now_ms=at)
        )
        if isinstance(job, RunRefused):
            return job
        done = await self.enqueue(job)
        if isinstance(done, RunRefused) and done.code is RunCode.CREDITS_INSUFFICIENT:
            await self.not_paid(job)
        return done

    def _new_job(self, request: RunRequest, known: Workflow) -> LifebookJob | RunRefused:
        faults = [
            InputFault(f"/{name}", f"{name} must have 1 to {TEXT_CHARACTERS_MAX} printable characters.")
            for name in ("workspace_id", "user_id", "idempotency_key")
            if (value := getattr(request, name)) is not None and not is_text(value)
        ]
        estimate = known.credits if request.credits_estimate is None else request.credits_estimate
        if not (estimate.is_finite() and 0 <= estimate <= self._credits_max):
            what = f"credits_estimate must be from 0 to {decimal_text(self._credits_max)}."
            faults.append(InputFault("/credits_estimate", what))
        given = self._input(request, known)
        if isinstance(given, InputFault):
            faults.append(given)
        if faults or isinstance(given, InputFault):
            code = RunCode.INVALID_INPUT if isinstance(given, InputFault) else RunCode.INVALID_REQUEST
            return RunRefused(code, faults[0].message, tuple(faults))
        now_ms, job_id = self._writer.now_ms(), self._new_id()
        attempts = request.max_attempts or known.max_attempts or self._max_attempts
        job = LifebookJob(
            job_id=job_id,
            workspace_id=request.workspace_id,
            user_id=request.user_id,
            workflow_id=request.workflow_id,
            trigger_type=request.trigger_type,
            status=Status.PENDING,
            max_attempts=attempts,
            steps_total=len(known.steps),
            credits_estimate=estimate,
            credits_reserved=estimate,
            idempotency_key=request.idempotency_key or job_id,
            created_at=now_ms,
            updated_at=now_ms,
            trace_id=request.trace_id or job_id.replace("-", ""),
            fingerprint=fingerprint_of(request),
            input=given,
        )
        return msgspec.structs.replace(job, sweep_at=machine.sweep_at(job, self._writer.policy))

    def _input(self, request: RunRequest, known: Workflow) -> str | InputFault:
        value: Any = {} if request.input is None else request.input
        try:
            text = encoded(value, INPUT_BYTES_MAX, "input")
            if known.input_type is not None:
                msgspec.json.decode(text, type=known.input_type)
        except BadStepValue as fault:
            return InputFault("/input", str(fault))
        except msgspec.ValidationError as fault:
            return InputFault("/input", f"The input does not fit the workflow: {fault}")
        return text


def fingerprint_of(request: RunRequest) -> str:
    """What the run was asked with; the same key must come with the same again."""
    estimate = request.credits_estimate
    asked: dict[str, Json] = {
        "workspace_id": request.workspace_id,
        "user_id": request.user_id,
        "workflow_id": request.workflow_id,
        "trigger_type": str(request.trigger_type),
        "input": {} if request.input is None else request.input,
        "credits_estimate": None if estimate is None else decimal_text(estimate),
        "max_attempts": request.max_attempts,
    }
    return sha256(canonical_json(asked)).hexdigest()


def is_text(value: str) -> bool:
    return 0 < len(value) <= TEXT_CHARACTERS_MAX and value.isprintable() and bool(value.strip())
