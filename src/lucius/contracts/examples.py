"""One small story in documents: a command, its directive, the service's replies, the job they make.

In: nothing. Out: an example for each document that crosses a wire, by the name of its schema. Descriptions of
the interfaces show them, and tests hold them against the schemas, so that no reader is shown what is not so.
"""

from typing import Final

from lucius.core.model import Json
from lucius.core.routing import lane_of, reply_topic

_TENANT: Final = "acme"
_LANE: Final = lane_of(_TENANT)
_JOB_ID: Final = "job_01k5z3w8e6t9r4c2m7x1q0hv5b"
_LEASE_ID: Final = "51eecdcf70bc9546e4eaad69"
_TRACE: Final = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
_CORRELATION_ID: Final = "invoice-2026-0117"
_INPUT: Final[Json] = {"uri": "s3://acme-in/invoice-0117.pdf"}
_OUTPUT: Final[Json] = {"uri": "s3://acme-out/invoice-0117.txt"}
_WORKSPACE: Final = f"s3://lucius-workspace/lucius/{_TENANT}/{_JOB_ID}/"
_RESULT: Final[Json] = {"uri": f"{_WORKSPACE}ocr/1/output.txt"}
_CREATED: Final = "2026-01-27T10:00:00.000Z"
_ENDED: Final = "2026-01-27T10:02:08.120Z"

_ATTEMPT: Final[dict[str, Json]] = {
    "jobId": _JOB_ID,
    "stepId": "step_01",
    "tenant_id": _TENANT,
    "attempt_no": 1,
    "lease_id": _LEASE_ID,
}

ENVELOPE: Final[dict[str, Json]] = {
    "tenant_id": _TENANT,
    "request_type": "OCR",
    "input_ref": _INPUT,
    "output_ref": _OUTPUT,
    "payload": {"language": "en"},
    "schema_version": "1",
    "idempotency_key": "invoice-0117",
    "correlation_id": _CORRELATION_ID,
    "callback_urls": {"completed": "https://hooks.acme.example/lucius"},
}

DIRECTIVE: Final[dict[str, Json]] = {
    "type": "DIRECTIVE",
    **_ATTEMPT,
    "protocol_id": "ocr_v1",
    "step_type": "OCR",
    "service": "ocr",
    "input_ref": _INPUT,
    "workspace_ref": {"uri": _WORKSPACE},
    "output_ref": _OUTPUT,
    "payload": {"language": "en"},
    "mode": "DEFAULT",
    "lane": _LANE,
    "routing_key_used": _TENANT,
    "correlation_id": _CORRELATION_ID,
    "traceparent": _TRACE,
    "upstream": [],
    "reply_topic": reply_topic(_LANE),
    "callback_urls": {
        "ack": "https://lucius.example/v1/callbacks/ack",
        "result": "https://lucius.example/v1/callbacks/result",
        "progress": "https://lucius.example/v1/callbacks/progress",
    },
    "callback_token": "<signed for this attempt>",
    "lease_expires_at": "2026-01-27T10:00:30.412Z",
    "lease_seconds": 900,
}

STEP: Final[dict[str, Json]] = {
    "stepId": "step_01",
    "step_index": 0,
    "step_type": "OCR",
    "service": "ocr",
    "tried_services": [],
    "state": "SUCCEEDED",
    "attempt_no": 1,
    "lease_id": _LEASE_ID,
    "lease_expires_at": None,
    "next_attempt_at": None,
    "lane": _LANE,
    "routing_key_used": _TENANT,
    "resolved_mode": "DEFAULT",
    "decision_source": "GLOBAL_CONFIG",
    "decision_reason": "GLOBAL_DEFAULT",
    "input_ref": _INPUT,
    "workspace_ref": {"uri": _WORKSPACE},
    "output_ref": _OUTPUT,
    "payload": {"language": "en"},
    "result_ref": _RESULT,
    "progress": 40,
    "last_error_code": None,
    "last_error_message": None,
    "usage": {"pages": 3},
    "created_at": _CREATED,
    "updated_at": _ENDED,
    "completed_at": _ENDED,
}

JOB: Final[dict[str, Json]] = {
    "jobId": _JOB_ID,
    "tenant_id": _TENANT,
    "tenant_bucket": f"{_TENANT}#202601",
    "request_type": "OCR",
    "protocol_id": "ocr_v1",
    "engine": "outbox",
    "doc_id": None,
    "mode": "DEFAULT",
    "priority": 5,
    "state": "SUCCEEDED",
    "current_step_id": "step_01",
    "current_step_index": 0,
    "attempts_total": 1,
    "created_at": _CREATED,
    "updated_at": _ENDED,
    "completed_at": _ENDED,
    "error_code": None,
    "error_message": None,
    "correlation_id": _CORRELATION_ID,
    "traceparent": _TRACE,
    "idempotency_key": "invoice-0117",
    "idempotency_hash": "c30cfaaa8dc4f6807b68ca3f6f4fd55a10421ac89e635372c8dbbc73db97d3da",
    "final_output": f"{_WORKSPACE}ocr/1/output.txt",
    "rerun_of": None,
    "paused_reason": None,
    "usage": {"pages": 3},
    "steps": [STEP],
}

EVENT: Final[dict[str, Json]] = {
    "seq": 6,
    "type": "STEP_SUCCEEDED",
    "at": _ENDED,
    "stepId": "step_01",
    "attempt_no": 1,
    "data": {"output_ref": _RESULT},
}

ACK: Final[dict[str, Json]] = {"type": "ACK", **_ATTEMPT, "timestamp": "2026-01-27T10:00:01Z"}
PROGRESS: Final[dict[str, Json]] = {
    "type": "PROGRESS",
    **_ATTEMPT,
    "timestamp": "2026-01-27T10:01:00Z",
    "progress": 40,
    "note": "page 2 of 5",
}
RESULT: Final[dict[str, Json]] = {
    "type": "RESULT",
    **_ATTEMPT,
    "timestamp": "2026-01-27T10:02:08Z",
    "status": "SUCCEEDED",
    "output_ref": _RESULT,
}

EXAMPLES: Final[dict[str, Json]] = {
    "Envelope": ENVELOPE,
    "Directive": DIRECTIVE,
    "Ack": ACK,
    "Progress": PROGRESS,
    "Result": RESULT,
    "Job": JOB,
    "Step": STEP,
    "Event": EVENT,
}
