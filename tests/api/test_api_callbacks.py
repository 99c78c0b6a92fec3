"""A platform service's side over HTTP: leases, tokens, and what becomes of each reply."""

import asyncio
import base64
import json
from typing import Any

import jwt
import pytest
from structlog.testing import capture_logs
from tests.support.api_setup import Deployment, check_problem, pointers, reply_to

from lucius.ledger.job_deletion import JobDeletion

APPLIED = {"outcome": "applied", "stop": False}


async def test_a_directive_carries_what_a_service_needs(deployment: "Deployment") -> None:
    job_id = await deployment.submit(
        request_type="OCR_EMBEDDING", payload={"ocr": {"dpi": 300}}, correlation_id="c-1"
    )
    first = await deployment.directive(job_id, "ocr")
    assert (first["type"], first["stepId"], first["attempt_no"]) == ("DIRECTIVE", "step_01", 1)
    assert first["payload"] == {"dpi": 300, "language": "en"}
    lane = (await deployment.job(job_id))["steps"][0]["lane"]
    assert (first["lane"], first["reply_topic"]) == (lane, f"global-bus-replies-p{lane}")
    assert (first["correlation_id"], first["upstream"]) == ("c-1", [])
    assert first["callback_urls"] == {
        kind: f"http://house/v1/callbacks/{kind}" for kind in ("ack", "result", "progress")
    }
    assert first["workspace_ref"]["uri"].endswith(f"/lucius/acme/{job_id}/")
    await deployment.reply(first, "RESULT", output_ref={"uri": "s3://w/1.txt"})
    second = await deployment.directive(job_id, "embedding")
    assert second["upstream"] == [
        {"stepId": "step_01", "step_type": "OCR", "result_ref": {"uri": "s3://w/1.txt"}}
    ]
    assert second["payload"] == {}


async def test_each_directive_is_handed_out_once(deployment: "Deployment") -> None:
    made = {await deployment.submit() for _ in range(30)}
    taken = await asyncio.gather(*(deployment.lease("ocr", most=7, wait=1) for _ in range(6)))
    ids = [directive["jobId"] for directives in taken for directive in directives]
    ids += [directive["jobId"] for directive in await deployment.lease("ocr")]
    assert sorted(ids) == sorted(made)
    assert all(len(directives) <= 7 for directives in taken)
    assert await deployment.lease("ocr") == []


async def test_a_poller_is_woken_by_work_and_may_choose_lanes(deployment: "Deployment") -> None:
    waiting = asyncio.create_task(deployment.lease("ocr", wait=20))
    await asyncio.sleep(0.05)
    job_id = await deployment.submit()
    assert [one["jobId"] for one in await asyncio.wait_for(waiting, 5)] == [job_id]
    await deployment.submit(tenant_id="tenant_a")
    response = await deployment.post("/v1/directives:lease", {"service": "ocr", "lanes": [0, 14]})
    assert response.json() == {"directives": []}
    response = await deployment.post("/v1/directives:lease", {"service": "ocr", "lanes": [15]})
    assert [one["lane"] for one in response.json()["directives"]] == [15]


async def test_waiting_for_a_worker_has_no_clock_and_the_hand_out_starts_it(deployment: "Deployment") -> None:
    job_id = await deployment.submit()
    step = (await deployment.job(job_id))["steps"][0]
    assert (step["state"], step["attempt_no"], step["lease_expires_at"]) == ("DISPATCHING", 1, None)
    directive = await deployment.directive(job_id, "ocr")
    step = (await deployment.job(job_id))["steps"][0]
    assert (step["state"], step["lease_id"]) == ("INITIATED", directive["lease_id"])
    assert step["lease_expires_at"] == directive["lease_expires_at"]


