"""Metrics, health, correlation ids and log lines, as a client and an operator meet them."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx2
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.api_setup import QUICK, Callers, Deployment, envelope, reply_to
from tests.support.log_lines import Lines, caught
from tests.support.metric_names import check_names

from lucius.api.app import make_app
from lucius.settings import BadSetting, read_settings

MADE_ID_LENGTH = 24


@pytest.fixture
def lines() -> Iterator[Lines]:
    with caught("info") as found:
        yield found


async def scrape(deployment: "Deployment", **headers: str) -> dict[str, float]:
    response = await deployment.http.get("/metrics", headers=headers)
    assert response.status_code == 200, response.text
    return {
        sample.name
        + "".join(f",{name}={value}" for name, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


async def test_commands_are_counted_by_what_their_sender_was_told(deployment: "Deployment") -> None:
    twice = envelope()
    await deployment.post("/v1/orchestrate", twice)
    await deployment.post("/v1/orchestrate", twice)
    await deployment.post("/v1/commands", envelope(request_type="NONSENSE"))
    await deployment.http.post("/v1/orchestrate", content=b"{")
    await deployment.post("/v1/orchestrate:batch", {"commands": [envelope(), envelope(payload=...), twice]})
    await deployment.post("/v1/orchestrate:batch", {"commands": 3})
    told = await scrape(deployment)
    counted = {name: value for name, value in told.items() if name.startswith("lucius_commands_total")}
    assert counted == {
        "lucius_commands_total,outcome=accepted": 2,
        "lucius_commands_total,outcome=duplicate": 2,
        "lucius_commands_total,outcome=UNKNOWN_REQUEST_TYPE": 1,
        "lucius_commands_total,outcome=MALFORMED_JSON": 1,
        "lucius_commands_total,outcome=INVALID_ENVELOPE": 2,
    }


async def test_a_command_that_the_ledger_cannot_take_is_counted(deployment: "Deployment") -> None:
    await deployment.lucius._store.close()
    refused = await deployment.post("/v1/orchestrate", envelope())
    assert refused.status_code == 503
    assert (await scrape(deployment))["lucius_commands_total,outcome=SYSTEM_SATURATED"] == 1


async def test_requests_are_counted_by_route_whatever_their_path(deployment: "Deployment") -> None:
    job_id = await deployment.submit()
    for _ in range(3):
        await deployment.job(job_id)
    await deployment.http.get("/v1/jobs/job_unknown")
    await deployment.http.get(f"/v1/jobs/{job_id}/steps")
    await deployment.control(job_id, "cancel")
    for number in range(50):
        await deployment.http.get(f"/nowhere/{number}")
        await deployment.http.request(f"VERB{number}", "/nowhere")
    told = await scrape(deployment)
    paths = {name for name in told if name.startswith("lucius_http_requests_total")}
    assert told["lucius_http_requests_total,method=GET,route=/v1/jobs/{job_id},status=200"] == 3
    assert told["lucius_http_requests_total,method=GET,route=/v1/jobs/{job_id},status=404"] == 1
    assert told["lucius_http_requests_total,method=GET,route=/v1/jobs/{job_id}/steps,status=200"] == 1
    assert told["lucius_http_requests_total,method=POST,route=/v1/jobs/{job_id}:cancel,status=202"] == 1
    assert told["lucius_http_requests_total,method=GET,route=unmatched,status=404"] == 50
    assert told["lucius_http_requests_total,method=other,route=unmatched,status=404"] == 50
    assert len(paths) == 7
    assert told["lucius_http_request_seconds_count,method=GET,route=/v1/jobs/{job_id}"] == 4


async def test_depths_are_measured_in_the_background(quick_deployment: "Deployment") -> None:
    deployment = quick_deployment
    for _ in range(3):
        await deployment.submit(request_type="QUICK", tenant_id="Acme")
    failed = await deployment.submit()
    directive = await deployment.directive(failed, "ocr")
    await deployment.reply(directive, "RESULT", status="FAILED_FINAL", error={"code": "X", "message": "y"})
    await deployment.lucius.depths.look()
    told = await scrape(deployment)
    assert told["lucius_outbox_waiting,service=quick"] == 3
    assert told["lucius_outbox_waiting,service=ocr"] == 0
    assert told["lucius_outbox_oldest_seconds,service=quick"] < 60
    assert sum(told[f"lucius_lane_waiting,lane={lane:02d},service=quick"] for lane in range(16)) == 3
    assert told["lucius_dlq_jobs"] == 1
    assert told["lucius_inflight_jobs,tenant=acme"] == 3
    if deployment.lucius.deployment.alone:  # others are counted once a minute
        assert told["lucius_jobs_open,request_type=QUICK,state=DISPATCHING"] == 3
    assert told["lucius_group_commit_callers_count"] >= 5


async def test_replies_are_counted_by_outcome(deployment: "Deployment") -> None:
    job_id = await deployment.submit()
    directive = await deployment.directive(job_id, "ocr")
    for kind in ("ACK", "ACK", "RESULT", "RESULT"):
        await deployment.say(directive, kind)
    stale = reply_to(directive, "RESULT") | {"jobId": "job_other"}
    assert (await deployment.send(directive["callback_token"], "RESULT", stale)).status_code == 403
    told = await scrape(deployment)
    assert told["lucius_replies_total,outcome=applied,type=ACK"] == 1
    assert told["lucius_replies_total,outcome=duplicate,type=ACK"] == 1
    assert told["lucius_replies_total,outcome=applied,type=RESULT"] == 1
    assert told["lucius_replies_total,outcome=duplicate,type=RESULT"] == 1


async def test_a_look_is_bounded(deployment: "Deployment", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lucius.engines.outbox.backlog.PAGE_ROWS_MAX", 2)
    monkeypatch.setattr("lucius.engines.outbox.backlog.ROWS_MAX", 6)
    for _ in range(5):
        await deployment.submit()
    await deployment.lucius.depths.look()
    assert (await scrape(deployment))["lucius_outbox_waiting,service=ocr"] == 5
    for _ in range(5):
        await deployment.submit()
    await deployment.lucius.depths.look()
    assert (await scrape(deployment))["lucius_outbox_waiting,service=ocr"] == 6


async def test_what_retention_removes_is_counted(callers: "Callers") -> None:
    deployment = await callers.open({"LUCIUS_RETENTION": "1ms"})
    await deployment.finish(await deployment.submit(), "ocr")
    await asyncio.sleep(0.01)
    assert await deployment.lucius.retention.look() == 1
    assert (await scrape(deployment))["lucius_jobs_forgotten_total"] == 1


async def test_a_census_finds_jobs_from_before_the_start(deployment: "Deployment") -> None:
    paused = await deployment.submit()
    await deployment.control(paused, "pause")
    for _ in range(70):
        await deployment.submit()
    metrics = deployment.lucius.metrics
    later = type(metrics)(lambda name: True)
    deployment.lucius.depths._metrics = later
    assert await deployment.lucius.depths.census() == 71
    counts = {place: count for place, count in later.open.counts() if count}
    assert counts == {("DISPATCHING", "OCR"): 70, ("PAUSED", "OCR"): 1}


async def test_open_metrics_for_those_who_ask(deployment: "Deployment") -> None:
    response = await deployment.http.get("/metrics", headers={"accept": "application/openmetrics-text"})
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert response.text.endswith("# EOF\n")


async def test_metrics_are_open_but_tenants_are_not(callers: "Callers") -> None:
    deployment = await callers.open({"LUCIUS_AUTH": "required"})
    deployment.lucius.metrics.depths.tenants = {"acme": 5, "globex": 2}
    told = await scrape(deployment)
    assert told["lucius_inflight_jobs,tenant=other"] == 7
    assert not [name for name in told if "acme" in name]
    assert (await scrape(deployment, authorization="Bearer lk_nonsense"))[
        "lucius_inflight_jobs,tenant=other"
    ] == 7


# Correlation ids


@pytest.mark.parametrize("header", ["X-Correlation-Id", "X-Request-Id"])
async def test_an_answer_repeats_the_callers_id(deployment: "Deployment", header: str) -> None:
    response = await deployment.http.get("/livez", headers={header: "order-7:a/b+c=@1"})
    assert response.headers["x-correlation-id"] == "order-7:a/b+c=@1"


@pytest.mark.parametrize(
    "unsafe", ["a b", "a;b", "<x>", '"', "é", "x" * 129, "", "-rf", "a\tb", "{}", "$(id)"]
)
async def test_an_id_that_is_not_safe_is_replaced(deployment: "Deployment", unsafe: str) -> None:
    headers = {b"X-Correlation-Id": unsafe.encode()}
    response = await deployment.http.get("/v1/jobs/job_x", headers=headers)
    made = response.headers["x-correlation-id"]
    assert len(made) == MADE_ID_LENGTH and made.isalnum()
    other = await deployment.http.get("/livez", headers=headers | {b"X-Request-Id": b"safe"})
    assert other.headers["x-correlation-id"] == "safe"


async def test_every_answer_has_an_id(deployment: "Deployment") -> None:
    job_id = await deployment.submit()
    answers = [
        await deployment.http.get(path)
        for path in ("/livez", "/readyz", "/metrics", "/docs", "/nowhere", f"/v1/jobs/{job_id}", "/v1/jobs")
    ]
    answers += [
        await deployment.http.post("/v1/orchestrate", content=b"{"),
        await deployment.http.delete("/v1/jobs"),
    ]
    ids = [response.headers["x-correlation-id"] for response in answers]
    assert len(set(ids)) == len(answers)


# Log lines


async def test_a_request_is_one_line_with_its_ids(callers: "Callers", lines: Lines) -> None:
    deployment = await callers.open({"LUCIUS_ACCESS_LOG": "true"})
    sent = await deployment.post(
        "/v1/orchestrate", envelope(correlation_id="theirs"), x_correlation_id="ours"
    )
    job_id = sent.json()["jobId"]
    directive = await deployment.directive(job_id, "ocr")
    await deployment.reply(directive, "RESULT")
    await deployment.http.get(f"/v1/jobs/{job_id}/steps?secret=hunter2")
    await deployment.http.get("/nowhere/hunter2")
    submitted, leased, replied, steps, nowhere = lines.all("request")
    assert submitted.items() >= {"correlation_id": "ours", "jobId": job_id, "tenant_id": "acme"}.items()
    assert (submitted["method"], submitted["path"], submitted["status"]) == ("POST", "/v1/orchestrate", 202)
    assert submitted["duration_ms"] > 0
    assert leased["path"] == "/v1/directives:lease"
    ids = {name: directive[name] for name in ("jobId", "stepId", "attempt_no", "lease_id", "tenant_id")}
    assert replied.items() >= ids.items()
    assert (steps["path"], steps["jobId"]) == ("/v1/jobs/{job_id}/steps", job_id)
    assert (nowhere["path"], nowhere["status"]) == ("unmatched", 404)
    created, ended = lines.one("job_created"), lines.one("job_succeeded")
    assert created.items() >= {"correlation_id": "theirs", "request_id": "ours", "jobId": job_id}.items()
    assert ended.items() >= {"correlation_id": "theirs", "jobId": job_id, "stepId": "step_01"}.items()
    assert "hunter2" not in lines.text


async def test_no_secret_is_ever_in_a_line(callers: "Callers", monkeypatch: pytest.MonkeyPatch) -> None:
    with caught("debug") as lines:
        deployment = await callers.open({"LUCIUS_ACCESS_LOG": "true"}, protocols={"quick.yaml": QUICK})
        key = "hunter2-key"
        body = envelope(payload={"ocr": {"language": "hunter2-payload"}}, request_type="OCR_EMBEDDING")
        sent = await deployment.post(
            "/v1/orchestrate", body, idempotency_key=key, authorization="Bearer hunter2-bearer"
        )
        directive = await deployment.directive(sent.json()["jobId"], "ocr")
        token = directive["callback_token"]
        failed = {"status": "FAILED_RETRY", "error": {"code": "BUSY", "message": "hunter2-message"}}
        await deployment.reply(directive, "RESULT", **failed)
        await deployment.say(directive, "RESULT", **failed)
        await deployment.http.post(
            "/v1/callbacks/result",
            content=b"{",
            headers={"authorization": f"Bearer {token}x", "cookie": "hunter2"},
        )
        broken = {"authorization": f"Bearer {token}"}
        monkeypatch.setattr(type(deployment.lucius.writer), "apply", _broken)
        faulty = await deployment.post("/v1/callbacks/ack", reply_to(directive, "ACK"), **broken)
    assert faulty.status_code == 500
    assert lines.one("request_failed")["exception"].endswith("RuntimeError: token *** and *** broke it")
    assert len(lines.all("request")) >= 5
    assert "hunter2" not in lines.text
    assert token not in lines.text and token.split(".")[2] not in lines.text


async def _broken(self: object, job_id: str, given: Any) -> Any:
    token = "eyJhbGciOiJIUzI1NiJ9.eyJqb2IiOiJqIn0.hunter2"
    raise RuntimeError(f"token {token} and Bearer hunter2 broke it")


async def test_without_the_setting_requests_are_not_logged(deployment: "Deployment", lines: Lines) -> None:
    await deployment.submit()
    assert lines.all("request") == []
    assert len(lines.all("job_created")) == 1


# Health


async def test_readiness_has_a_line_for_each_dependency(deployment: "Deployment") -> None:
    response = await deployment.http.get("/readyz")
    assert response.json() == {
        "status": "ok",
        "checks": {"ledger": "ok", "ledger_rows": "ok", "protocols": "ok", "duties": "ok"},
    }
    assert (await deployment.http.get("/livez")).json() == {"status": "ok"}


async def test_a_check_that_hangs_or_breaks_is_told_beside_the_others(
    deployment: "Deployment", monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    async def hangs() -> str | None:
        await asyncio.sleep(60)
        return None

    async def breaks() -> str | None:
        raise RuntimeError("hunter2")

    monkeypatch.setattr("lucius.telemetry.health.CHECK_SECONDS_MAX", 0.2)
    checks = {"bus": hangs, "keys": breaks, **deployment.lucius.deployment.checks}
    changed = msgspec.structs.replace(deployment.lucius.deployment, checks=checks)
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(make_app(changed)), base_url="http://house"
    ) as client:
        response = await client.get("/readyz")
    assert response.status_code == 503
    told = response.json()
    assert told["status"] == "failing"
    assert told["checks"]["bus"] == "no answer within 0.2 s"
    assert told["checks"]["keys"] == "the check itself failed; the log has it"
    assert told["checks"]["ledger"] == "ok"
    assert lines.one("check_failed")["check"] == "keys"


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("LUCIUS_LOG_LEVEL", "loud", "debug or info or warning or error"),
        ("LUCIUS_LOG_FORMAT", "xml", "json or plain"),
        ("LUCIUS_ACCESS_LOG", "maybe", "true or false"),
        ("LUCIUS_JOB_SLA", "100000000d", "a time from 1ms to 3650d, such as"),
        ("LUCIUS_BODY_TIMEOUT", "soon", "a time from 1ms to 3650d, such as"),
    ],
)
def test_settings_that_cannot_be_read_are_refused_by_name(name: str, value: str, wanted: str) -> None:
    with pytest.raises(BadSetting, match=f"{name} must be {wanted}"):
        read_settings({name: value})


def test_settings_of_logs_are_read() -> None:
    settings = read_settings({"LUCIUS_LOG_LEVEL": "Error", "LUCIUS_LOG_FORMAT": "json"})
    assert (settings.log_level, settings.log_plain) == ("error", False)
    silent = read_settings({})
    assert (silent.log_level, silent.log_plain, silent.access.access_log) == (None, None, False)
    assert silent.access.body_seconds_max == 30


async def test_one_process_that_is_all_parts_tells_all_figures(deployment: "Deployment") -> None:
    check_names("all", (await deployment.http.get("/metrics")).text)
