"""What readers see of a job.

In: the machine's values. Out: plain JSON values with every name of the contract present, null where there is
nothing, times as RFC 3339 text. Reads only; the order of members is the order of the contract.

A member is a line in the schema and a line in the view below it; a test compares the two. Beside them only
the story in `examples` wants a value. `make openapi` then writes the member into the documents.
"""

from typing import Final

from lucius.contracts.schemas import (
    COUNT,
    LANE,
    MAYBE_TEXT,
    MAYBE_TIME,
    TEXT,
    TIME,
    Schema,
    named,
    opened,
    or_null,
)
from lucius.contracts.times import rfc3339, rfc3339_or_none
from lucius.core.model import Event, Job, JobRecord, Json, Step
from lucius.core.priority import PRIORITY_LEAST, PRIORITY_MOST
from lucius.core.states import StepState

_AT_MS: Final = "_at_ms"
# Of enums `_value_` is read: `value` is a function in Python, ten times as slow, and called for each step.


def tenant_bucket(job: Job) -> str:
    """The tenant and the month in which its job was created."""
    created = rfc3339(job.created_at_ms)
    return f"{job.tenant_norm}#{created[:4]}{created[5:7]}"


# What is published of a job, in the order of `job_view`.
JOB_SCHEMA: Final = opened(
    "A job with its steps.",
    {
        "jobId": TEXT,
        "tenant_id": TEXT,
        "tenant_bucket": {"type": "string", "description": "The tenant and the month of creation."},
        "request_type": TEXT,
        "protocol_id": TEXT,
        "engine": named("Engine"),
        "doc_id": MAYBE_TEXT,
        "mode": named("Mode"),
        "priority": {"type": "integer", "minimum": PRIORITY_LEAST, "maximum": PRIORITY_MOST},
        "state": named("JobState"),
        "current_step_id": MAYBE_TEXT,
        "current_step_index": {"type": ["integer", "null"], "minimum": 0},
        "attempts_total": COUNT,
        "created_at": TIME,
        "updated_at": TIME,
        "completed_at": MAYBE_TIME,
        "error_code": MAYBE_TEXT,
        "error_message": MAYBE_TEXT,
        "correlation_id": MAYBE_TEXT,
        "traceparent": MAYBE_TEXT,
        "idempotency_key": MAYBE_TEXT,
        "idempotency_hash": TEXT,
        "final_output": {**MAYBE_TEXT, "description": "The URI of the result, once the job has succeeded."},
        "rerun_of": {**MAYBE_TEXT, "description": "The job that this one runs again."},
        "paused_reason": {**MAYBE_TEXT, "description": "Why it is paused, where no client paused it."},
        "usage": named("Usage"),
        "steps": {"type": "array", "items": named("Step")},
    },
)


def job_view(record: JobRecord) -> dict[str, Json]:
    job = record.job
    return {
        "jobId": job.job_id,
        "tenant_id": job.tenant_id,
        "tenant_bucket": tenant_bucket(job),
        "request_type": job.request_type,
        "protocol_id": job.protocol_id,
        "engine": job.engine._value_,
        "doc_id": job.doc_id,
        "mode": job.mode._value_,
        "priority": job.priority,
        "state": job.state._value_,
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


# What is published of a step, in the order of `step_view`.
STEP_SCHEMA: Final = opened(
    "A step of a job.",
    {
        "stepId": TEXT,
        "step_index": COUNT,
        "step_type": TEXT,
        "service": TEXT,
        "tried_services": {
            "type": "array",
            "description": "Services before `service` whose attempts were used.",
            "items": TEXT,
        },
        "state": named("StepState"),
        "attempt_no": COUNT,
        "lease_id": MAYBE_TEXT,
        "lease_expires_at": {
            **MAYBE_TIME,
            "description": "The current deadline: of the ACK, then of the lease.",
        },
        "next_attempt_at": MAYBE_TIME,
        "lane": LANE,
        "routing_key_used": TEXT,
        "resolved_mode": named("Mode"),
        "decision_source": named("DecisionSource"),
        "decision_reason": TEXT,
        "input_ref": named("Ref"),
        "workspace_ref": named("Ref"),
        "output_ref": named("Ref"),
        "payload": {"description": "The step's own part of the payload, laid over the protocol's defaults."},
        "result_ref": or_null(named("ResultRef")),
        "progress": {
            "type": ["integer", "null"],
            "minimum": 0,
            "maximum": 100,
            "description": "In per cent, as the service last reported it; 100 once the step has succeeded.",
        },
        "last_error_code": MAYBE_TEXT,
        "last_error_message": MAYBE_TEXT,
        "usage": named("Usage"),
        "created_at": TIME,
        "updated_at": TIME,
        "completed_at": MAYBE_TIME,
    },
)


def step_view(step: Step) -> dict[str, Json]:
    routing = step.routing
    return {
        "stepId": step.step_id,
        "step_index": step.step_index,
        "step_type": step.step_type,
        "service": step.service,
        "tried_services": list(step.tried),
        "state": step.state._value_,
        "attempt_no": step.attempt_no,
        "lease_id": step.lease_id,
        "lease_expires_at": rfc3339_or_none(step.lease_expires_shown_ms),
        "next_attempt_at": rfc3339_or_none(step.next_attempt_at_ms),
        "lane": routing.lane,
        "routing_key_used": routing.routing_key_used,
        "resolved_mode": routing.resolved_mode._value_,
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


EVENT_SCHEMA: Final = opened(
    "Something that was true of a job.",
    {
        "seq": {"type": "integer", "minimum": 1, "description": "1, 2, 3… without gaps in a job."},
        "type": named("EventType"),
        "at": TIME,
        "stepId": MAYBE_TEXT,
        "attempt_no": {"type": ["integer", "null"], "minimum": 0},
        "data": {"type": "object", "description": "What else is known, by type."},
    },
)


def event_view(event: Event) -> dict[str, Json]:
    return {
        "seq": event.seq,
        "type": event.type._value_,
        "at": rfc3339(event.at_ms),
        "stepId": event.step_id,
        "attempt_no": event.attempt_no,
        "data": _readable(event.data),
    }


USAGE_SCHEMA: Final[Schema] = {
    "type": "object",
    "description": "What services reported, by name, of all attempts that counted.",
    "additionalProperties": {"type": "number", "minimum": 0},
}


def _readable(data: dict[str, Json]) -> dict[str, Json]:
    """Inside, times are milliseconds under names that end in `_at_ms`; outside they are text."""
    return {
        (name[:-3] if name.endswith(_AT_MS) else name): (
            rfc3339(value) if name.endswith(_AT_MS) and isinstance(value, int) else value
        )
        for name, value in data.items()
    }
