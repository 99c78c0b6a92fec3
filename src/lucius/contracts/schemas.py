"""What a service may be called: the name is part of a subject, a subscription and a path wherever it goes."""

import json
import re
from pathlib import Path
from typing import Final

from lucius.contracts import envelope as envelope_limits
from lucius.contracts import messages as message_limits
from lucius.core.model import PRIORITY_USUAL, Json
from lucius.core.priority import PRIORITY_LEAST, PRIORITY_MOST
from lucius.core.refusal import BETWEEN_PROCESSES, Code
from lucius.core.routing import LANES, SOURCE_GLOBAL, SOURCE_REQUEST, SOURCE_TENANT
from lucius.core.states import Engine, Fact, JobState, Mode, StepState
from lucius.core.usage import NAME_PATTERN, NUMBER_MAX, REPORT_NAMES_MAX

SERVICE_PATTERN: Final = "[a-z0-9][a-z0-9_-]{0,62}"
_match_service = re.compile(SERVICE_PATTERN).fullmatch


def is_service_name(text: str) -> bool:
    return _match_service(text) is not None


Schema = dict[str, Json]

# Where OpenAPI and AsyncAPI keep the schemas that have names.
COMPONENTS_AT: Final = "#/components/schemas/"

TEXT: Final[Schema] = {"type": "string"}
TIME: Final[Schema] = {"type": "string", "format": "date-time"}
MAYBE_TEXT: Final[Schema] = {"type": ["string", "null"]}
MAYBE_TIME: Final[Schema] = {"type": ["string", "null"], "format": "date-time"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
LANE: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": LANES - 1}


def named(name: str) -> Schema:
    """A reference to a schema of this name."""
    return {"$ref": COMPONENTS_AT + name}


def closed(description: str, properties: Schema, required: list[str] | None = None) -> Schema:
    """An object with these members and no others, all of them required unless it is said which."""
    return {**opened(description, properties, required), "additionalProperties": False}


def opened(description: str, properties: Schema, required: list[str] | None = None) -> Schema:
    """An object with these members that may get more of them in later versions."""
    needed = list(properties) if required is None else required
    return {"type": "object", "description": description, "properties": properties, "required": needed}


def or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def one_of(description: str, values: list[str]) -> Schema:
    return {"type": "string", "description": description, "enum": values}


# Where a schema that stands alone keeps them.
_DEFINITIONS_AT: Final = "#/$defs/"

_CONTROL: Final = "\\u0000-\\u001f\\u007f-\\u009f"
_NO_CONTROL: Final = f"^[^{_CONTROL}]*$"
_NOT_BLANK: Final = f"^[^{_CONTROL}]*[^\\s{_CONTROL}][^{_CONTROL}]*$"


def _text(length_max: int) -> Schema:
    return {"type": "string", "maxLength": length_max, "pattern": _NO_CONTROL}


def _name(length_max: int) -> Schema:
    return {"type": "string", "minLength": 1, "maxLength": length_max, "pattern": _NOT_BLANK}


def _ref(uri_length_max: int) -> Schema:
    return opened(
        "Where something is. Members other than `uri` pass through untouched.",
        {"uri": _name(uri_length_max)},
    )


def _envelope() -> Schema:
    limits = envelope_limits
    properties: Schema = {
        "tenant_id": {
            **_name(limits.TENANT_ID_LENGTH_MAX),
            "not": {"pattern": "^\\s*\\.{1,2}\\s*$"},
            "description": "Compared without case and surrounding white space.",
        },
        "request_type": {
            **_name(limits.REQUEST_TYPE_LENGTH_MAX),
            "description": "Which protocol runs, such as `OCR_EMBEDDING`; `GET /v1/protocols` lists them.",
        },
        "input_ref": named("Ref"),
        "output_ref": named("Ref"),
        "payload": {
            "type": "object",
            "description": "For each step the member that the protocol names as the step's own.",
        },
        "schema_version": {
            "type": "string",
            "maxLength": limits.SCHEMA_VERSION_LENGTH_MAX,
            "pattern": "^1(\\.[0-9]{1,9})?$",
        },
        "mode": {
            "type": ["string", "null"],
            "enum": ["DEFAULT", "BURST", "SAFE", None],
            "description": "`SAFE` is an alias of `DEFAULT`. Left out, tenant and global settings decide.",
        },
        "idempotency_key": {
            **or_null(_name(limits.IDEMPOTENCY_KEY_LENGTH_MAX)),
            "description": "The same thing as the Idempotency-Key header; if both are there they must agree.",
        },
        "doc_id": {**or_null(_text(limits.DOC_ID_LENGTH_MAX)), "description": "Required for BURST."},
        "callback_urls": or_null(named("CompletionUrls")),
        "correlation_id": or_null(_text(limits.CORRELATION_ID_LENGTH_MAX)),
        "traceparent": {
            **MAYBE_TEXT,
            "description": "W3C trace context; an invalid one is dropped and a new trace begun.",
        },
        "priority": {
            "type": ["integer", "null"],
            "minimum": PRIORITY_LEAST,
            "maximum": PRIORITY_MOST,
            "default": PRIORITY_USUAL,
            "description": "Which of the tenant's directives leave first: the higher, the sooner. A level is "
            "worth five minutes of waiting.",
        },
    }
    return closed(
        "A command: what is to be done, with what, and where the result goes.", properties, [*limits.REQUIRED]
    )


def _completion_urls() -> Schema:
    return closed(
        "The address that gets a signed webhook when the job has ended.",
        {"completed": or_null(_name(envelope_limits.URI_LENGTH_MAX))},
        [],
    )


def _reply(kind: str, description: str, properties: Schema, required: list[str]) -> Schema:
    limits = message_limits
    head: Schema = {
        "type": {"type": "string", "const": kind},
        "jobId": _name(limits.ID_LENGTH_MAX),
        "stepId": _name(limits.ID_LENGTH_MAX),
        "tenant_id": _name(limits.ID_LENGTH_MAX),
        "attempt_no": {"type": "integer", "minimum": 1},
        "lease_id": _name(limits.ID_LENGTH_MAX),
        "timestamp": {
            **_name(limits.TIMESTAMP_LENGTH_MAX),
            "description": "When the service sent it, by its own clock; for people only.",
        },
    }
    return opened(description, {**head, **properties}, [*limits.REQUIRED, *required])


def _progress() -> Schema:
    properties: Schema = {
        "progress": {"type": ["number", "null"], "minimum": 0, "maximum": 100, "description": "In per cent."},
        "note": {**MAYBE_TEXT, "description": f"Cut after {message_limits.NOTE_LENGTH_MAX} characters."},
    }
    return _reply("PROGRESS", "The attempt goes on: renews its lease.", properties, [])


def _result() -> Schema:
    properties: Schema = {
        "status": one_of(
            "How the attempt ended. `FAILED` is the older spelling and needs a `failure_class`.",
            ["SUCCEEDED", "FAILED_RETRY", "FAILED_FINAL", "FAILED"],
        ),
        "failure_class": {
            "description": "Read only with the older status FAILED: RETRYABLE or NON_RETRYABLE."
        },
        "output_ref": {
            **or_null(named("ResultRef")),
            "description": f"At most {message_limits.REF_BYTES_MAX} bytes as JSON.",
        },
        "artifacts": {
            "type": ["array", "null"],
            "items": named("ResultRef"),
            "maxItems": message_limits.ARTIFACTS_MAX,
            "description": (
                "What the attempt made beside `output_ref`, kept as the member `artifacts` of `result_ref`. "
                f"Together with `output_ref` at most {message_limits.REF_BYTES_MAX} bytes as JSON."
            ),
        },
        "error": or_null(named("ServiceError")),
        "retry_after": {
            "type": ["number", "null"],
            "minimum": 0,
            "description": (
                "Seconds after which the next attempt begins, in the place of the backoff; at most "
                f"{message_limits.RETRY_AFTER_SECONDS_MAX}."
            ),
        },
        "slow_down": {
            "type": ["boolean", "null"],
            "description": "The service wants to be given less for a while; it recovers by itself.",
        },
        "usage": {
            "anyOf": [
                {
                    "type": "object",
                    "maxProperties": REPORT_NAMES_MAX,
                    "propertyNames": {"pattern": NAME_PATTERN},
                    "additionalProperties": {"type": "number", "minimum": 0, "maximum": NUMBER_MAX},
                },
                {"type": "null"},
            ],
            "description": "What the attempt used, such as pages, tokens or money, as named numbers. It "
            "counts once an attempt, also where the attempt failed.",
        },
    }
    older: Schema = {
        "if": {"properties": {"status": {"const": "FAILED"}}, "required": ["status"]},
        "then": {
            "properties": {"failure_class": {"enum": ["RETRYABLE", "NON_RETRYABLE"]}},
            "required": ["failure_class"],
        },
    }
    return {**_reply("RESULT", "The attempt has ended.", properties, ["status"]), **older}


def _usage() -> Schema:
    return {
        "type": "object",
        "description": "What services reported, by name, of all attempts that counted.",
        "additionalProperties": {"type": "number", "minimum": 0},
    }


def _service_error() -> Schema:
    limits = message_limits
    properties: Schema = {
        "code": {**MAYBE_TEXT, "description": f"Cut after {limits.ERROR_CODE_LENGTH_MAX} characters."},
        "message": {**MAYBE_TEXT, "description": f"Cut after {limits.ERROR_MESSAGE_LENGTH_MAX} characters."},
    }
    return opened("What went wrong in a service.", properties, [])


_DIRECTIVE_TEXTS: Final = (
    "jobId",
    "tenant_id",
    "stepId",
    "protocol_id",
    "step_type",
    "service",
    "lease_id",
    "routing_key_used",
    "correlation_id",
    "traceparent",
    "reply_topic",
    "callback_token",
)


def _directive() -> Schema:
    properties: Schema = {
        "type": {"type": "string", "const": "DIRECTIVE"},
        **dict.fromkeys(_DIRECTIVE_TEXTS, TEXT),
        "attempt_no": {"type": "integer", "minimum": 1},
        "input_ref": named("Ref"),
        "workspace_ref": named("Ref"),
        "output_ref": named("Ref"),
        "payload": {"description": "The step's own part of the payload, laid over the protocol's defaults."},
        "mode": named("Mode"),
        "lane": LANE,
        "upstream": {
            "type": "array",
            "description": "The steps before this one, with what they made.",
            "items": named("UpstreamStep"),
        },
        "callback_urls": named("CallbackUrls"),
        "lease_seconds": {"type": "number", "exclusiveMinimum": 0},
        "lease_expires_at": {**MAYBE_TIME, "description": "When the ACK is due; null while no clock runs."},
    }
    return opened(
        "An attempt, leased to a service. `(jobId, stepId, attempt_no, lease_id)` is its idempotency key.",
        properties,
    )


def _upstream_step() -> Schema:
    properties: Schema = {"stepId": TEXT, "step_type": TEXT, "result_ref": or_null(named("ResultRef"))}
    return opened("An earlier step of the same job.", properties)


def _callback_urls() -> Schema:
    return opened("Where replies go over HTTP.", dict.fromkeys(("ack", "result", "progress"), TEXT))


def _problem() -> Schema:
    properties: Schema = {
        "type": {"type": "string", "format": "uri"},
        "title": TEXT,
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": TEXT,
        "code": named("ProblemCode"),
        "errors": {"type": "array", "items": named("FieldProblem")},
        "retry_after_seconds": {
            "type": "integer",
            "minimum": 0,
            "description": "In a batch, where an item has no `Retry-After` of its own.",
        },
    }
    return opened("A refusal (RFC 9457).", properties, ["type", "title", "status", "detail", "code"])


def _field_problem() -> Schema:
    pointer = {"type": "string", "description": "A JSON Pointer into the body, or `?name` of a parameter."}
    return opened("A field that is at fault.", {"pointer": pointer, "message": TEXT})


def _job() -> Schema:
    properties: Schema = {
        "jobId": TEXT,
        "tenant_id": TEXT,
        "tenant_bucket": {"type": "string", "description": "The tenant and the month of creation."},
        "request_type": TEXT,
        "protocol_id": TEXT,
        "engine": named("Engine"),
        "doc_id": MAYBE_TEXT,
        "mode": named("Mode"),
        "priority": {"type": "integer", "minimum": PRIORITY_LEAST, "maximum": PRIORITY_MOST},
        "state": named("JobState"),
        "current_step_id": MAYBE_TEXT,
        "current_step_index": {"type": ["integer", "null"], "minimum": 0},
        "attempts_total": COUNT,
        "created_at": TIME,
        "updated_at": TIME,
        "completed_at": MAYBE_TIME,
        "error_code": MAYBE_TEXT,
        "error_message": MAYBE_TEXT,
        "correlation_id": MAYBE_TEXT,
        "traceparent": MAYBE_TEXT,
        "idempotency_key": MAYBE_TEXT,
        "idempotency_hash": TEXT,
        "final_output": {**MAYBE_TEXT, "description": "The URI of the result, once the job has succeeded."},
        "rerun_of": {**MAYBE_TEXT, "description": "The job that this one runs again."},
        "paused_reason": {**MAYBE_TEXT, "description": "Why it is paused, where no client paused it."},
        "usage": named("Usage"),
        "steps": {"type": "array", "items": named("Step")},
    }
    return opened("A job with its steps.", properties)


def _step() -> Schema:
    properties: Schema = {
        "stepId": TEXT,
        "step_index": COUNT,
        "step_type": TEXT,
        "service": TEXT,
        "tried_services": {
            "type": "array",
            "description": "Services before `service` whose attempts were used.",
            "items": TEXT,
        },
        "state": named("StepState"),
        "attempt_no": COUNT,
        "lease_id": MAYBE_TEXT,
        "lease_expires_at": {
            **MAYBE_TIME,
            "description": "The current deadline: of the ACK, then of the lease.",
        },
        "next_attempt_at": MAYBE_TIME,
        "lane": LANE,
        "routing_key_used": TEXT,
        "resolved_mode": named("Mode"),
        "decision_source": named("DecisionSource"),
        "decision_reason": TEXT,
        "input_ref": named("Ref"),
        "workspace_ref": named("Ref"),
        "output_ref": named("Ref"),
        "payload": {"description": "The step's own part of the payload, laid over the protocol's defaults."},
        "result_ref": or_null(named("ResultRef")),
        "progress": {
            "type": ["integer", "null"],
            "minimum": 0,
            "maximum": 100,
            "description": "In per cent, as the service last reported it; 100 once the step has succeeded.",
        },
        "last_error_code": MAYBE_TEXT,
        "last_error_message": MAYBE_TEXT,
        "usage": named("Usage"),
        "created_at": TIME,
        "updated_at": TIME,
        "completed_at": MAYBE_TIME,
    }
    return opened("A step of a job.", properties)


def _event() -> Schema:
    properties: Schema = {
        "seq": {"type": "integer", "minimum": 1, "description": "1, 2, 3… without gaps in a job."},
        "type": named("EventType"),
        "at": TIME,
        "stepId": MAYBE_TEXT,
        "attempt_no": {"type": ["integer", "null"], "minimum": 0},
        "data": {"type": "object", "description": "What else is known, by type."},
    }
    return opened("Something that was true of a job.", properties)


# By the name under which OpenAPI and AsyncAPI know them. Those with a file of their own come first.
COMPONENTS: Final[dict[str, Schema]] = {
    "Envelope": _envelope(),
    "Directive": _directive(),
    "Ack": _reply("ACK", "A service has taken the directive up.", {}, []),
    "Progress": _progress(),
    "Result": _result(),
    "Problem": _problem(),
    "Job": _job(),
    "Step": _step(),
    "Event": _event(),
    "Ref": _ref(envelope_limits.URI_LENGTH_MAX),
    "ResultRef": _ref(message_limits.REF_BYTES_MAX),
    "CompletionUrls": _completion_urls(),
    "CallbackUrls": _callback_urls(),
    "UpstreamStep": _upstream_step(),
    "ServiceError": _service_error(),
    "Usage": _usage(),
    "FieldProblem": _field_problem(),
    "ProblemCode": one_of(
        "What was refused; stable.", [code.value for code in Code if code not in BETWEEN_PROCESSES]
    ),
    "JobState": one_of("Where a job is in its life.", [state.value for state in JobState]),
    "StepState": one_of("Where a step is in its life.", [state.value for state in StepState]),
    "EventType": one_of("What was true.", [fact.value for fact in Fact]),
    "Engine": one_of("What moves the job forward.", [engine.value for engine in Engine]),
    "Mode": one_of("How directives are spread over lanes.", [mode.value for mode in Mode]),
    "DecisionSource": one_of("Who decided the mode.", [SOURCE_REQUEST, SOURCE_TENANT, SOURCE_GLOBAL]),
}

_FILED: Final = ("Envelope", "Directive", "Ack", "Progress", "Result", "Problem", "Job", "Step", "Event")


def needed_by(schema: Json, known: dict[str, Schema]) -> list[str]:
    """The names of the schemas that this one refers to, at any depth, in order."""
    found: list[str] = []
    waiting: list[Json] = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, dict):
            name = str(value.get("$ref", "")).removeprefix(COMPONENTS_AT)
            if name in known and name not in found:
                found.append(name)
                waiting.append(known[name])
            waiting.extend(value.values())
    return sorted(found)


def _alone(name: str) -> Schema:
    """The schema as a document that needs no other."""
    schema = COMPONENTS[name]
    needed = needed_by(schema, COMPONENTS)
    defined = {"$defs": {other: COMPONENTS[other] for other in needed}} if needed else {}
    document: Schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:lucius:schema:{name.lower()}:1",
        "title": name,
        **schema,
        **defined,
    }
    moved: Schema = json.loads(json.dumps(document).replace(COMPONENTS_AT, _DEFINITIONS_AT))
    return moved


SCHEMAS: Final[dict[str, Schema]] = {name.lower(): _alone(name) for name in _FILED}


def schema_files() -> dict[str, str]:
    """File name to text, as it stands in the documentation."""
    return {
        f"{name}.json": json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
        for name, schema in SCHEMAS.items()
    }


def write_schemas(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in schema_files().items():
        (folder / name).write_text(text, encoding="utf-8")
