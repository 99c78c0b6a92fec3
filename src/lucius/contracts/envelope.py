"""The command as it comes in: envelope v1.

In: a JSON document and the two headers that may stand for a member. Out: an `Envelope`, or a refusal that
names every field at fault. `MEMBERS` is what is published of the shape; the functions below say it in words
that a client understands, and tests hold both to the same verdicts. Shape only: whether the request type is
known, the refs are allowed and the payload fits its steps is decided further in. A null optional member, or a
blank `doc_id` or `correlation_id`, counts as absent.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from lucius.contracts.pointers import below
from lucius.contracts.schemas import MAYBE_TEXT, Schema, closed, name_of, named, or_null, text_of
from lucius.core.model import PRIORITY_USUAL, Json
from lucius.core.priority import PRIORITY_LEAST, PRIORITY_MOST
from lucius.core.refusal import Code, FieldError, Refused
from lucius.core.routing import normalise, parse_mode
from lucius.core.states import Mode

TENANT_ID_LENGTH_MAX: Final = 128
REQUEST_TYPE_LENGTH_MAX: Final = 128
DOC_ID_LENGTH_MAX: Final = 256
IDEMPOTENCY_KEY_LENGTH_MAX: Final = 255
CORRELATION_ID_LENGTH_MAX: Final = 256
URI_LENGTH_MAX: Final = 2048
SCHEMA_VERSION_LENGTH_MAX: Final = 16
ERRORS_MAX: Final = 100

REQUIRED: Final = ("tenant_id", "request_type", "input_ref", "output_ref", "payload", "schema_version")
# All of them, the required ones first.
MEMBERS: Final[Schema] = {
    "tenant_id": {
        **name_of(TENANT_ID_LENGTH_MAX),
        "not": {"pattern": "^\\s*\\.{1,2}\\s*$"},
        "description": "Compared without case and surrounding white space.",
    },
    "request_type": {
        **name_of(REQUEST_TYPE_LENGTH_MAX),
        "description": "Which protocol runs, such as `OCR_EMBEDDING`; `GET /v1/protocols` lists them.",
    },
    "input_ref": named("Ref"),
    "output_ref": named("Ref"),
    "payload": {
        "type": "object",
        "description": "For each step the member that the protocol names as the step's own.",
    },
    "schema_version": {
        "type": "string",
        "maxLength": SCHEMA_VERSION_LENGTH_MAX,
        "pattern": "^1(\\.[0-9]{1,9})?$",
    },
    "mode": {
        "type": ["string", "null"],
        "enum": ["DEFAULT", "BURST", "SAFE", None],
        "description": "`SAFE` is an alias of `DEFAULT`. Left out, tenant and global settings decide.",
    },
    "idempotency_key": {
        **or_null(name_of(IDEMPOTENCY_KEY_LENGTH_MAX)),
        "description": "The same thing as the Idempotency-Key header; if both are there they must agree.",
    },
    "doc_id": {**or_null(text_of(DOC_ID_LENGTH_MAX)), "description": "Required for BURST."},
    "callback_urls": or_null(named("CompletionUrls")),
    "correlation_id": or_null(text_of(CORRELATION_ID_LENGTH_MAX)),
    "traceparent": {
        **MAYBE_TEXT,
        "description": "W3C trace context; an invalid one is dropped and a new trace begun.",
    },
    "priority": {
        "type": ["integer", "null"],
        "minimum": PRIORITY_LEAST,
        "maximum": PRIORITY_MOST,
        "default": PRIORITY_USUAL,
        "description": "Which of the tenant's directives leave first: the higher, the sooner. A level is "
        "worth five minutes of waiting.",
    },
}
CALLBACKS: Final[Schema] = {"completed": or_null(name_of(URI_LENGTH_MAX))}
ENVELOPE_SCHEMA: Final = closed(
    "A command: what is to be done, with what, and where the result goes.", MEMBERS, [*REQUIRED]
)
COMPLETION_URLS_SCHEMA: Final = closed(
    "The address that gets a signed webhook when the job has ended.", CALLBACKS, []
)

_find_control = re.compile(r"[\x00-\x1f\x7f-\x9f]").search
_match_version = re.compile(r"1(?:\.[0-9]{1,9})?").fullmatch
# Later versions may have more behind what is known.
_match_traceparent = re.compile(
    r"((?!ff)[0-9a-f]{2})-((?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16})-([0-9a-f]{2})(-[\x20-\x7e]*)?"
).fullmatch
_SAMPLED = 0x01  # the one flag that version 00 knows


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """A command whose shape is right. `tenant_id` is trimmed; `request_type` is as it was sent."""

    tenant_id: str
    tenant_norm: str
    request_type: str
    input_ref: dict[str, Json]
    output_ref: dict[str, Json]
    payload: dict[str, Json]
    schema_version: str
    mode: Mode | None = None
    idempotency_key: str | None = None
    doc_id: str | None = None
    callback_urls: dict[str, str] | None = None
    correlation_id: str | None = None
    traceparent: str | None = None
    priority: int = PRIORITY_USUAL


def parse_envelope(
    doc: Json, *, key_header: str | None = None, traceparent_header: str | None = None
) -> Envelope | Refused:
    if not isinstance(doc, dict):
        return _refused([FieldError("", "the envelope must be a JSON object")])
    found: list[FieldError] = []
    if not doc.keys() <= MEMBERS.keys():
        unknown = sorted(doc.keys() - MEMBERS.keys())
        found.extend(FieldError(below("", name), "is not a member of the envelope") for name in unknown)
    tenant_id = _tenant(doc, found)
    request_type = _text(doc, "request_type", REQUEST_TYPE_LENGTH_MAX, found, required=True)
    input_ref = _ref(doc, "input_ref", found)
    output_ref = _ref(doc, "output_ref", found)
    payload = _object(doc, "payload", found)
    mode = _mode(doc, found)
    key = _idempotency_key(doc, key_header, found)
    doc_id = _text(doc, "doc_id", DOC_ID_LENGTH_MAX, found)
    callback_urls = _callback_urls(doc, found)
    correlation_id = _text(doc, "correlation_id", CORRELATION_ID_LENGTH_MAX, found)
    traceparent = _traceparent(doc, traceparent_header, found)
    priority = _priority(doc, found)
    version = doc.get("schema_version")
    unsupported = _version_problem(version, found)
    if found or unsupported:
        return _refused(found, unsupported=unsupported)
    return Envelope(
        tenant_id=tenant_id,
        tenant_norm=normalise(tenant_id),
        request_type=request_type or "",
        input_ref=input_ref,
        output_ref=output_ref,
        payload=payload,
        schema_version=str(version),
        mode=mode,
        idempotency_key=key,
        doc_id=doc_id,
        callback_urls=callback_urls,
        correlation_id=correlation_id,
        traceparent=traceparent,
        priority=priority,
    )


def valid_traceparent(text: str | None) -> str | None:
    """The text if it is a W3C trace context with ids that are not all zero, else None. A later version is
    passed on as version 00, which is all that is known of it."""
    found = None if text is None else _match_traceparent(text)
    if found is None or found[1] == "00":
        return text if found is not None and found[4] is None else None
    return f"00-{found[2]}-{int(found[3], 16) & _SAMPLED:02x}"


def _refused(found: list[FieldError], *, unsupported: bool = False) -> Refused:
    errors = tuple(found[:ERRORS_MAX])
    if unsupported:
        message = 'this schema_version is not supported; use "1"'
        return Refused(Code.UNSUPPORTED_SCHEMA_VERSION, message, errors)
    first = f"{found[0].pointer or 'the body'}: {found[0].message}"
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return Refused(Code.INVALID_ENVELOPE, f"the envelope is not valid: {first}{more}", errors)


def _missing(doc: Mapping[str, Json], name: str, found: list[FieldError]) -> None:
    found.append(FieldError(below("", name), "must not be null" if name in doc else "is required"))


def _text(
    doc: Mapping[str, Json],
    name: str,
    length_max: int,
    found: list[FieldError],
    *,
    required: bool = False,
    pointer: str = "",
) -> str | None:
    """A string member that is not blank, or None where it is absent or at fault."""
    value = doc.get(name)
    if value is None:
        if required:
            _missing(doc, name, found)
        return None
    problem = text_problem(value, length_max)
    if problem is None and not value.strip():
        if not required:
            return None
        problem = "must not be blank"
    if problem is not None:
        found.append(FieldError(below(pointer, name), problem))
        return None
    return str(value)


def text_problem(value: Json, length_max: int) -> str | None:
    """Why this is not a string of that length without control characters; None if it is."""
    if not isinstance(value, str):
        return "must be a string"
    if len(value) > length_max:
        return f"must not be longer than {length_max} characters"
    if not value.isprintable() and _find_control(value):
        return "must not hold control characters"
    return None


def _tenant(doc: Mapping[str, Json], found: list[FieldError]) -> str:
    value = doc.get("tenant_id")
    if value is None:
        _missing(doc, "tenant_id", found)
        return ""
    trimmed = value.strip() if isinstance(value, str) else value
    problem = text_problem(trimmed, TENANT_ID_LENGTH_MAX)
    if problem is None and not trimmed:
        problem = "must not be blank"
    if problem is None:
        problem = _folder_problem(trimmed)
    if problem is not None:
        found.append(FieldError("/tenant_id", problem))
        return ""
    return str(trimmed)


def _folder_problem(tenant: str) -> str | None:
    """Tenants name folders in the workspace, also with a slash: none may lead to another's."""
    if any(part.strip() in ("", ".", "..") for part in tenant.split("/")):
        return "must not have empty or dot segments"
    if any(part.strip().lower().startswith("job_") for part in tenant.split("/")[1:]):
        return "must not have a segment after a slash that begins like the id of a job"
    return None


def _object(doc: Mapping[str, Json], name: str, found: list[FieldError]) -> dict[str, Json]:
    value = doc.get(name)
    if isinstance(value, dict):
        return value
    if value is None:
        _missing(doc, name, found)
    else:
        found.append(FieldError(below("", name), "must be an object"))
    return {}


def _ref(doc: Mapping[str, Json], name: str, found: list[FieldError]) -> dict[str, Json]:
    before = len(found)
    ref = _object(doc, name, found)
    if len(found) == before:
        problem = uri_problem(ref.get("uri"))
        if problem is not None:
            found.append(FieldError(f"/{name}/uri", problem))
    return ref


def uri_problem(value: Json, length_max: int = URI_LENGTH_MAX) -> str | None:
    """Why this cannot be the `uri` of a ref; None if it can. The policy of refs is not asked here."""
    if value is None:
        return "is required"
    problem = text_problem(value, length_max)
    if problem is None and not value.strip():
        problem = "must not be blank"
    return problem


def _mode(doc: Mapping[str, Json], found: list[FieldError]) -> Mode | None:
    value = doc.get("mode")
    if value is None:
        return None
    mode = parse_mode(value) if isinstance(value, str) else None
    if mode is None:
        found.append(FieldError("/mode", "must be DEFAULT, BURST or SAFE"))
    return mode


