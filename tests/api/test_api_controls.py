"""Cancel, pause, resume, rerun, redrive and the outbox, over HTTP, in each situation."""

import asyncio
import time
from typing import Any

import pytest
from tests.support.api_setup import Callers, Deployment, check_problem, pointers

from lucius.sdk.directive import Directive
from lucius.sdk.ports import ReplyAnswer
from lucius.sdk.runner import Runner
from lucius.sdk.task import Service, Task
from lucius.workspace import ObjectWorkspace

FAILED = {"status": "FAILED_FINAL", "error": {"code": "BROKEN", "message": "the page is blank"}}
STOPPED = {"status": "FAILED_RETRY", "error": {"code": "STOPPED", "message": "told to"}}


async def controlled(deployment: "Deployment", job_id: str, verb: str) -> dict[str, Any]:
    response = await deployment.control(job_id, verb)
    assert response.status_code == 202, response.text
    job: dict[str, Any] = response.json()
    assert job == await deployment.job(job_id)
    return job


async def failed_job(deployment: "Deployment", **changes: Any) -> str:
    """Three steps; the second fails for good."""
    job_id = await deployment.submit(request_type="OCR_EMBEDDING_SIS", **changes)
    await deployment.finish(job_id, "ocr", output_ref={"uri": "s3://w/1"})
    await deployment.finish(job_id, "embedding", **FAILED)
    return job_id


async def test_cancel_before_anything_left(deployment: "Deployment") -> None:
    job_id = await deployment.submit(request_type="OCR_EMBEDDING")
    job = await controlled(deployment, job_id, "cancel")
    assert (job["state"], [step["state"] for step in job["steps"]]) == ("CANCELLED", ["CANCELLED"] * 2)
    assert job["completed_at"] is not None
    assert await deployment.lease("ocr") == []
    assert (await controlled(deployment, job_id, "cancel"))["state"] == "CANCELLED"
    assert deployment.lucius.admission.by_tenant == {}


@pytest.mark.parametrize(
    ("result", "step_state"),
    [({}, "SUCCEEDED"), (FAILED, "FAILED_FINAL"), (STOPPED, "CANCELLED")],
)
async def test_cancel_waits_for_the_step_under_way(
    deployment: "Deployment", result: dict[str, Any], step_state: str
) -> None:
    job_id = await deployment.submit(request_type="OCR_EMBEDDING")
    directive = await deployment.directive(job_id, "ocr")
    assert await deployment.reply(directive, "ACK") == {"outcome": "applied", "stop": False}
    assert (await controlled(deployment, job_id, "cancel"))["state"] == "CANCELLING"
    assert (await controlled(deployment, job_id, "cancel"))["state"] == "CANCELLING"
    for verb in ("pause", "resume"):
        check_problem(await deployment.control(job_id, verb), 409, "JOB_CANCELLING")
    assert await deployment.reply(directive, "PROGRESS", progress=5) == {"outcome": "applied", "stop": True}
    assert (await deployment.reply(directive, "RESULT", **result))["outcome"] == "applied"
    assert await deployment.state(job_id) == "CANCELLED"
    assert await deployment.step_states(job_id) == [step_state, "CANCELLED"]
    assert (await deployment.http.get("/v1/admin/dlq")).json()["items"] == []


STOPPABLE = """
protocol_id: train_v1
request_types: [TRAIN]
steps:
  - {step_type: TRAIN, service: train, max_attempts: 1, stop_on_pause: true}
"""


