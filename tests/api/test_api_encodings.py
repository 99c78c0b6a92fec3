"""A body that is encoded is told so, at every door; only a plain one is read."""

import gzip
import json

import pytest
from tests.support.api_document import Document
from tests.support.api_setup import Deployment, check_problem, envelope, reply_to

from lucius.api import openapi
from lucius.api.bodies import ENVELOPE_BYTES_MAX


async def test_every_call_with_a_body_names_the_encoding_that_it_does_not_read(
    deployment: "Deployment",
) -> None:
    job_id = await deployment.submit()
    directive = await deployment.directive(job_id, "ocr")
    schedule = {"schedule_id": "nightly", "command": envelope(), "cron": "0 3 * * *"}
    assert (await deployment.post("/v1/schedules", schedule)).status_code == 201
    said = {"authorization": f"Bearer {directive['callback_token']}", "content-encoding": "GZip"}
    document = Document(openapi.document())
    asked = 0
    client = deployment.http
    for method, path, operation in document.operations():
        if "requestBody" not in operation:
            continue
        asked += 1
        where = path.replace("{jobId}", job_id).replace("{scheduleId}", "nightly")
        response = await client.request(method, where, content=gzip.compress(b"{}"), headers=said)
        detail = check_problem(response, 415, "UNSUPPORTED_ENCODING")["detail"]
        assert "gzip" in detail and "plain JSON" in detail, path
        assert response.headers["accept-encoding"] == "identity"
        document.check(response)
    assert asked >= 9
    assert await deployment.step_states(job_id) == ["INITIATED"]


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ([("content-encoding", "br")], "br"),
        ([("content-encoding", "identity, deflate")], "deflate"),
        ([("content-encoding", "identity"), ("content-encoding", "gzip")], "gzip"),
        ([("content-encoding", "x" * 5_000)], "x" * 40),
    ],
)
async def test_an_encoding_is_named_however_it_is_said(
    deployment: "Deployment", headers: list[tuple[str, str]], named: str
) -> None:
    client = deployment.http
    for size in (1, ENVELOPE_BYTES_MAX + 1):
        response = await client.post("/v1/orchestrate", content=b"x" * size, headers=headers)
        detail = check_problem(response, 415, "UNSUPPORTED_ENCODING")["detail"]
        assert detail.startswith(f"a body encoded as {named} is")


@pytest.mark.parametrize("encoding", ["identity", "Identity", "", " , identity"])
async def test_a_body_that_is_said_to_be_plain_is_read(deployment: "Deployment", encoding: str) -> None:
    client = deployment.http
    content = json.dumps(envelope())
    headers = {"content-encoding": encoding}
    assert (await client.post("/v1/orchestrate", content=content, headers=headers)).status_code == 202


async def test_no_body_has_no_encoding(deployment: "Deployment") -> None:
    job_id = await deployment.submit()
    await deployment.finish(job_id, "ocr", status="FAILED_FINAL")
    response = await deployment.post(f"/v1/jobs/{job_id}:rerun", content_encoding="gzip")
    assert response.status_code == 202, response.text


async def test_gzip_that_does_not_say_so_is_recognised(deployment: "Deployment") -> None:
    directive = await deployment.directive(await deployment.submit(), "ocr")
    said = {"authorization": f"Bearer {directive['callback_token']}"}
    sent = {
        "/v1/orchestrate": envelope(),
        "/v1/orchestrate:batch": {"commands": [envelope()]},
        "/v1/orchestrate:plan": envelope(),
        "/v1/callbacks/ack": reply_to(directive, "ACK"),
    }
    client = deployment.http
    for path, body in sent.items():
        content = gzip.compress(json.dumps(body).encode())
        response = await client.post(path, content=content, headers=said)
        assert "looks like gzip" in check_problem(response, 400, "MALFORMED_JSON")["detail"], path
