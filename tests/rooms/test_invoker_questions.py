"""A question that is held back a moment: its workflow hears of the attempt's end as the answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from lucius.bus.port import DirectiveOut
from lucius.contracts.internal import InternalAnswer, Verdict
from lucius.core.inputs import Cancel, Pause
from lucius.core.model import StepPolicy
from lucius.core.states import JobState, StepState
from lucius.invoker.questions import QuestionLimits

if TYPE_CHECKING:
    from tests.rooms.invoker_house import House, Workflows
    from tests.rooms.relay_house import LANE, Message, Worker, World
    from tests.rooms.test_invoker_replies import RESULT, consuming, until
else:
    from invoker_house import House, Workflows
    from relay_house import LANE, Message, Worker, World
    from test_invoker_replies import RESULT, consuming, until

LONG = QuestionLimits(wait_ms=60_000)
PATIENT = StepPolicy(ack_timeout_ms=600_000)
SOON_SECONDS = 5


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def house(world: World) -> House:
    return make_house(world)


def make_house(world: World, limits: QuestionLimits | None = LONG, *, patience: float = 60) -> House:
    return House(world, Workflows(), policy=PATIENT, questions=limits, ack_patience_seconds=patience)


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
    house: House, request_type: str = "OCR_EMBEDDING", *, noted_later: bool = False
) -> AsyncIterator[Asked]:
    """Once it is held back, or answered."""
    job_id, held = await house.submit(request_type), house.questions.held
    answer = asyncio.create_task(house.attempt(job_id, wait=True))
    one = Asked(job_id, answer, Worker(house.world))
    try:
        one.directive = await one.worker.take_one(wait_ms=SOON_SECONDS * 1000)
        await until(lambda: noted_later or answer.done() or house.questions.held > held)
        yield one
    finally:
        answer.cancel()
        await asyncio.gather(answer, return_exceptions=True)


async def unsettled(world: World) -> int:
    """How many replies are still on the bus once every lock has run out."""
    world.clock_ms += 60_000
    receiver = await world.bus.replies(LANE, group="lucius")
    return len(await receiver.receive(messages_max=100, wait_ms=0))


async def test_a_result_is_the_answer_and_no_signal_is_sent(world: World, house: House) -> None:
    async with consuming(house), asked(house) as one:
        await one.worker.reply("ACK", one.directive)
        await until(lambda: house.progress.outcomes["Ack", "applied"] == 1)
        assert one.waits, "an ACK moves no workflow"
        await one.worker.reply("RESULT", one.directive, **RESULT)
        told = await one.answer()
        await until(lambda: house.consumer.outcomes["applied"] == 2)
    assert (told.verdict, told.position.stepId) == (Verdict.MOVED, "step_02")
    assert told.position.step_state is StepState.PENDING
    assert told.position.version == (await house.record(one.job_id)).job.version
    assert house.workflows.told == {}
    assert house.telling.signals == {("step_result", "answered"): 1, ("step_ack", "overtaken"): 1}
    assert await unsettled(world) == 0


async def test_the_end_of_a_job_is_an_answer_too(house: House) -> None:
    async with consuming(house), asked(house, "OCR") as one:
        await one.worker.reply("RESULT", one.directive, **RESULT)
        told = await one.answer()
    assert (told.verdict, told.position.job_state, told.position.stepId) == (
        Verdict.STOP,
        JobState.SUCCEEDED,
        None,
    )


async def test_a_failure_is_an_answer_with_the_time_of_the_next_attempt(house: House) -> None:
    async with consuming(house), asked(house) as one:
        await one.worker.reply("RESULT", one.directive, status="FAILED_RETRY", error={"code": "BUSY"})
        told = await one.answer()
    assert (told.verdict, told.position.step_state) == (Verdict.MOVED, StepState.FAILED_RETRY)
    assert told.position.next_attempt_at_ms == house.world.clock_ms + 30_000


async def test_a_result_that_comes_before_its_directive_is_noted_as_sent(world: World, house: House) -> None:
    """The service may be quicker than our own note that the bus took the directive."""
    publish = world.bus.publish_directive

    async def publish_and_wait(directive: DirectiveOut) -> None:
        await publish(directive)
        await until(lambda: house.progress.outcomes["Result", "applied"] == 1)

    world.bus.publish_directive = publish_and_wait  # type: ignore[method-assign]
    async with consuming(house), asked(house, noted_later=True) as one:
        await one.worker.reply("RESULT", one.directive, **RESULT)
        told = await one.answer()
    assert (told.verdict, told.position.stepId) == (Verdict.MOVED, "step_02")
    assert house.workflows.told == {}


async def test_whoever_gave_up_is_signalled(house: House) -> None:
    async with consuming(house), asked(house) as one:
        one.give_up()
        await asyncio.sleep(0)
        await one.worker.reply("RESULT", one.directive, **RESULT)
        await until(lambda: house.workflows.names(one.job_id) == ["step_result"])
    again = await house.attempt(one.job_id, wait=True)
    assert (again.verdict, again.position.stepId) == (Verdict.MOVED, "step_02"), (
        "and hears it when it asks again"
    )


async def test_an_ack_that_was_put_off_is_an_answer(world: World) -> None:
    house = make_house(world, patience=0.05)
    async with consuming(house), asked(house) as one:
        await one.worker.reply("ACK", one.directive)
        told = await one.answer()
        await one.worker.reply("RESULT", one.directive, **RESULT)
        await until(lambda: house.workflows.names(one.job_id) == ["step_result"])
    assert (told.verdict, told.position.step_state) == (Verdict.GO, StepState.PROCESSING)


@pytest.mark.parametrize("wish", [Pause(), Cancel()])
async def test_a_control_is_answered_and_signalled(house: House, wish: Pause | Cancel) -> None:
    async with asked(house) as one:
        await house.control(one.job_id, wish)
        told = await one.answer()
    assert told.position.version == (await house.record(one.job_id)).job.version
    assert len(house.workflows.names(one.job_id)) == 1


async def test_an_answer_comes_in_time_though_nothing_happens(world: World) -> None:
    house = make_house(world, QuestionLimits(wait_ms=50))
    async with asked(house) as one:
        assert (await one.answer()).verdict is Verdict.GO


async def test_nobody_waits_past_the_attempts_own_time(world: World) -> None:
    policy = StepPolicy(ack_timeout_ms=50)
    house = House(world, Workflows(), policy=policy, questions=LONG)
    async with asked(house) as one:
        told = await one.answer()
    assert told.verdict is Verdict.GO
    assert told.position.deadline_at_ms == world.clock_ms + 50


async def test_where_others_do_not_tell_nobody_waits(world: World) -> None:
    house = make_house(world, None)
    async with asked(house) as one:
        assert (await one.answer()).verdict is Verdict.GO


async def test_who_does_not_ask_to_wait_does_not(house: House) -> None:
    job_id = await house.submit()
    assert (await asyncio.wait_for(house.attempt(job_id), SOON_SECONDS)).verdict is Verdict.GO


async def test_only_so_many_are_held(world: World) -> None:
    house = make_house(world, QuestionLimits(wait_ms=60_000, held_max=1))
    async with asked(house) as first, asked(house) as second:
        assert (await second.answer()).verdict is Verdict.GO
        assert first.waits


async def test_nobody_waits_for_a_service_that_keeps_everybody_waiting(world: World) -> None:
    limits = QuestionLimits(wait_ms=60_000, in_vain_max=2, rest_ms=1_000)
    house = make_house(world, limits, patience=0.001)
    async with consuming(house):
        for _ in range(2):
            async with asked(house) as one:
                await one.worker.reply("ACK", one.directive)
                assert (await one.answer()).position.step_state is StepState.PROCESSING
        async with asked(house) as one:
            assert (await one.answer()).verdict is Verdict.GO, "it is not held"
        world.clock_ms += 1_000
        async with asked(house) as one:
            assert one.waits
            await one.worker.reply("RESULT", one.directive, **RESULT)
            assert (await one.answer()).verdict is Verdict.MOVED


async def test_one_end_in_time_makes_good_for_waits_in_vain(world: World) -> None:
    house = make_house(world, QuestionLimits(wait_ms=60_000, in_vain_max=2), patience=0.001)
    async with consuming(house):
        for reply, more in (("ACK", {}), ("RESULT", RESULT)) * 3:
            async with asked(house) as one:
                assert one.waits
                await one.worker.reply(reply, one.directive, **more)
                await one.answer()


async def test_a_newer_question_takes_the_place_of_an_older(house: House) -> None:
    async with consuming(house), asked(house) as one:
        newer = asyncio.create_task(house.attempt(one.job_id, wait=True))
        assert (await one.answer()).verdict is Verdict.GO, "whoever asked it is gone"
        assert not newer.done()
        await one.worker.reply("RESULT", one.directive, **RESULT)
        assert (await asyncio.wait_for(newer, SOON_SECONDS)).verdict is Verdict.MOVED
    assert house.workflows.told == {}


async def test_a_reply_that_another_process_took(world: World, house: House) -> None:
    """The other one signals, and says that the job has moved."""
    other = make_house(world)
    other.workflows.open = house.workflows.open
    other.telling.tell_others = house.questions.look_again
    async with consuming(other), asked(house) as one:
        house.questions.look_again(one.job_id)
        await asyncio.sleep(0.01)
        assert one.waits, "a note that says nothing new ends no wait"
        await one.worker.reply("RESULT", one.directive, **RESULT)
        told = await one.answer()
    assert (told.verdict, told.position.stepId) == (Verdict.MOVED, "step_02")
    assert other.workflows.names(one.job_id) == ["step_result"]
