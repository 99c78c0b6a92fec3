"""A stand-in for the invoker and the services behind it: an HTTP server over books of jobs.

In: the workflow's questions. Out: answers, and signals to the workflow once the stand-in service has spoken.
What the service does with an attempt is a script; without one it succeeds at once.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Self

import msgspec

from lucius.contracts.internal import (
    AttemptAsk,
    ExpireAsk,
    InternalAnswer,
    PublishAsk,
    StepSignal,
    Verdict,
)
from lucius.core.states import JOB_TERMINAL, StepState
from lucius.lab.temporal_book import Book, Patience
from lucius.progress.workflows import Signaller, WorkflowsUnavailable

TELL_TRIES = 10

Script = Callable[["Desk", Book], Coroutine[Any, Any, None]]
"""What the service does with a directive."""
Interference = Callable[["Desk", Book, str], InternalAnswer | int | None]
"""Answers in the desk's place, or with a bare HTTP status; None lets the desk answer."""


async def succeed(desk: "Desk", book: Book) -> None:
    await desk.result(book, StepState.SUCCEEDED)


class Desk:
    def __init__(
        self,
        signaller: Signaller,
        now_ms: Callable[[], int],
        *,
        script: Script = succeed,
        interfere: Interference = lambda desk, book, path: None,
        secret: str = "",
    ) -> None:
        self.books: dict[str, Book] = {}
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

    def create(self, job_id: str, patience: Patience) -> Book:
        self.books[job_id] = book = Book(job_id=job_id, patience=patience)
        self._ended[job_id] = asyncio.Event()
        return book

    async def ended(self, book: Book) -> None:
        """The job is over in the book; its workflow may not know yet."""
        await self._ended[book.job_id].wait()

    def forget(self, book: Book) -> None:
        del self.books[book.job_id], self._ended[book.job_id]

    async def ack(self, book: Book, *, told: bool = True) -> None:
        book.ack(self.now_ms())
        if told:
            await self.signal(book, "step_ack")

    async def result(self, book: Book, status: StepState) -> None:
        told = StepSignal(
            jobId=book.job_id,
            stepId=book.step_id,
            attempt_no=book.attempt_no,
            lease_id=book.lease_id,
            status=status.value,
            position=book.position(),
        )
        book.result(status, self.now_ms())
        self._look(book)
        told = msgspec.structs.replace(told, position=book.position())
        await self.tell(book, "step_result", told)

    async def control(self, book: Book, name: str) -> None:
        getattr(book, name)()
        self._look(book)
        await self.signal(book, name)

    async def signal(self, book: Book, name: str) -> None:
        told = StepSignal(jobId=book.job_id, position=book.position(), stepId=book.step_id)
        await self.tell(book, name, msgspec.structs.replace(told, attempt_no=book.attempt_no))

    async def tell(self, book: Book, name: str, told: StepSignal) -> None:
        """As often as it takes: a bus would bring the reply again."""
        for left in reversed(range(TELL_TRIES)):
            try:
                await self._signaller.signal(book.job_id, name, told)
            except WorkflowsUnavailable:
                if not left:
                    raise
            else:
                return

    def _look(self, book: Book) -> None:
        if book.job_state in JOB_TERMINAL:
            self._ended[book.job_id].set()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                length = int(head.partition("content-length:")[2].partition("\r\n")[0])
                body = await reader.readexactly(length)
                status, answer = self._answer(head, body)
                writer.write(
                    f"HTTP/1.1 {status} Said\r\ncontent-length: {len(answer)}\r\n\r\n".encode() + answer
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    def _answer(self, head: str, body: bytes) -> tuple[int, bytes]:
        path = head.split(" ", 2)[1]
        if f"authorization: bearer {self._secret}".lower() not in head:
            return 401, b"{}"
        book = self.books.get(msgspec.json.decode(body)["jobId"])
        if book is None:
            return 404, b'{"code": "JOB_NOT_FOUND"}'
        self.calls.append(path.rpartition("/")[2])
        answer = self.interfere(self, book, self.calls[-1])
        if isinstance(answer, int):
            return answer, b"{}"
        if answer is None:
            answer = self._serve(book, self.calls[-1], body)
        return 200, msgspec.json.encode(answer)

    def _serve(self, book: Book, call: str, body: bytes) -> InternalAnswer:
        if call == "expire":
            answer = book.expire(msgspec.json.decode(body, type=ExpireAsk), self.now_ms())
            self._look(book)
            return answer
        if call == "attempt":
            ask = msgspec.json.decode(body, type=AttemptAsk)
            answer = book.attempt(ask)
            if answer.verdict is not Verdict.GO:
                return answer
            return self._send(book, ask)
        return self._send(book, msgspec.json.decode(body, type=PublishAsk))

    def _send(self, book: Book, ask: AttemptAsk | PublishAsk) -> InternalAnswer:
        before = book.published
        answer = book.publish(ask, self.now_ms())
        if book.published and not before:
            self._spawn(self.script(self, book))
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
