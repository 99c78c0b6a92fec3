"""Adopted results, over HTTP: a success that came too late becomes a step's result."""

import asyncio
from typing import Any

import pytest
from tests.support.api_setup import Callers, Deployment, check_problem, pointers, until
from tests.support.reasons_setup import (
    BRITTLE,
    LATE_REF,
    PATIENT,
    adopted,
    explained,
    late_first,
    late_last,
    rows,
    seen_by,
)

from lucius.contracts.keys import Role


@pytest.fixture
async def brittle_deployment(callers: "Callers") -> "Deployment":
    return await callers.open(protocols={"brittle.yaml": BRITTLE, "patient.yaml": PATIENT})


async def test_an_adopted_step_is_done_and_the_rest_runs(brittle_deployment: "Deployment") -> None:
    deployment = brittle_deployment
    job_id, seq = await late_first(deployment, correlation_id="c-1")
    response = await adopted(deployment, job_id, "step_01", seq)
    assert response.status_code == 202, response.text
    job = response.json()
    assert response.headers["location"] == f"/v1/jobs/{job['jobId']}"
    assert (job["rerun_of"], job["correlation_id"], job["state"]) == (job_id, "c-1", "DISPATCHING")
    assert [step["state"] for step in job["steps"]] == ["SUCCEEDED", "DISPATCHING"]
    assert job["steps"][0]["result_ref"] == LATE_REF
    first = (await deployment.events(job["jobId"]))[0]
    assert first["type"] == "JOB_CREATED"
    assert first["data"]["adopted"] == {
        "stepId": "step_01",
        "seq": seq,
        "attempt_no": 1,
        "output_ref": LATE_REF,
    }
    assert first["data"]["reused"] == []
    directive = await deployment.finish(job["jobId"], "second")
    assert directive["upstream"][0]["result_ref"] == LATE_REF
    assert await deployment.state(job["jobId"]) == "SUCCEEDED"
    assert (await deployment.http.get("/v1/admin/dlq")).json()["items"] == []
    assert await deployment.state(job_id) == "FAILED_FINAL"


@pytest.mark.parametrize("layout", ["ledger", "table"])
async def test_an_adopted_last_step_ends_the_job_at_once(callers: "Callers", layout: str) -> None:
    deployment = await callers.open(protocols={"brittle.yaml": BRITTLE}, layout=layout)
    job_id, seq = await late_last(deployment)
    response = await adopted(deployment, job_id, "step_02", seq)
    assert response.status_code == 202, response.text
    job = response.json()
    assert (job["state"], job["final_output"], job["attempts_total"]) == ("SUCCEEDED", LATE_REF["uri"], 0)
    assert [step["state"] for step in job["steps"]] == ["SUCCEEDED", "SUCCEEDED"]
    assert [step["result_ref"] for step in job["steps"]] == [{"uri": "s3://w/1"}, LATE_REF]
    assert await deployment.event_types(job["jobId"]) == ["JOB_CREATED", "JOB_SUCCEEDED"]
    assert (await deployment.events(job["jobId"]))[0]["data"]["reused"] == ["step_01"]
    assert deployment.lucius.admission.by_tenant == {}
    await deployment.lucius.admission.recount()
    assert deployment.lucius.admission.by_tenant == {}, "it holds no slot either"
    listed = (await deployment.http.get("/v1/jobs", params={"state": "SUCCEEDED"})).json()["items"]
    assert [each["jobId"] for each in listed] == [job["jobId"]]
    assert (await deployment.job(job["jobId"], wait=5))["state"] == "SUCCEEDED"
    told = await explained(deployment, job["jobId"])
    assert told["summary"].endswith(f"; the result is at {LATE_REF['uri']}")
    check_problem(await deployment.control(job["jobId"], "cancel"), 409, "JOB_TERMINAL")


async def test_a_zombies_success_of_an_earlier_attempt_counts_too(brittle_deployment: "Deployment") -> None:
    deployment = brittle_deployment
    job_id = await deployment.submit(request_type="PATIENT")
    directive = await deployment.directive(job_id, "only")

    async def given_up() -> bool:
        return await deployment.step_states(job_id) == ["FAILED_RETRY"]

    await until(given_up)
    check_problem(await deployment.say(directive, "RESULT", output_ref=LATE_REF), 409, "STALE_ATTEMPT")
    seq = (await deployment.events(job_id))[-1]["seq"]
    told = await explained(deployment, job_id)
    assert (told["waiting_for"], len(told["late_answers"])) == ("RETRY", 1)
    assert "its result can be adopted once the job has ended" in told["hints"][0]
    check_problem(await adopted(deployment, job_id, "step_01", seq), 409, "JOB_NOT_TERMINAL")
    await deployment.control(job_id, "cancel")
    job = (await adopted(deployment, job_id, "step_01", seq)).json()
    assert (job["state"], job["final_output"]) == ("SUCCEEDED", LATE_REF["uri"])


