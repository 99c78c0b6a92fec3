"""The state of the installation: session, overview, services, lanes, tenants, counts."""

import asyncio

import msgspec
import pytest
from tests.support.api_setup import Callers, Deployment, check_problem
from tests.support.auth_setup import guarded

from lucius.api import fleet
from lucius.core.flow import OpenBreaker
from lucius.engines.activity_rows import FINE, HOUR_MS, ActivityRows
from lucius.engines.process_reports import ProcessReports, WorkerSightings
from lucius.telemetry import Metrics
from lucius.telemetry.activity import Activity, Tally, percentile_ms, step_of


async def figures(caller: Deployment, path: str, **params: str) -> dict:  # type: ignore[type-arg]
    response = await caller.http.get(path, params=params)
    assert response.status_code == 200, response.text
    found: dict = response.json()  # type: ignore[type-arg]
    return found


async def test_the_session_of_an_open_installation(deployment: Deployment) -> None:
    session = await figures(deployment, "/v1/session")
    assert session["authenticated"] and session["auth"] == "open"
    assert session["tenants"] == session["services"] == "*"
    assert "admin" in session["roles"] and session["artifacts"] is True
    assert session["login"] == {"key": False, "oidc": None}


async def test_the_session_says_who_calls_and_needs_no_credential(callers: Callers) -> None:
    deployment = await guarded(callers, {"LUCIUS_TRACE_LINK": "https://traces.example.com/{trace_id}"})
    nameless = (await deployment.caller(None).http.get("/v1/session")).json()
    assert nameless["authenticated"] is False and nameless["auth"] == "required"
    assert (nameless["roles"], nameless["tenants"]) == ([], [])
    assert nameless["artifacts"] is False
    wrong = (await deployment.caller("lk_0123456789abcdef_" + "0" * 64).http.get("/v1/session")).json()
    assert wrong["authenticated"] is False and "not known" in wrong["problem"]
    reader = (await (await deployment.holding("read", tenants=("a",))).http.get("/v1/session")).json()
    assert reader["authenticated"] and (reader["roles"], reader["tenants"]) == (["read"], ["a"])
    assert reader["links"]["trace"] == "https://traces.example.com/{trace_id}"


async def test_what_waits_and_who_asks(deployment: Deployment) -> None:
    await deployment.submit()
    await deployment.lucius.depths.look()
    service = await _service(deployment, "ocr")
    assert (service["depth"], service["waiting"], service["last_seen_at"]) == (1, 0, None)
    (lane,) = [lane for lane in (await figures(deployment, "/v1/lanes"))["items"] if lane["depth"]]
    assert lane["services"] == {"ocr": 1} and lane["tenants"] == ["acme"]
    assert len((await figures(deployment, "/v1/lanes"))["items"]) == 16
    await deployment.lease("ocr")
    polling = asyncio.create_task(deployment.lease("ocr", most=7, wait=5))
    await asyncio.sleep(0.05)
    service = await _service(deployment, "ocr")
    polling.cancel()
    assert (service["waiting"], service["concurrency"]) == (1, 7)
    assert service["clients"] and service["last_seen_at"] is not None


async def _service(deployment: Deployment, name: str) -> dict:  # type: ignore[type-arg]
    items = (await figures(deployment, "/v1/services"))["items"]
    (found,) = [item for item in items if item["service"] == name]
    return found  # type: ignore[no-any-return]


