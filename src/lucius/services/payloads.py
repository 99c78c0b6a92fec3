"""Members of a payload, checked again where they are used: a protocol may come without a schema."""

from collections.abc import Mapping
from typing import Any, TypeVar

from lucius.sdk import Final

Default = TypeVar("Default", int, None)


def whole_number(
    payload: Mapping[str, Any], name: str, *, default: Default, least: int, most: int
) -> int | Default:
    value = payload.get(name)
    if value is None:
        return default
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise Final("INVALID_PAYLOAD", f"{name} must be a whole number from {least} to {most}")
    return value
