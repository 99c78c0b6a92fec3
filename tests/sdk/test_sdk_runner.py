"""The runner against an orchestrator in memory: order of replies, failures, repeats, stops, signs of life."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from lucius.contracts.messages import parse_reply
from lucius.core.refusal import Refused
from lucius.sdk import (
    DeliveryFailed,
    Directive,
    Final,
    Handler,
    ReplyAnswer,
    Retryable,
    Runner,
    Service,
    Stopped,
    Task,
)

Message = dict[str, Any]
TOKEN = "a-token-nobody-may-see"


def directive(number: int = 1, **more: Any) -> Message:
    return {
        "type": "DIRECTIVE",
        "jobId": f"job_{number}",
        "tenant_id": "tenant_a",
        "stepId": "step_01",
        "protocol_id": "ocr_v1",
        "step_type": "OCR",
        "attempt_no": 1,
        "lease_id": f"lease-{number}",
        "input_ref": {"uri": "mem://in"},
        "workspace_ref": {"uri": "mem://work"},
        "output_ref": {"uri": "mem://out"},
        "payload": {"language": "en"},
        "upstream": [],
        "correlation_id": "corr-1",
        "callback_token": TOKEN,
        "something_new": [1, 2],
        **more,
    }


class MemoryTransport:
    def __init__(self, *waiting: Message) -> None:
        self.waiting = list(waiting)
        self.replies: list[Message] = []
        self.answers: dict[str, ReplyAnswer | Exception] = {}
        self.lease_faults = 0
        self.leases: list[int] = []
        self._wake = asyncio.Event()

    def give(self, message: Message) -> None:
        self.waiting.append(message)
        self._wake.set()

    async def lease(self, *, max_directives: int, wait_seconds: float) -> list[Message]:
        self.leases.append(max_directives)
        if self.lease_faults:
            self.lease_faults -= 1
            raise DeliveryFailed("down")
        if not self.waiting:
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), wait_seconds)
            except TimeoutError:
                return []
        taken, self.waiting = self.waiting[:max_directives], self.waiting[max_directives:]
        return taken

    async def reply(self, directive: Directive, message: Message) -> ReplyAnswer:
        assert not isinstance(parse_reply(message, expected=None), Refused)
        assert TOKEN not in str(message)
        self.replies.append(message)
        answer = self.answers.get(message["type"], ReplyAnswer("applied"))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def of(self, kind: str) -> list[Message]:
        return [message for message in self.replies if message["type"] == kind]

    async def results(self, count: int = 1) -> list[Message]:
        await until(lambda: len(self.of("RESULT")) >= count)
        return self.of("RESULT")


class NoWorkspace:
    """For handlers that keep nothing."""

    def artifact_uri(self, workspace_uri: str, step_type: str, attempt_no: int, name: str) -> str:
        return f"{workspace_uri}/{name}"

    async def read(self, uri: str) -> bytes:
        raise FileNotFoundError(uri)

    async def write_new(self, uri: str, data: bytes) -> None:
        raise FileExistsError(uri)

    async def write(self, uri: str, data: bytes) -> None:
        raise OSError(uri)


class Log:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, object]]] = []

    def info(self, event: str, **fields: object) -> None:
        self.lines.append((event, fields))

    warning = info


async def until(true: Callable[[], bool], seconds_max: float = 5.0) -> None:
    async with asyncio.timeout(seconds_max):
        while not true():
            await asyncio.sleep(0.002)


async def made(task: Task) -> Message:
    return {"uri": "mem://made"}


def raising(fault: BaseException) -> Handler:
    async def handler(task: Task) -> None:
        raise fault

    return handler


@asynccontextmanager
async def running(
    transport: MemoryTransport,
    handler: Handler,
    service: Service | None = None,
    workspace: NoWorkspace | None = None,
    **more: Any,
) -> AsyncIterator[Runner]:
    options: dict[str, Any] = {"now_ms": lambda: 1_769_508_120_000, "wait_seconds": 0.5, "log": Log()}
    options |= {"answer_seconds": 0.0, **more}
    runner = Runner(service or Service("ocr", handler), transport, workspace or NoWorkspace(), **options)
    run = asyncio.create_task(runner.run())
    try:
        yield runner
    finally:
        runner.stop()
        async with asyncio.timeout(5):
            await run


async def result_of(handler: Handler) -> Message:
    transport = MemoryTransport(directive())
    async with running(transport, handler):
        return (await transport.results())[0]


async def test_a_directive_is_acknowledged_then_answered() -> None:
    transport = MemoryTransport(directive())
    async with running(transport, made):
        await transport.results()
    ack, result = transport.replies
    head = {
        "jobId": "job_1",
        "stepId": "step_01",
        "tenant_id": "tenant_a",
        "attempt_no": 1,
        "lease_id": "lease-1",
        "timestamp": "2026-01-27T10:02:00.000Z",
        "correlation_id": "corr-1",
    }
    assert ack == {"type": "ACK", **head}
    assert result == {"type": "RESULT", **head, "status": "SUCCEEDED", "output_ref": {"uri": "mem://made"}}


async def test_a_handler_may_return_nothing() -> None:
    async def handler(task: Task) -> None:
        assert task.payload == {"language": "en"}
        assert (task.input_uri, task.upstream) == ("mem://in", ())

    result = await result_of(handler)
    assert result["status"] == "SUCCEEDED"
    assert "output_ref" not in result


@pytest.mark.parametrize(
    ("fault", "status", "code", "message"),
    [
        (Retryable("BUSY", "come again"), "FAILED_RETRY", "BUSY", "come again"),
        (Final("BAD", "no use"), "FAILED_FINAL", "BAD", "no use"),
        (Final("LONG", "x" * 9_000), "FAILED_FINAL", "LONG", "x" * 499 + "…"),
        (Stopped(), "FAILED_RETRY", "STOPPED", "stopped at the orchestrator's word"),
    ],
)
async def test_failures_are_told_as_they_are(fault: Exception, status: str, code: str, message: str) -> None:
    result = await result_of(raising(fault))
    assert (result["status"], result["error"]) == (status, {"code": code, "message": message})


async def test_a_failure_may_say_when_to_come_again_and_ask_for_less() -> None:
    result = await result_of(raising(Retryable("LIMIT", "429", retry_after_seconds=30, slow_down=True)))
    assert (result["retry_after"], result["slow_down"]) == (30, True)
    plain = await result_of(raising(Retryable("BUSY")))
    assert not {"retry_after", "slow_down"} & plain.keys()


async def test_an_unexpected_exception_tells_its_place_and_nothing_it_says() -> None:
    result = await result_of(raising(ValueError("password=hunter2")))
    assert result["status"] == "FAILED_RETRY"
    assert result["error"]["code"] == "UNEXPECTED"
    assert result["error"]["message"].startswith("ValueError at test_sdk_runner.py:")
    assert "hunter2" not in str(result)


@pytest.mark.parametrize(
    ("work", "status", "code"),
    [
        (lambda task: task.read("x"), "FAILED_FINAL", "INPUT_NOT_FOUND"),
        (lambda task: task.write_artifact("x", b""), "FAILED_RETRY", "ARTIFACT_CONFLICT"),
        (lambda task: task.write_output(b""), "FAILED_RETRY", "OUTPUT_UNAVAILABLE"),
    ],
)
async def test_faults_of_the_workspace_are_failures_of_the_step(
    work: Callable[[Task], Awaitable[Any]], status: str, code: str
) -> None:
    async def handler(task: Task) -> None:
        await work(task)

    result = await result_of(handler)
    assert (result["status"], result["error"]["code"]) == (status, code)


async def test_a_repeated_directive_gets_the_same_result_without_new_work() -> None:
    runs = 0

    async def handler(task: Task) -> Message:
        nonlocal runs
        runs += 1
        return {"uri": f"mem://{runs}"}

    transport = MemoryTransport(directive())
    async with running(transport, handler):
        await transport.results(1)
        transport.give(directive())
        first, second = await transport.results(2)
    assert runs == 1
    assert first == second
    assert len(transport.of("ACK")) == 1


async def test_a_directive_that_is_under_way_is_not_begun_twice() -> None:
    go = asyncio.Event()

    async def handler(task: Task) -> None:
        await go.wait()

    transport = MemoryTransport(directive(), directive())
    async with running(transport, handler) as runner:
        await until(lambda: not transport.waiting and runner.status().under_way == 1)
        go.set()
        await transport.results()
    assert [message["type"] for message in transport.replies] == ["ACK", "RESULT"]


async def test_another_attempt_is_another_piece_of_work() -> None:
    transport = MemoryTransport(directive(), directive(attempt_no=2, lease_id="lease-2"))
    async with running(transport, made):
        assert {result["attempt_no"] for result in await transport.results(2)} == {1, 2}


@pytest.mark.parametrize("outcome", ["stale", "recorded", "refused"])
async def test_work_that_nobody_waits_for_is_not_begun(outcome: str) -> None:
    transport = MemoryTransport(directive())
    transport.answers["ACK"] = ReplyAnswer(outcome, stop=True)
    async with running(transport, raising(AssertionError("must not run"))) as runner:
        await until(lambda: bool(transport.replies) and runner.status().under_way == 0)
    assert [message["type"] for message in transport.replies] == ["ACK"]


async def test_a_cancelled_job_is_answered_without_work() -> None:
    transport = MemoryTransport(directive())
    transport.answers["ACK"] = ReplyAnswer("applied", stop=True)
    async with running(transport, raising(AssertionError("must not run"))):
        result = (await transport.results())[0]
    assert (result["status"], result["error"]["code"]) == ("FAILED_RETRY", "STOPPED")


async def test_work_goes_on_when_its_ack_was_lost() -> None:
    transport = MemoryTransport(directive())
    transport.answers["ACK"] = DeliveryFailed("down")
    async with running(transport, made):
        assert (await transport.results())[0]["status"] == "SUCCEEDED"


async def test_no_ack_is_sent_where_the_lease_is_one() -> None:
    transport = MemoryTransport(directive())
    async with running(transport, made, acknowledges=False):
        (result,) = await transport.results()
    assert result["status"] == "SUCCEEDED"
    assert transport.of("ACK") == []


async def test_progress_stops_the_handler_when_nobody_waits() -> None:
    seen: list[str] = []

    async def handler(task: Task) -> None:
        await task.progress(10, "first")
        seen.append("went on")

    transport = MemoryTransport(directive())
    transport.answers["PROGRESS"] = ReplyAnswer("stale", stop=True)
    async with running(transport, handler):
        result = (await transport.results())[0]
    assert (seen, result["error"]["code"]) == ([], "STOPPED")
    assert [(it["progress"], it["note"]) for it in transport.of("PROGRESS")] == [(10, "first")]


async def test_frequent_progress_is_thinned_and_never_fails_the_work() -> None:
    async def handler(task: Task) -> None:
        for percent in range(-5, 200):
            await task.progress(percent)

    transport = MemoryTransport(directive())
    transport.answers["PROGRESS"] = DeliveryFailed("down")
    async with running(transport, handler):
        assert (await transport.results())[0]["status"] == "SUCCEEDED"
    assert [message["progress"] for message in transport.of("PROGRESS")] == [0]


async def test_silent_work_keeps_its_lease_and_learns_of_a_stop() -> None:
    async def handler(task: Task) -> None:
        await task.progress(40, "long")
        while not task.stop_requested:
            await asyncio.sleep(0.005)
        task.raise_if_stopped()

    transport = MemoryTransport(directive(lease_seconds=0.3))
    async with running(transport, handler):
        await until(lambda: len(transport.of("PROGRESS")) >= 3)
        transport.answers["PROGRESS"] = ReplyAnswer("applied", stop=True)
        result = (await transport.results())[0]
    assert {(it["progress"], it["note"]) for it in transport.of("PROGRESS")} == {(40, "long")}
    assert result["error"]["code"] == "STOPPED"
    assert transport.replies[-1] is result


async def test_no_more_is_leased_than_can_be_run() -> None:
    now, most = 0, 0

    async def handler(task: Task) -> None:
        nonlocal now, most
        now, most = now + 1, max(most, now + 1)
        await asyncio.sleep(0.002)
        now -= 1

    transport = MemoryTransport(*(directive(number) for number in range(50)))
    async with running(transport, handler, concurrency=4):
        results = await transport.results(50)
    assert most == 4
    assert max(transport.leases) == 4
    assert len({result["jobId"] for result in results}) == 50


async def test_leasing_survives_faults_and_unreadable_messages() -> None:
    log = Log()
    transport = MemoryTransport({"type": "DIRECTIVE"}, directive(attempt_no="one"), directive())
    transport.lease_faults = 2
    async with running(transport, made, log=log, jitter=lambda: 0.01) as runner:
        assert (await transport.results())[0]["jobId"] == "job_1"
        await until(lambda: runner.status().lease_failures == 0)
    assert [event for event, _ in log.lines] == ["lease_failed"] * 2 + ["directive_unreadable"] * 2
    assert TOKEN not in str(log.lines)


async def test_stopping_waits_for_what_is_under_way() -> None:
    begun = asyncio.Event()

    async def handler(task: Task) -> None:
        begun.set()
        await asyncio.sleep(0.1)

    transport = MemoryTransport(directive())
    async with running(transport, handler) as runner:
        await begun.wait()
        runner.stop()
        await until(lambda: not runner.status().leasing)
        await asyncio.sleep(0.01)
        transport.give(directive(2))
    assert [result["status"] for result in transport.of("RESULT")] == ["SUCCEEDED"]
    assert not runner.status().leasing


async def test_what_was_leased_when_the_stop_came_is_carried_out() -> None:
    """It was handed out, and would wait for its ACK in vain."""
    asked, answered = asyncio.Event(), asyncio.Event()

    class OnItsWay(MemoryTransport):
        async def lease(self, *, max_directives: int, wait_seconds: float) -> list[Message]:
            taken = await super().lease(max_directives=max_directives, wait_seconds=wait_seconds)
            asked.set()
            await answered.wait()
            return taken

    transport = OnItsWay(directive())
    async with running(transport, made, answer_seconds=20.0) as runner:
        await asked.wait()
        runner.stop()
        await asyncio.sleep(0.02)
        answered.set()
        transport.give(directive(2))
        assert [each["jobId"] for each in await transport.results()] == ["job_1"]
    assert [each["jobId"] for each in transport.of("RESULT")] == ["job_1"], "it asks for no more"


async def test_a_lease_that_was_asked_for_long_ago_is_given_up_at_once() -> None:
    transport = MemoryTransport()
    async with asyncio.timeout(5), running(transport, made, wait_seconds=60, answer_seconds=0.4) as runner:
        await until(lambda: len(transport.leases) == 1)
        await asyncio.sleep(0.15)
        began = asyncio.get_running_loop().time()
        runner.stop()
        await until(lambda: not runner.status().leasing)
        assert asyncio.get_running_loop().time() - began < 2


async def test_it_ends_by_itself_once_it_was_idle_for_long() -> None:
    finish = asyncio.Event()

    async def handler(task: Task) -> Message:
        await finish.wait()
        return {"uri": "mem://made"}

    transport = MemoryTransport(directive())
    async with asyncio.timeout(5), running(transport, handler, idle_seconds_max=0.05) as runner:
        await until(lambda: len(transport.leases) >= 4)
        assert runner.status().leasing, "what is at work is not idle, however long it takes"
        finish.set()
        await until(lambda: not runner.status().leasing)
    assert transport.of("RESULT")[0]["status"] == "SUCCEEDED"


async def test_a_server_that_is_away_makes_nothing_idle() -> None:
    transport = MemoryTransport()
    transport.lease_faults = 2
    async with running(transport, made, idle_seconds_max=0.05, jitter=lambda: 0.5) as runner:
        await until(lambda: transport.lease_faults == 0)
        assert runner.status().leasing
        await until(lambda: not runner.status().leasing)


async def test_what_cannot_be_finished_in_time_is_given_back() -> None:
    begun = asyncio.Event()

    async def handler(task: Task) -> None:
        begun.set()
        await asyncio.sleep(60)

    transport = MemoryTransport(directive())
    async with running(transport, handler, drain_seconds=0.05):
        await begun.wait()
    result = transport.of("RESULT")[0]
    assert (result["status"], result["error"]["code"]) == ("FAILED_RETRY", "SHUTDOWN")


async def test_what_an_attempt_used_is_told_also_where_it_fails() -> None:
    async def handler(task: Task) -> None:
        task.used("pages", 2)
        task.used("pages", 1)
        task.used("usd", 0.5)
        for name, number in (("pages", -9), ("a b", 1), ("usd", float("nan"))):
            with pytest.raises(ValueError, match="usage"):
                task.used(name, number)
        raise Final("BAD", "no use")

    result = await result_of(handler)
    assert (result["status"], result["usage"]) == ("FAILED_FINAL", {"pages": 3, "usd": 0.5})


async def test_an_attempt_names_so_many_numbers_and_no_more() -> None:
    async def handler(task: Task) -> None:
        for number in range(16):
            task.used(f"n{number}", 1)
        with pytest.raises(ValueError, match="16"):
            task.used("one.more", 1)

    assert len((await result_of(handler))["usage"]) == 16
