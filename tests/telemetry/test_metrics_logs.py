"""Log lines: the ids they carry, and what they never say."""

import asyncio
import logging
from collections.abc import Iterator

import pytest
import structlog
from tests.core.machine import START_MS, Walk, ack, born, focus, hand_out, new_job, new_steps, target
from tests.support.log_lines import Lines, caught

from lucius.contracts.credentials import BLANK
from lucius.core.decide import create, decide
from lucius.core.draft import Decision
from lucius.core.inputs import Result, ResultStatus
from lucius.core.model import StepPolicy
from lucius.telemetry import StateLog
from lucius.telemetry.context import REQUEST, RequestIds, Subject, forget_subject, name_subject
from lucius.telemetry.logs import TEXT_LENGTH_MAX, blank_text, request_log

JOB = "job_01m7f6nnk0nea2xyraqw1x4tfv"
SIGNED = "eyJhbGciOiJIUzI1NiIsImtpZCI6ImFiIn0.eyJqb2IiOiJqb2JfMSJ9.c2lnbmF0dXJlLW9mLWl0"
SECRETS = (
    f"Authorization: Bearer {SIGNED}",
    f"token {SIGNED} is stale",
    "key lk_0123456789abcdef_00112233445566778899aabbccddeeff was used",
    "https://ann:hunter2@example.com/in.pdf",
    "https://x.blob.example/in.pdf?sv=1&sig=hunter2%3D&se=2",
    "signed with whsec_aHVudGVyMg==",
    "basic aHVudGVyMg==",
)


@pytest.fixture
def lines() -> Iterator[Lines]:
    with caught("info") as found:
        yield found


@pytest.mark.parametrize("text", SECRETS)
def test_what_looks_like_a_credential_is_blanked_in_any_text(lines: Lines, text: str) -> None:
    log = structlog.get_logger("test")
    log.info("seen", error=text, more={"deep": [text]})
    log.error("broke", exc_info=ValueError(text))
    logging.getLogger("library").warning("said: %s", text)
    for secret in (SIGNED, "hunter2", "00112233", "aHVudGVyMg"):
        assert secret not in lines.text
    assert lines.text.count(BLANK) >= 4
    assert [line["level"] for line in lines.all()] == ["info", "error", "warning"]


def test_what_is_no_credential_stays() -> None:
    for text in ("s3://bucket/in.pdf?page=2", "token expired", "bearer", JOB, "key is missing", "tie-break"):
        assert blank_text(text) == text


def test_fields_that_hold_secrets_are_blanked_by_their_name(lines: Lines) -> None:
    structlog.get_logger("test").info(
        "seen",
        authorization="x1y",
        callback_token="x1y",
        payload={"text": "x1y"},
        idempotency_key="x1y",
        headers={"Cookie": "x1y", "accept": "json"},
        secret=b"x1y",
    )
    line = lines.one("seen")
    assert "x1y" not in lines.text
    assert line["headers"] == {"Cookie": BLANK, "accept": "json"}


def test_a_line_has_a_bounded_length(lines: Lines) -> None:
    structlog.get_logger("test").info("seen", error="x" * 1_000_000)
    assert len(lines.text) < TEXT_LENGTH_MAX + 500


async def test_lines_carry_the_ids_of_their_own_request(lines: Lines) -> None:
    log = structlog.get_logger("test")

    async def request(name: str, job_id: str) -> None:
        REQUEST.set(RequestIds(name, f"/v1/jobs/{job_id}:cancel"))
        await asyncio.sleep(0)
        await asyncio.gather(asyncio.create_task(step(name)), asyncio.create_task(step(name)))

    async def step(name: str) -> None:
        await asyncio.sleep(0)
        log.info("worked", of=name)

    other = JOB[:-1] + "w"
    await asyncio.gather(request("first", JOB), request("second", other))
    told = {(line["of"], line["correlation_id"], line["jobId"]) for line in lines.all("worked")}
    assert told == {("first", "first", JOB), ("second", "second", other)}
    assert REQUEST.get() is None


