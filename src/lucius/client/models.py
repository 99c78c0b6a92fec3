"""What the API says, as values.

In: JSON as the API sends it. Out: frozen values. Members that a later server adds are ignored, and states and
event types are plain text, so an older client goes on working beside a newer server. `jobId` and `stepId` are
called `job_id` and `step_id` here; every other name is the API's own. Times stay RFC 3339 text, as they came.
"""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec

from lucius.core.states import JOB_TERMINAL, JobState

Item = TypeVar("Item")


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer as it came: the body is byte for byte what the server sent, a JSON object."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def doc(self) -> dict[str, Any]:
        return msgspec.json.decode(self.body, type=dict[str, Any])


class FieldFault(msgspec.Struct, frozen=True):
    """Which field is at fault, and why."""

    pointer: str
    message: str


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A refusal as the API says it: RFC 9457 with a stable `code`."""

    code: str
    status: int = 0
    title: str = ""
    detail: str = ""
    errors: tuple[FieldFault, ...] = ()

    @property
    def message(self) -> str:
        return self.detail or self.title or f"status {self.status}"


class Accepted(msgspec.Struct, frozen=True, kw_only=True, rename={"job_id": "jobId"}):
    """The answer to a command. `duplicate`: it was known already, and this is its job."""

    job_id: str
    state: str
    duplicate: bool = False


class Step(msgspec.Struct, frozen=True, kw_only=True, rename={"step_id": "stepId"}):
    step_id: str
    state: str
    step_index: int = 0
    step_type: str | None = None
    service: str | None = None
    attempt_no: int = 0
    lease_id: str | None = None
    lease_expires_at: str | None = None
    next_attempt_at: str | None = None
    lane: int | None = None
    routing_key_used: str | None = None
    resolved_mode: str | None = None
    decision_source: str | None = None
    decision_reason: str | None = None
    input_ref: dict[str, Any] | None = None
    workspace_ref: Any = None
    output_ref: dict[str, Any] | None = None
    payload: Any = None
    result_ref: dict[str, Any] | None = None
    progress: float | None = None
    last_error_code: str | None = None
    last_error_message: str | None = None
    usage: dict[str, int | float] = {}
    created_at: str | None = None
    updated_at: str | None = None
    completed_at: str | None = None


class Job(msgspec.Struct, frozen=True, kw_only=True, rename={"job_id": "jobId"}):
    job_id: str
    state: str
    tenant_id: str | None = None
    tenant_bucket: str | None = None
    request_type: str | None = None
    protocol_id: str | None = None
    engine: str | None = None
    doc_id: str | None = None
    mode: str | None = None
    priority: int | None = None
    current_step_id: str | None = None
    current_step_index: int | None = None
    attempts_total: int = 0
    created_at: str | None = None
    updated_at: str | None = None
    completed_at: str | None = None
    error_code: str | None = None
    error_message: str | None = None
    correlation_id: str | None = None
    traceparent: str | None = None
    idempotency_key: str | None = None
    idempotency_hash: str | None = None
    final_output: str | None = None
    rerun_of: str | None = None
    usage: dict[str, int | float] = {}
    steps: tuple[Step, ...] = ()

    @property
    def terminal(self) -> bool:
        """Whether it has ended, well or badly."""
        return self.state in JOB_TERMINAL

    @property
    def succeeded(self) -> bool:
        return self.state == JobState.SUCCEEDED


class Event(msgspec.Struct, frozen=True, kw_only=True, rename={"step_id": "stepId"}):
    """One line of a job's audit trail; `seq` counts 1, 2, 3… without gaps."""

    seq: int
    type: str
    at: str | None = None
    step_id: str | None = None
    attempt_no: int | None = None
    data: dict[str, Any] = {}


class Page(msgspec.Struct, Generic[Item], frozen=True, kw_only=True):
    """A part of a list; `next_cursor` asks for the part after it, None when there is none."""

    items: tuple[Item, ...]
    next_cursor: str | int | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What would happen to a command. Nothing was written."""

    accepted: bool
    duplicate_of: str | None = None
    problems: tuple[Any, ...] = ()
    protocol_id: str | None = None
    steps: tuple[Any, ...] | None = None
    lane: int | None = None
    topic: str | None = None
    mode: str | None = None
    decision_source: str | None = None
    decision_reason: str | None = None
    limits: Any = None


class Protocol(msgspec.Struct, frozen=True, kw_only=True):
    """A recipe; each step is a document as the API sends it, with its `payload_schema`."""

    protocol_id: str
    request_types: tuple[str, ...] = ()
    steps: tuple[dict[str, Any], ...] = ()


class Batched(msgspec.Struct, frozen=True, kw_only=True):
    """The answers to a batch, in order, unread."""

    items: tuple[msgspec.Raw, ...]


class MadeDue(msgspec.Struct, frozen=True, kw_only=True):
    made_due: int
