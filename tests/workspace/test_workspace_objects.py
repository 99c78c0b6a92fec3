"""The workspace on real folders, and on an object store that speaks S3 over loopback."""

import asyncio
import hashlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from lucius.workspace import (
    ArtifactExists,
    ArtifactNotAllowed,
    ArtifactNotFound,
    ArtifactTooLarge,
    ObjectWorkspace,
    Workspace,
    WorkspaceUnavailable,
    artifact_uri,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def workspace(root: Path) -> Workspace:
    return ObjectWorkspace([root], bytes_max=1000)


async def test_a_name_is_not_a_file_to_copy(workspace: Workspace, root: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("not for you")
    for data in (str(secret), secret):
        for write in (workspace.write, workspace.write_new):
            with pytest.raises(TypeError):
                await write((root / "x").as_uri(), data)  # type: ignore[arg-type]
    assert not (root / "x").exists()


def test_an_artifact_lies_below_its_attempt() -> None:
    assert artifact_uri("file:///w/job_1/", "OCR", 2, "output.txt") == "file:///w/job_1/ocr/2/output.txt"
    assert artifact_uri("s3://b/job_1", "SIS", 1, "a/b.json") == "s3://b/job_1/sis/1/a/b.json"


@pytest.mark.parametrize("name", ["", "../x", "/x", "a/../b", "a//b", ".hidden", "a b", "x" * 600, "a\n"])
def test_an_artifact_name_cannot_leave_its_folder(name: str) -> None:
    with pytest.raises(ArtifactNotAllowed):
        artifact_uri("file:///w", "OCR", 1, name)


@pytest.mark.parametrize(("step_type", "attempt_no"), [("", 1), ("../x", 1), ("OCR", 0)])
def test_an_artifact_needs_a_step_and_an_attempt(step_type: str, attempt_no: int) -> None:
    with pytest.raises(ArtifactNotAllowed):
        artifact_uri("file:///w", step_type, attempt_no, "x")


async def test_what_was_written_is_read(root: Path, workspace: Workspace) -> None:
    uri = (root / "a" / "b.txt").as_uri()
    await workspace.write_new(uri, b"one")
    assert await workspace.read(uri) == b"one"
    assert (root / "a" / "b.txt").read_bytes() == b"one"


async def test_a_uri_is_decoded_once(root: Path, workspace: Workspace) -> None:
    uri = (root / "a b%20ü.txt").as_uri()
    await workspace.write(uri, b"x")
    assert [path.name for path in root.iterdir()] == ["a b%20ü.txt"]
    assert await workspace.read(uri) == b"x"


async def test_a_new_object_is_never_replaced(root: Path, workspace: Workspace) -> None:
    uri = (root / "x").as_uri()
    await workspace.write_new(uri, b"one")
    await workspace.write_new(uri, b"one")
    with pytest.raises(ArtifactExists):
        await workspace.write_new(uri, b"two")
    assert await workspace.read(uri) == b"one"


async def test_of_many_creators_one_wins(root: Path, workspace: Workspace) -> None:
    uri = (root / "race").as_uri()
    bodies = [b"%d" % number for number in range(20)]
    ends = await asyncio.gather(*(workspace.write_new(uri, body) for body in bodies), return_exceptions=True)
    assert sum(end is None for end in ends) == 1
    assert all(end is None or isinstance(end, ArtifactExists) for end in ends)
    assert await workspace.read(uri) == bodies[ends.index(None)]


async def test_output_is_replaced_and_leaves_nothing_beside_it(root: Path, workspace: Workspace) -> None:
    uri = (root / "out.json").as_uri()
    await workspace.write(uri, b"one")
    await workspace.write(uri, b"two")
    assert await workspace.read(uri) == b"two"
    assert [path.name for path in root.iterdir()] == ["out.json"]


async def test_a_missing_file_and_a_folder_are_not_there(root: Path, workspace: Workspace) -> None:
    (root / "folder").mkdir()
    for name in ("nothing", "folder"):
        with pytest.raises(ArtifactNotFound):
            await workspace.read((root / name).as_uri())


async def test_size_is_bounded_both_ways(root: Path, workspace: Workspace) -> None:
    (root / "big").write_bytes(b"x" * 1001)
    with pytest.raises(ArtifactTooLarge):
        await workspace.read((root / "big").as_uri())
    with pytest.raises(ArtifactTooLarge):
        await workspace.write((root / "new").as_uri(), b"x" * 1001)
    assert not (root / "new").exists()


async def test_nothing_outside_the_roots_is_read_or_written(tmp_path: Path, workspace: Workspace) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "root2").mkdir()
    (tmp_path / "root2" / "s").write_bytes(b"secret")
    root = tmp_path / "root"
    (root / "link").symlink_to(tmp_path)
    (root / "direct").symlink_to(tmp_path / "secret")
    outside = [
        (tmp_path / "secret").as_uri(),
        (tmp_path / "root2" / "s").as_uri(),
        root.as_uri() + "/../secret",
        root.as_uri() + "/%2e%2e/secret",
        root.as_uri() + "/link/secret",
        root.as_uri() + "/direct",
        root.as_uri(),
        root.as_uri() + "/%00",
        root.as_uri() + "/x?y",
        "file://elsewhere" + str(root / "x"),
        str(root / "x"),
    ]
    for uri in outside:
        with pytest.raises(ArtifactNotAllowed):
            await workspace.read(uri)
        with pytest.raises(ArtifactNotAllowed):
            await workspace.write(uri, b"spoiled")
        with pytest.raises(ArtifactNotAllowed):
            await workspace.write_new(uri, b"spoiled")
    assert (tmp_path / "secret").read_bytes() == b"secret"


async def test_a_link_inside_the_roots_is_followed(root: Path, workspace: Workspace) -> None:
    (root / "real").mkdir()
    (root / "real" / "x").write_bytes(b"x")
    (root / "link").symlink_to(root / "real")
    assert await workspace.read((root / "link" / "x").as_uri()) == b"x"


async def test_lucius_own_files_are_nobody_elses(tmp_path: Path) -> None:
    workspace = ObjectWorkspace([tmp_path], data=tmp_path)
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "callback-keys.json").write_text("secret")
    (tmp_path / "link").symlink_to(tmp_path / "keys")
    (tmp_path / "lucius.db").write_text("the ledger")
    for name in ("keys/callback-keys.json", "link/callback-keys.json", "lucius.db", "storage"):
        uri = (tmp_path / name).as_uri()
        with pytest.raises(ArtifactNotAllowed):
            await workspace.read(uri)
        with pytest.raises(ArtifactNotAllowed):
            await workspace.write(uri, b"EVIL")
    assert (tmp_path / "lucius.db").read_text() == "the ledger"
    await workspace.write((tmp_path / "workspace" / "lucius" / "acme" / "x").as_uri(), b"fine")


