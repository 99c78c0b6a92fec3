"""What readers see: every name of the contract, null where there is nothing."""

from typing import Any

import jsonschema_rs
import msgspec

from lucius.contracts.components import SCHEMAS
from lucius.contracts.views import (
    EVENT_SCHEMA,
    JOB_SCHEMA,
    STEP_SCHEMA,
    event_view,
    job_view,
    step_view,
    tenant_bucket,
)
from lucius.core.model import Event, Job, JobRecord, Routing, Step, StepPolicy
from lucius.core.states import Engine, Fact, JobState, Mode, StepState

JOB_NAMES = [
    "jobId",
    "tenant_id",
    "tenant_bucket",
    "request_type",
    "protocol_id",
    "engine",
    "doc_id",
    "mode",
    "priority",
    "state",
    "current_step_id",
    "current_step_index",
    "attempts_total",
    "created_at",
    "updated_at",
    "completed_at",
    "error_code",
    "error_message",
    "correlation_id",
    "traceparent",
    "idempotency_key",
    "idempotency_hash",
    "final_output",
    "rerun_of",
    "paused_reason",
    "usage",
    "steps",
]
STEP_NAMES = [
    "stepId",
    "step_index",
    "step_type",
    "service",
    "tried_services",
    "state",
    "attempt_no",
    "lease_id",
    "lease_expires_at",
    "next_attempt_at",
    "lane",
    "routing_key_used",
    "resolved_mode",
    "decision_source",
    "decision_reason",
    "input_ref",
    "workspace_ref",
    "output_ref",
    "payload",
    "result_ref",
    "progress",
    "last_error_code",
    "last_error_message",
    "usage",
    "created_at",
    "updated_at",
    "completed_at",
]

CREATED_AT_MS = 1_769_508_150_007  # 2026-01-27T10:02:30.007Z

STEP = Step(
    step_id="step_01",
    step_index=0,
    step_type="OCR",
    service="ocr",
    policy=StepPolicy(),
    routing=Routing(
        lane=9,
        routing_key_used="acmedoc-1",
        resolved_mode=Mode.BURST,
        decision_source="REQUEST",
        decision_reason="MODE_IN_REQUEST",
    ),
    input_ref={"uri": "s3://in/a"},
    workspace_ref={"uri": "s3://ws/"},
    output_ref={"uri": "s3://out/a"},
    payload={"language": "en"},
    created_at_ms=CREATED_AT_MS,
    updated_at_ms=CREATED_AT_MS,
)
JOB = Job(
    job_id="job_1",
    tenant_id="Acme",
    tenant_norm="acme",
    request_type="OCR",
    protocol_id="ocr_v1",
    engine=Engine.OUTBOX,
    mode=Mode.BURST,
    lane=9,
    created_at_ms=CREATED_AT_MS,
    updated_at_ms=CREATED_AT_MS + 1,
    sla_ms=1,
    output_uri="s3://out/a",
    idempotency_hash="h",
    fingerprint="f",
    correlation_id="c",
    traceparent="t",
)


def _valid(name: str, value: Any) -> None:
    jsonschema_rs.validate(SCHEMAS[name], value)


def test_a_fresh_job() -> None:
    view = job_view(JobRecord(job=JOB, steps=(STEP,)))
    assert list(view) == JOB_NAMES
    assert list(view["steps"][0]) == STEP_NAMES
    assert view["tenant_id"] == "Acme"
    assert view["tenant_bucket"] == "acme#202601" == tenant_bucket(JOB)
    assert view["created_at"] == "2026-01-27T10:02:30.007Z"
    assert view["updated_at"] == "2026-01-27T10:02:30.008Z"
    nulls = {name for name, value in view.items() if value is None}
    assert nulls == {
        "doc_id",
        "current_step_id",
        "current_step_index",
        "completed_at",
        "error_code",
        "error_message",
        "idempotency_key",
        "final_output",
        "rerun_of",
        "paused_reason",
    }
    _valid("job", view)


