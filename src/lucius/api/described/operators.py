"""What operators use, described: the outbox, the finally failed, the protocols, health."""

from typing import Final

from lucius.api.described.groups import (
    Operation,
    OperationGroup,
    RequestBody,
    ResponseDescription,
    in_path,
    query,
)
from lucius.api.described.jobs import INSTANT_OR_AGO, NEW_JOB, RERUN_REFUSALS
from lucius.contracts.schemas import COUNT, MAYBE_TEXT, TEXT, Schema, named, one_of, opened, or_null
from lucius.core.model import Json
from lucius.core.refusal import Code

_SECONDS: Final[Schema] = {"type": "number", "minimum": 0}
_BACKOFFS: Final[Schema] = {"type": "array", "items": _SECONDS}

_PROTOCOL_SCHEMAS: Final[dict[str, Schema]] = {
    "ProtocolPage": opened(
        "All protocols, on one page.",
        {
            "items": {"type": "array", "items": named("Protocol")},
            "next_cursor": MAYBE_TEXT,
            "problems": {
                "type": "array",
                "items": TEXT,
                "description": "What is wrong with documents that were refused.",
            },
        },
    ),
    "Protocol": opened(
        "The recipe of a request type.",
        {
            "protocol_id": TEXT,
            "request_types": {"type": "array", "items": TEXT},
            "steps": {"type": "array", "items": named("ProtocolStep")},
            "example": {
                **or_null(named("Envelope")),
                "description": "Of one protocol that was asked for: a command that is accepted here, about a "
                "sample document; null where none can be made.",
            },
        },
        ["protocol_id", "request_types", "steps"],
    ),
    "ProtocolStep": opened(
        "A step of a recipe.",
        {
            "step_type": TEXT,
            "service": TEXT,
            "payload_key": {**MAYBE_TEXT, "description": "The member of the payload that is the step's own."},
            "payload_schema": {
                "type": ["object", "boolean", "null"],
                "description": "A JSON Schema of the step's part of the payload.",
            },
            "defaults": {"type": ["object", "null"]},
            "max_attempts": {"type": "integer", "minimum": 1},
            "ack_timeout_seconds": _SECONDS,
            "lease_seconds": _SECONDS,
            "max_duration_seconds": _SECONDS,
            "on_exhausted": {"type": "string", "enum": ["fail", "park"]},
            "backoff_seconds": named("Backoffs"),
            "stop_on_pause": {
                "type": "boolean",
                "description": "Whether a pause asks the worker of this step to stop.",
            },
        },
    ),
    "Backoffs": opened(
        "Waits between attempts, by what failed; the last one repeats.",
        {"publish": _BACKOFFS, "ack": _BACKOFFS, "result": _BACKOFFS},
    ),
}
_PROTOCOL: Final[dict[str, Json]] = {
    "protocol_id": "ocr_v1",
    "request_types": ["OCR"],
    "steps": [
        {
            "step_type": "OCR",
            "service": "ocr",
            "payload_key": None,
            "payload_schema": {"type": "object", "properties": {"language": {"type": "string"}}},
            "defaults": {"language": "en"},
            "max_attempts": 3,
            "ack_timeout_seconds": 30,
            "lease_seconds": 900,
            "max_duration_seconds": 86400,
            "on_exhausted": "fail",
            "backoff_seconds": {"publish": [30, 120, 600], "ack": [60, 300, 900], "result": [30, 120, 600]},
            "stop_on_pause": False,
        }
    ],
}

