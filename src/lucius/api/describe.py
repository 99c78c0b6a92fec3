"""Pieces of the OpenAPI document."""

from typing import Any

from lucius.api.problems import PROBLEM_TYPE, STATUS
from lucius.contracts.schemas import SCHEMAS

Doc = dict[str, Any]


def body(schema: Doc, *, required: bool = True) -> Doc:
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}


def object_schema(properties: Doc, *required: str) -> Doc:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required) or list(properties),
        "additionalProperties": False,
    }


def problems(*statuses: int) -> dict[int | str, Doc]:
    """The problem documents that a route may answer with, by status."""
    described: dict[int | str, Doc] = {}
    for status in statuses:
        codes = [code.value for code, (its_status, _) in STATUS.items() if its_status == status]
        described[status] = {
            "description": ", ".join(codes),
            "content": {PROBLEM_TYPE: {"schema": _without_id(SCHEMAS["problem"])}},
        }
    return described


def json_of(name: str, status: int, description: str) -> dict[int | str, Doc]:
    schema = _without_id(SCHEMAS[name])
    return {status: {"description": description, "content": {"application/json": {"schema": schema}}}}


def accepted() -> dict[int | str, Doc]:
    schema = object_schema(
        {"jobId": {"type": "string"}, "state": {"type": "string"}, "duplicate": {"type": "boolean"}}
    )
    return {202: {"description": "The job", "content": {"application/json": {"schema": schema}}}}


def page_of(name: str, description: str) -> dict[int | str, Doc]:
    items = {"type": "array", "items": _without_id(SCHEMAS[name])}
    schema = object_schema({"items": items, "next_cursor": {"type": ["string", "null"]}})
    return {200: {"description": description, "content": {"application/json": {"schema": schema}}}}


def query(name: str, schema: Doc, description: str) -> Doc:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": description}


def _without_id(schema: Doc) -> Doc:
    return {name: value for name, value in schema.items() if name not in ("$id", "$schema")}


ENVELOPE_BODY = body(_without_id(SCHEMAS["envelope"]))
