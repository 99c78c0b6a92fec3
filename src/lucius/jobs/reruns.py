"""Run an ended job again: a new job, from the first step that did not succeed, with the earlier results.

In: an ended job and where to begin, or a late success in its trail to begin with. Out: the new job, or a
refusal. The ended job stays as it is. Knows ledger and intake; nothing of HTTP.
"""

from typing import Final

import msgspec

from lucius.core.canonical import key_hash
from lucius.core.model import Event, Job, JobRecord, Json, Step
from lucius.core.refusal import Code, FieldError, Refused
from lucius.core.replies import is_late_success, not_adoptable
from lucius.core.states import Engine, JobState, StepState
from lucius.jobs.new_job import NewIds, refs_of_steps, workspace_uri
from lucius.jobs.submit import JobSubmitter, Submitted
from lucius.ledger.job_ledger import JobLedger

NOT_ON_THE_LIST: Final = Refused(Code.JOB_NOT_FOUND, "there is no finally failed job of this id")


class Reruns:
    def __init__(self, ledger: JobLedger, submitter: JobSubmitter, *, workspace_root: str) -> None:
        self._ledger = ledger
        self._submitter = submitter
        self._workspace_root = workspace_root

    async def rerun(self, job_id: str, *, from_step: str | None, key: str | None) -> Submitted | Refused:
        loaded = await self._ledger.load(job_id, fresh=True)
        if loaded is None:
            return Refused(Code.JOB_NOT_FOUND, f"there is no job {job_id}")
        old = loaded.record
        first = first_step_to_run(old, from_step)
        if isinstance(first, Refused):
            return first
        return await self._again(old, first, key, f"rerun#{job_id}#{first}")

    async def redrive(self, job_id: str, *, from_step: str | None, key: str | None) -> Submitted | Refused:
        """A rerun of a job on the list of the finally failed. Asked for again, it is the same one."""
        loaded = await self._ledger.load(job_id, fresh=True)
        if loaded is None:
            return NOT_ON_THE_LIST
        refused = await self.redrive_refusal(loaded.record, key)
        return refused or await self.rerun(job_id, from_step=from_step, key=key)

    async def redrive_refusal(self, old: JobRecord, key: str | None) -> Refused | None:
        job = old.job
        if not job.terminal:
            return None  # the rerun itself says why not
        if job.state is not JobState.FAILED_FINAL:
            return NOT_ON_THE_LIST
        if not await self._ledger.left_dlq(job):
            return None
        holder = await self._ledger.key_holder(job.tenant_norm, _key_of(job, key))
        if holder is not None:
            made = None if key is not None else await self._ledger.load(holder.row.job_id, fresh=True)
            if key is not None or made is None or not made.record.job.terminal:
                return None
        return Refused(
            Code.JOB_NOT_FOUND,
            "the job is not on the list of the finally failed any more: it was taken up again. "
            "A rerun runs it once more",
        )

    async def adopt(self, job_id: str, *, step_id: str, seq: int, key: str | None) -> Submitted | Refused:
        """A rerun whose step `step_id` has the late success of event `seq` for its result."""
        loaded = await self._ledger.load(job_id, fresh=True)
        if loaded is None:
            return Refused(Code.JOB_NOT_FOUND, f"there is no job {job_id}")
        old = loaded.record
        if not old.job.terminal:
            return Refused(Code.JOB_NOT_TERMINAL, f"the job has not ended yet: {old.job.state}")
        problem = not_adoptable(old, step_id)
        if problem is not None:
            return _not_adopted("/stepId", f"{step_id} {problem}")
        events = await self._ledger.events(job_id, after_seq=seq - 1, limit=1)
        found = late_success(events[0] if events and events[0].seq == seq else None, step_id, seq)
        if isinstance(found, Refused):
            return found
        first = next(step.step_index for step in old.steps if step.step_id == step_id)
        return await self._again(old, first, key, f"adopt#{job_id}#{step_id}#{seq}", found)

    async def _again(
        self, old: JobRecord, first: int, key: str | None, wish: str, adopted: Event | None = None
    ) -> Submitted | Refused:
        # Without a key there is one open rerun at most, whatever it was asked to start from, and one job that
        # adopts the same event.
        hashed = _key_of(old.job, key)
        identity = hashed if key is None else wish

        def build(ids: NewIds, now_ms: int) -> tuple[Job, tuple[Step, ...]]:
            engine = self._submitter.engine
            job, steps = rerun_of(
                old, first, ids, hashed, identity, key, engine, self._workspace_root, now_ms
            )
            if adopted is None:
                return job, steps
            taken = msgspec.structs.replace(
                steps[first],
                state=StepState.SUCCEEDED,
                result_ref=adopted.data["reply"].get("output_ref"),
                completed_at_ms=now_ms,
            )
            return job, (*steps[:first], taken, *steps[first + 1 :])

        accepted = await self._submitter.admit(
            tenant_norm=old.job.tenant_norm,
            mode=old.job.mode,
            key=hashed,
            fingerprint=identity,
            build=build,
            reusable=key is None,
            adopted=None if adopted is None else _named(adopted),
        )
        if isinstance(accepted, Submitted) and old.job.state is JobState.FAILED_FINAL:
            await self._ledger.leave_dlq(old.job)
        return accepted


