"""API keys over HTTP: made once, shown once, revoked at once, and never more than their maker had."""

import asyncio
import json
import logging
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.support.api_setup import Callers, check_problem, envelope, pointers, until
from tests.support.auth_setup import ALL_ROLES, guarded
from tests.support.sse_client import SSE

from lucius.api.gate import ASK_AGAIN_SECONDS
from lucius.ledger.api_keys import PARTITION

WISH: dict[str, Any] = {"name": "ci", "tenants": [" Acme "], "roles": ["submit", "read"]}


async def test_a_key_is_shown_once_and_only_its_hash_is_kept(callers: Callers) -> None:
    deployment = await guarded(callers)
    admin = await deployment.holding("admin")
    response = await admin.post("/v1/admin/keys", WISH)
    assert response.status_code == 201, response.text
    assert response.headers["cache-control"] == "no-store"
    made = response.json()
    assert (made["tenants"], made["roles"], made["services"]) == (["acme"], ["read", "submit"], [])
    assert made["revoked_at"] is None
    secret = made["key"].rpartition("_")[2]
    listed = (await admin.http.get("/v1/admin/keys")).json()["items"]
    (shown,) = [key for key in listed if key["keyId"] == made["keyId"]]
    assert shown == {name: value for name, value in made.items() if name != "key"}
    assert secret not in json.dumps(listed)
    embedded = deployment.lucius.deployment
    rows = await embedded.ledger.store.query(embedded.ledger.tables.meta, PARTITION, limit=100)
    assert len(rows) == 2
    assert all(secret.encode() not in row.body for row in rows)
    holder = deployment.caller(made["key"])
    job_id = await holder.submit(tenant_id="ACME")
    assert (await holder.job(job_id))["tenant_id"] == "ACME"


async def test_a_revoked_key_opens_nothing_at_once(callers: Callers) -> None:
    deployment = await guarded(callers)
    admin, made = await deployment.holding("admin"), await deployment.key("read")
    holder = deployment.caller(made.text)
    assert (await holder.http.get("/v1/protocols")).status_code == 200
    response = await admin.post(f"/v1/admin/keys/{made.key.key_id}:revoke")
    assert response.status_code == 200
    revoked_at = response.json()["revoked_at"]
    assert revoked_at is not None
    check_problem(await holder.http.get("/v1/protocols"), 401, "UNAUTHENTICATED")
    again = await admin.post(f"/v1/admin/keys/{made.key.key_id}:revoke")
    assert again.json()["revoked_at"] == revoked_at


async def test_a_revoked_key_gets_nothing_by_a_call_that_it_holds_open(callers: Callers) -> None:
    deployment = await guarded(callers)
    admin = await deployment.holding(*ALL_ROLES)
    made = await deployment.key("read", "work")
    holder = deployment.caller(made.text)
    job_id = await admin.submit()
    lease = asyncio.create_task(holder.post("/v1/directives:lease", {"service": "sis", "wait_seconds": 20}))
    wait = asyncio.create_task(holder.http.get(f"/v1/jobs/{job_id}", params={"wait": 40}))
    stream = asyncio.create_task(holder.http.get(f"/v1/jobs/{job_id}/events", headers=SSE))
    await asyncio.sleep(0.2)
    await admin.post(f"/v1/admin/keys/{made.key.key_id}:revoke")
    heard = await asyncio.wait_for(stream, 8)
    assert "JOB_CREATED" in heard.text
    check_problem(await asyncio.wait_for(lease, 8), 401, "UNAUTHENTICATED")
    check_problem(await asyncio.wait_for(wait, 3), 401, "UNAUTHENTICATED")
    sis = await admin.submit(request_type="SIS")
    assert [one["jobId"] for one in await admin.lease("sis", wait=5)] == [sis]
    await admin.finish(job_id, "ocr")
    assert "JOB_SUCCEEDED" not in heard.text


async def test_a_key_that_lasts_holds_its_calls_open(callers: Callers) -> None:
    deployment = await guarded(callers)
    admin, holder = await deployment.holding(*ALL_ROLES), await deployment.holding("read", "work")
    job_id = await admin.submit()
    lease = asyncio.create_task(holder.post("/v1/directives:lease", {"service": "sis", "wait_seconds": 20}))
    stream = asyncio.create_task(holder.http.get(f"/v1/jobs/{job_id}/events", headers=SSE))
    await asyncio.sleep(ASK_AGAIN_SECONDS + 0.5)
    sis = await admin.submit(request_type="SIS")
    (directive,) = (await asyncio.wait_for(lease, 8)).json()["directives"]
    assert directive["jobId"] == sis
    await admin.finish(job_id, "ocr")
    assert "JOB_SUCCEEDED" in (await asyncio.wait_for(stream, 8)).text


