"""The contracts as JSON Schema (2020-12), for those who write clients and services.

In: nothing. Out: one schema per document, as plain values, and their files. The parsers remain the judges:
what a schema cannot say (a size in bytes, a header that must agree) is said in its description.
"""

import json
from pathlib import Path
from typing import Final

from lucius.contracts import envelope as envelope_limits
from lucius.contracts import messages as message_limits
from lucius.core.model import Json
from lucius.core.refusal import Code
from lucius.core.routing import LANES
from lucius.core.states import Engine, Fact, JobState, Mode, StepState

Schema = dict[str, Json]

_NO_CONTROL: Final = "^[^\\u0000-\\u001f\\u007f-\\u009f]*$"
_NOT_BLANK: Final = "\\S"


def _text(length_max: int) -> Schema:
    return {"type": "string", "maxLength": length_max, "pattern": _NO_CONTROL}


def _name(length_max: int) -> Schema:
    return {**_text(length_max), "minLength": 1, "allOf": [{"pattern": _NOT_BLANK}]}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _object(title: str, name: str, properties: Schema, required: list[str], **more: Json) -> Schema:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:lucius:schema:{name}:1",
        "title": title,
        "type": "object",
        "properties": properties,
        "required": required,
        **more,
    }


_REF: Final[Schema] = {
    "type": "object",
    "properties": {"uri": _name(envelope_limits.URI_LENGTH_MAX)},
    "required": ["uri"],
    "description": "Where something is. Members other than `uri` pass through untouched.",
}
_TIME: Final[Schema] = {"type": "string", "format": "date-time"}
_MAYBE_TEXT: Final[Schema] = {"type": ["string", "null"]}
_MAYBE_TIME: Final[Schema] = {"type": ["string", "null"], "format": "date-time"}
_MAYBE_OBJECT: Final[Schema] = {"type": ["object", "null"]}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_LANE: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": LANES - 1}


def _envelope() -> Schema:
    limits = envelope_limits
    properties: Schema = {
        "tenant_id": {
            **_name(limits.TENANT_ID_LENGTH_MAX),
            "not": {"pattern": "^\\s*\\.{1,2}\\s*$"},
            "description": "Compared without case and surrounding white space.",
        },
        "request_type": _name(limits.REQUEST_TYPE_LENGTH_MAX),
        "input_ref": _REF,
        "output_ref": _REF,
        "payload": {"type": "object"},
        "schema_version": {"type": "string", "pattern": "^1(\\.[0-9]{1,9})?$"},
        "mode": {"enum": ["DEFAULT", "BURST", "SAFE", None]},
        "idempotency_key": {
            **_or_null(_name(limits.IDEMPOTENCY_KEY_LENGTH_MAX)),
            "description": "The same thing as the Idempotency-Key header; if both are there they must agree.",
        },
        "doc_id": {
            **_or_null(_text(limits.DOC_ID_LENGTH_MAX)),
            "description": "Required for BURST.",
        },
        "callback_urls": _or_null(
            {
                "type": "object",
                "properties": {"completed": _or_null(_name(limits.URI_LENGTH_MAX))},
                "additionalProperties": False,
            }
        ),
        "correlation_id": _or_null(_text(limits.CORRELATION_ID_LENGTH_MAX)),
        "traceparent": {
            **_MAYBE_TEXT,
            "description": "W3C trace context; an invalid one is dropped and a new trace begun.",
        },
    }
    return _object("A command", "envelope", properties, list(limits.REQUIRED), additionalProperties=False)


def _reply(kind: str, properties: Schema, required: list[str], **more: Json) -> Schema:
    limits = message_limits
    head: Schema = {
        "type": {"const": kind},
        "jobId": _name(limits.ID_LENGTH_MAX),
        "stepId": _name(limits.ID_LENGTH_MAX),
        "tenant_id": _name(limits.ID_LENGTH_MAX),
        "attempt_no": {"type": "integer", "minimum": 1},
        "lease_id": _name(limits.ID_LENGTH_MAX),
        "timestamp": _name(limits.TIMESTAMP_LENGTH_MAX),
    }
    return _object(
        f"{kind} of a service",
        kind.lower(),
        {**head, **properties},
        [*limits.REQUIRED, *required],
        **more,
    )


def _progress() -> Schema:
    properties: Schema = {
        "progress": {"type": "number", "minimum": 0, "maximum": 100},
        "note": {
            **_MAYBE_TEXT,
            "description": f"Cut after {message_limits.NOTE_LENGTH_MAX} characters.",
        },
    }
    return _reply("PROGRESS", properties, ["progress"])


