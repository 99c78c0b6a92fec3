"""An invoker, put together for tests: the kernel and a bus in memory, and workflows that only listen.

A `Deployment` is one process over a `World` (see `publisher_setup`); a second one is a restart or a second
replica. `Workflows` stands where Temporal would: it keeps what each job's workflow was told, and may be
away.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from tests.support.flow_setup import LimitedRegistry
from tests.support.publisher_setup import SHORT_MS, TENANT, TOKENS, World, envelope

from lucius.api.internal import make_internal_app
from lucius.assembly.kernel import Kernel, KernelOptions
from lucius.contracts.internal import (
    AttemptRequest,
    ExpireRequest,
    InternalAnswer,
    JobDefaults,
    Position,
    PublishRequest,
    StepSignal,
)
from lucius.core.inputs import Control, ExpireReason, Input
from lucius.core.model import Event, JobRecord, StepPolicy
from lucius.core.refusal import Refused
from lucius.core.states import Engine, Fact
from lucius.engines.outbox.sweeper import Sweeper
from lucius.engines.reply_consumer import ConsumerLimits
from lucius.engines.temporal.held_calls import HeldCallLimits, HeldCalls
from lucius.engines.temporal.invoker import DirectiveBuilder, Invoker, InvokerLimits
from lucius.engines.temporal.lane_window import LaneWindow, WindowLimits
from lucius.engines.temporal.notifier import WorkflowNotifier
from lucius.engines.temporal.repair import WorkflowRepair
from lucius.engines.temporal.replies import make_reply_consumer
from lucius.jobs.reply_backlog import ReplyBacklog
from lucius.jobs.submit import Submitted
from lucius.jobs.workflows import StartOutcome, WorkflowLabels, WorkflowsUnavailable
from lucius.jobs.writer import Applied
from lucius.ledger.indexes import DueEntry
from lucius.registry.port import Registry


class Workflows:
    """Those of all jobs: who has one, what each was told, and what was asked for."""

    def __init__(self) -> None:
        self.down = False
        self.deaf = False  # signals fail, though all seems well
        self.open: set[str] = set()
        self.ended: set[str] = set()  # as they should, for all they knew
        self.sent: dict[str, list[tuple[str, StepSignal]]] = {}
        self.starts: list[tuple[str, Position, WorkflowLabels | None]] = []

    async def signal(self, job_id: str, name: str, signal: StepSignal) -> bool:
        await self.ping()
        if self.deaf:
            raise WorkflowsUnavailable("no signal gets through")
        if job_id not in self.open:
            return False
        self.sent.setdefault(job_id, []).append((name, signal))
        return True

    async def start(
        self, job_id: str, position: Position, labels: WorkflowLabels | None = None, *, is_open: bool = False
    ) -> StartOutcome:
        await self.ping()
        self.starts.append((job_id, position, labels))
        if job_id in self.open or (job_id in self.ended and not is_open):
            return StartOutcome.RUNNING
        self.open.add(job_id)
        return StartOutcome.STARTED

    async def ping(self) -> None:
        if self.down:
            raise WorkflowsUnavailable("workflows are away")

    def names(self, job_id: str) -> list[str]:
        return [name for name, _ in self.sent.get(job_id, [])]

    def newest(self, job_id: str) -> Position:
        return max((signal.position for _, signal in self.sent[job_id]), key=lambda at: at.version)


class Deployment:
    def __init__(
        self,
        world: World,
        workflows: Workflows,
        *,
        policy: StepPolicy | None = None,
        engine: Engine = Engine.TEMPORAL,
        window: int = 128,
        signal_acks: bool = True,
        ack_patience_seconds: float = 0.01,
        questions: HeldCallLimits | None = None,
        own_defaults: JobDefaults | None = None,
        registry: Registry | None = None,
    ) -> None:
        """`questions`: the limits of those held back; None: none is. `registry`: the built-in one unless it
        is given."""
        self.world, self.workflows = world, workflows
        now_ms = world.now_ms
        self.reply_backlog = ReplyBacklog(now_ms=now_ms)
        self.registry = LimitedRegistry(policy)
        self.kernel = kernel = Kernel(
            world.store,
            KernelOptions(registry=registry or self.registry, engine=engine),
            now_ms=now_ms,
            ids=world,
            over_bus=True,
            signaller=workflows,
            grace=self.reply_backlog,
        )
        self.ledger, self.listeners, self.indexes = kernel.ledger, kernel.listeners, kernel.indexes
        self.writer, self.submitter, self.due_handler = kernel.writer, kernel.submitter, kernel.due_handler
        self.questions = HeldCalls(self.ledger, questions or HeldCallLimits(), now_ms=now_ms)
        self.questions.notified = questions is not None
        self.notifier = WorkflowNotifier(
            self.writer,
            workflows,
            questions=self.questions,
            signal_acks=signal_acks,
            ack_patience_seconds=ack_patience_seconds,
        )
        self.window = LaneWindow(self.ledger, WindowLimits(directives_max=window), now_ms=now_ms)
        self.listeners.add(self.window.watch)
        self.invoker = Invoker(
            self.ledger,
            self.writer,
            self.notifier,
            world.bus,
            DirectiveBuilder(TOKENS, callback_base="http://lucius.test"),
            self.window,
            InvokerLimits(publish_timeout_ms=2_000),
            now_ms=now_ms,
            reply_backlog=self.reply_backlog,
            own_defaults=own_defaults,
            flow=kernel.flow,
        )
        self.sweeper = Sweeper(self.indexes, self.due_handler, now_ms=now_ms, look_every_ms=SHORT_MS)
        self.repair = WorkflowRepair(self.ledger, workflows, now_ms=now_ms)
        self.repairer = Sweeper(self.indexes, self.repair, now_ms=now_ms, look_every_ms=SHORT_MS)
        self.consumer = make_reply_consumer(
            world.bus,
            self.writer,
            ConsumerLimits(wait_ms=SHORT_MS, give_back_delay_ms=0, ping_every_ms=SHORT_MS, bus_retry_ms=5),
            notify=self.notifier.notify_in_time,
            ping_ledger=world.ping_ledger,
            ping_workflows=workflows.ping,
            reply_backlog=self.reply_backlog,
        )

    # Asking

    async def submit(self, request_type: str = "OCR", *, workflow: bool = True) -> str:
        accepted = await self.submitter.submit(envelope(request_type, TENANT, str(self.world.next_id())))
        assert isinstance(accepted, Submitted), accepted
        if workflow:
            self.workflows.open.add(accepted.job_id)
        return accepted.job_id

    async def attempt(
        self,
        job_id: str,
        number: int = 1,
        *,
        lease: str = "",
        step: str = "step_01",
        publish: bool = True,
        wait: bool = False,
    ) -> InternalAnswer:
        ask = AttemptRequest(
            jobId=job_id,
            stepId=step,
            attempt_no=number,
            lease_id=lease or f"L{number}-{step}",
            publish=publish,
            wait=wait,
        )
        return _answer(await self.invoker.attempt(ask))

    async def publish_in_vain(self, job_id: str) -> Refused:
        """The first attempt of step 1 is begun, if it was not, and the bus does not take its directive."""
        told = await self.invoker.attempt(
            AttemptRequest(jobId=job_id, stepId="step_01", attempt_no=1, lease_id="L1-step_01", publish=True)
        )
        assert isinstance(told, Refused), told
        return told

    async def publish(self, job_id: str, number: int = 1, *, lease: str = "") -> InternalAnswer:
        lease_id = lease or f"L{number}-step_01"
        ask = PublishRequest(jobId=job_id, stepId="step_01", attempt_no=number, lease_id=lease_id)
        return _answer(await self.invoker.publish(ask))

    async def expire(
        self, job_id: str, reason: ExpireReason, number: int = 1, *, lease: str = ""
    ) -> InternalAnswer:
        ask = ExpireRequest(
            jobId=job_id,
            stepId="step_01",
            attempt_no=number,
            lease_id=lease or f"L{number}-step_01",
            reason=reason,
        )
        return _answer(await self.invoker.expire(ask))

    async def control(self, job_id: str, wish: Control) -> InternalAnswer:
        return _answer(await self.invoker.control(job_id, wish))

    async def apply(self, job_id: str, given: Input) -> Applied:
        applied = await self.notifier.apply(job_id, given)
        assert isinstance(applied, Applied), applied
        return applied

    # Looking

    async def record(self, job_id: str) -> JobRecord:
        loaded = await self.ledger.load(job_id, fresh=True)
        assert loaded is not None
        return loaded.record

    async def states(self, job_id: str) -> tuple[str, ...]:
        """The state of the job, then of each step."""
        record = await self.record(job_id)
        return record.job.state.value, *(step.state.value for step in record.steps)

    async def events(self, job_id: str) -> list[Event]:
        return await self.ledger.events(job_id, limit=1_000)

    async def facts(self, job_id: str) -> list[Fact]:
        return [event.type for event in await self.events(job_id)]

    async def due(self) -> list[DueEntry]:
        """Every due row there is."""
        return [entry for lane in range(16) for entry in await self.indexes.due(lane, 10**13, 100)]


def _answer(told: InternalAnswer | Refused) -> InternalAnswer:
    assert isinstance(told, InternalAnswer), told
    return told


@asynccontextmanager
async def internal_api(deployment: Deployment, secret: str) -> AsyncIterator[str]:
    """The deployment's internal API behind a real server, and its address."""

    async def well() -> str | None:
        return None

    app = make_internal_app(deployment.invoker, [secret], {"ledger": well})
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            while not server.started:
                await asyncio.sleep(0.005)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving
