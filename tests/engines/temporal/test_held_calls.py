"""A question that is held back a moment: its workflow hears of the attempt's end as the answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from tests.engines.temporal.test_invoker_replies import RESULT, consuming, until
from tests.support.invoker_setup import Deployment, Workflows, internal_api
from tests.support.publisher_setup import LANE, Message, Worker, World

from lucius.bus.port import DirectiveOut
from lucius.contracts.internal import InternalAnswer, Verdict
from lucius.core.inputs import Cancel, ExpireReason, Pause
from lucius.core.model import StepPolicy
from lucius.core.states import JobState, StepState
from lucius.engines.temporal.held_calls import HeldCallLimits

SECRET = "a-secret-of-many-letters"
LONG = HeldCallLimits(wait_ms=60_000, answer_ms=60_000)
PATIENT = StepPolicy(ack_timeout_ms=600_000)
SOON_SECONDS = 5


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def deployment(world: World) -> Deployment:
    return make_deployment(world)


def make_deployment(
    world: World, limits: HeldCallLimits | None = LONG, *, patience: float = 60
) -> Deployment:
    return Deployment(world, Workflows(), policy=PATIENT, questions=limits, ack_patience_seconds=patience)


class Asked:
    """A question on its way, and its directive."""

    def __init__(self, job_id: str, answer: asyncio.Task[InternalAnswer], worker: Worker) -> None:
        self.job_id = job_id
        self.worker = worker
        self.directive: Message = {}
        self._answer = answer

    @property
    def waits(self) -> bool:
        return not self._answer.done()

    async def answer(self) -> InternalAnswer:
        async with asyncio.timeout(SOON_SECONDS):
            return await self._answer

    def give_up(self) -> None:
        self._answer.cancel()


@asynccontextmanager
async def asked(
    deployment: Deployment, request_type: str = "OCR_EMBEDDING", *, noted_later: bool = False
) -> AsyncIterator[Asked]:
    """Once it is held back, or answered."""
    job_id, held = await deployment.submit(request_type), deployment.questions.held
    answer = asyncio.create_task(deployment.attempt(job_id, wait=True))
    one = Asked(job_id, answer, Worker(deployment.world))
    try:
        one.directive = await one.worker.take_one(wait_ms=SOON_SECONDS * 1000)
        await until(lambda: noted_later or answer.done() or deployment.questions.held > held)
        yield one
    finally:
        answer.cancel()
        await asyncio.gather(answer, return_exceptions=True)


async def unsettled(world: World) -> int:
    """How many replies are still on the bus once every lock has run out."""
    world.clock_ms += 60_000
    receiver = await world.bus.replies(LANE, group="lucius")
    return len(await receiver.receive(messages_max=100, wait_ms=0))


async def test_a_result_is_the_answer_and_no_signal_is_sent(world: World, deployment: Deployment) -> None:
    async with consuming(deployment), asked(deployment) as one:
        await one.worker.reply("ACK", one.directive)
        await until(lambda: deployment.writer.outcomes["Ack", "applied"] == 1)
        assert one.waits, "an ACK moves no workflow"
        await one.worker.reply("RESULT", one.directive, **RESULT)
        told = await one.answer()
        await until(lambda: deployment.consumer.outcomes["applied"] == 2)
    assert (told.verdict, told.position.stepId) == (Verdict.MOVED, "step_02")
    assert told.position.step_state is StepState.PENDING
    assert told.position.version == (await deployment.record(one.job_id)).job.version
    assert deployment.workflows.sent == {}
    assert deployment.notifier.signals == {("step_result", "answered"): 1, ("step_ack", "overtaken"): 1}
    assert await unsettled(world) == 0


async def test_the_end_of_a_job_is_an_answer_too(deployment: Deployment) -> None:
    async with consuming(deployment), asked(deployment, "OCR") as one:
        await one.worker.reply("RESULT", one.directive, **RESULT)
        told = await one.answer()
    assert (told.verdict, told.position.job_state, told.position.stepId) == (
        Verdict.STOP,
        JobState.SUCCEEDED,
        None,
    )


async def test_a_failure_is_an_answer_with_the_time_of_the_next_attempt(deployment: Deployment) -> None:
    async with consuming(deployment), asked(deployment) as one:
        await one.worker.reply("RESULT", one.directive, status="FAILED_RETRY", error={"code": "BUSY"})
        told = await one.answer()
    assert (told.verdict, told.position.step_state) == (Verdict.MOVED, StepState.FAILED_RETRY)
    assert told.position.next_attempt_at_ms == deployment.world.clock_ms + 30_000


async def test_a_result_that_comes_before_its_directive_is_noted_as_sent(
    world: World, deployment: Deployment
) -> None:
    """The service may be quicker than our own note that the bus took the directive."""
    note_after_the_result(world, deployment)
    async with consuming(deployment), asked(deployment, noted_later=True) as one:
        await one.worker.reply("RESULT", one.directive, **RESULT)
        told = await one.answer()
    assert (told.verdict, told.position.stepId) == (Verdict.MOVED, "step_02")
    assert deployment.workflows.sent == {}


def note_after_the_result(world: World, deployment: Deployment) -> None:
    publish = world.bus.publish_directive

    async def publish_and_wait(directive: DirectiveOut) -> None:
        await publish(directive)
        await until(lambda: deployment.writer.outcomes["Result", "applied"] == 1)

    world.bus.publish_directive = publish_and_wait  # type: ignore[method-assign]


async def test_whoever_gave_up_is_signalled(deployment: Deployment) -> None:
    async with consuming(deployment), asked(deployment) as one:
        one.give_up()
        await asyncio.sleep(0)
        await one.worker.reply("RESULT", one.directive, **RESULT)
        await until(lambda: deployment.workflows.names(one.job_id) == ["step_result"])
    again = await deployment.attempt(one.job_id, wait=True)
    assert (again.verdict, again.position.stepId) == (Verdict.MOVED, "step_02"), (
        "and hears it when it asks again"
    )


async def test_an_ack_that_was_put_off_is_an_answer(world: World) -> None:
    deployment = make_deployment(world, patience=0.05)
    async with consuming(deployment), asked(deployment) as one:
        await one.worker.reply("ACK", one.directive)
        told = await one.answer()
        await one.worker.reply("RESULT", one.directive, **RESULT)
        await until(lambda: deployment.workflows.names(one.job_id) == ["step_result"])
    assert (told.verdict, told.position.step_state) == (Verdict.GO, StepState.PROCESSING)


@pytest.mark.parametrize("wish", [Pause(), Cancel()])
async def test_a_control_is_answered_and_signalled(deployment: Deployment, wish: Pause | Cancel) -> None:
    async with asked(deployment) as one:
        await deployment.control(one.job_id, wish)
        told = await one.answer()
    assert told.position.version == (await deployment.record(one.job_id)).job.version
    assert len(deployment.workflows.names(one.job_id)) == 1


async def test_an_answer_comes_in_time_though_nothing_happens(world: World) -> None:
    deployment = make_deployment(world, HeldCallLimits(wait_ms=50))
    async with asked(deployment) as one:
        assert (await one.answer()).verdict is Verdict.GO


async def test_nobody_waits_past_the_attempts_own_time(world: World) -> None:
    policy = StepPolicy(ack_timeout_ms=50)
    deployment = Deployment(world, Workflows(), policy=policy, questions=LONG)
    async with asked(deployment) as one:
        told = await one.answer()
    assert told.verdict is Verdict.GO
    assert told.position.deadline_at_ms == world.clock_ms + 50


async def test_where_others_do_not_tell_nobody_waits(world: World) -> None:
    deployment = make_deployment(world, None)
    async with asked(deployment) as one:
        assert (await one.answer()).verdict is Verdict.GO


async def test_who_does_not_ask_to_wait_does_not(deployment: Deployment) -> None:
    job_id = await deployment.submit()
    assert (await asyncio.wait_for(deployment.attempt(job_id), SOON_SECONDS)).verdict is Verdict.GO


async def test_only_so_many_are_held(world: World) -> None:
    deployment = make_deployment(world, HeldCallLimits(wait_ms=60_000, answer_ms=60_000, held_max=1))
    async with asked(deployment) as first, asked(deployment) as second:
        assert (await second.answer()).verdict is Verdict.GO
        assert first.waits


async def test_nobody_waits_for_a_service_that_keeps_everybody_waiting(world: World) -> None:
    limits = HeldCallLimits(wait_ms=60_000, answer_ms=60_000, in_vain_max=2, rest_ms=1_000)
    deployment = make_deployment(world, limits, patience=0.001)
    async with consuming(deployment):
        for _ in range(2):
            async with asked(deployment) as one:
                await one.worker.reply("ACK", one.directive)
                assert (await one.answer()).position.step_state is StepState.PROCESSING
        async with asked(deployment) as one:
            assert (await one.answer()).verdict is Verdict.GO, "it is not held"
        world.clock_ms += 1_000
        async with asked(deployment) as one:
            assert one.waits
            await one.worker.reply("RESULT", one.directive, **RESULT)
            assert (await one.answer()).verdict is Verdict.MOVED


async def test_one_end_in_time_makes_good_for_waits_in_vain(world: World) -> None:
    deployment = make_deployment(
        world, HeldCallLimits(wait_ms=60_000, answer_ms=60_000, in_vain_max=2), patience=0.001
    )
    async with consuming(deployment):
        for reply, more in (("ACK", {}), ("RESULT", RESULT)) * 3:
            async with asked(deployment) as one:
                assert one.waits
                await one.worker.reply(reply, one.directive, **more)
                await one.answer()


async def test_who_asks_again_is_answered_at_once_and_signalled_later(deployment: Deployment) -> None:
    """Whoever began the attempt is gone, or is a workflow that is no more; or this call comes late, and is
    itself of one that is: nobody can tell, so the answer is to neither."""
    async with consuming(deployment), asked(deployment) as one:
        again = await asyncio.wait_for(deployment.attempt(one.job_id, wait=True), SOON_SECONDS)
        assert again.verdict is Verdict.GO
        assert (await one.answer()).verdict is Verdict.GO
        await one.worker.reply("RESULT", one.directive, **RESULT)
        await until(lambda: deployment.workflows.names(one.job_id) == ["step_result"])


async def test_who_asks_again_elsewhere_is_signalled_too(world: World, deployment: Deployment) -> None:
    other = make_deployment(world)
    other.notifier.others = deployment.questions
    async with consuming(deployment), asked(deployment) as one:
        assert (await other.attempt(one.job_id)).verdict is Verdict.GO
        assert (await one.answer()).verdict is Verdict.GO, "it was let go"
        await one.worker.reply("RESULT", one.directive, **RESULT)
        await until(lambda: deployment.workflows.names(one.job_id) == ["step_result"])


@pytest.mark.parametrize("call", ["publish", "expire"])
async def test_whatever_else_is_asked_lets_a_question_go(deployment: Deployment, call: str) -> None:
    async with consuming(deployment), asked(deployment) as one:
        if call == "publish":
            await deployment.publish(one.job_id)
        else:
            await deployment.expire(one.job_id, ExpireReason.ACK_TIMEOUT)
        assert (await one.answer()).verdict is Verdict.GO
        await one.worker.reply("RESULT", one.directive, **RESULT)
        await until(lambda: deployment.workflows.names(one.job_id) == ["step_result"])


async def test_whoever_closes_the_connection_is_signalled(deployment: Deployment) -> None:
    """A server does not end the handling of a request because nobody waits for it any more."""
    job_id = await deployment.submit("OCR_EMBEDDING")
    async with internal_api(deployment, SECRET) as url, consuming(deployment):
        _, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        ask = {"jobId": job_id, "stepId": "step_01", "attempt_no": 1, "lease_id": "L1", "publish": True}
        body = msgspec.json.encode({**ask, "wait": True})
        head = f"POST /v1/internal/steps/attempt HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {SECRET}\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        await until(lambda: deployment.questions.held == 1)
        writer.close()
        await until(lambda: deployment.questions.held == 0)
        worker = Worker(deployment.world)
        await worker.reply("RESULT", await worker.take_one(), **RESULT)
        await until(lambda: deployment.workflows.names(job_id) == ["step_result"])


async def test_a_slow_bus_takes_its_time_from_the_wait(world: World) -> None:
    """Whoever asked has so much patience in all."""
    deployment = make_deployment(world, HeldCallLimits(wait_ms=60_000, answer_ms=400))
    publish = world.bus.publish_directive

    async def slowly(directive: DirectiveOut) -> None:
        await publish(directive)
        await asyncio.sleep(0.3)

    world.bus.publish_directive = slowly  # type: ignore[method-assign]
    began = asyncio.get_running_loop().time()
    async with asked(deployment) as one:
        assert (await one.answer()).verdict is Verdict.GO
    assert 0.4 <= asyncio.get_running_loop().time() - began < 3


async def test_a_deadline_that_another_process_brought_nearer(world: World) -> None:
    policy = StepPolicy(ack_timeout_ms=30_000, lease_ms=200)
    deployment, other = (Deployment(world, Workflows(), policy=policy, questions=LONG) for _ in range(2))
    other.workflows.open = deployment.workflows.open
    other.notifier.others = deployment.questions
    async with asked(deployment) as one:
        async with consuming(other):
            await one.worker.reply("ACK", one.directive)
            await until(lambda: other.workflows.names(one.job_id) == ["step_ack"])
        told = await one.answer()
    assert told.position.step_state is StepState.PROCESSING


async def test_where_nothing_is_held_a_reply_is_signalled_though_its_question_is_open(world: World) -> None:
    """Other processes could not say that they were asked since."""
    deployment = make_deployment(world, None)
    note_after_the_result(world, deployment)
    async with consuming(deployment), asked(deployment, noted_later=True) as one:
        await one.worker.reply("RESULT", one.directive, **RESULT)
        await one.answer()
        await until(lambda: deployment.workflows.names(one.job_id) == ["step_result"])


async def test_a_reply_that_another_process_took(world: World, deployment: Deployment) -> None:
    """The other one signals, and says that the job has moved."""
    other = make_deployment(world)
    other.workflows.open = deployment.workflows.open
    other.notifier.others = deployment.questions
    async with consuming(other), asked(deployment) as one:
        deployment.questions.moved(one.job_id)
        await asyncio.sleep(0.01)
        assert one.waits, "a note that says nothing new ends no wait"
        await one.worker.reply("RESULT", one.directive, **RESULT)
        told = await one.answer()
    assert (told.verdict, told.position.stepId) == (Verdict.MOVED, "step_02")
    assert other.workflows.names(one.job_id) == ["step_result"]
