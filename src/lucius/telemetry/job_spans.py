"""A job's trace, made from its commits.

In: commits. Out: spans, each given once, by the process that committed its end: the job, and below it how it
came in, how long each directive waited for its way out, each attempt, and each answer. Their ids follow from
the job's and the lease's, so processes that know nothing of each other add to one trace. What a service says
of its own work is its span, which continues the same `traceparent`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from lucius.core.model import Event, Job, JobRecord, Step
from lucius.core.states import EVIDENCE, Fact
from lucius.telemetry.traces import Span, child_of, span_id_of

_REPLIES: Final = {
    Fact.STEP_ACKED: "ACK",
    Fact.STEP_PROGRESSED: "PROGRESS",
    Fact.STEP_SUCCEEDED: "RESULT",
    Fact.STEP_RETRYING: "RESULT",
    Fact.STEP_FAILED: "RESULT",
    Fact.STEP_CANCELLED: "RESULT",
}
_ATTEMPT_ENDS: Final = {
    Fact.STEP_SUCCEEDED: "succeeded",
    Fact.STEP_RETRYING: "failed_retry",
    Fact.STEP_FAILED: "failed_final",
    Fact.STEP_CANCELLED: "cancelled",
}
_JOB_ENDS: Final = frozenset({Fact.JOB_SUCCEEDED, Fact.JOB_FAILED, Fact.JOB_CANCELLED})


class JobSpans:
    def __init__(self, take: Callable[[Span], None], *, now_ms: Callable[[], int]) -> None:
        self._take = take
        self._now_ms = now_ms

    def watch(self, before: JobRecord | None, after: JobRecord, events: Sequence[Event]) -> None:
        own_id = span_id_of(after.job.job_id)
        span = child_of(after.job.traceparent, lambda _: own_id)
        if span is None or not span.sampled:
            return
        if span.parent_id == own_id:
            span = msgspec.structs.replace(span, parent_id="")
        for event in events:
            _EventSpans(self._take, span, before, after, event).emit(self._now_ms)


class _EventSpans:
    """The spans of one event. `job_span` is the parent of all spans of the job."""

    def __init__(
        self,
        take: Callable[[Span], None],
        job_span: Span,
        before: JobRecord | None,
        after: JobRecord,
        event: Event,
    ) -> None:
        self._take = take
        self._job_span = job_span
        self._before = before
        self._after = after
        self._event = event

    def emit(self, now_ms: Callable[[], int]) -> None:
        event, job = self._event, self._after.job
        fact = event.type
        if fact is Fact.JOB_CREATED:
            name = f"submit {job.request_type}"
            self._give(f"submit {job.job_id}", name, "server", job.created_at_ms, now_ms())
        elif fact in EVIDENCE:
            self._evidence(now_ms())
        elif fact in _JOB_ENDS:
            self._job()
        elif event.step_id is not None:
            step = self._step()
            if step is not None:
                self._attempt(step, now_ms)

    def _step(self) -> Step | None:
        """As it was before, if the attempt had begun by then: the next one may begin in the same commit."""
        for record in (self._before, self._after):
            step = None if record is None else record.step(self._event.step_id or "")
            if step is not None and step.attempt_no == self._event.attempt_no and step.lease_id is not None:
                return step
        return None

    def _attempt(self, step: Step, now_ms: Callable[[], int]) -> None:
        event, lease_id = self._event, step.lease_id
        fact, data = event.type, event.data
        began_ms = step.attempt_began_at_ms or event.at_ms
        attempt = f"attempt {lease_id}"
        if fact is Fact.DIRECTIVE_PUBLISHED:
            self._give(f"dispatch {lease_id}", f"dispatch {step.service}", "producer", began_ms, event.at_ms)
            return
        reply = _REPLIES.get(fact)
        said = fact is Fact.STEP_SUCCEEDED or data.get("reason", "RESULT") == "RESULT"
        if reply is not None and said and not data.get("implied"):
            what, name = f"{reply} {lease_id} {event.seq}", f"{reply} {step.service}"
            self._give(what, name, "consumer", event.at_ms, now_ms(), below=attempt)
        outcome = _ATTEMPT_ENDS.get(fact)
        if outcome is not None:
            name = f"attempt {step.step_type}"
            self._give(attempt, name, "internal", began_ms, event.at_ms, outcome=outcome)

    def _evidence(self, now_ms: int) -> None:
        event = self._event
        said: Mapping[str, Any] = event.data.get("reply") or {}
        step = self._after.step(event.step_id or "")
        service = "a service" if step is None else step.service
        outcome = event.type.value.removeprefix("REPLY_").lower()
        name = f"{said.get('type', 'reply')} {service}"
        what = f"{event.type} {self._after.job.job_id} {event.seq}"
        self._give(what, name, "consumer", event.at_ms, now_ms, outcome=outcome)

    def _job(self) -> None:
        job, event = self._after.job, self._event
        span = self._job_span
        self._take(
            msgspec.structs.replace(
                span,
                name=f"job {job.request_type}",
                began_ms=job.created_at_ms,
                duration_ms=_length_ms(job.created_at_ms, event.at_ms),
                failed=event.type is Fact.JOB_FAILED,
                attributes=self._attributes(job.state.value.lower()),
            )
        )

    def _give(
        self,
        what: str,
        name: str,
        kind: Literal["internal", "server", "producer", "consumer"],
        began_ms: int,
        ended_ms: int,
        *,
        below: str | None = None,
        outcome: str | None = None,
    ) -> None:
        """`what` it is the span of, which no other is; `below`: of what it is a part, else of the job."""
        frame = self._job_span
        self._take(
            Span(
                trace_id=frame.trace_id,
                span_id=span_id_of(what),
                parent_id=frame.span_id if below is None else span_id_of(below),
                flags=frame.flags,
                name=name,
                kind=kind,
                began_ms=began_ms,
                duration_ms=_length_ms(began_ms, ended_ms),
                failed=outcome is not None and outcome.startswith("failed"),
                attributes=self._attributes(outcome),
            )
        )

    def _attributes(self, outcome: str | None) -> dict[str, str | int]:
        """The ids of a log line. Messages are left out: they may quote a document."""
        job, event = self._after.job, self._event
        found: dict[str, str | int] = _ids_of(job)
        if event.step_id is not None:
            found["stepId"] = event.step_id
        if event.attempt_no is not None:
            found["attempt_no"] = event.attempt_no
        step = self._step()
        if step is not None and step.lease_id is not None:
            found["lease_id"] = step.lease_id
        if outcome is not None:
            found["outcome"] = outcome
        for name in ("reason", "code"):
            if isinstance(value := event.data.get(name), str):
                found[name] = value
        return found


def _ids_of(job: Job) -> dict[str, str | int]:
    return {
        "jobId": job.job_id,
        "tenant_id": job.tenant_id,
        "correlation_id": job.correlation_id,
        "request_type": job.request_type,
    }


def _length_ms(began_ms: int, ended_ms: int) -> float:
    """Never below 0: the two may come from two clocks."""
    return float(max(0, ended_ms - began_ms))
