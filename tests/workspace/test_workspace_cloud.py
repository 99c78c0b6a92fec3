"""The workspace on Azurite's Blob service and on S3 as moto speaks it: the same rules as in a folder."""

import asyncio
import base64
import logging
import socket
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from tests.support.object_servers import (
    azurite_blob,
    blob_connection,
    create_bucket,
    create_container,
    moto_s3,
)

from lucius.jobs.new_job import workspace_uri
from lucius.workspace import (
    ArtifactExists,
    ArtifactNotAllowed,
    ArtifactNotFound,
    ArtifactTooLarge,
    BlobAccount,
    BlobToken,
    ObjectWorkspace,
    WorkspaceUnavailable,
    artifact_uri,
    blob_account_of,
)

pytestmark = pytest.mark.xdist_group("object_servers")

CANARY = "canary-5c0ffee"
CONTAINER = "container"


@pytest.fixture(scope="module")
def blob_port() -> Iterator[int]:
    with azurite_blob() as port:
        create_container(port, CONTAINER)
        yield port


@pytest.fixture(scope="module")
def s3_port() -> Iterator[int]:
    with moto_s3() as port:
        create_bucket(port, CONTAINER)
        yield port


def point_s3_at(monkeypatch: pytest.MonkeyPatch, port: int, secret: str = "something") -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)


class Place:
    """Where objects are kept, and a root in it that is one test's own."""

    def __init__(self, root: str, **options: Any) -> None:
        self.root = root
        self._options = options

    def workspace(self, bytes_max: int = 1000) -> ObjectWorkspace:
        return ObjectWorkspace(bytes_max=bytes_max, retries_max=0, timeout_seconds=20, **self._options)


