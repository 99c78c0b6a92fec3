"""What holds of every edge of the machine, whatever was given to whichever record.

In: an edge. Out: nothing, or an AssertionError that names what broke. `INVARIANTS` holds them by name.
"""

from collections.abc import Callable

import msgspec
from tests.core.machine import Edge, focus

from lucius.core.decide import decide, is_dispatchable, is_publishable
from lucius.core.draft import Decision, Outcome
from lucius.core.due import next_due_ms
from lucius.core.fold import fold
from lucius.core.inputs import (
    Ack,
    BeginAttempt,
    Cancel,
    Expire,
    HandOut,
    Pause,
    Progress,
    Result,
    Resume,
    Tick,
)
from lucius.core.model import JobRecord
from lucius.core.refusal import Code, Refused
from lucius.core.replies import EVIDENCE_MAX
from lucius.core.states import (
    EVIDENCE,
    STEP_ACTIVE,
    STEP_TERMINAL,
    Engine,
    JobState,
    OutboxState,
    StepState,
)

J, S = JobState, StepState

REFUSALS = {
    HandOut: {Code.STALE_ATTEMPT},
    BeginAttempt: {Code.STALE_ATTEMPT},
    Expire: {Code.STALE_ATTEMPT},
    Cancel: {Code.JOB_TERMINAL},
    Pause: {Code.JOB_TERMINAL, Code.JOB_CANCELLING},
    Resume: {Code.JOB_TERMINAL, Code.JOB_CANCELLING},
}
PINNED = ("policy", "routing", "service", "input_ref", "workspace_ref", "output_ref", "payload")


def only_wishes_are_refused(edge: Edge) -> None:
    if isinstance(edge.answer, Refused):
        assert edge.answer.code in REFUSALS[type(edge.given)], edge
    if isinstance(edge.given, BeginAttempt | Expire):
        assert isinstance(edge.answer, Refused) == (edge.before.job.engine is Engine.OUTBOX)


def a_decision_folds_exactly(edge: Edge) -> None:
    if not isinstance(edge.answer, Decision):
        return
    folded = edge.before
    for event in edge.answer.events:
        folded = fold(folded, event)
    if _is_silent_progress(edge):
        before, after = focus(folded), focus(edge.after)
        assert after.state is S.PROCESSING and after.progress_event_at_ms == before.progress_event_at_ms
        assert edge.after.job.seq == edge.before.job.seq
        return
    assert folded == edge.after, edge


def events_are_numbered_without_gaps(edge: Edge) -> None:
    if not isinstance(edge.answer, Decision):
        return
    events, first = edge.answer.events, edge.before.job.seq + 1
    assert [event.seq for event in events] == list(range(first, first + len(events)))
    assert all(event.at_ms == edge.at_ms for event in events)
    assert edge.after.job.seq == edge.before.job.seq + len(events)


def what_is_unchanged_is_the_same(edge: Edge) -> None:
    if isinstance(edge.answer, Decision) and edge.answer.outcome is Outcome.UNCHANGED:
        assert edge.after is edge.before and not edge.answer.events


def evidence_changes_nothing_else(edge: Edge) -> None:
    answer = edge.answer
    if not isinstance(answer, Decision) or answer.outcome in (Outcome.APPLIED, Outcome.UNCHANGED):
        return
    assert isinstance(edge.given, Ack | Progress | Result)
    assert {event.type for event in answer.events} <= EVIDENCE and len(answer.events) <= 1
    assert _without_trail(edge.after) == _without_trail(edge.before)
    assert edge.after.job.evidence_count <= EVIDENCE_MAX


def terminal_states_never_change(edge: Edge) -> None:
    if edge.before.job.terminal:
        assert _without_trail(edge.after) == _without_trail(edge.before)
    for before, after in zip(edge.before.steps, edge.after.steps, strict=True):
        if before.state in STEP_TERMINAL:
            assert after == before


