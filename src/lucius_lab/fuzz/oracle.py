"""What a server may answer, whatever it is asked: the rules that a fuzzer checks every answer against.

In: a case, its answer, and how many rows were written meanwhile. Out: what is wrong, or None. Statuses and
codes are written down here once more, so that a code that quietly changes its status is seen.
"""

from typing import Any, Final

import msgspec

from lucius_lab.fuzz.cases import BUS, Case
from lucius_lab.fuzz.server import FuzzAnswer

STATUS_OF: Final = {
    "MALFORMED_JSON": 400,
    "UNAUTHENTICATED": 401,
    "FORBIDDEN": 403,
    "JOB_NOT_FOUND": 404,
    "NOT_FOUND": 404,
    "METHOD_NOT_ALLOWED": 405,
    "JOB_TERMINAL": 409,
    "JOB_NOT_TERMINAL": 409,
    "JOB_CANCELLING": 409,
    "NOTHING_TO_RERUN": 409,
    "STALE_ATTEMPT": 409,
    "BODY_TOO_LARGE": 413,
    "UNSUPPORTED_ENCODING": 415,
    "INVALID_ENVELOPE": 422,
    "INVALID_REQUEST": 422,
    "UNSUPPORTED_SCHEMA_VERSION": 422,
    "UNKNOWN_REQUEST_TYPE": 422,
    "INVALID_PAYLOAD": 422,
    "REF_NOT_ALLOWED": 422,
    "DOC_ID_REQUIRED": 422,
    "IDEMPOTENCY_KEY_REUSED": 422,
    "TENANT_LIMIT": 429,
    "BUDGET_EXCEEDED": 429,
}
PROBLEM_MEMBERS: Final = {"type", "title", "status", "code", "detail"}
PROBLEM_BYTES_MAX: Final = 64 * 1024
# Evidence is kept of a reply that comes too late or names another tenant, though its answer is a refusal.
KEEPS_EVIDENCE: Final = frozenset({("callback", "STALE_ATTEMPT"), ("callback", "FORBIDDEN")})
SETTLED: Final = frozenset({"applied", "duplicate", "recorded", "stale"})
DEAD_LETTERED: Final = frozenset({"poison", "unknown_job", "other_tenant"})


def fault_of(case: Case, answer: FuzzAnswer, written: int) -> str | None:
    """What is wrong with this answer to this request; None if nothing is."""
    if not (200 <= answer.status < 300 or 400 <= answer.status < 500):
        return f"the status is {answer.status}"
    if answer.status >= 400:
        return _fault_of_refusal(case, answer, written)
    if case.method in ("GET", "HEAD") or case.kind == "plan":
        return f"a question wrote {written} rows" if written else None
    try:
        document = answer.json()
    except msgspec.DecodeError:
        return "the answer is not JSON"
    if case.kind == "batch":
        return _fault_of_batch(document, written)
    if case.kind == "submit":
        return _fault_of_acceptance(answer, document, written)
    return None


def _fault_of_refusal(case: Case, answer: FuzzAnswer, written: int) -> str | None:
    if case.method == "HEAD":
        return f"a question wrote {written} rows" if written else None
    if answer.headers.get("content-type") != "application/problem+json":
        return f"a refusal of the type {answer.headers.get('content-type')}"
    if len(answer.body) > PROBLEM_BYTES_MAX:
        return f"a refusal of {len(answer.body)} bytes"
    try:
        document = answer.json()
    except msgspec.DecodeError:
        return "the refusal is not JSON"
    fault = _fault_of_problem(document)
    if fault is not None:
        return fault
    if document["status"] != answer.status:
        return f"the status is {answer.status}, the document says {document['status']}"
    if written and (case.kind.partition(" ")[0], document["code"]) not in KEEPS_EVIDENCE:
        return f"{document['code']} wrote {written} rows"
    return None


def _fault_of_problem(document: Any) -> str | None:
    if not isinstance(document, dict) or not document.keys() >= PROBLEM_MEMBERS:
        return "the refusal is no problem document"
    if STATUS_OF.get(document["code"]) != document["status"]:
        return f"the code {document['code']} with the status {document['status']}"
    errors = document.get("errors", [])
    if not all(error.keys() == {"pointer", "message"} for error in errors):
        return "an error without pointer or message"
    return None


def _fault_of_acceptance(answer: FuzzAnswer, document: Any, written: int) -> str | None:
    if answer.status != 202 or answer.headers.get("location") != f"/v1/jobs/{document.get('jobId')}":
        return "an acceptance without 202 and the place of its job"
    replayed = answer.headers.get("idempotent-replayed") == "true"
    if document["duplicate"] is not replayed:
        return "the header and the document do not agree on whether this is a duplicate"
    if bool(written) is document["duplicate"]:
        return f"duplicate: {document['duplicate']}, and {written} rows written"
    return None


def _fault_of_batch(document: Any, written: int) -> str | None:
    new = 0
    for item in document["items"]:
        if "jobId" in item:
            new += not item["duplicate"]
        elif (fault := _fault_of_problem(item)) is not None:
            return f"in a batch: {fault}"
    if bool(new) is not bool(written):
        return f"a batch of {new} new jobs wrote {written} rows"
    return None


def fault_of_reply(outcomes: dict[str, int], reasons: list[str], written: int) -> str | None:
    """The same for a message on the bus: what the consumer counted, and what it gave for reasons."""
    if sum(outcomes.values()) != 1:
        return f"one message was settled as {outcomes}"
    (outcome,) = outcomes
    if outcome in SETTLED:
        return f"{outcome}, and put aside: {reasons}" if reasons else None
    if outcome not in DEAD_LETTERED:
        return f"a message was settled as {outcome}"
    if len(reasons) != 1 or not reasons[0].startswith(("POISON: ", "JOB_NOT_FOUND: ", "TENANT_MISMATCH: ")):
        return f"put aside for the reasons {reasons}"
    return f"{outcome} wrote {written} rows" if written and outcome != "other_tenant" else None


def label_of(case: Case, answer: FuzzAnswer | None, outcome: str = "") -> str:
    """Under which name a case is counted."""
    if case.kind == BUS or answer is None:
        return f"{case.kind} {outcome}"
    if answer.status < 400 or case.method == "HEAD":
        return f"{case.kind} {answer.status}"
    return f"{case.kind} {answer.status} {answer.json()['code']}"
