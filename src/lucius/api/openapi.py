"""The OpenAPI document: the route table, joined with what `described` says of each operation.

In: nothing. Out: the document, as plain values. Every route that has an operation id has a description, and
every description a route: a test sees to it.
"""

from collections.abc import Iterable
from typing import Any, Final

from lucius import __version__
from lucius.api.described import (
    artifacts,
    commands,
    fleet,
    jobs,
    keys,
    operators,
    pauses,
    schedules,
    webhooks,
    work,
)
from lucius.api.described.groups import (
    Doc,
    Operation,
    OperationGroup,
    ResponseDescription,
    headers,
)
from lucius.api.described.refusals import example_of, refusals_of, shared_refusals
from lucius.api.problems import STATUS
from lucius.api.routes import ROUTES
from lucius.api.routing import Access, CallbackToken, NoCredential, Route
from lucius.contracts.components import COMPONENTS
from lucius.contracts.examples import EXAMPLES
from lucius.contracts.keys import Role
from lucius.contracts.schemas import named
from lucius.core.refusal import BETWEEN_PROCESSES

AREAS: Final[tuple[OperationGroup, ...]] = (
    commands.AREA,
    jobs.AREA,
    work.AREA,
    operators.ADMIN,
    webhooks.AREA,
    keys.AREA,
    operators.PROTOCOLS,
    operators.HEALTH,
    fleet.AREA,
    schedules.AREA,
    pauses.AREA,
    artifacts.AREA,
)
OPERATIONS: Final[dict[str, tuple[OperationGroup, Operation]]] = {
    name: (area, operation) for area in AREAS for name, operation in area.operations.items()
}

# Names in a route's path, and the parameter that each of them is.
_IN_PATH: Final = {
    "job_id": "JobId",
    "protocol_id": "ProtocolId",
    "key_id": "KeyId",
    "schedule_id": "ScheduleId",
}

_HEADERS: Final[Doc] = {
    "Location": {
        "description": "Where the job is.",
        "schema": {"type": "string", "format": "uri-reference"},
        "example": "/v1/jobs/job_01k5z3w8e6t9r4c2m7x1q0hv5b",
    },
    "Idempotent-Replayed": {
        "description": "There, and `true`, if the wish had been granted before and this is the same job.",
        "schema": {"type": "string", "const": "true"},
    },
    "Lucius-Artifact-Bytes": {
        "description": "How large the artifact is.",
        "schema": {"type": "integer", "minimum": 0},
    },
    "Lucius-Artifact-Pages": {
        "description": "There if it is a PDF: how many pages it has.",
        "schema": {"type": "integer", "minimum": 0},
    },
    "Lucius-Artifact-Cut": {
        "description": "There, and `true`, if the text is longer than what is shown.",
        "schema": {"type": "string", "const": "true"},
    },
    "Accept-Encoding": {
        "description": "How a body may be encoded: not at all.",
        "schema": {"type": "string"},
        "example": "identity",
    },
    "Retry-After": {
        "description": "After how many seconds it is worth trying again.",
        "schema": {"type": "integer", "minimum": 0},
    },
    "WWW-Authenticate": {
        "description": "How to say who is calling.",
        "schema": {"type": "string"},
        "example": "Bearer",
    },
    "X-Correlation-Id": {
        "description": "Names this call in every log line that it causes: the caller's own, or a new one.",
        "schema": {"type": "string"},
    },
    "Allow": {"description": "The methods that the address takes.", "schema": {"type": "string"}},
}

_SECURITY_SCHEMES: Final[Doc] = {
    "apiKey": {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key, as `lucius keys create` printed it. Operations name the role they need.",
    },
    "oidc": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "JWT",
        "description": "A token of the OpenID Connect issuer that the deployment trusts.",
    },
    "callbackToken": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "JWT",
        "description": "The `callback_token` of a directive. Opens that attempt and nothing else.",
    },
}

_INFO: Final[Doc] = {
    "title": "Lucius",
    "version": __version__,
    "summary": "Durable jobs for document and AI pipelines",
    "description": "A command asks for a job; the job runs its steps, each leased to a platform service; "
    "the client reads how it goes, waits for the end, or intervenes. Refusals are RFC 9457 problem "
    "documents with a stable `code`. Times are RFC 3339 in UTC; absent values are null, never missing. "
    "Answers may get more members in later versions: ignore those that you do not know.",
    "contact": {"name": "The operators of this deployment"},
    "license": {"name": "Apache License 2.0", "identifier": "Apache-2.0"},
}
_SERVERS: Final[list[Doc]] = [
    {"url": "/", "description": "Where this document came from."},
    {"url": "http://127.0.0.1:8420", "description": "What `lucius dev` serves."},
]


