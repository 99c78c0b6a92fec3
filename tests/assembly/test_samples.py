"""The example of every protocol that is built in: accepted as it is, and done by the reference services."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
from tests.support.api_setup import Caller

from lucius.api.app import make_app
from lucius.assembly import open_embedded
from lucius.services import REFERENCE_SERVICES
from lucius.settings import read_settings


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Caller]:
    lucius = await open_embedded(
        read_settings({}), storage="ledger", data=folder / "data", base_url="http://house", protocols=None
    )
    await lucius.start(REFERENCE_SERVICES)
    try:
        transport = httpx2.ASGITransport(make_app(lucius.deployment), raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://house", timeout=90) as client:
            yield Caller(client)
    finally:
        await lucius.stop()


async def test_the_example_of_every_built_in_protocol_works(tmp_path: Path) -> None:
    made: dict[str, str] = {}
    async with opened(tmp_path) as caller:
        for protocol in (await caller.http.get("/v1/protocols")).json()["items"]:
            name = protocol["protocol_id"]
            example = (await caller.http.get(f"/v1/protocols/{name}")).json()["example"]
            accepted = await caller.post("/v1/orchestrate", example)
            assert accepted.status_code == 202, (name, accepted.text)
            made[name] = accepted.json()["jobId"]
        assert len(made) >= 6
        for name, job_id in made.items():
            job = await caller.job(job_id, wait=60)
            assert (job["state"], job["attempts_total"]) == ("SUCCEEDED", len(job["steps"])), (name, job)


async def test_where_no_sample_can_be_written_there_is_no_example(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "sample").write_text("in the way")
    async with opened(tmp_path) as caller:
        for _ in range(2):
            assert (await caller.http.get("/v1/protocols/ocr_v1")).json()["example"] is None
        (tmp_path / "data" / "sample").unlink()
        assert (await caller.http.get("/v1/protocols/ocr_v1")).json()["example"] is not None
