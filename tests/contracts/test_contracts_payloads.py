"""Bounds on payloads, and members that look like credentials."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lucius.contracts.payload_limits import DEPTH_MAX, ERRORS_MAX, KEYS_MAX, payload_problems


def pointers(payload: Any) -> set[str]:
    return {error.pointer for error in payload_problems(payload, "/payload")}


def nested(levels: int) -> Any:
    value: Any = {}
    for index in range(levels - 1):
        value = {"a": value} if index % 2 else [value]
    return value


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "Password",
        "PASSWD",
        "db_password",
        "smtpPassword",
        "secret",
        "client_secret",
        "clientSecret",
        "CLIENT-SECRET",
        "api_key",
        "apikey",
        "apiKey",
        "X-API-Key",
        "openai_api_key",
        "access_key",
        "aws_access_key",
        "secret_key",
        "AWS_SECRET_ACCESS_KEY",
        "private_key",
        "access_token",
        "refresh_token",
        "auth_token",
        "bearer",
        "Authorization",
        "connection_string",
        "ConnectionString",
        "sas_token",
        "account_key",
        "AccountKey",
        "credentials",
        "pwd",
        "passphrase",
        "session_token",
    ],
)
def test_credentials_are_refused(name: str) -> None:
    (error,) = payload_problems({"ocr": [{"x": {name: "hunter2"}}]}, "/payload")
    assert error.pointer == f"/payload/ocr/0/x/{name}"
    assert "hunter2" not in error.message


@pytest.mark.parametrize(
    "name",
    [
        "max_tokens",
        "token_count",
        "tokenizer",
        "prompt_tokens",
        "tokens",
        "token_limit",
        "language",
        "key",
        "keys",
        "primary_key",
        "public_key",
        "keywords",
        "author",
        "authority",
        "secretary",
        "password_policy_url",
        "passwordless",
        "pass",
        "bypass",
        "access",
        "accessibility",
        "sort_key",
        "private",
        "secret_santa",
        "credential_type",
    ],
)
def test_ordinary_names_pass(name: str) -> None:
    assert payload_problems({name: "x"}, "/payload") == ()


def test_names_are_escaped_in_pointers() -> None:
    assert pointers({"a/b": {"~": {"password": 1}}}) == {"/payload/a~1b/~0/password"}


def test_depth() -> None:
    assert payload_problems(nested(DEPTH_MAX), "/payload") == ()
    (error,) = payload_problems(nested(DEPTH_MAX + 1), "/payload")
    assert error.pointer.count("/") == DEPTH_MAX + 1
    assert payload_problems(nested(5000), "/payload")


def test_depth_is_told_once() -> None:
    assert len(payload_problems([nested(DEPTH_MAX)] * 10, "/payload")) == 1


def test_keys() -> None:
    assert payload_problems({str(index): index for index in range(KEYS_MAX)}, "/payload") == ()
    assert pointers({str(index): index for index in range(KEYS_MAX + 1)}) == {"/payload"}
    spread = [{"a": 1, "b": 2} for _ in range(KEYS_MAX // 2)]
    assert pointers({"list": spread}) == {"/payload"}


def test_the_number_of_errors_is_bounded() -> None:
    assert len(payload_problems([{"password": 1}] * 500, "/payload")) <= ERRORS_MAX + 1


@pytest.mark.parametrize("payload", [{}, [], None, "password", 5])
def test_nothing_to_say(payload: Any) -> None:
    assert payload_problems(payload, "/payload") == ()


def _at(document: Any, pointer: str) -> Any:
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        document = document[int(name)] if isinstance(document, list) else document[name]
    return document


names = st.sampled_from(["a", "b/c", "~", "password", "api_key", "", "0"])


@given(
    st.recursive(
        st.integers(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
        max_leaves=20,
    )
)
def test_every_pointer_leads_somewhere(payload: Any) -> None:
    for error in payload_problems(payload, ""):
        _at(payload, error.pointer)
        assert error.pointer.endswith(("password", "api_key"))