async def test_ends_are_counted_by_tenant_and_outlive_the_process(deployment: Deployment) -> None:
    done = await deployment.submit()
    await deployment.finish(done, "ocr")
    failed = await deployment.submit(tenant_id="other")
    await deployment.finish(failed, "ocr", status="FAILED_FINAL", error={"code": "BAD_PAGE", "message": "no"})
    await deployment.submit()
    await deployment.lucius.activity_rows.write()
    every = await figures(deployment, "/v1/jobs:counts", window="15m")
    assert (every["states"]["SUCCEEDED"], every["states"]["FAILED_FINAL"]) == (1, 1)
    assert sum(every["states"][state] for state in ("QUEUED", "DISPATCHING")) == 1
    assert every["request_types"] == {"OCR": 3}
    for window in ("1h", "24h", "7d", "30d"):
        assert (await figures(deployment, "/v1/jobs:counts", window=window))["states"] == every["states"]
    acme = await figures(deployment, "/v1/jobs:counts", tenant_id=" ACME ")
    assert (acme["states"]["SUCCEEDED"], acme["states"]["FAILED_FINAL"]) == (1, 0)
    # A process that starts later reads what this one wrote, and adds its own.
    kernel = deployment.lucius.kernel
    later = ActivityRows(kernel.ledger, Activity(), "later", now_ms=kernel.now_ms)
    now_ms = kernel.now_ms()
    tally = await later.sums(FINE, [""], now_ms - HOUR_MS, now_ms)
    assert tally.types["OCR"].errors == {"BAD_PAGE": 1} and tally.services["ocr"].succeeded == 1
    tenants = {item["tenant_id"]: item for item in (await figures(deployment, "/v1/tenants"))["items"]}
    assert (tenants["acme"]["in_flight"], tenants["acme"]["succeeded"]) == (1, 1)
    assert (tenants["other"]["in_flight"], tenants["other"]["failed"]) == (0, 1)


async def test_an_overview_in_points_of_time(deployment: Deployment) -> None:
    for _ in range(3):
        await deployment.finish(await deployment.submit(), "ocr")
    await deployment.lucius.activity_rows.write()
    for window, points in (("15m", 60), ("1h", 60), ("6h", 72), ("24h", 96)):
        overview = await figures(deployment, "/v1/overview", window=window)
        assert len(overview["series"]["accepted"]) == points
        assert sum(overview["series"]["succeeded"]) == overview["totals"]["succeeded"] == 3
        (latency,) = overview["latency"]
        assert (latency["service"], latency["count"]) == ("ocr", 3) and latency["p99_ms"] is not None
    assert {each["name"] for each in overview["dependencies"]} >= {"ledger", "duties"}
    check_problem(await deployment.http.get("/v1/overview?window=2h"), 422, "INVALID_REQUEST")


async def test_what_needs_attention_is_said_in_words(deployment: Deployment) -> None:
    for _ in range(6):
        job_id = await deployment.submit()
        await deployment.finish(job_id, "ocr", status="FAILED_FINAL", error={"code": "E1", "message": "no"})
    await deployment.lucius.activity_rows.write()
    (said,) = (await figures(deployment, "/v1/overview"))["attention"]
    assert said["text"] == "6 of 6 OCR jobs failed, most of them with E1"
    assert said["link"] == {
        "page": "jobs",
        "request_type": "OCR",
        "state": "FAILED_FINAL",
        "error_code": "E1",
    }


async def test_what_waits_for_a_paused_or_failing_service_asks_for_no_worker(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "STUCK_AFTER_MS", -1)
    for request_type in ("OCR", "SIS"):
        await deployment.submit(request_type=request_type)
    await deployment.post("/v1/pauses", {"kind": "service", "name": "ocr", "reason": "no licence"})
    await deployment.lucius.depths.look()

    async def said() -> list[tuple[str, str, str]]:
        attention = (await figures(deployment, "/v1/overview"))["attention"]
        return [(each["severity"], each["code"], each["text"].partition("seconds")[2]) for each in attention]

    nobody = ", and no worker asks for them: start one"
    # What is wrong comes before what is as it was wanted.
    assert await said() == [
        ("error", "NO_WORKER", nobody),
        ("warning", "PAUSED_SERVICE", ": it is paused (no licence)"),
    ]
    await deployment.post("/v1/pauses:resume", {"kind": "service", "name": "ocr"})
    assert await said() == [("error", "NO_WORKER", nobody)] * 2
    view_of = deployment.lucius.deployment.flow.view_of
    breaker = OpenBreaker(opened_at_ms=1, failures=7, probe_at_ms=2, error="ACK_TIMEOUT")
    broken = msgspec.structs.replace(view_of("ocr"), breaker=breaker)
    monkeypatch.setattr(deployment.lucius.deployment.flow, "view_of", lambda _: broken)
    failing = ": its last 7 attempts failed (ACK_TIMEOUT); one at a time is tried"
    assert await said() == [("error", "FAILING_SERVICE", failing)] * 2