def test_a_subject_gives_all_its_ids_until_it_is_forgotten(lines: Lines) -> None:
    log, job = structlog.get_logger("test"), new_job()
    reply = ack(target(focus(born())))
    subject = Subject(job.job_id, reply)
    named = name_subject(subject)
    log.info("before_it_is_read")
    subject.job = job
    log.info("after_it_is_read")
    forget_subject(named)
    log.info("afterwards")
    ids = {"jobId": "job_1", "stepId": "step_01", "attempt_no": 1, "lease_id": "lease_0"}
    assert lines.one("before_it_is_read").items() >= ids.items()
    ids |= {"tenant_id": "tenant_a", "correlation_id": "correlation"}
    assert lines.one("after_it_is_read").items() >= ids.items()
    assert not lines.one("afterwards").keys() & ids.keys()


def test_a_line_about_another_job_is_not_given_the_subjects_ids(lines: Lines) -> None:
    log = structlog.get_logger("test")
    named = name_subject(Subject("job_1", ack(target(focus(born()))), new_job()))
    log.info("other_job", jobId="job_2")
    log.info("other_attempt", stepId="step_01", attempt_no=2)
    forget_subject(named)
    assert not lines.one("other_job").keys() & {"stepId", "lease_id", "tenant_id", "correlation_id"}
    assert "lease_id" not in lines.one("other_attempt")


def test_a_request_about_many_jobs_names_none(lines: Lines) -> None:
    request = RequestIds("many", "/v1/directives:lease")
    named = REQUEST.set(request)
    for job_id in ("job_1", "job_2"):
        forget_subject(name_subject(Subject(job_id)))
    structlog.get_logger("test").info("leased")
    REQUEST.reset(named)
    assert "jobId" not in lines.one("leased")


def _retried() -> tuple[Decision, Decision]:
    policy = StepPolicy(backoff_result_ms=(0,))
    made = create(new_job(), new_steps(1, policy), now_ms=START_MS, lease_id="lease_0")
    handed = decide(made.record, hand_out(target(focus(made.record))), now_ms=START_MS, lease_id="")
    assert isinstance(handed, Decision)
    failed = Result(
        step_id="step_01",
        attempt_no=1,
        lease_id="lease_0",
        content={"error_message": "the page says hunter2"}.copy,
        status=ResultStatus.FAILED_RETRY,
        error_code="OCR_BUSY",
        error_message="the page says hunter2",
    )
    retried = decide(handed.record, failed, now_ms=START_MS + 5, lease_id="lease_1")
    assert isinstance(retried, Decision)
    return handed, retried


def test_a_state_change_is_one_line_with_the_ids_it_had(lines: Lines) -> None:
    handed, retried = _retried()
    StateLog().watch(handed.record, retried.record, retried.events)
    line = lines.one("step_retrying")
    assert (
        line.items() >= {"jobId": "job_1", "tenant_id": "tenant_a", "correlation_id": "correlation"}.items()
    )
    assert line.items() >= {"stepId": "step_01", "attempt_no": 1, "lease_id": "lease_0"}.items()
    assert (line["reason"], line["code"]) == ("RESULT", "OCR_BUSY")
    assert "hunter2" not in lines.text, "a service's own words stay in the job's events"
    assert [each["event"] for each in lines.all()] == ["step_retrying"]


def test_small_steps_are_told_at_debug_only() -> None:
    handed, retried = _retried()
    with caught("debug") as lines:
        StateLog().watch(handed.record, retried.record, retried.events)
    assert [line["event"] for line in lines.all()] == ["step_acked", "step_retrying", "attempt_begun"]
    with caught("warning") as lines:
        StateLog().watch(handed.record, retried.record, retried.events)
    assert lines.text == ""


def test_the_access_log_is_written_whatever_the_level() -> None:
    with caught("error") as lines:
        request_log().info("request", path="/v1/jobs")
        structlog.get_logger("test").info("not_told")
    assert [line["event"] for line in lines.all()] == ["request"]


def test_a_directive_that_did_not_leave_is_told_once_with_all_ids(lines: Lines) -> None:
    walk = Walk(born())
    before = walk.record
    decision = walk.publish_failed("the broker is away")
    StateLog().watch(before, decision.record, decision.events)
    told = lines.one("publish_failed")
    assert (told["level"], told["error"]) == ("warning", "the broker is away")
    step = walk.step
    assert (told["jobId"], told["tenant_id"]) == (walk.job.job_id, walk.job.tenant_id)
    assert (told["stepId"], told["attempt_no"], told["lease_id"]) == (step.step_id, 1, step.lease_id)
    assert told["correlation_id"] == walk.job.correlation_id
