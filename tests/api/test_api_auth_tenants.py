"""Tenants live side by side: another's job is exactly like one that is not there."""

import asyncio
import base64
import json
import time

import pytest
from tests.support.api_setup import Caller, Callers, check_problem, envelope, pointers
from tests.support.auth_setup import ALL_ROLES, Guarded, guarded

from lucius.api import pages

ABSENT = "job_00000000000000000000000000"


async def two_tenants(callers: Callers) -> tuple[Guarded, Caller, Caller]:
    deployment = await guarded(callers)
    return (
        deployment,
        await deployment.holding(*ALL_ROLES, tenants=("acme",)),
        await deployment.holding(*ALL_ROLES, tenants=("blue",)),
    )


async def test_a_foreign_job_answers_word_for_word_as_an_absent_one(callers: Callers) -> None:
    _, acme, blue = await two_tenants(callers)
    job_id = await acme.submit(tenant_id="acme")
    calls = [("GET", f"/v1/jobs/{{}}{rest}") for rest in ("", "/steps", "/events", ":explain", "?wait=20")]
    calls += [("POST", f"/v1/jobs/{{}}:{verb}") for verb in ("cancel", "pause", "resume", "rerun")]
    calls.append(("POST", "/v1/admin/dlq/{}:redrive"))
    for method, path in calls:
        answers = []
        for named in (job_id, ABSENT):
            response = await blue.http.request(method, path.format(named))
            document = check_problem(response, 404, "JOB_NOT_FOUND")
            headers = {name: value for name, value in response.headers.items() if name != "x-request-id"}
            answers.append((json.dumps(document).replace(named, "ID"), headers))
        foreign, absent = answers
        assert foreign[0] == absent[0], path
        assert foreign[1].keys() == absent[1].keys(), path
    assert (await acme.job(job_id))["state"] == "DISPATCHING"


async def test_waiting_for_a_foreign_job_takes_no_longer_than_for_an_absent_one(callers: Callers) -> None:
    _, acme, blue = await two_tenants(callers)
    job_id = await acme.submit(tenant_id="acme")
    began = time.monotonic()
    check_problem(await blue.http.get(f"/v1/jobs/{job_id}?wait=60"), 404, "JOB_NOT_FOUND")
    assert time.monotonic() - began < 5
    waiting = asyncio.create_task(acme.job(job_id, wait=30))
    await acme.control(job_id, "cancel")
    assert (await waiting)["state"] == "CANCELLED"


async def test_commands_are_for_own_tenants_whatever_the_spelling(callers: Callers) -> None:
    _, acme, _ = await two_tenants(callers)
    await acme.submit(tenant_id="  ACME ")
    for tenant in ("blue", "acme2", "acm", "*", "acme\u200b"):
        response = await acme.post("/v1/orchestrate", envelope(tenant_id=tenant))
        assert pointers(check_problem(response, 403, "FORBIDDEN")) == {"/tenant_id"}


async def test_a_batch_is_judged_item_by_item(callers: Callers) -> None:
    _, acme, _ = await two_tenants(callers)
    commands = [envelope(tenant_id="acme"), envelope(tenant_id="blue"), envelope(tenant_id="Acme")]
    response = await acme.post("/v1/orchestrate:batch", {"commands": commands})
    assert response.status_code == 200
    first, second, third = response.json()["items"]
    assert (first["state"], third["state"]) == ("QUEUED", "QUEUED")
    assert (second["status"], second["code"]) == (403, "FORBIDDEN")


async def test_a_list_keeps_to_the_tenants_of_the_caller(callers: Callers) -> None:
    deployment, acme, blue = await two_tenants(callers)
    ours = await acme.submit(tenant_id="acme")
    theirs = await blue.submit(tenant_id="blue", doc_id="Invoice 22")
    everything = await deployment.holding("read")
    both = await deployment.holding("read", tenants=("acme", "blue"))
    nobody = await deployment.holding("read", tenants=())

    async def listed(caller: Caller, **wanted: str) -> set[str]:
        response = await caller.http.get("/v1/jobs", params=wanted)
        assert response.status_code == 200, response.text
        return {job["jobId"] for job in response.json()["items"]}

    assert await listed(acme) == await listed(acme, tenant_id=" Acme") == {ours}
    assert await listed(both, tenant_id="blue") == {theirs}
    assert await listed(everything) == {ours, theirs}
    assert await listed(everything, tenant_id="acme") == {ours}
    for text in ("invoice 22", theirs, theirs[-6:]):
        assert await listed(acme, q=text) == await listed(everything, q=text, tenant_id="acme") == set()
        assert await listed(blue, q=text) == await listed(everything, q=text) == {theirs}
        check_problem(await both.http.get("/v1/jobs", params={"q": text}), 422, "INVALID_REQUEST")
    document = check_problem(await both.http.get("/v1/jobs"), 422, "INVALID_REQUEST")
    assert pointers(document) == {"?tenant_id"}
    for caller, tenant in ((acme, "blue"), (acme, "absent"), (acme, "*"), (acme, ""), (both, "cent")):
        response = await caller.http.get("/v1/jobs", params={"tenant_id": tenant})
        check_problem(response, 403, "FORBIDDEN")
    check_problem(await nobody.http.get("/v1/jobs"), 403, "FORBIDDEN")


