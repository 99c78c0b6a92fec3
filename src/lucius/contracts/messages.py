"""Messages between the orchestrator and platform services.

In: a reply (ACK, PROGRESS, RESULT) as a JSON document. Out: the job it speaks of and a reply the machine
understands, or a refusal that names every member at fault. The other way: a step's current attempt as a
DIRECTIVE. Unknown members of a reply are ignored. What only people read is cut, or left out where it cannot
be read: an attempt that ended has ended, however badly that was put.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from math import inf
from typing import Final

import msgspec

from lucius.contracts.credentials import blank_credentials, holds_credentials, names_secret, secret_member
from lucius.contracts.documents import parse_message
from lucius.contracts.envelope import text_problem, uri_problem
from lucius.contracts.pointers import below
from lucius.contracts.schemas import (
    LANE,
    MAYBE_TEXT,
    MAYBE_TIME,
    TEXT,
    Schema,
    name_of,
    named,
    one_of,
    opened,
    or_null,
    ref_of,
)
from lucius.contracts.times import rfc3339_or_none
from lucius.core.inputs import Ack, Content, Progress, Reply, Result, ResultStatus
from lucius.core.model import JobRecord, Json, Step
from lucius.core.refusal import Code, FieldError, Refused
from lucius.core.routing import reply_topic
from lucius.core.usage import NAME_PATTERN, NUMBER_MAX, REPORT_NAMES_MAX, is_usage_name, number_problem

REPLY_TYPES: Final = ("ACK", "PROGRESS", "RESULT")
REQUIRED: Final = ("type", "jobId", "stepId", "tenant_id", "attempt_no", "lease_id", "timestamp")
# What a reply cannot do without, where it has it; all else is for people, or unknown.
NEEDED: Final = frozenset({*REQUIRED, "status", "failure_class", "output_ref", "artifacts"})
ID_LENGTH_MAX: Final = 128
TIMESTAMP_LENGTH_MAX: Final = 64
NOTE_LENGTH_MAX: Final = 1000
ERROR_CODE_LENGTH_MAX: Final = 128
ERROR_MESSAGE_LENGTH_MAX: Final = 2000
REF_BYTES_MAX: Final = 4096
ARTIFACTS_MAX: Final = 32
NO_CREDENTIALS: Final = "must not carry credentials: it is stored, and shown to all who may read the job"
CONTENT_BYTES_MAX: Final = 8192
RETRY_AFTER_SECONDS_MAX: Final = 86_400
OTHER_TENANT: Final = "tenant_id is not that of the job"

CALLBACKS: Final = ("ack", "result", "progress")

_TEXTS: Final = (
    ("jobId", ID_LENGTH_MAX),
    ("stepId", ID_LENGTH_MAX),
    ("tenant_id", ID_LENGTH_MAX),
    ("lease_id", ID_LENGTH_MAX),
    ("timestamp", TIMESTAMP_LENGTH_MAX),
)
_LEGACY_STATUS: Final = {
    "RETRYABLE": ResultStatus.FAILED_RETRY,
    "NON_RETRYABLE": ResultStatus.FAILED_FINAL,
}
_STATUS: Final = {status.value: status for status in ResultStatus}
_encode = msgspec.json.Encoder().encode


# What is published of each message. What is only cut or left out is in the functions below; tests hold both
# to the same verdicts.
def _reply_schema(kind: str, description: str, properties: Schema, required: list[str]) -> Schema:
    head: Schema = {
        "type": {"type": "string", "const": kind},
        "jobId": name_of(ID_LENGTH_MAX),
        "stepId": name_of(ID_LENGTH_MAX),
        "tenant_id": name_of(ID_LENGTH_MAX),
        "attempt_no": {"type": "integer", "minimum": 1},
        "lease_id": name_of(ID_LENGTH_MAX),
        "timestamp": {
            **name_of(TIMESTAMP_LENGTH_MAX),
            "description": "When the service sent it, by its own clock; for people only.",
        },
    }
    return opened(description, {**head, **properties}, [*REQUIRED, *required])


ACK_SCHEMA: Final = _reply_schema("ACK", "A service has taken the directive up.", {}, [])
PROGRESS_SCHEMA: Final = _reply_schema(
    "PROGRESS",
    "The attempt goes on: renews its lease.",
    {
        "progress": {"type": ["number", "null"], "minimum": 0, "maximum": 100, "description": "In per cent."},
        "note": {**MAYBE_TEXT, "description": f"Cut after {NOTE_LENGTH_MAX} characters."},
    },
    [],
)
_OLDER_STATUS: Final[Schema] = {
    "if": {"properties": {"status": {"const": "FAILED"}}, "required": ["status"]},
    "then": {
        "properties": {"failure_class": {"enum": ["RETRYABLE", "NON_RETRYABLE"]}},
        "required": ["failure_class"],
    },
}
RESULT_SCHEMA: Final[Schema] = {
    **_reply_schema(
        "RESULT",
        "The attempt has ended.",
        {
            "status": one_of(
                "How the attempt ended. `FAILED` is the older spelling and needs a `failure_class`.",
                ["SUCCEEDED", "FAILED_RETRY", "FAILED_FINAL", "FAILED"],
            ),
            "failure_class": {
                "description": "Read only with the older status FAILED: RETRYABLE or NON_RETRYABLE."
            },
            "output_ref": {
                **or_null(named("ResultRef")),
                "description": f"At most {REF_BYTES_MAX} bytes as JSON.",
            },
            "artifacts": {
                "type": ["array", "null"],
                "items": named("ResultRef"),
                "maxItems": ARTIFACTS_MAX,
                "description": (
                    "What the attempt made beside `output_ref`, kept as the member `artifacts` of "
                    f"`result_ref`. Together with `output_ref` at most {REF_BYTES_MAX} bytes as JSON."
                ),
            },
            "error": or_null(named("ServiceError")),
            "retry_after": {
                "type": ["number", "null"],
                "minimum": 0,
                "description": (
                    "Seconds after which the next attempt begins, in the place of the backoff; at most "
                    f"{RETRY_AFTER_SECONDS_MAX}."
                ),
            },
            "slow_down": {
                "type": ["boolean", "null"],
                "description": "The service wants to be given less for a while; it recovers by itself.",
            },
            "usage": {
                "anyOf": [
                    {
                        "type": "object",
                        "maxProperties": REPORT_NAMES_MAX,
                        "propertyNames": {"pattern": NAME_PATTERN},
                        "additionalProperties": {"type": "number", "minimum": 0, "maximum": NUMBER_MAX},
                    },
                    {"type": "null"},
                ],
                "description": "What the attempt used, such as pages, tokens or money, as named numbers. It "
                "counts once an attempt, also where the attempt failed.",
            },
        },
        ["status"],
    ),
    **_OLDER_STATUS,
}
SERVICE_ERROR_SCHEMA: Final = opened(
    "What went wrong in a service.",
    {
        "code": {**MAYBE_TEXT, "description": f"Cut after {ERROR_CODE_LENGTH_MAX} characters."},
        "message": {**MAYBE_TEXT, "description": f"Cut after {ERROR_MESSAGE_LENGTH_MAX} characters."},
    },
    [],
)
RESULT_REF_SCHEMA: Final = ref_of(REF_BYTES_MAX)

_DIRECTIVE_TEXTS: Final = (
    "jobId",
    "tenant_id",
    "stepId",
    "protocol_id",
    "step_type",
    "service",
    "lease_id",
    "routing_key_used",
    "correlation_id",
    "traceparent",
    "reply_topic",
    "callback_token",
)
DIRECTIVE_SCHEMA: Final = opened(
    "An attempt, leased to a service. `(jobId, stepId, attempt_no, lease_id)` is its idempotency key.",
    {
        "type": {"type": "string", "const": "DIRECTIVE"},
        **dict.fromkeys(_DIRECTIVE_TEXTS, TEXT),
        "attempt_no": {"type": "integer", "minimum": 1},
        "input_ref": named("Ref"),
        "workspace_ref": named("Ref"),
        "output_ref": named("Ref"),
        "payload": {"description": "The step's own part of the payload, laid over the protocol's defaults."},
        "mode": named("Mode"),
        "lane": LANE,
        "upstream": {
            "type": "array",
            "description": "The steps before this one, with what they made.",
            "items": named("UpstreamStep"),
        },
        "callback_urls": named("CallbackUrls"),
        "lease_seconds": {"type": "number", "exclusiveMinimum": 0},
        "lease_expires_at": {**MAYBE_TIME, "description": "When the ACK is due; null while no clock runs."},
    },
)
UPSTREAM_STEP_SCHEMA: Final = opened(
    "An earlier step of the same job.",
    {"stepId": TEXT, "step_type": TEXT, "result_ref": or_null(named("ResultRef"))},
)
CALLBACK_URLS_SCHEMA: Final = opened("Where replies go over HTTP.", dict.fromkeys(CALLBACKS, TEXT))


class _Head(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What every reply carries: which attempt it answers."""

    step_id: str
    attempt_no: int
    lease_id: str
    content: Content
    tenant_id: str


