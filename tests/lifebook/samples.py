"""Jobs to test with."""

from decimal import Decimal
from typing import Any
from uuid import UUID

from lucius.lifebook.codec import guard_id_of
from lucius.lifebook.job import Guard, LifebookJob
from lucius.lifebook.machine import Policy, sweep_at
from lucius.lifebook.states import Status, Trigger

NOW = 1_789_000_000_000
POLICY = Policy()


def job_id(number: int) -> str:
    return str(UUID(int=(number << 80) + (4 << 76) + (8 << 60)))


def a_job(number: int = 1, **changes: Any) -> LifebookJob:
    values: dict[str, Any] = {
        "job_id": job_id(number),
        "workspace_id": "ws_1",
        "user_id": "user_7",
        "workflow_id": "summarise",
        "trigger_type": Trigger.MANUAL,
        "status": Status.PENDING,
        "steps_total": 3,
        "credits_estimate": Decimal("1.5"),
        "credits_reserved": Decimal("1.5"),
        "idempotency_key": f"key-{number}",
        "created_at": NOW + number,
        "updated_at": NOW + number,
        "trace_id": "a" * 32,
        "fingerprint": "f" * 64,
        **changes,
    }
    job = LifebookJob(**values)
    return LifebookJob(**{**values, "sweep_at": changes.get("sweep_at", sweep_at(job, POLICY))})


def guard_for(job: LifebookJob, **changes: Any) -> Guard:
    return Guard(
        guard_id=guard_id_of(job.workspace_id, job.idempotency_key),
        job_id=job.job_id,
        fingerprint=job.fingerprint,
        **changes,
    )