ADMIN: Final = OperationGroup(
    tag="admin",
    description="For operators: what waits, what has failed for good.",
    operations={
        "retryOutbox": Operation(
            summary="Make every waiting outbox row due now",
            description="For the moment after an outage, when the backoffs have lost their reason.",
            answers=(ResponseDescription(description="How many rows there were.", schema="MadeDue"),),
        ),
        "listDlq": Operation(
            summary="List finally failed jobs",
            description="Jobs that failed for good and have not been run again, the last that failed first. "
            "A page looks at a bounded number of them: with a filter it may be short and have a cursor.",
            parameters=(
                "TenantId",
                "RequestType",
                "ErrorCode",
                "FailedAfter",
                "FailedBefore",
                "Cursor",
                "Limit",
            ),
            answers=(ResponseDescription(description="A page of jobs.", schema="JobPage"),),
            refusals=(Code.INVALID_REQUEST,),
        ),
        "redriveJob": Operation(
            summary="Run a finally failed job again",
            description="A rerun, for a job on the list of the finally failed. Asked for again, it is the "
            "same one while that is open; then the job is not found here, and a rerun runs it once more.",
            parameters=("IdempotencyKey",),
            body=RequestBody(schema="Rerun", description="Where to begin.", required=False),
            answers=(NEW_JOB,),
            refusals=RERUN_REFUSALS,
        ),
    },
    schemas={"MadeDue": opened("How many rows were made due.", {"made_due": COUNT})},
    examples={"MadeDue": {"made_due": 17}},
    parameters={
        "ErrorCode": query("error_code", TEXT, "Only jobs that failed with this code."),
        "FailedAfter": query("failed_after", INSTANT_OR_AGO, "Only jobs that failed later than this."),
        "FailedBefore": query("failed_before", INSTANT_OR_AGO, "Only jobs that failed earlier than this."),
    },
)

PROTOCOLS: Final = OperationGroup(
    tag="protocols",
    description="A protocol is the recipe of a request type: which steps, by whom, how patient.",
    operations={
        "listProtocols": Operation(
            summary="List protocols",
            description="The protocols that this deployment knows, and what is wrong with those it refused.",
            answers=(ResponseDescription(description="The protocols.", schema="ProtocolPage"),),
        ),
        "getProtocol": Operation(
            summary="Get a protocol",
            description="A protocol with the JSON Schema of each step's payload, and a command to try it.",
            answers=(ResponseDescription(description="The protocol.", schema="Protocol"),),
            refusals=(Code.NOT_FOUND,),
        ),
    },
    schemas=_PROTOCOL_SCHEMAS,
    examples={
        "ProtocolPage": {"items": [_PROTOCOL], "next_cursor": None, "problems": []},
        "Protocol": _PROTOCOL,
    },
    parameters={"ProtocolId": in_path("protocol_id", TEXT, "The id of the protocol.")},
)

HEALTH: Final = OperationGroup(
    tag="health",
    description="For load balancers and monitoring; open to every caller.",
    operations={
        "livez": Operation(
            summary="Is the process alive?",
            description="Asks nothing of any dependency.",
            answers=(ResponseDescription(description="It is.", schema="Liveness"),),
        ),
        "readyz": Operation(
            summary="Can the process work?",
            description="One line a dependency.",
            answers=(
                ResponseDescription(description="It can.", schema="Readiness"),
                ResponseDescription(status=503, description="A dependency is not well.", schema="Readiness"),
            ),
        ),
        "metrics": Operation(
            summary="Figures for Prometheus",
            description="In the text format of Prometheus, or as OpenMetrics if that is asked for. Figures "
            "by tenant are there only for callers who see every tenant.",
            answers=(ResponseDescription(description="The figures.", schema="Figures", media="text/plain"),),
        ),
    },
    schemas={
        "Figures": {"type": "string", "description": "Prometheus text."},
        "Liveness": opened("The process is alive.", {"status": {"type": "string", "const": "ok"}}),
        "Readiness": opened(
            "Whether the process can work.",
            {
                "status": one_of("All in all.", ["ok", "failing"]),
                "checks": {
                    "type": "object",
                    "description": "By dependency: `ok`, or what is wrong with it.",
                    "additionalProperties": TEXT,
                },
            },
        ),
    },
    examples={
        "Figures": "# TYPE lucius_dlq_depth gauge\nlucius_dlq_depth 3\n",
        "Liveness": {"status": "ok"},
        "Readiness": {"status": "ok", "checks": {"ledger": "ok", "protocols": "ok", "duties": "ok"}},
    },
    parameters={},
)