async def test_a_job_that_was_adopted_offers_nothing_more_until_that_came_to_nothing(
    brittle_deployment: "Deployment",
) -> None:
    deployment = brittle_deployment
    job_id, seq = await late_first(deployment)
    adopt = {"action": "adopt", "stepId": "step_01", "seq": seq}
    offered = [adopt, {"action": "redrive"}, {"action": "rerun"}]
    told = await explained(deployment, job_id)
    assert (told["actions"], told["again_as"], told["adoptions"]) == (offered, None, [])
    new = (await adopted(deployment, job_id, "step_01", seq)).json()["jobId"]
    told = await explained(deployment, job_id)
    assert (told["actions"], told["hints"], told["again_as"]) == ([], [], new)
    assert told["adoptions"] == [{"stepId": "step_01", "seq": seq, "jobId": new}]
    assert told["summary"].endswith(f"; it was run again as {new}")
    await deployment.control(new, "cancel")
    # It was taken up once: it is on the list of the finally failed no more.
    assert (await explained(deployment, job_id))["actions"] == [adopt, {"action": "rerun"}]
    rerun = (await deployment.control(job_id, "rerun")).json()["jobId"]
    told = await explained(deployment, job_id)
    assert (told["actions"], told["again_as"]) == ([adopt], rerun)


async def test_adopting_honours_its_key(brittle_deployment: "Deployment") -> None:
    deployment = brittle_deployment
    job_id, seq = await late_last(deployment)
    one = await adopted(deployment, job_id, "step_02", seq, idempotency_key="a-1")
    same = await adopted(deployment, job_id, "step_02", seq, idempotency_key="a-1")
    other = await adopted(deployment, job_id, "step_02", seq, idempotency_key="a-2")
    assert one.json()["jobId"] == same.json()["jobId"] != other.json()["jobId"]
    assert same.headers["idempotent-replayed"] == "true"
    rerun = await deployment.post(f"/v1/jobs/{job_id}:rerun", idempotency_key="a-1")
    check_problem(rerun, 422, "IDEMPOTENCY_KEY_REUSED")
    response = await adopted(deployment, job_id, "step_02", seq, idempotency_key=" ")
    assert pointers(check_problem(response, 422, "INVALID_ENVELOPE")) == {"/idempotency_key"}


async def test_adopting_again_without_a_key_answers_with_the_same_job(
    brittle_deployment: "Deployment",
) -> None:
    deployment = brittle_deployment
    job_id, seq = await late_last(deployment)
    answers = await asyncio.gather(*(adopted(deployment, job_id, "step_02", seq) for _ in range(20)))
    assert {answer.status_code for answer in answers} == {202}
    (only,) = {answer.json()["jobId"] for answer in answers}
    assert [answer.headers.get("idempotent-replayed") for answer in answers].count("true") == 19
    await deployment.finish((await deployment.control(job_id, "rerun")).json()["jobId"], "second")
    again = await adopted(deployment, job_id, "step_02", seq)
    assert (again.json()["jobId"], again.headers["idempotent-replayed"]) == (only, "true")


async def test_without_a_key_there_is_one_open_rerun(brittle_deployment: "Deployment") -> None:
    deployment = brittle_deployment
    job_id, seq = await late_first(deployment)
    rerun = (await deployment.control(job_id, "rerun")).json()
    answers = await asyncio.gather(*(adopted(deployment, job_id, "step_01", seq) for _ in range(4)))
    assert {answer.json()["jobId"] for answer in answers} == {rerun["jobId"]}
    assert {answer.headers.get("idempotent-replayed") for answer in answers} == {"true"}
    await deployment.control(rerun["jobId"], "cancel")
    job = (await adopted(deployment, job_id, "step_01", seq)).json()
    assert job["jobId"] != rerun["jobId"]
    assert job["steps"][0]["state"] == "SUCCEEDED"


