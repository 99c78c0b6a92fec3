"""The OpenAPI document of the API of runs, and the table of its routes.

In: the declarations of the item, the statuses and the refusals. Out: the document, as plain values. A route
is stated here once, with its role and its refusals; `api` gives each a handler.
"""

from typing import Any, Final

import msgspec

from lucius import __version__
from lucius.lifebook.job import FIELDS, PROJECTED, SWEEP_SHARD, Field, FieldKind
from lucius.lifebook.refusals import PROBLEMS, RunCode
from lucius.lifebook.states import Status, Trigger
from lucius.lifebook.table import PAGE_ROWS_MAX

Doc = dict[str, Any]

PROBLEM_TYPE: Final = "application/problem+json"
JSON_TYPE: Final = "application/json"
DOCUMENT_PATH: Final = "/openapi.json"
SUBMIT, READ, CONTROL = "submit", "read", "control"

C = RunCode
_JOB_ID: Final = "6f7c1a52-0f0e-4b8f-9a44-3f8f0f6f2a10"
_AT: Final = "2026-11-18T20:00:00.000Z"


class RunOperation(msgspec.Struct, frozen=True, kw_only=True):
    """One call of the API. `role`: what the caller's key must have; None: no key is asked for."""

    operation_id: str
    method: str
    path: str
    role: str | None
    tag: str
    summary: str
    description: str
    answer: str
    """The schema of the answer."""
    answer_text: str
    status: int = 200
    body: str | None = None
    parameters: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    refusals: tuple[RunCode, ...] = ()


