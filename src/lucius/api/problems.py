"""Refusals as HTTP: RFC 9457 problem documents. The only place that knows a status code for a refusal."""

import msgspec
from starlette.responses import Response

from lucius.core.model import Json
from lucius.core.refusal import Code, Refused
from lucius.ledger.store import Unreadable

PROBLEM_TYPE = "application/problem+json"

STATUS: dict[Code, tuple[int, str]] = {
    Code.MALFORMED_JSON: (400, "The body is not JSON"),
    Code.INVALID_ENVELOPE: (422, "The message is not well formed"),
    Code.UNSUPPORTED_SCHEMA_VERSION: (422, "The schema version is not supported"),
    Code.UNKNOWN_REQUEST_TYPE: (422, "The request type is not known"),
    Code.INVALID_PAYLOAD: (422, "The payload does not fit the steps"),
    Code.REF_NOT_ALLOWED: (422, "A reference is not allowed"),
    Code.DOC_ID_REQUIRED: (422, "A document id is required"),
    Code.IDEMPOTENCY_KEY_REUSED: (422, "The idempotency key was used for another command"),
    Code.INVALID_REQUEST: (422, "A parameter is not valid"),
    Code.FILTER_NOT_SERVED: (400, "No index serves these filters together"),
    Code.UNAUTHENTICATED: (401, "Who is calling is not known"),
    Code.FORBIDDEN: (403, "Not allowed"),
    Code.JOB_NOT_FOUND: (404, "There is no such job"),
    Code.NOT_FOUND: (404, "There is nothing here"),
    Code.METHOD_NOT_ALLOWED: (405, "The method is not allowed here"),
    Code.JOB_TERMINAL: (409, "The job has ended"),
    Code.JOB_NOT_TERMINAL: (409, "The job has not ended"),
    Code.JOB_CANCELLING: (409, "The job is being cancelled"),
    Code.NOTHING_TO_RERUN: (409, "There is nothing to run again"),
    Code.STALE_ATTEMPT: (409, "The attempt is not the current one"),
    Code.BODY_TOO_LARGE: (413, "The body is too large"),
    Code.UNSUPPORTED_ENCODING: (415, "The body is encoded"),
    Code.TENANT_LIMIT: (429, "The tenant's limit is reached"),
    Code.BUDGET_EXCEEDED: (429, "The tenant's budget is used up"),
    Code.SYSTEM_SATURATED: (503, "The system cannot take more now"),
    Code.PUBLISH_FAILED: (503, "The bus did not take the directive"),
    Code.JOB_UNREADABLE: (500, "The job cannot be read"),
    Code.INTERNAL: (500, "Something went wrong"),
}


def problem_document(refused: Refused, **more: Json) -> dict[str, Json]:
    status, title = STATUS[refused.code]
    document: dict[str, Json] = {
        "type": f"urn:lucius:problem:{refused.code.value.lower().replace('_', '-')}",
        "title": title,
        "status": status,
        "code": refused.code.value,
        "detail": refused.message,
    }
    if refused.errors:
        document["errors"] = [{"pointer": e.pointer, "message": e.message} for e in refused.errors]
    document.update(more)
    return document


def problem(refused: Refused, **more: Json) -> Response:
    headers = {}
    if refused.retry_after_seconds is not None:
        headers["Retry-After"] = str(refused.retry_after_seconds)
    if refused.code is Code.UNAUTHENTICATED:
        headers["WWW-Authenticate"] = "Bearer"
    if refused.code is Code.UNSUPPORTED_ENCODING:
        headers["Accept-Encoding"] = "identity"
    return Response(
        msgspec.json.encode(problem_document(refused, **more)),
        status_code=STATUS[refused.code][0],
        headers=headers,
        media_type=PROBLEM_TYPE,
    )


def unreadable(fault: Unreadable) -> Refused:
    """A row that is there and cannot be read: nothing was changed, and asking again does not help."""
    if fault.later:
        message = "a later version of Lucius wrote this job, and only its processes can answer for it"
    else:
        message = "a row of this job is damaged, and nothing was changed; `lucius doctor` tells which"
    return Refused(Code.JOB_UNREADABLE, message)


def answer(content: Json, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(
        msgspec.json.encode(content), status_code=status, headers=headers, media_type="application/json"
    )