async def test_what_cannot_be_adopted(brittle_deployment: "Deployment") -> None:
    deployment = brittle_deployment
    job_id, seq = await late_first(deployment)
    path = f"/v1/jobs/{job_id}:adopt"
    refused: list[tuple[Any, set[str]]] = [
        ({"stepId": "step_01", "seq": seq + 1}, {"/seq"}),
        ({"stepId": "step_01", "seq": 1}, {"/seq"}),
        ({"stepId": "step_02", "seq": seq}, {"/stepId"}),
        ({"stepId": "step_09", "seq": seq}, {"/stepId"}),
        ({"stepId": "step_01", "seq": "7"}, {"/seq"}),
        ({"stepId": "step_01", "seq": True}, {"/seq"}),
        ({"stepId": "step_01", "seq": 0}, {"/seq"}),
        ({"stepId": 1, "seq": seq, "why": 1}, {"/stepId", "/why"}),
        ({}, {"/stepId", "/seq"}),
    ]
    before = await rows(deployment)
    for wanted, at_fault in refused:
        response = await deployment.post(path, wanted)
        assert pointers(check_problem(response, 422, "INVALID_ENVELOPE")) == at_fault, wanted
    assert await rows(deployment) == before
    nobody = await adopted(deployment, "job_nobody", "step_01", seq)
    check_problem(nobody, 404, "JOB_NOT_FOUND")
    check_problem(await deployment.post(path), 400, "MALFORMED_JSON")


async def test_a_late_failure_is_no_success(brittle_deployment: "Deployment") -> None:
    deployment = brittle_deployment
    job_id = await deployment.submit(request_type="BRITTLE")
    directive = await deployment.directive(job_id, "first")
    await deployment.reach(job_id, "FAILED_FINAL")
    await deployment.reply(directive, "RESULT", status="FAILED_RETRY")
    seq = (await deployment.events(job_id))[-1]["seq"]
    response = await adopted(deployment, job_id, "step_01", seq)
    document = check_problem(response, 422, "INVALID_ENVELOPE")
    assert document["detail"] == f"event {seq} is REPLY_LATE, not a success that came too late"


async def test_a_foreign_job_is_like_an_absent_one(brittle_deployment: "Deployment") -> None:
    deployment = brittle_deployment
    job_id, seq = await late_first(deployment)
    async with seen_by(deployment, "globex", *Role) as http:
        foreign = await http.get(f"/v1/jobs/{job_id}:explain")
        absent = await http.get("/v1/jobs/job_nobody:explain")
        assert foreign.text.replace(job_id, "job_nobody") == absent.text
        check_problem(foreign, 404, "JOB_NOT_FOUND")
        wanted = {"stepId": "step_01", "seq": seq}
        check_problem(await http.post(f"/v1/jobs/{job_id}:adopt", json=wanted), 404, "JOB_NOT_FOUND")
    async with seen_by(deployment, "acme", Role.READ, Role.CONTROL, Role.SUBMIT) as http:
        assert (await http.get(f"/v1/jobs/{job_id}:explain")).status_code == 200
        response = await http.post(f"/v1/jobs/{job_id}:adopt", json={"stepId": "step_01", "seq": seq})
        check_problem(response, 403, "FORBIDDEN")


async def test_an_adoption_needs_a_slot_too(callers: "Callers") -> None:
    deployment = await callers.open(
        {"LUCIUS_MAX_INFLIGHT_PER_TENANT": "1"}, protocols={"brittle.yaml": BRITTLE}
    )
    job_id, seq = await late_first(deployment)
    await deployment.submit()
    check_problem(await adopted(deployment, job_id, "step_01", seq), 429, "TENANT_LIMIT")
    assert len((await deployment.http.get("/v1/admin/dlq")).json()["items"]) == 1


async def test_the_reference_of_a_wordy_late_success_is_kept(brittle_deployment: "Deployment") -> None:
    """Evidence is cut to size, but never by what it would be adopted for."""
    deployment = brittle_deployment
    job_id = await deployment.submit(request_type="BRITTLE")
    directive = await deployment.directive(job_id, "first")
    await deployment.reach(job_id, "FAILED_FINAL")
    ref = {"uri": "s3://w/late", "parts": "x" * 3_900}
    await deployment.reply(
        directive, "RESULT", output_ref=ref, **{f"note_{n}": "y" * 3_000 for n in range(3)}
    )
    event = (await deployment.events(job_id))[-1]
    assert event["data"]["reply"]["output_ref"] == ref
    job = (await adopted(deployment, job_id, "step_01", event["seq"])).json()
    assert job["steps"][0]["result_ref"] == ref
