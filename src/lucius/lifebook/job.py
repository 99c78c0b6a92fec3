"""The job record, and the declaration of its item.

`FIELDS` states every attribute once: its name, how it is stored, whether the contract has it or Lifebook adds
it, and what it means. The codec reads and writes by it, and the item reference in the documentation is drawn
from it. Times are milliseconds since the epoch in memory and ISO-8601 in the item; credits are decimals in
both.
"""

from decimal import Decimal
from enum import StrEnum
from typing import Final

import msgspec

from lucius.lifebook.states import TERMINAL, Status, Trigger

ZERO: Final = Decimal(0)
TERMINAL_STATUSES: Final = TERMINAL


class LifebookJob(msgspec.Struct, frozen=True, kw_only=True):
    job_id: str
    workspace_id: str
    user_id: str
    workflow_id: str
    trigger_type: Trigger
    status: Status
    attempts: int = 0
    max_attempts: int = 5
    step_cursor: int = 0
    steps_total: int
    credits_estimate: Decimal = ZERO
    credits_reserved: Decimal = ZERO
    credits_spent: Decimal = ZERO
    idempotency_key: str
    last_error_code: str | None = None
    last_error_message: str | None = None
    created_at: int
    updated_at: int
    started_at: int | None = None
    completed_at: int | None = None
    ttl_at: int | None = None

    version: int = 1
    trace_id: str
    fingerprint: str
    input: str = "{}"
    results: tuple[str, ...] = ()
    checkpoint: str | None = None
    lease_owner: str | None = None
    lease_expires_at: int | None = None
    next_attempt_at: int | None = None
    message_attempt: int = 0
    cancel_requested_at: int | None = None
    redrives: int = 0
    settled_at: int | None = None
    sweep_at: int | None = None

    @property
    def terminal(self) -> bool:
        return self.status in TERMINAL_STATUSES


class FieldKind(StrEnum):
    """How an attribute is stored."""

    TEXT = "string"
    INTEGER = "number (int)"
    DECIMAL = "number"
    TIME = "ISO-8601 string"
    TEXTS = "list of strings"


class Field(msgspec.Struct, frozen=True):
    name: str
    kind: FieldKind
    meaning: str
    of_contract: bool = True
    optional: bool = False


def _own(name: str, kind: FieldKind, meaning: str, *, optional: bool = True) -> Field:
    return Field(name, kind, meaning, of_contract=False, optional=optional)


T, N, D, AT = FieldKind.TEXT, FieldKind.INTEGER, FieldKind.DECIMAL, FieldKind.TIME

FIELDS: Final[tuple[Field, ...]] = (
    Field("job_id", T, "UUIDv4, primary identifier, shared with analytics events"),
    Field("workspace_id", T, "workspace that owns the run"),
    Field("user_id", T, "initiating user"),
    Field("workflow_id", T, "workflow/template id"),
    Field("trigger_type", T, "manual, schedule, webhook or file_drop"),
    Field("status", T, "pending, queued, running, completed, failed, dead or canceled"),
    Field("attempts", N, "attempts that have ended, however they ended"),
    Field("max_attempts", N, "attempts that the job may have; 5 unless asked otherwise"),
    Field("step_cursor", N, "index of the next step to execute, from 0"),
    Field("steps_total", N, "steps of the workflow when the job was created"),
    Field("credits_estimate", D, "estimated credits for the run"),
    Field("credits_reserved", D, "credits held for the run"),
    Field("credits_spent", D, "credits spent so far; never more than reserved"),
    Field("idempotency_key", T, "names the logical run; the same key gives the same job"),
    Field("last_error_code", T, "short code of the last failure, without personal data", optional=True),
    Field("last_error_message", T, "short text of the last failure, without personal data", optional=True),
    Field("created_at", AT, "when the job was created"),
    Field("updated_at", AT, "when the job was last written"),
    Field("started_at", AT, "when a worker first took the job", optional=True),
    Field("completed_at", AT, "when the job ended", optional=True),
    Field("ttl_at", N, "Unix epoch seconds of expiry; on ended jobs only", optional=True),
    _own("version", N, "goes up by one with every write; every write is conditional on it", optional=False),
    _own("trace_id", T, "trace identifier, copied into every message and log line", optional=False),
    _own("fingerprint", T, "SHA-256 of what the run was asked with", optional=False),
    _own("input", T, "input of the workflow as JSON: small values and references", optional=False),
    _own("results", FieldKind.TEXTS, "what each finished step returned, as JSON", optional=False),
    _own("checkpoint", T, "note of the step at the cursor for a later attempt, as JSON"),
    _own("lease_owner", T, "the run of a worker that holds the job; new with every start"),
    _own("lease_expires_at", AT, "until when the worker holds the job unless its heartbeat renews"),
    _own("next_attempt_at", AT, "before this no attempt begins (backoff)"),
    _own(
        "message_attempt",
        N,
        "attempt of the newest message; older ones are dropped",
        optional=False,
    ),
    _own("cancel_requested_at", AT, "when the running job was asked to stop"),
    _own("redrives", N, "how often an operator gave the dead job new attempts", optional=False),
    _own("settled_at", AT, "when the unspent credits of the ended job were released"),
    _own(
        "sweep_at",
        N,
        "epoch milliseconds at which a sweeper looks at the job; absent once nothing is left",
    ),
    _own("sweep_shard", T, "partition of the sparse index that sweepers read; present with sweep_at"),
)
SWEEP_SHARD: Final = "sweep_shard"
BY_NAME: Final = {field.name: field for field in FIELDS}

# What the contract's index gives beside its keys.
PROJECTED: Final = ("status", "workflow_id", "trigger_type", "credits_estimate")


class JobSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a workspace's list: what the index `workspace_created_at` holds of a job."""

    job_id: str
    workspace_id: str
    created_at: int
    status: Status
    workflow_id: str
    trigger_type: Trigger
    credits_estimate: Decimal


def summary_of(job: LifebookJob) -> JobSummary:
    return JobSummary(
        job_id=job.job_id,
        workspace_id=job.workspace_id,
        created_at=job.created_at,
        status=job.status,
        workflow_id=job.workflow_id,
        trigger_type=job.trigger_type,
        credits_estimate=job.credits_estimate,
    )


def is_expired(ttl_at: int | None, now_ms: int) -> bool:
    """DynamoDB deletes an expired item when it comes to it, days later perhaps; readers treat it as gone."""
    return ttl_at is not None and ttl_at * 1000 <= now_ms


class Guard(msgspec.Struct, frozen=True, kw_only=True):
    """The item that makes an idempotency key unique: written in one transaction with its job."""

    guard_id: str
    job_id: str
    fingerprint: str
    ttl_at: int | None = None


class AnalyticsEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An analytics event that waits to be sent: written in one transaction with the end of its job."""

    event_id: str
    job_id: str
    body: str
    created_at: int
    sent_at: int | None = None
    ttl_at: int | None = None
    sweep_at: int | None = None
