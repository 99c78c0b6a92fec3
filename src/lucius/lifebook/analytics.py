"""The event `workflow_run_completed`: what it says, and the port to where it goes.

The event is written in the transaction that ends the job, under an id that follows from the job, and sent
from there. A crash between sending and noting it sends it again under the same id; a receiver that keeps ids
sees each once. A job that is redriven and ends again has a second life with an event of its own, numbered by
`redrives`.
"""

from typing import Final, Protocol
from uuid import UUID, uuid5

import msgspec

from lucius.contracts.times import rfc3339_or_none
from lucius.lifebook.codec import decimal_text
from lucius.lifebook.job import AnalyticsEvent, LifebookJob
from lucius.lifebook.machine import Policy
from lucius.lifebook.states import Status

NAME: Final = "workflow_run_completed"
SOURCE: Final = "lifebook.orchestrator"
_NAMESPACE: Final = UUID("8d9b5f0e-52a8-4c0b-9a53-0f2c6c1d7e41")


class Sink(Protocol):
    async def send(self, event: AnalyticsEvent) -> None:
        """Returns once the event is where it will not be lost."""


class NoSink:
    async def send(self, event: AnalyticsEvent) -> None:
        return None


def event_id_of(job: LifebookJob) -> str:
    return str(uuid5(_NAMESPACE, f"{job.job_id}:{job.redrives}"))


def event_of_end(job: LifebookJob, policy: Policy) -> AnalyticsEvent:
    event_id = event_id_of(job)
    body = {
        "event": NAME,
        "event_id": event_id,
        "job_id": job.job_id,
        "workspace_id": job.workspace_id,
        "user_id": job.user_id,
        "workflow_id": job.workflow_id,
        "trigger_type": job.trigger_type,
        "success": job.status is Status.COMPLETED,
        "status": job.status,
        "attempts": job.attempts,
        "steps_total": job.steps_total,
        "step_cursor": job.step_cursor,
        "credits_estimate": decimal_text(job.credits_estimate),
        "credits_reserved": decimal_text(job.credits_reserved),
        "credits_spent": decimal_text(job.credits_spent),
        "error_code": None if job.status is Status.COMPLETED else job.last_error_code,
        "created_at": rfc3339_or_none(job.created_at),
        "started_at": rfc3339_or_none(job.started_at),
        "completed_at": rfc3339_or_none(job.completed_at),
        "trace_id": job.trace_id,
        "redrives": job.redrives,
    }
    return AnalyticsEvent(
        event_id=event_id,
        job_id=job.job_id,
        body=msgspec.json.encode(body).decode(),
        created_at=job.updated_at,
        sweep_at=job.updated_at + policy.chore_grace_ms,
    )
