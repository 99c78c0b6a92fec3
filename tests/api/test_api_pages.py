"""Lists in pieces: the same document as in one, and a page that ends sooner where it cannot be read on."""

import asyncio
from collections.abc import AsyncIterator

import httpx2
import pytest
from tests.support.api_setup import Deployment
from tests.support.sse_client import served

from lucius.api.pages import PIECE_BYTES
from lucius.ledger.rows import Loaded
from lucius.ledger.store import StoreUnavailable

JOBS = 40
LARGE_REF = {"uri": "s3://in/1", "note": "x" * 20_000}
FIRST_LOADS = 12  # more than one piece needs, less than all


@pytest.fixture
async def listed(
    deployment: "Deployment",
) -> AsyncIterator[tuple["Deployment", httpx2.AsyncClient, list[str]]]:
    made = [await deployment.submit(input_ref=LARGE_REF) for _ in range(JOBS)]
    async with (
        served(deployment.lucius) as url,
        httpx2.AsyncClient(base_url=url, timeout=20) as client,
    ):
        yield deployment, client, made[::-1]


Listed = tuple["Deployment", httpx2.AsyncClient, list[str]]


async def test_a_list_in_pieces_is_one_document(listed: Listed) -> None:
    _, client, made = listed
    whole = await client.get(f"/v1/jobs?limit={JOBS}")
    assert len(whole.content) > 2 * PIECE_BYTES
    assert "content-length" not in whole.headers
    assert whole.headers["content-type"] == "application/json"
    assert [job["jobId"] for job in whole.json()["items"]] == made
    part = (await client.get(f"/v1/jobs?limit={JOBS - 5}")).json()
    rest = (await client.get(f"/v1/jobs?cursor={part['next_cursor']}")).json()
    assert [job["jobId"] for job in part["items"] + rest["items"]] == made
    small = await client.get("/v1/jobs?limit=2")
    assert int(small.headers["content-length"]) == len(small.content)


async def test_an_old_client_gets_it_in_one(listed: Listed) -> None:
    _, client, made = listed
    reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    writer.write(f"GET /v1/jobs?limit={JOBS} HTTP/1.0\r\nhost: localhost\r\n\r\n".encode())
    head, _, body = (await asyncio.wait_for(reader.read(-1), 20)).partition(b"\r\n\r\n")
    writer.close()
    assert f"content-length: {len(body)}" in head.decode().lower()
    assert body.count(b'"jobId"') == len(made)


async def test_a_page_ends_sooner_where_the_ledger_fails(
    listed: Listed, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment, client, made = listed
    ledger = deployment.lucius.deployment.ledger
    load, loads = ledger.load, 0

    async def failing(job_id: str, *, fresh: bool = False) -> Loaded | None:
        nonlocal loads
        loads += 1
        if loads > FIRST_LOADS:
            raise StoreUnavailable("gone")
        return await load(job_id, fresh=fresh)

    monkeypatch.setattr(ledger, "load", failing)
    page = (await client.get(f"/v1/jobs?limit={JOBS}")).json()
    assert 0 < len(page["items"]) < JOBS
    assert (await client.get("/v1/jobs")).status_code == 503, "before the first piece it says so"
    monkeypatch.setattr(ledger, "load", load)
    rest = (await client.get(f"/v1/jobs?limit={JOBS}&cursor={page['next_cursor']}")).json()
    assert [job["jobId"] for job in page["items"] + rest["items"]] == made
