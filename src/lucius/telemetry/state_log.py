"""A line for each change of a job's state, written once, by the process that committed it.

In: commits. Out: log lines. A service's own words (messages, results, notes) stay in the job's events: they
may hold the text of a client's document.
"""

import logging
from collections.abc import Sequence
from typing import Any, Final

import structlog

from lucius.core.model import Event, Job, JobRecord
from lucius.core.states import Fact
from lucius.telemetry.context import note_created

LEVELS: Final = {
    Fact.JOB_CREATED: logging.INFO,
    Fact.JOB_SUCCEEDED: logging.INFO,
    Fact.JOB_FAILED: logging.INFO,
    Fact.JOB_CANCELLING: logging.INFO,
    Fact.JOB_CANCELLED: logging.INFO,
    Fact.JOB_PAUSING: logging.INFO,
    Fact.JOB_PAUSED: logging.INFO,
    Fact.JOB_RESUMED: logging.INFO,
    Fact.STEP_RETRYING: logging.INFO,
    Fact.STEP_FAILED: logging.INFO,
    Fact.SLA_ESCALATED: logging.WARNING,
    Fact.PUBLISH_FAILED: logging.WARNING,
    Fact.REPLY_LATE: logging.INFO,
    Fact.REPLY_STALE: logging.INFO,
    Fact.REPLY_REFUSED: logging.WARNING,
    Fact.REPLY_DUPLICATE: logging.INFO,
    Fact.ATTEMPT_BEGUN: logging.DEBUG,
    Fact.DIRECTIVE_PUBLISHED: logging.DEBUG,
    Fact.STEP_ACKED: logging.DEBUG,
    Fact.STEP_SUCCEEDED: logging.DEBUG,
    Fact.STEP_CANCELLED: logging.DEBUG,
}

LOUDEST: Final = max(LEVELS.values())
_NAMES: Final = {fact: fact.value.lower() for fact in LEVELS}
_ENDS: Final = frozenset({Fact.JOB_SUCCEEDED, Fact.JOB_FAILED, Fact.JOB_CANCELLED})


class StateLog:
    def __init__(self) -> None:
        self._log: Any = structlog.get_logger("lucius.jobs")
        self._bound: Any = None

    def watch(self, before: JobRecord | None, after: JobRecord, events: Sequence[Event]) -> None:
        if before is None:
            note_created(after.job)
        log: Any = self._bound
        if log is None:
            log = self._log.bind()
            if structlog.get_config()["cache_logger_on_first_use"]:  # then each call would give the same
                self._bound = log
        if not log.is_enabled_for(LOUDEST):
            return
        finest = logging.DEBUG if log.is_enabled_for(logging.DEBUG) else logging.INFO
        for event in events:
            level = LEVELS.get(event.type)
            if level is None or level < finest:
                continue
            if log.is_enabled_for(level):
                log.log(level, _NAMES[event.type], **_fields(before, after, event))


def _fields(before: JobRecord | None, after: JobRecord, event: Event) -> dict[str, Any]:
    job, data = after.job, event.data
    fields: dict[str, Any] = {
        "jobId": job.job_id,
        "tenant_id": job.tenant_id,
        "correlation_id": job.correlation_id,
        "request_type": job.request_type,
    }
    if event.step_id is not None:
        fields["stepId"] = event.step_id
        fields["attempt_no"] = event.attempt_no
        # An attempt that is given up and the next one may be in one commit: then only `before` has its lease.
        lease_id = _lease_id(after, event) or _lease_id(before, event)
        if lease_id is not None:
            fields["lease_id"] = lease_id
    for name in ("reason", "code", "to"):
        if name in data:
            fields[name] = data[name]
    if event.type is Fact.PUBLISH_FAILED:
        fields["error"] = data["message"]
    if event.type in _ENDS:
        fields["duration_seconds"] = _age_seconds(job, event)
    return fields


def _lease_id(record: JobRecord | None, event: Event) -> str | None:
    step = None if record is None else record.step(event.step_id or "")
    return step.lease_id if step is not None and step.attempt_no == event.attempt_no else None


def _age_seconds(job: Job, event: Event) -> float:
    return max(0, event.at_ms - job.created_at_ms) / 1000
