"""Budgets of tenants: what they refuse, and where they are shown."""

from pathlib import Path

from tests.support.api_setup import Callers, Deployment, check_problem, envelope

RULES = "tenants: {acme: {budget: {day: {pages: 10}, month: {usd: 100}}}}"


async def opened(callers: Callers, tmp_path: Path) -> Deployment:
    rules = tmp_path / "tenants.yaml"
    rules.write_text(RULES)
    return await callers.open({"LUCIUS_TENANTS_FILE": str(rules)})


async def test_a_budget_that_is_used_up_refuses_new_commands(callers: Callers, tmp_path: Path) -> None:
    deployment = await opened(callers, tmp_path)
    first, second = await deployment.submit(idempotency_key="first"), await deployment.submit()
    await deployment.finish(first, "ocr", usage={"pages": 9})
    await deployment.finish(await deployment.submit(), "ocr", usage={"usd": 99})
    await deployment.finish(second, "ocr", usage={"pages": 1})
    refused = await deployment.post("/v1/orchestrate", envelope())
    problem = check_problem(refused, 429, "BUDGET_EXCEEDED")
    assert problem["detail"] == "the tenant has used 10 pages this day, and may use 10"
    assert 0 < int(refused.headers["retry-after"]) <= 86_400
    check_problem(
        await deployment.post(f"/v1/jobs/{first}:rerun", {"from_step": "step_01"}), 429, "BUDGET_EXCEEDED"
    )
    await deployment.submit(tenant_id="other")
    assert await deployment.state(first) == "SUCCEEDED", "what was accepted stays"


async def test_a_command_that_was_accepted_before_is_answered_as_before(
    callers: Callers, tmp_path: Path
) -> None:
    deployment = await opened(callers, tmp_path)
    command = envelope(idempotency_key="once")
    accepted = (await deployment.post("/v1/orchestrate", command)).json()
    await deployment.finish(accepted["jobId"], "ocr", usage={"pages": 50})
    answered = await deployment.post("/v1/orchestrate", command)
    assert answered.is_success and answered.json()["duplicate"] is True


async def test_plans_tenants_and_metrics_show_budgets(callers: Callers, tmp_path: Path) -> None:
    deployment = await opened(callers, tmp_path)
    await deployment.finish(await deployment.submit(), "ocr", usage={"pages": 4})
    plan = (await deployment.post("/v1/orchestrate:plan", envelope())).json()
    shown = [(each["name"], each["period"], each["used"], each["max"]) for each in plan["limits"]["budgets"]]
    assert plan["accepted"] and shown == [("pages", "day", 4, 10), ("usd", "month", 0, 100)]
    (acme,) = (await deployment.http.get("/v1/tenants")).json()["items"]
    assert acme["budgets"] == plan["limits"]["budgets"]
    metrics = (await deployment.http.get("/metrics")).text
    assert 'lucius_tenant_budget_used_ratio{name="pages",period="day",tenant="acme"} 0.4' in metrics
    await deployment.finish(await deployment.submit(), "ocr", usage={"pages": 6})
    plan = (await deployment.post("/v1/orchestrate:plan", envelope())).json()
    assert not plan["accepted"] and plan["limits"]["taken_now"] is False
    assert [problem["code"] for problem in plan["problems"]] == ["BUDGET_EXCEEDED"]


async def test_a_process_that_starts_later_knows_what_was_used(callers: Callers, tmp_path: Path) -> None:
    deployment = await opened(callers, tmp_path)
    await deployment.finish(await deployment.submit(), "ocr", usage={"pages": 10})
    deployment.lucius.kernel.budgets._known.clear()
    assert await deployment.lucius.usage_duty.look() == 1
    check_problem(await deployment.post("/v1/orchestrate", envelope()), 429, "BUDGET_EXCEEDED")