RUN_OPERATIONS: Final[tuple[RunOperation, ...]] = (
    RunOperation(
        operation_id="submitRun",
        method="POST",
        path="/v1/runs",
        role=SUBMIT,
        tag="runs",
        summary="Ask for a run",
        description="Creates the job and the guard of its idempotency key in one transaction, holds its "
        "credits and sends its message. The same key with the same parameters gives the same job.",
        answer="AcceptedRun",
        answer_text="The run is kept and will be worked through.",
        status=202,
        body="RunRequest",
        parameters=("IdempotencyKey",),
        headers=("Location", "Idempotent-Replayed"),
        refusals=(
            *(C.MALFORMED_JSON, C.INVALID_REQUEST, C.UNKNOWN_WORKFLOW, C.INVALID_INPUT),
            *(C.IDEMPOTENCY_KEY_REUSED, C.CREDITS_INSUFFICIENT, C.BODY_TOO_LARGE),
        ),
    ),
    RunOperation(
        operation_id="listRuns",
        method="GET",
        path="/v1/runs",
        role=READ,
        tag="runs",
        summary="List the runs of a workspace",
        description="Newest first. Expired jobs are left out, so a page may hold fewer rows than asked for "
        "and still name a next one. The list may lag behind a change for a moment.",
        answer="RunPage",
        answer_text="One page of the list.",
        parameters=("WorkspaceId", "Limit", "Cursor"),
        refusals=(C.INVALID_REQUEST,),
    ),
    RunOperation(
        operation_id="getRun",
        method="GET",
        path="/v1/runs/{job_id}",
        role=READ,
        tag="runs",
        summary="Show a run",
        description="The item of the job, read from the table itself.",
        answer="Run",
        answer_text="The job as it is now.",
        parameters=("JobId",),
        refusals=(C.JOB_NOT_FOUND,),
    ),
    RunOperation(
        operation_id="cancelRun",
        method="POST",
        path="/v1/runs/{job_id}:cancel",
        role=CONTROL,
        tag="runs",
        summary="Cancel a run",
        description="At once where no step runs, else before the next step. Asking again changes nothing.",
        answer="Run",
        answer_text="The job after the wish was noted.",
        status=202,
        parameters=("JobId",),
        refusals=(C.JOB_NOT_FOUND, C.JOB_TERMINAL),
    ),
    RunOperation(
        operation_id="redriveRun",
        method="POST",
        path="/v1/runs/{job_id}:redrive",
        role=CONTROL,
        tag="runs",
        summary="Give a dead run new attempts",
        description="All of its attempts again; finished steps are not run again. Its credits are held anew.",
        answer="Run",
        answer_text="The job, waiting for a worker.",
        status=202,
        parameters=("JobId",),
        refusals=(C.JOB_NOT_FOUND, C.JOB_NOT_DEAD, C.CREDITS_INSUFFICIENT),
    ),
    RunOperation(
        operation_id="startRunByWebhook",
        method="POST",
        path="/v1/webhooks/{workflow_id}",
        role=None,
        tag="runs",
        summary="Start a run by a signed webhook",
        description="Signed as Standard Webhooks say, with the secret of the deployment. The id of the "
        "webhook is the idempotency key, so that a webhook delivered twice starts one run.",
        answer="AcceptedRun",
        answer_text="The run is kept and will be worked through.",
        status=202,
        body="WebhookRequest",
        parameters=("WorkflowId", "WebhookId", "WebhookTimestamp", "WebhookSignature"),
        headers=("Location", "Idempotent-Replayed"),
        refusals=(
            *(C.UNAUTHENTICATED, C.NOT_FOUND, C.INVALID_REQUEST, C.UNKNOWN_WORKFLOW, C.INVALID_INPUT),
            *(C.IDEMPOTENCY_KEY_REUSED, C.CREDITS_INSUFFICIENT, C.BODY_TOO_LARGE),
        ),
    ),
    RunOperation(
        operation_id="listWorkflows",
        method="GET",
        path="/v1/workflows",
        role=READ,
        tag="runs",
        summary="List the workflows that may be run",
        description="Those of the modules that this process has loaded.",
        answer="WorkflowPage",
        answer_text="All of them.",
    ),
    RunOperation(
        operation_id="listDeadLetters",
        method="GET",
        path="/v1/dlq",
        role=CONTROL,
        tag="dead letters",
        summary="List what is in the dead-letter queue",
        description="Each message with what the record of its job says. Looking takes nothing out, and hides "
        "it only while it is looked at.",
        answer="DeadLetterPage",
        answer_text="At most 100 messages.",
    ),
    RunOperation(
        operation_id="redriveDeadLetters",
        method="POST",
        path="/v1/dlq:redrive",
        role=CONTROL,
        tag="dead letters",
        summary="Bring back what is in the dead-letter queue",
        description="Every dead job that the caller may see gets new attempts, as if redriven by itself. A "
        "caller of all workspaces also returns every other message to the queue: SQS moves them in a task "
        "of its own where it can, else they are moved one by one. At most 500 messages are looked at in one "
        "call.",
        answer="RedrivenDeadLetters",
        answer_text="What was brought back.",
        status=202,
    ),
    RunOperation(
        operation_id="isAlive",
        method="GET",
        path="/livez",
        role=None,
        tag="health",
        summary="Whether the process answers",
        description="Asks neither the table nor the queue.",
        answer="Alive",
        answer_text="It does.",
    ),
)

# What any call may be refused with; a key only where one is asked for.
_ALWAYS: Final = (C.SYSTEM_SATURATED, C.INTERNAL)
_WITH_KEY: Final = (C.UNAUTHENTICATED, C.FORBIDDEN)


def _text(description: str, **more: Any) -> Doc:
    return {"type": "string", "description": description, **more}


_TEXT_BOUNDS: Final = {"minLength": 1, "maxLength": 256}
_CREDITS: Final = {"type": "string", "pattern": r"^-?\d+(\.\d+)?$"}
_ANY: Final = "Any JSON value."
_TYPES: Final[dict[FieldKind, Doc]] = {
    FieldKind.TEXT: {"type": "string"},
    FieldKind.INTEGER: {"type": "integer"},
    FieldKind.DECIMAL: _CREDITS,
    FieldKind.TIME: {"type": "string", "format": "date-time"},
}
_ENUMS: Final[dict[str, Doc]] = {
    "status": {"$ref": "#/components/schemas/Status"},
    "trigger_type": {"$ref": "#/components/schemas/TriggerType"},
}
# Shown as the JSON that they are, not as the text that is stored.
_SHOWN_AS_JSON: Final[dict[str, Doc]] = {
    "input": {},
    "checkpoint": {},
    "results": {"type": "array", "items": {"description": _ANY}},
}


