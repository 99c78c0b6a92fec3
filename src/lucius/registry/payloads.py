"""What each step gets of a job's payload.

In: a protocol and a payload. Out: one part per step, in order, or a refusal that names every member a step's
schema objects to. A step owns the member under its `payload_key`, or the whole payload where a lone step
names none; members that no step owns pass unread. Members that are null count as absent at every depth, as
they do in the fingerprint: two commands that are one command must do the same.

In: a step's schema and its defaults. Out: what the one has against the other whatever a command brings.
"""

from typing import Final

import jsonschema_rs

from lucius.contracts.pointers import below, pointer_of
from lucius.core.model import Json, ProtocolSpec, StepSpec
from lucius.core.refusal import Code, FieldError, Refused

PROTOCOLS_MAX: Final = 256
ERRORS_MAX: Final = 100
MESSAGE_LENGTH_MAX: Final = 300
_CONDITIONS: Final = frozenset({"if", "then", "else"})
# Objections to an object that stay, whatever members a command adds to it.
_LASTING: Final = (
    jsonschema_rs.ValidationErrorKind.AdditionalProperties,
    jsonschema_rs.ValidationErrorKind.FalseSchema,
    jsonschema_rs.ValidationErrorKind.MaxProperties,
    jsonschema_rs.ValidationErrorKind.PropertyNames,
    jsonschema_rs.ValidationErrorKind.Type,
)


class PayloadRules:
    """Compiles the schemas of a protocol once and keeps them while it is in use."""

    def __init__(self) -> None:
        # By identity, with the protocol kept beside its validators: it holds schemas, so it has no hash.
        self._compiled: dict[int, tuple[ProtocolSpec, tuple[jsonschema_rs.Validator, ...]]] = {}

    def step_payloads(self, protocol: ProtocolSpec, payload: Json) -> tuple[Json, ...] | Refused:
        parts: list[Json] = []
        found: list[FieldError] = []
        for step, validator in zip(protocol.steps, self._validators(protocol), strict=True):
            part = _part(step, payload)
            if not validator.is_valid(part):
                base = "/payload" if step.payload_key is None else below("/payload", step.payload_key)
                found.extend(_problems(validator, part, base, ERRORS_MAX - len(found)))
            parts.append(part)
        if not found:
            return tuple(parts)
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        message = f"the payload does not fit its protocol: {found[0].pointer}: {found[0].message}{more}"
        return Refused(Code.INVALID_PAYLOAD, message, tuple(found))

    def _validators(self, protocol: ProtocolSpec) -> tuple[jsonschema_rs.Validator, ...]:
        entry = self._compiled.get(id(protocol))
        if entry is not None and entry[0] is protocol:
            return entry[1]
        validators = tuple(
            # Masked: a refusal must not repeat what was sent.
            jsonschema_rs.validator_for(step.payload_schema, offline=True, mask="the value")
            for step in protocol.steps
        )
        if len(self._compiled) >= PROTOCOLS_MAX:
            self._compiled.pop(next(iter(self._compiled)))
        self._compiled[id(protocol)] = (protocol, validators)
        return validators


_RULES: Final = PayloadRules()


def step_payloads(protocol: ProtocolSpec, payload: Json) -> tuple[Json, ...] | Refused:
    """As `PayloadRules.step_payloads`, with the compiled schemas shared by the process."""
    return _RULES.step_payloads(protocol, payload)


def default_faults(schema: Json, defaults: dict[str, Json]) -> list[FieldError]:
    """What a schema objects to in defaults of its own, with pointers into them. What a command may still add,
    or what may not hold once it has, is no fault."""
    if not defaults:
        return []
    validator = jsonschema_rs.validator_for(schema, offline=True, mask="the value")
    found: list[FieldError] = []
    for error in validator.iter_errors(_copied(defaults)):
        if not _may_be_mended(error):
            found.extend(_of_one(error, pointer_of("", error.instance_path)))
    return found[:ERRORS_MAX]


def _may_be_mended(error: jsonschema_rs.ValidationError) -> bool:
    if not _CONDITIONS.isdisjoint(error.evaluation_path):
        return True
    # A list is replaced as a whole: nothing is added to an object in it.
    in_a_list = any(isinstance(name, int) for name in error.instance_path)
    return isinstance(error.instance, dict) and not in_a_list and not isinstance(error.kind, _LASTING)


def _part(step: StepSpec, payload: Json) -> Json:
    own = payload if step.payload_key is None else payload.get(step.payload_key)
    return _laid_over(step.defaults, {} if own is None else own)


def _laid_over(defaults: Json, value: Json) -> Json:
    """Objects member by member, anything else as a whole; members that are null drop out."""
    if isinstance(value, dict):
        merged: dict[str, Json] = _copied(defaults) if isinstance(defaults, dict) else {}
        for name, member in value.items():
            if isinstance(member, dict | list):
                merged[name] = _laid_over(merged.get(name), member)
            elif member is not None:
                merged[name] = member
        return merged
    if isinstance(value, list):
        return [_laid_over(None, item) if isinstance(item, dict | list) else item for item in value]
    return value


def _copied(defaults: dict[str, Json]) -> dict[str, Json]:
    return {
        name: _laid_over(None, member) if isinstance(member, dict | list) else member
        for name, member in defaults.items()
        if member is not None
    }


def _problems(validator: jsonschema_rs.Validator, part: Json, base: str, count_max: int) -> list[FieldError]:
    found: list[FieldError] = []
    for error in validator.iter_errors(part):
        at = pointer_of(base, error.instance_path)
        found.extend(_of_one(error, at))
        if len(found) >= count_max:
            break
    return found[: max(count_max, 0)]


def _of_one(error: jsonschema_rs.ValidationError, at: str) -> list[FieldError]:
    kind = error.kind
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.Required):
        return [FieldError(below(at, kind.property), "is required")]
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.AdditionalProperties):
        return [
            FieldError(below(at, name), "is not a member of this step's payload") for name in kind.unexpected
        ]
    return [FieldError(at, error.message[:MESSAGE_LENGTH_MAX])]
