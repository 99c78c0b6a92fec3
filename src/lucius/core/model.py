"""The values the machine works on: a job, its steps, its open outbox row, its events.

Times are integer milliseconds since the epoch, always UTC; a name that ends in `_ms` is a time or a span in
that unit. Values are frozen; a change is a new value.
"""

from typing import Any

import msgspec

from lucius.core.states import (
    JOB_TERMINAL,
    STEP_OPEN,
    STEP_UNDER_WAY,
    Engine,
    Fact,
    JobState,
    Mode,
    OutboxState,
    StepState,
)

# Looked up once: the members of an enum are slow to reach.
_DISPATCHING, _INITIATED, _PENDING = StepState.DISPATCHING, StepState.INITIATED, OutboxState.PENDING
_QUEUED, _STEP_PENDING = JobState.QUEUED, StepState.PENDING

ATTEMPT_NO_MAX = 999  # rows of attempts have three digits in their keys
PRIORITY_USUAL = 5  # 9 leaves first

Json = Any  # what json.loads may return; the machine never looks inside


class StepPolicy(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """How patient the orchestrator is with a step. Pinned when the job is created."""

    max_attempts: int = 3
    ack_timeout_ms: int = 30_000
    lease_ms: int = 900_000
    max_duration_ms: int = 86_400_000
    backoff_publish_ms: tuple[int, ...] = (30_000, 120_000, 600_000)
    backoff_ack_ms: tuple[int, ...] = (60_000, 300_000, 900_000)
    backoff_result_ms: tuple[int, ...] = (30_000, 120_000, 600_000)
    dispatch_timeout_ms: int = 86_400_000
    publish_attempts_max: int = 0
    parks_exhausted: bool = False
    """Whether a job whose step has used its attempts waits for a person (PAUSED), or fails."""


class StepSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a protocol."""

    step_type: str
    service: str
    payload_key: str | None = None
    payload_schema: dict[str, Json] = {}
    defaults: dict[str, Json] = {}
    policy: StepPolicy = StepPolicy()
    fallback: tuple[str, ...] = ()
    """Services that are asked, one after the other, once the attempts at the one before are used."""
    stop_on_pause: bool = False


class ProtocolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A versioned recipe: which steps a request type is made of."""

    protocol_id: str
    request_types: tuple[str, ...]
    steps: tuple[StepSpec, ...]


class Routing(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Where a job's directives go, and why. Chosen once, stored on every step, never computed again."""

    lane: int
    routing_key_used: str
    resolved_mode: Mode
    decision_source: str
    decision_reason: str


class Job(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    job_id: str
    tenant_id: str
    tenant_norm: str
    request_type: str
    protocol_id: str
    engine: Engine
    mode: Mode
    lane: int
    created_at_ms: int
    updated_at_ms: int
    sla_ms: int
    output_uri: str
    idempotency_hash: str
    fingerprint: str
    correlation_id: str
    traceparent: str
    doc_id: str | None = None
    idempotency_key: str | None = None
    callback_urls: dict[str, str] | None = None
    rerun_of: str | None = None
    # A default that is made, not given, is written like any other value: a row says in which state it is.
    state: JobState = msgspec.field(default_factory=lambda: _QUEUED)
    resume_to: JobState | None = None
    current_step_id: str | None = None
    current_step_index: int | None = None
    attempts_total: int = 0
    completed_at_ms: int | None = None
    error_code: str | None = None
    error_message: str | None = None
    final_output: str | None = None
    paused_at_ms: int | None = None
    paused_reason: str | None = None
    """Why it waits, where no client paused it."""
    paused_total_ms: int = 0
    # Of the attempt that a pause asked to stop.
    stop_asked_lease: str | None = None
    escalated_at_ms: int | None = None
    seq: int = 0
    evidence_count: int = 0
    version: int = 0
    # Where the due index holds this job's row, so that a later deadline costs no write.
    due_at_ms: int | None = None
    # How many steps it was created with, so that a lost row is noticed; 0: the number was not recorded.
    steps_count: int = 0
    priority: int = PRIORITY_USUAL
    # What its services reported of all attempts together.
    usage: dict[str, int | float] = {}

    @property
    def terminal(self) -> bool:
        return self.state in JOB_TERMINAL


class Step(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    step_id: str
    step_index: int
    step_type: str
    service: str
    policy: StepPolicy
    routing: Routing
    input_ref: dict[str, Json]
    workspace_ref: dict[str, Json]
    output_ref: dict[str, Json]
    payload: Json
    created_at_ms: int
    updated_at_ms: int
    state: StepState = msgspec.field(default_factory=lambda: _STEP_PENDING)
    stop_on_pause: bool = False
    """Whether a pause asks the worker of this step to stop. Pinned when the job is created."""
    attempt_no: int = 0
    attempts_forgiven: int = 0
    """How many of them count no more: those at another service, before a resume, or as a probe."""
    fallback: tuple[str, ...] = ()
    """Services that are left to be asked when the attempts at this one are used."""
    tried: tuple[str, ...] = ()
    """Services whose attempts were used, in their order."""
    probing: bool = False
    """Its attempt looks whether a service that failed in a row answers again."""
    attempt_began_at_ms: int | None = None
    lease_id: str | None = None
    lease_expires_at_ms: int | None = None
    lease_expected_at_ms: int | None = None
    """As the workflow that began the attempt expects it; see `lease_expires_shown_ms`."""
    next_attempt_at_ms: int | None = None
    acked: bool = False
    resulted: bool = False
    progress: int | None = None
    progress_note: str | None = None
    progress_event_at_ms: int | None = None
    result_ref: dict[str, Json] | None = None
    last_error_code: str | None = None
    last_error_message: str | None = None
    completed_at_ms: int | None = None
    usage: dict[str, int | float] = {}

    @property
    def attempts_counted(self) -> int:
        """How many attempts are held against `max_attempts`."""
        return self.attempt_no - self.attempts_forgiven

    @property
    def is_last_attempt(self) -> bool:
        """Whether the step has no further attempt at this service if this one fails."""
        at_most = self.attempts_counted >= self.policy.max_attempts and not self.probing
        return at_most or self.attempt_no >= ATTEMPT_NO_MAX

    @property
    def lease_expires_shown_ms(self) -> int | None:
        """The deadline as readers see it. While an attempt is recorded and its directive has not left, no
        clock runs for it; shown is the deadline that its workflow expects, or else the one that it would
        have, had it left at once."""
        if self.state is not _INITIATED or self.lease_expires_at_ms is not None:
            return self.lease_expires_at_ms
        if self.lease_expected_at_ms is not None:
            return self.lease_expected_at_ms
        began_at_ms = self.attempt_began_at_ms
        return None if began_at_ms is None else began_at_ms + self.policy.ack_timeout_ms


class Outbox(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The intention to send one attempt's directive. The directive itself is built from job and step when it
    leaves: everything in it is pinned there, and its token is never stored."""

    outbox_id: str
    step_id: str
    step_index: int
    service: str
    lane: int
    attempt_no: int
    lease_id: str
    created_at_ms: int
    updated_at_ms: int
    state: OutboxState = msgspec.field(default_factory=lambda: _PENDING)
    due_at_ms: int = 0
    failures: int = 0
    first_failed_at_ms: int | None = None
    sent_at_ms: int | None = None


class Event(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    seq: int
    type: Fact
    at_ms: int
    step_id: str | None = None
    attempt_no: int | None = None
    data: dict[str, Json] = {}


class JobRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A job as one value: what a commit writes and a load reads; `outbox` is the latest attempt's row."""

    job: Job
    steps: tuple[Step, ...]
    outbox: Outbox | None = None

    def step(self, step_id: str) -> Step | None:
        for step in self.steps:
            if step.step_id == step_id:
                return step
        return None

    @property
    def current(self) -> Step | None:
        """The first step that is not finished; None when all are."""
        for step in self.steps:
            if step.state in STEP_OPEN:
                return step
        return None

    def awaits_dispatch(self, step: Step) -> bool:
        """Whether an attempt of this step has begun and its directive has not left, as far as we know."""
        if step.state is _DISPATCHING:
            return True
        outbox = self.outbox
        return (
            step.state is _INITIATED
            and outbox is not None
            and outbox.state is _PENDING
            and outbox.lease_id == step.lease_id
        )

    def is_under_way(self, step: Step) -> bool:
        """Whether a service may be at it: its directive has left and no answer has ended it."""
        return step.state in STEP_UNDER_WAY and not self.awaits_dispatch(step)


def step_id_at(index: int) -> str:
    return f"step_{index + 1:02d}"