@pytest.mark.parametrize(
    ("wanted", "pointer"),
    [
        ({}, "/service"),
        ({"service": "no such name"}, "/service"),
        ({"service": "ocr", "max": 0}, "/max"),
        ({"service": "ocr", "max": 101}, "/max"),
        ({"service": "ocr", "wait_seconds": 31}, "/wait_seconds"),
        ({"service": "ocr", "wait_seconds": True}, "/wait_seconds"),
        ({"service": "ocr", "lanes": [16]}, "/lanes"),
        ({"service": "ocr", "more": 1}, "/more"),
    ],
)
async def test_a_lease_that_is_not_well_formed(deployment: "Deployment", wanted: Any, pointer: str) -> None:
    response = await deployment.post("/v1/directives:lease", wanted)
    assert pointers(check_problem(response, 422, "INVALID_ENVELOPE")) == {pointer}


async def test_ack_progress_result(deployment: "Deployment") -> None:
    job_id = await deployment.submit()
    directive = await deployment.directive(job_id, "ocr")
    assert await deployment.reply(directive, "ACK", status="ACKED") == APPLIED
    job = await deployment.job(job_id)
    assert (job["state"], job["steps"][0]["state"]) == ("IN_PROGRESS", "PROCESSING")
    assert await deployment.reply(directive, "PROGRESS", progress=40, note="page 4") == APPLIED
    assert await deployment.reply(directive, "PROGRESS", progress=10) == APPLIED
    assert (await deployment.job(job_id))["steps"][0]["progress"] == 40
    assert await deployment.reply(directive, "RESULT", output_ref={"uri": "s3://o/1"}) == APPLIED
    job = await deployment.job(job_id)
    assert (job["state"], job["final_output"]) == ("SUCCEEDED", "s3://o/1")
    assert (await deployment.event_types(job_id)).count("STEP_PROGRESSED") == 1


@pytest.mark.parametrize("kind", ["PROGRESS", "RESULT"])
async def test_a_later_reply_implies_the_ack(deployment: "Deployment", kind: str) -> None:
    job_id = await deployment.submit()
    directive = await deployment.directive(job_id, "ocr")
    assert await deployment.reply(directive, kind, progress=1) == APPLIED
    acked = next(event for event in await deployment.events(job_id) if event["type"] == "STEP_ACKED")
    assert acked["data"]["implied"] is True
    assert (await deployment.reply(directive, "ACK"))["outcome"] == "duplicate"


def retold(token: str, **changes: Any) -> str:
    """The token with its claims changed and its signature kept."""
    head, claims, signature = token.split(".")
    read = json.loads(base64.urlsafe_b64decode(claims + "=="))
    raw = base64.urlsafe_b64encode(json.dumps(read | changes).encode()).decode().rstrip("=")
    return ".".join((head, raw, signature))


async def test_tokens_that_are_not_ours(deployment: "Deployment") -> None:
    job_id = await deployment.submit()
    directive = await deployment.directive(job_id, "ocr")
    token = directive["callback_token"]
    claims = jwt.decode(token, options={"verify_signature": False})
    kid = jwt.get_unverified_header(token)["kid"]
    guess = "x" * 64
    forged = [
        "",
        "nonsense",
        "é.é.é",
        token[:-2],
        retold(token, att=2),
        jwt.encode(claims, guess, "HS256", headers={"kid": kid}),
        jwt.encode(claims, guess, "HS512", headers={"kid": kid}),
        jwt.encode(claims, guess, "HS256", headers={"kid": "other"}),
        jwt.encode(claims, "", "none", headers={"kid": kid}),
        jwt.encode(claims, "", "none"),
    ]
    for bad in forged:
        headers = [(b"Authorization", f"Bearer {bad}".encode())]
        message = json.dumps(reply_to(directive, "RESULT"))
        response = await deployment.http.post("/v1/callbacks/result", content=message, headers=headers)
        check_problem(response, 401, "UNAUTHENTICATED")
        assert response.headers["www-authenticate"] == "Bearer"
        attempt = await deployment.http.get("/v1/callbacks/attempt", headers=headers)
        check_problem(attempt, 401, "UNAUTHENTICATED")
    response = await deployment.post("/v1/callbacks/result", reply_to(directive, "RESULT"))
    check_problem(response, 401, "UNAUTHENTICATED")
    response = await deployment.post(
        "/v1/callbacks/result", reply_to(directive, "RESULT"), authorization=f"Basic {token}"
    )
    check_problem(response, 401, "UNAUTHENTICATED")
    assert await deployment.step_states(job_id) == ["INITIATED"]


