"""Secrets in what services, libraries and people write: known by their shape, in time that grows with the
text and no faster."""

import time
from typing import Any, Final

import pytest

from lucius.contracts.credentials import BLANK, blank_credentials, holds_credentials, uri_holds_credentials
from lucius.contracts.messages import parse_reply
from lucius.core.inputs import Progress, Result
from lucius.core.refusal import Refused
from lucius.telemetry.logs import blank_text

# Put together here, so that no scanner takes them for real ones.
LONG: Final = "0aB1cD2eF3gH4iJ5kL6mN7oP8qR9sT0uV1wX2yZ3"
SECRETS: Final = {
    "GitHub": f"ghp_{LONG[:36]}",
    "GitHub app": f"ghs_{LONG[:36]}",
    "GitHub, fine-grained": f"github_pat_{LONG[:22]}_{LONG}",
    "GitLab": f"glpat-{LONG[:20]}",
    "OpenAI": f"sk-{LONG}",
    "OpenAI project": f"sk-proj-{LONG[:20]}_{LONG[:10]}",
    "Anthropic": f"sk-ant-api03-{LONG}",
    "Stripe": f"sk_live_{LONG[:24]}",
    "AWS": "AKIA" + "IOSFODNN7EXAMPLE",
    "AWS session": "ASIA" + "IOSFODNN7EXAMPLE",
    "Slack bot": f"xoxb-123456789012-{LONG[:24]}",
    "Slack user": f"xoxp-123456789012-{LONG[:24]}",
    "Google": f"AIza{LONG[:35]}",
    "Google OAuth": f"ya29.{LONG}",
    "npm": f"npm_{LONG[:36]}",
    "Hugging Face": f"hf_{LONG[:34]}",
    "PyPI": f"pypi-{LONG}",
    "SendGrid": f"SG.{LONG[:22]}.{LONG}",
    "signed token": f"eyJ{LONG}.eyJ{LONG}.{LONG}",
    "encrypted token": f"eyJ{LONG}.{LONG}.{LONG}.{LONG}.{LONG}",
    "private key": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{LONG}\n-----END OPENSSH PRIVATE KEY-----",
    "private key, cut": f"-----BEGIN PRIVATE KEY-----\n{LONG}",
    "SAS": f"sig={LONG}%3D",
    "connection string": f"AccountKey={LONG}==",
    "Service Bus": f"SharedAccessKey={LONG}=",
}
HARMLESS: Final = (
    "task-force, risk-averse, ask-me-anything, desk-lamp",
    "Asia and asian markets, AKIA",
    "the page eyJunk is empty",
    "eyJhbGciOiJIUzI1NiJ9 is no token by itself",
    "sk-1, ghp_short, xoxo, hf_hub, npm_config, pypi-server",
    "github_patch failed; signature=none? no: sig=x",
    "s3://bucket/ghost/aizawa.pdf",
)
CHARS: Final = 60_000
SECONDS_MAX: Final = 2.0  # each takes some milliseconds; a quadratic form took minutes


@pytest.mark.parametrize("kind", SECRETS)
def test_a_secret_in_the_words_of_a_service_reaches_no_event_and_no_log(kind: str) -> None:
    secret = SECRETS[kind]
    text = f"POST https://api.example/v1 failed ({secret}) with 401"
    head = {"jobId": "job_1", "stepId": "step_01", "tenant_id": "acme", "attempt_no": 1, "lease_id": "l1"}
    head["timestamp"] = "2026-01-02T03:04:05Z"
    error = {"code": secret, "message": text, "more": [text]}
    failed = told({**head, "type": "RESULT", "status": "FAILED_FINAL", "error": error, text: text})
    assert isinstance(failed, Result)
    noted = told({**head, "type": "PROGRESS", "progress": 3, "note": text})
    assert isinstance(noted, Progress)
    kept: list[Any] = [failed.error_code, failed.error_message, failed.content(), noted.note, noted.content()]
    kept.append(blank_text(text))
    assert LONG[:16] not in repr(kept) and "IOSFODNN7EXAMPLE" not in repr(kept)
    assert (failed.error_message or "").startswith(f"POST https://api.example/v1 failed ({BLANK}")
    assert holds_credentials(text)


def told(document: dict[str, Any]) -> Any:
    read = parse_reply(document, expected=None)
    assert not isinstance(read, Refused), read
    return read[1]


@pytest.mark.parametrize("text", HARMLESS)
def test_words_stay(text: str) -> None:
    assert blank_credentials(text) == text == blank_text(text)
    assert not holds_credentials(text)


@pytest.mark.parametrize("kind", ["GitHub", "GitHub, fine-grained", "GitLab", "Slack bot", "Google"])
def test_a_reference_does_not_carry_them(kind: str) -> None:
    assert uri_holds_credentials(f"https://git.example/{SECRETS[kind]}/x.pdf")
    assert not uri_holds_credentials("https://git.example/ghp_1/AIza/xoxb-1/glpat-x.pdf")


@pytest.mark.parametrize(
    "piece",
    [
        *(
            "a-",
            "eyJ-",
            "eyJaaaaa.,",
            "password ",
            "password:",
            "password=",
            'password="',
            "x-api-key",
            "secret-",
        ),
        *("bearer ", "basic ", "basic", "://a:", "a@", "-----BEGIN ", "-----BEGIN PRIVATE KEY-----", "sk-"),
        *("sk-a ", "ghp_", "xoxb-", "lk_a", "sig=", "SG.", "AKIA", "A", " ", "key: ", "whsec_"),
    ],
)
def test_no_text_takes_longer_than_its_length_allows(piece: str) -> None:
    """A service may say what it likes, and the server reads it in the loop that serves everybody."""
    text = f"{piece * (CHARS // len(piece))} key token @"
    for judge in (blank_credentials, holds_credentials, blank_text):
        began = time.perf_counter()
        judge(text)
        assert time.perf_counter() - began < SECONDS_MAX, judge


def test_a_reply_that_cannot_be_read_is_still_refused() -> None:
    assert isinstance(parse_reply({"type": "RESULT", "error": SECRETS["GitHub"]}, expected="RESULT"), Refused)
