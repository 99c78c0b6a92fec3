"""A stand-in for the invoker and the services behind it: an HTTP server over books of jobs.

In: the workflow's questions. Out: answers, and signals to the workflow once the stand-in service has spoken.
What the service does with an attempt is a script; without one it succeeds at once.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Self

import msgspec

from lucius.contracts.internal import (
    AttemptRequest,
    ExpireRequest,
    InternalAnswer,
    PublishRequest,
    StepSignal,
    Verdict,
)
from lucius.core.states import JOB_TERMINAL, StepState
from lucius.jobs.workflows import WorkflowSignaller, WorkflowsUnavailable
from lucius_lab.bench.stand_in_ledger import StandInLedger, StandInTimeouts

SIGNAL_TRIES = 10
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

Script = Callable[["StandInInvoker", StandInLedger], Coroutine[Any, Any, None]]
"""What the service does with a directive."""
Interfered = InternalAnswer | int | None
Interference = Callable[["StandInInvoker", StandInLedger, str], Interfered | Coroutine[Any, Any, Interfered]]
"""Answers in the invoker's place, or with a bare HTTP status; None lets the invoker answer."""


async def succeed(invoker: "StandInInvoker", stand_in: StandInLedger) -> None:
    await invoker.result(stand_in, StepState.SUCCEEDED)


class StandInInvoker:
    def __init__(
        self,
        signaller: WorkflowSignaller,
        now_ms: Callable[[], int],
        *,
        script: Script = succeed,
        interfere: Interference = lambda invoker, stand_in, path: None,
        secret: str = "",
    ) -> None:
        self.stand_ins: dict[str, StandInLedger] = {}
        self.calls: list[str] = []
        self.faults: list[Exception] = []
        self.now_ms = now_ms
        self.url = ""
        self._signaller = signaller
        self.script = script
        self.interfere = interfere
        self._secret = secret
        self._server: asyncio.Server | None = None
        self._ended: dict[str, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.open(0)
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    async def open(self, port: int) -> None:
        self._server = await asyncio.start_server(self._meet, "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def create(self, job_id: str, timeouts: StandInTimeouts) -> StandInLedger:
        self.stand_ins[job_id] = stand_in = StandInLedger(job_id=job_id, timeouts=timeouts)
        self._ended[job_id] = asyncio.Event()
        return stand_in

    async def ended(self, stand_in: StandInLedger) -> None:
        """The job is over in the ledger; its workflow may not know yet."""
        await self._ended[stand_in.job_id].wait()

    def forget(self, stand_in: StandInLedger) -> None:
        del self.stand_ins[stand_in.job_id], self._ended[stand_in.job_id]

    async def ack(self, stand_in: StandInLedger, *, told: bool = True) -> None:
        stand_in.ack(self.now_ms())
        if told:
            await self.signal(stand_in, "step_ack")

    async def result(self, stand_in: StandInLedger, status: StepState) -> None:
        told = StepSignal(
            jobId=stand_in.job_id,
            stepId=stand_in.step_id,
            attempt_no=stand_in.attempt_no,
            lease_id=stand_in.lease_id,
            status=status.value,
            position=stand_in.position(),
        )
        stand_in.result(status, self.now_ms())
        self._look(stand_in)
        told = msgspec.structs.replace(told, position=stand_in.position())
        await self.notify(stand_in, "step_result", told)

    async def control(self, stand_in: StandInLedger, name: str) -> None:
        getattr(stand_in, name)()
        self._look(stand_in)
        await self.signal(stand_in, name)

    async def signal(self, stand_in: StandInLedger, name: str) -> None:
        told = StepSignal(jobId=stand_in.job_id, position=stand_in.position(), stepId=stand_in.step_id)
        await self.notify(stand_in, name, msgspec.structs.replace(told, attempt_no=stand_in.attempt_no))

    async def notify(self, stand_in: StandInLedger, name: str, told: StepSignal) -> None:
        """As often as it takes: a bus would bring the reply again."""
        for left in reversed(range(SIGNAL_TRIES)):
            try:
                await self._signaller.signal(stand_in.job_id, name, told)
            except WorkflowsUnavailable:
                if not left:
                    raise
            else:
                return

    def _look(self, stand_in: StandInLedger) -> None:
        if stand_in.job_state in JOB_TERMINAL:
            self._ended[stand_in.job_id].set()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                length = int(head.partition("content-length:")[2].partition("\r\n")[0])
                body = await reader.readexactly(length)
                status, answer = await self._answer(head, body)
                said = f"HTTP/1.1 {status} Said\r\ntraceparent: {TRACEPARENT}\r\n"
                writer.write(f"{said}content-length: {len(answer)}\r\n\r\n".encode() + answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, head: str, body: bytes) -> tuple[int, bytes]:
        path = head.split(" ", 2)[1]
        if f"authorization: bearer {self._secret}".lower() not in head:
            return 401, b"{}"
        stand_in = self.stand_ins.get(msgspec.json.decode(body)["jobId"])
        if stand_in is None:
            return 404, b'{"code": "JOB_NOT_FOUND"}'
        self.calls.append(path.rpartition("/")[2])
        answer = self.interfere(self, stand_in, self.calls[-1])
        if isinstance(answer, Coroutine):
            answer = await answer
        if isinstance(answer, int):
            return answer, b"{}"
        if answer is None:
            answer = self._serve(stand_in, self.calls[-1], body)
        return 200, msgspec.json.encode(answer)

    def _serve(self, stand_in: StandInLedger, call: str, body: bytes) -> InternalAnswer:
        if call == "expire":
            answer = stand_in.expire(msgspec.json.decode(body, type=ExpireRequest), self.now_ms())
            self._look(stand_in)
            return answer
        if call == "attempt":
            ask = msgspec.json.decode(body, type=AttemptRequest)
            answer = stand_in.attempt(ask)
            if answer.verdict is not Verdict.GO:
                return answer
            return self._send(stand_in, ask)
        return self._send(stand_in, msgspec.json.decode(body, type=PublishRequest))

    def _send(self, stand_in: StandInLedger, ask: AttemptRequest | PublishRequest) -> InternalAnswer:
        before = stand_in.published
        answer = stand_in.publish(ask, self.now_ms())
        if stand_in.published and not before:
            self._spawn(self.script(self, stand_in))
        return answer

    def _spawn(self, play: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(self._play(play))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _play(self, play: Coroutine[Any, Any, None]) -> None:
        try:
            await play
        except Exception as fault:
            self.faults.append(fault)
