"""What a handler may do wrong, or come too late for, and how it is answered all the same."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
from structlog.testing import capture_logs
from tests.sdk.test_sdk_runner import MemoryTransport, NoWorkspace, directive, raising, result_of, running

from lucius.contracts.messages import parse_reply
from lucius.core.refusal import Refused
from lucius.sdk import Final, ReplyAnswer, Task
from lucius.sdk.directive import Upstream, parse_directive
from lucius.sdk.task import Handler


@pytest.mark.parametrize(
    "fault",
    [
        asyncio.CancelledError("of a task of its own"),
        SystemExit(3),
        GeneratorExit("of its own"),
        BaseExceptionGroup("two", [KeyError(1)]),
    ],
)
async def test_whatever_a_handler_ends_with_is_answered(fault: BaseException) -> None:
    transport = MemoryTransport(directive(1), directive(2))
    async with running(transport, raising(fault)):
        results = await transport.results(2)
    assert {(one["status"], one["error"]["code"]) for one in results} == {("FAILED_RETRY", "UNEXPECTED")}
    assert all(type(fault).__name__ in one["error"]["message"] for one in results)


async def test_half_a_character_keeps_no_reply_from_leaving() -> None:
    async def handler(task: Task) -> None:
        await task.progress(5, "caf\udce9")
        raise Final("BAD_\ud83d", "file caf\udce9 is bad")

    transport = MemoryTransport(directive())
    async with running(transport, handler):
        (result,) = await transport.results()
    assert (result["status"], result["error"]) == (
        "FAILED_FINAL",
        {"code": "BAD_?", "message": "file caf? is bad"},
    )
    assert [json.loads(json.dumps(it))["note"] for it in transport.of("PROGRESS")] == ["caf?"]
    for message in transport.replies:
        msgspec.json.encode(message)


class RecordingWorkspace(NoWorkspace):
    def __init__(self) -> None:
        self.written: list[tuple[str, bytes]] = []

    async def write_new(self, uri: str, data: bytes) -> None:
        self.written.append((uri, data))

    write = write_new


async def test_a_text_is_written_as_utf8_and_nothing_else_than_bytes_is_taken() -> None:
    workspace = RecordingWorkspace()
    given = parse_directive(directive())
    assert given is not None
    one = Task(given, workspace, no_report, heartbeat_seconds=20)
    await one.write_artifact("a.txt", "/etc/hostname")
    await one.write_output("Grüße")
    await one.write_output(bytearray(b"raw"))  # type: ignore[arg-type]
    assert [data for _, data in workspace.written] == [b"/etc/hostname", "Grüße".encode(), b"raw"]
    for odd in (Path("/etc/hostname"), 5, None):
        with pytest.raises(TypeError):
            await one.write_output(odd)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            await one.write_artifact("b.txt", odd)  # type: ignore[arg-type]
    assert len(workspace.written) == 3


async def no_report(task: Task[Any]) -> None:
    """Nobody listens."""


async def test_an_attempt_that_slept_through_its_lease_does_not_touch_the_output() -> None:
    """It asks first, as no sign of life has left for longer than a heartbeat."""
    workspace, transport = RecordingWorkspace(), MemoryTransport(directive(lease_seconds=0.3))
    transport.answers["PROGRESS"] = ReplyAnswer("stale", stop=True)

    async def handler(task: Task) -> None:
        time.sleep(0.2)  # the whole process stands still
        await task.write_output(b"of a zombie")

    async with running(transport, handler, workspace=workspace):
        (result,) = await transport.results()
    assert (result["error"]["code"], workspace.written) == ("STOPPED", [])


async def test_an_attempt_that_is_wanted_writes_its_output_without_asking() -> None:
    workspace, transport = RecordingWorkspace(), MemoryTransport(directive())

    async def handler(task: Task) -> None:
        await task.write_output(b"made")

    async with running(transport, handler, workspace=workspace):
        (result,) = await transport.results()
    assert (result["status"], transport.of("PROGRESS")) == ("SUCCEEDED", [])
    assert workspace.written == [("mem://out", b"made")]


def endless() -> dict[str, Any]:
    ref: dict[str, Any] = {"uri": "mem://made"}
    ref["self"] = ref
    return ref


def deep(levels: int) -> dict[str, Any]:
    ref: dict[str, Any] = {"uri": "mem://made"}
    for _ in range(levels):
        ref = {"uri": "mem://made", "in": ref}
    return ref


@pytest.mark.parametrize("ref", [endless(), deep(3_000)], ids=["endless", "deep"])
async def test_a_reference_that_has_no_end_fails_the_step(ref: Any) -> None:
    async def handler(task: Task) -> Any:
        return ref

    result = await result_of(handler)
    assert (result["status"], result["error"]["code"]) == ("FAILED_FINAL", "INVALID_OUTPUT")


async def test_a_coroutine_that_is_closed_is_let_go_and_its_loss_names_the_attempt() -> None:
    began = asyncio.Event()

    async def handler(task: Task) -> None:
        began.set()
        await asyncio.Event().wait()

    transport = MemoryTransport(directive())
    with capture_logs() as logged:
        async with running(transport, handler, log=structlog.get_logger(), drain_seconds=0.0):
            await began.wait()
            (one,) = (task for task in asyncio.all_tasks() if "_carry_out" in repr(task))
            coroutine = one.get_coro()
            assert coroutine is not None
            coroutine.close()  # as the interpreter does with what nobody goes on with
            assert transport.of("RESULT") == []
    assert "handler_failed" not in {line["event"] for line in logged}
    (lost,) = (line for line in logged if line["event"] == "directive_lost")
    assert (lost["jobId"], lost["stepId"], lost["attempt_no"]) == ("job_1", "step_01", 1)


@pytest.mark.parametrize("ref", [{"uri": "x" * 5000}, {}, {"uri": 1}, {"uri": "u", "x": object()}, "text"])
async def test_a_reference_that_would_be_refused_fails_the_step(ref: Any) -> None:
    async def handler(task: Task) -> Any:
        return ref

    result = await result_of(handler)
    assert (result["status"], result["error"]["code"]) == ("FAILED_FINAL", "INVALID_OUTPUT")


@pytest.mark.parametrize(
    "ref",
    [
        {"uri": "s3://user:hunter2@a/b?sig=hunter2"},
        {"uri": "s3://a/b", "api_key": "hunter2"},
        {"uri": "s3://a/b", "more": ({"password": "hunter2"},), 5: "six"},
    ],
)
async def test_a_reference_with_credentials_fails_the_step_at_once(ref: Any) -> None:
    async def handler(task: Task) -> Any:
        return ref

    transport = MemoryTransport(directive())
    with capture_logs() as logged:
        async with running(transport, handler, log=structlog.get_logger()):
            (result,) = await transport.results()
    assert (result["status"], result["error"]["code"]) == ("FAILED_FINAL", "INVALID_OUTPUT")
    assert "must not carry credentials" in result["error"]["message"]
    assert "hunter2" not in f"{result}{logged}"


async def _result_of(handler: Handler) -> dict[str, Any]:
    transport = MemoryTransport(directive())
    async with running(transport, handler, workspace=RecordingWorkspace()):
        (result,) = await transport.results()
    return result


async def test_a_result_names_what_was_written_beside_what_it_returns() -> None:
    async def several(task: Task) -> dict[str, Any]:
        pages = [await task.write_artifact(f"page-{number}.png", b"x") for number in (1, 2)]
        await task.write_artifact("page-1.png", b"x")
        text = await task.write_artifact("text.txt", "text")
        assert task.written == [*pages, text]
        return {"uri": text}

    async def one(task: Task) -> dict[str, Any]:
        return {"uri": await task.write_artifact("text.txt", "text")}

    named = [await _result_of(handler) for handler in (several, one)]
    (base, _, _) = named[0]["output_ref"]["uri"].rpartition("/")
    assert named[0]["artifacts"] == [{"uri": f"{base}/page-1.png"}, {"uri": f"{base}/page-2.png"}]
    assert named[0]["output_ref"] == named[1]["output_ref"] and "artifacts" not in named[1]


async def test_artifacts_that_no_message_has_room_for_are_left_out() -> None:
    async def many(task: Task) -> dict[str, Any]:
        for number in range(90):
            await task.write_artifact(f"{'x' * 100}-{number}", b"x")
        return {"uri": "mem://made"}

    result = await _result_of(many)
    assert 10 < len(result["artifacts"]) <= 32 and result["status"] == "SUCCEEDED"
    assert not isinstance(parse_reply(result, expected="RESULT"), Refused)


def test_a_step_before_names_all_that_it_made() -> None:
    made = {"uri": "s3://w/text", "artifacts": [{"uri": "s3://w/1"}, {"uri": "s3://w/text"}, {}, "odd"]}
    seen = [Upstream(step_id="step_01", result_ref=ref) for ref in (made, {"uri": "s3://w/1"}, None)]
    assert [each.artifacts for each in seen] == [("s3://w/text", "s3://w/1"), ("s3://w/1",), ()]