def _shown(field: Field) -> Doc:
    """A field of the item as the API shows it: absent ones are null."""
    schema = _SHOWN_AS_JSON.get(field.name)
    if schema is None:
        schema = _ENUMS.get(field.name) or _TYPES[field.kind]
        if field.optional:
            schema = {**schema, "type": [schema["type"], "null"]}
    return {**schema, "description": f"{field.meaning[0].upper()}{field.meaning[1:]}."}


def _closed(properties: Doc, **more: Any) -> Doc:
    return {"type": "object", "required": list(properties), "properties": properties, **more}


def _page(of: str, description: str) -> Doc:
    return _closed(
        {
            "items": {"type": "array", "items": {"$ref": f"#/components/schemas/{of}"}},
            "next_cursor": {"type": ["string", "null"], "description": "For the next page; null at the end."},
        },
        description=description,
    )


def _asked() -> Doc:
    """What a caller sends."""
    asked: Doc = {
        "workspace_id": _text("The workspace that owns the run.", **_TEXT_BOUNDS),
        "user_id": _text("The initiating user.", **_TEXT_BOUNDS),
        "input": {"description": f"{_ANY} At most 32 KiB as text; it should hold references, no contents."},
    }
    return {
        "RunRequest": {
            "type": "object",
            "description": "What a run is asked with.",
            "required": ["workspace_id", "user_id", "workflow_id"],
            "additionalProperties": False,
            "properties": {
                **asked,
                "workflow_id": _text("One of the workflows that the API knows."),
                "trigger_type": {"$ref": "#/components/schemas/TriggerType", "default": str(Trigger.MANUAL)},
                "idempotency_key": {
                    **_text("Names the logical run; may come as the header Idempotency-Key instead."),
                    "type": ["string", "null"],
                    **_TEXT_BOUNDS,
                },
                "credits_estimate": {
                    "type": ["string", "number", "null"],
                    "description": "Credits to hold; those of the workflow unless given. A text keeps every "
                    "digit.",
                },
                "max_attempts": {
                    "type": ["integer", "null"],
                    "minimum": 1,
                    "maximum": 100,
                    "description": "Attempts that the job may have.",
                },
            },
        },
        "WebhookRequest": {
            "type": "object",
            "description": "What a webhook asks for.",
            "required": ["workspace_id", "user_id"],
            "additionalProperties": False,
            "properties": asked,
        },
    }


def _dead_letters() -> Doc:
    return {
        "DeadLetter": _closed(
            {
                "message_id": _text("Of the message in the dead-letter queue."),
                "job_id": {"type": ["string", "null"], "description": "Null: the body is no message."},
                "status": {
                    "anyOf": [{"$ref": "#/components/schemas/Status"}, {"type": "null"}],
                    "description": "Of the job; null if there is none.",
                },
                "last_error_code": {"type": ["string", "null"], "description": "Of the job."},
                "reason": {
                    "type": ["string", "null"],
                    "description": "Why a worker put it there; null if SQS moved it.",
                },
            },
            description="A message in the dead-letter queue.",
        ),
        "DeadLetterPage": _page("DeadLetter", "What is in the dead-letter queue."),
        "RedrivenDeadLetters": _closed(
            {
                "redriven": {"type": "array", "items": {"type": "string"}, "description": "Jobs."},
                "refused": {
                    "type": "array",
                    "description": "Jobs that stay dead, and why.",
                    "items": _closed(
                        {
                            "job_id": _text("The job."),
                            "code": {
                                "type": "string",
                                "enum": [*RunCode],
                                "description": "Why it stays dead.",
                            },
                            "detail": _text("The same as a sentence."),
                        }
                    ),
                },
                "returned": {
                    "type": "integer",
                    "description": "Messages of no dead job that are back in the queue.",
                },
                "task": {
                    "type": ["string", "null"],
                    "description": "The task by which SQS moves the other messages; null where it has none.",
                },
            },
            description="What was brought back.",
        ),
    }


