"""What SIS is asked: prompts, and the shape that an answer must have.

In: a payload. Out: prompts whose schemas were understood, or `Final`.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from lucius.contracts.json_schema import CheckedSchema, SchemaFault, check_schema
from lucius.sdk.errors import Final

PROMPTS_MAX = 100
PROMPT_CHARS_MAX = 4_000
NAME_CHARS_MAX = 100
FAULTS_SHOWN_MAX = 5


class AnswerShape(msgspec.Struct, frozen=True, kw_only=True):
    """A JSON Schema that an answer must fit."""

    schema: dict[str, Any]
    checked: CheckedSchema

    def faults(self, value: object) -> list[str]:
        """Where `value` does not fit and why, without repeating it."""
        return [
            f"{'/'.join(map(str, fault.path)) or 'the whole'}: {fault.message}"
            for fault in self.checked.faults(value, count_max=FAULTS_SHOWN_MAX)
        ]


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    text: str | None
    """None: nothing was asked; the document speaks for itself."""
    name: str | None = None
    shape: AnswerShape | None = None


def prompts_in(payload: Mapping[str, Any]) -> list[Prompt]:
    """`prompt`, then those of `prompt_set`, texts or objects with a `prompt`; else the one without a text.

    `output_schema` is for all that have none of their own.
    """
    shape = shape_of(payload.get("output_schema"))
    found: list[Any] = [] if payload.get("prompt") is None else [payload["prompt"]]
    several = payload.get("prompt_set")
    if several is not None:
        found += several if isinstance(several, list) else [several]
    if len(found) > PROMPTS_MAX:
        raise Final("INVALID_PAYLOAD", f"at most {PROMPTS_MAX} prompts are answered")
    return [_prompt(each, shape) for each in found] or [Prompt(text=None, shape=shape)]


def shape_of(schema: object) -> AnswerShape | None:
    if schema is None:
        return None
    if not isinstance(schema, dict):
        raise Final("INVALID_PAYLOAD", "output_schema must be a JSON Schema, an object")
    checked = check_schema(schema)
    if isinstance(checked, SchemaFault):
        code = "OUTPUT_SCHEMA_TOO_COMPLEX" if checked.too_complex else "INVALID_PAYLOAD"
        raise Final(code, f"output_schema {checked.message}")
    return AnswerShape(schema=schema, checked=checked)


def _prompt(asked: object, shape: AnswerShape | None) -> Prompt:
    text, name = asked, None
    if isinstance(asked, dict):
        text, name = asked.get("prompt"), asked.get("name")
        shape = shape_of(asked.get("output_schema")) or shape
    if not isinstance(text, str) or not 0 < len(text.strip()) <= PROMPT_CHARS_MAX:
        raise Final("INVALID_PAYLOAD", f"a prompt must be a text of 1 to {PROMPT_CHARS_MAX} characters")
    if name is not None and not (isinstance(name, str) and 0 < len(name) <= NAME_CHARS_MAX):
        raise Final("INVALID_PAYLOAD", f"a prompt's name must be a text of 1 to {NAME_CHARS_MAX} characters")
    return Prompt(text=text, name=name, shape=shape)
