"""Webhooks, described: the one that is sent at a job's end, dead letters, and sending one again."""

from typing import Any, Final

from lucius.api.described.groups import Doc, Operation, OperationGroup, ResponseDescription
from lucius.contracts.examples import JOB, STEP
from lucius.contracts.schemas import MAYBE_TEXT, TEXT, TIME, Schema, named, one_of, opened
from lucius.contracts.views import JOB_SCHEMA, STEP_SCHEMA
from lucius.core.model import Json
from lucius.core.refusal import Code

_SCHEMAS: Final[dict[str, Schema]] = {
    "DeadWebhook": opened(
        "A webhook that was given up.",
        {
            "jobId": TEXT,
            "tenant_id": TEXT,
            "url": TEXT,
            "attempts": {"type": "integer", "minimum": 1},
            "last_problem": {**MAYBE_TEXT, "description": "Why the last try did not succeed."},
            "dead_at": TIME,
        },
    ),
    "DeadWebhookPage": opened(
        "A page of dead letters.",
        {"items": {"type": "array", "items": named("DeadWebhook")}, "next_cursor": MAYBE_TEXT},
    ),
    "WebhookAgain": opened(
        "A webhook that is sent again.",
        {"jobId": TEXT, "webhook": one_of("Where the webhook is.", ["PENDING"])},
    ),
}
_LETTER: Final[Json] = {
    "jobId": "job_01k5z3w8e6t9r4c2m7x1q0hv5b",
    "tenant_id": "acme",
    "url": "https://hooks.example.com/lucius",
    "attempts": 8,
    "last_problem": "the receiver answered 503",
    "dead_at": "2026-01-28T09:00:00.000Z",
}


def _without(schema: Schema, member: str) -> Schema:
    properties = {name: each for name, each in schema["properties"].items() if name != member}
    return opened(f"{schema['description'].rstrip('.')}, without its {member}.", properties)


_ENDED_SCHEMAS: Final[dict[str, Schema]] = {
    "JobCompleted": opened(
        "The job has ended, well or badly.",
        {"type": {"type": "string", "const": "job.completed"}, "timestamp": TIME, "data": named("EndedJob")},
    ),
    "EndedJob": opened(
        "The job as readers see it, but for the payloads.",
        {**JOB_SCHEMA["properties"], "steps": {"type": "array", "items": named("EndedStep")}},
    ),
    "EndedStep": _without(STEP_SCHEMA, "payload"),
}
_ENDED: Final[dict[str, Json]] = {
    "type": "job.completed",
    "timestamp": JOB["completed_at"],
    "data": {**JOB, "steps": [{name: value for name, value in STEP.items() if name != "payload"}]},
}


def _signed(name: str, description: str, schema: Schema) -> Doc:
    return {"name": name, "in": "header", "required": True, "description": description, "schema": schema}


_PARAMETERS: Final[dict[str, Doc]] = {
    "WebhookId": _signed("webhook-id", "The same at every try: know by it what you have seen.", TEXT),
    "WebhookTimestamp": _signed(
        "webhook-timestamp", "When this try was signed, in seconds since 1970.", {"type": "integer"}
    ),
    "WebhookSignature": _signed(
        "webhook-signature",
        "`v1,` and the base64 of an HMAC-SHA256 over id, timestamp and body; several while secrets rotate.",
        TEXT,
    ),
}

AREA: Final = OperationGroup(
    tag="webhooks",
    description="A job whose command names `callback_urls.completed` sends one signed webhook when it ends.",
    operations={
        "listDeadWebhooks": Operation(
            summary="List webhooks that were given up",
            description="Webhooks that no receiver took, the newest first. A page may be short and still "
            "have a cursor.",
            parameters=("Cursor", "Limit"),
            answers=(ResponseDescription(description="A page of dead letters.", schema="DeadWebhookPage"),),
            refusals=(Code.INVALID_REQUEST,),
        ),
        "redeliverWebhook": Operation(
            summary="Send a webhook again",
            description="Whatever became of it so far, it begins anew with all its tries, under the same id.",
            answers=(
                ResponseDescription(status=202, description="It is on its way.", schema="WebhookAgain"),
            ),
            refusals=(Code.JOB_NOT_FOUND, Code.NOT_FOUND, Code.JOB_NOT_TERMINAL),
        ),
    },
    schemas={**_SCHEMAS, **_ENDED_SCHEMAS},
    examples={
        "DeadWebhookPage": {"items": [_LETTER], "next_cursor": None},
        "WebhookAgain": {"jobId": "job_01k5z3w8e6t9r4c2m7x1q0hv5b", "webhook": "PENDING"},
        "JobCompleted": _ENDED,
    },
    parameters=_PARAMETERS,
)

# Here the receiver is the server.
JOB_COMPLETED: Final[dict[str, Any]] = {
    "post": {
        "operationId": "jobCompleted",
        "tags": [AREA.tag],
        "summary": "A job has ended",
        "description": "Sent to `callback_urls.completed` of the command, signed as Standard Webhooks say. "
        "Any answer other than a 2xx is a reason to try again later; redirects are not followed.",
        "security": [],
        "parameters": [{"$ref": f"#/components/parameters/{name}"} for name in _PARAMETERS],
        "requestBody": {
            "description": "What has happened.",
            "required": True,
            "content": {
                "application/json": {
                    "schema": named("JobCompleted"),
                    "examples": {"JobCompleted": {"$ref": "#/components/examples/JobCompleted"}},
                }
            },
        },
        "responses": {"204": {"description": "The receiver has it, and wants no more tries."}},
    }
}
