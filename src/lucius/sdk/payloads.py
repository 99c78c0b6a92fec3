"""Payloads with a type: checked before the handler runs, so that it may rely on what it reads.

In: a pydantic model, a msgspec Struct (or dataclass, or TypedDict), or a JSON Schema. Out: a function from
the directive's payload to what the handler is given; it raises `Final("PAYLOAD_INVALID", …)`, since no
attempt mends what was sent. Texts name the member and what is wrong with it, and never repeat what was sent.
pydantic is known by its methods alone, so a service without it needs none.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from lucius.contracts.json_schema import usable_schema
from lucius.contracts.pointers import pointer_of
from lucius.sdk.directive import Json
from lucius.sdk.errors import PAYLOAD_INVALID, Final

PROBLEMS_MAX = 5
FOUND_MAX = 100

ReadPayload = Callable[[Json], Any]


def untyped(payload: Json) -> dict[str, Json]:
    return payload if isinstance(payload, dict) else {}


def payload_reader(model: Any) -> ReadPayload:
    """Raises `ValueError` or `TypeError` for what is neither a model nor a schema: a fault of the program."""
    if isinstance(model, Mapping):
        return _by_schema(dict(model))
    if hasattr(model, "model_validate_json"):
        return _by_pydantic(model)
    return _by_msgspec(model)


def _by_pydantic(model: Any) -> ReadPayload:
    def read(payload: Json) -> Any:
        try:
            # As JSON: a strict model takes a date from a text then, and from nothing else.
            return model.model_validate_json(msgspec.json.encode(untyped(payload)))
        except ValueError as fault:
            if not hasattr(fault, "errors"):
                raise
            found = fault.errors(include_url=False, include_context=False, include_input=False)
            raise _invalid([(pointer_of("", one["loc"]), one["msg"]) for one in found]) from None

    return read


def _by_msgspec(model: Any) -> ReadPayload:
    msgspec.json.Decoder(model)  # says now what it could not read

    def read(payload: Json) -> Any:
        try:
            return msgspec.convert(untyped(payload), model)
        except msgspec.ValidationError as fault:
            raise Final(PAYLOAD_INVALID, _without_value(str(fault))) from None

    return read


def _without_value(text: str) -> str:
    """msgspec repeats a value that is none of an enum's: it is the caller's, and stays so."""
    return re.sub(r"^(Invalid enum value) .*?(?= - at `|$)", r"\1", text, flags=re.DOTALL)


def _by_schema(schema: dict[str, Json]) -> ReadPayload:
    checked = usable_schema(schema)

    def read(payload: Json) -> Any:
        payload = untyped(payload)
        found = checked.faults(payload, count_max=FOUND_MAX)
        if found:
            raise _invalid([(pointer_of("", one.path), one.message) for one in found])
        return payload

    return read


def _invalid(problems: list[tuple[str, str]]) -> Final:
    text = "; ".join(f"{where or 'the payload'}: {what}" for where, what in problems[:PROBLEMS_MAX])
    more = len(problems) - PROBLEMS_MAX
    return Final(PAYLOAD_INVALID, f"{text} (and {more} more)" if more > 0 else text)
