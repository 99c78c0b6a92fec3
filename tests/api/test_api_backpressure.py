"""Limits, `Retry-After` and modes, over HTTP."""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.support.api_setup import Callers, check_problem, envelope, until
from tests.support.reasons_setup import planned

from lucius.assembly import Embedded
from lucius.contracts.envelope import Envelope, parse_envelope
from lucius.core.inputs import Cancel
from lucius.core.refusal import Code, Refused
from lucius.jobs.submit import Submitted
from lucius.ledger.job_ledger import LayoutName
from lucius.ledger.sqlite.store import SqliteStore
from lucius.settings import read_settings


async def test_retry_after_is_told_from_how_fast_jobs_end(callers: "Callers") -> None:
    deployment = await callers.open({"LUCIUS_MAX_INFLIGHT_PER_TENANT": "1"})
    for _ in range(4):
        await deployment.finish(await deployment.submit(), "ocr")
    await deployment.submit()
    response = await deployment.post("/v1/orchestrate", envelope())
    check_problem(response, 429, "TENANT_LIMIT")
    assert response.headers["retry-after"] == "1", "jobs of this tenant end several times a second"
    other = await callers.open({"LUCIUS_MAX_INFLIGHT": "1"})
    await other.submit()
    response = await other.post("/v1/orchestrate", envelope(tenant_id="globex"))
    check_problem(response, 503, "SYSTEM_SATURATED")
    assert response.headers["retry-after"] == "10", "nothing has ended yet"


async def test_a_file_gives_tenants_limits_and_modes_which_are_shown(
    callers: "Callers", tmp_path: Path
) -> None:
    rules = tmp_path / "tenants.yaml"
    rules.write_text(
        "tenants:\n  ACME: {inflight_max: 1}\n  globex: {mode: BURST, burst_allowed: true}\n"
        "  initech: {burst_allowed: false}\n"
    )
    deployment = await callers.open(
        {
            "LUCIUS_TENANTS_FILE": str(rules),
            "LUCIUS_TENANT_MODES": "globex=DEFAULT,hooli=BURST",
            "LUCIUS_BURST_DENIED": "globex",
            "LUCIUS_MAX_INFLIGHT_DEFAULT": "40",
        }
    )
    job_id = await deployment.submit(tenant_id="Acme")
    response = await deployment.post("/v1/orchestrate", envelope(tenant_id="acme"))
    assert "1 jobs in flight, its limit" in check_problem(response, 429, "TENANT_LIMIT")["detail"]
    plan = await planned(deployment, envelope(tenant_id="acme"))
    assert plan["limits"]["tenant"] == {"in_flight": 1, "max": 1}
    assert plan["limits"]["default"] == {"in_flight": 1, "max": 40}
    burst = await planned(deployment, envelope(tenant_id="globex", doc_id="d"))
    assert (burst["mode"], burst["decision_source"]) == ("BURST", "TENANT_CONFIG")
    denied = envelope(tenant_id="initech", mode="BURST", doc_id="d")
    check_problem(await deployment.post("/v1/orchestrate", denied), 403, "FORBIDDEN")
    told = (await deployment.http.get(f"/v1/jobs/{job_id}:explain")).json()
    assert told["limits"] == {"tenant": {"in_flight": 1, "max": 1}}
    tenants = (await deployment.http.get("/v1/tenants")).json()
    assert [(each["limit"], each["share"]) for each in tenants["items"]] == [(1, 1.0)]
    assert (tenants["limits"]["default_max"], tenants["limits"]["default_in_flight"]) == (40, 1)
    figures = (await deployment.http.get("/metrics")).text
    assert 'lucius_inflight_limit{scope="default"} 40.0' in figures
    assert 'lucius_inflight_limit{scope="tenant"} 1000.0' in figures
    shown = [line for line in figures.splitlines() if line.startswith("lucius_tenant_inflight_limit{")]
    assert shown == [
        'lucius_tenant_inflight_limit{mode="DEFAULT",tenant="acme"} 1.0',
        'lucius_tenant_inflight_limit{mode="BURST",tenant="globex"} 1000.0',
        'lucius_tenant_inflight_limit{mode="BURST",tenant="hooli"} 1000.0',
    ]


