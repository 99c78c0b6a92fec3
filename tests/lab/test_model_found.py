"""What the model, the fuzzer and the description found once, each in as few words as it takes."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.lab.model_api import ModelledApi

from lucius.core.routing import lane_of
from lucius.ledger.job_ledger import LayoutName


@pytest.fixture
def api() -> Iterator[ModelledApi]:
    api = ModelledApi(LayoutName.LEDGER, spans=True)
    yield api
    api.close()


def submit(api: ModelledApi, tenant: str, number: int) -> str:
    document: dict[str, Any] = {
        "tenant_id": tenant,
        "request_type": "OCR",
        "input_ref": {"uri": f"s3://in/{number}"},
        "output_ref": {"uri": "s3://out/x"},
        "payload": {},
        "schema_version": "1",
    }
    answer = api.ask("POST", "/v1/orchestrate", api.root, document)
    assert answer.status == 202, answer.body
    return str(answer.json()["jobId"])


def lease(api: ModelledApi, most: int) -> list[str]:
    answer = api.ask("POST", "/v1/directives:lease", api.root, {"service": "ocr", "max": most})
    return [directive["jobId"] for directive in answer.json()["directives"]]


def test_a_row_that_a_full_hand_left_behind_is_found_by_the_next(api: ModelledApi) -> None:
    """Rows claimed on an earlier lane made the look at a later one seem complete when it was not."""
    early, late = sorted(("acme", "globex"), key=lane_of)
    assert lane_of(early) < lane_of(late)
    jobs = {submit(api, tenant, number) for number, tenant in enumerate((early, early, late, late))}
    taken = lease(api, 3)
    assert len(taken) == 3
    assert set(taken + lease(api, 1)) == jobs


@pytest.mark.parametrize("path", ["/v1/protocols/", "/v1/jobs/", "/livez/"])
def test_a_slash_too_many_is_refused_and_not_redirected(api: ModelledApi, path: str) -> None:
    answer = api.ask("GET", path, api.root)
    assert (answer.status, answer.json()["code"]) == (404, "NOT_FOUND")
    assert "location" not in answer.headers


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/jobs/job_1:cancel", "POST"),
        ("/v1/jobs/job_1:explain", "GET"),
        ("/v1/jobs/job_1", "GET"),
        ("/v1/admin/keys", "GET, POST"),
        ("/v1/orchestrate", "POST"),
    ],
)
def test_a_wrong_method_is_told_the_right_ones(api: ModelledApi, path: str, allowed: str) -> None:
    answer = api.ask("DELETE", path, api.root)
    assert (answer.status, answer.json()["code"]) == (405, "METHOD_NOT_ALLOWED")
    assert answer.headers["allow"] == allowed


@pytest.mark.parametrize(
    ("method", "path", "key", "status"),
    [
        ("GET", "/v1/jobs", "lk_unknown", 401),
        ("DELETE", "/v1/protocols", None, 405),
        ("GET", "/v1/protocols", None, 200),
        ("GET", "/nowhere", None, 404),
    ],
)
def test_a_query_that_is_not_utf8_is_answered_like_any_other(
    api: ModelledApi, method: str, path: str, key: str | None, status: int
) -> None:
    headers = [(b"authorization", f"Bearer {key or api.root}".encode())]
    answer = api.run(api.deployment.request(method, path, headers=headers, query=b"a=\xff"))
    assert answer.status == status
