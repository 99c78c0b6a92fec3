"""Replies from the bus: into the ledger, to the workflow, and only then settled."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from tests.support.invoker_setup import Deployment, Workflows
from tests.support.publisher_setup import LANE, Message, Worker, World

from lucius.contracts.internal import StepSignal, Verdict
from lucius.core.states import Engine, Fact, JobState, StepState
from lucius.jobs.workflows import WorkflowsUnavailable

RESULT = {"status": "SUCCEEDED", "output_ref": {"uri": "s3://out/1"}}


@pytest.fixture
def world() -> World:
    return World(lock_ms=30_000, deliveries_max=3)


@pytest.fixture
def deployment(world: World) -> Deployment:
    return Deployment(world, Workflows())


@asynccontextmanager
async def consuming(deployment: Deployment) -> AsyncIterator[None]:
    running = asyncio.create_task(deployment.consumer.run())
    try:
        yield
    finally:
        deployment.consumer.stop()
        async with asyncio.timeout(5):
            await running


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.002)


async def begun(deployment: Deployment, request_type: str = "OCR") -> tuple[str, Worker, Message]:
    job_id = await deployment.submit(request_type)
    assert (await deployment.attempt(job_id)).verdict is Verdict.GO
    worker = Worker(deployment.world)
    return job_id, worker, await worker.take_one()


async def left(world: World) -> int:
    """How many replies are still on the bus, whether somebody holds them or not."""
    world.clock_ms += 60_000
    receiver = await world.bus.replies(LANE, group="lucius")
    return len(await receiver.receive(messages_max=100, wait_ms=0))


async def test_an_ack_and_a_result_are_told(world: World, deployment: Deployment) -> None:
    job_id, worker, directive = await begun(deployment, "OCR_EMBEDDING")
    async with consuming(deployment):
        await worker.reply("ACK", directive)
        await until(lambda: deployment.workflows.names(job_id) == ["step_ack"])
        await worker.reply("PROGRESS", directive, progress=10)
        await worker.reply("RESULT", directive, **RESULT)
        await until(lambda: len(deployment.workflows.names(job_id)) == 2)
    acked, resulted = (signal for _, signal in deployment.workflows.sent[job_id])
    assert (acked.stepId, acked.attempt_no, acked.lease_id) == ("step_01", 1, "L1-step_01")
    assert acked.position.step_state is StepState.PROCESSING
    assert (resulted.status, resulted.position.stepId) == ("SUCCEEDED", "step_02")
    assert resulted.position.step_state is StepState.PENDING
    assert resulted.position.version == (await deployment.record(job_id)).job.version
    assert await left(world) == 0
    assert await deployment.states(job_id) == ("IN_PROGRESS", "SUCCEEDED", "PENDING")


async def test_a_failure_is_told_with_its_code_and_message(deployment: Deployment) -> None:
    job_id, worker, directive = await begun(deployment)
    async with consuming(deployment):
        await worker.reply(
            "RESULT", directive, status="FAILED_RETRY", error={"code": "BUSY", "message": "no"}
        )
        await until(lambda: bool(deployment.workflows.names(job_id)))
    ((_, signal),) = deployment.workflows.sent[job_id]
    assert (signal.status, signal.error_code, signal.error_message) == ("FAILED_RETRY", "BUSY", "no")
    assert signal.position.next_attempt_at_ms == deployment.world.clock_ms + 30_000


async def test_acks_are_not_signalled_where_that_is_switched_off(world: World) -> None:
    deployment = Deployment(world, Workflows(), signal_acks=False)
    job_id, worker, directive = await begun(deployment)
    async with consuming(deployment):
        await worker.reply("ACK", directive)
        await worker.reply("RESULT", directive, **RESULT)
        await until(lambda: bool(deployment.workflows.names(job_id)))
    assert deployment.workflows.names(job_id) == ["step_result"]
    assert deployment.workflows.newest(job_id).job_state is JobState.SUCCEEDED


async def test_an_ack_that_is_overtaken_is_not_told_and_holds_nobody_up(world: World) -> None:
    deployment = Deployment(world, Workflows(), ack_patience_seconds=60)
    job_id, worker, directive = await begun(deployment)
    async with consuming(deployment):
        await worker.reply("ACK", directive)
        await until(lambda: deployment.writer.outcomes["Ack", "applied"] == 1)
        assert deployment.consumer.outcomes.total() == 0, "it is neither told nor settled yet"
        await worker.reply("RESULT", directive, **RESULT)
        await until(lambda: deployment.consumer.outcomes["applied"] == 2)
    assert deployment.workflows.names(job_id) == ["step_result"]
    assert deployment.notifier.signals == {("step_result", "heard"): 1, ("step_ack", "overtaken"): 1}
    assert await left(world) == 0


async def test_a_workflow_that_is_slow_to_hear_holds_no_other_job_up(world: World) -> None:
    class Slow(Workflows):
        slow = ""

        async def signal(self, job_id: str, name: str, signal: StepSignal) -> bool:
            if job_id == self.slow:
                await until(lambda: len(self.sent) == 1)
            return await super().signal(job_id, name, signal)

    workflows = Slow()
    deployment = Deployment(world, workflows)
    workflows.slow, worker, directive = await begun(deployment)
    async with consuming(deployment):
        await worker.reply("RESULT", directive, **RESULT)
        await until(lambda: deployment.writer.outcomes["Result", "applied"] == 1)
        other, worker, directive = await begun(deployment)
        await worker.reply("RESULT", directive, **RESULT)
        await until(lambda: deployment.consumer.outcomes["applied"] == 2)
    assert list(workflows.sent) == [other, workflows.slow]
    assert await left(world) == 0


async def test_an_ack_is_told_though_what_came_after_it_could_not_be(world: World) -> None:
    class HardOfHearing(Workflows):
        async def signal(self, job_id: str, name: str, signal: StepSignal) -> bool:
            if name == "step_result" and "step_ack" not in self.names(job_id):
                raise WorkflowsUnavailable("nobody heard")
            return await super().signal(job_id, name, signal)

    deployment = Deployment(world, HardOfHearing(), ack_patience_seconds=0.2)
    job_id, worker, directive = await begun(deployment)
    async with consuming(deployment):
        await worker.reply("ACK", directive)
        await worker.reply("RESULT", directive, **RESULT)
        await until(lambda: deployment.workflows.names(job_id) == ["step_ack", "step_result"])
    assert await left(world) == 0


async def test_an_ack_that_nobody_could_be_told_of_comes_again(world: World, deployment: Deployment) -> None:
    job_id, worker, directive = await begun(deployment)
    deployment.workflows.down = True
    async with consuming(deployment):
        await worker.reply("ACK", directive)
        await until(lambda: not deployment.consumer.fetching)
        deployment.workflows.down = False
        await until(lambda: deployment.workflows.names(job_id) == ["step_ack"])
        await until(lambda: deployment.consumer.outcomes["duplicate"] == 1)
    assert await left(world) == 0


async def test_nothing_is_settled_while_workflows_are_away(world: World, deployment: Deployment) -> None:
    job_id, worker, directive = await begun(deployment)
    deployment.workflows.down = True
    async with consuming(deployment):
        await worker.reply("RESULT", directive, **RESULT)
        await until(lambda: not deployment.consumer.fetching)
        assert (await deployment.states(job_id))[0] == "SUCCEEDED", "the ledger has it already"
        deployment.workflows.down = False
        await until(lambda: deployment.workflows.names(job_id) == ["step_result"])
        await until(lambda: deployment.consumer.outcomes["duplicate"] == 1)
    assert await left(world) == 0
    assert await world.replies_buried() == []
    assert deployment.notifier.signals["step_result", "unavailable"] >= 1


async def test_however_often_a_signal_fails_no_reply_is_buried(world: World, deployment: Deployment) -> None:
    job_id, worker, directive = await begun(deployment)
    deployment.workflows.deaf = True
    async with consuming(deployment):
        await worker.reply("RESULT", directive, **RESULT)
        # More often than the bus would deliver it.
        await until(lambda: deployment.notifier.signals["step_result", "unavailable"] > 8)
        deployment.workflows.deaf = False
        await until(lambda: deployment.workflows.names(job_id) == ["step_result"])
    assert deployment.workflows.newest(job_id).terminal
    assert await left(world) == 0
    assert await world.replies_buried() == []


async def test_a_crash_between_commit_and_signal_is_made_good_by_redelivery(world: World) -> None:
    class Stuck(Workflows):
        reached = False

        async def signal(self, job_id: str, name: str, signal: StepSignal) -> bool:
            self.reached = True
            await asyncio.Event().wait()
            return False

    job_id, worker, directive = await begun(Deployment(world, Workflows()))
    stuck = Stuck()
    dying = Deployment(world, stuck)
    await worker.reply("RESULT", directive, **RESULT)
    running = asyncio.create_task(dying.consumer.run())
    await until(lambda: stuck.reached)
    running.cancel()
    await asyncio.wait({running})
    assert (await dying.states(job_id))[0] == "SUCCEEDED"
    world.clock_ms += 60_000  # the lock of the dead runs out
    deployment = Deployment(world, Workflows())
    deployment.workflows.open.add(job_id)
    async with consuming(deployment):
        await until(lambda: deployment.workflows.names(job_id) == ["step_result"])
    assert deployment.workflows.newest(job_id).job_state is JobState.SUCCEEDED
    assert await left(world) == 0


async def test_a_duplicate_is_told_again_and_a_stale_reply_is_not(deployment: Deployment) -> None:
    job_id, worker, directive = await begun(deployment, "OCR_EMBEDDING")
    async with consuming(deployment):
        for _ in range(2):
            await worker.reply("RESULT", directive, **RESULT)
        await worker.reply("RESULT", {**directive, "lease_id": "another"}, **RESULT)
        await until(lambda: deployment.consumer.outcomes.total() == 3)
    assert deployment.workflows.names(job_id) == ["step_result", "step_result"]
    assert deployment.workflows.newest(job_id).stepId == "step_02"
    facts = await deployment.facts(job_id)
    assert (facts.count(Fact.STEP_SUCCEEDED), facts.count(Fact.REPLY_STALE)) == (1, 1)


async def test_a_workflow_that_is_not_there_does_not_hold_the_reply_up(
    world: World, deployment: Deployment
) -> None:
    job_id, worker, directive = await begun(deployment)
    deployment.workflows.open.clear()
    async with consuming(deployment):
        await worker.reply("RESULT", directive, **RESULT)
        await until(lambda: deployment.consumer.outcomes["applied"] == 1)
    assert await left(world) == 0
    assert deployment.notifier.signals == {("step_result", "nobody"): 1}
    assert (await deployment.states(job_id))[0] == "SUCCEEDED"


async def test_jobs_of_the_outbox_engine_share_the_lanes_and_are_only_applied(world: World) -> None:
    outbox, deployment = Deployment(world, Workflows(), engine=Engine.OUTBOX), Deployment(world, Workflows())
    job_id = await outbox.submit()
    record = await outbox.record(job_id)
    step = record.steps[0]
    directive = {
        "jobId": job_id,
        "stepId": step.step_id,
        "tenant_id": record.job.tenant_id,
        "attempt_no": step.attempt_no,
        "lease_id": step.lease_id,
    }
    async with consuming(deployment):
        await Worker(world).reply("RESULT", directive, **RESULT)
        await until(lambda: deployment.consumer.outcomes["applied"] == 1)
    assert (await deployment.states(job_id))[0] == "SUCCEEDED"
    assert deployment.notifier.signals.total() == 0
