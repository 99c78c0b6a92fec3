"""`GET /v1/why`: what all open jobs wait for."""

from tests.support.api_setup import Caller, Callers, Deployment, Json, check_problem, until
from tests.support.auth_setup import guarded

from lucius.core.explain import WaitsFor
from lucius.core.why import Wait
from lucius.engines.outbox.backlog import ROWS_MAX
from lucius.engines.process_reports import LaneDepth, ProcessReport

LATE_MS = 100_000_000


async def told(caller: Caller, **params: str) -> Json:
    response = await caller.http.get("/v1/why", params=params)
    assert response.status_code == 200, response.text
    return response.json()


def codes(document: Json) -> dict[str, int]:
    return {item["code"]: item["jobs"] for item in document["items"]}


async def counted(caller: Caller, expected: dict[str, int], **params: str) -> Json:
    """Once this is what is told: a process counts a commit a moment after it is answered."""

    async def look() -> Json:
        document = await told(caller, **params)
        return document if codes(document) == expected else None

    return await until(look)


async def test_jobs_are_told_in_groups_as_they_move(deployment: Deployment) -> None:
    assert (await told(deployment))["items"] == []
    first, paused = await deployment.submit(), await deployment.submit()
    await deployment.submit(tenant_id="other")
    await deployment.control(paused, "pause")
    await deployment.lucius.depths.look()
    document = await counted(deployment, {"WORKER": 2, "RESUME": 1})
    assert document["open"] == 3
    group = document["items"][0]
    assert group["text"] == "2 jobs wait for a worker of `ocr`; none was seen yet: start one"
    assert (group["severity"], group["service"]) == ("error", "ocr") and group["since"] is not None
    assert group["tenants"] == [{"tenant_id": "acme", "jobs": 1}, {"tenant_id": "other", "jobs": 1}]
    directives = await deployment.lease("ocr", most=2)
    await counted(deployment, {"ACK": 2, "RESUME": 1})
    (mine,) = [each for each in directives if each["jobId"] == first]
    await deployment.reply(mine, "ACK")
    await counted(deployment, {"RESULT": 1, "ACK": 1, "RESUME": 1})
    await deployment.reply(mine, "RESULT")
    await counted(deployment, {"RESUME": 1}, tenant_id=" ACME ")


async def test_a_worker_that_went_away_is_named_with_the_time(deployment: Deployment) -> None:
    await deployment.lease("ocr")
    await deployment.submit()
    (group,) = (await told(deployment))["items"]
    assert group["text"].endswith("its workers are there and busy")
    clock = deployment.lucius.kernel.now_ms()
    sightings = deployment.lucius.workers
    for polls in sightings._polls.values():
        polls.asked_at_ms = clock - LATE_MS
    (group,) = (await told(deployment, times="rfc3339"))["items"]
    assert "its last worker was seen at 20" in group["text"] and group["text"].endswith("Z")


async def test_a_tenant_at_its_limit_is_told(callers: Callers) -> None:
    deployment = await callers.open({"LUCIUS_MAX_INFLIGHT_PER_TENANT": "2"})
    await deployment.submit()
    await deployment.submit()
    await counted(deployment, {"TENANT_LIMIT": 2, "WORKER": 2})


async def test_a_caller_sees_the_jobs_of_its_tenants_alone(callers: Callers) -> None:
    deployment = await guarded(callers)
    root = await deployment.holding("submit", "work", "read")
    await root.submit(tenant_id="a")
    await root.submit(tenant_id="b")
    reader = await deployment.holding("read", tenants=("a",))
    document = await counted(reader, {"WORKER": 1})
    assert document["open"] == 1 and "'b'" not in str(document)
    check_problem(await reader.http.get("/v1/why?tenant_id=b"), 403, "FORBIDDEN")
    check_problem(await reader.http.get("/v1/why?times=none"), 422, "INVALID_REQUEST")
    check_problem(await reader.http.get("/v1/why?color=red"), 422, "INVALID_REQUEST")


def report(name: str, **more: Json) -> ProcessReport:
    return ProcessReport(process=name, part="reconciler", version="1", at_ms=1, **more)


async def test_other_processes_tell_what_they_counted_and_the_index_what_waits_now(
    deployment: Deployment,
) -> None:
    waits = [
        ("acme", Wait(WaitsFor.WORKER, "ocr", 1, False, False), 10),
        ("acme", Wait(WaitsFor.WORKER, "sis", 1, False, False), 2_000),
        ("b", Wait(WaitsFor.WORKER, "gone", 1, False, False), 5),
        ("acme", Wait(WaitsFor.PUBLISH, "ocr", 1, True, False), 1),
    ]
    lanes = [
        LaneDepth(service="ocr", lane=1, depth=413, oldest_at_ms=5),
        LaneDepth(service="sis", lane=1, depth=ROWS_MAX, oldest_at_ms=5),
    ]
    other = report("other", waits=waits, lanes=lanes, counted_at_ms=7)
    fleet = deployment.lucius.reports

    async def both() -> list[ProcessReport]:
        return [fleet.own(), other]

    fleet.all = both  # type: ignore[method-assign]
    document = await told(deployment)
    workers = {each["service"]: each["jobs"] for each in document["items"] if each["code"] == "WORKER"}
    assert workers == {"ocr": 412, "sis": 2_000}, "the index says that nothing waits for `gone`"
    assert document["counted_at"] in (None, "1970-01-01T00:00:00.007Z")
