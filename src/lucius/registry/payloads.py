"""What each step gets of a job's payload.

In: a protocol and a payload. Out: one part per step, in order, or a refusal that names every member a step's
schema objects to. A step owns the member under its `payload_key`, or the whole payload where a lone step
names none; members that no step owns pass unread. Members that are null count as absent at every depth, as
they do in the fingerprint: two commands that are one command must do the same.

In: a step's schema and its defaults. Out: what the one has against the other whatever a command brings.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

from lucius.contracts.json_schema import CheckedSchema, ValueFault, usable_schema
from lucius.contracts.pointers import below, pointer_of
from lucius.core.model import Json, ProtocolSpec, StepSpec
from lucius.core.refusal import Code, FieldError, Refused

PROTOCOLS_MAX: Final = 256
ERRORS_MAX: Final = 100
MESSAGE_LENGTH_MAX: Final = 300
# A name is compared with so many of a schema, each of so many characters: about a millisecond.
KNOWN_MAX: Final = 64
KNOWN_SHOWN_MAX: Final = 12
NAME_LENGTH_MAX: Final = 64
CLOSE: Final = 0.6


class PayloadRules:
    """Compiles the schemas of a protocol once and keeps them while it is in use."""

    def __init__(self) -> None:
        # By identity, with the protocol kept beside its validators: it holds schemas, so it has no hash.
        self._compiled: dict[int, tuple[ProtocolSpec, tuple[CheckedSchema, ...]]] = {}

    def step_payloads(self, protocol: ProtocolSpec, payload: Json) -> tuple[Json, ...] | Refused:
        parts: list[Json] = []
        found: list[FieldError] = []
        for step, schema in zip(protocol.steps, self._schemas(protocol), strict=True):
            part = _part(step, payload)
            if not _fits(schema, part):
                base = "/payload" if step.payload_key is None else below("/payload", step.payload_key)
                found.extend(_problems(schema, part, base, ERRORS_MAX - len(found)))
            parts.append(part)
        if not found:
            return tuple(parts)
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        message = f"the payload does not fit its protocol: {found[0].pointer}: {found[0].message}{more}"
        return Refused(Code.INVALID_PAYLOAD, message, tuple(found))

    def _schemas(self, protocol: ProtocolSpec) -> tuple[CheckedSchema, ...]:
        entry = self._compiled.get(id(protocol))
        if entry is not None and entry[0] is protocol:
            return entry[1]
        schemas = tuple(usable_schema(step.payload_schema) for step in protocol.steps)
        if len(self._compiled) >= PROTOCOLS_MAX:
            self._compiled.pop(next(iter(self._compiled)))
        self._compiled[id(protocol)] = (protocol, schemas)
        return schemas


_RULES: Final = PayloadRules()


def step_payloads(protocol: ProtocolSpec, payload: Json) -> tuple[Json, ...] | Refused:
    """As `PayloadRules.step_payloads`, with the compiled schemas shared by the process."""
    return _RULES.step_payloads(protocol, payload)


def default_faults(schema: CheckedSchema, defaults: dict[str, Json]) -> list[FieldError]:
    """What a schema objects to in defaults of its own, with pointers into them. What a command may still add,
    or what may not hold once it has, is no fault."""
    if not defaults:
        return []
    found: list[FieldError] = []
    for fault in schema.faults(_copied(defaults), count_max=ERRORS_MAX):
        if not _may_be_mended(fault):
            found.extend(_of_one(fault, pointer_of("", fault.path)))
    return found[:ERRORS_MAX]


def _may_be_mended(fault: ValueFault) -> bool:
    if fault.conditional:
        return True
    # A list is replaced as a whole: nothing is added to an object in it.
    in_a_list = any(isinstance(name, int) for name in fault.path)
    return fault.on_object and not in_a_list and not fault.lasting


def _fits(schema: CheckedSchema, part: Json) -> bool:
    try:
        return schema.fits(part)
    except ValueError:
        return False  # what is wrong is reported with the rest


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


def _problems(schema: CheckedSchema, part: Json, base: str, count_max: int) -> list[FieldError]:
    found: list[FieldError] = []
    for fault in schema.faults(part, count_max=max(count_max, 1)):
        found.extend(_of_one(fault, pointer_of(base, fault.path)))
        if len(found) >= count_max:
            break
    return found[: max(count_max, 0)]


def _of_one(fault: ValueFault, at: str) -> list[FieldError]:
    if fault.names is None:
        return [FieldError(at, fault.message[:MESSAGE_LENGTH_MAX])]
    if fault.one_is_enough:
        return [FieldError(at, f"needs {' or '.join(fault.names)}"[:MESSAGE_LENGTH_MAX])]
    if fault.missing:
        return [FieldError(below(at, name), "is required") for name in fault.names]
    unknown = "is not a member of this step's payload"
    return [FieldError(below(at, name), unknown + _meant(name, fault.known)) for name in fault.names]


def _meant(name: str, known: Sequence[str]) -> str:
    """What to write instead; the names that are known come from the schema, which every client may read."""
    if not known or len(name) > NAME_LENGTH_MAX:
        return ""
    candidates = [each for each in known[:KNOWN_MAX] if len(each) <= NAME_LENGTH_MAX]
    for meant in get_close_matches(name, candidates, n=1, cutoff=CLOSE):
        return f"; did you mean {meant}?"
    if len(known) > KNOWN_SHOWN_MAX or len(candidates) < len(known):
        return ""
    return f"; it may have {', '.join(sorted(known))}"
