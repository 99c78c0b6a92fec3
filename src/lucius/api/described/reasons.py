"""Plans, explanations and adoption, described."""

from typing import Final

from lucius.api.described.commands import AREA as COMMANDS
from lucius.api.described.groups import Operation, OperationGroup, RequestBody, ResponseDescription
from lucius.api.described.jobs import AREA as JOBS
from lucius.api.described.jobs import NEW_JOB
from lucius.contracts.examples import EVENT, JOB
from lucius.contracts.schemas import (
    COUNT,
    LANE,
    MAYBE_TEXT,
    MAYBE_TIME,
    TEXT,
    TIME,
    Schema,
    closed,
    named,
    one_of,
    opened,
    or_null,
)
from lucius.core.explain import WaitsFor
from lucius.core.model import Json
from lucius.core.refusal import Code
from lucius.core.routing import topic

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
        },
    ),
    "StepPolicy": opened(
        "How patient the orchestrator is with a step.",
        {
            "max_attempts": {"type": "integer", "minimum": 1},
            "ack_timeout_seconds": _SECONDS,
            "lease_seconds": _SECONDS,
            "max_duration_seconds": _SECONDS,
            "backoff_seconds": named("Backoffs"),
        },
    ),
    "PlanLimits": opened(
        "How full everything is now.",
        {
            "tenant": named("Fullness"),
            "total": named("Fullness"),
            "burst": named("Fullness"),
            "taken_now": {"type": "boolean", "description": "Whether there is room for the command now."},
            "retry_after_seconds": {"type": ["integer", "null"], "minimum": 0},
        },
    ),
    "Fullness": opened("Jobs in flight, and how many there may be.", {"in_flight": COUNT, "max": COUNT}),
}

_EXPLAIN_SCHEMAS: Final[dict[str, Schema]] = {
    "Explanation": opened(
        "Why a job is where it is.",
        {
            "jobId": TEXT,
            "state": named("JobState"),
            "summary": {"type": "string", "description": "All of it in words for an operator."},
            "waiting_for": or_null(
                one_of("What has to happen for it to go on.", [thing.value for thing in WaitsFor])
            ),
            "since": TIME,
            "next": or_null(named("NextMove")),
            "stepId": TEXT,
            "attempt": named("AttemptCount"),
            "service": named("ServiceSeen"),
            "late_answers": {
                "type": "array",
                "items": named("Event"),
                "description": "Replies that came too late; a success among them can be adopted.",
            },
            "limits": opened("How full it is.", {"tenant": named("Fullness")}),
            "hints": {"type": "array", "items": TEXT, "description": "What may be done about it."},
        },
    ),
    "NextMove": opened("What happens next if nothing else does.", {"what": TEXT, "at": MAYBE_TIME}),
    "AttemptCount": opened("Which attempt, of how many.", {"number": COUNT, "of": COUNT}),
    "ServiceSeen": opened(
        "The step's service, and when a worker of it last asked this process for work; those that take their "
        "work from a bus do not.",
        {"name": TEXT, "last_asked_at": MAYBE_TIME},
    ),
    "Adoption": closed(
        "Which late success is to count.",
        {
            "stepId": {"type": "string", "minLength": 1, "description": "The step whose result it becomes."},
            "seq": {"type": "integer", "minimum": 1, "description": "The event that recorded the success."},
        },
    ),
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
                "backoff_seconds": {
                    "publish": [30, 120, 600],
                    "ack": [60, 300, 900],
                    "result": [30, 120, 600],
                },
            },
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
        "burst": {"in_flight": 0, "max": 1000},
        "taken_now": True,
        "retry_after_seconds": None,
    },
}
_EXPLANATION: Final[Json] = {
    "jobId": JOB["jobId"],
    "state": "DISPATCHING",
    "summary": "waiting for an ACK from ocr since 10:00:00; attempt 2 of 3 begins at 10:01:30",
    "waiting_for": "ACK",
    "since": JOB["created_at"],
    "next": {"what": "attempt 2 of 3 begins", "at": "2026-01-27T10:01:30.000Z"},
    "stepId": "step_01",
    "attempt": {"number": 1, "of": 3},
    "service": {"name": "ocr", "last_asked_at": "2026-01-27T10:00:00.000Z"},
    "late_answers": [{**EVENT, "type": "REPLY_LATE"}],
    "limits": {"tenant": _FULL},
    "hints": [],
}

PLANNING: Final = OperationGroup(
    tag=COMMANDS.tag,
    description=COMMANDS.description,
    operations={
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
    schemas=_PLAN_SCHEMAS,
    examples={"Plan": _PLAN},
    parameters={},
)

EXPLAINING: Final = OperationGroup(
    tag=JOBS.tag,
    description=JOBS.description,
    operations={
        "explainJob": Operation(
            summary="Explain a job",
            description="Why the job is where it is, what it waits for and since when, what happens next and "
            "when, and which answers came too late; in words and as fields.",
            answers=(
                ResponseDescription(
                    description="The explanation.", schema="Explanation", links=("adoptResult",)
                ),
            ),
            refusals=(Code.JOB_NOT_FOUND,),
        ),
        "adoptResult": Operation(
            summary="Adopt a late success",
            description="A rerun that takes a success which came too late, recorded as event `seq`, as the "
            "step's result. Asked again without an `Idempotency-Key`, the same event is answered with the "
            "job that took it, even if that has ended.",
            parameters=("IdempotencyKey",),
            body=RequestBody(schema="Adoption", description="Which success, for which step."),
            answers=(NEW_JOB,),
            refusals=(
                Code.MALFORMED_JSON,
                Code.INVALID_ENVELOPE,
                Code.IDEMPOTENCY_KEY_REUSED,
                Code.JOB_NOT_FOUND,
                Code.JOB_NOT_TERMINAL,
                Code.BODY_TOO_LARGE,
                Code.TENANT_LIMIT,
            ),
        ),
    },
    schemas=_EXPLAIN_SCHEMAS,
    examples={"Explanation": _EXPLANATION, "Adoption": {"stepId": "step_01", "seq": 14}},
    parameters={},
)
