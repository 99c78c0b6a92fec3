"""Bounds on what a payload may be, whatever its protocol says.

In: a payload and the pointer under which it stands in the envelope. Out: every place that breaks a bound or
looks like a credential. Values are never repeated in what is said.
"""

from typing import Final

from lucius.contracts.credentials import looks_secret
from lucius.contracts.pointers import pointer_of
from lucius.core.model import Json
from lucius.core.refusal import FieldError

DEPTH_MAX: Final = 32
KEYS_MAX: Final = 2000
ERRORS_MAX: Final = 50

# A path is linked backwards, so that a walk without findings never builds a pointer.
_Path = tuple["_Path", str | int] | None


def payload_problems(payload: Json, pointer: str) -> tuple[FieldError, ...]:
    """Empty when the payload is within bounds. The payload itself is the first of `DEPTH_MAX` levels."""
    found: list[FieldError] = []
    keys = 0
    too_deep = False
    pending: list[tuple[Json, int, _Path]] = [(payload, 1, None)] if _holds(payload) else []
    while pending and len(found) < ERRORS_MAX:
        container, depth, path = pending.pop()
        if depth > DEPTH_MAX:
            if not too_deep:
                found.append(_error(pointer, path, f"is nested more than {DEPTH_MAX} levels deep"))
            too_deep = True
            continue
        if isinstance(container, dict):
            keys += len(container)
            for name, member in container.items():
                if looks_secret(name):
                    found.append(_error(pointer, (path, name), "looks like a credential; send a reference"))
                elif _holds(member):
                    pending.append((member, depth + 1, (path, name)))
        else:
            pending.extend(
                (item, depth + 1, (path, index)) for index, item in enumerate(container) if _holds(item)
            )
    if keys > KEYS_MAX:
        found.append(FieldError(pointer, f"holds more than {KEYS_MAX} members in all"))
    return tuple(found)


def _holds(value: Json) -> bool:
    return isinstance(value, dict | list)


def _error(base: str, path: _Path, message: str) -> FieldError:
    parts: list[str | int] = []
    while path is not None:
        path, part = path
        parts.append(part)
    return FieldError(pointer_of(base, reversed(parts)), message)