def _schemas() -> Doc:
    fields = {field.name: _shown(field) for field in FIELDS if field.name != SWEEP_SHARD}
    row = ("job_id", "workspace_id", "created_at", *PROJECTED)
    return {
        **_asked(),
        **_dead_letters(),
        "Status": {"type": "string", "enum": [*Status], "description": "Where a job stands."},
        "TriggerType": {"type": "string", "enum": [*Trigger], "description": "What started a run."},
        "Run": _closed(fields, description="A job: the fields of the contract, then Lifebook's own."),
        "RunSummary": _closed({name: fields[name] for name in row}, description="One line of a list."),
        "RunPage": _page("RunSummary", "Runs of one workspace."),
        "AcceptedRun": _closed(
            {
                "job_id": fields["job_id"],
                "status": fields["status"],
                "duplicate": {"type": "boolean", "description": "Whether the key had this job already."},
            },
            description="Which job stands for the request.",
        ),
        "Workflow": _closed(
            {
                "workflow_id": _text("Its name."),
                "credits_estimate": {**_CREDITS, "description": "What a run holds unless it asks otherwise."},
                "steps": {"type": "array", "items": {"type": "string"}, "description": "In their order."},
            },
            description="A workflow that may be run.",
        ),
        "WorkflowPage": _page("Workflow", "The workflows that may be run."),
        "Alive": _closed({"status": {"type": "string", "const": "ok"}}, description="The process answers."),
        "Problem": {
            "type": "object",
            "description": "Why a call was refused (RFC 9457).",
            "required": ["type", "title", "status", "code", "detail"],
            "properties": {
                "type": {"type": "string", "format": "uri"},
                "title": {"type": "string"},
                "status": {"type": "integer"},
                "code": {"type": "string", "enum": [*RunCode], "description": "Stable; decide by it."},
                "detail": {"type": "string"},
                "errors": {
                    "type": "array",
                    "description": "The members at fault.",
                    "items": _closed({"pointer": {"type": "string"}, "message": {"type": "string"}}),
                },
            },
        },
    }


def _parameter(name: str, place: str, description: str, schema: Doc, *, required: bool = True) -> Doc:
    return {"name": name, "in": place, "required": required, "description": description, "schema": schema}


_TEXT: Final = {"type": "string"}
_PARAMETERS: Final[dict[str, Doc]] = {
    "JobId": _parameter("job_id", "path", "The job.", _TEXT),
    "WorkflowId": _parameter("workflow_id", "path", "The workflow.", _TEXT),
    "WorkspaceId": _parameter("workspace_id", "query", "Whose runs are listed.", _TEXT),
    "Limit": _parameter(
        "limit",
        "query",
        "How many rows.",
        {"type": "integer", "minimum": 1, "maximum": PAGE_ROWS_MAX, "default": 50},
        required=False,
    ),
    "Cursor": _parameter("cursor", "query", "`next_cursor` of the page before.", _TEXT, required=False),
    "IdempotencyKey": _parameter(
        "Idempotency-Key", "header", "Names the logical run.", _TEXT, required=False
    ),
    "WebhookId": _parameter("webhook-id", "header", "Names the webhook; the idempotency key.", _TEXT),
    "WebhookTimestamp": _parameter(
        "webhook-timestamp", "header", "When it was sent, in epoch seconds.", {"type": "integer"}
    ),
    "WebhookSignature": _parameter("webhook-signature", "header", "`v1,` and the signature.", _TEXT),
}
_HEADERS: Final[dict[str, Doc]] = {
    "Location": {"description": "Where the job is.", "schema": {"type": "string", "format": "uri-reference"}},
    "Idempotent-Replayed": {
        "description": "There, and `true`, if the key had this job already.",
        "schema": {"type": "string", "const": "true"},
    },
    "Retry-After": {
        "description": "After how many seconds it is worth trying again.",
        "schema": {"type": "integer", "minimum": 0},
    },
    "WWW-Authenticate": {"description": "How to say who is calling.", "schema": {"type": "string"}},
}
_REFUSAL_HEADERS: Final = {401: ("WWW-Authenticate",), 503: ("Retry-After",)}


