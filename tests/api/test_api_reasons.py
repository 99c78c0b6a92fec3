"""Plans and explanations, over HTTP: every objection at once, and why a job is where it is."""

import asyncio
from typing import Any

import pytest
from tests.support.api_setup import Callers, Deployment, check_problem, envelope, pointers
from tests.support.reasons_setup import (
    BRITTLE,
    LATE_REF,
    explained,
    late_first,
    planned,
    seen_by,
    temporal_job,
)

from lucius.contracts.keys import Role


async def test_a_plan_says_what_would_happen(deployment: "Deployment") -> None:
    command = envelope(request_type="OCR→EMBEDDING", payload={"ocr": {"language": "de"}})
    plan = await planned(deployment, command)
    assert plan["accepted"] is True and plan["problems"] == [] and plan["duplicate_of"] is None
    assert plan["protocol_id"] == "ocr_embedding_v1"
    assert [(step["stepId"], step["step_type"], step["service"]) for step in plan["steps"]] == [
        ("step_01", "OCR", "ocr"),
        ("step_02", "EMBEDDING", "embedding"),
    ]
    assert (plan["mode"], plan["decision_source"], plan["decision_reason"]) == (
        "DEFAULT",
        "GLOBAL_CONFIG",
        "GLOBAL_DEFAULT",
    )
    assert plan["steps"][0]["policy"]["max_attempts"] == 3
    assert plan["steps"][0]["policy"]["ack_timeout_seconds"] == 30
    assert plan["limits"] == {
        "tenant": {"in_flight": 0, "max": 1_000},
        "total": {"in_flight": 0, "max": 50_000},
        "default": {"in_flight": 0, "max": 50_000},
        "burst": {"in_flight": 0, "max": 10_000},
        "taken_now": True,
        "retry_after_seconds": None,
        "budgets": [],
    }


async def test_a_plan_is_what_then_happens(deployment: "Deployment") -> None:
    payload = {"ocr": {"dpi": 200}, "sis": {"prompt": "What is it about?"}}
    command = envelope(request_type="OCR_EMBEDDING_SIS", mode="BURST", doc_id="d-1", payload=payload)
    plan = await planned(deployment, command)
    response = await deployment.post("/v1/orchestrate", command)
    job = await deployment.job(response.json()["jobId"])
    assert (plan["protocol_id"], plan["mode"]) == (job["protocol_id"], job["mode"])
    for told, step in zip(plan["steps"], job["steps"], strict=True):
        assert (told["payload"], told["service"]) == (step["payload"], step["service"])
        assert (plan["lane"], plan["decision_source"]) == (step["lane"], step["decision_source"])
    assert plan["topic"] == f"global-bus-p{plan['lane']}"


async def test_a_plan_names_every_problem(deployment: "Deployment") -> None:
    command = envelope(
        colour="red",
        correlation_id=7,
        request_type="OCR",
        mode="BURST",
        payload={"language": 7, "db_password": "hunter2"},
        input_ref={"uri": "file:///etc/passwd"},
        output_ref={"uri": "https://u:p@h/x"},
        callback_urls={"completed": "http://h/x"},
    )
    plan = await planned(deployment, command)
    assert plan["accepted"] is False
    found = {(each["code"], each.get("pointer")) for each in plan["problems"]}
    assert found >= {
        ("INVALID_ENVELOPE", "/colour"),
        ("INVALID_ENVELOPE", "/correlation_id"),
        ("DOC_ID_REQUIRED", "/doc_id"),
        ("INVALID_PAYLOAD", "/payload/db_password"),
        ("INVALID_PAYLOAD", "/payload/language"),
        ("REF_NOT_ALLOWED", "/input_ref/uri"),
        ("REF_NOT_ALLOWED", "/output_ref/uri"),
        ("REF_NOT_ALLOWED", "/callback_urls/completed"),
    }
    assert "hunter2" not in str(plan) and "u:p" not in str(plan)
    assert (plan["protocol_id"], plan["lane"]) == ("ocr_v1", None)
    assert plan["steps"][0]["payload"] is None