def _priority(doc: Mapping[str, Json], found: list[FieldError]) -> int:
    value = doc.get("priority")
    if value is None:
        return PRIORITY_USUAL
    whole = type(value) is int or (isinstance(value, float) and value.is_integer())
    if not whole or not PRIORITY_LEAST <= value <= PRIORITY_MOST:
        message = f"must be a whole number from {PRIORITY_LEAST} to {PRIORITY_MOST}"
        found.append(FieldError("/priority", message))
        return PRIORITY_USUAL
    return int(value)


def _idempotency_key(doc: Mapping[str, Json], header: str | None, found: list[FieldError]) -> str | None:
    key: str | None = None
    if doc.get("idempotency_key") is not None:
        key = _text(doc, "idempotency_key", IDEMPOTENCY_KEY_LENGTH_MAX, found, required=True)
    if header is None:
        return key
    problem = text_problem(header, IDEMPOTENCY_KEY_LENGTH_MAX)
    if problem is None and not header.strip():
        problem = "must not be blank"
    if problem is None and key is not None and key != header:
        problem = "differs from the member in the body"
    if problem is not None:
        found.append(FieldError("/idempotency_key", f"the Idempotency-Key header {problem}"))
    return header


def _callback_urls(doc: Mapping[str, Json], found: list[FieldError]) -> dict[str, str] | None:
    value = doc.get("callback_urls")
    if value is None:
        return None
    if not isinstance(value, dict):
        found.append(FieldError("/callback_urls", "must be an object"))
        return None
    urls: dict[str, str] = {}
    for name, url in value.items():
        problem = None if url is None else uri_problem(url)
        if name not in CALLBACKS:
            problem = "is not a kind of callback; the one kind is `completed`"
        if problem is not None:
            found.append(FieldError(below("/callback_urls", name), problem))
        elif url is not None:
            urls[name] = url
    return urls or None


def _traceparent(doc: Mapping[str, Json], header: str | None, found: list[FieldError]) -> str | None:
    value = doc.get("traceparent")
    if value is not None and not isinstance(value, str):
        found.append(FieldError("/traceparent", "must be a string"))
        return None
    return valid_traceparent(value) or valid_traceparent(header)


def _version_problem(version: Json, found: list[FieldError]) -> bool:
    """Whether the version is well-formed but not ours. A future version may have other members, so it is
    reported first; what else looks wrong is reported with it."""
    if isinstance(version, str):
        if _match_version(version) and len(version) <= SCHEMA_VERSION_LENGTH_MAX:
            return False
        found.insert(0, FieldError("/schema_version", 'must be "1" or "1.x"'))
        return True
    problem = "is required" if version is None else "must be a string"
    found.append(FieldError("/schema_version", problem))
    return False
