"""Webhooks for operators, described: dead letters, and sending one again."""

from typing import Final

from lucius.api.described.groups import Operation, OperationGroup, ResponseDescription
from lucius.contracts.schemas import MAYBE_TEXT, TEXT, TIME, Schema, named, one_of, opened
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

AREA: Final = OperationGroup(
    tag="webhooks",
    description="A job whose command names `callback_urls.completed` sends one signed webhook when it ends.",
    operations={
        "listDeadWebhooks": Operation(
            summary="List webhooks that were given up",
            description="Webhooks that nobody took, the newest first. A page may be short and still have a "
            "cursor.",
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
    schemas=_SCHEMAS,
    examples={
        "DeadWebhookPage": {"items": [_LETTER], "next_cursor": None},
        "WebhookAgain": {"jobId": "job_01k5z3w8e6t9r4c2m7x1q0hv5b", "webhook": "PENDING"},
    },
    parameters={},
)