def read_reply(raw: bytes, *, expected: str | None) -> tuple[str, Reply] | Refused:
    """`parse_reply` of a message as it came."""
    doc = parse_message(raw, NEEDED)
    return doc if isinstance(doc, Refused) else parse_reply(doc, expected=expected)


def parse_reply(doc: Json, *, expected: str | None) -> tuple[str, Reply] | Refused:
    """The job id and the reply. `expected` is the one type that the endpoint takes; None takes all three."""
    if not isinstance(doc, dict):
        return _refused([FieldError("", "the message must be a JSON object")])
    found: list[FieldError] = []
    kind = _kind(doc, expected, found)
    for name, length_max in _TEXTS:
        value = doc.get(name)
        # Nearly all are sound, and that is seen without a call.
        if type(value) is str and len(value) <= length_max and value.isprintable() and value.strip():
            continue
        _check_text(doc, name, length_max, found)
    attempt_no = _attempt_no(doc, found)
    read = _READERS.get(kind)
    if read is None:
        return _refused(found)
    head = _head(doc, attempt_no, sound=not found)
    reply = read(doc, head, found)
    return _refused(found) if found else (doc["jobId"], reply)


def directive(record: JobRecord, step: Step, *, callback_base: str, callback_token: str) -> dict[str, Json]:
    """The DIRECTIVE of the step's current attempt. Everything in it but the token is pinned in the record."""
    job, routing = record.job, step.routing
    return {
        "type": "DIRECTIVE",
        "jobId": job.job_id,
        "tenant_id": job.tenant_id,
        "stepId": step.step_id,
        "protocol_id": job.protocol_id,
        "step_type": step.step_type,
        "service": step.service,
        "attempt_no": step.attempt_no,
        "lease_id": step.lease_id,
        "input_ref": step.input_ref,
        "workspace_ref": step.workspace_ref,
        "output_ref": step.output_ref,
        "payload": step.payload,
        "mode": routing.resolved_mode._value_,
        "lane": routing.lane,
        "routing_key_used": routing.routing_key_used,
        "correlation_id": job.correlation_id,
        "traceparent": job.traceparent,
        "upstream": [
            {"stepId": earlier.step_id, "step_type": earlier.step_type, "result_ref": earlier.result_ref}
            for earlier in record.steps
            if earlier.step_index < step.step_index
        ],
        "reply_topic": reply_topic(routing.lane),
        "callback_urls": dict(_callback_urls(callback_base)),
        "callback_token": callback_token,
        "lease_expires_at": rfc3339_or_none(step.lease_expires_at_ms),
        "lease_seconds": step.policy.lease_ms / 1000,
    }


