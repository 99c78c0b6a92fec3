"""A payload that a protocol takes, made from its schemas.

In: a protocol. Out: the smallest payload that fits all its steps, with the examples and defaults that the
schemas give; None where none can be made from what they say.
"""

from typing import Final

from lucius.core.model import Json, ProtocolSpec, StepSpec
from lucius.core.refusal import Refused
from lucius.registry.payloads import step_payloads

DEPTH_MAX: Final = 8
ITEMS_MAX: Final = 16
TEXT_LENGTH_MAX: Final = 1_000
_TEXT: Final = "text"


def payload_example(protocol: ProtocolSpec) -> dict[str, Json] | None:
    payload: dict[str, Json] = {}
    for step in protocol.steps:
        own = _of_step(step)
        if step.payload_key is not None:
            if own:
                payload[step.payload_key] = own
        elif isinstance(own, dict):
            payload.update(own)
    return None if isinstance(step_payloads(protocol, payload), Refused) else payload


def _of_step(step: StepSpec) -> Json:
    made = _value(step.payload_schema, DEPTH_MAX)
    if isinstance(made, dict):
        return {name: value for name, value in made.items() if step.defaults.get(name) != value}
    return made


def _value(schema: Json, depth: int) -> Json:
    if not isinstance(schema, dict) or depth == 0:
        return {}
    for given in ("examples", "enum"):
        if isinstance(schema.get(given), list) and schema[given]:
            return schema[given][0]
    for given in ("default", "const"):
        if given in schema:
            return schema[given]
    schema = _with_alternative(schema)
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((each for each in kind if each != "null"), None)
    if kind == "array":
        count = min(_number(schema.get("minItems"), 0), ITEMS_MAX)
        return [_value(schema.get("items"), depth - 1) for _ in range(count)]
    if kind == "string":
        length = min(_number(schema.get("minLength"), 0), TEXT_LENGTH_MAX)
        longest = _number(schema.get("maxLength"), TEXT_LENGTH_MAX)
        return _TEXT.ljust(length, ".")[: max(length, longest)]
    if kind in ("integer", "number"):
        return _number(schema.get("minimum"), min(1, _number(schema.get("maximum"), 1)))
    if kind == "boolean":
        return True
    if kind == "null":
        return None
    return _object(schema, depth)


def _object(schema: dict[str, Json], depth: int) -> dict[str, Json]:
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict) or not isinstance(required, list):
        return {}
    return {name: _value(properties.get(name), depth - 1) for name in required if isinstance(name, str)}


def _with_alternative(schema: dict[str, Json]) -> dict[str, Json]:
    """With the first of each choice, and with all that has to hold together."""
    together = schema.get("allOf")
    parts = list(together) if isinstance(together, list) else []
    choices = [schema.get("anyOf"), schema.get("oneOf")]
    parts += [choice[0] for choice in choices if isinstance(choice, list) and choice]
    merged = dict(schema)
    for part in parts:
        if not isinstance(part, dict):
            continue
        for name, value in part.items():
            if name == "required" and isinstance(merged.get(name), list) and isinstance(value, list):
                merged[name] = [*merged[name], *value]
            elif name == "properties" and isinstance(merged.get(name), dict) and isinstance(value, dict):
                merged[name] = {**merged[name], **value}
            else:
                merged.setdefault(name, value)
    return merged


def _number(value: Json, otherwise: int) -> int:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else otherwise
