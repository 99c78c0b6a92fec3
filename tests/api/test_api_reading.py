"""Reading over HTTP: the exact shapes, lists, waiting, and what a hostile address is answered."""

import asyncio
import base64
import re
import time
from typing import Any

import pytest
from tests.support.api_setup import Callers, Deployment, check_problem, pointers

from lucius.api.pages import PAGE_BYTES_MAX
from lucius.ledger import lists
from lucius.ledger.lists import JobPage

JOB = [
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
STEP = [
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
EVENT = ["seq", "type", "at", "stepId", "attempt_no", "data"]
TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z")


def times_of(row: dict[str, Any]) -> list[str]:
    return [value for name, value in row.items() if name.endswith("_at") and value is not None]


@pytest.mark.parametrize("layout", ["ledger", "table"])
async def test_a_job_and_its_steps_have_every_member(callers: "Callers", layout: str) -> None:
    deployment = await callers.open(layout=layout)
    job_id = await deployment.submit(request_type="OCR_EMBEDDING_SIS", tenant_id=" Acme ")
    fresh = await deployment.job(job_id)
    assert list(fresh) == JOB
    assert [list(step) for step in fresh["steps"]] == [STEP] * 3
    assert re.fullmatch(r"job_[0-9a-z]{26}", job_id)
    assert (fresh["tenant_id"], fresh["engine"], fresh["mode"]) == ("Acme", "outbox", "DEFAULT")
    assert fresh["tenant_bucket"] == "acme#" + fresh["created_at"][:7].replace("-", "")
    assert fresh["state"] == "DISPATCHING"
    assert [step["stepId"] for step in fresh["steps"]] == ["step_01", "step_02", "step_03"]
    assert [step["state"] for step in fresh["steps"]] == ["DISPATCHING", "PENDING", "PENDING"]
    empty = {name for name, value in fresh.items() if value is None}
    assert empty == {
        "doc_id",
        "completed_at",
        "error_code",
        "error_message",
        "idempotency_key",
        "final_output",
        "rerun_of",
        "paused_reason",
    }
    assert fresh["usage"] == {}
    for service in ("ocr", "embedding", "sis"):
        await deployment.finish(job_id, service)
    done = await deployment.job(job_id)
    assert list(done) == JOB
    for row in (fresh, done, *fresh["steps"], *done["steps"]):
        assert all(TIME.fullmatch(text) for text in times_of(row))
    assert done["completed_at"] is not None
    steps = await deployment.http.get(f"/v1/jobs/{job_id}/steps")
    assert steps.json() == {"items": done["steps"], "next_cursor": None}


async def test_the_final_output_is_the_last_results_or_the_envelopes(deployment: "Deployment") -> None:
    one, two = await deployment.submit(output_ref={"uri": "s3://out/1"}), await deployment.submit()
    await deployment.finish(one, "ocr")
    await deployment.finish(two, "ocr", output_ref={"uri": "s3://out/2", "etag": "x"})
    assert (await deployment.job(one))["final_output"] == "s3://out/1"
    job = await deployment.job(two)
    assert job["final_output"] == "s3://out/2"
    assert job["steps"][0]["result_ref"] == {"uri": "s3://out/2", "etag": "x"}


async def test_events_tell_the_story_without_gaps(deployment: "Deployment") -> None:
    job_id = await deployment.submit()
    await deployment.finish(job_id, "ocr")
    events = await deployment.events(job_id)
    assert [list(event) for event in events] == [EVENT] * len(events)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert all(TIME.fullmatch(event["at"]) for event in events)
    assert [event["type"] for event in events] == [
        "JOB_CREATED",
        "ATTEMPT_BEGUN",
        "DIRECTIVE_PUBLISHED",
        "STEP_ACKED",
        "STEP_SUCCEEDED",
        "JOB_SUCCEEDED",
    ]
    url = f"/v1/jobs/{job_id}/events"
    page = (await deployment.http.get(url, params={"limit": 4})).json()
    rest = (await deployment.http.get(url, params={"limit": 4, "cursor": page["next_cursor"]})).json()
    assert [*page["items"], *rest["items"]] == events
    assert rest["next_cursor"] is None
    assert (await deployment.http.get(url, params={"after": 5})).json()["items"] == events[5:]


async def test_a_reader_may_wait_for_the_end(deployment: "Deployment") -> None:
    job_id = await deployment.submit()
    began = time.monotonic()
    assert (await deployment.job(job_id, wait=0.2))["state"] == "DISPATCHING"
    assert time.monotonic() - began >= 0.2
    waiting = asyncio.create_task(deployment.job(job_id, wait=30))
    await deployment.finish(job_id, "ocr")
    assert (await asyncio.wait_for(waiting, 5))["state"] == "SUCCEEDED"
    for bad in ("-1", "61", "soon", "nan", "1_0", "1e1", "٣", " 5"):
        response = await deployment.http.get(f"/v1/jobs/{job_id}", params={"wait": bad})
        assert pointers(check_problem(response, 422, "INVALID_REQUEST")) == {"?wait"}


async def listed(deployment: "Deployment", **params: Any) -> list[str]:
    response = await deployment.http.get("/v1/jobs", params=params)
    assert response.status_code == 200, response.text
    assert response.json().keys() == {"items", "next_cursor", "partial", "looked_back_to", "searched"}
    return [job["jobId"] for job in response.json()["items"]]


async def test_a_list_is_newest_first_and_filtered(deployment: "Deployment") -> None:
    made = []
    for tenant, kind in (("acme", "OCR"), ("globex", "OCR"), ("acme", "SIS")):
        made.append(await deployment.submit(tenant_id=tenant, request_type=kind))
        await asyncio.sleep(0.003)
    await deployment.finish(made[0], "ocr")
    assert await listed(deployment) == made[::-1]
    assert await listed(deployment, tenant_id=" ACME ") == [made[2], made[0]]
    assert await listed(deployment, request_type="OCR") == [made[1], made[0]]
    assert await listed(deployment, state="SUCCEEDED") == [made[0]]
    assert await listed(deployment, state="DISPATCHING", tenant_id="acme") == [made[2]]
    middle = (await deployment.job(made[1]))["created_at"]
    assert await listed(deployment, created_after=middle) == [made[2]]
    assert await listed(deployment, created_before=middle) == [made[0]]
    assert await listed(deployment, tenant_id="nobody") == []
    whole = (await deployment.http.get("/v1/jobs")).json()["items"]
    assert whole[0] == await deployment.job(made[2])


async def test_a_list_is_filtered_by_several_states_service_code_and_age(deployment: "Deployment") -> None:
    failed, waiting, done = [await deployment.submit(request_type="OCR") for _ in range(3)]
    error = {"code": "BROKEN_SCAN", "message": "the page is blank"}
    await deployment.finish(failed, "ocr", status="FAILED_FINAL", error=error)
    await deployment.finish(done, "ocr")
    assert await listed(deployment, state="FAILED_FINAL") == [failed]
    assert await listed(deployment, state="DISPATCHING,SUCCEEDED") == [done, waiting]
    assert await listed(deployment, state=["FAILED_FINAL", "SUCCEEDED"]) == [done, failed]
    assert await listed(deployment, error_code="BROKEN_SCAN") == [failed]
    assert await listed(deployment, error_code="BROKEN") == []
    assert await listed(deployment, service="ocr", state="DISPATCHING") == [waiting]
    assert await listed(deployment, service="sis", state="DISPATCHING") == []
    assert await listed(deployment, service="ocr", state="FAILED_FINAL,CANCELLED") == [failed]
    assert await listed(deployment, created_after="1h", sort="-created_at") == [done, waiting, failed]
    assert await listed(deployment, created_before="1h") == []
    assert await listed(deployment, created_before="999999d") == []


@pytest.mark.parametrize(
    ("params", "advice"),
    [
        ({"service": "ocr"}, "add open states"),
        ({"service": "ocr", "state": "SUCCEEDED"}, "add open states"),
        ({"error_code": "X", "state": "SUCCEEDED"}, "leave out the other states"),
        ({"sort": "created_at"}, "created_before"),
        ({"q": "invoice", "service": "ocr"}, "add open states"),
    ],
)
async def test_filters_that_no_index_serves_are_refused_with_advice(
    deployment: "Deployment", params: dict[str, str], advice: str
) -> None:
    response = await deployment.http.get("/v1/jobs", params=params)
    assert advice in check_problem(response, 400, "FILTER_NOT_SERVED")["detail"]


async def test_jobs_are_searched_by_what_they_are_called(deployment: "Deployment") -> None:
    one = await deployment.submit(doc_id="Invoice/22 ä", idempotency_key="key-1", correlation_id="trace-7")
    two = await deployment.submit(doc_id="invoice/23", tenant_id="globex")
    assert await listed(deployment, q="INVOICE/22 Ä") == [one]
    assert sorted(await listed(deployment, q="invoice/2")) == sorted([one, two])
    assert await listed(deployment, q="invoice/2", tenant_id="globex") == [two]
    assert await listed(deployment, q="trace") == [one]
    assert await listed(deployment, q="key-1", tenant_id="acme") == [one]
    assert await listed(deployment, q="key-1") == []
    for part in (one, one[4:], one[:20], one[-6:], one[10:24].upper()):
        assert await listed(deployment, q=part) == [one]
    generated = (await deployment.job(two))["correlation_id"]
    assert await listed(deployment, q=generated) == [two]
    for hostile in ("%", "' OR 1=1", "job_", "\U0010ffff", "../..", "job_zzzzzzzzzzzzzzzzzzzzzzzzzz", "zzzz"):
        assert await listed(deployment, q=hostile) == []
    page = (await deployment.http.get("/v1/jobs", params={"q": "key-1"})).json()
    assert page["searched"] == ["doc_id", "correlation_id"]
    page = (await deployment.http.get("/v1/jobs", params={"q": "abcd", "tenant_id": "acme"})).json()
    assert page["searched"] == ["job_id", "doc_id", "correlation_id", "idempotency_key"]


async def test_a_search_by_a_part_of_an_id_goes_on_page_by_page(
    deployment: "Deployment", monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [await deployment.submit() for _ in range(6)]
    monkeypatch.setattr(lists, "LOOK_ROWS_MAX", 2)
    wanted = made[0][-8:]
    page = (await deployment.http.get("/v1/jobs", params={"q": wanted, "tenant_id": "acme"})).json()
    assert (page["items"], page["partial"]) == ([], True)
    assert TIME.fullmatch(page["looked_back_to"])
    for _ in range(6):
        cursor = page["next_cursor"]
        params = {"q": wanted, "tenant_id": "acme", "cursor": cursor}
        page = (await deployment.http.get("/v1/jobs", params=params)).json()
        if page["items"]:
            break
    assert [job["jobId"] for job in page["items"]] == [made[0]]


async def test_a_job_that_leaves_its_state_while_a_page_is_made_is_not_on_it(
    deployment: "Deployment", monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [await deployment.submit(), await deployment.submit()]
    of_deployment = deployment.lucius.deployment.lists
    page = of_deployment.page

    async def slowly(*wanted: Any) -> JobPage:
        found = await page(*wanted)
        await deployment.finish(made[0], "ocr")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(of_deployment, "page", slowly)
        assert await listed(deployment, state="DISPATCHING") == [made[1]]
    assert await listed(deployment) == made[::-1]


@pytest.mark.parametrize("scope", [{}, {"tenant_id": "acme"}])
async def test_a_cursor_goes_on_where_the_page_ended(deployment: "Deployment", scope: dict[str, str]) -> None:
    made = [await deployment.submit() for _ in range(7)]
    seen: list[str] = []
    cursor: dict[str, str] = {}
    for _ in range(5):
        page = (await deployment.http.get("/v1/jobs", params={"limit": "3", **scope, **cursor})).json()
        seen += [job["jobId"] for job in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
        await deployment.submit()  # what comes later does not move what was there
    assert sorted(seen) == sorted(made)
    assert len(seen) == 7


def forged(month: str) -> str:
    return base64.urlsafe_b64encode(f'{{"month":"{month}","after":"","scope":"*"}}'.encode()).decode()


LONG = "x" * 3000
BAD_PARAMETERS = [
    ("/v1/jobs", "limit", "0"),
    ("/v1/jobs", "limit", "201"),
    ("/v1/jobs", "limit", "1.5"),
    ("/v1/jobs", "limit", "ten"),
    ("/v1/jobs", "state", "queued"),
    ("/v1/jobs", "state", "QUEUED,"),
    ("/v1/jobs", "state", ""),
    ("/v1/jobs", "q", ""),
    ("/v1/jobs", "q", " "),
    ("/v1/jobs", "q", "a\x00b"),
    ("/v1/jobs", "q", "x" * 257),
    ("/v1/jobs", "sort", "state"),
    ("/v1/jobs", "created_after", "7w"),
    ("/v1/jobs", "created_after", "-1h"),
    ("/v1/jobs", "created_after", "1234567d"),
    ("/v1/jobs", "created_after", "yesterday"),
    ("/v1/jobs", "created_before", "2026-13-01T00:00:00Z"),
    ("/v1/jobs", "cursor", "zzz"),
    ("/v1/jobs", "cursor", forged("999999")),
    ("/v1/jobs", "tenant_id", LONG),
    ("/v1/jobs", "tenant_id", "a\x00b"),
    ("/v1/admin/dlq", "limit", "1e2"),
]


async def test_a_parameter_that_cannot_be_is_named(deployment: "Deployment") -> None:
    for path, name, value in BAD_PARAMETERS:
        response = await asyncio.wait_for(deployment.http.get(path, params={name: value}), 5)
        assert pointers(check_problem(response, 422, "INVALID_REQUEST")) == {f"?{name}"}


STRAY_PARAMETERS = [
    ("/v1/jobs?stat=FAILED", "?stat"),
    ("/v1/jobs?State=FAILED", "?State"),
    ("/v1/jobs?state=FAILED&state=RUNNING", "?state"),
    ("/v1/jobs?limit=5&limit=5", "?limit"),
    ("/v1/jobs?%00%0a=1", "???"),
    (f"/v1/jobs?{LONG}", f"?{LONG[:64]}"),
    ("/v1/jobs/JOB?wiat=5", "?wiat"),
    ("/v1/jobs/JOB/events?from=5", "?from"),
    ("/v1/admin/dlq?state=FAILED_FINAL", "?state"),
    ("/v1/admin/webhooks/dead?state=DEAD", "?state"),
]


async def test_a_parameter_that_a_call_does_not_have_is_refused_not_passed_over(
    deployment: "Deployment",
) -> None:
    job_id = await deployment.submit()
    for path, pointer in STRAY_PARAMETERS:
        response = await deployment.http.get(path.replace("JOB", job_id))
        assert pointers(check_problem(response, 422, "INVALID_REQUEST")) == {pointer}


async def test_times_at_the_edge_of_the_calendar_are_times(deployment: "Deployment") -> None:
    job_id = await deployment.submit()
    assert await listed(deployment, created_after="0001-01-01T00:00:00+23:59") == [job_id]
    assert await listed(deployment, created_before="9999-12-31T23:59:59-23:59") == [job_id]
    assert await listed(deployment, created_before="0001-01-01T00:00:00+23:59") == []
    assert await listed(deployment, created_after="9999-12-31T23:59:59-23:59") == []


UNKNOWN_JOBS = ("job_00000000000000000000000000", "x", "é", "%00", "%0a", "%ff", LONG, ":cancel")


async def test_a_job_that_is_not_there(deployment: "Deployment") -> None:
    for job_id in UNKNOWN_JOBS:
        for path in ("", "?wait=5", "/steps", "/events"):
            response = await deployment.http.get(f"/v1/jobs/{job_id}{path}")
            check_problem(response, 404, "JOB_NOT_FOUND")
        for verb in ("cancel", "pause", "resume", "rerun"):
            check_problem(await deployment.control(job_id, verb), 404, "JOB_NOT_FOUND")
        check_problem(await deployment.post(f"/v1/admin/dlq/{job_id}:redrive"), 404, "JOB_NOT_FOUND")


async def test_addresses_that_lead_nowhere(deployment: "Deployment") -> None:
    check_problem(await deployment.http.get("/v2/jobs"), 404, "NOT_FOUND")
    check_problem(await deployment.http.get("/v1/protocols/none_v1"), 404, "NOT_FOUND")
    response = await deployment.http.delete("/v1/jobs/x")
    check_problem(response, 405, "METHOD_NOT_ALLOWED")
    assert response.headers["allow"] == "GET"


async def test_protocols_come_with_the_schema_of_each_payload(deployment: "Deployment") -> None:
    body = (await deployment.http.get("/v1/protocols")).json()
    assert body["problems"] == []
    found = {protocol["protocol_id"]: protocol for protocol in body["items"]}
    one = (await deployment.http.get("/v1/protocols/ocr_embedding_sis_v1")).json()
    example = one.pop("example")
    assert one == found["ocr_embedding_sis_v1"]
    assert (await deployment.post("/v1/orchestrate:plan", example)).json()["accepted"]
    assert [step["service"] for step in one["steps"]] == ["ocr", "embedding", "sis"]
    assert one["steps"][0]["payload_schema"]["properties"]["language"]["type"] == "string"
    assert one["steps"][0]["max_attempts"] == 3


async def test_the_api_describes_itself(deployment: "Deployment") -> None:
    document = (await deployment.http.get("/openapi.json")).json()
    assert document["openapi"].startswith("3.")
    assert document["paths"]["/v1/commands"]["post"]["deprecated"] is True
    assert "deprecated" not in document["paths"]["/v1/orchestrate"]["post"]
    job = document["paths"]["/v1/jobs/{jobId}"]["get"]["responses"]["200"]["content"]["application/json"]
    assert job["schema"] == {"$ref": "#/components/schemas/Job"}
    assert set(document["components"]["schemas"]["Job"]["properties"]) == set(JOB)


async def test_health(deployment: "Deployment") -> None:
    assert (await deployment.http.get("/livez")).json() == {"status": "ok"}
    ready = await deployment.http.get("/readyz")
    assert ready.status_code == 200
    assert ready.json() == {
        "status": "ok",
        "checks": {"ledger": "ok", "ledger_rows": "ok", "protocols": "ok", "duties": "ok"},
    }


async def test_a_duty_that_died_makes_the_deployment_unready(deployment: "Deployment") -> None:
    sweeper = next(task for task in asyncio.all_tasks() if task.get_name() == "lucius sweeper")
    sweeper.cancel()
    await asyncio.wait({sweeper})
    ready = await deployment.http.get("/readyz")
    assert ready.status_code == 503
    assert ready.json()["checks"]["duties"] == "no longer running: lucius sweeper"


WIDE = """
protocol_id: wide_v1
request_types: [WIDE]
steps:
""" + "".join(f"  - {{step_type: S{n}, service: s{n}, payload_key: part}}\n" for n in range(8))


async def test_a_page_of_large_jobs_ends_early_and_goes_on(callers: "Callers") -> None:
    """Eight steps that keep the same 200 KB each."""
    deployment = await callers.open(protocols={"wide.yaml": WIDE})
    payload = {"part": {"text": "x" * 200_000}}
    made = [await deployment.submit(request_type="WIDE", payload=payload) for _ in range(6)]
    found: list[str] = []
    pages, cursor = 0, None
    while pages == 0 or cursor is not None:
        query = {"limit": 50} | ({} if cursor is None else {"cursor": cursor})
        response = await deployment.http.get("/v1/jobs", params=query)
        assert len(response.content) < PAGE_BYTES_MAX + 2_000_000
        page = response.json()
        found += [job["jobId"] for job in page["items"]]
        pages, cursor = pages + 1, page["next_cursor"]
    assert (found, pages) == (made[::-1], 2)
