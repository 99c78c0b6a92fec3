"""Artifacts through the API: what is shown, to whom, and what is never opened."""

from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from PIL import Image
from tests.support.api_setup import Callers, Deployment, check_problem
from tests.support.auth_setup import guarded

from lucius.services.sample import sample_document

WEBP = b"RIFF\x04\x00\x00\x00WEBP"


def folder_of(directive: Any) -> Path:
    folder = Path(unquote(urlsplit(directive["workspace_ref"]["uri"]).path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Shown:
    """A job, its workspace, and what the API says of it."""

    def __init__(self, deployment: Deployment, job_id: str, directive: Any) -> None:
        self._http = deployment.http
        self.job_id = job_id
        self.workspace = directive["workspace_ref"]["uri"].rstrip("/")
        self.folder = folder_of(directive)

    def write(self, name: str, data: bytes) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return f"{self.workspace}/{name}"

    async def names(self) -> dict[str, str]:
        answer = await self._http.get(f"/v1/jobs/{self.job_id}/artifacts")
        assert answer.status_code == 200, answer.text
        return {item["uri"]: item["what"] for item in answer.json()["items"]}

    async def preview(self, uri: str, **more: Any) -> Any:
        params = {"uri": uri, **more}
        return await self._http.get(f"/v1/jobs/{self.job_id}/artifacts:preview", params=params)


@pytest.fixture
async def shown(deployment: Deployment) -> Shown:
    job_id = await deployment.submit(request_type="OCR")
    return Shown(deployment, job_id, await deployment.directive(job_id, "ocr"))


async def test_the_input_and_what_lies_in_the_workspace_is_named(shown: Shown) -> None:
    inputs = await shown.names()
    assert list(inputs.values()) == ["input"]
    uri = shown.write("ocr/1/output.txt", b"read")
    assert await shown.names() == {**inputs, uri: "artifact"}


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (b"a text", "text/plain; charset=utf-8"),
        (b'{"a": 1}', "text/plain; charset=utf-8"),
        (b"<html><script>alert(1)</script>", "text/plain; charset=utf-8"),
        (b"\x89PNG\r\n\x1a\nrest", "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (WEBP, "image/webp"),
    ],
)
async def test_bytes_say_what_an_artifact_is_and_no_browser_runs_it(
    shown: Shown, data: bytes, media_type: str
) -> None:
    answer = await shown.preview(shown.write("ocr/1/evil.html", data))
    assert (answer.status_code, answer.content) == (200, data)
    assert answer.headers["content-type"] == media_type
    assert answer.headers["content-security-policy"] == "sandbox; default-src 'none'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-disposition"] == "attachment"
    assert answer.headers["lucius-artifact-bytes"] == str(len(data))


async def test_a_page_of_a_pdf_is_a_picture(shown: Shown) -> None:
    uri = shown.write("ocr/1/letter.pdf", sample_document())
    answer = await shown.preview(uri)
    assert (answer.headers["content-type"], answer.headers["lucius-artifact-pages"]) == ("image/png", "1")
    with Image.open(BytesIO(answer.content)) as drawn:
        assert min(drawn.size) > 500
        assert len(drawn.getcolors(1_000) or ()) > 10  # there is something on it
    check_problem(await shown.preview(uri, page=2), 422, "INVALID_REQUEST")
    broken = shown.write("ocr/1/broken.pdf", b"%PDF-1.7\nnothing more")
    check_problem(await shown.preview(broken), 422, "INVALID_REQUEST")


async def test_only_the_beginning_of_a_long_text_is_shown(shown: Shown) -> None:
    answer = await shown.preview(shown.write("ocr/1/long.txt", "é".encode() * 200_000))
    assert answer.headers["lucius-artifact-cut"] == "true"
    assert (len(answer.content), answer.headers["lucius-artifact-bytes"]) == (256 * 1024, "400000")


async def test_what_is_too_large_unknown_or_gone_is_said(shown: Shown) -> None:
    large = shown.write("ocr/1/large.bin", b"a" * (8 * 1024 * 1024 + 1))
    check_problem(await shown.preview(large), 413, "BODY_TOO_LARGE")
    unknown = shown.write("ocr/1/unknown.bin", b"\x00\x01\x02")
    check_problem(await shown.preview(unknown), 422, "INVALID_REQUEST")
    check_problem(await shown.preview(f"{shown.workspace}/none.txt"), 404, "NOT_FOUND")


async def test_no_other_address_is_opened(shown: Shown, deployment: Deployment, tmp_path: Path) -> None:
    other = await deployment.submit(request_type="OCR", tenant_id="other")
    theirs = Shown(deployment, other, await deployment.directive(other, "ocr"))
    secret = theirs.write("ocr/1/secret.txt", b"secret")
    (shown.folder / "link.txt").symlink_to(theirs.folder / "ocr/1/secret.txt")
    outside = tmp_path / "outside.txt"
    outside.write_text("secret")
    (shown.folder / "out.txt").symlink_to(outside)
    for uri in (
        secret,
        f"{shown.workspace}/link.txt",
        f"{shown.workspace}/out.txt",
        f"{shown.workspace}/../../../lucius.db",
        f"{shown.workspace}/%2e%2e/x",
        f"{shown.workspace}",
        outside.as_uri(),
        "file:///etc/passwd",
        "https://example.com/x",
        "s3://elsewhere/x",
        "",
        "nothing",
    ):
        problem = check_problem(await shown.preview(uri), 422, "INVALID_REQUEST")
        assert "secret" not in str(problem), uri


async def test_a_result_counts_only_where_it_lies_in_the_workspace(deployment: Deployment) -> None:
    job_id = await deployment.submit(request_type="OCR")
    directive = await deployment.directive(job_id, "ocr")
    shown = Shown(deployment, job_id, directive)
    ref = {"uri": "file:///etc/hostname"}
    answer = await deployment.say(directive, "RESULT", output_ref=ref)
    assert answer.status_code in (200, 422)
    check_problem(await shown.preview(ref["uri"]), 422, "INVALID_REQUEST")


async def test_off_where_callers_need_a_credential_unless_a_setting_says_otherwise(callers: Callers) -> None:
    wanted: list[tuple[dict[str, str], int]] = [({}, 403), ({"LUCIUS_ARTIFACTS": "on"}, 200)]
    for more, status in wanted:
        house = await guarded(callers, more)
        admin = await house.holding("submit", "read", tenants=("acme",))
        job_id = await admin.submit(request_type="OCR", tenant_id="acme")
        answer = await admin.http.get(f"/v1/jobs/{job_id}/artifacts")
        assert answer.status_code == status
        stranger = await house.holding("read", tenants=("other",))
        answer = await stranger.http.get(f"/v1/jobs/{job_id}/artifacts")
        assert answer.status_code == 404
        submitter = await house.holding("submit", tenants=("acme",))
        assert (await submitter.http.get(f"/v1/jobs/{job_id}/artifacts")).status_code == 403
        assert (await house.caller(None).http.get(f"/v1/jobs/{job_id}/artifacts")).status_code == 401


async def test_off_by_setting_on_loopback(callers: Callers) -> None:
    deployment = await callers.open({"LUCIUS_ARTIFACTS": "off"})
    job_id = await deployment.submit(request_type="OCR")
    for path in ("artifacts", "artifacts:preview"):
        check_problem(await deployment.http.get(f"/v1/jobs/{job_id}/{path}"), 403, "FORBIDDEN")
