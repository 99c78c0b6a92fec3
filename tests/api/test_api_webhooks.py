"""Webhooks from the outside: the door that judges the URL, the way to a receiver, the operators' calls."""

import pytest
from tests.support.api_setup import Callers, Deployment, check_problem, envelope, pointers, until
from tests.support.webhook_receiver import connections, receiver, status_line

from lucius.api.gate import Principal
from lucius.contracts.keys import Role
from lucius.settings import BadSetting, read_settings

LOCAL = {"LUCIUS_CALLBACK_ALLOW_HTTP": "true", "LUCIUS_CALLBACK_ALLOW_PRIVATE": "true"}


async def ended(deployment: Deployment, url: str | None, **changes: str) -> str:
    job_id = await deployment.submit(callback_urls=None if url is None else {"completed": url}, **changes)
    await deployment.finish(job_id, "ocr")
    return job_id


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.com/a",
        "https://127.0.0.1/a",
        "https://2130706433/a",
        "https://[::ffff:169.254.169.254]/",
        "https://localhost/",
    ],
)
async def test_the_door_refuses_bad_addresses(deployment: Deployment, url: str) -> None:
    with connections(made=True) as seen:
        response = await deployment.post("/v1/orchestrate", envelope(callback_urls={"completed": url}))
    document = check_problem(response, 422, "REF_NOT_ALLOWED")
    assert pointers(document) == {"/callback_urls/completed"}
    assert seen == []


async def test_the_list_of_hosts_is_read_in_any_spelling(callers: Callers) -> None:
    deployment = await callers.open({"LUCIUS_CALLBACK_HOSTS": "Hooks.Example.COM, other.example.com."})
    for host in ("hooks.example.com", "other.example.com"):
        await deployment.submit(callback_urls={"completed": f"https://{host}/a"})
    third = envelope(callback_urls={"completed": "https://third.example.com/a"})
    check_problem(await deployment.post("/v1/orchestrate", third), 422, "REF_NOT_ALLOWED")


async def test_the_end_of_a_job_reaches_its_receiver_soon(callers: Callers) -> None:
    deployment = await callers.open({**LOCAL, "LUCIUS_OUTBOX_RETRY_INTERVAL": "1h"})  # heard, not looked for
    async with receiver() as there:
        job_id = await ended(deployment, f"http://127.0.0.1:{there.port}/done")

        async def told() -> bool:
            return bool(there.received)

        await until(told, seconds=5)
    (request,) = there.received
    assert request.headers["webhook-id"] == f"msg_{job_id}"
    assert request.headers["user-agent"].startswith("Lucius-Webhooks/")
    assert request.headers["webhook-signature"].startswith("v1,")


async def test_dead_letters_are_listed_and_sent_again(callers: Callers) -> None:
    deployment = await callers.open(LOCAL)
    async with receiver(lambda request: status_line(410)) as there:
        url = f"http://127.0.0.1:{there.port}/done"
        ids = [await ended(deployment, url) for _ in range(3)]

        async def dead() -> list[str] | None:
            response = await deployment.http.get("/v1/admin/webhooks/dead")
            found = [item["jobId"] for item in response.json()["items"]]
            return found if len(found) == 3 else None

        assert sorted(await until(dead)) == sorted(ids)
        pages, cursor = [], ""
        while cursor is not None:
            params = {"limit": "2", **({"cursor": cursor} if cursor else {})}
            page = (await deployment.http.get("/v1/admin/webhooks/dead", params=params)).json()
            pages.append(page["items"])
            cursor = page["next_cursor"]
        assert [len(page) for page in pages] == [2, 1]
        letter = next(item for page in pages for item in page if item["jobId"] == ids[0])
        assert letter.pop("dead_at").endswith("Z")
        assert letter == {
            "jobId": ids[0],
            "tenant_id": "acme",
            "url": url,
            "attempts": 1,
            "last_problem": "the receiver answered 410: it is gone for good",
        }
        there.answering = lambda request: status_line(200)
        there.received.clear()
        again = await deployment.post(f"/v1/admin/webhooks/{ids[0]}:redeliver")
        assert (again.status_code, again.json()) == (202, {"jobId": ids[0], "webhook": "PENDING"})

        async def told() -> bool:
            return bool(there.received)

        await until(told)
        assert there.received[0].headers["webhook-id"] == f"msg_{ids[0]}"
        left = (await deployment.http.get("/v1/admin/webhooks/dead")).json()["items"]
        assert sorted(item["jobId"] for item in left) == sorted(ids[1:])


async def test_what_cannot_be_sent_again(callers: Callers) -> None:
    deployment = await callers.open(LOCAL)
    check_problem(await deployment.post("/v1/admin/webhooks/job_none:redeliver"), 404, "JOB_NOT_FOUND")
    without = await ended(deployment, None)
    check_problem(await deployment.post(f"/v1/admin/webhooks/{without}:redeliver"), 404, "NOT_FOUND")
    running = await deployment.submit(callback_urls={"completed": "http://127.0.0.1:9/"})
    check_problem(await deployment.post(f"/v1/admin/webhooks/{running}:redeliver"), 409, "JOB_NOT_TERMINAL")


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "cursor=x", "cursor=DEAD%23", "cursor=%00"])
async def test_a_list_that_is_not_well_asked_for(deployment: Deployment, query: str) -> None:
    check_problem(await deployment.http.get(f"/v1/admin/webhooks/dead?{query}"), 422, "INVALID_REQUEST")


async def test_an_administrator_of_one_tenant_sees_that_tenants_alone(
    callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = await callers.open(LOCAL)
    async with receiver(lambda request: status_line(410)) as there:
        url = f"http://127.0.0.1:{there.port}/done"
        theirs = await ended(deployment, url, tenant_id="Other")
        ours = await ended(deployment, url, tenant_id="acme")

        async def dead() -> bool:
            return len((await deployment.http.get("/v1/admin/webhooks/dead")).json()["items"]) == 2

        await until(dead)
        admin = Principal(name="admin", roles=frozenset({Role.ADMIN}), tenants=frozenset({"acme"}))

        async def admit(*_: object) -> Principal:
            return admin

        monkeypatch.setattr(deployment.lucius.deployment.gate, "admit", admit)
        items = (await deployment.http.get("/v1/admin/webhooks/dead")).json()["items"]
        assert [item["jobId"] for item in items] == [ours]
        check_problem(await deployment.post(f"/v1/admin/webhooks/{theirs}:redeliver"), 404, "JOB_NOT_FOUND")


async def test_both_calls_are_for_administrators(callers: Callers) -> None:
    deployment = await callers.open({"LUCIUS_AUTH": "required"})
    check_problem(await deployment.http.get("/v1/admin/webhooks/dead"), 401, "UNAUTHENTICATED")
    check_problem(await deployment.post("/v1/admin/webhooks/job_x:redeliver"), 401, "UNAUTHENTICATED")


@pytest.mark.parametrize("name", ["LUCIUS_CALLBACK_ALLOW_HTTP", "LUCIUS_CALLBACK_ALLOW_PRIVATE"])
def test_what_opens_doors_is_closed_unless_said_plainly(name: str) -> None:
    closed = read_settings({})
    assert not closed.callback_http_allowed
    assert not closed.callback_private_allowed
    with pytest.raises(BadSetting, match=name):
        read_settings({name: "maybe"})
    assert read_settings({name: "false"}) == closed
    assert read_settings({name: "TRUE"}) != closed