async def test_the_session_says_where_people_log_in(callers: Callers) -> None:
    issuer = {"LUCIUS_OIDC_ISSUER": "https://login.example.com/", "LUCIUS_OIDC_AUDIENCE": "lucius"}
    for client, scopes in ((None, "openid"), ("console", "openid lucius")):
        chosen = {} if client is None else {"LUCIUS_OIDC_CLIENT_ID": client, "LUCIUS_OIDC_SCOPES": scopes}
        deployment = await guarded(callers, {**issuer, **chosen})
        session = (await deployment.caller(None).http.get("/v1/session")).json()
        assert session["login"]["oidc"] == {
            "issuer": "https://login.example.com/",
            "audience": ["lucius"],
            "client_id": client,
            "scopes": scopes,
        }
        found = deployment.lucius.deployment.installation.login_issuer
        assert found == (None if client is None else "https://login.example.com/")


async def test_a_caller_of_one_tenant_sees_its_figures_alone(callers: Callers) -> None:
    deployment = await guarded(callers)
    root = await deployment.holding("submit", "work", "read")
    for tenant in ("a", "b"):
        await root.finish(await root.submit(tenant_id=tenant), "ocr")
        await root.submit(tenant_id=tenant)
    await deployment.lucius.activity_rows.write()
    reader = await deployment.holding("read", tenants=("a",))
    counts = (await reader.http.get("/v1/jobs:counts")).json()
    assert (counts["states"]["SUCCEEDED"], sum(counts["states"].values())) == (1, 2)
    overview = (await reader.http.get("/v1/overview")).json()
    assert (overview["totals"]["succeeded"], overview["dlq"]) == (1, None)
    assert [each["tenant_id"] for each in overview["in_flight"]] == ["a"]
    assert [each["tenant_id"] for each in (await reader.http.get("/v1/tenants")).json()["items"]] == ["a"]
    lanes = (await reader.http.get("/v1/lanes")).json()["items"]
    assert {name for lane in lanes for name in lane["tenants"]} == {"a"}
    check_problem(await reader.http.get("/v1/jobs:counts?tenant_id=b"), 403, "FORBIDDEN")


async def test_processes_tell_each_other_what_they_see(deployment: Deployment) -> None:
    lucius = deployment.lucius
    now_ms = lucius.kernel.now_ms()
    clock = [now_ms]

    def report(process: str) -> tuple[ProcessReports, WorkerSightings]:
        workers = WorkerSightings(now_ms=lambda: clock[0])
        metrics = Metrics(lambda _: True)
        metrics.measures = False
        made = ProcessReports(
            lucius.kernel.ledger,
            workers,
            metrics,
            process=process,
            part="api",
            version="1",
            shared=True,
            now_ms=lambda: clock[0],
        )
        return made, workers

    (one, sees), (other, _) = report("one"), report("other")
    sees.asks("ocr", "worker/1", 3)
    await one.write()
    seen = {each.process: each for each in await other.all()}
    assert seen["one"].services["ocr"].polls == 1
    assert list(seen["one"].services["ocr"].clients) == ["worker/1"]
    clock[0] += 60_000
    assert [each.process for each in await other.all()] == ["other"]  # it stopped telling
    clock[0] += 2 * HOUR_MS
    await other.write()
    assert [each.process for each in await other._read()] == ["other"]


async def test_figures_expire(deployment: Deployment) -> None:
    ledger, clock = deployment.lucius.kernel.ledger, [1_700_000_000_000]
    activity = Activity()
    rows = ActivityRows(ledger, activity, "p", now_ms=lambda: clock[0])
    activity._fresh["acme"] = _tally()
    await rows.write()
    partition = FINE.partition(clock[0])
    assert await ledger.store.query(ledger.tables.meta, partition, limit=10)
    clock[0] += 4 * HOUR_MS
    for _ in range(2):
        await rows.write()
    assert not await ledger.store.query(ledger.tables.meta, partition, limit=10)


def _tally() -> Tally:
    tally = Tally()
    tally.type_of("OCR").accepted += 1
    return tally


def test_percentiles_are_near_the_truth() -> None:
    spread: dict[int, int] = {}
    for span_ms in range(1, 1001):
        spread[step_of(span_ms)] = spread.get(step_of(span_ms), 0) + 1
    for share in (0.1, 0.5, 0.9, 0.99):
        found = percentile_ms(spread, share)
        assert found is not None and abs(found - 1000 * share) < 200 * share
    assert percentile_ms({}, 0.5) is None and percentile_ms({0: 3}, 0.5) == 0