async def test_without_roots_no_file_is_open(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    with pytest.raises(ArtifactNotAllowed):
        await ObjectWorkspace().read((tmp_path / "x").as_uri())


async def test_a_scheme_that_nothing_serves_is_not_allowed(workspace: Workspace) -> None:
    for uri in ("https://example.com/x", "ftp://example.com/x"):
        with pytest.raises(ArtifactNotAllowed):
            await workspace.read(uri)
    with pytest.raises(ArtifactNotAllowed):
        await ObjectWorkspace(cloud_schemes=frozenset()).read("s3://bucket/x")


@pytest.mark.parametrize(
    "uri", ["s3://", "s3://bucket", "s3://bucket/", "s3://bucket/a/../b", "s3://bucket//a"]
)
async def test_a_cloud_uri_names_one_object(uri: str) -> None:
    with pytest.raises(ArtifactNotAllowed):
        await ObjectWorkspace().read(uri)


class ObjectServer:
    """As much of S3 as the workspace uses: get, put, put-if-absent."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            event = await receive()
            body += event.get("body", b"")
            more = event.get("more_body", False)
        status, answer = self._answer(scope, body)
        headers = [
            (b"etag", b'"' + hashlib.md5(answer or body).hexdigest().encode() + b'"'),
            (b"last-modified", b"Sun, 01 Nov 2026 10:00:00 GMT"),
            (b"content-length", str(len(answer)).encode()),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    def _answer(self, scope: Any, body: bytes) -> tuple[int, bytes]:
        path = scope["path"]
        if scope["method"] == "GET":
            return (200, self.objects[path]) if path in self.objects else (404, b"")
        if dict(scope["headers"]).get(b"if-none-match") == b"*" and path in self.objects:
            return 412, b""
        self.objects[path] = body
        return 200, b""


@pytest.fixture
async def objects(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ObjectServer]:
    app = ObjectServer()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        _point_s3_at(monkeypatch, listener.getsockname()[1])
        while not server.started:
            await asyncio.sleep(0.01)
        yield app
        server.should_exit = True
        await serving


def _point_s3_at(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "something")


async def test_the_same_rules_hold_on_an_object_store(objects: ObjectServer) -> None:
    workspace = ObjectWorkspace()
    uri = "s3://bucket/job_1/ocr/1/output.txt"
    with pytest.raises(ArtifactNotFound):
        await workspace.read(uri)
    await workspace.write_new(uri, b"one")
    await workspace.write_new(uri, b"one")
    with pytest.raises(ArtifactExists):
        await workspace.write_new(uri, b"two")
    assert objects.objects == {"/bucket/job_1/ocr/1/output.txt": b"one"}
    await workspace.write(uri, b"two")
    assert await workspace.read(uri) == b"two"


async def test_a_store_that_is_down_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        _point_s3_at(monkeypatch, closed.getsockname()[1])
        workspace = ObjectWorkspace(retries_max=0, timeout_seconds=2)
        with pytest.raises(WorkspaceUnavailable) as fault:
            await workspace.read("s3://bucket/x")
        with pytest.raises(WorkspaceUnavailable):
            await workspace.write("s3://bucket/x", b"x")
    assert "127.0.0.1" not in str(fault.value)