def document() -> Doc:
    served = [route for route in ROUTES if route.operation_id is not None]
    paths: Doc = {}
    for route in served:
        paths.setdefault(documented_path(route.path), {})[route.methods[0].lower()] = _operation(route)
    texts = {area.tag: area.description for area in AREAS}
    tags = [{"name": tag, "description": text} for tag, text in texts.items()]
    described: Doc = {"openapi": "3.1.0", "info": _INFO, "servers": _SERVERS, "tags": tags, "paths": paths}
    described["webhooks"] = {"jobCompleted": webhooks.JOB_COMPLETED}
    return {**described, "components": _components(described, served)}


def documented_path(path: str) -> str:
    """The path of a route in the words of the contract."""
    return (
        path.replace("{job_id}", "{jobId}")
        .replace("{key_id}", "{keyId}")
        .replace("{schedule_id}", "{scheduleId}")
    )


def _operation(route: Route) -> Doc:
    name = str(route.operation_id)
    area, operation = OPERATIONS[name]
    doc: Doc = {
        "operationId": name,
        "tags": [area.tag],
        "summary": operation.summary,
        "description": operation.description,
        "security": _security(route.access),
    }
    if isinstance(route.access, Role):
        # Only OAuth may name scopes among the security requirements.
        doc["x-role"] = route.access.value
    in_path = [parameter for written, parameter in _IN_PATH.items() if f"{{{written}}}" in route.path]
    if parameters := [*in_path, *operation.parameters]:
        doc["parameters"] = [{"$ref": f"#/components/parameters/{parameter}"} for parameter in parameters]
    if operation.body is not None:
        doc["requestBody"] = {
            "description": operation.body.description,
            "required": operation.body.required,
            "content": {"application/json": _content(operation.body.schema)},
        }
    doc["responses"] = {**_answers(operation.answers), **refusals_of(operation, route.access)}
    if operation.deprecated:
        doc["deprecated"] = True
    return doc


def _security(access: Access) -> list[dict[str, list[str]]]:
    if isinstance(access, NoCredential):
        return []
    if isinstance(access, CallbackToken):
        return [{"callbackToken": []}]
    return [{"apiKey": []}, {"oidc": []}]


def _answers(answers: tuple[ResponseDescription, ...]) -> Doc:
    responses: Doc = {}
    for answer in answers:
        response = responses.setdefault(str(answer.status), {"description": answer.description})
        response["headers"] = headers(*answer.headers)
        if answer.schema is not None:
            response.setdefault("content", {})[answer.media] = _content(answer.schema)
        if answer.links:
            response["links"] = {name: {"$ref": f"#/components/links/{name}"} for name in answer.links}
    return responses


def _content(schema: str) -> Doc:
    return {
        "schema": named(schema),
        "examples": {schema: {"$ref": f"#/components/examples/{schema}"}},
    }


def _components(described: Doc, served: Iterable[Route]) -> Doc:
    """Everything that is referred to, and nothing else."""
    access = {route.operation_id: route.access for route in served}
    schemas = {**COMPONENTS}
    examples = {name: {"value": value} for name, value in EXAMPLES.items()}
    parameters: Doc = {}
    for area in AREAS:
        schemas.update(area.schemas)
        examples.update({name: {"value": value} for name, value in area.examples.items()})
        parameters.update(area.parameters)
    for code, (_, title) in STATUS.items():
        if code in BETWEEN_PROCESSES:
            continue
        examples[code.value] = {"summary": title, "value": example_of(code)}
    links = {
        name: {
            "operationId": name,
            "description": operation.summary,
            "parameters": {"jobId": "$response.body#/jobId"},
        }
        for name, (_, operation) in OPERATIONS.items()
    }
    known: dict[str, Doc] = {
        "schemas": schemas,
        "examples": examples,
        "parameters": parameters,
        "responses": shared_refusals(
            (operation, access[name]) for name, (_, operation) in OPERATIONS.items()
        ),
        "headers": _HEADERS,
        "links": links,
    }
    used = _used(described, known)
    kept = {
        kind: {name: value for name, value in values.items() if (kind, name) in used}
        for kind, values in known.items()
    }
    return {**kept, "securitySchemes": _SECURITY_SCHEMES}


def _used(described: Doc, known: dict[str, Doc]) -> set[tuple[str, str]]:
    used: set[tuple[str, str]] = set()
    waiting: list[Any] = [described]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, dict):
            parts = str(value.get("$ref", "")).split("/")
            if len(parts) == 4 and parts[:2] == ["#", "components"] and (parts[2], parts[3]) not in used:
                used.add((parts[2], parts[3]))
                waiting.append(known[parts[2]][parts[3]])
            waiting.extend(value.values())
    return used
