"""Every schema that has a name, put together for those who publish and check documents.

In: the schemas of `envelope`, `messages` and `views`, and of problems, which the API alone writes. Out: the
components of OpenAPI and AsyncAPI, and one file each in docs/schemas for those who need no more.
"""

import json
from pathlib import Path
from typing import Final

from lucius.contracts import envelope, messages, views
from lucius.contracts.schemas import COMPONENTS_AT, TEXT, Schema, named, one_of, opened, ref_of
from lucius.core.model import Json
from lucius.core.refusal import BETWEEN_PROCESSES, Code
from lucius.core.routing import SOURCE_GLOBAL, SOURCE_REQUEST, SOURCE_TENANT
from lucius.core.states import Engine, Fact, JobState, Mode, StepState

# Where a schema that stands alone keeps those that it refers to.
_DEFINITIONS_AT: Final = "#/$defs/"


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


# By the name under which OpenAPI and AsyncAPI know them. Those with a file of their own come first.
COMPONENTS: Final[dict[str, Schema]] = {
    "Envelope": envelope.ENVELOPE_SCHEMA,
    "Directive": messages.DIRECTIVE_SCHEMA,
    "Ack": messages.ACK_SCHEMA,
    "Progress": messages.PROGRESS_SCHEMA,
    "Result": messages.RESULT_SCHEMA,
    "Problem": _problem(),
    "Job": views.JOB_SCHEMA,
    "Step": views.STEP_SCHEMA,
    "Event": views.EVENT_SCHEMA,
    "Ref": ref_of(envelope.URI_LENGTH_MAX),
    "ResultRef": messages.RESULT_REF_SCHEMA,
    "CompletionUrls": envelope.COMPLETION_URLS_SCHEMA,
    "CallbackUrls": messages.CALLBACK_URLS_SCHEMA,
    "UpstreamStep": messages.UPSTREAM_STEP_SCHEMA,
    "ServiceError": messages.SERVICE_ERROR_SCHEMA,
    "Usage": views.USAGE_SCHEMA,
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
