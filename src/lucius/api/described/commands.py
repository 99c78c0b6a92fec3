"""Commands, described."""

from typing import Final

from lucius.api.commands import BATCH_COMMANDS_MAX
from lucius.api.described.groups import Operation, OperationGroup, RequestBody, ResponseDescription, header
from lucius.api.problems import problem_document
from lucius.contracts.envelope import IDEMPOTENCY_KEY_LENGTH_MAX
from lucius.contracts.examples import ENVELOPE, JOB
from lucius.contracts.schemas import TEXT, Schema, closed, named, opened
from lucius.core.model import Json
from lucius.core.refusal import Code, FieldError, Refused

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
    },
    schemas=_SCHEMAS,
    examples=_EXAMPLES,
    parameters=_PARAMETERS,
)
