"""Pauses, described."""

from typing import Final

from lucius.api.described.groups import Operation, OperationGroup, RequestBody, ResponseDescription
from lucius.api.pauses import NAME_LENGTH_MAX, REASON_LENGTH_MAX
from lucius.contracts.schemas import MAYBE_TEXT, TEXT, TIME, Schema, closed, named, one_of, opened
from lucius.core.model import Json
from lucius.core.refusal import Code
from lucius.ledger.flow import PauseKind

_KIND: Final = one_of("What is paused.", [kind.value for kind in PauseKind])
_NAME: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": NAME_LENGTH_MAX}
_WISH: Final[dict[str, Json]] = {"kind": "service", "name": "ocr", "reason": "its licence has run out"}
_PAUSE: Final[dict[str, Json]] = {
    **_WISH,
    "since": "2026-01-27T10:02:30.000Z",
    "by": "key of the night shift",
}
_RESUMED: Final[dict[str, Json]] = {"kind": "service", "name": "ocr", "was_paused": True}
_REFUSALS: Final = (Code.MALFORMED_JSON, Code.INVALID_ENVELOPE, Code.INVALID_REQUEST, Code.BODY_TOO_LARGE)

AREA: Final = OperationGroup(
    tag="pauses",
    description="Services, tenants and request types of which nothing leaves for a while. What is under way "
    "goes on; what waits runs no clock but its SLA's, and loses no attempt.",
    operations={
        "listPauses": Operation(
            summary="List pauses",
            description="All of services and request types, and of tenants those that the caller sees.",
            answers=(ResponseDescription(description="The pauses.", schema="PauseList"),),
            refusals=(Code.INVALID_REQUEST,),
        ),
        "pauseWork": Operation(
            summary="Pause a service, a tenant or a request type",
            description="What is paused already stays so, with the reason that was given first.",
            body=RequestBody(schema="PauseWish", description="What to pause."),
            answers=(ResponseDescription(description="The pause.", schema="Pause"),),
            refusals=_REFUSALS,
        ),
        "resumeWork": Operation(
            summary="Resume a service, a tenant or a request type",
            description="What waited leaves in its turn. What was not paused stays as it is.",
            body=RequestBody(schema="ResumeWish", description="What to resume."),
            answers=(ResponseDescription(description="It is not paused now.", schema="Resumed"),),
            refusals=_REFUSALS,
        ),
    },
    schemas={
        "PauseWish": closed(
            "What to pause, and why.",
            {
                "kind": _KIND,
                "name": _NAME,
                "reason": {"type": ["string", "null"], "maxLength": REASON_LENGTH_MAX},
            },
            ["kind", "name"],
        ),
        "ResumeWish": closed("What to resume.", {"kind": _KIND, "name": _NAME}, ["kind", "name"]),
        "Pause": opened(
            "A pause.",
            {"kind": _KIND, "name": TEXT, "since": TIME, "reason": MAYBE_TEXT, "by": MAYBE_TEXT},
        ),
        "PauseList": opened("Pauses.", {"items": {"type": "array", "items": named("Pause")}}),
        "Resumed": opened(
            "What is not paused now.", {"kind": _KIND, "name": TEXT, "was_paused": {"type": "boolean"}}
        ),
    },
    examples={
        "PauseWish": _WISH,
        "ResumeWish": {"kind": "service", "name": "ocr"},
        "Pause": _PAUSE,
        "PauseList": {"items": [_PAUSE]},
        "Resumed": _RESUMED,
    },
    parameters={},
)
