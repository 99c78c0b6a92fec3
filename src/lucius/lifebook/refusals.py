"""Refusals of Lifebook, as values with stable codes; which HTTP status each is stands beside it for the
API."""

from enum import StrEnum
from typing import Final

import msgspec


class RunCode(StrEnum):
    MALFORMED_JSON = "MALFORMED_JSON"
    INVALID_REQUEST = "INVALID_REQUEST"
    UNKNOWN_WORKFLOW = "UNKNOWN_WORKFLOW"
    INVALID_INPUT = "INVALID_INPUT"
    IDEMPOTENCY_KEY_REUSED = "IDEMPOTENCY_KEY_REUSED"
    CREDITS_INSUFFICIENT = "CREDITS_INSUFFICIENT"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    FORBIDDEN = "FORBIDDEN"
    JOB_NOT_FOUND = "JOB_NOT_FOUND"
    NOT_FOUND = "NOT_FOUND"
    METHOD_NOT_ALLOWED = "METHOD_NOT_ALLOWED"
    JOB_TERMINAL = "JOB_TERMINAL"
    JOB_NOT_DEAD = "JOB_NOT_DEAD"
    BODY_TOO_LARGE = "BODY_TOO_LARGE"
    ILLEGAL_MOVE = "ILLEGAL_MOVE"
    LEASE_LOST = "LEASE_LOST"
    SYSTEM_SATURATED = "SYSTEM_SATURATED"
    INTERNAL = "INTERNAL"


class InputFault(msgspec.Struct, frozen=True):
    pointer: str
    message: str


class RunRefused(msgspec.Struct, frozen=True):
    code: RunCode
    message: str
    errors: tuple[InputFault, ...] = ()


PROBLEMS: Final[dict[RunCode, tuple[int, str]]] = {
    RunCode.MALFORMED_JSON: (400, "The body is not JSON"),
    RunCode.INVALID_REQUEST: (422, "The request is not well formed"),
    RunCode.UNKNOWN_WORKFLOW: (422, "The workflow is not known"),
    RunCode.INVALID_INPUT: (422, "The input does not fit the workflow"),
    RunCode.IDEMPOTENCY_KEY_REUSED: (422, "The idempotency key was used for another run"),
    RunCode.CREDITS_INSUFFICIENT: (402, "The workspace has too few credits"),
    RunCode.UNAUTHENTICATED: (401, "Who is calling is not known"),
    RunCode.FORBIDDEN: (403, "Not allowed"),
    RunCode.JOB_NOT_FOUND: (404, "There is no such job"),
    RunCode.NOT_FOUND: (404, "There is nothing here"),
    RunCode.METHOD_NOT_ALLOWED: (405, "The method is not allowed here"),
    RunCode.JOB_TERMINAL: (409, "The job has ended"),
    RunCode.JOB_NOT_DEAD: (409, "The job is not dead"),
    RunCode.BODY_TOO_LARGE: (413, "The body is too large"),
    RunCode.ILLEGAL_MOVE: (409, "The job is in another status"),
    RunCode.LEASE_LOST: (409, "Another worker has the job"),
    RunCode.SYSTEM_SATURATED: (503, "The system cannot take more now"),
    RunCode.INTERNAL: (500, "Something went wrong"),
}