def _refusals(operation: RunOperation) -> Doc:
    """The problem documents that the operation may answer with, by their status."""
    codes = (*operation.refusals, *(() if operation.role is None else _WITH_KEY), *_ALWAYS)
    found: Doc = {}
    for status in sorted({PROBLEMS[code][0] for code in codes}):
        here = [code for code in dict.fromkeys(codes) if PROBLEMS[code][0] == status]
        found[str(status)] = {
            "description": "; ".join(f"`{code}`: {PROBLEMS[code][1]}" for code in here) + ".",
            "headers": _headers(_REFUSAL_HEADERS.get(status, ())),
            "content": {
                PROBLEM_TYPE: {
                    "schema": {"$ref": "#/components/schemas/Problem"},
                    "examples": {str(code): {"value": _problem(code)} for code in here},
                }
            },
        }
    return found


def problem_type(code: RunCode) -> str:
    return f"urn:lucius:problem:{code.value.lower().replace('_', '-')}"


def _problem(code: RunCode) -> Doc:
    status, title = PROBLEMS[code]
    return {
        "type": problem_type(code),
        "title": title,
        "status": status,
        "code": str(code),
        "detail": f"{title}.",
    }


def _headers(names: tuple[str, ...]) -> Doc:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _operation(operation: RunOperation) -> Doc:
    content = {JSON_TYPE: {"schema": {"$ref": f"#/components/schemas/{operation.answer}"}}}
    role = "" if operation.role is None else f" Needs the role `{operation.role}`."
    described: Doc = {
        "operationId": operation.operation_id,
        "tags": [operation.tag],
        "summary": operation.summary,
        "description": operation.description + role,
        "security": [] if operation.role is None else [{"apiKey": []}],
        "responses": {
            str(operation.status): {
                "description": operation.answer_text,
                "headers": _headers(operation.headers),
                "content": content,
            },
            **_refusals(operation),
        },
    }
    if operation.parameters:
        described["parameters"] = [
            {"$ref": f"#/components/parameters/{name}"} for name in operation.parameters
        ]
    if operation.body is not None:
        schema = {"$ref": f"#/components/schemas/{operation.body}"}
        described["requestBody"] = {
            "required": True,
            "content": {JSON_TYPE: {"schema": schema, "example": _BODIES[operation.body]}},
        }
    return described


_ASKED: Final = {"workspace_id": "ws_1", "user_id": "ann", "input": {"uri": "s3://bucket/letter.pdf"}}
_BODIES: Final = {"RunRequest": {**_ASKED, "workflow_id": "summarise"}, "WebhookRequest": _ASKED}


def document() -> Doc:
    paths: Doc = {}
    for each in RUN_OPERATIONS:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Lifebook",
            "version": __version__,
            "summary": "Runs over DynamoDB, SQS and Lambda",
            "description": "A request asks for a run of a workflow; a worker takes its job through the "
            "steps. Refusals are RFC 9457 problem documents with a stable `code`. Times are RFC 3339 in UTC, "
            "credits are texts, absent values are null. Answers may get more members in later versions.",
            "contact": {"name": "The operators of this deployment"},
            "license": {"name": "Apache License 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [
            {"url": "/", "description": "Where this document came from."},
            {"url": "http://127.0.0.1:8421", "description": "What `lucius lifebook dev` serves."},
        ],
        "tags": [
            {"name": "runs", "description": "Ask for runs, look at them, stop them."},
            {"name": "dead letters", "description": "What could not be worked through."},
            {"name": "health", "description": "Whether the process answers."},
        ],
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "parameters": _PARAMETERS,
            "headers": _HEADERS,
            "securitySchemes": {
                "apiKey": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A key, as `lucius lifebook key` printed it. On loopback without a file "
                    "of keys none is asked for.",
                }
            },
        },
    }
