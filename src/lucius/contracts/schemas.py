"""The words in which schemas are said, and what a service may be called.

Each document has its schema in the module that reads or writes it: `envelope`, `messages`, `views`.
`components` puts them together for OpenAPI, AsyncAPI and the files in docs/schemas.
"""

import re
from typing import Final

from lucius.core.model import Json
from lucius.core.routing import LANES

# The name is part of a subject, a subscription and a path wherever it goes.
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


_CONTROL: Final = "\\u0000-\\u001f\\u007f-\\u009f"
_NO_CONTROL: Final = f"^[^{_CONTROL}]*$"
_NOT_BLANK: Final = f"^[^{_CONTROL}]*[^\\s{_CONTROL}][^{_CONTROL}]*$"


def text_of(length_max: int) -> Schema:
    return {"type": "string", "maxLength": length_max, "pattern": _NO_CONTROL}


def name_of(length_max: int) -> Schema:
    return {"type": "string", "minLength": 1, "maxLength": length_max, "pattern": _NOT_BLANK}


def ref_of(uri_length_max: int) -> Schema:
    return opened(
        "Where something is. Members other than `uri` pass through untouched.",
        {"uri": name_of(uri_length_max)},
    )
