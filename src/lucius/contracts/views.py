"""What readers see of a job.

In: the machine's values. Out: plain JSON values with every name of the contract present, null where there is
nothing, times as RFC 3339 text. Reads only; the order of members is the order of the contract.

A member that is added here goes into `schemas` and `examples` too; `make openapi` then writes it into the
documents.
"""

from typing import Final

from lucius.contracts.times import rfc3339, rfc3339_or_none
from lucius.core.model import Event, Job, JobRecord, Json, Step
from lucius.core.states import StepState

_AT_MS: Final = "_at_ms"


def tenant_bucket(job: Job) -> str:
    """The tenant and the month in which its job was created."""
    created = rfc3339(job.created_at_ms)
    return f"{job.tenant_norm}#{created[:4]}{created[5:7]}"


def job_view(record: JobRecord) -> dict[str, Json]:
    job = record.job
    return {
        "jobId": job.job_id,
        "tenant_id": job.tenant_id,
        "tenant_bucket": tenant_bucket(job),
        "request_type": job.request_type,
        "protocol_id": job.protocol_id,
        "engine": job.engine.value,
        "doc_id": job.doc_id,
        "mode": job.mode.value,
        "priority": job.priority,
        "state": job.state.value,
        "current_step_id": job.current_step_id,
        "current_step_index": job.current_step_index,
        "attempts_total": job.attempts_total,
        "created_at": rfc3339(job.created_at_ms),
        "updated_at": rfc3339(job.updated_at_ms),
        "completed_at": rfc3339_or_none(job.completed_at_ms),
        "error_code": job.error_code,
        "error_message": job.error_message,
        "correlation_id": job.correlation_id,
        "traceparent": job.traceparent,
        "idempotency_key": job.idempotency_key,
        "idempotency_hash": job.idempotency_hash,
        "final_output": job.final_output,
        "rerun_of": job.rerun_of,
        "paused_reason": job.paused_reason,
        "usage": job.usage,
        "steps": [step_view(step) for step in record.steps],
    }


def step_view(step: Step) -> dict[str, Json]:
    routing = step.routing
    return {
        "stepId": step.step_id,
        "step_index": step.step_index,
        "step_type": step.step_type,
        "service": step.service,
        "tried_services": list(step.tried),
        "state": step.state.value,
        "attempt_no": step.attempt_no,
        "lease_id": step.lease_id,
        "lease_expires_at": rfc3339_or_none(step.lease_expires_shown_ms),
        "next_attempt_at": rfc3339_or_none(step.next_attempt_at_ms),
        "lane": routing.lane,
        "routing_key_used": routing.routing_key_used,
        "resolved_mode": routing.resolved_mode.value,
        "decision_source": routing.decision_source,
        "decision_reason": routing.decision_reason,
        "input_ref": step.input_ref,
        "workspace_ref": step.workspace_ref,
        "output_ref": step.output_ref,
        "payload": step.payload,
        "result_ref": step.result_ref,
        # The last report may say less; it is kept as the service gave it.
        "progress": 100 if step.state is StepState.SUCCEEDED else step.progress,
        "last_error_code": step.last_error_code,
        "last_error_message": step.last_error_message,
        "usage": step.usage,
        "created_at": rfc3339(step.created_at_ms),
        "updated_at": rfc3339(step.updated_at_ms),
        "completed_at": rfc3339_or_none(step.completed_at_ms),
    }


def event_view(event: Event) -> dict[str, Json]:
    return {
        "seq": event.seq,
        "type": event.type.value,
        "at": rfc3339(event.at_ms),
        "stepId": event.step_id,
        "attempt_no": event.attempt_no,
        "data": _readable(event.data),
    }


def _readable(data: dict[str, Json]) -> dict[str, Json]:
    """Inside, times are milliseconds under names that end in `_at_ms`; outside they are text."""
    return {
        (name[:-3] if name.endswith(_AT_MS) else name): (
            rfc3339(value) if name.endswith(_AT_MS) and isinstance(value, int) else value
        )
        for name, value in data.items()
    }
