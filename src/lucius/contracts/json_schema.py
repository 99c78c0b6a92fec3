"""JSON Schemas from outside: measured, then compiled, then evaluated within bounds.

In: a schema, and values to hold against it. Out: whether they fit and, where it can be found cheaply, what is
wrong; or why the schema or the value is refused. This is the only module that knows the library which
evaluates: whatever holds a schema of a client or of a protocol against anything does it through here, so that
no schema is used unmeasured.

Patterns are matched by an engine whose time is linear in the text. Nothing is fetched: a schema lies in one
piece.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import jsonschema_rs
import msgspec

from lucius.contracts.schema_cost import LEVELS_MAX, SchemaCost, TooCostly, Unmeasurable, measure
from lucius.contracts.schema_patterns import goes_back

# A value has a size: this much for each of its parts, and one for each character.
PART_UNITS: Final = 16
# A schema of at most this weight is evaluated without looking how large the value is: it is within bounds.
LIGHT_CHECKS_MAX: Final = 32
# Checks times the size of the value: about a tenth of a second.
EVALUATED_UNITS_MAX: Final = 64_000_000
# The same for reporting what is wrong, which copies parts of the value: about 30 MB.
REPORTED_UNITS_MAX: Final = 4_000_000
# How many objections a report may hold, told or not: each takes about a kilobyte and three microseconds.
OBJECTIONS_MAX: Final = 30_000
PATTERN_BYTES_MAX: Final = 8 * 1024 * 1024

TOO_MUCH_TO_CHECK: Final = "is too large to be held against its schema: send less, or simplify the schema"
TOO_MUCH_TO_REPORT: Final = (
    "does not fit its schema, which branches too often to say where: anyOf, oneOf or a recursion multiply"
)
TOO_MANY_OBJECTIONS: Final = (
    "does not fit its schema, in too many places to say where: send a part of it to see"
)

ErrorKind = jsonschema_rs.ValidationErrorKind


class SchemaFault(msgspec.Struct, frozen=True, kw_only=True):
    """A schema that is not used."""

    message: str
    too_complex: bool = False
    """It is a JSON Schema, and costs too much."""


class UnusableSchema(ValueError):
    """Raised where a schema must be usable: what read it should have refused it."""


class ValueFault(msgspec.Struct, frozen=True, kw_only=True):
    """Where a value does not fit and why, without repeating it."""

    path: tuple[str | int, ...]
    message: str
    names: tuple[str, ...] | None = None
    """The members that are missing, or that may not be there; None where it is not about members."""
    missing: bool = False
    one_is_enough: bool = False
    """Any of the names that are missing would do."""
    known: tuple[str, ...] = ()
    """The members that may be there, where others are."""
    conditional: bool = False
    """It holds only because of another part of the value (`if`)."""
    on_object: bool = False
    lasting: bool = False
    """It stays, whatever members are added."""


class CheckedSchema:
    """A compiled schema, with what it costs."""

    __slots__ = ("_cost", "_light", "_schema", "_validator")

    def __init__(self, schema: Any, validator: jsonschema_rs.Validator, cost: SchemaCost) -> None:
        self._schema = schema
        self._validator = validator
        self._cost = cost
        self._light = cost.weight <= LIGHT_CHECKS_MAX

    def fits(self, value: Any) -> bool:
        """Raises `ValueError` where finding out would take too long."""
        if not self._light:
            units, places = _size(value)
            depth = len(places) - 1
            if depth > LEVELS_MAX or self._cost.evaluation_checks(depth) * units > EVALUATED_UNITS_MAX:
                raise ValueError(TOO_MUCH_TO_CHECK)
        return self._validator.is_valid(value)

    def faults(self, value: Any, *, count_max: int) -> list[ValueFault]:
        """Empty where it fits. A problem without a place stands for more than can be reported."""
        try:
            if self.fits(value):
                return []
        except ValueError as fault:
            return [ValueFault(path=(), message=str(fault) or TOO_MUCH_TO_CHECK, lasting=True)]
        units, places = _size(value)
        depth = len(places) - 1
        if depth > LEVELS_MAX or self._cost.report_checks(depth) * units > REPORTED_UNITS_MAX:
            return [ValueFault(path=(), message=TOO_MUCH_TO_REPORT, lasting=True)]
        if sum(count * self._cost.objections_at(at) for at, count in enumerate(places)) > OBJECTIONS_MAX:
            return [ValueFault(path=(), message=TOO_MANY_OBJECTIONS, lasting=True)]
        found: list[ValueFault] = []
        for error in self._validator.iter_errors(value):
            found += [_fault(each, self._schema) for each in _of_the_branch_meant(error)]
            if len(found) >= count_max:
                break
        return found[: max(count_max, 1)]


def check_schema(schema: Any) -> CheckedSchema | SchemaFault:
    """Measured before the library sees it, because compiling may already be too much."""
    try:
        cost = measure(schema)
    except Unmeasurable as fault:
        message = f"is not a usable JSON Schema: {fault}"
        return SchemaFault(message=message, too_complex=isinstance(fault, TooCostly))
    try:
        # Masked: a report must not repeat what was sent.
        validator = jsonschema_rs.validator_for(
            schema,
            offline=True,
            mask="the value",
            pattern_options=jsonschema_rs.RegexOptions(
                size_limit=PATTERN_BYTES_MAX, dfa_size_limit=PATTERN_BYTES_MAX
            ),
        )
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
        return SchemaFault(message=f"is not a usable JSON Schema: {_said(error)}")
    except ValueError as error:
        return SchemaFault(message=f"is not a usable JSON Schema: {error}")
    return CheckedSchema(schema, validator, cost)


def usable_schema(schema: Any) -> CheckedSchema:
    """Raises `UnusableSchema`."""
    found = check_schema(schema)
    if isinstance(found, SchemaFault):
        raise UnusableSchema(f"the schema {found.message}")
    return found


def _said(error: jsonschema_rs.ValidationError | jsonschema_rs.ReferencingError) -> str:
    if isinstance(error, jsonschema_rs.ReferencingError) or not isinstance(error.kind, ErrorKind.Format):
        return str(error.message)
    if isinstance(error.instance, str) and goes_back(error.instance):
        return "a pattern looks around or refers back, which cannot be matched in one pass over a text"
    return str(error.message)


def _size(value: Any) -> tuple[int, list[int]]:
    """In units, and how many parts there are at each depth."""
    units = 0
    places = [0]
    pending = [(value, 0)]
    while pending:
        part, depth = pending.pop()
        units += PART_UNITS
        if depth == len(places):
            places.append(0)
        places[depth] += 1
        if isinstance(part, Mapping):
            pending += [(member, depth + 1) for member in part.values()]
            units += sum(map(len, part))
        elif isinstance(part, list):
            pending += [(item, depth + 1) for item in part]
        elif isinstance(part, str):
            units += len(part)
    return units, places


# Objections to an object that stay, whatever members are added to it.
_LASTING: Final = (
    ErrorKind.AdditionalProperties,
    ErrorKind.FalseSchema,
    ErrorKind.MaxProperties,
    ErrorKind.PropertyNames,
    ErrorKind.Type,
)
_CONDITIONS: Final = frozenset({"if", "then", "else"})


def _of_the_branch_meant(error: jsonschema_rs.ValidationError) -> list[jsonschema_rs.ValidationError]:
    """Of `anyOf`, what one branch objects to, where only that one is of the value's type."""
    if not isinstance(error.kind, ErrorKind.AnyOf):
        return [error]
    depth = len(error.instance_path)
    meant = [
        branch
        for branch in error.kind.context
        if not any(
            isinstance(each.kind, ErrorKind.Type) and len(each.instance_path) == depth for each in branch
        )
    ]
    if len(meant) != 1 or len(error.kind.context) == 1:
        return [error]
    return [found for each in meant[0] for found in _of_the_branch_meant(each)]