def _key_of(old: Job, key: str | None) -> str:
    """Under which idempotency key a rerun is kept."""
    return f"rerun#{old.job_id}" if key is None else key_hash(old.tenant_norm, key)


def late_success(event: Event | None, step_id: str, seq: int) -> Event | Refused:
    """The event, if it is evidence of a success of this step that came too late to count."""
    if event is None:
        return _not_adopted("/seq", f"the job has no event {seq}")
    if not is_late_success(event):
        return _not_adopted("/seq", f"event {seq} is {event.type}, not a success that came too late")
    if event.step_id != step_id:
        return _not_adopted("/seq", f"event {seq} speaks of {event.step_id}, not of {step_id}")
    return event


def _not_adopted(pointer: str, message: str) -> Refused:
    return Refused(Code.INVALID_ENVELOPE, message, (FieldError(pointer, message),))


def _named(adopted: Event) -> dict[str, Json]:
    """What the new job's first event says about where the result came from."""
    return {
        "stepId": adopted.step_id,
        "seq": adopted.seq,
        "attempt_no": adopted.attempt_no,
        "output_ref": adopted.data["reply"].get("output_ref"),
    }


def first_step_to_run(old: JobRecord, from_step: str | None) -> int | Refused:
    if not old.job.terminal:
        return Refused(Code.JOB_NOT_TERMINAL, f"the job has not ended yet: {old.job.state}")
    unfinished = next((step.step_index for step in old.steps if step.state is not StepState.SUCCEEDED), None)
    if from_step is None:
        if unfinished is None:
            return Refused(Code.NOTHING_TO_RERUN, "every step has succeeded; name a from_step to repeat some")
        return unfinished
    wanted = old.step(from_step)
    if wanted is None:
        known = ", ".join(step.step_id for step in old.steps)
        message = f"the job has no step {from_step!r}; it has {known}"
        return Refused(
            Code.INVALID_ENVELOPE, message, (FieldError("/from_step", "is not a step of the job"),)
        )
    if unfinished is not None and wanted.step_index > unfinished:
        earlier = old.steps[unfinished].step_id
        message = f"{from_step} needs the result of {earlier}, which did not succeed"
        return Refused(Code.INVALID_ENVELOPE, message, (FieldError("/from_step", message),))
    return wanted.step_index


def rerun_of(
    old: JobRecord,
    first: int,
    ids: NewIds,
    idempotency_hash: str,
    fingerprint: str,
    key: str | None,
    engine: Engine,
    workspace_root: str,
    now_ms: int,
) -> tuple[Job, tuple[Step, ...]]:
    """`engine`: that of new jobs. The engine of the old one need not be there any more."""
    was = old.job
    job = Job(
        job_id=ids.job_id,
        tenant_id=was.tenant_id,
        tenant_norm=was.tenant_norm,
        request_type=was.request_type,
        protocol_id=was.protocol_id,
        engine=engine,
        mode=was.mode,
        lane=was.lane,
        created_at_ms=now_ms,
        updated_at_ms=now_ms,
        sla_ms=was.sla_ms,
        output_uri=was.output_uri,
        idempotency_hash=idempotency_hash,
        fingerprint=fingerprint,
        correlation_id=was.correlation_id,
        traceparent=was.traceparent,
        doc_id=was.doc_id,
        idempotency_key=key,
        callback_urls=was.callback_urls,
        priority=was.priority,
        rerun_of=was.job_id,
    )
    workspace = workspace_uri(workspace_root, was.tenant_norm, ids.job_id)
    refs = refs_of_steps(workspace, [step.step_type for step in old.steps])
    return job, tuple(_again(step, first, refs[step.step_index], now_ms) for step in old.steps)


def _again(step: Step, first: int, workspace_ref: dict[str, Json], now_ms: int) -> Step:
    asked = (*step.tried, step.service, *step.fallback)
    fresh = Step(
        step_id=step.step_id,
        step_index=step.step_index,
        step_type=step.step_type,
        service=asked[0],
        fallback=asked[1:],
        policy=step.policy,
        routing=step.routing,
        input_ref=step.input_ref,
        workspace_ref=workspace_ref,
        output_ref=step.output_ref,
        payload=step.payload,
        stop_on_pause=step.stop_on_pause,
        created_at_ms=now_ms,
        updated_at_ms=now_ms,
    )
    if step.step_index >= first:
        return fresh
    return msgspec.structs.replace(
        fresh, state=StepState.SUCCEEDED, result_ref=step.result_ref, completed_at_ms=now_ms
    )
