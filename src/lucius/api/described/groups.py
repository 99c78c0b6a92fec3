"""The words in which an operation is described."""

from collections.abc import Mapping
from typing import Any

import msgspec

from lucius.contracts.schemas import Schema
from lucius.core.model import Json
from lucius.core.refusal import Code

Doc = dict[str, Any]

JSON = "application/json"


class RequestBody(msgspec.Struct, frozen=True, kw_only=True):
    schema: str  # the name of a schema, which also names its example
    description: str
    required: bool = True


class ResponseDescription(msgspec.Struct, frozen=True, kw_only=True):
    description: str
    schema: str | None = None  # the name of a schema, which also names its example; None: no body
    status: int = 200
    media: str = JSON
    headers: tuple[str, ...] = ()
    links: tuple[str, ...] = ()  # operation ids that take this answer's jobId


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    summary: str
    description: str
    answers: tuple[ResponseDescription, ...]
    refusals: tuple[Code, ...] = ()  # beyond those that follow from who may call
    parameters: tuple[str, ...] = ()  # beyond those in the path
    body: RequestBody | None = None
    deprecated: bool = False


class OperationGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A tag, and all that is said below it."""

    tag: str
    description: str
    operations: Mapping[str, Operation]
    schemas: Mapping[str, Schema]
    examples: Mapping[str, Json]
    parameters: Mapping[str, Doc]


def query(name: str, schema: Schema, description: str) -> Doc:
    return {"name": name, "in": "query", "required": False, "description": description, "schema": schema}


def header(name: str, schema: Schema, description: str) -> Doc:
    return {"name": name, "in": "header", "required": False, "description": description, "schema": schema}


def in_path(name: str, schema: Schema, description: str) -> Doc:
    return {"name": name, "in": "path", "required": True, "description": description, "schema": schema}


def headers(*names: str) -> Doc:
    """The headers of an answer: these, and the one that every answer has."""
    return {name: {"$ref": f"#/components/headers/{name}"} for name in (*names, "X-Correlation-Id")}