@pytest.mark.parametrize(
    ("env", "changes", "expected"),
    [
        ({}, {}, ("DEFAULT", "GLOBAL_CONFIG", "GLOBAL_DEFAULT")),
        ({"LUCIUS_DEFAULT_MODE": "BURST"}, {"doc_id": "d"}, ("BURST", "GLOBAL_CONFIG", "GLOBAL_DEFAULT")),
        (
            {"LUCIUS_TENANT_MODES": "acme=BURST"},
            {"doc_id": "d"},
            ("BURST", "TENANT_CONFIG", "TENANT_DEFAULT"),
        ),
        (
            {"LUCIUS_TENANT_MODES": "acme=BURST"},
            {"mode": "SAFE"},
            ("DEFAULT", "REQUEST", "MODE_IN_REQUEST"),
        ),
        ({"LUCIUS_TENANT_MODES": "globex=BURST"}, {}, ("DEFAULT", "GLOBAL_CONFIG", "GLOBAL_DEFAULT")),
    ],
)
async def test_who_decides_the_mode(
    callers: "Callers", env: dict[str, str], changes: dict[str, Any], expected: tuple[str, str, str]
) -> None:
    deployment = await callers.open(env)
    plan = await planned(deployment, envelope(**changes))
    assert (plan["mode"], plan["decision_source"], plan["decision_reason"]) == expected
    step = (await deployment.job(await deployment.submit(**changes)))["steps"][0]
    assert (step["resolved_mode"], step["decision_source"], step["decision_reason"]) == expected


@pytest.mark.parametrize("env", [{}, {"LUCIUS_TENANT_MODES": "acme=BURST"}, {"LUCIUS_DEFAULT_MODE": "BURST"}])
async def test_a_tenant_that_may_not_burst(callers: "Callers", env: dict[str, str]) -> None:
    deployment = await callers.open({"LUCIUS_BURST_DENIED": "acme", **env})
    changes = {"doc_id": "d"} if env else {"doc_id": "d", "mode": "BURST"}
    check_problem(await deployment.post("/v1/orchestrate", envelope(**changes)), 403, "FORBIDDEN")
    plan = await planned(deployment, envelope(**changes))
    assert [each["code"] for each in plan["problems"]] == ["FORBIDDEN"]
    assert (plan["mode"], plan["lane"]) == ("BURST", None)
    assert (await planned(deployment, envelope(tenant_id="globex", **changes)))["accepted"] is True


async def test_processes_that_share_a_store_hear_of_each_others_jobs(tmp_path: Path) -> None:
    """Within a refresh: told that the store is shared, counts are refreshed each second."""
    settings = read_settings({"LUCIUS_MAX_INFLIGHT_PER_TENANT": "1"})
    async with AsyncExitStack() as stack:
        processes: list[Embedded] = []
        for _ in range(2):
            lucius = Embedded(
                await SqliteStore.open(tmp_path / "lucius.db"),
                settings,
                layout=LayoutName.LEDGER,
                data=tmp_path,
                base_url="http://house",
                protocols=None,
                shared=True,
            )
            stack.push_async_callback(lucius.stop)
            await lucius.start({})
            processes.append(lucius)
        one, other = processes
        taken = await one.deployment.submitter.submit(parsed(envelope()))
        assert isinstance(taken, Submitted)

        async def counted(expected: dict[str, int]) -> bool:
            return other.admission.by_tenant == expected

        await until(lambda: counted({"acme": 1}))
        refused = await other.deployment.submitter.submit(parsed(envelope()))
        assert isinstance(refused, Refused) and refused.code is Code.TENANT_LIMIT
        await one.deployment.inputs.apply(taken.job_id, Cancel())
        await until(lambda: counted({}))
        assert isinstance(await other.deployment.submitter.submit(parsed(envelope())), Submitted)


def parsed(document: Any) -> Envelope:
    read = parse_envelope(document)
    assert isinstance(read, Envelope)
    return read