@pytest.fixture(params=["blob", "s3", "file"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Place:
    name = f"{request.node.name.partition('[')[0]}-{time.monotonic_ns()}"
    if request.param == "file":
        return Place((tmp_path / name).as_uri(), roots=[tmp_path])
    if request.param == "s3":
        point_s3_at(monkeypatch, request.getfixturevalue("s3_port"))
        return Place(f"s3://{CONTAINER}/{name}")
    account = blob_account_of(blob_connection(request.getfixturevalue("blob_port")))
    return Place(f"az://{CONTAINER}/{name}", blob=account)


async def test_what_is_new_is_never_replaced(place: Place) -> None:
    workspace, root = place.workspace(), place.root
    uri = f"{root}/job_1/ocr/1/output.txt"
    with pytest.raises(ArtifactNotFound):
        await workspace.read(uri)
    await workspace.write_new(uri, b"one")
    await workspace.write_new(uri, b"one")
    with pytest.raises(ArtifactExists):
        await workspace.write_new(uri, b"two")
    assert await workspace.read(uri) == b"one"
    await workspace.write(uri, b"two")
    assert await workspace.read(uri) == b"two"


async def test_what_lies_in_a_folder_is_listed_and_removed(place: Place) -> None:
    workspace, root = place.workspace(), place.root
    assert (await workspace.below(f"{root}/a", 10), await workspace.folders(f"{root}/a")) == ([], [])
    for name in ("a/1/x", "a/1/y", "a/2/z", "b/3/x"):
        await workspace.write(f"{root}/{name}", b"x")
    assert sorted(await workspace.below(f"{root}/a", 10)) == ["1/x", "1/y", "2/z"]
    assert len(await workspace.below(f"{root}/a", 2)) == 2
    assert sorted(await workspace.folders(f"{root}/a")) == ["1", "2"]
    await workspace.remove([f"{root}/a/1/x", f"{root}/a/2/z", f"{root}/a/nothing"])
    assert await workspace.below(f"{root}/a", 10) == ["1/y"]


async def test_size_is_bounded_both_ways(place: Place) -> None:
    workspace, root = place.workspace(), place.root
    with pytest.raises(ArtifactTooLarge):
        await workspace.write(f"{root}/x", b"x" * 1001)
    with pytest.raises(ArtifactNotFound):
        await workspace.read(f"{root}/x")
    await workspace.write(f"{root}/x", b"x" * 1000)
    assert await workspace.read(f"{root}/x") == b"x" * 1000
    with pytest.raises(ArtifactTooLarge):
        await place.workspace(bytes_max=999).read(f"{root}/x")


@pytest.mark.parametrize("tenant", ["acme", "a b", "a/b", "%2e%2e", "größe", "a'b\"c", "..a"])
async def test_each_tenant_has_a_prefix_of_its_own(place: Place, tenant: str) -> None:
    workspace, root = place.workspace(), place.root
    uris = [
        artifact_uri(workspace_uri(root, name, "job_1"), "OCR", 1, "output.txt")
        for name in (tenant, f"{tenant}2", "b")
    ]
    for number, uri in enumerate(uris):
        await workspace.write_new(uri, b"%d" % number)
    assert [await workspace.read(uri) for uri in uris] == [b"0", b"1", b"2"]


async def test_of_many_creators_one_wins_on_blob(blob_port: int) -> None:
    workspace = ObjectWorkspace(blob=blob_account_of(blob_connection(blob_port)))
    uri = f"az://{CONTAINER}/race-{time.monotonic_ns()}"
    bodies = [b"%d" % number for number in range(20)]
    ends = await asyncio.gather(*(workspace.write_new(uri, body) for body in bodies), return_exceptions=True)
    assert sum(end is None for end in ends) == 1
    assert all(end is None or isinstance(end, ArtifactExists) for end in ends)
    assert await workspace.read(uri) == bodies[ends.index(None)]


async def test_one_object_has_several_names_on_blob(blob_port: int) -> None:
    workspace = ObjectWorkspace(blob=blob_account_of(blob_connection(blob_port)))
    key = f"names-{time.monotonic_ns()}/a b"
    await workspace.write_new(f"az://{CONTAINER}/{key}", b"x")
    endpoint = f"http://127.0.0.1:{blob_port}/devstoreaccount1"
    for uri in (
        f"{endpoint}/{CONTAINER}/{key.replace(' ', '%20')}",
        f"abfs://{CONTAINER}/{key}",
        f"abfss://{CONTAINER}@devstoreaccount1.dfs.core.windows.net/{key}",
        f"https://devstoreaccount1.blob.core.windows.net/{CONTAINER}/{key.replace(' ', '%20')}",
    ):
        assert await workspace.read(uri) == b"x", uri


@pytest.mark.parametrize(
    "uri",
    [
        "https://a.blob.core.windows.net/container",
        "https://a.blob.core.windows.net/container/",
        "https://a.blob.core.windows.net//x",
        "https://a.blob.core.windows.net/container/a/%2e%2e/b",
        "https://a.blob.core.windows.net/container%2Fx/b",
        "https://a.blob.core.windows.net/container/x?sig=secret",
        "https://a.blob.core.windows.net/container/x#y",
        "az://container/../x",
        "az://container",
    ],
)
async def test_a_blob_uri_names_one_object_and_holds_no_signature(uri: str) -> None:
    workspace = ObjectWorkspace(blob=blob_account_of("https://a.blob.core.windows.net"))
    with pytest.raises(ArtifactNotAllowed):
        await workspace.read(uri)


@pytest.mark.parametrize(
    "uri",
    [
        "https://example.com/container/x",
        "http://a.blob.core.windows.net/container/x",
        "https://a.blob.core.windows.net.example.com/container/x",
        "https://a.blob.core.windows.net:8443/container/x",
        "https://a.blob.core.windows.net@example.com/container/x",
    ],
)
async def test_https_leads_to_azure_storage_only(uri: str) -> None:
    workspace = ObjectWorkspace(blob=blob_account_of("https://a.blob.core.windows.net"))
    with pytest.raises(ArtifactNotAllowed, match="no store serves this web address") as fault:
        await workspace.read(uri)
    told = str(fault.value)
    assert "https where it leads to Azure Storage (https://ACCOUNT.blob.core.windows.net/…)" in told
    assert "example.com" not in told


@pytest.mark.parametrize(
    ("uri", "schemes", "served"),
    [
        ("ftp://host/x", frozenset({"s3", "gs"}), "gs, s3, file"),
        ("https://host/x", frozenset({"s3"}), "s3, file"),
        ("az://c/x", frozenset(), "file"),
    ],
)
async def test_what_is_not_served_is_told_beside_what_is(
    tmp_path: Path, uri: str, schemes: frozenset[str], served: str
) -> None:
    workspace = ObjectWorkspace([tmp_path], cloud_schemes=schemes)
    with pytest.raises(ArtifactNotAllowed, match=f"; served are {served}$"):
        await workspace.read(uri)


async def test_a_place_to_write_that_is_not_there_is_unavailable(
    blob_port: int, s3_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    point_s3_at(monkeypatch, s3_port)
    workspace = ObjectWorkspace(blob=blob_account_of(blob_connection(blob_port)), retries_max=0)
    for uri in ("az://nowhere/x", "s3://nowhere/x"):
        with pytest.raises(WorkspaceUnavailable, match="is not there"):
            await workspace.write_new(uri, b"x")


class TokenServer:
    """As much of Blob as a read with a token needs."""

    def __init__(self) -> None:
        self.authorizations: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.authorizations.append(headers.get("authorization", ""))
        told = [
            (b"content-length", b"1"),
            (b"etag", b'"1"'),
            (b"last-modified", b"Sun, 01 Nov 2026 10:00:00 GMT"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": told})
        await send({"type": "http.response.body", "body": b"x"})


@pytest.fixture
async def token_server() -> AsyncIterator[tuple[TokenServer, int]]:
    app = TokenServer()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        config = uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        yield app, listener.getsockname()[1]
        server.should_exit = True
        await task


async def test_an_identity_opens_an_account_with_a_token(token_server: tuple[TokenServer, int]) -> None:
    app, port = token_server
    asked = 0

    async def tokens() -> BlobToken:
        nonlocal asked
        asked += 1
        return {"token": "token-of-ours", "expires_at": datetime.now(UTC) + timedelta(hours=1)}

    account = BlobAccount(name="own", endpoint=f"http://127.0.0.1:{port}/own")
    workspace = ObjectWorkspace(blob=account, tokens=tokens, retries_max=0)
    assert await workspace.read("az://container/a") == b"x"
    assert await workspace.read("az://container/b") == b"x"
    assert app.authorizations == ["Bearer token-of-ours"] * 2
    assert asked == 1


async def test_no_secret_reaches_a_log_or_a_text(
    blob_port: int,
    s3_port: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: Any,
) -> None:
    key = base64.b64encode(CANARY.encode()).decode()
    shown: list[str] = []
    point_s3_at(monkeypatch, 1, secret=CANARY)
    connections = [blob_connection(blob_port, key), blob_connection(1, key)]
    signed = f"AccountName=own;SharedAccessSignature=sv=1&sig={CANARY};BlobEndpoint=http://127.0.0.1:1/own"

    async def no_token() -> BlobToken:
        raise RuntimeError(CANARY)

    with caplog.at_level(logging.DEBUG):
        for text in (*connections, signed):
            account = blob_account_of(text)
            workspace = ObjectWorkspace(blob=account, retries_max=0, timeout_seconds=5)
            shown += [repr(account), repr(workspace)]
            for uri in (f"az://{CONTAINER}/x", f"s3://{CONTAINER}/x"):
                shown += await _faults(workspace, uri)
        account = BlobAccount(name="own", endpoint="http://127.0.0.1:1/own")
        workspace = ObjectWorkspace(blob=account, tokens=no_token, retries_max=0, timeout_seconds=5)
        shown += await _faults(workspace, f"az://{CONTAINER}/x")
    out, err = capfd.readouterr()
    everything = "\n".join([*shown, caplog.text, out, err])
    assert CANARY not in everything
    assert key not in everything
    assert "127.0.0.1" not in "\n".join(shown)


async def _faults(workspace: ObjectWorkspace, uri: str) -> list[str]:
    texts = []
    for fault in await asyncio.gather(
        workspace.read(uri), workspace.write(uri, b"x"), return_exceptions=True
    ):
        assert isinstance(fault, WorkspaceUnavailable), fault
        assert fault.__suppress_context__
        texts += [str(fault), repr(fault)]
    return texts


@pytest.mark.parametrize(
    ("text", "name", "endpoint"),
    [
        ("https://acct.blob.core.windows.net/", "acct", "https://acct.blob.core.windows.net"),
        ("AccountName=acct;AccountKey=a2V5", "acct", "https://acct.blob.core.windows.net"),
        (
            "DefaultEndpointsProtocol=https;AccountName=acct;AccountKey=a2V5;EndpointSuffix=core.chinacloudapi.cn",
            "acct",
            "https://acct.blob.core.chinacloudapi.cn",
        ),
        (
            "BlobEndpoint=https://acct.blob.core.windows.net/;SharedAccessSignature=?sv=1&sig=x",
            "acct",
            "https://acct.blob.core.windows.net",
        ),
        ("UseDevelopmentStorage=true;", "devstoreaccount1", "http://127.0.0.1:10000/devstoreaccount1"),
    ],
)
def test_an_account_is_read_from_what_the_portal_shows(text: str, name: str, endpoint: str) -> None:
    account = blob_account_of(text)
    assert account is not None
    assert (account.name, account.endpoint) == (name, endpoint)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "acct",
        "https://example.com",
        "https://acct.blob.core.windows.net/container",
        "AccountName=acct",
        "AccountName=acct;AccountKey=not base64",
        "AccountKey=a2V5",
        "AccountName=acct;AccountKey=a2V5;SharedAccessSignature=x",
        "AccountName=acct;AccountKey=a2V5;BlobEndpoint=ftp://x",
    ],
)
def test_what_is_no_account_is_refused(text: str) -> None:
    assert blob_account_of(text) is None
