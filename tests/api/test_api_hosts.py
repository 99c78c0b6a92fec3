"""A process without authentication: which names it is called by, and which pages may call it."""

from typing import Any

import pytest
from tests.support.api_setup import Callers, Deployment, check_problem, envelope
from tests.support.auth_setup import guarded

from lucius.api.routes import ROUTES
from lucius.contracts.keys import Role

PUBLIC = {"LUCIUS_PUBLIC_URL": "https://Lucius.Example.com:8443/base"}
STRANGERS = (
    "evil.example",
    "evil.example:8420",
    "EVIL.example.",
    "127.0.0.1.evil.example",
    "127.0.0.1.nip.io:8420",
    "localhost.evil.example",
    "notlocalhost.example",
    "lucius.local",
    "lucius.example.com",
    "[::1].evil.example",
    "evil.example@localhost",
    "evil.example:80:80",
    "evil%2eexample",
    "evil.example#.localhost",
)


@pytest.mark.parametrize("host", STRANGERS)
async def test_a_page_whose_name_leads_to_this_machine_reads_nothing(
    deployment: Deployment, host: str
) -> None:
    """To its browser it is of the same origin: a GET carries no Origin, or word of where it is from."""
    response = await deployment.http.get("/v1/jobs", headers={"host": host})
    check_problem(response, 403, "FORBIDDEN")
    detail = response.json()["detail"]
    assert "LUCIUS_PUBLIC_URL" in detail and "LUCIUS_AUTH=required" in detail


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:8420",
        "127.8.9.10",
        "127.1:8420",
        "[::1]:8420",
        "[::1]",
        "localhost:8420",
        "LOCALHOST.",
        "lucius.localhost:8420",
        "lucius",
        "lucius-api:8420",
        "192.168.1.20:8420",
        "[fd00::20]:8420",
    ],
)
async def test_whoever_names_this_machine_or_an_address_is_let_in(deployment: Deployment, host: str) -> None:
    assert (await deployment.http.get("/v1/jobs", headers={"host": host})).status_code == 200
    # A browser that shows a page of this process itself: the console.
    own = {"host": host, "origin": f"http://{host}"}
    assert (
        await deployment.http.post("/v1/orchestrate:plan", json=envelope(), headers=own)
    ).status_code == 200


async def test_every_route_with_a_role_looks_at_the_name(deployment: Deployment) -> None:
    job_id = await deployment.submit()
    elsewhere = {"host": "evil.example"}
    guarded_routes = [route for route in ROUTES if isinstance(route.access, Role)]
    assert len(guarded_routes) > 20
    for route in guarded_routes:
        path = route.path.format(job_id=job_id, protocol_id="ocr_v1", key_id="x", schedule_id="nightly")
        response = await deployment.http.request(route.methods[0], path, content=b"{}", headers=elsewhere)
        check_problem(response, 403, "FORBIDDEN")
    assert (await deployment.http.get("/v1/jobs")).json()["items"][0]["jobId"] == job_id


@pytest.mark.parametrize("host", ["lucius.example.com", "lucius.example.com:8443", "LUCIUS.example.com."])
async def test_the_public_address_is_a_name_of_the_deployment(callers: Callers, host: str) -> None:
    deployment = await callers.open(PUBLIC)
    assert (await deployment.http.get("/v1/jobs", headers={"host": host})).status_code == 200
    page = {"origin": "https://lucius.example.com:8443"}  # what stands in front may name another host
    for headers in (page, {**page, "host": host}):
        response = await deployment.http.post("/v1/orchestrate", json=envelope(), headers=headers)
        assert response.status_code == 202
    for stranger in ("evil.example", "a.lucius.example.com", "example.com"):
        response = await deployment.http.get("/v1/jobs", headers={"host": stranger})
        check_problem(response, 403, "FORBIDDEN")


async def test_probes_come_from_anywhere(deployment: Deployment) -> None:
    for path in ("/livez", "/readyz"):
        assert (
            await deployment.http.get(path, headers={"host": "lucius.svc.cluster.local"})
        ).status_code == 200
    await deployment.submit(tenant_id="secretive")
    figures = await deployment.http.get("/metrics", headers={"host": "evil.example"})
    assert figures.status_code == 200
    assert "secretive" not in figures.text


async def test_with_authentication_the_name_does_not_matter(callers: Callers) -> None:
    """A page from elsewhere has no key."""
    deployment = await guarded(callers)
    reader = await deployment.holding("read")
    assert (await reader.http.get("/v1/jobs", headers={"host": "evil.example"})).status_code == 200


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "null",
        "",
        "http://127.0.0.1.evil.example",
        "http://[",
        "http://",
        "http://printer",
        "http://192.168.1.66",
        "http://house:99",
        "file://localhost",
        "chrome-extension://abcdefgh",
    ],
)
async def test_pages_of_another_origin_are_turned_away(deployment: Deployment, origin: str) -> None:
    """An address or a name without a dot says whom a call goes to, not whose page it comes from."""
    response = await deployment.http.post("/v1/orchestrate", json=envelope(), headers={"origin": origin})
    check_problem(response, 403, "FORBIDDEN")
    assert (await deployment.http.get("/v1/jobs")).json()["items"] == []


@pytest.mark.parametrize(
    "origin", ["http://127.0.0.1:8420", "http://localhost:3000", "http://[::1]:1", "https://a.localhost"]
)
async def test_pages_of_this_machine_are_let_in(deployment: Deployment, origin: str) -> None:
    headers: dict[str, Any] = {"origin": origin, "sec-fetch-site": "same-site"}
    response = await deployment.http.post("/v1/orchestrate", json=envelope(), headers=headers)
    assert response.status_code == 202