@lru_cache(maxsize=64)
def _callback_urls(base: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, f"{base}/v1/callbacks/{name}") for name in CALLBACKS)


def _refused(found: list[FieldError]) -> Refused:
    first = f"{found[0].pointer or 'the body'}: {found[0].message}"
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return Refused(Code.INVALID_ENVELOPE, f"the message is not valid: {first}{more}", tuple(found))


def _kind(doc: Mapping[str, Json], expected: str | None, found: list[FieldError]) -> str:
    kind = doc.get("type")
    if isinstance(kind, str) and kind in REPLY_TYPES and expected in (None, kind):
        return kind
    wanted = expected or "ACK, PROGRESS or RESULT"
    found.append(FieldError("/type", "is required" if kind is None else f"must be {wanted}"))
    return kind if isinstance(kind, str) else ""


def _check_text(doc: Mapping[str, Json], name: str, length_max: int, found: list[FieldError]) -> None:
    value = doc.get(name)
    problem = "is required" if value is None else text_problem(value, length_max)
    if problem is None and not str(value).strip():
        problem = "must not be blank"
    if problem is not None:
        found.append(FieldError(below("", name), problem))


def _attempt_no(doc: Mapping[str, Json], found: list[FieldError]) -> int:
    value = doc.get("attempt_no")
    # JSON knows no integers: a sender may spell 1 as 1.0.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    problem = "is required" if value is None else "must be an integer of at least 1"
    found.append(FieldError("/attempt_no", problem))
    return 0


def _head(doc: dict[str, Json], attempt_no: int, *, sound: bool) -> _Head:
    """Of an unsound message the rest is still read, for its problems alone."""
    return _Head(
        step_id=doc["stepId"] if sound else "",
        attempt_no=attempt_no,
        lease_id=doc["lease_id"] if sound else "",
        content=partial(_content, doc),
        tenant_id=doc["tenant_id"] if sound else "",
    )


