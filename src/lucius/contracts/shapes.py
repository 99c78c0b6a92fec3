"""Pieces of JSON Schema that every document of the contracts is put together from.

In: names, texts, bounds. Out: schemas as plain values. Knows no document.
"""

from typing import Final

from lucius.core.model import Json
from lucius.core.routing import LANES

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
