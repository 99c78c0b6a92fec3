"""Asking over HTTP whether an attempt still counts."""

import json
from typing import Any

import pytest
from tests.sdk.test_sdk_http_transport import Orchestrator, serving
from tests.support.sdk_bus_setup import message

from lucius.sdk import DeliveryFailed, Directive, ReplyAnswer, parse_directive
from lucius.sdk.http_transport import HttpAttemptCheck

CURRENT = {"current": True, "stop": False, "reason": None}
CANCELLING = {"current": True, "stop": True, "reason": "the job is being cancelled"}
OVER = {"current": False, "stop": True, "reason": "another attempt"}


class AttemptServer(Orchestrator):
    def __init__(self, status: int, answer: Any) -> None:
        super().__init__()
        self.status = status
        self.raw = json.dumps(answer).encode()
        self.questions: list[tuple[str, str, str]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        token = dict(scope["headers"])[b"authorization"].decode()
        self.questions.append((scope["method"], scope["path"], token))
        length = [(b"content-length", str(len(self.raw)).encode())]
        await send({"type": "http.response.start", "status": self.status, "headers": length})
        await send({"type": "http.response.body", "body": self.raw})


def a_directive(base: str) -> Directive:
    urls = {"ack": f"{base}/v1/callbacks/ack"} if base else {}
    parsed = parse_directive(message(callback_urls=urls, callback_token="the token"))
    assert parsed is not None
    return parsed


@pytest.mark.parametrize(
    ("answer", "means"),
    [
        (CURRENT, ReplyAnswer("sent")),
        (CANCELLING, ReplyAnswer("sent", stop=True)),
        (OVER, ReplyAnswer("stale", stop=True)),
    ],
)
async def test_what_the_orchestrator_says(answer: dict[str, Any], means: ReplyAnswer) -> None:
    server = AttemptServer(200, answer)
    async with serving(server) as port, HttpAttemptCheck() as ask:
        assert await ask(a_directive(f"http://127.0.0.1:{port}")) == means
    assert server.questions == [("GET", "/v1/callbacks/attempt", "Bearer the token")]


@pytest.mark.parametrize(("status", "answer"), [(503, CURRENT), (404, OVER), (200, ["odd"])])
async def test_an_answer_that_says_nothing_is_no_answer(status: int, answer: Any) -> None:
    async with serving(AttemptServer(status, answer)) as port, HttpAttemptCheck() as ask:
        with pytest.raises(DeliveryFailed, match="no answer says"):
            await ask(a_directive(f"http://127.0.0.1:{port}"))


@pytest.mark.parametrize("base", ["", "http://127.0.0.1:1", "http://[", "nowhere:"])
async def test_an_address_that_leads_nowhere_is_no_answer(base: str) -> None:
    async with HttpAttemptCheck() as ask:
        with pytest.raises(DeliveryFailed):
            await ask(a_directive(base))