@pytest.mark.parametrize("changes", [{"colour": 1}, {"request_type": "PAINT"}, {"payload": {"api_key": "x"}}])
async def test_what_a_plan_objects_to_first_is_what_a_command_is_refused_for(
    deployment: "Deployment", changes: dict[str, Any]
) -> None:
    command = envelope(**changes)
    plan = await planned(deployment, command)
    refused = await deployment.post("/v1/orchestrate", command)
    assert plan["problems"][0]["code"] == refused.json()["code"]


async def test_a_plan_knows_the_job_that_is_there_already(deployment: "Deployment") -> None:
    command = envelope()
    job_id = (await deployment.post("/v1/orchestrate", command)).json()["jobId"]
    assert (await planned(deployment, command))["duplicate_of"] == job_id
    assert (await planned(deployment, command, idempotency_key="k"))["duplicate_of"] is None
    keyed = (await deployment.post("/v1/orchestrate", command, idempotency_key="k")).json()["jobId"]
    plan = await planned(deployment, command, idempotency_key="k")
    assert (plan["accepted"], plan["duplicate_of"]) == (True, keyed)
    other = await planned(deployment, envelope(idempotency_key="k"))
    assert [(each["code"], each["pointer"]) for each in other["problems"]] == [
        ("IDEMPOTENCY_KEY_REUSED", "/idempotency_key")
    ]
    assert other["duplicate_of"] is None


async def test_a_plan_knows_the_limits_of_the_moment(callers: "Callers") -> None:
    deployment = await callers.open({"LUCIUS_MAX_INFLIGHT_PER_TENANT": "1"})
    command = envelope()
    assert (await planned(deployment, command))["limits"]["taken_now"] is True
    assert (await deployment.post("/v1/orchestrate", command)).status_code == 202
    full = await planned(deployment, envelope())
    assert [each["code"] for each in full["problems"]] == ["TENANT_LIMIT"]
    assert full["limits"]["tenant"] == {"in_flight": 1, "max": 1}
    assert (full["limits"]["taken_now"], full["limits"]["retry_after_seconds"]) == (False, 5)
    again = await planned(deployment, command)
    assert again["accepted"] is True, "the job is there already, and answering with it takes no slot"
    assert (await planned(deployment, envelope(tenant_id="globex")))["accepted"] is True


async def test_a_body_that_is_no_envelope_at_all(deployment: "Deployment") -> None:
    check_problem(await deployment.http.post("/v1/orchestrate:plan", content=b"{"), 400, "MALFORMED_JSON")
    large = b'{"tenant_id": "' + b"x" * 300_000 + b'"}'
    check_problem(await deployment.http.post("/v1/orchestrate:plan", content=large), 413, "BODY_TOO_LARGE")
    for raw in (b"[]", b'"x"', b"7", b"null"):
        plan = (await deployment.http.post("/v1/orchestrate:plan", content=raw)).json()
        assert plan["accepted"] is False
        assert [each["code"] for each in plan["problems"]] == ["INVALID_ENVELOPE"]
    response = await deployment.http.post("/v1/orchestrate:plan", content=b'{"payload": 1e999}')
    assert response.json()["problems"][0]["code"] == "INVALID_ENVELOPE"
    assert response.json()["limits"] is None


async def test_a_plan_tells_nothing_of_another_tenant(deployment: "Deployment") -> None:
    command = envelope()
    assert (await deployment.post("/v1/orchestrate", command)).status_code == 202
    async with seen_by(deployment, "globex", Role.SUBMIT) as http:
        response = await http.post("/v1/orchestrate:plan", json=command | {"tenant_id": " ACME "})
        assert pointers(check_problem(response, 403, "FORBIDDEN")) == {"/tenant_id"}
        broken = (await http.post("/v1/orchestrate:plan", json=envelope(tenant_id=7))).json()
        assert (broken["limits"], broken["duplicate_of"]) == (None, None)
        own = await http.post("/v1/orchestrate:plan", json=envelope(tenant_id="Globex"))
        assert own.json()["accepted"] is True
    async with seen_by(deployment, "acme", Role.READ) as http:
        check_problem(await http.post("/v1/orchestrate:plan", json=command), 403, "FORBIDDEN")


# Explanations