async def test_a_cursor_of_another_or_an_edited_one_opens_nothing(callers: Callers) -> None:
    deployment, acme, blue = await two_tenants(callers)
    theirs = {await blue.submit(tenant_id="blue") for _ in range(4)}
    for _ in range(3):
        await acme.submit(tenant_id="acme")
    foreign = (await blue.http.get("/v1/jobs", params={"limit": 2})).json()["next_cursor"]
    everybodys = (await (await deployment.holding("read")).http.get("/v1/jobs?limit=2")).json()["next_cursor"]
    own = (await acme.http.get("/v1/jobs", params={"limit": 2})).json()["next_cursor"]
    assert foreign and everybodys and own
    for cursor in (foreign, everybodys, "x", "e30", own[:-2], "\u00e9", "=" * 5, "A" * 5_000):
        response = await acme.http.get("/v1/jobs", params={"cursor": cursor})
        document = check_problem(response, 422, "INVALID_REQUEST")
        assert pointers(document) == {"?cursor"}
    # One that claims the caller's scope and points into another's rows still reads the caller's partition.
    inside = json.loads(base64.urlsafe_b64decode(foreign + "=="))
    inside["scope"] = "acme"
    edited = base64.urlsafe_b64encode(json.dumps(inside).encode()).decode().rstrip("=")
    seen = (await acme.http.get("/v1/jobs", params={"cursor": edited})).json()["items"]
    assert {job["tenant_id"] for job in seen} <= {"acme"}
    assert not theirs & {job["jobId"] for job in seen}


async def test_the_finally_failed_are_shown_to_whom_they_belong(callers: Callers) -> None:
    deployment, acme, blue = await two_tenants(callers)
    worker = await deployment.holding("work")
    dead_of: dict[str, set[str]] = {"acme": set(), "blue": set()}
    for _ in range(3):
        for tenant, caller in (("acme", acme), ("blue", blue)):
            job_id = await caller.submit(tenant_id=tenant)
            await worker.finish(job_id, "ocr", status="FAILED_FINAL")
            dead_of[tenant].add(job_id)
    for caller, tenant in ((acme, "acme"), (blue, "blue")):
        found, cursor = set(), ""
        for _ in range(10):
            page = (await caller.http.get("/v1/admin/dlq", params={"limit": 1, "cursor": cursor})).json()
            found |= {job["jobId"] for job in page["items"]}
            cursor = page["next_cursor"]
            if cursor is None:
                break
            assert not any(job_id in cursor for job_id in set().union(*dead_of.values()) - dead_of[tenant])
        assert found == dead_of[tenant]
    everybody = (await (await deployment.holding("admin")).http.get("/v1/admin/dlq")).json()["items"]
    assert {job["jobId"] for job in everybody} == dead_of["acme"] | dead_of["blue"]
    for cursor in ("x", "1", "9" * 15, "0" * 14 + "#\n", "0" * 14 + "#" + "j" * 129):
        response = await acme.http.get("/v1/admin/dlq", params={"cursor": cursor})
        check_problem(response, 422, "INVALID_REQUEST")


async def test_a_page_of_the_finally_failed_that_ends_among_others_names_none_of_them(
    callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment, acme, blue = await two_tenants(callers)
    worker = await deployment.holding("work")
    ours = await acme.submit(tenant_id="acme")
    await worker.finish(ours, "ocr", status="FAILED_FINAL")
    theirs = [await blue.submit(tenant_id="blue") for _ in range(5)]
    for job_id in theirs:
        await worker.finish(job_id, "ocr", status="FAILED_FINAL")
        await asyncio.sleep(0.002)
    monkeypatch.setattr(pages, "LOOK_ROWS", 2)
    monkeypatch.setattr(pages, "LOOK_ROWS_MAX", 2)
    found: list[str] = []
    cursor = ""
    for _ in range(20):
        page = (await acme.http.get("/v1/admin/dlq", params={"cursor": cursor})).json()
        found += [job["jobId"] for job in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
        assert not any(job_id in cursor for job_id in theirs)
    assert cursor is None
    assert set(found) == {ours}


async def test_a_worker_leases_for_its_services_and_for_every_tenant(callers: Callers) -> None:
    deployment, acme, _ = await two_tenants(callers)
    job_id = await acme.submit(tenant_id="acme")
    only_sis = await deployment.holding("work", services=("sis",))
    check_problem(await only_sis.post("/v1/directives:lease", {"service": "ocr"}), 403, "FORBIDDEN")
    assert await only_sis.lease("sis") == []
    # Directives of all tenants share a lane: whoever is limited to some would see those of others.
    check_problem(await acme.post("/v1/directives:lease", {"service": "ocr"}), 403, "FORBIDDEN")
    ocr = await deployment.holding("work", services=("ocr",))
    (directive,) = await ocr.lease("ocr", wait=5)
    assert directive["jobId"] == job_id
    # A callback is opened by its own token: the worker's key is none.
    message = {"type": "ACK", "jobId": job_id}
    check_problem(await ocr.post("/v1/callbacks/ack", message), 401, "UNAUTHENTICATED")
    bare = deployment.caller(None)
    assert await bare.reply(directive, "RESULT") == {"outcome": "applied", "stop": False}
    # And the token opens nothing but its callbacks.
    with_token = deployment.caller(directive["callback_token"])
    check_problem(await with_token.http.get(f"/v1/jobs/{job_id}"), 401, "UNAUTHENTICATED")


async def test_a_limited_administrator_does_not_hurry_everybody(callers: Callers) -> None:
    deployment, acme, _ = await two_tenants(callers)
    check_problem(await acme.post("/v1/admin/outbox/retry"), 403, "FORBIDDEN")
    response = await (await deployment.holding("admin")).post("/v1/admin/outbox/retry")
    assert response.status_code == 200
