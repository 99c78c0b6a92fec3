"""Commands and plans, described."""

from typing import Final

from lucius.api.commands import BATCH_COMMANDS_MAX
from lucius.api.described.groups import Operation, OperationGroup, RequestBody, ResponseDescription, header
from lucius.api.problems import problem_document
from lucius.contracts.envelope import IDEMPOTENCY_KEY_LENGTH_MAX
from lucius.contracts.examples import ENVELOPE, JOB
from lucius.contracts.schemas import (
    COUNT,
    LANE,
    MAYBE_TEXT,
    TEXT,
    TIME,
    Schema,
    closed,
    named,
    opened,
    or_null,
)
from lucius.core.model import Json
from lucius.core.refusal import Code, FieldError, Refused
from lucius.core.routing import topic

_ACCEPTED: Final[dict[str, Json]] = {"jobId": JOB["jobId"], "state": "QUEUED", "duplicate": False}

_SCHEMAS: Final[dict[str, Schema]] = {
    "Accepted": opened(
        "A command that became a job, now or when it was sent first.",
        {
            "jobId": TEXT,
            "state": named("JobState"),
            "duplicate": {"type": "boolean", "description": "Whether the job was there already."},
        },
    ),
    "Batch": closed(
        "Commands, to be answered in this order.",
        {"commands": {"type": "array", "maxItems": BATCH_COMMANDS_MAX, "items": named("Envelope")}},
    ),
    "BatchAnswer": opened(
        "The answer to each command, in the order of the commands.",
        {"items": {"type": "array", "items": named("BatchItem")}},
    ),
    "BatchItem": {
        "description": "What the command would have been answered alone.",
        "oneOf": [named("Accepted"), named("Problem")],
    },
}

_EXAMPLES: Final[dict[str, Json]] = {
    "Accepted": _ACCEPTED,
    "Batch": {"commands": [ENVELOPE, {**ENVELOPE, "idempotency_key": "invoice-0118", "mode": "BURST"}]},
    "BatchAnswer": {
        "items": [
            _ACCEPTED,
            problem_document(
                Refused(
                    Code.DOC_ID_REQUIRED,
                    "BURST needs a doc_id",
                    (FieldError("/doc_id", "is required for BURST"),),
                )
            ),
        ]
    },
}

_PARAMETERS: Final = {
    "IdempotencyKey": header(
        "Idempotency-Key",
        {"type": "string", "minLength": 1, "maxLength": IDEMPOTENCY_KEY_LENGTH_MAX},
        "Names this wish. Sent again with the same key, it is answered with the job it made the first time.",
    ),
    "Traceparent": header(
        "traceparent", TEXT, "W3C trace context; an invalid one is dropped and a new trace begun."
    ),
}

_SECONDS: Final[Schema] = {"type": "number", "minimum": 0}

_PLAN_SCHEMAS: Final[dict[str, Schema]] = {
    "Plan": opened(
        "What would become of a command.",
        {
            "accepted": {
                "type": "boolean",
                "description": "Whether nothing is wrong with the command itself.",
            },
            "problems": {"type": "array", "items": named("PlanProblem")},
            "duplicate_of": {**MAYBE_TEXT, "description": "The job that the idempotency key stands for."},
            "protocol_id": MAYBE_TEXT,
            "steps": {"type": "array", "items": named("PlannedStep")},
            "lane": or_null(LANE),
            "topic": MAYBE_TEXT,
            "mode": or_null(named("Mode")),
            "decision_source": or_null(named("DecisionSource")),
            "decision_reason": MAYBE_TEXT,
            "limits": or_null(named("PlanLimits")),
        },
    ),
    "PlanProblem": opened(
        "Something that would make the command be refused.",
        {"code": named("ProblemCode"), "message": TEXT, "pointer": TEXT},
        ["code", "message"],
    ),
    "PlannedStep": opened(
        "A step as it would be.",
        {
            "stepId": TEXT,
            "step_type": TEXT,
            "service": TEXT,
            "payload": {"description": "The step's own part of the payload, laid over the defaults."},
            "policy": named("StepPolicy"),
            "stop_on_pause": {
                "type": "boolean",
                "description": "Whether a pause asks the worker of this step to stop.",
            },
        },
    ),
    "StepPolicy": opened(
        "How patient the orchestrator is with a step.",
        {
            "max_attempts": {"type": "integer", "minimum": 1},
            "ack_timeout_seconds": _SECONDS,
            "lease_seconds": _SECONDS,
            "max_duration_seconds": _SECONDS,
            "on_exhausted": {"type": "string", "enum": ["fail", "park"]},
            "backoff_seconds": named("Backoffs"),
        },
    ),
    "PlanLimits": opened(
        "How full everything is now.",
        {
            "tenant": named("Fullness"),
            "total": named("Fullness"),
            "default": named("Fullness"),
            "burst": named("Fullness"),
            "taken_now": {"type": "boolean", "description": "Whether there is room for the command now."},
            "retry_after_seconds": {"type": ["integer", "null"], "minimum": 0},
            "budgets": {"type": "array", "items": named("BudgetState")},
        },
    ),
    "BudgetState": opened(
        "What a tenant may use of something in a period (UTC), and has used.",
        {
            "name": TEXT,
            "period": {"type": "string", "enum": ["day", "month"]},
            "used": {"type": "number", "minimum": 0},
            "max": {"type": "number", "minimum": 0},
            "ends_at": TIME,
        },
    ),
    "Fullness": opened("Jobs in flight, and how many there may be.", {"in_flight": COUNT, "max": COUNT}),
}