def _result() -> Schema:
    properties: Schema = {
        "status": {"enum": ["SUCCEEDED", "FAILED_RETRY", "FAILED_FINAL", "FAILED"]},
        "failure_class": {
            "description": "Read only with the older status FAILED: RETRYABLE or NON_RETRYABLE."
        },
        "output_ref": {
            **_or_null(_REF),
            "description": f"At most {message_limits.REF_BYTES_MAX} bytes as JSON.",
        },
        "error": _or_null({"type": "object", "properties": {"code": _MAYBE_TEXT, "message": _MAYBE_TEXT}}),
    }
    older: Schema = {
        "if": {"properties": {"status": {"const": "FAILED"}}, "required": ["status"]},
        "then": {
            "properties": {"failure_class": {"enum": ["RETRYABLE", "NON_RETRYABLE"]}},
            "required": ["failure_class"],
        },
    }
    return _reply("RESULT", properties, ["status"], **older)


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
        "type": {"const": "DIRECTIVE"},
        **{name: {"type": "string"} for name in _DIRECTIVE_TEXTS},
        "attempt_no": {"type": "integer", "minimum": 1},
        "input_ref": _REF,
        "workspace_ref": _REF,
        "output_ref": _REF,
        "payload": {},
        "mode": {"enum": [mode.value for mode in Mode]},
        "lane": _LANE,
        "upstream": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "stepId": {"type": "string"},
                    "step_type": {"type": "string"},
                    "result_ref": _MAYBE_OBJECT,
                },
                "required": ["stepId", "step_type", "result_ref"],
            },
        },
        "callback_urls": {
            "type": "object",
            "properties": {name: {"type": "string"} for name in ("ack", "result", "progress")},
            "required": ["ack", "result", "progress"],
        },
        "lease_seconds": {"type": "number", "exclusiveMinimum": 0},
        "lease_expires_at": {
            **_MAYBE_TIME,
            "description": "When the ACK is due; null while no clock runs.",
        },
    }
    return _object("An attempt, rented to a service", "directive", properties, list(properties))


def _problem() -> Schema:
    properties: Schema = {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": {"type": "string"},
        "code": {"enum": [code.value for code in Code]},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"pointer": {"type": "string"}, "message": {"type": "string"}},
                "required": ["pointer", "message"],
            },
        },
    }
    return _object("A refusal (RFC 9457)", "problem", properties, ["status", "code"])


def _job() -> Schema:
    properties: Schema = {
        "jobId": {"type": "string"},
        "tenant_id": {"type": "string"},
        "tenant_bucket": {"type": "string"},
        "request_type": {"type": "string"},
        "protocol_id": {"type": "string"},
        "engine": {"enum": [engine.value for engine in Engine]},
        "doc_id": _MAYBE_TEXT,
        "mode": {"enum": [mode.value for mode in Mode]},
        "state": {"enum": [state.value for state in JobState]},
        "current_step_id": _MAYBE_TEXT,
        "current_step_index": {"type": ["integer", "null"], "minimum": 0},
        "attempts_total": _COUNT,
        "created_at": _TIME,
        "updated_at": _TIME,
        "completed_at": _MAYBE_TIME,
        "error_code": _MAYBE_TEXT,
        "error_message": _MAYBE_TEXT,
        "correlation_id": _MAYBE_TEXT,
        "traceparent": _MAYBE_TEXT,
        "idempotency_key": _MAYBE_TEXT,
        "idempotency_hash": {"type": "string"},
        "final_output": _MAYBE_TEXT,
        "rerun_of": _MAYBE_TEXT,
        "steps": {"type": "array", "items": {"type": "object", **_step_members()}},
    }
    return _object("A job", "job", properties, list(properties))


def _step_members() -> Schema:
    properties: Schema = {
        "stepId": {"type": "string"},
        "step_index": _COUNT,
        "step_type": {"type": "string"},
        "service": {"type": "string"},
        "state": {"enum": [state.value for state in StepState]},
        "attempt_no": _COUNT,
        "lease_id": _MAYBE_TEXT,
        "lease_expires_at": _MAYBE_TIME,
        "next_attempt_at": _MAYBE_TIME,
        "lane": _LANE,
        "routing_key_used": {"type": "string"},
        "resolved_mode": {"enum": [mode.value for mode in Mode]},
        "decision_source": {"enum": ["REQUEST", "TENANT_CONFIG", "GLOBAL_CONFIG"]},
        "decision_reason": {"type": "string"},
        "input_ref": {"type": "object"},
        "workspace_ref": {"type": "object"},
        "output_ref": {"type": "object"},
        "payload": {},
        "result_ref": _MAYBE_OBJECT,
        "progress": {"type": ["integer", "null"], "minimum": 0, "maximum": 100},
        "last_error_code": _MAYBE_TEXT,
        "last_error_message": _MAYBE_TEXT,
        "created_at": _TIME,
        "updated_at": _TIME,
        "completed_at": _MAYBE_TIME,
    }
    return {"properties": properties, "required": list(properties)}


def _step() -> Schema:
    members = _step_members()
    return _object("A step of a job", "step", members["properties"], members["required"])


def _event() -> Schema:
    properties: Schema = {
        "seq": {"type": "integer", "minimum": 1},
        "type": {"enum": [fact.value for fact in Fact]},
        "at": _TIME,
        "stepId": _MAYBE_TEXT,
        "attempt_no": {"type": ["integer", "null"], "minimum": 0},
        "data": {"type": "object"},
    }
    return _object("Something that was true of a job", "event", properties, list(properties))


SCHEMAS: Final[dict[str, Schema]] = {
    "envelope": _envelope(),
    "directive": _directive(),
    "ack": _reply("ACK", {}, []),
    "progress": _progress(),
    "result": _result(),
    "problem": _problem(),
    "job": _job(),
    "step": _step(),
    "event": _event(),
}


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
