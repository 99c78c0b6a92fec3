"""`GET /v1/usage` and what a job shows: what services reported with their results."""

from tests.support.api_setup import Callers, Deployment, Json, check_problem
from tests.support.auth_setup import guarded


async def told(caller: Deployment, **params: str) -> Json:
    response = await caller.http.get("/v1/usage", params=params)
    assert response.status_code == 200, response.text
    return response.json()


async def test_what_was_used_is_told_by_tenant_day_and_service(deployment: Deployment) -> None:
    job_id = await deployment.submit()
    await deployment.finish(job_id, "ocr", usage={"pages": 3, "usd": 0.25})
    await deployment.finish(await deployment.submit(tenant_id="other"), "ocr", usage={"pages": 4})
    await deployment.finish(await deployment.submit(), "ocr")
    job = await deployment.job(job_id)
    assert job["usage"] == job["steps"][0]["usage"] == {"pages": 3, "usd": 0.25}
    document = await told(deployment)
    assert document["totals"] == {"pages": 7, "usd": 0.25}
    lines = {
        line["tenant_id"]: (line["service"], line["results"], line["usage"]) for line in document["items"]
    }
    assert lines == {
        "acme": ("ocr", 1, {"pages": 3, "usd": 0.25}),
        "other": ("ocr", 1, {"pages": 4}),
    }
    assert await deployment.lucius.usage_duty.look() == 2
    assert (await told(deployment))["items"] == document["items"]
    assert (await told(deployment, tenant_id=" Other "))["totals"] == {"pages": 4}
    day = document["items"][0]["day"]
    assert (await told(deployment, **{"from": day, "to": day}))["items"] == document["items"]
    assert (await told(deployment, **{"from": "2020-01-01", "to": "2020-12-31"}))["items"] == []
    metrics = (await deployment.http.get("/metrics")).text
    assert 'lucius_usage_total{name="pages",service="ocr"} 7.0' in metrics


async def test_a_failed_attempt_counts_and_a_late_answer_does_not(quick_deployment: Deployment) -> None:
    deployment = quick_deployment
    job_id = await deployment.submit(request_type="QUICK", payload={})
    directive = await deployment.directive(job_id, "quick")
    failed = {"status": "FAILED_RETRY", "error": {"code": "E", "message": "no"}, "usage": {"tokens": 5}}
    await deployment.reply(directive, "RESULT", **failed)
    await deployment.say(directive, "RESULT", **failed)
    await deployment.finish(job_id, "quick", usage={"tokens": 6})
    assert (await deployment.job(job_id))["usage"] == {"tokens": 11}
    assert (await told(deployment))["totals"] == {"tokens": 11}


async def test_usage_that_cannot_be_summed_is_refused(deployment: Deployment) -> None:
    directive = await deployment.directive(await deployment.submit(), "ocr")
    wrong: tuple[Json, ...] = ({"pages": -1}, {"pages": "3"}, [], {"a b": 1})
    for usage in wrong:
        response = await deployment.say(directive, "RESULT", usage=usage)
        check_problem(response, 422, "INVALID_ENVELOPE")
    await deployment.reply(directive, "RESULT", usage={"pages": 1})


async def test_a_caller_sees_its_tenants_alone(callers: Callers) -> None:
    house = await guarded(callers)
    root = await house.holding("submit", "work", "read")
    for tenant in ("a", "b"):
        await root.finish(await root.submit(tenant_id=tenant), "ocr", usage={"pages": 1})
    reader = await house.holding("read", tenants=("a",))
    document = (await reader.http.get("/v1/usage")).json()
    assert [line["tenant_id"] for line in document["items"]] == ["a"]
    check_problem(await reader.http.get("/v1/usage?tenant_id=b"), 403, "FORBIDDEN")
    for query in ("from=x", "from=2026-02-01&to=2026-01-01", "from=2020-01-01&to=2026-01-01", "day=1"):
        check_problem(await reader.http.get(f"/v1/usage?{query}"), 422, "INVALID_REQUEST")
