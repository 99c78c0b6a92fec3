"""Cancel, pause, resume, rerun, redrive and the outbox, over HTTP, in each situation."""

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.rooms.api.api_desk import Desks, House, check_problem, pointers
else:
    from api_desk import check_problem, pointers

FAILED = {"status": "FAILED_FINAL", "error": {"code": "BROKEN", "message": "the page is blank"}}
STOPPED = {"status": "FAILED_RETRY", "error": {"code": "STOPPED", "message": "told to"}}


async def controlled(house: "House", job_id: str, verb: str) -> dict[str, Any]:
    response = await house.control(job_id, verb)
    assert response.status_code == 202, response.text
    job: dict[str, Any] = response.json()
    assert job == await house.job(job_id)
    return job


async def failed_job(house: "House", **changes: Any) -> str:
    """Three steps; the second fails for good."""
    job_id = await house.submit(request_type="OCR_EMBEDDING_SIS", **changes)
    await house.finish(job_id, "ocr", output_ref={"uri": "s3://w/1"})
    await house.finish(job_id, "embedding", **FAILED)
    return job_id


async def test_cancel_before_anything_left(house: "House") -> None:
    job_id = await house.submit(request_type="OCR_EMBEDDING")
    job = await controlled(house, job_id, "cancel")
    assert (job["state"], [step["state"] for step in job["steps"]]) == ("CANCELLED", ["CANCELLED"] * 2)
    assert job["completed_at"] is not None
    assert await house.lease("ocr") == []
    assert (await controlled(house, job_id, "cancel"))["state"] == "CANCELLED"
    assert house.lucius.admission.by_tenant == {}


@pytest.mark.parametrize(
    ("result", "step_state"),
    [({}, "SUCCEEDED"), (FAILED, "FAILED_FINAL"), (STOPPED, "CANCELLED")],
)
async def test_cancel_waits_for_the_step_under_way(
    house: "House", result: dict[str, Any], step_state: str
) -> None:
    job_id = await house.submit(request_type="OCR_EMBEDDING")
    directive = await house.directive(job_id, "ocr")
    assert await house.told(directive, "ACK") == {"outcome": "applied", "stop": False}
    assert (await controlled(house, job_id, "cancel"))["state"] == "CANCELLING"
    assert (await controlled(house, job_id, "cancel"))["state"] == "CANCELLING"
    for verb in ("pause", "resume"):
        check_problem(await house.control(job_id, verb), 409, "JOB_CANCELLING")
    assert await house.told(directive, "PROGRESS", progress=5) == {"outcome": "applied", "stop": True}
    assert (await house.told(directive, "RESULT", **result))["outcome"] == "applied"
    assert await house.state(job_id) == "CANCELLED"
    assert await house.step_states(job_id) == [step_state, "CANCELLED"]
    assert (await house.http.get("/v1/admin/dlq")).json()["items"] == []


async def test_cancel_ends_with_the_deadline_of_a_silent_step(quick_house: "House") -> None:
    house = quick_house
    job_id = await house.submit(request_type="QUICK")
    await house.directive(job_id, "quick")
    assert (await controlled(house, job_id, "cancel"))["state"] == "CANCELLING"
    job = await house.reach(job_id, "CANCELLED")
    assert job["steps"][0]["state"] == "CANCELLED"
    assert job["steps"][0]["last_error_code"] == "ACK_TIMEOUT"
    assert job["attempts_total"] == 1


async def test_cancel_between_attempts_and_between_steps(house: "House") -> None:
    job_id = await house.submit()
    await house.told(await house.directive(job_id, "ocr"), "RESULT", status="FAILED_RETRY")
    assert (await controlled(house, job_id, "cancel"))["state"] == "CANCELLED"
    other = await house.submit(request_type="OCR_EMBEDDING")
    await house.finish(other, "ocr")
    assert (await controlled(house, other, "cancel"))["state"] == "CANCELLED"
    assert await house.step_states(other) == ["SUCCEEDED", "CANCELLED"]
    assert await house.lease("embedding") == []


async def test_an_ended_job_is_not_controlled(house: "House") -> None:
    job_id = await house.submit()
    await house.finish(job_id, "ocr")
    for verb in ("cancel", "pause"):
        check_problem(await house.control(job_id, verb), 409, "JOB_TERMINAL")
    before = await house.job(job_id)
    assert (await controlled(house, job_id, "resume")) == before


