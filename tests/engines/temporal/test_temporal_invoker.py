"""The whole temporal engine: a real Temporal server, worker and workflow, the real invoker behind real HTTP
over a ledger and a bus in memory, and services on that bus."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import msgspec
import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowFailureError
from tests.replay.temporal_setup_replay import now_ms
from tests.support.invoker_setup import Deployment, Workflows, internal_api
from tests.support.publisher_setup import Message, Worker, World, fates, message_of

from lucius.bus.memory import PublishFault
from lucius.contracts.internal import Position, StepSignal, position_of
from lucius.core.inputs import Cancel, Pause, Resume
from lucius.core.model import Event, JobRecord, StepPolicy
from lucius.core.states import Fact, JobState
from lucius.engines.temporal.activities import InvokerCalls
from lucius.engines.temporal.client import (
    StartOptions,
    TemporalLink,
    TemporalSignaller,
    TemporalStarter,
    TemporalTarget,
)
from lucius.engines.temporal.held_calls import HeldCallLimits
from lucius.engines.temporal.worker import TemporalWorker, WorkerLimits
from lucius.jobs.new_job import NewIds
from lucius.jobs.workflows import StartOutcome, WorkflowLabels, signal_position
from lucius.registry.builtin import BuiltinRegistry
from lucius.registry.catalogue import Catalogue

pytestmark = pytest.mark.xdist_group("temporal")

SECRET = "a-secret-of-many-letters"
END_SECONDS_MAX = 30
SIGNALLED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
SHORT_MS = 250
QUICK = StepPolicy(
    backoff_ack_ms=(0,), backoff_result_ms=(0,), backoff_publish_ms=(SHORT_MS,), ack_timeout_ms=20_000
)
HELD = HeldCallLimits()
_jobs = count()

Script = Callable[["Service", Message], Awaitable[None]]


class Live(World):
    """A world whose clock is the real one: timers of workflows run by it."""

    def now_ms(self) -> int:
        return now_ms()

    def new_ids(self) -> NewIds:
        return NewIds(job_id=f"job_live_{now_ms()}_{next(_jobs)}", correlation_id="c", traceparent="t")


class Real(Workflows):
    """Workflows that are."""

    def __init__(self, link: TemporalLink) -> None:
        super().__init__()
        self.link = link
        self._starter, self._signaller = TemporalStarter(link, StartOptions()), TemporalSignaller(link)

    async def signal(self, job_id: str, name: str, signal: StepSignal) -> bool:
        return await self._signaller.signal(job_id, name, signal)

    async def start(
        self, job_id: str, position: Position, labels: WorkflowLabels | None = None, *, is_open: bool = False
    ) -> StartOutcome:
        return await self._starter.start(job_id, position, labels, is_open=is_open)

    async def ping(self) -> None:
        await self.link.ping()


class Service(Worker):
    """Does with each directive what its script says."""

    def __init__(self, world: World, service: str, script: Script) -> None:
        super().__init__(world, service)
        self.script = script
        self.taken: list[Message] = []

    async def run(self) -> None:
        receiver = await self.world.bus.directives(self.service, self.lane)
        while True:
            for delivery in await receiver.receive(messages_max=10, wait_ms=SHORT_MS):
                await receiver.complete(delivery)
                self.taken.append(message_of(delivery))
                await self.script(self, self.taken[-1])


async def succeed(service: Service, directive: Message) -> None:
    await service.reply("ACK", directive)
    ref = {"uri": f"s3://results/{directive['stepId']}"}
    await service.reply("RESULT", directive, status="SUCCEEDED", output_ref=ref)


async def in_a_moment(service: Service, directive: Message) -> None:
    await asyncio.sleep(SHORT_MS / 1000)
    await succeed(service, directive)


class Engine:
    def __init__(self, deployment: Deployment, workflows: Real, services: dict[str, Service]) -> None:
        self.deployment, self.workflows, self.services = deployment, workflows, services

    async def submit(self, request_type: str = "OCR") -> str:
        job_id = await self.deployment.submit(request_type)
        position = position_of(await self.deployment.record(job_id))
        assert await self.workflows.start(job_id, position) is StartOutcome.STARTED
        return job_id

    async def end(self, job_id: str) -> JobState:
        """The state of a job whose workflow has ended."""
        client = await self.workflows.link.client()
        try:
            async with asyncio.timeout(END_SECONDS_MAX):
                await client.get_workflow_handle(job_id).result()
        except WorkflowFailureError:
            assert (await self.deployment.record(job_id)).job.state is JobState.FAILED_FINAL
        return (await self.deployment.record(job_id)).job.state

    async def reach(self, job_id: str, state: JobState) -> None:
        reached = asyncio.Event()

        def watch(before: JobRecord | None, after: JobRecord, events: Sequence[Event]) -> None:
            if (after.job.job_id, after.job.state) == (job_id, state):
                reached.set()

        self.deployment.listeners.add(watch)
        if (await self.deployment.record(job_id)).job.state is not state:
            await asyncio.wait_for(reached.wait(), END_SECONDS_MAX)

    async def facts(self, job_id: str) -> list[Fact]:
        return await self.deployment.facts(job_id)

    async def history(self, job_id: str) -> list[EventType.ValueType]:
        client = await self.workflows.link.client()
        return [event.event_type async for event in client.get_workflow_handle(job_id).fetch_history_events()]


@asynccontextmanager
async def engine(
    server: TemporalTarget,
    script: Script = succeed,
    *,
    policy: StepPolicy = QUICK,
    questions: HeldCallLimits | None = HELD,
    **deployment: Any,
) -> AsyncIterator[Engine]:
    world, workflows = Live(), Real(TemporalLink(server))
    one = Deployment(world, workflows, policy=policy, questions=questions, **deployment)
    services = {name: Service(world, name, script) for name in ("ocr", "embedding", "sis")}
    async with internal_api(one, SECRET) as url:
        calls = InvokerCalls(url, SECRET)
        worker = TemporalWorker(workflows.link, calls, WorkerLimits(), build_id="test")
        working = asyncio.create_task(worker.run())
        consuming = asyncio.create_task(one.consumer.run())
        serving = [asyncio.create_task(service.run()) for service in services.values()]
        try:
            yield Engine(one, workflows, services)
        finally:
            worker.stop()
            one.consumer.stop()
            for task in serving:
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)
            await asyncio.gather(working, consuming)
            await calls.close()


def once(first: Script) -> Script:
    """This for the first directive of each service, success after it."""

    async def script(service: Service, directive: Message) -> None:
        await (first if len(service.taken) == 1 else succeed)(service, directive)

    return script


@pytest.mark.parametrize("signal_acks", [True, False])
@pytest.mark.parametrize("questions", [None, HELD])
async def test_three_steps(
    temporal: TemporalTarget, signal_acks: bool, questions: HeldCallLimits | None
) -> None:
    async with engine(
        temporal,
        in_a_moment,
        signal_acks=signal_acks,
        questions=questions,
        ack_patience_seconds=END_SECONDS_MAX,
    ) as lucius:
        job_id = await lucius.submit("OCR_EMBEDDING_SIS")
        assert await lucius.end(job_id) is JobState.SUCCEEDED
        signals = (await lucius.history(job_id)).count(SIGNALLED)
        assert signals == (0 if questions else 3), "quick steps need none where questions are held back"
        step = [Fact.ATTEMPT_BEGUN, Fact.DIRECTIVE_PUBLISHED, Fact.STEP_ACKED, Fact.STEP_SUCCEEDED]
        assert await lucius.facts(job_id) == [Fact.JOB_CREATED, *step * 3, Fact.JOB_SUCCEEDED]
        assert (await lucius.deployment.record(job_id)).job.final_output == "s3://results/step_03"


async def test_many_jobs_side_by_side(temporal: TemporalTarget) -> None:
    async with engine(temporal) as lucius:
        jobs = await asyncio.gather(*(lucius.submit("OCR_EMBEDDING") for _ in range(12)))
        ends = await asyncio.gather(*(lucius.end(job_id) for job_id in jobs))
        assert ends == [JobState.SUCCEEDED] * 12
        assert len(lucius.services["ocr"].taken) == len(lucius.services["embedding"].taken) == 12


async def test_a_retry_and_a_final_failure(temporal: TemporalTarget) -> None:
    async def fail(service: Service, directive: Message) -> None:
        status = "FAILED_FINAL" if service.service == "embedding" else "FAILED_RETRY"
        await service.reply("RESULT", directive, status=status, error={"code": "BROKEN"})

    async with engine(temporal, once(fail)) as lucius:
        job_id = await lucius.submit("OCR_EMBEDDING_SIS")
        assert await lucius.end(job_id) is JobState.FAILED_FINAL
        record = await lucius.deployment.record(job_id)
        assert [step.attempt_no for step in record.steps] == [2, 1, 0]
        assert record.job.error_code == "BROKEN"


async def test_no_ack_then_a_late_answer(temporal: TemporalTarget) -> None:
    """The first attempt times out; its answer comes while the second is under way, and counts for nothing."""

    async def both(service: Service, directive: Message) -> None:
        if len(service.taken) == 2:
            await succeed(service, service.taken[0])
            await succeed(service, directive)

    policy = StepPolicy(ack_timeout_ms=SHORT_MS, backoff_ack_ms=(0,))
    async with engine(temporal, both, policy=policy) as lucius:
        job_id = await lucius.submit()
        assert await lucius.end(job_id) is JobState.SUCCEEDED
        facts = await lucius.facts(job_id)
        assert facts.count(Fact.REPLY_STALE) == 2
        assert facts.count(Fact.ATTEMPT_BEGUN) == 2
        assert [one["attempt_no"] for one in lucius.services["ocr"].taken] == [1, 2]


async def test_a_lease_runs_out(temporal: TemporalTarget) -> None:
    async def acknowledge(service: Service, directive: Message) -> None:
        await service.reply("ACK", directive)

    policy = StepPolicy(lease_ms=SHORT_MS, backoff_result_ms=(0,), max_attempts=2)
    async with engine(temporal, acknowledge, policy=policy) as lucius:
        job_id = await lucius.submit()
        assert await lucius.end(job_id) is JobState.FAILED_FINAL
        record = await lucius.deployment.record(job_id)
        assert (record.job.error_code, record.job.attempts_total) == ("LEASE_EXPIRED", 2)


async def test_pause_and_resume(temporal: TemporalTarget) -> None:
    async def paused_meanwhile(service: Service, directive: Message) -> None:
        await deployment.control(directive["jobId"], Pause())
        await succeed(service, directive)
        stopped.set()

    stopped = asyncio.Event()
    async with engine(temporal, once(paused_meanwhile)) as lucius:
        deployment = lucius.deployment
        job_id = await lucius.submit("OCR")
        await stopped.wait()
        assert await lucius.end(job_id) is JobState.SUCCEEDED  # a success of the last step ends the job
        stopped.clear()
        lucius.services["ocr"].taken.clear()
        job_id = await lucius.submit("OCR_EMBEDDING")
        await stopped.wait()
        await lucius.reach(job_id, JobState.PAUSED)
        assert lucius.services["embedding"].taken == []
        await deployment.control(job_id, Resume())
        assert await lucius.end(job_id) is JobState.SUCCEEDED


async def test_a_pause_that_asks_the_worker_to_stop(temporal: TemporalTarget) -> None:
    """The attempt is not counted, and the workflow begins a fresh one once the job is resumed."""
    usual = BuiltinRegistry(defaults=msgspec.structs.replace(QUICK, max_attempts=1)).find("ocr_v1")
    assert usual is not None
    steps = (msgspec.structs.replace(usual.steps[0], stop_on_pause=True),)
    registry = Catalogue([("test", msgspec.structs.replace(usual, steps=steps))])

    async def stopped(service: Service, directive: Message) -> None:
        await service.reply("ACK", directive)
        await deployment.control(directive["jobId"], Pause())
        await service.reply("RESULT", directive, status="FAILED_RETRY", error={"code": "STOPPED"})

    async with engine(temporal, once(stopped), registry=registry) as lucius:
        deployment = lucius.deployment
        job_id = await lucius.submit()
        await lucius.reach(job_id, JobState.PAUSED)
        await deployment.control(job_id, Resume())
        assert await lucius.end(job_id) is JobState.SUCCEEDED
        first, second = lucius.services["ocr"].taken
        assert (first["attempt_no"], second["attempt_no"]) == (1, 2)
        assert first["lease_id"] != second["lease_id"]
        assert (await deployment.record(job_id)).job.attempts_total == 2


async def test_cancel(temporal: TemporalTarget) -> None:
    async def cancelled_meanwhile(service: Service, directive: Message) -> None:
        await service.reply("ACK", directive)
        await deployment.control(directive["jobId"], Cancel())
        await service.reply("RESULT", directive, status="FAILED_RETRY", error={"code": "STOPPED"})

    async with engine(temporal, cancelled_meanwhile) as lucius:
        deployment = lucius.deployment
        job_id = await lucius.submit("OCR_EMBEDDING")
        assert await lucius.end(job_id) is JobState.CANCELLED
        assert await deployment.states(job_id) == ("CANCELLED", "CANCELLED", "CANCELLED")


async def test_a_full_window_makes_the_next_job_wait(temporal: TemporalTarget) -> None:
    """One unacknowledged directive a lane: the second job leaves when the first is acknowledged."""
    let_go = asyncio.Event()

    async def slowly(service: Service, directive: Message) -> None:
        await let_go.wait()
        await succeed(service, directive)

    async with engine(temporal, slowly, window=1) as lucius:
        first = await lucius.submit()
        second = await lucius.submit()
        async with asyncio.timeout(END_SECONDS_MAX):
            while lucius.deployment.invoker.verdicts["attempt", "wait"] == 0:
                await asyncio.sleep(0.01)
        assert len(lucius.services["ocr"].taken) == 1
        let_go.set()
        assert await lucius.end(first) is JobState.SUCCEEDED
        assert await lucius.end(second) is JobState.SUCCEEDED


async def test_a_bus_that_is_away_fails_the_activity_until_it_is_back(temporal: TemporalTarget) -> None:
    policy = StepPolicy(backoff_publish_ms=(SHORT_MS,))
    async with engine(temporal, policy=policy) as lucius:
        deployment = lucius.deployment
        deployment.world.bus.on_publish = fates(PublishFault.REFUSED, PublishFault.REFUSED)
        job_id = await lucius.submit()
        assert await lucius.end(job_id) is JobState.SUCCEEDED
        verdicts = deployment.invoker.verdicts
        assert verdicts["attempt", "PUBLISH_FAILED"] + verdicts["publish", "PUBLISH_FAILED"] == 2
        assert (await lucius.facts(job_id)).count(Fact.PUBLISH_FAILED) == 2
        client = await lucius.workflows.link.client()
        history = (await client.get_workflow_handle(job_id).fetch_history()).to_json()
        assert history.count('"type": "PUBLISH_FAILED"') == 2, "its history tells what went wrong"


@pytest.mark.parametrize("resulted", ["before", "after"])
@pytest.mark.parametrize("ack_patience_seconds", [0.01, END_SECONDS_MAX])
async def test_a_workflow_is_killed_and_another_takes_over(
    temporal: TemporalTarget, ack_patience_seconds: float, resulted: str
) -> None:
    """With much patience its question is still open when it is killed; `resulted`: when, beside the start of
    the other."""
    taken = asyncio.Event()

    async def take(service: Service, directive: Message) -> None:
        if service.service != "ocr":
            await succeed(service, directive)
            return
        await service.reply("ACK", directive)
        taken.set()

    async with engine(temporal, take, ack_patience_seconds=ack_patience_seconds) as lucius:
        job_id = await lucius.submit("OCR_EMBEDDING")
        await taken.wait()
        client = await lucius.workflows.link.client()
        await client.get_workflow_handle(job_id).terminate()
        position = position_of(await lucius.deployment.record(job_id))
        service = lucius.services["ocr"]
        if resulted == "before":
            await succeed(service, service.taken[0])
        assert await lucius.workflows.start(job_id, position) is StartOutcome.STARTED
        if resulted == "before":
            # No workflow was there to be told of the RESULT. Repair leaves the due row, whose alarm says it.
            record = await lucius.deployment.record(job_id)
            await signal_position(lucius.workflows, record, now_ms=record.job.updated_at_ms)
        if resulted == "after":
            await succeed(service, service.taken[0])
        assert await lucius.end(job_id) is JobState.SUCCEEDED
        assert (await lucius.facts(job_id)).count(Fact.ATTEMPT_BEGUN) == 2
