"""What others rely on to the letter: names on the wire and in rows, numbers of a policy, values at birth."""

from enum import StrEnum

import msgspec
import pytest
from tests.core.machine import HOUR_MS, ROUTING, START_MS, born, give, new_job, new_steps

from lucius.core import explain, replies, routing
from lucius.core import explain as hints
from lucius.core.draft import Decision, Outcome
from lucius.core.due import next_due_ms
from lucius.core.durations import DURATION_MS_MAX
from lucius.core.inputs import HandOut, Pause, Progress, Result, ResultStatus
from lucius.core.model import Event, Outbox, StepPolicy, StepSpec, step_id_at
from lucius.core.refusal import Code, FieldError, Refused
from lucius.core.states import Engine, Fact, JobState, Mode, OutboxState, StepState


@pytest.mark.parametrize(
    "names", [JobState, StepState, OutboxState, Mode, Fact, Code, ResultStatus, explain.WaitsFor]
)
def test_a_name_is_its_own_value(names: type[StrEnum]) -> None:
    assert {member.name: member.value for member in names} == {name: name for name in names.__members__}


def test_names_in_small_letters() -> None:
    assert [member.value for member in Engine] == ["outbox", "temporal"]
    outcomes = ["applied", "duplicate", "recorded", "stale", "other_tenant", "unchanged"]
    assert [member.value for member in Outcome] == outcomes


def test_how_patient_a_step_is_unless_told_otherwise() -> None:
    policy = StepPolicy()
    assert policy.max_attempts == 3
    assert (policy.ack_timeout_ms, policy.lease_ms) == (30_000, 15 * 60_000)
    assert (policy.max_duration_ms, policy.dispatch_timeout_ms) == (24 * HOUR_MS, 24 * HOUR_MS)
    assert policy.backoff_publish_ms == policy.backoff_result_ms == (30_000, 120_000, 600_000)
    assert policy.backoff_ack_ms == (60_000, 300_000, 900_000)
    assert policy.publish_attempts_max == 0


def test_a_step_of_a_protocol_needs_only_its_type_and_service() -> None:
    spec = StepSpec(step_type="OCR", service="ocr")
    assert (spec.payload_key, spec.payload_schema, spec.defaults, spec.policy) == (None, {}, {}, StepPolicy())


def _at_birth(value: msgspec.Struct) -> dict[str, object]:
    """What is set although nobody set it."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(value) if not field.required}
    return {name: getattr(value, name) for name in defaults if getattr(value, name) is not None}


def test_a_job_begins_with_nothing_counted() -> None:
    found = _at_birth(new_job())
    assert (found.pop("state"), found.pop("priority"), found.pop("usage")) == (JobState.QUEUED, 5, {})
    assert {"attempts_total", "paused_total_ms", "seq", "evidence_count", "version"} <= set(found)
    assert not any(found.values()), "a count begins at 0"
    assert all(type(value) is int for value in found.values())


def test_a_step_begins_with_nothing_done() -> None:
    (step,) = new_steps(1, StepPolicy())
    found = _at_birth(step)
    assert found.pop("state") is StepState.PENDING
    assert (found.pop("attempt_no"), found.pop("acked"), found.pop("resulted")) == (0, False, False)
    assert not any(found.values())


def test_an_outbox_row_begins_pending() -> None:
    row = born().outbox
    assert row is not None
    bare = Outbox(
        outbox_id="o",
        step_id="step_01",
        step_index=0,
        service="ocr",
        lane=3,
        attempt_no=1,
        lease_id="lease",
        created_at_ms=1,
        updated_at_ms=1,
    )
    assert (row.state, row.failures) == (OutboxState.PENDING, 0)
    assert (bare.state, bare.due_at_ms, bare.failures) == (OutboxState.PENDING, 0, 0)
    assert (bare.first_failed_at_ms, bare.sent_at_ms) == (None, None)


def test_small_values_at_birth() -> None:
    event = Event(seq=1, type=Fact.JOB_CREATED, at_ms=1)
    assert (event.step_id, event.attempt_no, event.data) == (None, None, {})
    decision = Decision(record=born())
    assert (decision.events, decision.outcome, decision.stop) == ((), Outcome.APPLIED, False)
    refused = Refused(Code.FORBIDDEN, "no")
    assert (refused.errors, refused.retry_after_seconds) == ((), None)
    assert FieldError("/a", "wrong") == FieldError(pointer="/a", message="wrong")
    assert HandOut(step_id="s", attempt_no=1, lease_id="l").picked_up is False
    progress = Progress(step_id="s", attempt_no=1, lease_id="l", content=dict)
    assert (progress.progress, progress.note) == (None, None)
    result = Result(step_id="s", attempt_no=1, lease_id="l", content=dict, status=ResultStatus.SUCCEEDED)
    assert (result.output_ref, result.error_code, result.error_message) == (None, None, None)


def test_steps_are_numbered_from_one_with_two_digits() -> None:
    assert [step_id_at(index) for index in (0, 8, 9, 31)] == ["step_01", "step_09", "step_10", "step_32"]


def test_bounds() -> None:
    assert (replies.EVIDENCE_MAX, replies.PROGRESS_EVENT_EVERY_MS) == (100, 10_000)
    assert [replies.evidence_max(kind) for kind in ("ACK", "PROGRESS", "RESULT")] == [100, 90, 100]
    assert (explain.ASKED_LATELY_MS, hints.HINTED_ANSWERS_MAX) == (60_000, 5)
    assert (hints.OVERDUE_AFTER_MS, hints.UNBEGUN_AFTER_MS) == (5_000, 30_000)
    paused = give(born(), Pause(), START_MS).after
    assert next_due_ms(paused, START_MS + 5) == START_MS + 5 + HOUR_MS, (
        "a paused job is looked at now and then"
    )
    assert DURATION_MS_MAX == 3_650 * 24 * HOUR_MS


def test_who_decides_a_mode_is_written_so() -> None:
    sources = (routing.SOURCE_REQUEST, routing.SOURCE_TENANT, routing.SOURCE_GLOBAL)
    assert sources == ("REQUEST", "TENANT_CONFIG", "GLOBAL_CONFIG")
    assert ROUTING.lane < routing.LANES == 16
