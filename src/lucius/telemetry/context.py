"""Which request, and which job, the running task is busy with.

In: what a request or a reply names. Out: the ids for a log line, made only when a line is written. Both are
context variables: tasks that a request starts inherit them, other requests do not see them.
"""

import re
from contextvars import ContextVar, Token
from typing import Any

from lucius.core.model import Job

_job_in_path = re.compile(r"/(job_[0-9a-z]{26})(?=[:/]|$)").search
_STEP_FIELDS = (("stepId", "step_id"), ("attempt_no", "attempt_no"), ("lease_id", "lease_id"))


class Subject:
    """A job, what is happening to it, and its row once that was read. `given` names an attempt if it is about
    one: an input, a step, or an `AttemptRef`."""

    __slots__ = ("given", "job", "job_id")

    def __init__(self, job_id: str, given: object = None, job: Job | None = None) -> None:
        self.job_id = job_id
        self.given = given
        self.job = job

    def ids(self) -> dict[str, Any]:
        found: dict[str, Any] = {"jobId": self.job_id}
        for name, attribute in _STEP_FIELDS:
            value = getattr(self.given, attribute, None)
            if value is not None:
                found[name] = value
        if self.job is not None:
            found["tenant_id"] = self.job.tenant_id
            found["correlation_id"] = self.job.correlation_id
        elif (tenant_id := getattr(self.given, "tenant_id", None)) is not None:
            found["tenant_id"] = tenant_id
        return found


class RequestIds:
    """One request: its correlation id, and the job it turned out to be about, if it is about one only."""

    __slots__ = ("_many", "_subject", "correlation_id", "path")

    def __init__(self, correlation_id: str, path: str) -> None:
        self.correlation_id = correlation_id
        self.path = path
        self._subject: Subject | None = None
        self._many = False

    def note(self, subject: Subject) -> None:
        known = self._subject
        if known is None:
            self._subject = subject
        elif known.job_id != subject.job_id:
            self._many = True

    def ids(self) -> dict[str, Any]:
        if self._subject is not None and not self._many:
            return self._subject.ids()
        named = _job_in_path(self.path)
        return {} if named is None else {"jobId": named[1]}


REQUEST: ContextVar[RequestIds | None] = ContextVar("lucius_request", default=None)
_SUBJECT: ContextVar[Subject | None] = ContextVar("lucius_subject", default=None)


def name_subject(subject: Subject) -> Token[Subject | None]:
    """Lines from here on are about this job, until `forget_subject`."""
    request = REQUEST.get()
    if request is not None:
        request.note(subject)
    return _SUBJECT.set(subject)


def forget_subject(named: Token[Subject | None]) -> None:
    _SUBJECT.reset(named)


def note_created(job: Job) -> None:
    """A request made this job."""
    request = REQUEST.get()
    if request is not None:
        request.note(Subject(job.job_id, job=job))


def current_ids() -> dict[str, Any]:
    """The ids the running task is busy with. `correlation_id` is the job's own where one is known, and
    `request_id` always the request's."""
    request, subject = REQUEST.get(), _SUBJECT.get()
    found = subject.ids() if subject is not None else {} if request is None else request.ids()
    if request is not None:
        found.setdefault("correlation_id", request.correlation_id)
        found["request_id"] = request.correlation_id
    return found