def test_what_is_published_is_what_is_shown_in_the_same_order() -> None:
    event = Event(seq=1, type=Fact.JOB_CREATED, at_ms=CREATED_AT_MS)
    assert list(job_view(JobRecord(job=JOB, steps=(STEP,)))) == list(JOB_SCHEMA["properties"])
    assert list(step_view(STEP)) == list(STEP_SCHEMA["properties"])
    assert list(event_view(event)) == list(EVENT_SCHEMA["properties"])


def test_a_step_that_succeeded_is_done_whatever_its_last_report_said() -> None:
    half = msgspec.structs.replace(STEP, state=StepState.PROCESSING, progress=50)
    assert step_view(half)["progress"] == 50
    assert step_view(msgspec.structs.replace(half, state=StepState.SUCCEEDED))["progress"] == 100
    assert step_view(msgspec.structs.replace(half, state=StepState.FAILED_FINAL))["progress"] == 50


def test_a_finished_job() -> None:
    step = msgspec.structs.replace(
        STEP,
        state=StepState.SUCCEEDED,
        attempt_no=2,
        lease_id="l",
        lease_expires_at_ms=0,
        next_attempt_at_ms=1,
        progress=100,
        result_ref={"uri": "s3://ws/x"},
        completed_at_ms=CREATED_AT_MS,
    )
    job = msgspec.structs.replace(
        JOB,
        state=JobState.SUCCEEDED,
        final_output="s3://out/a",
        completed_at_ms=CREATED_AT_MS,
        doc_id="Doc-1",
    )
    view = job_view(JobRecord(job=job, steps=(step,)))
    assert view["state"] == "SUCCEEDED"
    assert view["final_output"] == "s3://out/a"
    assert view["steps"] == [step_view(step)]
    assert view["steps"][0]["progress"] == 100
    assert view["steps"][0]["lease_expires_at"] == "1970-01-01T00:00:00.000Z"
    assert view["steps"][0]["lane"] == 9
    assert view["steps"][0]["resolved_mode"] == "BURST"
    _valid("job", view)
    _valid("step", view["steps"][0])


def test_an_attempt_that_is_recorded_shows_a_provisional_deadline_until_its_directive_leaves() -> None:
    initiated = msgspec.structs.replace(
        STEP, state=StepState.INITIATED, attempt_no=1, lease_id="l", attempt_began_at_ms=CREATED_AT_MS
    )
    assert step_view(initiated)["lease_expires_at"] == "2026-01-27T10:03:00.007Z"  # 30 s for the ACK
    published = msgspec.structs.replace(initiated, lease_expires_at_ms=CREATED_AT_MS)
    assert step_view(published)["lease_expires_at"] == "2026-01-27T10:02:30.007Z"
    for state in (StepState.DISPATCHING, StepState.FAILED_RETRY, StepState.CANCELLED):
        assert step_view(msgspec.structs.replace(initiated, state=state))["lease_expires_at"] is None


def test_values_are_plain_json() -> None:
    view = job_view(JobRecord(job=JOB, steps=(STEP,)))
    assert msgspec.json.decode(msgspec.json.encode(view)) == view
    assert type(view["state"]) is str
    assert type(view["steps"][0]["state"]) is str


def test_event() -> None:
    event = Event(
        seq=3,
        type=Fact.STEP_RETRYING,
        at_ms=CREATED_AT_MS,
        step_id="step_01",
        attempt_no=1,
        data={"next_attempt_at_ms": CREATED_AT_MS + 1, "gone_at_ms": None, "backoff_ms": 30, "reason": "x"},
    )
    view = event_view(event)
    assert view == {
        "seq": 3,
        "type": "STEP_RETRYING",
        "at": "2026-01-27T10:02:30.007Z",
        "stepId": "step_01",
        "attempt_no": 1,
        "data": {
            "next_attempt_at": "2026-01-27T10:02:30.008Z",
            "gone_at": None,
            "backoff_ms": 30,
            "reason": "x",
        },
    }
    _valid("event", view)
    bare = event_view(Event(seq=1, type=Fact.JOB_CREATED, at_ms=0))
    assert bare["stepId"] is None
    assert bare["data"] == {}
    _valid("event", bare)
