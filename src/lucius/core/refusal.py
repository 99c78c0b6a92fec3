"""Refusals are values: what was refused, why, and which field is at fault."""

from enum import StrEnum
from typing import Final

import msgspec


class Code(StrEnum):
    MALFORMED_JSON = "MALFORMED_JSON"
    INVALID_ENVELOPE = "INVALID_ENVELOPE"
    UNSUPPORTED_SCHEMA_VERSION = "UNSUPPORTED_SCHEMA_VERSION"
    UNKNOWN_REQUEST_TYPE = "UNKNOWN_REQUEST_TYPE"
    INVALID_PAYLOAD = "INVALID_PAYLOAD"
    REF_NOT_ALLOWED = "REF_NOT_ALLOWED"
    DOC_ID_REQUIRED = "DOC_ID_REQUIRED"
    IDEMPOTENCY_KEY_REUSED = "IDEMPOTENCY_KEY_REUSED"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    FORBIDDEN = "FORBIDDEN"
    JOB_NOT_FOUND = "JOB_NOT_FOUND"
    NOT_FOUND = "NOT_FOUND"
    METHOD_NOT_ALLOWED = "METHOD_NOT_ALLOWED"
    INVALID_REQUEST = "INVALID_REQUEST"
    FILTER_NOT_SERVED = "FILTER_NOT_SERVED"
    JOB_TERMINAL = "JOB_TERMINAL"
    JOB_NOT_TERMINAL = "JOB_NOT_TERMINAL"
    JOB_CANCELLING = "JOB_CANCELLING"
    NOTHING_TO_RERUN = "NOTHING_TO_RERUN"
    STALE_ATTEMPT = "STALE_ATTEMPT"
    BODY_TOO_LARGE = "BODY_TOO_LARGE"
    UNSUPPORTED_ENCODING = "UNSUPPORTED_ENCODING"
    TENANT_LIMIT = "TENANT_LIMIT"
    BUDGET_EXCEEDED = "BUDGET_EXCEEDED"
    SYSTEM_SATURATED = "SYSTEM_SATURATED"
    PUBLISH_FAILED = "PUBLISH_FAILED"
    JOB_UNREADABLE = "JOB_UNREADABLE"
    INTERNAL = "INTERNAL"


BETWEEN_PROCESSES: Final = frozenset({Code.PUBLISH_FAILED})
"""Said to other processes of Lucius alone: no client meets them."""


class FieldError(msgspec.Struct, frozen=True):
    pointer: str  # RFC 6901, into the document that was refused
    message: str


class Refused(msgspec.Struct, frozen=True):
    code: Code
    message: str
    errors: tuple[FieldError, ...] = ()
    retry_after_seconds: int | None = None