def _read_ack(doc: Mapping[str, Json], head: _Head, found: list[FieldError]) -> Reply:
    return Ack(
        step_id=head.step_id,
        attempt_no=head.attempt_no,
        lease_id=head.lease_id,
        content=head.content,
        tenant_id=head.tenant_id,
    )


def _read_progress(doc: Mapping[str, Json], head: _Head, found: list[FieldError]) -> Reply:
    value = doc.get("progress")
    progress = None
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 100:
        progress = int(value)
    return Progress(
        step_id=head.step_id,
        attempt_no=head.attempt_no,
        lease_id=head.lease_id,
        content=head.content,
        tenant_id=head.tenant_id,
        progress=progress,
        note=_cut(doc.get("note"), NOTE_LENGTH_MAX),
    )


def _read_result(doc: Mapping[str, Json], head: _Head, found: list[FieldError]) -> Reply:
    content, output_ref = head.content, _output_ref(doc, found)
    if doc.get("artifacts") is not None:
        output_ref = _with_artifacts(output_ref, doc["artifacts"], found)
        rest = {name: value for name, value in doc.items() if name != "artifacts"}
        content = partial(_content, {**rest, "output_ref": output_ref})
    error, reason, retry_after, usage = map(doc.get, ("error", "reason", "retry_after", "usage"))
    error_code, error_message = (None, None) if error is None else _error(error)
    if error_message is None and reason is not None:  # a legacy RESULT has it here
        error_message = _cut(reason, ERROR_MESSAGE_LENGTH_MAX)
    return Result(
        step_id=head.step_id,
        attempt_no=head.attempt_no,
        lease_id=head.lease_id,
        content=content,
        tenant_id=head.tenant_id,
        status=_status(doc, found),
        output_ref=output_ref,
        error_code=error_code,
        error_message=error_message,
        retry_after_ms=None if retry_after is None else _retry_after_ms(retry_after),
        slow_down=doc.get("slow_down") is True,
        usage={} if usage is None else _usage(usage, found),
    )


_READERS: Final[Mapping[str, Callable[[Mapping[str, Json], _Head, list[FieldError]], Reply]]] = {
    "ACK": _read_ack,
    "PROGRESS": _read_progress,
    "RESULT": _read_result,
}


def _cut(value: Json, length_max: int) -> str | None:
    """A text for people: no reason to refuse a message, whatever it is."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    return blank_credentials(value)[:length_max] if isinstance(value, str) else None


def _status(doc: Mapping[str, Json], found: list[FieldError]) -> ResultStatus:
    value = doc.get("status")
    status = _STATUS.get(value) if isinstance(value, str) else None
    if status is not None:
        return status
    if value == "FAILED":
        failure_class = doc.get("failure_class")
        legacy = _LEGACY_STATUS.get(failure_class) if isinstance(failure_class, str) else None
        if legacy is not None:
            return legacy
        found.append(FieldError("/failure_class", "must be RETRYABLE or NON_RETRYABLE"))
    else:
        problem = "is required" if value is None else "must be SUCCEEDED, FAILED_RETRY or FAILED_FINAL"
        found.append(FieldError("/status", problem))
    return ResultStatus.FAILED_FINAL


def _output_ref(doc: Mapping[str, Json], found: list[FieldError]) -> dict[str, Json] | None:
    value = doc.get("output_ref")
    if value is None:
        return None
    return value if _is_ref(value, "/output_ref", found) else None


def _is_ref(value: Json, pointer: str, found: list[FieldError]) -> bool:
    if not isinstance(value, dict):
        found.append(FieldError(pointer, "must be an object"))
        return False
    problem = uri_problem(value.get("uri"), REF_BYTES_MAX)
    if problem is not None:
        found.append(FieldError(f"{pointer}/uri", problem))
    elif len(_encode(value)) > REF_BYTES_MAX:
        found.append(FieldError(pointer, f"must not be larger than {REF_BYTES_MAX} bytes"))
    elif (name := secret_member(value)) is not None:
        found.append(FieldError(below(pointer, blank_credentials(name)), NO_CREDENTIALS))
    return True


def _with_artifacts(
    output_ref: dict[str, Json] | None, artifacts: Json, found: list[FieldError]
) -> dict[str, Json] | None:
    """The reference with all else that the attempt made as its member `artifacts`. The first of them stands
    for a reference that is not there."""
    if not isinstance(artifacts, list) or len(artifacts) > ARTIFACTS_MAX:
        found.append(FieldError("/artifacts", f"must be a list of at most {ARTIFACTS_MAX} references"))
        return output_ref
    if not all(_is_ref(ref, below("/artifacts", index), found) for index, ref in enumerate(artifacts)):
        return output_ref
    if not artifacts:
        return output_ref
    whole = {**(artifacts[0] if output_ref is None else output_ref), "artifacts": artifacts}
    if len(_encode(whole)) > REF_BYTES_MAX:
        message = f"must not be larger than {REF_BYTES_MAX} bytes together with output_ref"
        found.append(FieldError("/artifacts", message))
    return whole


def _retry_after_ms(value: Json) -> int | None:
    """A wish, which is no reason to refuse a message; one that cannot be read leaves the backoff as it is."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < inf:
        return None
    return round(min(value, RETRY_AFTER_SECONDS_MAX) * 1000)


