"""What people read in the ledger: every field that the specification names is there, in clear text and with
its type, on every store and in both layouts."""

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.columns_read import Columns, read_columns
from tests.conformance.ledger_setup import LAYOUTS, Deployment, World, opened_world
from tests.conformance.ledger_temporal import TemporalDeployment, TemporalWorld

from lucius.contracts.envelope import Envelope, parse_envelope
from lucius.contracts.messages import directive
from lucius.core.inputs import BeginAttempt, Cancel, Published, ResultStatus
from lucius.core.routing import reply_topic, topic
from lucius.jobs.submit import Submitted
from lucius.ledger.columns import COLUMNS, ColumnType, RowKind
from lucius.ledger.job_ledger import LayoutName

pytestmark = pytest.mark.xdist_group("azurite")

TENANT, REQUEST_TYPE = "Zürich", "OCR→EMBEDDING"

# Written down from the specification: 001, 12.2 to 12.4 (names as 12.6 corrects them), and the tables of 003.
FIELDS = {
    RowKind.JOBS: """
        job_id tenant_id protocol_id request_type doc_id mode tenant_bucket state current_step_id
        current_step_index:integer attempts_total:integer created_at:time updated_at:time completed_at:time
        error_code error_message correlation_id traceparent final_output idempotency_key idempotency_hash
    """,
    RowKind.STEPS: """
        step_id step_index:integer step_type service state attempt_no:integer lease_id lease_expires_at:time
        lane:integer routing_key_used input_ref:json workspace_ref:json output_ref:json payload:json
        resolved_mode decision_source decision_reason result_ref:json last_error_code last_error_message
        created_at:time updated_at:time completed_at:time
    """,
    RowKind.OUTBOX: """
        jobId stepId attempt_no:integer lease_id state topic partition:integer payload:json resolved_mode
        lane:integer routing_key_used decision_source decision_reason created_at:time sent_at:time
        updated_at:time
    """,
    RowKind.EVENTS: "event_key event_id event_type payload:json created_at:time",
    RowKind.IDEMPOTENCY: "tenant_id idempotency_hash job_id created_at:time",
}


def _is_time(value: Any) -> bool:
    if isinstance(value, str):  # where the store has no type for it
        return value.endswith("Z") and datetime.datetime.fromisoformat(value).utcoffset() is not None
    return isinstance(value, datetime.datetime) and value.utcoffset() == datetime.timedelta()


IS_OF_TYPE: dict[str, Callable[[Any], bool]] = {
    "text": lambda value: isinstance(value, str),
    "integer": lambda value: type(value) is int,
    "time": _is_time,
    "json": lambda value: isinstance(json.loads(value), dict),
}
OF_DECLARED = {
    ColumnType.TEXT: "text",
    ColumnType.INTEGER: "integer",
    ColumnType.TIME: "time",
    ColumnType.JSON: "json",
}


def _envelope(number: int, **more: Any) -> Envelope:
    parsed = parse_envelope(
        {
            "tenant_id": TENANT,
            "request_type": REQUEST_TYPE,
            "input_ref": {"uri": f"s3://in/größe-{number}"},
            "output_ref": {"uri": f"s3://out/{number}"},
            "payload": {"ocr": {"language": "de"}},
            "schema_version": "1",
            "doc_id": "Straße 7",
            "mode": "BURST",
            "idempotency_key": f"schlüssel {number}",
            **more,
        }
    )
    assert isinstance(parsed, Envelope)
    return parsed


async def _submit(deployment: Deployment, number: int) -> str:
    submitted = await deployment.submitter.submit(_envelope(number))
    assert isinstance(submitted, Submitted)
    return submitted.job_id


async def _play(world: World, deployment: Deployment) -> dict[str, str]:
    """Jobs in which each field has a value: one that succeeded, one that failed, one at work, one that was
    cancelled before its directive left, and one that waits."""
    jobs = {"succeeded": await _submit(deployment, 1)}
    await deployment.work()
    jobs["failed"] = await _submit(deployment, 2)
    (attempt,) = await deployment.take("ocr")
    await deployment.result(attempt, ResultStatus.FAILED_FINAL, code="NICHT_LESBAR")
    jobs["at work"] = await _submit(deployment, 3)
    (attempt,) = await deployment.take("ocr")
    await deployment.ack(attempt)
    jobs["cancelled"] = await _submit(deployment, 4)
    await deployment.writer.apply(jobs["cancelled"], Cancel())
    jobs["waiting"] = await _submit(deployment, 5)
    return jobs


def _of(rows: list[Columns], job_id: str) -> list[Columns]:
    return [row for row in rows if row.get("job_id", row.get("jobId")) == job_id]


async def test_every_field_of_the_specification_is_there_with_its_type(world: World) -> None:
    deployment = world.deployment()
    await _play(world, deployment)
    for kind, fields in FIELDS.items():
        rows = await read_columns(world, kind)
        asked_for = {column.name for column in COLUMNS[kind] if column.seed}
        for field in fields.split():
            name, _, of_type = field.partition(":")
            values = [row[name] for row in rows if name in row]
            assert values, f"{kind} {name} is nowhere"
            assert name in asked_for, f"{kind} {name} names no paragraph of the specification"
            assert all(IS_OF_TYPE[of_type or "text"](value) for value in values), (kind, name, values)
        declared = {column.name: OF_DECLARED[column.type] for column in COLUMNS[kind]}
        for row in rows:
            shown = {name for name in row if name in declared}
            assert all(IS_OF_TYPE[declared[name]](row[name]) for name in shown), (kind, row)


async def test_the_rows_are_under_the_keys_of_the_specification(world: World) -> None:
    """001, 12.1 and 12.4, and 003; an event's key is its number (decision 070)."""
    deployment = world.deployment()
    job_id = (await _play(world, deployment))["succeeded"]
    record = (await world.records())[job_id]
    bucket, outbox = "zürich#202701", record.outbox
    assert outbox is not None
    steps = [(index, f"step_0{index + 1}") for index in range(2)]
    if world.layout is LayoutName.LEDGER:
        keys = [("lucius_ledger", job_id, "JOB"), ("lucius_ledger", job_id, "EVENT#00000001")]
        keys += [("lucius_ledger", job_id, f"STEP#{index}#{step_id}") for index, step_id in steps]
    else:
        keys = [
            ("Jobs", bucket, job_id),
            ("Outbox", bucket, outbox.outbox_id),
            ("Events", job_id, "00000001"),
        ]
        keys += [("Steps", job_id, f"{index}#{step_id}") for index, step_id in steps]
        if not world.store.spans:  # one partition holds what commits together; the other tables follow it
            keys = [key for key in keys if key[0] != "Steps"]
    keys.append(("job-idempotency", "zürich", record.job.idempotency_hash))
    for table, partition, key in keys:
        assert await world.store.get(table, partition, key) is not None, (table, partition, key)


async def test_the_columns_say_what_the_api_says(world: World) -> None:
    deployment = world.deployment()
    jobs = await _play(world, deployment)
    found = {kind: await read_columns(world, kind) for kind in RowKind}
    states = {name: _of(found[RowKind.JOBS], job_id)[0]["state"] for name, job_id in jobs.items()}
    assert states == {
        "succeeded": "SUCCEEDED",
        "failed": "FAILED_FINAL",
        "at work": "IN_PROGRESS",
        "cancelled": "CANCELLED",
        "waiting": "DISPATCHING",
    }
    (job,) = _of(found[RowKind.JOBS], jobs["succeeded"])
    assert (job["tenant_id"], job["request_type"]) == (TENANT, REQUEST_TYPE)
    assert (job["tenant_bucket"], job["doc_id"], job["mode"]) == ("zürich#202701", "Straße 7", "BURST")
    assert (job["attempts_total"], job["final_output"]) == (2, f"s3://out/{jobs['succeeded']}/step_02/1")
    (failed,) = _of(found[RowKind.JOBS], jobs["failed"])
    assert failed["error_code"] == "NICHT_LESBAR"
    waiting = _of(found[RowKind.STEPS], jobs["waiting"])
    assert [(step["state"], step["attempt_no"]) for step in waiting] == [("DISPATCHING", 1), ("PENDING", 0)]
    assert json.loads(waiting[0]["input_ref"]) == {"uri": "s3://in/größe-5"}
    (cancelled,) = _of(found[RowKind.OUTBOX], jobs["cancelled"])
    (pending,) = _of(found[RowKind.OUTBOX], jobs["waiting"])
    assert (cancelled["state"], pending["state"]) == ("CANCELLED", "PENDING") and "sent_at" not in pending
    events = _of(found[RowKind.EVENTS], jobs["succeeded"])
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[0]["event_key"] == "2027-01-15T08:00:00.000Z#00000001"
    assert (events[0]["event_type"], events[0]["event_id"]) == ("JOB_CREATED", "00000001")
    assert json.loads(events[0]["payload"])["request_type"] == REQUEST_TYPE
    keys = {row["job_id"]: row for row in found[RowKind.IDEMPOTENCY]}
    assert keys[jobs["waiting"]]["tenant_id"] == "zürich"
    assert (
        keys[jobs["waiting"]]["idempotency_hash"]
        == _of(found[RowKind.JOBS], jobs["waiting"])[0]["idempotency_hash"]
    )


