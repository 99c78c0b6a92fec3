"""What platform services use, described."""

from typing import Final

from lucius.api.described.groups import (
    Operation,
    OperationGroup,
    RequestBody,
    ResponseDescription,
)
from lucius.api.work import DIRECTIVES_MAX, WAIT_SECONDS_MAX
from lucius.contracts.examples import DIRECTIVE
from lucius.contracts.schemas import LANE, MAYBE_TEXT, SERVICE_PATTERN, Schema, closed, named, one_of, opened
from lucius.core.draft import Outcome
from lucius.core.model import Json
from lucius.core.refusal import Code
from lucius.core.routing import LANES

_STOP: Final[Schema] = {
    "type": "boolean",
    "description": "Whether to stop: the job is being cancelled, it is being paused and the step has "
    "`stop_on_pause`, or the attempt is not current.",
}
_LEASE: Final[Schema] = closed(
    "Which directives are wanted.",
    {
        "service": {"type": "string", "pattern": f"^{SERVICE_PATTERN}$"},
        "max": {
            "type": ["integer", "null"],
            "minimum": 1,
            "maximum": DIRECTIVES_MAX,
            "description": "At most so many; 1 if left out.",
        },
        "wait_seconds": {
            "type": ["number", "null"],
            "minimum": 0,
            "maximum": WAIT_SECONDS_MAX,
            "description": "How long to wait for the first one; not at all if left out.",
        },
        "lanes": {
            "type": ["array", "null"],
            "minItems": 1,
            "maxItems": LANES,
            "items": LANE,
            "description": "Only from these lanes; from all if left out.",
        },
    },
    ["service"],
)

_SCHEMAS: Final[dict[str, Schema]] = {
    "Lease": _LEASE,
    "Directives": opened(
        "The directives that were handed out, none if the time was up.",
        {"directives": {"type": "array", "items": named("Directive")}},
    ),
    "ReplyOutcome": opened(
        "What became of a reply.",
        {
            "outcome": one_of(
                "`applied`: it counts. `duplicate`: it had been applied before. `recorded`: too late, "
                "kept as evidence.",
                [Outcome.APPLIED.value, Outcome.DUPLICATE.value, Outcome.RECORDED.value],
            ),
            "stop": _STOP,
        },
    ),
    "StaleAttempt": {
        "description": "The refusal of a reply whose attempt is not the step's current one.",
        "allOf": [
            named("Problem"),
            opened(
                "What a service needs to know.",
                {"outcome": {"type": "string", "const": Outcome.STALE.value}, "stop": _STOP},
            ),
        ],
    },
    "AttemptStanding": opened(
        "Whether an attempt still counts.",
        {"current": {"type": "boolean"}, "stop": _STOP, "reason": MAYBE_TEXT},
    ),
}

_EXAMPLES: Final[dict[str, Json]] = {
    "Lease": {"service": "ocr", "max": 10, "wait_seconds": 20},
    "Directives": {"directives": [DIRECTIVE]},
    "ReplyOutcome": {"outcome": "applied", "stop": False},
    "AttemptStanding": {"current": False, "stop": True, "reason": "the job is being cancelled"},
}


def _callback(schema: str, summary: str, description: str) -> Operation:
    return Operation(
        summary=summary,
        description=f"{description} The same message as on the bus, with the same effect.",
        body=RequestBody(schema=schema, description="The message."),
        answers=(ResponseDescription(description="What became of it.", schema="ReplyOutcome"),),
        refusals=(
            Code.MALFORMED_JSON,
            Code.INVALID_ENVELOPE,
            Code.FORBIDDEN,
            Code.JOB_NOT_FOUND,
            Code.STALE_ATTEMPT,
            Code.BODY_TOO_LARGE,
        ),
    )


AREA: Final = OperationGroup(
    tag="platform services",
    description="Directives to lease and callbacks to answer them, for services that speak plain HTTP.",
    operations={
        "leaseDirectives": Operation(
            summary="Lease directives",
            description="Takes waiting directives of a service, or waits for the first. Taking one starts "
            "its ACK clock. A service has to treat `(jobId, stepId, attempt_no, lease_id)` as an idempotency "
            "key.",
            body=RequestBody(schema="Lease", description="Which ones, and how long to wait."),
            answers=(ResponseDescription(description="What there was.", schema="Directives"),),
            refusals=(Code.MALFORMED_JSON, Code.INVALID_ENVELOPE, Code.BODY_TOO_LARGE),
        ),
        "ackCallback": _callback("Ack", "Acknowledge a directive", "The service has taken it up."),
        "progressCallback": _callback(
            "Progress", "Report progress", "The attempt goes on: renews its lease."
        ),
        "resultCallback": _callback("Result", "Report a result", "The attempt has ended, well or badly."),
        "getAttempt": Operation(
            summary="Ask whether an attempt is current",
            description="For a service that wants to know, in between, whether its work is still wanted. The "
            "token says which attempt is meant.",
            answers=(ResponseDescription(description="How the attempt stands.", schema="AttemptStanding"),),
            refusals=(Code.JOB_NOT_FOUND,),
        ),
    },
    schemas=_SCHEMAS,
    examples=_EXAMPLES,
    parameters={},
)
