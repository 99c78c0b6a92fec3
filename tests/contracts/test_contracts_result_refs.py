"""Where a result lies is said without what opens the door to it."""

from typing import Any

import pytest

from lucius.contracts.messages import parse_reply
from lucius.core.inputs import Result
from lucius.core.refusal import Code, Refused

TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJqb2IiOiJqb2JfMSJ9.c2lnbmF0dXJl"
HEAD = {
    "jobId": "job_123",
    "stepId": "step_01",
    "tenant_id": "tenant_a",
    "attempt_no": 1,
    "lease_id": "9a7c",
    "timestamp": "2026-01-27T10:02:00Z",
}


@pytest.mark.parametrize(
    "uri",
    [
        "s3://user:hunter2@a/b",
        "s3://a/b?sig=hunter2",
        "s3://user:hunter2@a/b?sig=abc",
        "https://hunter2@store/b",
        "abfs://c:hunter2@account/b",
        "https://store/b?X-Amz-Signature=hunter2&x=1",
        "https://store/b#access_token=hunter2",
        "https://store/b%3Fsig%3Dhunter2",
        "https://store/b?a=1&%73ig=hunter2",
        "az://c/AccountKey=hunter2",
        f"https://store/{TOKEN}",
        f"https://store/b?t={TOKEN}",
        f"https://store/lk_abc_{'hunter2' * 4}",
        "user:pw?token=hunter2",
        "jdbc:postgresql://user:hunter2@db/x",
        "https://h/p?u=https://user:hunter2@h/",
        "https://h/p?u=https%3A%2F%2Fuser:hunter2@h/",
        "//user:hunter2@h/p",
        "Bearer hunter2hunter2hunter2",
    ],
)
@pytest.mark.parametrize("status", ["SUCCEEDED", "FAILED_RETRY"])
def test_credentials_in_a_uri_are_refused_and_not_repeated(uri: str, status: str) -> None:
    refused = parse_reply(_result({"uri": uri}, status), expected="RESULT")
    assert isinstance(refused, Refused) and refused.code is Code.INVALID_ENVELOPE
    assert [error.pointer for error in refused.errors] == ["/output_ref/uri"]
    assert not any(secret in str(refused) for secret in ("hunter2", TOKEN, "sig=abc"))


@pytest.mark.parametrize(
    ("more", "pointer"),
    [
        ({"password": "hunter2"}, "/output_ref/password"),
        ({"token": "hunter2"}, "/output_ref/token"),
        ({"open": {"with": [{"apiKey": "hunter2"}]}}, "/output_ref/open"),
        ({"note": "GET https://u:hunter2@h/ gave 403"}, "/output_ref/note"),
        ({"password=hunter2": 1}, "/output_ref/***"),
    ],
)
def test_credentials_beside_a_uri_are_refused_and_not_repeated(more: dict[str, Any], pointer: str) -> None:
    refused = parse_reply(_result({"uri": "s3://a/b", **more}), expected="RESULT")
    assert isinstance(refused, Refused)
    assert [error.pointer for error in refused.errors] == [pointer]
    assert "hunter2" not in str(refused)


@pytest.mark.parametrize(
    "ref",
    [
        {"uri": "s3://a/b"},
        {"uri": "abfs://container@account.dfs.core.windows.net/b"},
        {"uri": "https://store:8443/b?versionId=3&max_tokens=5"},
        {"uri": "s3://a/secret=santa/passwords/lk_walk_1.json"},
        {"uri": "s3://a/50%25/%zz"},
        {"uri": "s3://a/b:c@d/e"},
        {"uri": "s3://a/b", "mirror": {"uri": "s3://a/year=1/secret=santa/lk_walk_1.json"}},
        {"uri": "s3://a/b", "etag": '"0x8D"', "tokens": 12, "pages": [{"size": 1}], "none": None},
    ],
)
def test_what_only_looks_like_it_is_taken(ref: dict[str, Any]) -> None:
    parsed = parse_reply(_result(ref), expected="RESULT")
    assert isinstance(parsed, tuple)
    result = parsed[1]
    assert isinstance(result, Result)
    assert result.output_ref == result.content()["output_ref"] == ref


def test_a_name_without_a_secret_below_it_is_taken() -> None:
    ref = {"uri": "s3://a/b", "has_password": False, "token": None, "secret": ""}
    parsed = parse_reply(_result(ref), expected="RESULT")
    assert isinstance(parsed, tuple)
    assert isinstance(parsed[1], Result) and parsed[1].output_ref == ref


@pytest.mark.parametrize("kind", ["ACK", "PROGRESS"])
def test_a_reference_where_none_belongs_is_no_hiding_place(kind: str) -> None:
    doc = {"type": kind, **HEAD, "output_ref": {"uri": "s3://user:hunter2@a/b?sig=hunter2"}}
    parsed = parse_reply(doc, expected=kind)
    assert isinstance(parsed, tuple)
    content = parsed[1].content()
    assert content["output_ref"] == {"uri": "s3://***@a/b?***"}


def _result(ref: dict[str, Any], status: str = "SUCCEEDED") -> dict[str, Any]:
    return {"type": "RESULT", **HEAD, "status": status, "output_ref": ref}


# What was made beside it.

PAGES: list[dict[str, Any]] = [{"uri": "s3://w/page-1.png", "page": 1}, {"uri": "s3://w/page-2.png"}]


def _made(output_ref: Any, artifacts: Any) -> Any:
    return parse_reply({**_result(output_ref, "SUCCEEDED"), "artifacts": artifacts}, expected="RESULT")


def test_artifacts_are_kept_with_the_reference_and_in_evidence() -> None:
    reply = _made({"uri": "s3://w/text"}, PAGES)[1]
    assert reply.output_ref == {"uri": "s3://w/text", "artifacts": PAGES}
    content = reply.content()
    assert content["output_ref"] == reply.output_ref and "artifacts" not in content


def test_the_first_artifact_stands_for_a_reference_that_is_not_there() -> None:
    assert _made(None, PAGES)[1].output_ref == {**PAGES[0], "artifacts": PAGES}
    assert _made({"uri": "s3://w/text"}, [])[1].output_ref == {"uri": "s3://w/text"}
    assert _made({"uri": "s3://w/text"}, None)[1].output_ref == {"uri": "s3://w/text"}


@pytest.mark.parametrize(
    ("artifacts", "pointer"),
    [
        ({"uri": "s3://w/x"}, "/artifacts"),
        ("s3://w/x", "/artifacts"),
        ([{"uri": "s3://w/x"}] * 33, "/artifacts"),
        (["s3://w/x"], "/artifacts/0"),
        ([{"uri": "s3://w/x"}, {"name": "x"}], "/artifacts/1/uri"),
        ([{"uri": f"s3://w/{'x' * 300}/{number}"} for number in range(16)], "/artifacts"),
        ([{"uri": "https://store/b?sig=hunter2"}], "/artifacts/0/uri"),
        ([{"uri": "s3://w/x", "token": "hunter2"}], "/artifacts/0/token"),
    ],
)
def test_artifacts_that_cannot_be_kept_are_refused(artifacts: Any, pointer: str) -> None:
    refused = _made({"uri": "s3://w/text"}, artifacts)
    assert isinstance(refused, Refused) and [error.pointer for error in refused.errors] == [pointer]
    assert "hunter2" not in str(refused)