async def test_a_revocation_by_another_process_is_heard_of_within_two_seconds(callers: Callers) -> None:
    deployment = await guarded(callers)
    made = await deployment.key("read")
    holder = deployment.caller(made.text)
    assert (await holder.http.get("/v1/protocols")).status_code == 200
    embedded = deployment.lucius.deployment
    elsewhere = type(embedded.keys)(
        embedded.ledger.store, embedded.ledger.tables.meta, now_ms=embedded.now_ms, new_parts=lambda: ("", "")
    )
    await elsewhere.revoke(made.key.key_id)

    async def refused() -> bool:
        return (await holder.http.get("/v1/protocols")).status_code == 401

    assert await until(refused, seconds=2)


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer",
        "Bearer ",
        "Basic bGs6bGs=",
        "lk_0123456789abcdef_" + "0" * 64,
        "Bearer lk_0123456789abcdef_" + "0" * 64,
        "Bearer lk_",
        "Bearer lk_../../x_" + "0" * 64,
        "Bearer eyJhbGciOiJub25lIn0.e30.",
        "Bearer a b",
        "Bearer \x80\xff",
        "Bearer " + "x" * 20_000,
        "Bearer x\ty",
    ],
)
async def test_what_is_no_key_is_refused(callers: Callers, authorization: str) -> None:
    deployment = await guarded(callers)
    response = await deployment.caller(None).http.get(
        "/v1/jobs", headers=[(b"authorization", authorization.encode("latin-1"))]
    )
    document = check_problem(response, 401, "UNAUTHENTICATED")
    assert response.headers["www-authenticate"] == "Bearer"
    assert authorization.partition(" ")[2] == "" or authorization.partition(" ")[2] not in document["detail"]


async def test_two_credentials_are_none(callers: Callers) -> None:
    deployment = await guarded(callers)
    one, other = await deployment.key("read"), await deployment.key("read")
    headers = [("authorization", f"Bearer {one.text}"), ("authorization", f"Bearer {other.text}")]
    check_problem(
        await deployment.caller(None).http.get("/v1/protocols", headers=headers), 401, "UNAUTHENTICATED"
    )
    assert (await deployment.caller(None).http.get("/v1/protocols", headers=headers[:1])).status_code == 200


async def test_a_right_id_with_a_wrong_secret_is_refused(callers: Callers) -> None:
    deployment = await guarded(callers)
    made = await deployment.key("read")
    wrong = made.text[:-1] + ("0" if made.text[-1] != "0" else "1")
    check_problem(await deployment.caller(wrong).http.get("/v1/protocols"), 401, "UNAUTHENTICATED")


@pytest.mark.parametrize(
    ("changes", "at_fault"),
    [
        ({"name": ""}, "/name"),
        ({"name": 7}, "/name"),
        ({"name": "a\nb"}, "/name"),
        ({"name": "x" * 129}, "/name"),
        ({"tenants": []}, "/tenants"),
        ({"tenants": None}, "/tenants"),
        ({"tenants": "acme"}, "/tenants"),
        ({"tenants": ["acme", "*"]}, "/tenants"),
        ({"tenants": [" "]}, "/tenants"),
        ({"tenants": ["t"] * 201}, "/tenants"),
        ({"roles": ["root"]}, "/roles"),
        ({"roles": []}, "/roles"),
        ({"roles": ["work"], "tenants": ["*"]}, "/services"),
        ({"roles": ["work"], "services": ["ocr"]}, "/tenants"),
        ({"roles": ["work"], "tenants": ["*"], "services": ["Not A Name"]}, "/services"),
        ({"services": ["ocr"]}, "/services"),
        ({"expires": 3}, "/expires"),
    ],
)
async def test_a_wish_that_makes_no_sense_is_refused(
    callers: Callers, changes: dict[str, Any], at_fault: str
) -> None:
    deployment = await guarded(callers)
    admin = await deployment.holding("admin")
    document = check_problem(await admin.post("/v1/admin/keys", WISH | changes), 422, "INVALID_REQUEST")
    assert at_fault in pointers(document)
    assert len((await admin.http.get("/v1/admin/keys")).json()["items"]) == 1


