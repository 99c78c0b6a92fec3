"""Refusals, described: which answer each code makes, with an example of every code."""

from collections.abc import Iterable
from typing import Final

from lucius.api.described.groups import Doc, Operation, headers
from lucius.api.problems import PROBLEM_TYPE, STATUS, problem_document
from lucius.api.routing import Access, CallbackToken, NoCredential
from lucius.contracts.examples import JOB
from lucius.contracts.schemas import named
from lucius.core.model import Json
from lucius.core.refusal import Code, FieldError, Refused

# What may come from any address, whatever is asked there.
_ANYWHERE: Final = (Code.METHOD_NOT_ALLOWED, Code.NOT_FOUND)
_DEFAULT: Final = "default"
NAMED_CODES_MAX: Final = 3

_HEADERS: Final[dict[str, tuple[str, ...]]] = {
    "401": ("WWW-Authenticate",),
    "415": ("Accept-Encoding",),
    "429": ("Retry-After",),
    "503": ("Retry-After",),
    _DEFAULT: ("Allow",),
}

_SAID: Final[dict[Code, tuple[str, tuple[FieldError, ...]]]] = {
    Code.MALFORMED_JSON: ("the body is not JSON: unexpected character at byte 17", ()),
    Code.INVALID_ENVELOPE: (
        "the message is not valid: /tenant_id: is required",
        (FieldError("/tenant_id", "is required"),),
    ),
    Code.UNSUPPORTED_SCHEMA_VERSION: (
        "schema_version must be 1 or 1.x",
        (FieldError("/schema_version", "must be 1 or 1.x"),),
    ),
    Code.UNKNOWN_REQUEST_TYPE: (
        "the request type is not known; known are OCR, EMBEDDING, SIS",
        (FieldError("/request_type", "is not known"),),
    ),
    Code.INVALID_PAYLOAD: (
        "the payload does not fit its steps",
        (FieldError("/payload/language", 'must be of type "string"'),),
    ),
    Code.REF_NOT_ALLOWED: (
        "input_ref is not allowed",
        (FieldError("/input_ref/uri", "must not carry credentials"),),
    ),
    Code.DOC_ID_REQUIRED: ("BURST needs a doc_id", (FieldError("/doc_id", "is required for BURST"),)),
    Code.IDEMPOTENCY_KEY_REUSED: ("the key was used for a different command", ()),
    Code.INVALID_REQUEST: (
        "limit must be a whole number from 1 to 200",
        (FieldError("?limit", "must be a whole number from 1 to 200"),),
    ),
    Code.FILTER_NOT_SERVED: ("error_code goes with state=FAILED_FINAL: leave out the other states", ()),
    Code.UNAUTHENTICATED: ("send a key or a token as Authorization: Bearer", ()),
    Code.FORBIDDEN: ("the caller may not do this", ()),
    Code.JOB_NOT_FOUND: (f"there is no job {JOB['jobId']}", ()),
    Code.NOT_FOUND: ("there is nothing of this id", ()),
    Code.METHOD_NOT_ALLOWED: ("this address does not take that method", ()),
    Code.JOB_TERMINAL: ("the job has ended: SUCCEEDED", ()),
    Code.JOB_NOT_TERMINAL: ("the job has not ended yet: IN_PROGRESS", ()),
    Code.JOB_CANCELLING: ("the job is being cancelled", ()),
    Code.NOTHING_TO_RERUN: ("every step has succeeded; name a from_step to repeat some", ()),
    Code.STALE_ATTEMPT: ("this attempt is no longer the step's current one", ()),
    Code.BODY_TOO_LARGE: ("a body may have 262144 bytes", ()),
    Code.UNSUPPORTED_ENCODING: (
        "a body encoded as gzip is not read: send it as plain JSON, without Content-Encoding",
        (),
    ),
    Code.TENANT_LIMIT: ("the tenant has 1000 jobs in flight, and may have no more", ()),
    Code.BUDGET_EXCEEDED: ("the tenant has used 1000 pages this day, and may use 1000", ()),
    Code.SYSTEM_SATURATED: ("the ledger cannot take this now; nothing was accepted", ()),
    Code.JOB_UNREADABLE: (
        "a row of this job is damaged, and nothing was changed; `lucius doctor` tells which",
        (),
    ),
    Code.INTERNAL: ("an unexpected fault; the log has it", ()),
}


def example_of(code: Code) -> Json:
    detail, errors = _SAID.get(code, (STATUS[code][1], ()))
    more: dict[str, Json] = {"outcome": "stale", "stop": True} if code is Code.STALE_ATTEMPT else {}
    return problem_document(Refused(code, detail, errors), **more)


def refusals_of(operation: Operation, access: Access) -> dict[str, Doc]:
    """The responses, by status, that say no to this operation: references to those of `shared_refusals`."""
    answered = {str(answer.status) for answer in operation.answers}
    return {
        status: {"$ref": f"#/components/responses/{_name(codes)}"}
        for status, codes in _by_status(operation, access).items()
        if status not in answered
    }


def shared_refusals(operations: Iterable[tuple[Operation, Access]]) -> dict[str, Doc]:
    """Every refusal that some operation has, by name: many operations say no in the same words."""
    return {
        _name(codes): _response(status, codes)
        for operation, access in operations
        for status, codes in _by_status(operation, access).items()
    }


def _by_status(operation: Operation, access: Access) -> dict[str, tuple[Code, ...]]:
    by_status: dict[str, tuple[Code, ...]] = {}
    for code in sorted(_codes_of(operation, access), key=lambda code: STATUS[code][0]):
        status = str(STATUS[code][0])
        by_status[status] = (*by_status.get(status, ()), code)
    # Generated clients take the default as the type of every error.
    return {**by_status, _DEFAULT: _ANYWHERE}


def _name(codes: tuple[Code, ...]) -> str:
    names = [code.value.title().replace("_", "") for code in codes]
    return "Or".join(names) if len(names) <= NAMED_CODES_MAX else f"{names[0]}Or{len(names) - 1}Others"


def _codes_of(operation: Operation, access: Access) -> list[Code]:
    codes = [*operation.refusals, Code.INTERNAL]
    if operation.body is not None:
        codes.append(Code.UNSUPPORTED_ENCODING)
    if not isinstance(access, NoCredential):
        codes += [Code.UNAUTHENTICATED, Code.SYSTEM_SATURATED, Code.JOB_UNREADABLE]
    if not isinstance(access, NoCredential | CallbackToken):
        codes.append(Code.FORBIDDEN)
    return list(dict.fromkeys(codes))


def _response(status: str, codes: tuple[Code, ...]) -> Doc:
    said = " ".join(f"`{code.value}`: {_small(STATUS[code][1])}." for code in codes)
    return {
        "description": f"Any other refusal. {said}" if status == _DEFAULT else said,
        "headers": headers(*_HEADERS.get(status, ())),
        "content": {
            PROBLEM_TYPE: {
                "schema": named("StaleAttempt" if codes == (Code.STALE_ATTEMPT,) else "Problem"),
                "examples": {code.value: {"$ref": f"#/components/examples/{code.value}"} for code in codes},
            }
        },
    }


def _small(title: str) -> str:
    return title[0].lower() + title[1:]