def one_step_is_active_at_most(edge: Edge) -> None:
    assert sum(step.state in STEP_ACTIVE for step in edge.after.steps) <= 1


def steps_run_one_after_the_other(edge: Edge) -> None:
    for earlier, later in zip(edge.after.steps, edge.after.steps[1:], strict=False):
        if later.attempt_no > 0:
            assert earlier.state is S.SUCCEEDED
        if later.state is not S.PENDING:
            assert earlier.state is S.SUCCEEDED or later.state is S.CANCELLED


def attempts_are_bounded_and_counted(edge: Edge) -> None:
    for before, after in zip(edge.before.steps, edge.after.steps, strict=True):
        assert before.attempt_no <= after.attempt_no <= before.attempt_no + 1
        assert after.attempt_no <= after.policy.max_attempts + after.attempts_forgiven
        assert before.attempts_forgiven <= after.attempts_forgiven <= after.attempt_no
    assert edge.after.job.attempts_total == sum(step.attempt_no for step in edge.after.steps)


def each_attempt_has_a_lease_of_its_own(edge: Edge) -> None:
    known = {step.lease_id for step in edge.before.steps} - {None}
    for before, after in zip(edge.before.steps, edge.after.steps, strict=True):
        if after.attempt_no == before.attempt_no:
            assert after.lease_id == before.lease_id
        else:
            assert after.lease_id == edge.lease_id and after.lease_id not in known
    leases = [step.lease_id for step in edge.after.steps if step.lease_id is not None]
    assert len(set(leases)) == len(leases)


def what_is_pinned_stays(edge: Edge) -> None:
    for before, after in zip(edge.before.steps, edge.after.steps, strict=True):
        assert all(getattr(before, name) == getattr(after, name) for name in PINNED)
    assert edge.after.job.lane == edge.before.job.lane and edge.after.job.mode is edge.before.job.mode


def something_is_due_until_the_end(edge: Edge) -> None:
    due_at_ms = next_due_ms(edge.after, edge.at_ms)
    assert (due_at_ms is None) == edge.after.job.terminal


def a_tick_acts_when_due_and_not_before(edge: Edge) -> None:
    due_at_ms = next_due_ms(edge.after, edge.at_ms)
    if due_at_ms is None or not (_is_applied(edge) or isinstance(edge.given, Tick)):
        return
    if due_at_ms > edge.at_ms:
        for early_ms in (edge.at_ms, due_at_ms - 1):
            assert _tick(edge.after, early_ms).outcome is Outcome.UNCHANGED, "a tick acts before it is due"
    at_ms = max(due_at_ms, edge.at_ms)
    then_ms = next_due_ms(_tick(edge.after, at_ms).record, at_ms)
    assert then_ms is None or then_ms > at_ms, "a tick leaves something due: it would run hot"


def the_current_step_is_the_last_one_begun(edge: Edge) -> None:
    job, begun = edge.after.job, [step for step in edge.after.steps if step.attempt_no > 0]
    if not begun:
        assert job.current_step_id is None and job.current_step_index is None
        return
    assert (job.current_step_index, job.current_step_id) == (begun[-1].step_index, begun[-1].step_id)


def a_way_back_is_kept_while_pausing_alone(edge: Edge) -> None:
    job = edge.after.job
    assert (job.resume_to is not None) == (job.state in (J.PAUSING, J.PAUSED))
    assert (job.paused_at_ms is not None) == (job.state is J.PAUSED)
    if job.resume_to is not None:
        assert job.resume_to in (J.QUEUED, J.DISPATCHING, J.IN_PROGRESS)
        acknowledged = any(step.acked or step.state is S.SUCCEEDED for step in edge.after.steps)
        assert job.resume_to is J.IN_PROGRESS or not acknowledged


