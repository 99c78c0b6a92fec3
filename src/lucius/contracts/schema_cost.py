"""What a JSON Schema may cost, known before it is used.

In: a schema from outside. Out: its cost, or why it is refused. Measuring is bounded itself: every part is
looked at once a level, and the steps are counted.

A schema of two kilobytes can ask for billions of checks: references that branch, a recursion with several
ways to the same member, `unevaluatedProperties` over such branches, a regular expression that goes back and
tries again. Whether a value fits is found in about (parts of the schema) x (parts of the value), because the
evaluator remembers what a reference came to. What is wrong with it is reported without that memory: a report
follows each way to each part, copies the part that it names, and holds every objection before the first is
told: thirty members required of each item of a list are 2.5 million objections to 250 KB of `{}`.

The cost is that of one place of a value, by the depth of the place: how many parts of the schema are held
against it, each counted as often as ways lead to it. Members of different names are different places, so a
recursion through `left` and `right` stays at one a place, while one through three branches to `a` triples at
each level.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from lucius.contracts.schema_patterns import pattern_weight

VALUES_MAX: Final = 10_000
LEVELS_MAX: Final = 32  # as deep as a payload may be
NESTING_MAX: Final = 64
PATTERN_WEIGHT_MAX: Final = 5_000
PATTERN_WEIGHTS_MAX: Final = 20_000  # of all patterns of a schema together
STEPS_MAX: Final = 200_000
# Up to this depth no place of a value may cost more than so many checks.
JUDGED_LEVELS: Final = 3
CHECKS_MAX: Final = 50_000
ENUM_VALUES_A_CHECK: Final = 8
UNEVALUATED_CHECKS: Final = 16
FRACTION_CHECKS: Final = (
    100  # of `multipleOf` a fraction, which is calculated exactly, over 600 digits if need be
)
FRACTION_OBJECTIONS: Final = 10

_SAME_LISTS: Final = ("allOf", "anyOf", "oneOf")
_SAME: Final = ("not", "if", "then", "else")
_SAME_MAPS: Final = ("dependentSchemas", "dependencies")
_ANY: Final = (
    "additionalProperties",
    "additionalItems",
    "contains",
    "items",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_UNEVALUATED: Final = ("unevaluatedItems", "unevaluatedProperties")
_DATA: Final = frozenset({"const", "default", "enum", "example", "examples"})  # values, which are no schemas
_NAMES: Final = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
_FAR: Final = ("$dynamicRef", "$recursiveRef")
# Members of a part that object to nothing themselves.
_SILENT: Final = frozenset(
    {"$anchor", "$comment", "$defs", "$id", "$schema", "default", "definitions", "deprecated", "description"}
    | {"else", "example", "examples", "if", "properties", "readOnly", "then", "title", "writeOnly"}
)
_ONE_FAULT_FOR_ALL: Final = ("additionalProperties", "unevaluatedProperties")

Schema = Any  # a mapping, or true or false
Counts = dict[int, int]


class SchemaCost(msgspec.Struct, frozen=True, kw_only=True):
    """A place, by its depth from 0; deeper places cost what the last entry says."""

    checks: tuple[int, ...]
    weight: int
    """Of all parts together: no place costs more to an evaluator that remembers what each part came to."""
    objections: tuple[int, ...]
    """How many a report may hold at one place, by its depth as well."""

    def objections_at(self, depth: int) -> int:
        return self.objections[min(depth, len(self.objections) - 1)]

    def report_checks(self, depth: int) -> int:
        """Of all depths down to this one: how much a report of errors may repeat."""
        known = sum(self.checks[: depth + 1])
        return known + max(0, depth + 1 - len(self.checks)) * self.checks[-1]

    def evaluation_checks(self, depth: int) -> int:
        """At the dearest place down to this depth, for an evaluator that remembers."""
        return min(self.weight, max(self.checks[: depth + 1]))


class Unmeasurable(Exception):
    """The schema is not used. The text says why, for its author."""


class TooCostly(Unmeasurable):
    """It would cost more than a schema may."""


def measure(schema: Schema) -> SchemaCost:
    """Raises `Unmeasurable`."""
    _look_through(schema)
    return _Measuring(schema).cost()


def _look_through(schema: Schema) -> None:
    """All of the document, reached by references or not: what is counted must be what is evaluated."""
    values = weights = 0
    pending: list[tuple[Any, int, bool]] = [(schema, 1, False)]
    while pending:
        value, nesting, is_map = pending.pop()
        values += 1
        if values > VALUES_MAX:
            raise TooCostly(f"it has more than {VALUES_MAX} values")
        if nesting > NESTING_MAX:
            raise TooCostly(f"it is nested more than {NESTING_MAX} levels deep")
        if isinstance(value, Mapping):
            if not is_map:
                _refuse_far(value, root=nesting == 1)
                weights += _weight_of_patterns(value)
            pending += [
                (member, nesting + 1, not is_map and name in _NAMES)
                for name, member in value.items()
                if is_map or name not in _DATA
            ]
        elif isinstance(value, list):
            pending += [(item, nesting + 1, False) for item in value]
    if weights > PATTERN_WEIGHTS_MAX:
        raise TooCostly(
            f"its patterns repeat too much: {weights} parts in all, at most {PATTERN_WEIGHTS_MAX}"
        )


def _refuse_far(part: Mapping[str, Any], *, root: bool) -> None:
    for name in _FAR:
        if name in part:
            raise Unmeasurable(f"{name} is not evaluated here: use $ref")
    ref = part.get("$ref")
    if isinstance(ref, str) and not (ref.startswith("#") and "%" not in ref):
        raise Unmeasurable("a $ref may lead to a place in the same schema only: #, #/… or #name, without %")
    for name in ("$id", "id"):
        own = part.get(name)
        if not root and isinstance(own, str) and not own.startswith("#"):
            raise Unmeasurable(f"{name} may stand at the top alone: a part has no address of its own")


def _weight_of_patterns(part: Mapping[str, Any]) -> int:
    return sum(_weight(pattern) for pattern in _patterns(part))


def _patterns(part: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(own := part.get("pattern"), str):
        yield own
    if isinstance(named := part.get("patternProperties"), Mapping):
        yield from (name for name in named if isinstance(name, str))


def _weight(pattern: str) -> int:
    weight = pattern_weight(pattern)
    if weight > PATTERN_WEIGHT_MAX:
        raise TooCostly(f"a pattern repeats too much: {weight} parts, at most {PATTERN_WEIGHT_MAX}")
    return weight


class _SchemaPart(msgspec.Struct):
    """A part of the schema that may be held against a value."""

    weight: int
    objections: int  # that it may have to one value itself
    same: list[int]  # held against the same value
    members: dict[str | None, list[int]]  # against a member: by its name, or, under None, against any
    ways: int | None = None  # from here to parts at the same value, once counted
    unevaluated: bool = False


class _Measuring:
    def __init__(self, root: Schema) -> None:
        self._root = root
        self._anchors = _anchors(root)
        self._parts: dict[int, _SchemaPart] = {}
        self._steps = 0
        pending = [root]
        while pending:
            schema = pending.pop()
            if id(schema) in self._parts or not _objects(schema):
                continue
            part, below = self._read(schema) if schema else (_SchemaPart(1, 1, [], {None: []}), [])
            self._parts[id(schema)] = part
            pending += below
        self._rank = {at: rank for rank, at in enumerate(self._in_order())}

    def cost(self) -> SchemaCost:
        weight = sum(part.weight for part in self._parts.values())
        counts, checks, faults = self._spread({id(self._root): 1})
        levels, objections = [checks], [faults]
        for _ in range(LEVELS_MAX):
            if len(levels) <= JUDGED_LEVELS + 1 and levels[-1] > CHECKS_MAX:
                raise TooCostly(
                    f"one value would be checked more than {CHECKS_MAX} times (at least {levels[-1]}): "
                    "references, branches (anyOf, oneOf, allOf) or a recursion multiply"
                )
            deeper, checks, faults = self._descend(counts)
            if deeper == counts or not deeper:
                break
            counts = deeper
            levels.append(checks)
            objections.append(faults)
        return SchemaCost(
            checks=(*levels, levels[-1] if deeper else 0),
            weight=max(weight, 1),
            objections=(*objections, objections[-1] if deeper else 0),
        )

    def _step(self, count: int = 1) -> None:
        self._steps += count
        if self._steps > STEPS_MAX:
            raise TooCostly("it is too large and too entangled to be measured")

    def _read(self, schema: Mapping[str, Any]) -> tuple[_SchemaPart, list[Schema]]:
        same: list[Schema] = []
        for name in _SAME_LISTS:
            same += _list(schema.get(name))
        same += [schema[name] for name in _SAME if name in schema]
        for name in _SAME_MAPS:
            same += _map(schema.get(name)).values()
        if isinstance(ref := schema.get("$ref"), str):
            same.append(self._resolved(ref))
        members: dict[str | None, list[Schema]] = {
            name: [member] for name, member in _map(schema.get("properties")).items()
        }
        members[None] = [*_map(schema.get("patternProperties")).values(), *_list(schema.get("prefixItems"))]
        for name in _ANY:
            member = schema.get(name)
            if member is not False or name not in _ONE_FAULT_FOR_ALL:
                members[None] += member if isinstance(member, list) else [member]
        enum = len(_list(schema.get("enum"))) // ENUM_VALUES_A_CHECK
        fraction = isinstance(schema.get("multipleOf"), float)
        part = _SchemaPart(
            weight=1 + enum + fraction * FRACTION_CHECKS + sum(map(pattern_weight, _patterns(schema))),
            objections=(
                max(1, len(schema.keys() - _SILENT))
                + fraction * FRACTION_OBJECTIONS
                + _names_required(schema)
            ),
            same=[id(each) for each in same if _objects(each)],
            members={name: [id(each) for each in those if _objects(each)] for name, those in members.items()},
            unevaluated=any(name in schema for name in _UNEVALUATED),
        )
        return part, [*same, *(each for those in members.values() for each in those)]

    def _resolved(self, ref: str) -> Schema:
        pointer = ref[1:]
        if pointer and not pointer.startswith("/"):
            return self._anchors.get(pointer)
        found = self._root
        for name in pointer.split("/")[1:]:
            plain = name.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and plain.isascii() and plain.isdecimal() and int(plain) < len(found):
                found = found[int(plain)]
            elif isinstance(found, Mapping) and plain in found:
                found = found[plain]
            else:
                raise Unmeasurable(f"the $ref {ref[:100]} leads nowhere")
        return found

    def _in_order(self) -> list[int]:
        """Each part before those that it leads to at the same value."""
        done: list[int] = []
        state: dict[int, bool] = {}
        for start in self._parts:
            stack = [(start, False)]
            while stack:
                at, left = stack.pop()
                if left:
                    state[at] = True
                    done.append(at)
                    self._count_ways(at)
                elif at not in state:
                    state[at] = False
                    stack.append((at, True))
                    for to in self._parts[at].same:
                        if state.get(to) is False:
                            raise Unmeasurable("a part refers to itself without going into a member")
                        if to not in state:
                            stack.append((to, False))
        return done[::-1]

    def _count_ways(self, at: int) -> None:
        """Parts below it are counted already. What is unevaluated is found by following every way anew."""
        part = self._parts[at]
        ways = 1 + sum(self._parts[to].ways or 1 for to in part.same)
        if part.unevaluated:
            ways *= 2
            part.weight += UNEVALUATED_CHECKS * ways
        if ways > CHECKS_MAX:
            raise TooCostly(
                f"one value would be checked more than {CHECKS_MAX} times: references branch too often"
            )
        part.ways = ways

    def _spread(self, arrived: Counts) -> tuple[Counts, int, int]:
        """To all parts held against the same value, with how often each; what they cost together, and to how
        much they may object."""
        reached = set(arrived)
        pending = list(arrived)
        while pending:
            for to in self._parts[pending.pop()].same:
                if to not in reached:
                    reached.add(to)
                    pending.append(to)
        counts = dict.fromkeys(reached, 0) | arrived
        checks = objections = 0
        self._step(len(reached))
        for at in sorted(reached, key=self._rank.__getitem__):
            part, count = self._parts[at], counts[at]
            self._step(len(part.same))
            checks += count * part.weight
            objections += count * part.objections
            for to in part.same:
                counts[to] += count
        return counts, checks, objections

    def _descend(self, counts: Counts) -> tuple[Counts, int, int]:
        """One level deeper: for each name a member may have, and for one that no part names."""
        by_name: dict[str | None, Counts] = {None: {}}
        for at, count in counts.items():
            for name, those in self._parts[at].members.items():
                arrived = by_name.setdefault(name, {})
                for to in those:
                    self._step()
                    arrived[to] = arrived.get(to, 0) + count
        anyway = by_name[None]
        most: Counts = {}
        checks_max = objections_max = 0
        for name, arrived in by_name.items():
            if name is not None:
                self._step(len(anyway))
                for to, count in anyway.items():
                    arrived[to] = arrived.get(to, 0) + count
            spread, checks, objections = self._spread(arrived)
            checks_max = max(checks_max, checks)
            objections_max = max(objections_max, objections)
            for at, count in spread.items():
                if count > most.get(at, 0):
                    most[at] = count
        return most, checks_max, objections_max


def _anchors(root: Schema) -> dict[str, Schema]:
    found: dict[str, Schema] = {}
    pending = [root]
    while pending:
        value = pending.pop()
        if isinstance(value, Mapping):
            for name in ("$anchor", "$dynamicAnchor", "$id", "id"):
                if isinstance(own := value.get(name), str) and own:
                    own = own.removeprefix("#")
                    if found.setdefault(own, value) is not value:
                        raise Unmeasurable(f"two parts are called #{own[:100]}")
            pending += [member for name, member in value.items() if name not in _DATA]
        elif isinstance(value, list):
            pending += value
    return found


def _objects(schema: Schema) -> bool:
    """Whether it may object to anything: `true` and what is no schema do not."""
    return schema is False or isinstance(schema, Mapping)


def _names_required(schema: Mapping[str, Any]) -> int:
    """A report names each member that is missing on its own."""
    count = len(_list(schema.get("required")))
    for name in ("dependentRequired", "dependencies"):
        count += sum(len(_list(names)) for names in _map(schema.get(name)).values())
    return count


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
