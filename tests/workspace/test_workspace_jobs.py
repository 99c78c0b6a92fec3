"""Whole jobs whose documents, workspace and results lie in Blob Storage, in S3 or in a folder elsewhere."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import httpx2
import pytest
from tests.support.object_servers import (
    azurite_blob,
    blob_connection,
    create_bucket,
    create_container,
    moto_s3,
)

from lucius.api.app import make_app
from lucius.assembly import open_embedded
from lucius.assembly.wiring import make_workspace
from lucius.services import REFERENCE_SERVICES
from lucius.settings import BadSetting, read_settings
from lucius.workspace import WorkspaceUnavailable

pytestmark = pytest.mark.xdist_group("object_servers")

WAIT_SECONDS = 30
LETTER = b"Dear Ms Vane,\nthe harbour office opens at nine.\n"


@pytest.fixture(scope="module")
def blob_port() -> Iterator[int]:
    with azurite_blob() as port:
        create_container(port, "documents")
        yield port


@pytest.fixture(scope="module")
def s3_port() -> Iterator[int]:
    with moto_s3() as port:
        create_bucket(port, "documents")
        yield port


@pytest.fixture(params=["blob", "s3", "file"])
def env(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    if request.param == "blob":
        connection = blob_connection(request.getfixturevalue("blob_port"))
        return {"LUCIUS_BLOB_CONNECTION": connection, "LUCIUS_WORKSPACE_ROOT": "az://documents/work"}
    if request.param == "file":
        root = (tmp_path / "else where").as_uri()
        return {"LUCIUS_WORKSPACE_ROOT": root, "LUCIUS_REF_FILE_ROOTS": str(tmp_path / "else where")}
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{request.getfixturevalue('s3_port')}")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "something")
    return {"LUCIUS_WORKSPACE_ROOT": "s3://documents/work"}


async def test_a_job_from_document_to_result(env: dict[str, str], tmp_path: Path) -> None:
    settings, data = read_settings(env), tmp_path / "data"
    root = env["LUCIUS_WORKSPACE_ROOT"]
    workspace = make_workspace(settings, data)
    await workspace.write(f"{root}/in/letter.txt", LETTER)
    lucius = await open_embedded(
        settings, storage="ledger", data=data, base_url="http://house", protocols=None
    )
    try:
        await lucius.start(dict(REFERENCE_SERVICES))
        transport = httpx2.ASGITransport(make_app(lucius.deployment))
        async with httpx2.AsyncClient(transport=transport, base_url="http://house") as client:
            command = {
                "tenant_id": "Acme Ltd",
                "request_type": "OCR_EMBEDDING",
                "input_ref": {"uri": f"{root}/in/letter.txt"},
                "output_ref": {"uri": f"{root}/out/result.json"},
                "payload": {},
                "schema_version": "1",
            }
            made = await client.post("/v1/orchestrate", json=command)
            assert made.status_code == 202, made.text
            where = made.headers["location"]
            job = (await client.get(f"{where}?wait={WAIT_SECONDS}", timeout=WAIT_SECONDS + 10)).json()
    finally:
        await lucius.stop()
    assert job["state"] == "SUCCEEDED", json.dumps(job["steps"], indent=1)
    prefix = f"{root}/lucius/acme%20ltd/{job['jobId']}/"
    assert job["steps"][0]["workspace_ref"]["uri"] == prefix
    assert b"harbour office" in await workspace.read(f"{prefix}ocr/1/output.txt")
    assert await workspace.read(f"{root}/out/result.json")


async def test_a_workspace_of_its_own_needs_no_reference_root(tmp_path: Path) -> None:
    root = (tmp_path / "w").as_uri()
    workspace = make_workspace(read_settings({"LUCIUS_WORKSPACE_ROOT": root}), tmp_path / "data")
    await workspace.write_new(f"{root}/lucius/acme/job_1/ocr/1/x", b"x")
    assert (tmp_path / "w" / "lucius" / "acme" / "job_1" / "ocr" / "1" / "x").read_bytes() == b"x"


async def test_an_account_without_a_key_is_opened_by_who_we_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readline()).decode())
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setenv("IDENTITY_ENDPOINT", f"http://127.0.0.1:{port}/token")
        monkeypatch.setenv("IDENTITY_HEADER", "canary-5c0ffee")
        env = {
            "LUCIUS_BLOB_CONNECTION": "https://own.blob.core.windows.net",
            "LUCIUS_AZURE_IDENTITY": "managed",
        }
        workspace = make_workspace(read_settings(env), tmp_path)
        with pytest.raises(WorkspaceUnavailable) as fault:
            await workspace.read("az://documents/x")
    assert "resource=https://storage.azure.com" in unquote(asked[0])
    assert "5c0ffee" not in str(fault.value)


@pytest.mark.parametrize(
    "root",
    ["somewhere", "/a/folder", "ftp://host/x", "az://", "file:w", "az://c/x?sig=5c0ffee", "s3://a:5c0ffee@b"],
)
def test_a_root_that_nothing_serves_is_refused(root: str) -> None:
    with pytest.raises(BadSetting, match="LUCIUS_WORKSPACE_ROOT") as fault:
        read_settings({"LUCIUS_WORKSPACE_ROOT": root})
    assert "5c0ffee" not in str(fault.value)


def test_an_account_that_cannot_be_read_is_refused_and_never_shown() -> None:
    with pytest.raises(BadSetting, match="LUCIUS_BLOB_CONNECTION") as fault:
        read_settings({"LUCIUS_BLOB_CONNECTION": "AccountName=a;AccountKey=5c0ffee-"})
    assert "5c0ffee" not in str(fault.value)
    settings = read_settings({"LUCIUS_BLOB_CONNECTION": "AccountName=a;AccountKey=5c0ffeea"})
    assert "5c0ffee" not in repr(settings)