def the_job_state_fits_its_steps(edge: Edge) -> None:
    job, steps = edge.after.job, edge.after.steps
    under_way = any(edge.after.is_under_way(step) for step in steps)
    if job.state in (J.PAUSING, J.CANCELLING):
        assert under_way
    if job.state is J.PAUSED or job.terminal:
        assert not under_way
    if job.terminal:
        assert not any(step.state in STEP_ACTIVE or step.state is S.FAILED_RETRY for step in steps)
    if job.state is J.SUCCEEDED:
        assert all(step.state is S.SUCCEEDED for step in steps)
    if job.state is J.CANCELLED:
        assert all(step.state in STEP_TERMINAL for step in steps)
    assert (job.error_code is not None) == (job.state is J.FAILED_FINAL)
    assert (job.final_output is not None) == (job.state is J.SUCCEEDED)
    assert (job.completed_at_ms is not None) == job.terminal


def each_clock_runs_in_its_state_alone(edge: Edge) -> None:
    for step in edge.after.steps:
        assert (step.lease_expires_at_ms is not None) == edge.after.is_under_way(step)
        assert (step.completed_at_ms is not None) == (step.state in STEP_TERMINAL)
        if step.state is S.FAILED_RETRY:
            assert step.next_attempt_at_ms is not None
        elif not edge.after.awaits_dispatch(step):
            assert step.next_attempt_at_ms is None


def the_outbox_row_fits_its_step(edge: Edge) -> None:
    record, outbox = edge.after, edge.after.outbox
    if outbox is None:
        assert all(step.attempt_no == 0 for step in record.steps)
        assert not is_dispatchable(record)
        return
    step = focus(record)
    assert (outbox.step_id, outbox.attempt_no, outbox.lease_id) == (
        step.step_id,
        step.attempt_no,
        step.lease_id,
    )
    temporal = record.job.engine is Engine.TEMPORAL
    unsent = step.state is S.DISPATCHING
    if temporal:
        unsent = step.state is S.INITIATED and step.lease_expires_at_ms is None
    assert (outbox.state is OutboxState.PENDING) == unsent == record.awaits_dispatch(step)
    assert (outbox.sent_at_ms is not None) == (outbox.state is OutboxState.SENT)
    held = record.job.state is J.PAUSED
    assert is_publishable(record) == (outbox.state is OutboxState.PENDING and not held)
    assert is_dispatchable(record) == (is_publishable(record) and not temporal)


def _is_applied(edge: Edge) -> bool:
    return isinstance(edge.answer, Decision) and edge.answer.outcome is Outcome.APPLIED


def _is_silent_progress(edge: Edge) -> bool:
    return (
        isinstance(edge.given, Progress) and _is_applied(edge) and edge.before.job.seq == edge.after.job.seq
    )


def _without_trail(record: JobRecord) -> JobRecord:
    job = msgspec.structs.replace(record.job, seq=0, evidence_count=0, updated_at_ms=0)
    return msgspec.structs.replace(record, job=job)


def _tick(record: JobRecord, at_ms: int) -> Decision:
    decision = decide(record, Tick(), now_ms=at_ms, lease_id="lease of a tick")
    assert isinstance(decision, Decision)
    return decision


INVARIANTS: dict[str, Callable[[Edge], None]] = {
    rule.__name__: rule
    for rule in (
        only_wishes_are_refused,
        a_decision_folds_exactly,
        events_are_numbered_without_gaps,
        what_is_unchanged_is_the_same,
        evidence_changes_nothing_else,
        terminal_states_never_change,
        one_step_is_active_at_most,
        steps_run_one_after_the_other,
        attempts_are_bounded_and_counted,
        each_attempt_has_a_lease_of_its_own,
        what_is_pinned_stays,
        something_is_due_until_the_end,
        a_tick_acts_when_due_and_not_before,
        the_current_step_is_the_last_one_begun,
        a_way_back_is_kept_while_pausing_alone,
        the_job_state_fits_its_steps,
        each_clock_runs_in_its_state_alone,
        the_outbox_row_fits_its_step,
    )
}


def check(edge: Edge) -> None:
    for rule in INVARIANTS.values():
        rule(edge)