def _fault(error: jsonschema_rs.ValidationError, schema: Any) -> ValueFault:
    kind = error.kind
    names: tuple[str, ...] | None = None
    known: tuple[str, ...] = ()
    one_is_enough = False
    if isinstance(kind, ErrorKind.Required):
        names = (kind.property,)
    elif isinstance(kind, ErrorKind.AdditionalProperties):
        names = tuple(kind.unexpected)
        known = _known_beside(schema, error.schema_path)
    elif isinstance(kind, ErrorKind.AnyOf):
        names = _any_missing(kind)
        one_is_enough = names is not None
    return ValueFault(
        path=tuple(error.instance_path),
        message=error.message,
        names=names,
        missing=one_is_enough or isinstance(kind, ErrorKind.Required),
        one_is_enough=one_is_enough,
        known=known,
        conditional=not _CONDITIONS.isdisjoint(error.evaluation_path),
        on_object=isinstance(error.instance, dict),
        lasting=isinstance(kind, _LASTING),
    )


def _any_missing(kind: jsonschema_rs.ValidationErrorKind.AnyOf) -> tuple[str, ...] | None:
    """One name of each branch, where no branch objects to anything but its absence."""
    names: list[str] = []
    for branch in kind.context:
        if len(branch) != 1 or not isinstance(branch[0].kind, ErrorKind.Required):
            return None
        names.append(branch[0].kind.property)
    return tuple(names)


def _known_beside(schema: Any, path: Sequence[str | int]) -> tuple[str, ...]:
    """The names under `properties` beside the keyword at the end of the path; none where a reference leads
    there."""
    for part in path[:-1]:
        inside = schema.get(part) if isinstance(schema, Mapping) else None
        if isinstance(schema, list) and isinstance(part, int) and part < len(schema):
            inside = schema[part]
        schema = inside
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return tuple(properties) if isinstance(properties, Mapping) else ()
