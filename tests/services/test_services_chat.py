"""SIS with an OpenAI-compatible endpoint: a real server on a loopback port that answers, errs and hangs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.support.services_setup import Bench
from tests.support.webhook_receiver import Received, receiver, status_line

from lucius.sdk import Final, Retryable, Stopped
from lucius.services.chat import ChatEndpoint
from lucius.services.sis import make_sis

KEY = "sk-very-secret-0815"
SHAPE = {
    "type": "object",
    "properties": {"metres": {"type": "integer"}},
    "required": ["metres"],
    "additionalProperties": False,
}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path.resolve())
    (made.folder / "input").write_text("The tower is 41 metres high. It was built of granite.")
    return made


def said(text: Any) -> bytes:
    """A chat completion."""
    return raw(json.dumps({"choices": [{"index": 0, "message": {"role": "assistant", "content": text}}]}))


def raw(body: str, status: int = 200) -> bytes:
    content = body.encode()
    return b"HTTP/1.1 %d Said\r\ncontent-length: %d\r\n\r\n%s" % (status, len(content), content)


def one_after_the_other(*answers: bytes | None) -> Callable[[Received], bytes | None]:
    left = list(answers)
    return lambda request: left.pop(0) if len(left) > 1 else left[0]


async def ask(
    bench: Bench, *answers: bytes | None, timeout_seconds: float = 20, **payload: Any
) -> tuple[list[dict[str, Any]], list[Received]]:
    async with receiver(one_after_the_other(*answers)) as there:
        endpoint = ChatEndpoint(
            f"http://127.0.0.1:{there.port}/v1",
            model="small",
            api_key=KEY,
            timeout_seconds=timeout_seconds,
            pause_seconds=0.001,
        )
        try:
            await bench.run(make_sis(endpoint), "SIS", payload={"prompt": "How high?", **payload})
        finally:
            bench.received = there.received
    return bench.answers(), there.received


def body_of(request: Received) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(request.body)
    return body


async def test_the_model_is_asked_with_excerpts_and_answers(bench: Bench) -> None:
    answers, (request,) = await ask(bench, said(" The tower is 41 metres high. "))
    assert answers[0]["answer"] == "The tower is 41 metres high."
    assert answers[0]["sources"][0]["chunk"] == 0
    assert json.loads((bench.folder / "output").read_bytes())["model"] == "small"
    assert (request.path, request.headers["authorization"]) == ("/v1/chat/completions", f"Bearer {KEY}")
    body = body_of(request)
    assert (body["model"], "response_format" in body) == ("small", False)
    assert "[1] The tower is 41 metres high." in body["messages"][1]["content"]
    assert "Question: How high?" in body["messages"][1]["content"]


async def test_a_prompt_that_is_near_to_nothing_is_asked_with_the_opening(bench: Bench) -> None:
    answers, (request,) = await ask(bench, said("It does not say."), prompt="Zebras?")
    assert answers[0]["answer"] == "It does not say."
    assert "41 metres" in body_of(request)["messages"][1]["content"]


async def test_an_empty_document_is_not_asked_about(bench: Bench) -> None:
    (bench.folder / "input").write_text(" \n")
    answers, received = await ask(bench, said("Something made up."))
    assert (answers[0]["answer"], received) == ("", [])


async def test_a_shape_is_asked_for_and_checked(bench: Bench) -> None:
    answers, (request,) = await ask(bench, said('```json\n{"metres": 41}\n```'), output_schema=SHAPE)
    assert answers[0]["data"] == {"metres": 41}
    body = body_of(request)
    assert body["response_format"]["json_schema"]["schema"] == SHAPE
    assert json.dumps(SHAPE, separators=(",", ":")) in body["messages"][1]["content"]


async def test_an_answer_of_another_shape_is_sent_back(bench: Bench) -> None:
    wrong = '{"metres": "forty-one"}'
    answers, received = await ask(
        bench, said(wrong), said("{no"), said('{"metres": 41}'), output_schema=SHAPE
    )
    assert answers[0]["data"] == {"metres": 41}
    assert len(received) == 3
    complaint = body_of(received[1])["messages"]
    assert complaint[2] == {"role": "assistant", "content": wrong}
    assert "metres" in complaint[3]["content"]
    assert "not JSON" in body_of(received[2])["messages"][3]["content"]


@pytest.mark.parametrize("answer", ["41 metres", "[" * 100_000, "[" * 500 + "]" * 500, '{"metres": 1e999}'])
async def test_answers_that_never_fit_are_tried_again_later(bench: Bench, answer: str) -> None:
    with pytest.raises(Retryable) as failure:
        await ask(bench, said(answer), output_schema=SHAPE)
    assert (failure.value.code, len(bench.received)) == ("LLM_OUTPUT_INVALID", 3)


async def test_an_endpoint_that_knows_no_shapes_is_asked_without(bench: Bench) -> None:
    answers, received = await ask(bench, raw("{}", 400), said('{"metres": 41}'), output_schema=SHAPE)
    assert answers[0]["data"] == {"metres": 41}
    assert ["response_format" in body_of(request) for request in received] == [True, False]


@pytest.mark.parametrize(
    "trouble", [status_line(429, "retry-after: 0"), status_line(503), status_line(500), b""]
)
async def test_a_short_trouble_is_waited_for(bench: Bench, trouble: bytes) -> None:
    answers, received = await ask(bench, trouble, trouble, said("41 metres."))
    assert (answers[0]["answer"], len(received)) == ("41 metres.", 3)


@pytest.mark.parametrize(
    ("answer", "kind", "code", "asked"),
    [
        (status_line(429), Retryable, "LLM_BUSY", 3),
        (status_line(429, "retry-after: 3600"), Retryable, "LLM_BUSY", 1),
        (status_line(500), Retryable, "LLM_FAILED", 3),
        (b"", Retryable, "LLM_UNREACHABLE", 3),
        (b"nonsense\r\n\r\n", Retryable, "LLM_UNREACHABLE", 3),
        (raw("<html>Welcome</html>"), Retryable, "LLM_NONSENSE", 1),
        (raw('{"choices": []}'), Retryable, "LLM_NONSENSE", 1),
        (raw('{"choices": [{"message": {"content": 7}}]}'), Retryable, "LLM_NONSENSE", 1),
        (raw('"\udcff"'.encode("utf-8", "surrogateescape").decode("latin-1")), Retryable, "LLM_NONSENSE", 1),
        (raw('{"x":' + "[" * 100_000), Retryable, "LLM_NONSENSE", 1),
        (said(None), Retryable, "LLM_NONSENSE", 1),
        (said("x" * 1_100_000), Retryable, "LLM_NONSENSE", 1),
        (status_line(302, "location: http://127.0.0.1:9/"), Final, "LLM_REFUSED", 1),
        (status_line(404), Final, "LLM_REFUSED", 1),
        (raw('{"error": "no such model"}', 400), Final, "LLM_REFUSED", 1),
    ],
)
async def test_every_other_answer_has_a_code(
    bench: Bench, answer: bytes, kind: type[Retryable | Final], code: str, asked: int
) -> None:
    with pytest.raises(kind) as failure:
        await ask(bench, answer)
    assert (failure.value.code, len(bench.received)) == (code, asked)
    assert not (bench.folder / "output").exists()


async def test_an_answer_that_never_comes_is_given_up(bench: Bench) -> None:
    with pytest.raises(Retryable) as failure:
        await ask(bench, None, timeout_seconds=0.2)
    assert (failure.value.code, len(bench.received)) == ("LLM_TIMEOUT", 1)


async def test_nobody_at_the_address(bench: Bench) -> None:
    async with receiver() as there:
        port = there.port
    endpoint = ChatEndpoint(f"http://127.0.0.1:{port}/v1", model="m", timeout_seconds=5, pause_seconds=0.001)
    with pytest.raises(Retryable) as failure:
        await bench.run(make_sis(endpoint), "SIS", payload={"prompt": "How high?"})
    assert failure.value.code == "LLM_UNREACHABLE"


@pytest.mark.parametrize("status", [401, 403, 500])
async def test_the_key_is_in_no_error_and_no_log(
    bench: Bench, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    with capture_logs() as logs, pytest.raises((Final, Retryable)) as failure:
        await ask(bench, raw(json.dumps({"error": f"Incorrect API key provided: {KEY}"}), status))
    code = {401: "LLM_NOT_ALLOWED", 403: "LLM_NOT_ALLOWED", 500: "LLM_FAILED"}[status]
    assert failure.value.code == code
    assert KEY not in f"{failure.value!r} {logs} {caplog.text}"


async def test_a_stop_ends_the_asking_between_prompts(bench: Bench) -> None:
    bench.stop_after = 1
    with pytest.raises(Stopped):
        await ask(bench, said("41"), prompt_set=["And what of?", "And who?"])
    assert (len(bench.received), len(bench.reported)) == (1, 1)


async def test_what_is_sent_has_a_bound(bench: Bench) -> None:
    (bench.folder / "input").write_text("The tower is high. " * 40_000)
    _, (request,) = await ask(bench, said("High."), top_k=50)
    assert len(request.body) < 60_000