async def test_pause_holds_what_waits_for_dispatch(house: "House") -> None:
    job_id = await house.submit()
    lease_id = (await house.job(job_id))["steps"][0]["lease_id"]
    assert (await controlled(house, job_id, "pause"))["state"] == "PAUSED"
    assert (await controlled(house, job_id, "pause"))["state"] == "PAUSED"
    assert await house.lease("ocr") == []
    assert (await controlled(house, job_id, "resume"))["state"] == "DISPATCHING"
    directive = await house.directive(job_id, "ocr")
    assert (directive["attempt_no"], directive["lease_id"]) == (1, lease_id)


async def test_pause_waits_for_the_step_under_way(house: "House") -> None:
    job_id = await house.submit(request_type="OCR_EMBEDDING")
    directive = await house.directive(job_id, "ocr")
    assert (await controlled(house, job_id, "pause"))["state"] == "PAUSING"
    assert await house.told(directive, "RESULT") == {"outcome": "applied", "stop": False}
    assert await house.state(job_id) == "PAUSED"
    assert await house.step_states(job_id) == ["SUCCEEDED", "PENDING"]
    assert await house.lease("embedding") == []
    assert (await controlled(house, job_id, "resume"))["state"] == "IN_PROGRESS"
    await house.finish(job_id, "embedding")
    assert await house.state(job_id) == "SUCCEEDED"


async def test_pausing_is_undone_and_the_last_step_ends_the_job(house: "House") -> None:
    job_id = await house.submit()
    directive = await house.directive(job_id, "ocr")
    await controlled(house, job_id, "pause")
    assert (await controlled(house, job_id, "resume"))["state"] == "DISPATCHING"
    await controlled(house, job_id, "pause")
    await house.told(directive, "RESULT")
    assert await house.state(job_id) == "SUCCEEDED"


async def test_a_retry_waits_while_paused_and_cancel_works(quick_house: "House") -> None:
    house = quick_house
    job_id = await house.submit(request_type="QUICK")
    directive = await house.directive(job_id, "quick")
    await controlled(house, job_id, "pause")
    await house.told(directive, "RESULT", status="FAILED_RETRY")
    assert await house.state(job_id) == "PAUSED"
    await asyncio.sleep(0.2)
    assert await house.step_states(job_id) == ["FAILED_RETRY"]
    await controlled(house, job_id, "resume")
    assert (await house.directive(job_id, "quick"))["attempt_no"] == 2
    other = await house.submit(request_type="QUICK")
    await controlled(house, other, "pause")
    assert (await controlled(house, other, "cancel"))["state"] == "CANCELLED"


async def test_a_failure_for_good_is_in_the_dlq_with_its_reason(house: "House") -> None:
    job_id = await failed_job(house)
    job = await house.job(job_id)
    assert (job["state"], job["error_code"], job["error_message"]) == (
        "FAILED_FINAL",
        "BROKEN",
        "the page is blank",
    )
    assert [step["state"] for step in job["steps"]][:2] == ["SUCCEEDED", "FAILED_FINAL"]
    assert (await house.http.get("/v1/admin/dlq")).json() == {"items": [job], "next_cursor": None}


async def test_rerun_from_the_first_step_that_failed(house: "House") -> None:
    job_id = await failed_job(house, correlation_id="c-1")
    response = await house.control(job_id, "rerun")
    assert response.status_code == 202
    again = response.json()
    assert response.headers["location"] == f"/v1/jobs/{again['jobId']}"
    assert again["jobId"] != job_id
    assert (again["rerun_of"], again["correlation_id"]) == (job_id, "c-1")
    assert [step["state"] for step in again["steps"]] == ["SUCCEEDED", "DISPATCHING", "PENDING"]
    directive = await house.directive(again["jobId"], "embedding")
    assert directive["upstream"][0]["result_ref"] == {"uri": "s3://w/1"}
    assert directive["attempt_no"] == 1
    await house.told(directive, "RESULT")
    await house.finish(again["jobId"], "sis")
    assert await house.state(again["jobId"]) == "SUCCEEDED"
    assert await house.state(job_id) == "FAILED_FINAL"


async def test_there_is_one_open_rerun(house: "House") -> None:
    job_id = await failed_job(house)
    answers = await asyncio.gather(*(house.control(job_id, "rerun") for _ in range(8)))
    assert {answer.status_code for answer in answers} == {202}
    ids = {answer.json()["jobId"] for answer in answers}
    assert len(ids) == 1
    assert sum("idempotent-replayed" not in answer.headers for answer in answers) == 1
    (open_id,) = ids
    await controlled(house, open_id, "cancel")
    later = (await house.control(job_id, "rerun")).json()
    assert later["jobId"] not in ids
    assert house.lucius.admission.by_tenant == {"acme": 1}