async def test_a_job_nobody_works_on(deployment: "Deployment") -> None:
    job_id = await deployment.submit()
    told = await explained(deployment, job_id)
    assert told["waiting_for"] == "WORKER" and told["state"] == "DISPATCHING"
    assert "no worker has asked for directives of service ocr since this process started" in told["summary"]
    assert told["service"] == {"name": "ocr", "last_asked_at": None}
    assert told["attempt"] == {"number": 1, "of": 3}
    assert told["next"]["at"] is None
    assert told["late_answers"] == []
    assert told["limits"] == {"tenant": {"in_flight": 1, "max": 1_000}}


async def test_a_job_from_ack_to_end(deployment: "Deployment") -> None:
    job_id = await deployment.submit()
    directive = await deployment.directive(job_id, "ocr")
    step = (await deployment.job(job_id))["steps"][0]
    told = await explained(deployment, job_id)
    assert told["waiting_for"] == "ACK"
    assert told["service"]["last_asked_at"] is not None
    assert told["since"] == step["updated_at"]
    assert told["next"]["at"] > step["lease_expires_at"]
    await deployment.reply(directive, "ACK")
    assert (await explained(deployment, job_id))["waiting_for"] == "RESULT"
    await deployment.control(job_id, "pause")
    assert (await explained(deployment, job_id))["summary"].startswith("pausing since ")
    await deployment.reply(directive, "RESULT", output_ref={"uri": "s3://w/1"})
    told = await explained(deployment, job_id)
    assert (told["state"], told["waiting_for"], told["next"]) == ("SUCCEEDED", None, None)
    assert told["summary"].endswith("; the result is at s3://w/1")


async def test_a_worker_that_waits_has_just_asked(deployment: "Deployment") -> None:
    job_id = await deployment.submit(request_type="OCR_EMBEDDING")
    assert len(await deployment.lease("ocr")) == 1
    first = (await explained(deployment, job_id))["service"]["last_asked_at"]
    poller = asyncio.create_task(deployment.lease("ocr", wait=5))
    await asyncio.sleep(0.05)
    later = (await explained(deployment, job_id))["service"]["last_asked_at"]
    assert later > first
    await deployment.submit()
    assert len(await poller) == 1


async def test_a_job_of_an_engine_that_does_not_run_here(callers: "Callers") -> None:
    deployment = await callers.open(alone=True)
    told = await explained(deployment, await temporal_job(deployment))
    assert (told["waiting_for"], told["next"]["at"]) == ("ENGINE", None)
    assert told["hints"] == [
        "this job runs on the temporal engine, which does not run here: start `lucius dev --engine temporal` "
        "on this folder, and the job goes on"
    ]
    own = await explained(deployment, await deployment.submit())
    assert not any("temporal" in hint for hint in own["hints"])


async def test_what_cannot_be_explained(deployment: "Deployment") -> None:
    check_problem(await deployment.http.get("/v1/jobs/job_nobody:explain"), 404, "JOB_NOT_FOUND")


async def test_an_explanation_writes_its_times_as_the_caller_asks(deployment: "Deployment") -> None:
    job_id = await deployment.submit(request_type="OCR")
    created = (await deployment.job(job_id))["created_at"][:17]
    told = (await deployment.http.get(f"/v1/jobs/{job_id}:explain?times=rfc3339")).json()
    assert created in told["summary"]
    for query in ("times=local", "time=rfc3339", "times=clock&times=rfc3339"):
        answer = await deployment.http.get(f"/v1/jobs/{job_id}:explain?{query}")
        check_problem(answer, 422, "INVALID_REQUEST")
    assert (await deployment.http.get("/v1/jobs/job_nobody:excuse")).status_code == 404


async def test_late_answers_are_shown_whole(callers: "Callers") -> None:
    deployment = await callers.open(protocols={"brittle.yaml": BRITTLE})
    job_id, seq = await late_first(deployment)
    told = await explained(deployment, job_id)
    assert told["summary"].startswith("finally failed: ACK_TIMEOUT: ")
    (event,) = told["late_answers"]
    assert event == (await deployment.events(job_id))[-1]
    assert event["data"]["reply"]["output_ref"] == LATE_REF
    assert told["hints"] == [
        f"attempt 1 at step_01 succeeded too late (event {seq}): its result can be adopted"
    ]