_FULL: Final[Json] = {"in_flight": 12, "max": 1000}
_PLAN: Final[Json] = {
    "accepted": True,
    "problems": [],
    "duplicate_of": None,
    "protocol_id": "ocr_v1",
    "steps": [
        {
            "stepId": "step_01",
            "step_type": "OCR",
            "service": "ocr",
            "payload": {"language": "en"},
            "policy": {
                "max_attempts": 3,
                "ack_timeout_seconds": 30,
                "lease_seconds": 900,
                "max_duration_seconds": 86400,
                "on_exhausted": "fail",
                "backoff_seconds": {
                    "publish": [30, 120, 600],
                    "ack": [60, 300, 900],
                    "result": [30, 120, 600],
                },
            },
            "stop_on_pause": False,
        }
    ],
    "lane": JOB["steps"][0]["lane"],
    "topic": topic(JOB["steps"][0]["lane"]),
    "mode": "DEFAULT",
    "decision_source": "GLOBAL_CONFIG",
    "decision_reason": "GLOBAL_DEFAULT",
    "limits": {
        "tenant": _FULL,
        "total": {"in_flight": 340, "max": 100000},
        "default": {"in_flight": 12, "max": 50000},
        "burst": {"in_flight": 0, "max": 1000},
        "taken_now": True,
        "retry_after_seconds": None,
        "budgets": [
            {
                "name": "pages",
                "period": "day",
                "used": 96,
                "max": 1000,
                "ends_at": "2026-01-28T00:00:00.000Z",
            }
        ],
    },
}
COMMAND_REFUSALS: Final = (
    Code.MALFORMED_JSON,
    Code.INVALID_ENVELOPE,
    Code.UNSUPPORTED_SCHEMA_VERSION,
    Code.UNKNOWN_REQUEST_TYPE,
    Code.INVALID_PAYLOAD,
    Code.REF_NOT_ALLOWED,
    Code.DOC_ID_REQUIRED,
    Code.IDEMPOTENCY_KEY_REUSED,
    Code.BODY_TOO_LARGE,
    Code.TENANT_LIMIT,
    Code.BUDGET_EXCEEDED,
)


def _submit(description: str, *, deprecated: bool) -> Operation:
    return Operation(
        summary="Submit a command",
        description=description,
        parameters=("IdempotencyKey", "Traceparent"),
        body=RequestBody(schema="Envelope", description="The command, at most 256 KiB."),
        answers=(
            ResponseDescription(
                status=202,
                description="The command is written down and will be carried out.",
                schema="Accepted",
                headers=("Location", "Idempotent-Replayed"),
                links=("getJob", "getSteps", "getEvents", "explainJob", "cancelJob", "pauseJob"),
            ),
        ),
        refusals=COMMAND_REFUSALS,
        deprecated=deprecated,
    )


AREA: Final = OperationGroup(
    tag="commands",
    description="A command asks for a job. Nothing is written for a command that is refused.",
    operations={
        "orchestrate": _submit(
            "Writes the command down and answers at once. The same command sent again with the same "
            "idempotency key gives the job that is there, with `duplicate: true`.",
            deprecated=False,
        ),
        "submitCommand": _submit("The older address of `POST /v1/orchestrate`.", deprecated=True),
        "orchestrateBatch": Operation(
            summary="Submit many commands",
            description=f"Up to {BATCH_COMMANDS_MAX} commands in one call. They are answered one by one and "
            "in order: one bad envelope spoils only itself.",
            body=RequestBody(schema="Batch", description="The commands, at most 16 MiB."),
            answers=(ResponseDescription(description="Each command's answer.", schema="BatchAnswer"),),
            refusals=(Code.MALFORMED_JSON, Code.INVALID_ENVELOPE, Code.BODY_TOO_LARGE),
        ),
        "planCommand": Operation(
            summary="Plan a command",
            description="What would become of a command, down to its lane; nothing is written. A command "
            "that would be refused gives `accepted: false` and every problem at once.",
            parameters=("IdempotencyKey",),
            body=RequestBody(schema="Envelope", description="The command, at most 256 KiB."),
            answers=(ResponseDescription(description="The plan.", schema="Plan"),),
            refusals=(Code.MALFORMED_JSON, Code.BODY_TOO_LARGE),
        ),
    },
    schemas={**_SCHEMAS, **_PLAN_SCHEMAS},
    examples={**_EXAMPLES, "Plan": _PLAN},
    parameters=_PARAMETERS,
)
