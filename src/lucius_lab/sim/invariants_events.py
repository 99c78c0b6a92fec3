"""What an event says, held against the policy of its step and the events before it.

In: a job's record before an event, and the event. Out: nothing, or what is wrong with it. `fold` believes
what events say, and `decide` writes them: what both agree upon is compared here with the rules themselves,
which are written down once more, in another way.
"""

from collections.abc import Callable, Mapping, Set

from lucius.core.due import ran_ahead
from lucius.core.model import Event, JobRecord, Step
from lucius.core.replies import STOPPED, is_stopped
from lucius.core.states import STEP_TERMINAL, Fact, JobState, StepState
from lucius_lab.sim.workers import BUSY, RESULTS, result_uri

# Looked up once: the members of an enum are slow to reach, and every event asks for some.
_RESUMED, _FAILED, _SUCCEEDED = Fact.JOB_RESUMED, Fact.JOB_FAILED, Fact.JOB_SUCCEEDED
_DONE = frozenset({JobState.SUCCEEDED, JobState.CANCELLED})
_LATE = frozenset({Fact.REPLY_LATE, Fact.REPLY_STALE})

_DEADLINE_OF = {"ACK_TIMEOUT": StepState.INITIATED, "LEASE_EXPIRED": StepState.PROCESSING}


def _begun(before: JobRecord, step: Step, event: Event) -> str | None:
    if ran_ahead(step.updated_at_ms, event.at_ms):
        return None  # the backoff was counted by a clock that has been set right since
    if step.next_attempt_at_ms is not None and event.at_ms < step.next_attempt_at_ms:
        return f"the attempt began {step.next_attempt_at_ms - event.at_ms} ms before its time"
    return None


def _published(before: JobRecord, step: Step, event: Event) -> str | None:
    return _deadline(event, step.policy.ack_timeout_ms, "the ACK")


def _acked(before: JobRecord, step: Step, event: Event) -> str | None:
    return _deadline(event, step.policy.lease_ms, "the lease")


def _deadline(event: Event, span_ms: int, what: str) -> str | None:
    given_ms = event.data["deadline_at_ms"] - event.at_ms
    return None if given_ms == span_ms else f"{what} is given {given_ms} ms and not {span_ms}"


def _progressed(before: JobRecord, step: Step, event: Event) -> str | None:
    latest_ms = (step.attempt_began_at_ms or event.at_ms) + step.policy.max_duration_ms
    if event.data["deadline_at_ms"] > max(latest_ms, step.lease_expires_at_ms or 0):
        return "progress renewed the lease beyond max_duration"
    return None


def _succeeded(before: JobRecord, step: Step, event: Event) -> str | None:
    uri = (event.data["output_ref"] or {}).get("uri", "")
    own = result_uri(before.job.job_id, step.step_id, event.attempt_no or 0)
    return f"the result is {uri}, of another attempt" if uri.startswith(RESULTS) and uri != own else None


def _publish_failed(before: JobRecord, step: Step, event: Event) -> str | None:
    policy, failures = step.policy, event.data["failures"]
    if failures != 1 + (0 if before.outbox is None else before.outbox.failures):
        return f"it is counted as failure {failures}"
    if 0 < policy.publish_attempts_max <= failures:
        return f"it is to be published again after {failures} failures"
    backoffs_ms = policy.backoff_publish_ms
    wait_ms = backoffs_ms[min(failures, len(backoffs_ms)) - 1] if backoffs_ms else 0
    if event.data["next_attempt_at_ms"] != event.at_ms + max(wait_ms, 0 if failures == 1 else 1_000):
        return f"the next publish is not {wait_ms} ms away, as the policy says"
    return None


def _retrying(before: JobRecord, step: Step, event: Event) -> str | None:
    counted, data = step.attempt_no - step.attempts_forgiven, event.data
    if is_stopped(event):
        return _stopped(step, event)
    used = counted >= step.policy.max_attempts and not step.probing
    if used and not (step.fallback or step.policy.parks_exhausted):
        return "it is to be tried again, and has no attempts left"
    if used:
        stands_in = step.fallback[0] if step.fallback else None
        if (data.get("forgiven"), data.get("service")) != (step.attempt_no, stands_in):
            return f"its attempts are used, and {data.get('service')} has {data.get('forgiven')} forgiven"
        return _ended(before, step, event)
    if "service" in data or data.get("forgiven") != (step.attempts_forgiven + 1 if step.probing else None):
        return f"{data.get('service')} has {data.get('forgiven')} attempts forgiven before they were used"
    backoffs_ms = step.policy.backoff_result_ms
    if event.data["reason"] == "ACK_TIMEOUT":
        backoffs_ms = step.policy.backoff_ack_ms
    wait_ms = backoffs_ms[min(max(1, counted), len(backoffs_ms)) - 1] if backoffs_ms else 0
    if event.data["next_attempt_at_ms"] != event.at_ms + wait_ms:
        return f"the next attempt is not {wait_ms} ms away, as the policy says"
    return _ended(before, step, event)


def _stopped(step: Step, event: Event) -> str | None:
    """That a pause asked for it, the trail of the job knows."""
    data = event.data
    if not step.stop_on_pause or (data["reason"], data["code"]) != ("RESULT", STOPPED):
        return "it is said to have stopped, and no worker said so"
    if data["forgiven"] != step.attempts_forgiven + 1:
        return "it stopped, and counts"
    return None if data["next_attempt_at_ms"] == event.at_ms else "it stopped, and is to wait"


