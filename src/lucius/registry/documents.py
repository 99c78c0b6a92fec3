"""Protocol documents: from text to a `ProtocolSpec`.

In: YAML or JSON, and the policy of a step that says nothing about itself. Out: the protocol, or every problem
in plain words, each led by the pointer of the member at fault. Unknown members are problems: a misspelt
`max_atempts` must not pass in silence.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import Any, Final

import msgspec
import yaml

from lucius.contracts.json_schema import CheckedSchema, SchemaFault, check_schema
from lucius.contracts.payload_limits import payload_problems
from lucius.contracts.pointers import below
from lucius.contracts.schemas import SERVICE_PATTERN
from lucius.core.durations import LONGEST_SPAN, SPANS, parse_duration_ms
from lucius.core.model import Json, ProtocolSpec, StepPolicy, StepSpec
from lucius.registry.payloads import default_faults

DOCUMENT_BYTES_MAX: Final = 256 * 1024
NODES_MAX: Final = 50_000
NUMBER_CHARS_MAX: Final = 400
STEPS_MAX: Final = 32
REQUEST_TYPES_MAX: Final = 32
REQUEST_TYPE_LENGTH_MAX: Final = 128
PAYLOAD_KEY_LENGTH_MAX: Final = 128
ATTEMPTS_MAX: Final = 100
BACKOFFS_MAX: Final = 32
FALLBACKS_MAX: Final = 4
_ON_EXHAUSTED: Final = {"fail": False, "park": True}

_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_STEP_TYPE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")  # attempts have folders of this name
_SERVICE: Final = re.compile(SERVICE_PATTERN)
_MERGE_TAG: Final = "tag:yaml.org,2002:merge"
_NUMBER_TAGS: Final = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_PROTOCOL_MEMBERS: Final = frozenset({"protocol_id", "request_types", "steps"})
POLICY_MEMBERS: Final = frozenset(
    {"max_attempts", "ack_timeout", "lease", "max_duration", "backoff", "on_exhausted"}
)
_STEP_MEMBERS: Final = POLICY_MEMBERS | {
    "step_type",
    "service",
    "payload_key",
    "payload_schema",
    "defaults",
    "fallback",
    "stop_on_pause",
}
_BACKOFF_MEMBERS: Final = frozenset({"publish", "ack", "result"})

Problem = Callable[[str, str], None]


def load_document(raw: bytes, *, is_json: bool) -> tuple[Json, str | None]:
    """The document and None, or None and why it cannot be read."""
    if len(raw) > DOCUMENT_BYTES_MAX:
        return None, f"the document is larger than {DOCUMENT_BYTES_MAX} bytes"
    try:
        doc = _json(raw) if is_json else _yaml(raw.decode())
    except RecursionError:
        return None, "the document is nested too deeply"
    except (msgspec.MsgspecError, yaml.YAMLError, ValueError) as error:
        text = " ".join(str(error).split())
        return None, f"the document cannot be read as {'JSON' if is_json else 'YAML'}: {text}"
    if doc is None:
        return None, "the document is empty"
    return doc, _not_json(doc)


def _json(raw: bytes) -> Json:
    """The one library takes what is JSON and nothing else, the other sees a name that is there twice."""
    doc = msgspec.json.decode(raw)
    json.loads(raw, object_pairs_hook=_once)
    return doc


def _yaml(text: str) -> Json:
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        _check_nodes(root)
        return loader.construct_document(root)
    finally:
        loader.dispose()


def _check_nodes(root: yaml.Node) -> None:
    """Looks at each node once, however many aliases lead to it."""
    pending, seen, order = [root], set[int](), list[yaml.MappingNode]()
    while pending:
        node = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            _check_once(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
            pending += [member for _, member in node.value]
            order.append(node)
        elif isinstance(node, yaml.SequenceNode):
            pending += node.value
        elif node.tag in _NUMBER_TAGS and len(node.value) > NUMBER_CHARS_MAX:
            raise ValueError(f"a number is longer than {NUMBER_CHARS_MAX} characters")
    _check_merged(order)


def _check_merged(mappings: list[yaml.MappingNode]) -> None:
    """Members are counted before merge keys (`<<`) copy them: some lines of merges of merges take hours."""
    counts: dict[int, int] = {}
    for start in mappings:
        pending: list[tuple[yaml.MappingNode, bool]] = [(start, False)]
        while pending:
            node, counted = pending.pop()
            merged = [each for each in _merged(node) if isinstance(each, yaml.MappingNode)]
            if counted:
                counts[id(node)] = len(node.value) + sum(counts[id(each)] for each in merged)
                if counts[id(node)] > NODES_MAX:
                    raise ValueError(f"merge keys (<<) unfold to more than {NODES_MAX} members")
            elif id(node) not in counts:
                counts[id(node)] = 0
                pending.append((node, True))
                pending += [(each, False) for each in merged if id(each) not in counts]


def _merged(node: yaml.MappingNode) -> list[yaml.Node]:
    found: list[yaml.Node] = []
    for key, value in node.value:
        if key.tag == _MERGE_TAG:
            found += value.value if isinstance(value, yaml.SequenceNode) else [value]
    return found


def _once(members: list[tuple[str, Json]]) -> dict[str, Json]:
    _check_once(name for name, _ in members)
    return dict(members)


def _check_once(names: Iterable[str]) -> None:
    """Of two members of one name the last would win without notice."""
    for name, count in Counter(names).items():
        if count > 1:
            raise ValueError(f"{name!r} is there {count} times in one object")


def parse_protocol(doc: Json, *, defaults: StepPolicy) -> ProtocolSpec | tuple[str, ...]:
    """The protocol, or its problems."""
    if not isinstance(doc, dict):
        return ("the document must be an object with protocol_id, request_types and steps",)
    found: list[str] = []

    def problem(pointer: str, message: str) -> None:
        found.append(f"{pointer}: {message}" if pointer else message)

    _refuse_unknown(doc, _PROTOCOL_MEMBERS, "", problem)
    protocol_id = _matching(doc, "protocol_id", _ID, "", problem)
    request_types = _request_types(doc.get("request_types"), problem)
    steps = _steps(doc.get("steps"), defaults, problem)
    if found:
        return tuple(found)
    return ProtocolSpec(protocol_id=protocol_id, request_types=request_types, steps=steps)


def parse_policy(doc: Mapping[str, Json], *, defaults: StepPolicy) -> StepPolicy | tuple[str, ...]:
    """The policy of steps that say nothing about themselves, or the problems of the document that sets it."""
    found: list[str] = []

    def problem(pointer: str, message: str) -> None:
        found.append(f"{pointer}: {message}")

    _refuse_unknown(doc, POLICY_MEMBERS, "", problem)
    policy = _policy(doc, "", defaults, problem)
    return tuple(found) or policy


def _not_json(doc: Json) -> str | None:
    """YAML can hold what JSON cannot, and a few lines of aliases can unfold to more than memory holds."""
    pending: list[tuple[str, Any, int]] = [("", doc, 1)]
    nodes = 0
    while pending:
        pointer, value, depth = pending.pop()
        nodes += 1
        if nodes > NODES_MAX or depth > 64:
            return f"the document has more than {NODES_MAX} values, or more than 64 levels"
        if isinstance(value, dict):
            for name, member in value.items():
                if not isinstance(name, str):
                    return f"{pointer or '/'}: the name {name!r} is not text; put it in quotes"
                pending.append((below(pointer, name), member, depth + 1))
        elif isinstance(value, list):
            pending.extend((below(pointer, index), item, depth + 1) for index, item in enumerate(value))
        elif isinstance(value, float) and not isfinite(value):
            return f"{pointer}: NaN and infinities are not numbers here"
        elif value is not None and not isinstance(value, str | int | float):
            return f"{pointer}: a {type(value).__name__} is not a JSON value; put it in quotes"
    return None


def _refuse_unknown(value: Mapping[str, Json], known: frozenset[str], pointer: str, problem: Problem) -> None:
    for name in sorted(value.keys() - known):
        problem(below(pointer, name), f"is not known here; known are {', '.join(sorted(known))}")


def _matching(
    doc: Mapping[str, Json], name: str, form: re.Pattern[str], pointer: str, problem: Problem
) -> str:
    value = doc.get(name)
    if isinstance(value, str) and form.fullmatch(value):
        return value
    problem(
        below(pointer, name), "is required" if value is None else f"must be text of the form {form.pattern}"
    )
    return ""


def _request_types(value: Json, problem: Problem) -> tuple[str, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= REQUEST_TYPES_MAX:
        problem("/request_types", f"must be a list of 1 to {REQUEST_TYPES_MAX} names")
        return ()
    names: list[str] = []
    for index, item in enumerate(value):
        name = item.strip() if isinstance(item, str) else ""
        if not name or len(name) > REQUEST_TYPE_LENGTH_MAX:
            problem(f"/request_types/{index}", f"must be text of 1 to {REQUEST_TYPE_LENGTH_MAX} characters")
        elif name in names:
            problem(f"/request_types/{index}", f"{name} is listed twice")
        else:
            names.append(name)
    return tuple(names)


def _steps(value: Json, defaults: StepPolicy, problem: Problem) -> tuple[StepSpec, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= STEPS_MAX:
        problem("/steps", f"must be a list of 1 to {STEPS_MAX} steps")
        return ()
    steps: list[StepSpec] = []
    for index, item in enumerate(value):
        pointer = f"/steps/{index}"
        if isinstance(item, dict):
            steps.append(_step(item, pointer, defaults, problem, alone=len(value) == 1))
        else:
            problem(pointer, "must be an object")
    return tuple(steps)


def _step(
    doc: dict[str, Json], pointer: str, defaults: StepPolicy, problem: Problem, *, alone: bool
) -> StepSpec:
    _refuse_unknown(doc, _STEP_MEMBERS, pointer, problem)
    schema, checked = _payload_schema(doc, pointer, problem)
    laid_in = _object(doc, "defaults", pointer, problem)
    # They become part of payloads, which every client may read that may see the job.
    for fault in payload_problems(laid_in, f"{pointer}/defaults"):
        problem(fault.pointer, fault.message)
    if checked is not None:
        # Each command that leaves such a member out would be refused for what it never said.
        for fault in default_faults(checked, laid_in):
            at = f"{pointer}/defaults{fault.pointer}"
            problem(at, f"breaks the step's own payload_schema: {fault.message}")
    step_type = _matching(doc, "step_type", _STEP_TYPE, pointer, problem)
    service = _matching(doc, "service", _SERVICE, pointer, problem)
    return StepSpec(
        step_type=step_type,
        service=service,
        fallback=_fallback(doc, service, pointer, problem),
        payload_key=_payload_key(doc, pointer, problem, unsaid=None if alone else step_type.lower()),
        payload_schema=schema,
        defaults=laid_in,
        policy=_policy(doc, pointer, defaults, problem),
        stop_on_pause=_yes_or_no(doc, "stop_on_pause", pointer, problem),
    )


def _fallback(doc: Mapping[str, Json], service: str, pointer: str, problem: Problem) -> tuple[str, ...]:
    value = doc.get("fallback")
    if value is None:
        return ()
    at = f"{pointer}/fallback"
    if not isinstance(value, list) or not 1 <= len(value) <= FALLBACKS_MAX:
        problem(at, f"must be a list of 1 to {FALLBACKS_MAX} services")
        return ()
    names: list[str] = []
    for index, name in enumerate(value):
        if not isinstance(name, str) or not _SERVICE.fullmatch(name):
            problem(below(at, index), f"must be text of the form {_SERVICE.pattern}")
        elif name == service or name in names:
            problem(below(at, index), f"{name} is asked before already")
        else:
            names.append(name)
    return tuple(names)


def _yes_or_no(doc: Mapping[str, Json], name: str, pointer: str, problem: Problem) -> bool:
    value = doc.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    problem(below(pointer, name), "must be true or false")
    return False


def _payload_key(
    doc: Mapping[str, Json], pointer: str, problem: Problem, *, unsaid: str | None
) -> str | None:
    value = doc.get("payload_key")
    if value is None:
        return unsaid
    if not isinstance(value, str) or not 1 <= len(value) <= PAYLOAD_KEY_LENGTH_MAX:
        problem(f"{pointer}/payload_key", f"must be text of 1 to {PAYLOAD_KEY_LENGTH_MAX} characters")
        return None
    return value


def _object(doc: Mapping[str, Json], name: str, pointer: str, problem: Problem) -> dict[str, Json]:
    value = doc.get(name)
    if value is None:
        return {}
    if isinstance(value, dict):
        return value
    problem(below(pointer, name), "must be an object")
    return {}


def _payload_schema(
    doc: Mapping[str, Json], pointer: str, problem: Problem
) -> tuple[dict[str, Json], CheckedSchema | None]:
    """The schema, and None if it cannot be used or would cost too much to hold against payloads."""
    schema = _object(doc, "payload_schema", pointer, problem)
    checked = check_schema(schema)
    if isinstance(checked, SchemaFault):
        problem(f"{pointer}/payload_schema", checked.message)
        return schema, None
    return schema, checked


def _policy(doc: Mapping[str, Json], pointer: str, defaults: StepPolicy, problem: Problem) -> StepPolicy:
    attempts = doc.get("max_attempts", defaults.max_attempts)
    if isinstance(attempts, bool) or not isinstance(attempts, int) or not 1 <= attempts <= ATTEMPTS_MAX:
        problem(f"{pointer}/max_attempts", f"must be an integer from 1 to {ATTEMPTS_MAX}")
    lease_ms = _span(doc, "lease", defaults.lease_ms, pointer, problem)
    max_duration_ms = _span(doc, "max_duration", max(defaults.max_duration_ms, lease_ms), pointer, problem)
    if max_duration_ms < lease_ms:
        problem(f"{pointer}/max_duration", "must not be shorter than the lease")
    on_exhausted = doc.get("on_exhausted", "park" if defaults.parks_exhausted else "fail")
    if not isinstance(on_exhausted, str) or on_exhausted not in _ON_EXHAUSTED:
        problem(f"{pointer}/on_exhausted", "must be fail or park")
        on_exhausted = "fail"
    backoff = _object(doc, "backoff", pointer, problem)
    _refuse_unknown(backoff, _BACKOFF_MEMBERS, f"{pointer}/backoff", problem)
    return msgspec.structs.replace(
        defaults,
        max_attempts=attempts,
        parks_exhausted=_ON_EXHAUSTED[on_exhausted],
        ack_timeout_ms=_span(doc, "ack_timeout", defaults.ack_timeout_ms, pointer, problem),
        lease_ms=lease_ms,
        max_duration_ms=max_duration_ms,
        backoff_publish_ms=_backoff(backoff, "publish", defaults.backoff_publish_ms, pointer, problem),
        backoff_ack_ms=_backoff(backoff, "ack", defaults.backoff_ack_ms, pointer, problem),
        backoff_result_ms=_backoff(backoff, "result", defaults.backoff_result_ms, pointer, problem),
    )


def _span(doc: Mapping[str, Json], name: str, default_ms: int, pointer: str, problem: Problem) -> int:
    value = doc.get(name)
    if value is None:
        return default_ms
    span_ms = parse_duration_ms(value)
    if span_ms is None or span_ms == 0:
        problem(below(pointer, name), f"must be a span {SPANS}, such as 30, 500ms, 30s, 15m or 2h")
        return default_ms
    return span_ms


def _backoff(
    doc: Mapping[str, Json], name: str, default_ms: tuple[int, ...], pointer: str, problem: Problem
) -> tuple[int, ...]:
    value = doc.get(name)
    if value is None:
        return default_ms
    at = f"{pointer}/backoff/{name}"
    if not isinstance(value, list) or not 1 <= len(value) <= BACKOFFS_MAX:
        problem(at, f"must be a list of 1 to {BACKOFFS_MAX} spans")
        return default_ms
    spans = [parse_duration_ms(item) for item in value]
    for index, span_ms in enumerate(spans):
        if span_ms is None:
            wanted = f"must be a span of at most {LONGEST_SPAN}, such as 0, 500ms, 30s, 15m or 2h"
            problem(below(at, index), wanted)
    return tuple(span_ms or 0 for span_ms in spans)
