"""The temporal engine for scripts: a Temporal server, one worker, and an invoker for each script.

Workflows and the worker are the real ones; they reach the invokers over HTTP at one address, behind which
each call goes to the invoker of the script whose job it is about.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import msgspec
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from lucius.api.internal import make_internal_app
from lucius.contracts.internal import StepSignal, position_of
from lucius.core.inputs import Control
from lucius.core.model import Event, JobRecord, Json
from lucius.core.refusal import Refused
from lucius.core.states import Engine, JobState
from lucius.engines.reply_consumer import ConsumerLimits, ReplyConsumer
from lucius.engines.temporal.activities import InvokerCalls
from lucius.engines.temporal.client import (
    StartOptions,
    TemporalLink,
    TemporalSignaller,
    TemporalStarter,
    TemporalTarget,
)
from lucius.engines.temporal.held_calls import HeldCallLimits, HeldCalls
from lucius.engines.temporal.invoker import DirectiveBuilder, Invoker, InvokerLimits
from lucius.engines.temporal.lane_window import LaneWindow, WindowLimits
from lucius.engines.temporal.notifier import WorkflowNotifier
from lucius.engines.temporal.replies import make_reply_consumer
from lucius.engines.temporal.worker import TemporalWorker, WorkerLimits
from lucius.engines.temporal.workflow import JOB_FAILED
from lucius.engines.temporal.workflow_starts import WorkflowStarts
from lucius.jobs.workflows import WorkflowLabels, WorkflowSignaller, WorkflowsUnavailable, signal_position
from lucius.jobs.writer import Applied
from lucius.ledger.store import TableStore
from lucius_lab.equivalence.script import Script
from lucius_lab.equivalence.side import CALLBACK_BASE, LOOK_EVERY_MS, REPLY_WAIT_MS, TOKENS, EngineSide

SECRET = "a-secret-for-the-lab"  # noqa: S105
END_SECONDS_MAX = 30.0
NONE = "none"


class Switchboard:
    """One address for all invokers: a call is put through to that of its job."""

    def __init__(self) -> None:
        self.invokers: dict[str, ASGIApp] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        app = self.invokers[msgspec.json.decode(body)["jobId"]]
        told = False

        async def again() -> MutableMapping[str, Any]:
            nonlocal told
            if told:
                return await receive()
            told = True
            return {"type": "http.request", "body": body, "more_body": False}

        await app(scope, again, send)


class _SwitchboardServer(uvicorn.Server):
    """Without signal handlers of its own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Workflows:
    """What all scripts share on this engine."""

    def __init__(
        self, target: TemporalTarget, real_ms: Callable[[], int], numbers: Iterator[int], board: Switchboard
    ) -> None:
        self.real_ms = real_ms
        self.numbers = numbers
        self.board = board
        self.link = TemporalLink(target)
        self.signaller = TemporalSignaller(self.link)
        self.starters = {
            local: TemporalStarter(self.link, StartOptions(local_calls=local)) for local in (True, False)
        }

    async def client(self) -> Client:
        return await self.link.client()