async def test_a_token_signed_by_our_key_with_another_algorithm(deployment: "Deployment") -> None:
    directive = await deployment.directive(await deployment.submit(), "ocr")
    token = directive["callback_token"]
    secret = deployment.lucius.deployment.tokens._newest.secret
    kid = jwt.get_unverified_header(token)["kid"]
    claims = jwt.decode(token, options={"verify_signature": False})
    other = jwt.encode(claims, secret, "HS512", headers={"kid": kid})
    check_problem(await deployment.send(other, "ACK", reply_to(directive, "ACK")), 401, "UNAUTHENTICATED")
    nameless = {name: value for name, value in claims.items() if name != "lease"}
    partial = jwt.encode(nameless, secret, "HS256", headers={"kid": kid})
    check_problem(await deployment.send(partial, "ACK", reply_to(directive, "ACK")), 401, "UNAUTHENTICATED")


async def test_a_token_opens_its_own_attempt_only(deployment: "Deployment") -> None:
    one = await deployment.directive(await deployment.submit(), "ocr")
    two = await deployment.directive(await deployment.submit(), "ocr")
    response = await deployment.send(one["callback_token"], "RESULT", reply_to(two, "RESULT"))
    check_problem(response, 403, "FORBIDDEN")
    changed = reply_to(one, "RESULT", lease_id="another")
    check_problem(await deployment.send(one["callback_token"], "RESULT", changed), 403, "FORBIDDEN")
    assert await deployment.step_states(one["jobId"]) == ["INITIATED"]
    assert await deployment.step_states(two["jobId"]) == ["INITIATED"]


@pytest.mark.parametrize("kind", ["ACK", "PROGRESS", "RESULT"])
async def test_a_reply_names_the_tenant_of_its_job(deployment: "Deployment", kind: str) -> None:
    directive = await deployment.directive(await deployment.submit(), "ocr")
    wrong = reply_to(directive, kind, tenant_id="another")
    check_problem(await deployment.send(directive["callback_token"], kind, wrong), 403, "FORBIDDEN")
    assert await deployment.step_states(directive["jobId"]) == ["INITIATED"]
    right = reply_to(directive, kind, tenant_id=f" {directive['tenant_id'].upper()}")
    assert (await deployment.send(directive["callback_token"], kind, right)).json() == APPLIED


async def test_an_attempt_of_a_job_that_is_forgotten_is_told_to_stop(deployment: "Deployment") -> None:
    job_id = await deployment.submit()
    directive = await deployment.finish(job_id, "ocr")
    ledger = deployment.lucius.deployment.ledger
    loaded = await ledger.load(job_id)
    assert loaded is not None
    job = loaded.record.job
    assert await JobDeletion(ledger).forget(job.lane, job.completed_at_ms or 0, job_id)
    for kind in ("ACK", "PROGRESS", "RESULT"):
        document = check_problem(await deployment.say(directive, kind, progress=1), 404, "JOB_NOT_FOUND")
        assert document["stop"] is True
    headers = {"Authorization": f"Bearer {directive['callback_token']}"}
    asked = await deployment.http.get("/v1/callbacks/attempt", headers=headers)
    assert (asked.status_code, asked.json()["current"], asked.json()["stop"]) == (200, False, True)


