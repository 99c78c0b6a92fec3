"""The webhook that is sent at a job's end, described: here the receiver is the server."""

from typing import Any, Final

from lucius.api.described.groups import Doc, OperationGroup
from lucius.api.described.webhooks import AREA as WEBHOOKS
from lucius.contracts.examples import JOB, STEP
from lucius.contracts.schemas import COMPONENTS, TEXT, TIME, Schema, named, opened
from lucius.core.model import Json


def _without(schema: Schema, member: str) -> Schema:
    properties = {name: each for name, each in schema["properties"].items() if name != member}
    return opened(f"{schema['description'].rstrip('.')}, without its {member}.", properties)


_JOB: Final[Schema] = COMPONENTS["Job"]
_SCHEMAS: Final[dict[str, Schema]] = {
    "JobCompleted": opened(
        "The job has ended, well or badly.",
        {"type": {"type": "string", "const": "job.completed"}, "timestamp": TIME, "data": named("EndedJob")},
    ),
    "EndedJob": opened(
        "The job as readers see it, but for the payloads.",
        {**_JOB["properties"], "steps": {"type": "array", "items": named("EndedStep")}},
    ),
    "EndedStep": _without(COMPONENTS["Step"], "payload"),
}
_EXAMPLE: Final[dict[str, Json]] = {
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
    tag=WEBHOOKS.tag,
    description=WEBHOOKS.description,
    operations={},
    schemas=_SCHEMAS,
    examples={"JobCompleted": _EXAMPLE},
    parameters=_PARAMETERS,
)

JOB_COMPLETED: Final[dict[str, Any]] = {
    "post": {
        "operationId": "jobCompleted",
        "tags": [WEBHOOKS.tag],
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
