"""The ledger read by other programs while Lucius runs: `sqlite3`, and Microsoft's library for tables; and the
artifacts of a job by another library for blobs."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from obstore.store import AzureStore
from tests.journeys.conftest import Launch
from tests.journeys.harness import Lucius
from tests.journeys.temporal_fleet import arguments_of
from tests.support.api_setup import envelope, until

from lucius_lab.emulators.azurite import connection_string

SAMPLE_SECONDS_MAX = 120
COMMAND = {
    "request_type": "OCR→EMBEDDING",
    "tenant_id": "Zürich",
    "doc_id": "Straße 7",
    "idempotency_key": "größe",
}

# Nothing of Lucius is imported: the table's name is in docs/guides/azure.md.
QUERY = """
import json, sys
from azure.data.tables import TableClient

connection, query = sys.argv[1:]
table = TableClient.from_connection_string(connection, "luciusZluciusZ0ledger")
print(json.dumps([dict(entity) for entity in table.query_entities(query)], default=str))
"""

Rows = list[dict[str, Any]]
Ask = Callable[[str], Rows]


async def _submit(lucius: Lucius) -> str:
    async with httpx2.AsyncClient(base_url=lucius.url, timeout=60) as client:
        answer = await client.post("/v1/orchestrate", content=json.dumps(envelope(**COMMAND)))
        assert answer.status_code == 202, answer.text
        return str(answer.json()["jobId"])


async def _found(ask: Ask, query: str) -> Rows:
    """The rows, once there are any."""
    found: Rows = []

    async def there() -> bool:
        nonlocal found
        found = await asyncio.to_thread(ask, query)
        return bool(found)

    await until(there, seconds=SAMPLE_SECONDS_MAX)
    return found


@pytest.fixture
def azure(launch: Launch) -> Iterator[Lucius]:
    lucius = launch("--profile", "azure-local", "--services", "all", "--sample", env={"LUCIUS_AUTH": "open"})
    yield lucius
    note = json.loads((lucius.data / "azurite" / "process.json").read_bytes())
    lucius.stop()
    if str(lucius.data) in arguments_of(note["pid"]):
        os.kill(note["pid"], signal.SIGKILL)


@pytest.mark.xdist_group("azure-local")
@pytest.mark.timeout(600)
async def test_microsofts_library_finds_jobs_by_what_they_are(azure: Lucius) -> None:
    note = json.loads((azure.data / "azurite" / "process.json").read_bytes())

    def ask(query: str) -> Rows:
        address = connection_string(note["port"], note["key"])
        done = subprocess.run(
            [sys.executable, "-I", "-c", QUERY, address, query], capture_output=True, check=True, timeout=60
        )
        return list(json.loads(done.stdout))

    job_id = await _submit(azure)
    (job,) = await _found(ask, "tenant_id eq 'Zürich'")
    assert (job["job_id"], job["request_type"], job["doc_id"]) == (job_id, "OCR→EMBEDDING", "Straße 7")
    assert "OCR→EMBEDDING" in job["Body"] and "Zürich" in job["Body"]
    (sample,) = await _found(ask, "state eq 'SUCCEEDED' and tenant_id eq 'sample'")
    assert sample["request_type"] == "OCR_EMBEDDING_SIS" and sample["final_output"].endswith("result.json")
    await _artifacts_are_blobs(note, sample["job_id"])


async def _artifacts_are_blobs(note: dict[str, Any], job_id: str) -> None:
    """What OCR, EMBEDDING and SIS made, in the container of the account, and nowhere else."""
    endpoint = f"http://127.0.0.1:{note['blob_port']}/devstoreaccount1"
    store = AzureStore(
        "workspace",
        account_name="devstoreaccount1",
        account_key=note["key"],
        endpoint=endpoint,
        client_options={"allow_http": True},
    )
    folder = f"lucius/sample/{job_id}"
    blobs = {blob["path"]: blob["size"] for chunk in store.list(folder) for blob in chunk}
    assert set(blobs) == {
        f"{folder}/ocr/1/output.txt",
        f"{folder}/embedding/1/vectors.json",
        f"{folder}/sis/1/result.json",
    }
    assert all(blobs.values())
    result = json.loads(bytes((await store.get_async(f"{folder}/sis/1/result.json")).bytes()))
    assert result["answers"][0]["answer"]


@pytest.mark.timeout(600)
async def test_sqlite3_finds_jobs_by_what_they_are(launch: Launch, tmp_path: Path) -> None:
    lucius = launch("--services", "all", "--sample", env={"LUCIUS_AUTH": "open"})
    program = shutil.which("sqlite3")
    assert program is not None

    def ask(query: str) -> Rows:
        asked = [program, "-json", str(lucius.data / "lucius.db"), query]
        done = subprocess.run(asked, capture_output=True, check=True, timeout=60)
        return list(json.loads(done.stdout or "[]"))

    job_id = await _submit(lucius)
    (job,) = await _found(ask, "select * from jobs where tenant_id = 'Zürich'")
    assert (job["job_id"], job["request_type"], job["doc_id"]) == (job_id, "OCR→EMBEDDING", "Straße 7")
    (sample,) = await _found(ask, "select * from jobs where state = 'SUCCEEDED' and tenant_id = 'sample'")
    assert sample["request_type"] == "OCR_EMBEDDING_SIS" and sample["final_output"].endswith("result.json")
    counted = await _found(ask, "select state, count(*) as jobs from jobs group by 1")
    assert sum(row["jobs"] for row in counted) == 2
    joined = "from outbox o join jobs j on j.job_id = o.jobId where j.tenant_id = 'sample'"
    outbox = await _found(ask, f"select o.topic, o.state, o.payload {joined}")
    assert [row["state"] for row in outbox] == ["SENT"] * 3
    assert all(json.loads(row["payload"])["tenant_id"] == "sample" for row in outbox)
    assert all("callback_token" not in row["payload"] for row in outbox)
    assert lucius.stop() == 0