async def test_the_payload_of_an_outbox_row_is_its_directive(world: World) -> None:
    """But for what its sender adds."""
    deployment = world.deployment()
    jobs = await _play(world, deployment)
    rows = await read_columns(world, RowKind.OUTBOX)
    for record in (await world.records()).values():
        outbox = record.outbox
        assert outbox is not None
        (row,) = [each for each in rows if each["outbox_id"] == outbox.outbox_id]
        step = record.steps[outbox.step_index]
        whole = directive(record, step, callback_base="http://lucius", callback_token="secret")
        for added in ("callback_token", "callback_urls", "lease_expires_at"):
            del whole[added]
        assert json.loads(row["payload"]) == json.loads(json.dumps(whole))
        assert row["topic"] == topic(step.routing.lane) and whole["reply_topic"] == reply_topic(
            row["partition"]
        )
        assert "secret" not in row["payload"]
    second = [row for row in rows if row["stepId"] == "step_02"]
    assert [row["jobId"] for row in second] == [jobs["succeeded"]]
    assert [earlier["stepId"] for earlier in json.loads(second[0]["payload"])["upstream"]] == ["step_01"]


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_an_attempt_that_is_recorded_has_a_deadline_before_its_directive_leaves(
    layout: LayoutName, tmp_path: Path
) -> None:
    """On the temporal engine, which has no state of its own for that."""
    async with opened_world("sqlite", layout, tmp_path) as opened:
        world = TemporalWorld(opened.store, layout)
        deployment = world.deployment()
        assert isinstance(deployment, TemporalDeployment)
        await _submit(deployment, 1)
        (waiting, _) = await read_columns(world, RowKind.STEPS)
        await deployment.look()
        (recorded, _) = await read_columns(world, RowKind.STEPS)
        world.clock.now_ms += 1_000
        await deployment.take("ocr")
        (published, _) = await read_columns(world, RowKind.STEPS)
    assert (waiting["state"], waiting.get("lease_expires_at")) == ("PENDING", None)
    assert (recorded["state"], recorded["lease_expires_at"]) == ("INITIATED", "2027-01-15T08:00:30.000Z")
    assert (published["state"], published["lease_expires_at"]) == ("INITIATED", "2027-01-15T08:00:31.000Z")


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_the_deadline_that_a_workflow_expects_is_shown_until_its_directive_leaves(
    layout: LayoutName, tmp_path: Path
) -> None:
    async with opened_world("sqlite", layout, tmp_path) as opened:
        world = TemporalWorld(opened.store, layout)
        deployment = world.deployment()
        job_id = await _submit(deployment, 1)
        expected_ms = world.clock.now_ms + 7_000
        begin = BeginAttempt(step_id="step_01", attempt_no=1, lease_id="l", lease_expires_at_ms=expected_ms)
        await deployment.writer.apply(job_id, begin)
        (recorded, _) = await read_columns(world, RowKind.STEPS)
        await deployment.writer.apply(job_id, Published(step_id="step_01", attempt_no=1, lease_id="l"))
        (published, _) = await read_columns(world, RowKind.STEPS)
    assert recorded["lease_expires_at"] == "2027-01-15T08:00:07.000Z"
    assert published["lease_expires_at"] == "2027-01-15T08:00:30.000Z"