def _failed(before: JobRecord, step: Step, event: Event) -> str | None:
    reason, outbox, job = event.data["reason"], before.outbox, before.job
    if reason == "SLA":
        early = event.at_ms - job.created_at_ms - job.paused_total_ms < 2 * job.sla_ms
        return "the SLA is not over" if early else None
    if reason == "PUBLISH":
        failures = 0 if outbox is None else outbox.failures + 1
        first_ms = event.at_ms if outbox is None else outbox.first_failed_at_ms or event.at_ms
        patient = event.at_ms < first_ms + step.policy.dispatch_timeout_ms
        if ran_ahead(step.updated_at_ms, event.at_ms):
            return None
        limited = 0 < step.policy.publish_attempts_max <= failures
        return "publishing was given up before its time" if patient and not limited else None
    passing = reason != "RESULT" or event.data["code"] == BUSY
    if passing and not step.is_last_attempt:
        return f"it failed for good after attempt {step.attempt_no} of {step.policy.max_attempts}"
    return _ended(before, step, event)


def _ended(before: JobRecord, step: Step, event: Event) -> str | None:
    """A time that ran out was over, and was the one that was running."""
    reason = event.data.get("reason")
    if reason not in _DEADLINE_OF:
        return None
    if step.state is not _DEADLINE_OF[reason]:
        return f"{reason} struck a step that is {step.state}"
    if ran_ahead(step.updated_at_ms, event.at_ms):
        return (
            None  # its deadline was set by a clock that has been set right since; `Times` knows the true time
        )
    if step.lease_expires_at_ms is None or event.at_ms < step.lease_expires_at_ms:
        return f"{reason} struck before the time was over"
    return None


_OF_STEPS: Mapping[Fact, Callable[[JobRecord, Step, Event], str | None]] = {
    Fact.ATTEMPT_BEGUN: _begun,
    Fact.DIRECTIVE_PUBLISHED: _published,
    Fact.PUBLISH_FAILED: _publish_failed,
    Fact.STEP_ACKED: _acked,
    Fact.STEP_PROGRESSED: _progressed,
    Fact.STEP_SUCCEEDED: _succeeded,
    Fact.STEP_RETRYING: _retrying,
    Fact.STEP_FAILED: _failed,
    Fact.STEP_CANCELLED: _ended,
}


def wrong_words(before: JobRecord, event: Event, *, acked: bool, lost: Event | None) -> str | None:
    """`acked`: whether any attempt of the job was ever acknowledged; `lost`: the last step that failed."""
    judge = _OF_STEPS.get(event.type)
    if judge is not None:
        step = before.step(event.step_id or "")
        return None if step is None else judge(before, step, event)
    if event.type is _RESUMED:
        going = event.data["to"] == JobState.IN_PROGRESS
        return None if going is acked else f"it goes on as {event.data['to']}"
    if event.type is _FAILED:
        error = None if lost is None else (lost.data["code"], lost.data["message"])
        return None if error == (event.data["code"], event.data["message"]) else f"its error is not {error}"
    if event.type is _SUCCEEDED:
        uri = (before.steps[-1].result_ref or {}).get("uri") or before.job.output_uri
        return None if event.data["final_output"] == uri else f"its output is not {uri}"
    return None


def wrong_end(record: JobRecord) -> str | None:
    """An end that leaves no step open; after a failure those that were never begun stay as they are."""
    job = record.job
    if job.state not in _DONE:
        return None
    still = [step.step_id for step in record.steps if step.state not in STEP_TERMINAL]
    return f"the job is {job.state}, and {', '.join(still)} is not over" if still else None


def wrong_reuse(
    record: JobRecord, old: JobRecord | None, *, firsts: Set[int] = frozenset(), late: Event | None = None
) -> str | None:
    """A rerun begins with what had succeeded before the first step that had not, or before one of `firsts`,
    the steps from which a client asked for it; `late` is the success in the old trail that it adopts."""
    reused = [step for step in record.steps if step.state is StepState.SUCCEEDED and step.attempt_no == 0]
    if old is None:
        return "a new job begins with results" if reused and record.job.rerun_of is None else None
    done = 0
    while done < len(old.steps) and old.steps[done].state is StepState.SUCCEEDED:
        done += 1
    results = [step.result_ref for step in old.steps[:done]]
    count = len(reused)
    if late is not None:
        reply = late.data.get("reply") or {}
        if late.type not in _LATE or (reply.get("type"), reply.get("status")) != ("RESULT", "SUCCEEDED"):
            return f"it adopts event {late.seq}, which is no success that came too late"
        taken = [step.step_id for step in record.steps].index(late.step_id or "")
        results = [*results[:taken], reply.get("output_ref")]
        if count != taken + 1:
            return f"it adopts the result of step {taken}, and begins with {count} results"
    elif count != done and not (count < done and count in firsts):
        return f"{count} results are reused, and {done} steps had succeeded one after the other"
    if [step.step_index for step in reused] != list(range(count)):
        return "it reuses results of steps that are not the first"
    if [step.result_ref for step in reused] != results[:count]:
        return "it reuses other results than those of the job before"
    return None