async def test_all_that_a_step_made_reaches_the_next_and_a_rerun(deployment: "Deployment") -> None:
    job_id = await deployment.submit(request_type="OCR_EMBEDDING")
    pages = [{"uri": "s3://w/page-1.png"}, {"uri": "s3://w/page-2.png", "dpi": 300}]
    await deployment.finish(job_id, "ocr", output_ref={"uri": "s3://w/text"}, artifacts=pages)
    kept = {"uri": "s3://w/text", "artifacts": pages}
    assert (await deployment.job(job_id))["steps"][0]["result_ref"] == kept
    directive = await deployment.directive(job_id, "embedding")
    assert directive["upstream"][0]["result_ref"] == kept
    refused = await deployment.say(directive, "RESULT", artifacts=[{"uri": "s3://user:hunter2@w/x"}])
    assert pointers(refused.json()) == {"/artifacts/0/uri"} and "hunter2" not in refused.text
    await deployment.reply(directive, "RESULT", status="FAILED_FINAL")
    again = (await deployment.control(job_id, "rerun")).json()
    assert again["steps"][0]["result_ref"] == kept


async def asked(deployment: "Deployment", directive: dict[str, Any]) -> Any:
    headers = {"Authorization": f"Bearer {directive['callback_token']}"}
    return (await deployment.http.get("/v1/callbacks/attempt", headers=headers)).json()


async def test_an_attempt_that_was_given_up_is_not_waited_for(quick_deployment: "Deployment") -> None:
    deployment = quick_deployment
    job_id = await deployment.submit(request_type="QUICK")
    first = await deployment.directive(job_id, "quick")
    await deployment.control(job_id, "pause")
    assert await deployment.reply(first, "RESULT", status="FAILED_RETRY") == {
        "outcome": "applied",
        "stop": False,
    }
    reason = "the job is PAUSED and no longer waits for this attempt"
    assert await asked(deployment, first) == {"current": False, "stop": True, "reason": reason}


async def test_a_stale_attempt_is_told_to_stop(quick_deployment: "Deployment") -> None:
    deployment = quick_deployment
    job_id = await deployment.submit(request_type="QUICK")
    first = await deployment.directive(job_id, "quick")
    assert await deployment.reply(first, "RESULT", status="FAILED_RETRY") == APPLIED
    second = await deployment.directive(job_id, "quick")
    assert second["attempt_no"] == 2
    assert second["lease_id"] != first["lease_id"]
    for kind in ("ACK", "PROGRESS", "RESULT"):
        document = check_problem(await deployment.say(first, kind, progress=1), 409, "STALE_ATTEMPT")
        assert document["stop"] is True
    replaced = "attempt 2 of step_01 has taken its place"
    assert await asked(deployment, first) == {"current": False, "stop": True, "reason": replaced}
    assert await asked(deployment, second) == {"current": True, "stop": False, "reason": None}
    assert await deployment.reply(second, "RESULT") == APPLIED
    over = {"current": False, "stop": True, "reason": "the job has ended: SUCCEEDED"}
    assert [await asked(deployment, each) for each in (first, second)] == [over, over]
    stale = [event for event in await deployment.events(job_id) if event["type"] == "REPLY_STALE"]
    assert [event["data"]["reply"]["type"] for event in stale] == ["ACK", "PROGRESS", "RESULT"]
    assert [event["attempt_no"] for event in stale] == [1, 1, 1]


async def test_between_attempts_the_last_one_is_stale_but_its_result_a_duplicate(
    deployment: "Deployment",
) -> None:
    job_id = await deployment.submit()
    directive = await deployment.directive(job_id, "ocr")
    error = {"code": "BUSY", "message": "come again"}
    await deployment.reply(directive, "RESULT", status="FAILED_RETRY", error=error)
    step = (await deployment.job(job_id))["steps"][0]
    assert (step["state"], step["last_error_code"]) == ("FAILED_RETRY", "BUSY")
    assert step["next_attempt_at"] is not None
    again = await deployment.reply(directive, "RESULT", status="FAILED_RETRY")
    assert again == {"outcome": "duplicate", "stop": True}
    response = await deployment.say(directive, "PROGRESS", progress=3)
    assert check_problem(response, 409, "STALE_ATTEMPT")["stop"] is True


