"""The publisher's window where answers of the store are lost, or come in another order than the commits."""

from collections.abc import Sequence

import pytest
from tests.support.publisher_setup import LANE, Deployment, Message, Worker, World, ack

from lucius.core.inputs import Result, ResultStatus
from lucius.core.states import StepState
from lucius.ledger.store import Op, StoreError


def lose_answer(world: World, monkeypatch: pytest.MonkeyPatch) -> list[Op]:
    """The first commit that notes a publish takes effect, and the store does not say so."""
    real, lost = world.store.commit, list[Op]()

    async def unanswered(ops: Sequence[Op]) -> list[str]:
        etags = await real(ops)
        if not lost and any(b"DIRECTIVE_PUBLISHED" in op.body for op in ops):
            lost.append(ops[0])
            raise StoreError("the store did not answer in time")
        return etags

    monkeypatch.setattr(world.store, "commit", unanswered)
    return lost


def success(directive: Message) -> Result:
    return Result(
        step_id=directive["stepId"],
        attempt_no=directive["attempt_no"],
        lease_id=directive["lease_id"],
        content=dict,
        status=ResultStatus.SUCCEEDED,
        output_ref=None,
        error_code=None,
        error_message=None,
    )


async def test_a_note_that_took_effect_without_an_answer_keeps_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    deployment = Deployment(world, window=1)
    lost = lose_answer(world, monkeypatch)
    first, second = await deployment.submit(), await deployment.submit()
    for _ in range(3):
        await deployment.look()
    assert len(lost) == 1
    assert (await deployment.states(first))[1] == "INITIATED"
    assert (await deployment.states(second))[1] == "DISPATCHING"
    assert deployment.publisher.unacked("ocr", LANE) == 1


async def test_a_note_that_is_repeated_later_takes_no_place_of_the_next_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    deployment = Deployment(world, window=2)
    lose_answer(world, monkeypatch)
    job_id = await deployment.submit("OCR_EMBEDDING")
    await deployment.look()
    assert deployment.publisher.unacked("ocr", LANE) == 1
    directive = await Worker(world).take_one()
    await deployment.apply(job_id, success(directive))
    await deployment.look()
    assert (await deployment.record(job_id)).steps[1].state is StepState.INITIATED
    assert deployment.publisher.unacked("ocr", LANE) == 0
    assert deployment.publisher.unacked("embedding", LANE) == 1


async def test_a_commit_that_is_heard_of_late_gives_no_place_away() -> None:
    """The answer to the commit that began an attempt may come after the one to its publishing."""
    world = World()
    deployment = Deployment(world, window=1, hints=False)
    job_id = await deployment.submit()
    born = await deployment.record(job_id)
    await deployment.look()
    published = await deployment.record(job_id)
    deployment.publisher.watch(born, published, ())
    deployment.publisher.watch(None, born, ())
    assert deployment.publisher.unacked("ocr", LANE) == 1
    directive = await Worker(world).take_one()
    await deployment.apply(job_id, ack(directive))
    deployment.publisher.watch(published, await deployment.record(job_id), ())
    assert deployment.publisher.unacked("ocr", LANE) == 0