async def test_a_rerun_honours_its_key(house: "House") -> None:
    job_id = await failed_job(house)
    path = f"/v1/jobs/{job_id}:rerun"
    one = await house.post(path, idempotency_key="again-1")
    same = await house.post(path, idempotency_key="again-1")
    other = await house.post(path, idempotency_key="again-2")
    assert one.json()["jobId"] == same.json()["jobId"] != other.json()["jobId"]
    assert same.headers["idempotent-replayed"] == "true"
    assert one.json()["idempotency_key"] == "again-1"
    response = await house.post(path, {"from_step": "step_01"}, idempotency_key="again-1")
    check_problem(response, 422, "IDEMPOTENCY_KEY_REUSED")
    response = await house.post(path, idempotency_key=" ")
    assert pointers(check_problem(response, 422, "INVALID_ENVELOPE")) == {"/idempotency_key"}


async def test_rerun_from_a_named_step(house: "House") -> None:
    job_id = await house.submit(request_type="OCR_EMBEDDING")
    check_problem(await house.control(job_id, "rerun"), 409, "JOB_NOT_TERMINAL")
    await house.finish(job_id, "ocr")
    await house.finish(job_id, "embedding")
    check_problem(await house.control(job_id, "rerun"), 409, "NOTHING_TO_RERUN")
    path = f"/v1/jobs/{job_id}:rerun"
    again = (await house.post(path, {"from_step": "step_02"})).json()
    assert [step["state"] for step in again["steps"]] == ["SUCCEEDED", "DISPATCHING"]
    for wish, pointer in (
        ({"from_step": "step_09"}, "/from_step"),
        ({"from_step": 2}, "/from_step"),
        ({"step": "step_01"}, "/step"),
    ):
        response = await house.post(path, wish)
        assert pointers(check_problem(response, 422, "INVALID_ENVELOPE")) == {pointer}
    failed = await failed_job(house)
    response = await house.post(f"/v1/jobs/{failed}:rerun", {"from_step": "step_03"})
    assert pointers(check_problem(response, 422, "INVALID_ENVELOPE")) == {"/from_step"}


async def test_a_cursor_of_the_dlq_goes_into_an_address_as_it_is(house: "House") -> None:
    failed = [await failed_job(house) for _ in range(3)]
    found: list[str] = []
    more: str | None = ""
    while more is not None:
        page = (await house.http.get(f"/v1/admin/dlq?limit=1{more}")).json()
        found += [job["jobId"] for job in page["items"]]
        more = None if page["next_cursor"] is None else f"&cursor={page['next_cursor']}"
        assert len(found) <= 3
    assert found == failed[::-1]
    for cursor in ("98205184735046", "!", "OTgyMDUxODQ3MzUwNDYjam9i\u00e9"):
        check_problem(
            await house.http.get("/v1/admin/dlq", params={"cursor": cursor}), 422, "INVALID_REQUEST"
        )


async def test_redrive_takes_a_job_out_of_the_dlq(house: "House") -> None:
    first, second = await failed_job(house), await failed_job(house)
    page = (await house.http.get("/v1/admin/dlq", params={"limit": 1})).json()
    assert [job["jobId"] for job in page["items"]] == [second]
    rest = (await house.http.get("/v1/admin/dlq", params={"cursor": page["next_cursor"]})).json()
    assert [job["jobId"] for job in rest["items"]] == [first]
    response = await house.post(f"/v1/admin/dlq/{first}:redrive")
    assert response.status_code == 202
    assert response.json()["rerun_of"] == first
    left = (await house.http.get("/v1/admin/dlq")).json()["items"]
    assert [job["jobId"] for job in left] == [second]
    again = await house.post(f"/v1/admin/dlq/{first}:redrive")
    assert again.json()["jobId"] == response.json()["jobId"]
    check_problem(await house.post(f"/v1/admin/dlq/{again.json()['jobId']}:redrive"), 409, "JOB_NOT_TERMINAL")


async def test_a_rerun_needs_a_slot_too(desks: "Desks") -> None:
    house = await desks.open({"LUCIUS_MAX_INFLIGHT_PER_TENANT": "1"})
    job_id = await failed_job(house)
    await house.submit()
    response = await house.control(job_id, "rerun")
    check_problem(response, 429, "TENANT_LIMIT")
    assert len((await house.http.get("/v1/admin/dlq")).json()["items"]) == 1


async def test_the_outbox_is_hurried(house: "House") -> None:
    for _ in range(3):
        await house.submit()
    await house.finish(await house.submit(), "ocr")
    response = await house.post("/v1/admin/outbox/retry")
    assert response.status_code == 200
    assert response.json() == {"made_due": 0}  # the lease above took the others along
    await house.submit()
    assert (await house.post("/v1/admin/outbox/retry")).json() == {"made_due": 1}