async def test_nobody_gives_more_than_they_have(callers: Callers) -> None:
    deployment = await guarded(callers)
    of_acme = await deployment.holding("admin", "read", tenants=("acme",))
    given = await of_acme.post("/v1/admin/keys", {"name": "r", "tenants": ["acme"], "roles": ["read"]})
    assert given.status_code == 201
    for excess, at_fault in (
        ({"tenants": ["blue"]}, "/tenants"),
        ({"tenants": ["acme", "blue"]}, "/tenants"),
        ({"tenants": ["*"]}, "/tenants"),
        ({"roles": ["submit"]}, "/roles"),
    ):
        wanted = {"name": "more", "tenants": ["acme"], "roles": ["read"]} | excess
        document = check_problem(await of_acme.post("/v1/admin/keys", wanted), 403, "FORBIDDEN")
        assert pointers(document) == {at_fault}
    everything = {"name": "all", "tenants": ["*"], "roles": ["submit"]}
    assert (await (await deployment.holding("admin")).post("/v1/admin/keys", everything)).status_code == 201


async def test_an_administrator_of_a_tenant_sees_and_revokes_its_keys_alone(callers: Callers) -> None:
    deployment = await guarded(callers)
    own = await deployment.key("read", tenants=("acme",))
    others = [
        await deployment.key("read", tenants=("blue",)),
        await deployment.key("read", tenants=("acme", "blue")),
        await deployment.key("read"),
    ]
    of_acme_key = await deployment.key("admin", tenants=("acme",))
    of_acme = deployment.caller(of_acme_key.text)
    listed = {key["keyId"] for key in (await of_acme.http.get("/v1/admin/keys")).json()["items"]}
    assert listed == {own.key.key_id, of_acme_key.key.key_id}
    absent = check_problem(await of_acme.post(f"/v1/admin/keys/{'0' * 16}:revoke"), 404, "NOT_FOUND")
    for other in others:
        response = await of_acme.post(f"/v1/admin/keys/{other.key.key_id}:revoke")
        assert check_problem(response, 404, "NOT_FOUND") == absent
        assert (await deployment.caller(other.text).http.get("/v1/protocols")).status_code == 200
    assert (await of_acme.post(f"/v1/admin/keys/{own.key.key_id}:revoke")).status_code == 200
    check_problem(await deployment.caller(own.text).http.get("/v1/protocols"), 401, "UNAUTHENTICATED")


async def test_keys_and_tokens_never_reach_a_log_or_an_error_text(
    callers: Callers, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    deployment = await guarded(callers)
    caplog.set_level(logging.DEBUG)
    admin_key, revoked, reader = [await deployment.key(role) for role in ("admin", "read", "read")]
    await deployment.lucius.deployment.keys.revoke(revoked.key.key_id)
    said = []
    made = ""
    with capture_logs() as logged:
        for text in (revoked.text, reader.text, reader.text[:-1] + "x", admin_key.text):
            caller = deployment.caller(text)
            said.append((await caller.http.get("/v1/jobs")).text)
            said.append((await caller.post("/v1/orchestrate", envelope())).text)
            said.append((await caller.post("/v1/orchestrate", {"tenant_id": text})).text)
            said.append((await caller.post("/v1/callbacks/ack", {})).text)
            response = await caller.post("/v1/admin/keys", WISH)
            if response.status_code == 201:
                made = response.json()["key"]
            else:
                said.append(response.text)
    assert made and logged
    secrets = [text.rpartition("_")[2] for text in (made, revoked.text, reader.text, admin_key.text)]
    shown = capfd.readouterr()
    heard = "\n".join([*said, str(logged), caplog.text, shown.out, shown.err])
    assert [secret for secret in secrets if secret in heard] == []


async def test_headers_and_paths_cannot_smuggle_headers_into_an_answer(callers: Callers) -> None:
    deployment = await guarded(callers)
    reader = await deployment.holding("read", "control")
    for path in (
        "/v1/jobs/x%0d%0aSet-Cookie:%20a=b",
        "/v1/jobs/x%0d%0aSet-Cookie:%20a=b/steps",
        "/v1/admin/keys/%0d%0aSet-Cookie:%20a=b:revoke",
    ):
        response = await reader.http.get(path)
        assert response.status_code in (404, 405)
        assert "set-cookie" not in response.headers
        assert "\n" not in response.headers.get("www-authenticate", "")
    response = await reader.http.post(
        "/v1/jobs/absent:rerun", headers=[(b"idempotency-key", b"a\r\nSet-Cookie: a=b")]
    )
    assert response.status_code == 422
    assert "set-cookie" not in response.headers