async def test_twice_is_once(deployment: "Deployment") -> None:
    job_id = await deployment.submit(request_type="OCR_EMBEDDING")
    directive = await deployment.directive(job_id, "ocr")
    assert await deployment.reply(directive, "ACK") == APPLIED
    assert await deployment.reply(directive, "ACK") == {"outcome": "duplicate", "stop": False}
    assert await deployment.reply(directive, "RESULT", output_ref={"uri": "s3://o/1"}) == APPLIED
    again = await deployment.reply(directive, "RESULT", output_ref={"uri": "s3://o/2"})
    assert again == {"outcome": "duplicate", "stop": True}
    job = await deployment.job(job_id)
    assert job["steps"][0]["result_ref"] == {"uri": "s3://o/1"}
    assert [step["state"] for step in job["steps"]] == ["SUCCEEDED", "DISPATCHING"]
    answers = await asyncio.gather(*(deployment.reply(directive, "RESULT") for _ in range(10)))
    assert {answer["outcome"] for answer in answers} == {"duplicate"}


async def test_what_comes_after_the_end_is_recorded_and_changes_nothing(deployment: "Deployment") -> None:
    job_id = await deployment.submit()
    directive = await deployment.directive(job_id, "ocr")
    assert (await deployment.control(job_id, "cancel")).json()["state"] == "CANCELLING"
    await deployment.reply(
        directive, "RESULT", status="FAILED_RETRY", error={"code": "STOPPED", "message": "m"}
    )
    ended = await deployment.job(job_id)
    assert ended["state"] == "CANCELLED"
    assert await deployment.reply(directive, "PROGRESS", progress=99) == {"outcome": "recorded", "stop": True}
    assert await deployment.job(job_id) == ended
    events = await deployment.events(job_id)
    assert events[-1]["type"] == "REPLY_LATE"
    assert events[-1]["data"]["reply"]["progress"] == 99
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))


async def test_evidence_is_bounded_and_secrets_do_not_enter_it(deployment: "Deployment") -> None:
    job_id = await deployment.submit()
    directive = await deployment.directive(job_id, "ocr")
    await deployment.reply(directive, "RESULT")
    for _ in range(110):
        answer = await deployment.reply(directive, "RESULT", callback_token=directive["callback_token"])
        assert answer == {"outcome": "duplicate", "stop": True}
    response = await deployment.http.get(f"/v1/jobs/{job_id}/events")
    kept = [event for event in response.json()["items"] if event["type"] == "REPLY_DUPLICATE"]
    assert len(kept) == 100
    assert directive["callback_token"] not in response.text


@pytest.mark.parametrize(
    ("failure_class", "state"), [("RETRYABLE", "FAILED_RETRY"), ("NON_RETRYABLE", "FAILED_FINAL")]
)
async def test_the_legacy_form_of_a_failure(deployment: "Deployment", failure_class: str, state: str) -> None:
    job_id = await deployment.submit()
    directive = await deployment.directive(job_id, "ocr")
    error = {"code": "OLD", "message": "as before"}
    assert await deployment.reply(
        directive, "RESULT", status="FAILED", failure_class=failure_class, error=error
    ) == {"outcome": "applied", "stop": False}
    assert await deployment.step_states(job_id) == [state]