@asynccontextmanager
async def workflows(
    target: TemporalTarget, *, real_ms: Callable[[], int], numbers: Iterator[int]
) -> AsyncIterator[Workflows]:
    """A worker on a server that is there, and the address that it calls."""
    board = Switchboard()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(board, lifespan="off", ws="none", log_config=None, access_log=False)
        server = _SwitchboardServer(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        calls = InvokerCalls(f"http://127.0.0.1:{listener.getsockname()[1]}", SECRET)
        shared = Workflows(target, real_ms, numbers, board)
        worker = TemporalWorker(shared.link, calls, WorkerLimits(), build_id="equivalence")
        working = asyncio.create_task(worker.run())
        try:
            await worker.polling.wait()
            yield shared
        finally:
            worker.stop()
            await working
            await calls.close()
            server.should_exit = True
            await serving


class FailingSignaller:
    """A signaller that fails as often as its caller asks for."""

    def __init__(self, signaller: WorkflowSignaller) -> None:
        self._signaller = signaller
        self.failures = 0

    async def signal(self, job_id: str, name: str, signal: StepSignal) -> bool:
        if self.failures > 0:
            self.failures -= 1
            raise WorkflowsUnavailable("the script says so")
        return await self._signaller.signal(job_id, name, signal)


class TemporalSide(EngineSide):
    engine = Engine.TEMPORAL

    def __init__(self, shared: Workflows, script: Script, store: TableStore) -> None:
        self._shared = shared
        self._signaller = FailingSignaller(shared.signaller)
        super().__init__(shared, script, store, self._signaller)
        self._starter = shared.starters[script.local_calls]
        now_ms = self.clock.now_ms
        questions = HeldCalls(self.ledger, HeldCallLimits(), now_ms=now_ms)
        questions.notified = True  # no other process moves these jobs
        self.notifier = WorkflowNotifier(
            self.writer, self._signaller, questions=questions, signal_acks=script.acks_told
        )
        self.applies = self.notifier
        window = LaneWindow(self.ledger, WindowLimits(), now_ms=now_ms)
        self.invoker = Invoker(
            self.ledger,
            self.writer,
            self.notifier,
            self.bus,
            DirectiveBuilder(TOKENS, callback_base=CALLBACK_BASE),
            window,
            InvokerLimits(),
            now_ms=now_ms,
        )
        self._app = make_internal_app(self.invoker, [SECRET], {})
        self._starting = WorkflowStarts(self._starter)
        for watch in (window.watch, self._put_through, self._starting.watch):
            self.listeners.add(watch)

    async def control(self, job_id: str, wish: Control) -> Applied | Refused:
        return await self.notifier.apply(job_id, wish)

    async def untold(self, message: dict[str, Json]) -> Applied | Refused:
        self.notifier.take_over(str(message["jobId"]))  # who waits for an answer needs no signal
        self._signaller.failures = 1
        return await self.reply_by_bus(message)

    async def orphan(self, job_id: str) -> None:
        client, record = await self._shared.client(), await self.record(job_id)
        if record.job.terminal:
            return
        await client.get_workflow_handle(job_id).terminate("the script says so")
        job = record.job
        labels = WorkflowLabels(tenant=job.tenant_norm, request_type=job.request_type)
        await self._starter.start(job_id, position_of(record), labels)
        # What happened in between was told to no workflow. Repair leaves the due row, whose alarm says it.
        now = await self.record(job_id)
        await signal_position(self._shared.signaller, now, now_ms=now.job.updated_at_ms)

    async def ended(self, record: JobRecord) -> str | None:
        job = record.job
        wanted = JOB_FAILED if job.state is JobState.FAILED_FINAL else job.state.value
        if job.attempts_total == 0:
            wanted = NONE  # it was born and ended at once: nothing was left to run
        found = await self._end(job.job_id)
        return None if found == wanted else f"the job is {job.state}, and its workflow: {found}"

    async def _end(self, job_id: str) -> str:
        client = await self._shared.client()
        try:
            async with asyncio.timeout(END_SECONDS_MAX):
                return str(await client.get_workflow_handle(job_id).result())
        except TimeoutError:
            return f"still open after {END_SECONDS_MAX:g} s"
        except RPCError as fault:
            if fault.status is not RPCStatusCode.NOT_FOUND:
                raise
            return NONE
        except WorkflowFailureError as fault:
            cause = fault.cause
            return str(cause.type) if isinstance(cause, ApplicationError) else repr(cause)

    async def stop(self) -> None:
        await self._starting.idle()
        await super().stop()

    def _consumer(self) -> ReplyConsumer:
        limits = ConsumerLimits(
            wait_ms=REPLY_WAIT_MS,
            give_back_delay_ms=0,
            ping_every_ms=LOOK_EVERY_MS,
            bus_retry_ms=LOOK_EVERY_MS,
        )
        return make_reply_consumer(
            self.bus,
            self.replies,
            limits,
            ping_ledger=self.ledger.store.ping,
            ping_workflows=self._shared.link.ping,
        )

    def _put_through(self, before: JobRecord | None, after: JobRecord, events: Sequence[Event]) -> None:
        self._shared.board.invokers[after.job.job_id] = self._app
