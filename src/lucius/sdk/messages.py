"""The replies of a service, as plain JSON values (ACK, PROGRESS, RESULT)."""

from collections.abc import Sequence

import msgspec

from lucius.contracts.credentials import secret_member
from lucius.contracts.envelope import uri_problem
from lucius.contracts.messages import ARTIFACTS_MAX, NO_CREDENTIALS, REF_BYTES_MAX
from lucius.contracts.times import rfc3339
from lucius.sdk.directive import Directive, Json
from lucius.sdk.errors import INVALID_OUTPUT, bounded

_encode = msgspec.json.encode


def _reply(kind: str, directive: Directive, now_ms: int) -> dict[str, Json]:
    message: dict[str, Json] = {
        "type": kind,
        "jobId": directive.job_id,
        "stepId": directive.step_id,
        "tenant_id": directive.tenant_id,
        "attempt_no": directive.attempt_no,
        "lease_id": directive.lease_id,
        "timestamp": rfc3339(now_ms),
    }
    if directive.correlation_id is not None:
        message["correlation_id"] = directive.correlation_id
    if directive.traceparent is not None:
        message["traceparent"] = directive.traceparent
    return message


def ack(directive: Directive, now_ms: int) -> dict[str, Json]:
    return _reply("ACK", directive, now_ms)


def progress(directive: Directive, now_ms: int, percent: int, note: str) -> dict[str, Json]:
    message = _reply("PROGRESS", directive, now_ms)
    message["progress"] = percent
    if note:
        message["note"] = bounded(note)
    return message


def succeeded(
    directive: Directive, now_ms: int, output_ref: dict[str, Json] | None, artifacts: Sequence[str] = ()
) -> dict[str, Json]:
    """A success; or a final failure when the orchestrator would refuse the reference: no retry mends that.
    `artifacts`: URIs of what the attempt has written; as many of them go along as there is room for."""
    if output_ref is not None and (problem := _ref_problem(output_ref)) is not None:
        text = f"the handler's output reference {problem}"
        return failed(directive, now_ms, final=True, code=INVALID_OUTPUT, text=text)
    message = _reply("RESULT", directive, now_ms)
    message["status"] = "SUCCEEDED"
    if output_ref is not None:
        message["output_ref"] = output_ref
        others = [uri for uri in artifacts if uri != output_ref["uri"]]
        if others and "artifacts" not in output_ref and (named := _as_fit(output_ref, others)):
            message["artifacts"] = named
    return message


def _as_fit(output_ref: dict[str, Json], uris: Sequence[str]) -> list[dict[str, Json]]:
    named: list[dict[str, Json]] = []
    for uri in uris[:ARTIFACTS_MAX]:
        longer = [*named, {"uri": uri}]
        if len(_encode({**output_ref, "artifacts": longer})) > REF_BYTES_MAX:
            break
        named = longer
    return named


def _ref_problem(ref: Json) -> str | None:
    if not isinstance(ref, dict):
        return "must be an object"
    if (problem := uri_problem(ref.get("uri"))) is not None:
        return f"has a uri that {problem}"
    try:
        encoded = _encode(ref)
    except (TypeError, ValueError, RecursionError):
        return "is not JSON"
    if len(encoded) > REF_BYTES_MAX:
        return f"must not be larger than {REF_BYTES_MAX} bytes"
    # As it will be read: a handler's values may be more than JSON knows.
    return None if secret_member(msgspec.json.decode(encoded)) is None else NO_CREDENTIALS


def failed(directive: Directive, now_ms: int, *, final: bool, code: str, text: str) -> dict[str, Json]:
    message = _reply("RESULT", directive, now_ms)
    message["status"] = "FAILED_FINAL" if final else "FAILED_RETRY"
    message["error"] = {"code": code, "message": text}
    return message