BAD_REPLIES: list[tuple[dict[str, Any], str]] = [
    ({"type": "ACK"}, "/type"),
    ({"jobId": None}, "/jobId"),
    ({"stepId": 7}, "/stepId"),
    ({"attempt_no": "1"}, "/attempt_no"),
    ({"attempt_no": 0}, "/attempt_no"),
    ({"lease_id": ""}, "/lease_id"),
    ({"timestamp": None}, "/timestamp"),
    ({"status": "DONE"}, "/status"),
    ({"status": "FAILED"}, "/failure_class"),
    ({"output_ref": "s3://x"}, "/output_ref"),
    ({"output_ref": {"uri": "s3://x", "more": "y" * 5000}}, "/output_ref"),
]


async def test_nonsense_is_refused_and_changes_nothing(deployment: "Deployment") -> None:
    job_id = await deployment.submit()
    directive = await deployment.directive(job_id, "ocr")
    token = directive["callback_token"]
    for changes, pointer in BAD_REPLIES:
        response = await deployment.send(token, "RESULT", reply_to(directive, "RESULT") | changes)
        assert pointers(check_problem(response, 422, "INVALID_ENVELOPE")) == {pointer}
    headers = {"Authorization": f"Bearer {token}"}
    response = await deployment.http.post("/v1/callbacks/result", content=b"{nonsense", headers=headers)
    check_problem(response, 400, "MALFORMED_JSON")
    large = json.dumps(reply_to(directive, "RESULT", note="x" * 300_000))
    response = await deployment.http.post("/v1/callbacks/result", content=large, headers=headers)
    check_problem(response, 413, "BODY_TOO_LARGE")
    assert await deployment.step_states(job_id) == ["INITIATED"]
    assert await deployment.reply(directive, "RESULT", unknown={"is": "ignored"}, attempt_no=1.0) == APPLIED


@pytest.mark.parametrize("unreadable", [b"[" * 70 + b"]" * 70, b"1e999"], ids=["depth", "number"])
async def test_a_member_that_nobody_knows_costs_no_reply(deployment: "Deployment", unreadable: bytes) -> None:
    directive = await deployment.directive(await deployment.submit(), "ocr")
    headers = {"Authorization": f"Bearer {directive['callback_token']}"}
    for name, status in (("output_ref", 422), ("zzz", 200), ("error", 200)):
        message = json.dumps(reply_to(directive, "RESULT") | {name: "?"}).encode()
        content = message.replace(b'"?"', unreadable)
        response = await deployment.http.post("/v1/callbacks/result", content=content, headers=headers)
        assert response.status_code == status, response.text
    job = await deployment.job(directive["jobId"])
    assert job["state"] == "SUCCEEDED"
    (evidence,) = [
        event for event in await deployment.events(job["jobId"]) if event["type"] == "REPLY_DUPLICATE"
    ]
    assert "error" not in evidence["data"]["reply"]


async def test_a_result_that_carries_credentials_is_refused_and_written_nowhere(
    deployment: "Deployment",
) -> None:
    job_id = await deployment.submit()
    directive = await deployment.directive(job_id, "ocr")
    await deployment.reply(directive, "ACK")
    with capture_logs() as logged:
        refused = await deployment.say(
            directive, "RESULT", output_ref={"uri": "s3://user:hunter2@a/b?sig=abc9"}
        )
        more = await deployment.say(
            directive, "RESULT", output_ref={"uri": "s3://a/b", "password": "hunter2"}
        )
    assert pointers(check_problem(refused, 422, "INVALID_ENVELOPE")) == {"/output_ref/uri"}
    assert pointers(check_problem(more, 422, "INVALID_ENVELOPE")) == {"/output_ref/password"}
    assert await deployment.reply(directive, "RESULT", output_ref={"uri": "s3://a/b"}) == APPLIED
    events = (await deployment.http.get(f"/v1/jobs/{job_id}/events")).text
    job = await deployment.job(job_id)
    assert job["final_output"] == "s3://a/b"
    shown = f"{refused.text}{more.text}{events}{job}{logged}"
    assert "STEP_SUCCEEDED" in events and "hunter2" not in shown and "abc9" not in shown