class Answering:
    """A service's way to the API of this process."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment

    async def lease(self, *, max_directives: int, wait_seconds: float) -> list[dict[str, Any]]:
        taken = await self._deployment.lease("train")
        if not taken:
            await asyncio.sleep(0.02)
        return taken

    async def reply(self, directive: Directive, message: dict[str, Any]) -> ReplyAnswer:
        answer = await self._deployment.send(directive.callback_token or "", message["type"], message)
        return ReplyAnswer(answer.json()["outcome"], stop=answer.json()["stop"])


async def test_a_pause_may_stop_the_worker_and_takes_no_attempt(callers: Callers) -> None:
    """As a service made with the sdk sees it, over HTTP."""
    deployment = await callers.open(protocols={"train.yaml": STOPPABLE})
    worked, started = list[int](), asyncio.Event()

    async def train(task: Task) -> None:
        worked.append(task.directive.attempt_no)
        started.set()
        while task.directive.attempt_no == 1:
            await task.progress(10)
            await asyncio.sleep(0.01)

    runner = Runner(
        Service("train", train),
        Answering(deployment),
        ObjectWorkspace(),
        now_ms=lambda: time.time_ns() // 1_000_000,
        progress_interval_seconds=0,
    )
    running = asyncio.create_task(runner.run())
    job_id = await deployment.submit(request_type="TRAIN")
    await started.wait()
    assert (await deployment.control(job_id, "pause")).json()["state"] == "PAUSING"
    job = await deployment.reach(job_id, "PAUSED")
    assert (job["steps"][0]["state"], job["steps"][0]["last_error_code"]) == ("FAILED_RETRY", "STOPPED")
    await deployment.control(job_id, "resume")
    job = await deployment.reach(job_id, "SUCCEEDED")
    assert worked == [1, 2] and job["attempts_total"] == 2
    runner.stop()
    await running
    events = (await deployment.http.get(f"/v1/jobs/{job_id}/events")).json()["items"]
    (stopped,) = [event for event in events if event["type"] == "STEP_RETRYING"]
    assert (stopped["data"]["code"], stopped["data"]["stopped"]) == ("STOPPED", True)


async def test_a_worker_may_ask_whether_a_pause_wants_it_to_stop(callers: Callers) -> None:
    deployment = await callers.open(protocols={"train.yaml": STOPPABLE})
    job_id = await deployment.submit(request_type="TRAIN")
    directive = await deployment.directive(job_id, "train")
    assert await deployment.reply(directive, "ACK") == {"outcome": "applied", "stop": False}
    await controlled(deployment, job_id, "pause")
    headers = {"Authorization": f"Bearer {directive['callback_token']}"}
    asked = (await deployment.http.get("/v1/callbacks/attempt", headers=headers)).json()
    assert asked == {"current": True, "stop": True, "reason": "the job is being paused"}
    assert (await deployment.reply(directive, "RESULT", **STOPPED))["outcome"] == "applied"
    assert await deployment.state(job_id) == "PAUSED"
    (step,) = (await deployment.http.get("/v1/protocols/train_v1")).json()["steps"]
    assert step["stop_on_pause"] is True


async def test_cancel_ends_with_the_deadline_of_a_silent_step(quick_deployment: "Deployment") -> None:
    deployment = quick_deployment
    job_id = await deployment.submit(request_type="QUICK")
    await deployment.directive(job_id, "quick")
    assert (await controlled(deployment, job_id, "cancel"))["state"] == "CANCELLING"
    job = await deployment.reach(job_id, "CANCELLED")
    assert job["steps"][0]["state"] == "CANCELLED"
    assert job["steps"][0]["last_error_code"] == "ACK_TIMEOUT"
    assert job["attempts_total"] == 1


async def test_cancel_between_attempts_and_between_steps(deployment: "Deployment") -> None:
    job_id = await deployment.submit()
    await deployment.reply(await deployment.directive(job_id, "ocr"), "RESULT", status="FAILED_RETRY")
    assert (await controlled(deployment, job_id, "cancel"))["state"] == "CANCELLED"
    other = await deployment.submit(request_type="OCR_EMBEDDING")
    await deployment.finish(other, "ocr")
    assert (await controlled(deployment, other, "cancel"))["state"] == "CANCELLED"
    assert await deployment.step_states(other) == ["SUCCEEDED", "CANCELLED"]
    assert await deployment.lease("embedding") == []


async def test_an_ended_job_is_not_controlled(deployment: "Deployment") -> None:
    job_id = await deployment.submit()
    await deployment.finish(job_id, "ocr")
    before = await deployment.job(job_id)
    for verb in ("cancel", "pause", "resume"):
        check_problem(await deployment.control(job_id, verb), 409, "JOB_TERMINAL")
    assert await deployment.job(job_id) == before


async def test_pause_holds_what_waits_for_dispatch(deployment: "Deployment") -> None:
    job_id = await deployment.submit()
    lease_id = (await deployment.job(job_id))["steps"][0]["lease_id"]
    assert (await controlled(deployment, job_id, "pause"))["state"] == "PAUSED"
    assert (await controlled(deployment, job_id, "pause"))["state"] == "PAUSED"
    assert await deployment.lease("ocr") == []
    assert (await controlled(deployment, job_id, "resume"))["state"] == "DISPATCHING"
    directive = await deployment.directive(job_id, "ocr")
    assert (directive["attempt_no"], directive["lease_id"]) == (1, lease_id)


async def test_pause_waits_for_the_step_under_way(deployment: "Deployment") -> None:
    job_id = await deployment.submit(request_type="OCR_EMBEDDING")
    directive = await deployment.directive(job_id, "ocr")
    assert (await controlled(deployment, job_id, "pause"))["state"] == "PAUSING"
    assert await deployment.reply(directive, "RESULT") == {"outcome": "applied", "stop": False}
    assert await deployment.state(job_id) == "PAUSED"
    assert await deployment.step_states(job_id) == ["SUCCEEDED", "PENDING"]
    assert await deployment.lease("embedding") == []
    assert (await controlled(deployment, job_id, "resume"))["state"] == "IN_PROGRESS"
    await deployment.finish(job_id, "embedding")
    assert await deployment.state(job_id) == "SUCCEEDED"


async def test_pausing_is_undone_and_the_last_step_ends_the_job(deployment: "Deployment") -> None:
    job_id = await deployment.submit()
    directive = await deployment.directive(job_id, "ocr")
    await controlled(deployment, job_id, "pause")
    assert (await controlled(deployment, job_id, "resume"))["state"] == "DISPATCHING"
    await controlled(deployment, job_id, "pause")
    await deployment.reply(directive, "RESULT")
    assert await deployment.state(job_id) == "SUCCEEDED"


async def test_a_retry_waits_while_paused_and_cancel_works(quick_deployment: "Deployment") -> None:
    deployment = quick_deployment
    job_id = await deployment.submit(request_type="QUICK")
    directive = await deployment.directive(job_id, "quick")
    await controlled(deployment, job_id, "pause")
    await deployment.reply(directive, "RESULT", status="FAILED_RETRY")
    assert await deployment.state(job_id) == "PAUSED"
    await asyncio.sleep(0.2)
    assert await deployment.step_states(job_id) == ["FAILED_RETRY"]
    await controlled(deployment, job_id, "resume")
    assert (await deployment.directive(job_id, "quick"))["attempt_no"] == 2
    other = await deployment.submit(request_type="QUICK")
    await controlled(deployment, other, "pause")
    assert (await controlled(deployment, other, "cancel"))["state"] == "CANCELLED"


async def test_a_failure_for_good_is_in_the_dlq_with_its_reason(deployment: "Deployment") -> None:
    job_id = await failed_job(deployment)
    job = await deployment.job(job_id)
    assert (job["state"], job["error_code"], job["error_message"]) == (
        "FAILED_FINAL",
        "BROKEN",
        "the page is blank",
    )
    assert [step["state"] for step in job["steps"]][:2] == ["SUCCEEDED", "FAILED_FINAL"]
    assert (await deployment.http.get("/v1/admin/dlq")).json() == {
        "items": [job],
        "next_cursor": None,
        "partial": False,
        "looked_back_to": None,
    }


async def test_rerun_from_the_first_step_that_failed(deployment: "Deployment") -> None:
    job_id = await failed_job(deployment, correlation_id="c-1")
    response = await deployment.control(job_id, "rerun")
    assert response.status_code == 202
    again = response.json()
    assert response.headers["location"] == f"/v1/jobs/{again['jobId']}"
    assert again["jobId"] != job_id
    assert (again["rerun_of"], again["correlation_id"]) == (job_id, "c-1")
    assert [step["state"] for step in again["steps"]] == ["SUCCEEDED", "DISPATCHING", "PENDING"]
    directive = await deployment.directive(again["jobId"], "embedding")
    assert directive["upstream"][0]["result_ref"] == {"uri": "s3://w/1"}
    assert directive["attempt_no"] == 1
    await deployment.reply(directive, "RESULT")
    await deployment.finish(again["jobId"], "sis")
    assert await deployment.state(again["jobId"]) == "SUCCEEDED"
    assert await deployment.state(job_id) == "FAILED_FINAL"


async def test_there_is_one_open_rerun(deployment: "Deployment") -> None:
    job_id = await failed_job(deployment)
    answers = await asyncio.gather(*(deployment.control(job_id, "rerun") for _ in range(8)))
    assert {answer.status_code for answer in answers} == {202}
    ids = {answer.json()["jobId"] for answer in answers}
    assert len(ids) == 1
    assert sum("idempotent-replayed" not in answer.headers for answer in answers) == 1
    (open_id,) = ids
    await controlled(deployment, open_id, "cancel")
    later = (await deployment.control(job_id, "rerun")).json()
    assert later["jobId"] not in ids
    assert deployment.lucius.admission.by_tenant == {"acme": 1}


async def test_a_rerun_honours_its_key(deployment: "Deployment") -> None:
    job_id = await failed_job(deployment)
    path = f"/v1/jobs/{job_id}:rerun"
    one = await deployment.post(path, idempotency_key="again-1")
    same = await deployment.post(path, idempotency_key="again-1")
    other = await deployment.post(path, idempotency_key="again-2")
    assert one.json()["jobId"] == same.json()["jobId"] != other.json()["jobId"]
    assert same.headers["idempotent-replayed"] == "true"
    assert one.json()["idempotency_key"] == "again-1"
    response = await deployment.post(path, {"from_step": "step_01"}, idempotency_key="again-1")
    check_problem(response, 422, "IDEMPOTENCY_KEY_REUSED")
    response = await deployment.post(path, idempotency_key=" ")
    assert pointers(check_problem(response, 422, "INVALID_ENVELOPE")) == {"/idempotency_key"}


async def test_rerun_from_a_named_step(deployment: "Deployment") -> None:
    job_id = await deployment.submit(request_type="OCR_EMBEDDING")
    check_problem(await deployment.control(job_id, "rerun"), 409, "JOB_NOT_TERMINAL")
    await deployment.finish(job_id, "ocr")
    await deployment.finish(job_id, "embedding")
    check_problem(await deployment.control(job_id, "rerun"), 409, "NOTHING_TO_RERUN")
    path = f"/v1/jobs/{job_id}:rerun"
    again = (await deployment.post(path, {"from_step": "step_02"})).json()
    assert [step["state"] for step in again["steps"]] == ["SUCCEEDED", "DISPATCHING"]
    for wanted, pointer in (
        ({"from_step": "step_09"}, "/from_step"),
        ({"from_step": 2}, "/from_step"),
        ({"step": "step_01"}, "/step"),
    ):
        response = await deployment.post(path, wanted)
        assert pointers(check_problem(response, 422, "INVALID_ENVELOPE")) == {pointer}
    failed = await failed_job(deployment)
    response = await deployment.post(f"/v1/jobs/{failed}:rerun", {"from_step": "step_03"})
    assert pointers(check_problem(response, 422, "INVALID_ENVELOPE")) == {"/from_step"}


async def test_a_cursor_of_the_dlq_goes_into_an_address_as_it_is(deployment: "Deployment") -> None:
    failed = [await failed_job(deployment) for _ in range(3)]
    found: list[str] = []
    more: str | None = ""
    while more is not None:
        page = (await deployment.http.get(f"/v1/admin/dlq?limit=1{more}")).json()
        found += [job["jobId"] for job in page["items"]]
        more = None if page["next_cursor"] is None else f"&cursor={page['next_cursor']}"
        assert len(found) <= 3
    assert found == failed[::-1]
    for cursor in ("98205184735046", "!", "OTgyMDUxODQ3MzUwNDYjam9i\u00e9"):
        check_problem(
            await deployment.http.get("/v1/admin/dlq", params={"cursor": cursor}), 422, "INVALID_REQUEST"
        )


async def test_the_dlq_is_filtered_like_the_list_of_jobs(deployment: "Deployment") -> None:
    async def found(**wanted: Any) -> list[str]:
        ids: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            page = (await deployment.http.get("/v1/admin/dlq", params=wanted | {"cursor": cursor})).json()
            ids += [job["jobId"] for job in page["items"]]
            cursor = page["next_cursor"]
        return ids

    first = await failed_job(deployment)
    second = await failed_job(deployment, tenant_id="Globex")
    third = await deployment.submit(tenant_id="Globex")
    await deployment.finish(third, "ocr", status="FAILED_FINAL", error={"code": "TORN", "message": "no"})
    assert await found() == [third, second, first]
    assert await found(limit=1) == [third, second, first]
    assert await found(tenant_id=" GLOBEX") == [third, second]
    assert await found(tenant_id="GLOBEX", limit=1) == [third, second]
    assert await found(request_type="OCR_EMBEDDING_SIS") == [second, first]
    assert await found(error_code="TORN") == [third]
    assert await found(error_code="TORN", tenant_id="acme") == []
    ended = (await deployment.job(second))["completed_at"]
    assert second not in await found(failed_after=ended) and second not in await found(failed_before=ended)
    assert await found(failed_after="2000-01-01T00:00:00Z", failed_before="2100-01-01T00:00:00Z") == [
        third,
        second,
        first,
    ]
    assert await found(failed_after="2100-01-01T00:00:00Z") == []
    assert await found(failed_before="2000-01-01T00:00:00Z") == []
    for name, value in (("failed_after", "yesterday"), ("tenant_id", "x" * 300)):
        response = await deployment.http.get("/v1/admin/dlq", params={name: value})
        assert pointers(check_problem(response, 422, "INVALID_REQUEST")) == {f"?{name}"}


async def test_redrive_takes_a_job_out_of_the_dlq(deployment: "Deployment") -> None:
    first, second = await failed_job(deployment), await failed_job(deployment)
    page = (await deployment.http.get("/v1/admin/dlq", params={"limit": 1})).json()
    assert [job["jobId"] for job in page["items"]] == [second]
    rest = (await deployment.http.get("/v1/admin/dlq", params={"cursor": page["next_cursor"]})).json()
    assert [job["jobId"] for job in rest["items"]] == [first]
    response = await deployment.post(f"/v1/admin/dlq/{first}:redrive")
    assert response.status_code == 202
    assert response.json()["rerun_of"] == first
    left = (await deployment.http.get("/v1/admin/dlq")).json()["items"]
    assert [job["jobId"] for job in left] == [second]
    again = await deployment.post(f"/v1/admin/dlq/{first}:redrive")
    assert again.json()["jobId"] == response.json()["jobId"]
    check_problem(
        await deployment.post(f"/v1/admin/dlq/{again.json()['jobId']}:redrive"), 409, "JOB_NOT_TERMINAL"
    )


async def test_what_was_redriven_to_its_end_is_not_redriven_again(deployment: "Deployment") -> None:
    job_id = await failed_job(deployment)
    redrive = f"/v1/admin/dlq/{job_id}:redrive"
    first = (await deployment.post(redrive, idempotency_key="k-1")).json()["jobId"]
    assert (await deployment.http.get("/v1/admin/dlq")).json()["items"] == []
    assert (await deployment.post(redrive, idempotency_key="k-1")).json()["jobId"] == first
    gone = check_problem(await deployment.post(redrive), 404, "JOB_NOT_FOUND")
    assert "taken up again" in gone["detail"]
    await deployment.control(first, "cancel")
    told = (await deployment.http.get(f"/v1/jobs/{job_id}:explain")).json()
    assert [each["action"] for each in told["actions"]] == ["rerun"]
    second = (await deployment.control(job_id, "rerun")).json()["jobId"]
    assert (await deployment.post(redrive)).json()["jobId"] == second
    await deployment.control(second, "cancel")
    check_problem(await deployment.post(redrive), 404, "JOB_NOT_FOUND")
    bulk = {"action": "redrive", "job_ids": [job_id], "dry_run": True}
    preview = (await deployment.http.post("/v1/jobs:bulk", json=bulk)).json()
    assert (preview["affected"], [each["code"] for each in preview["refused"]]) == (0, ["JOB_NOT_FOUND"])
    assert (await deployment.post(redrive, idempotency_key="k-1")).json()["jobId"] == first


async def test_a_rerun_needs_a_slot_too(callers: "Callers") -> None:
    deployment = await callers.open({"LUCIUS_MAX_INFLIGHT_PER_TENANT": "1"})
    job_id = await failed_job(deployment)
    await deployment.submit()
    response = await deployment.control(job_id, "rerun")
    check_problem(response, 429, "TENANT_LIMIT")
    assert len((await deployment.http.get("/v1/admin/dlq")).json()["items"]) == 1


async def test_the_outbox_is_hurried(deployment: "Deployment") -> None:
    for _ in range(3):
        await deployment.submit()
    await deployment.finish(await deployment.submit(), "ocr")
    response = await deployment.post("/v1/admin/outbox/retry")
    assert response.status_code == 200
    assert response.json() == {"made_due": 0}  # the lease above took the others along
    await deployment.submit()
    assert (await deployment.post("/v1/admin/outbox/retry")).json() == {"made_due": 1}