def _usage(value: Json, found: list[FieldError]) -> dict[str, int | float]:
    """What is wrong with it is told: nothing that is to be paid is dropped in silence."""
    if not isinstance(value, dict):
        found.append(FieldError("/usage", "must be an object of named numbers"))
        return {}
    if len(value) > REPORT_NAMES_MAX:
        found.append(FieldError("/usage", f"must not have more than {REPORT_NAMES_MAX} members"))
        return {}
    for name, number in value.items():
        problem = number_problem(number)
        if not is_usage_name(name):
            problem = "must have a name of up to 64 letters, digits, dots, dashes and underscores"
        if problem is not None:
            found.append(FieldError(below("/usage", blank_credentials(name)), problem))
    return value


def _error(value: Json) -> tuple[str | None, str | None]:
    """Code and message; a text alone is the message."""
    if not isinstance(value, dict):
        return None, _cut(value, ERROR_MESSAGE_LENGTH_MAX)
    code, message = value.get("code"), _cut(value.get("message"), ERROR_MESSAGE_LENGTH_MAX)
    return _one_line(_cut(code, ERROR_CODE_LENGTH_MAX)), message


def _one_line(code: str | None) -> str | None:
    """A code stands in tables, in logs and in what people search for."""
    if code is None or code.isprintable():
        return code
    return "".join(sign if sign.isprintable() else "?" for sign in code.strip()) or None


def _content(doc: dict[str, Json]) -> dict[str, Json]:
    """The message as evidence: without secrets, and small enough to be kept in an event."""
    content: dict[str, Json] = without_secrets(doc)
    encoded = _encode(content)
    # Where a result lies was judged as it was read, and stays as it is: a late success may be adopted by it,
    # and a name in its path may look like more than it is.
    judged = "output_ref" if doc["type"] == "RESULT" else None
    if holds_credentials(encoded.decode()):
        content = {
            blank_credentials(name): value if name == judged else _blanked(value)
            for name, value in content.items()
        }
    if len(encoded) <= CONTENT_BYTES_MAX:
        return content
    # The head is bounded already; of the rest the largest go first, so that most members survive.
    sizes = {name: len(_encode(value)) + len(_encode(name)) + 2 for name, value in content.items()}
    # A late success is adopted by these; in a RESULT both are bounded.
    kept = {*REQUIRED, *(("status", "output_ref") if doc["type"] == "RESULT" else ())}
    droppable = sorted(content.keys() - kept, key=lambda name: (sizes[name], name))
    total = 2 + sum(sizes.values())
    while total > CONTENT_BYTES_MAX and droppable:
        name = droppable.pop()
        total -= sizes[name]
        del content[name]
    return content


def _blanked(value: Json) -> Json:
    if isinstance(value, str):
        return blank_credentials(value)
    if isinstance(value, dict):
        return {blank_credentials(name): _blanked(member) for name, member in value.items()}
    return [_blanked(item) for item in value] if isinstance(value, list) else value


_NESTED: Final = (dict, list)


@lru_cache(maxsize=256)
def _are_harmless(names: tuple[str, ...]) -> bool:
    return not any(map(names_secret, names))


def without_secrets(value: Json) -> Json:
    """A copy without the members, at any depth, whose names say that they hold credentials."""
    if isinstance(value, dict):
        # Most messages hold no such name; one check of all names together shows that.
        if _are_harmless(tuple(value)):
            kept = dict(value)
        else:
            kept = {name: member for name, member in value.items() if not names_secret(name)}
        for name, member in kept.items():
            if isinstance(member, _NESTED):
                kept[name] = without_secrets(member)
        return kept
    if isinstance(value, list):
        return [without_secrets(item) for item in value]
    return value
