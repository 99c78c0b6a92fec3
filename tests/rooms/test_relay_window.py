"""The relay's window where answers of the store are lost or come in another order than the commits did."""

from collections.abc import Sequence

import pytest
from tests.rooms.relay_house import LANE, House, Worker, World, ack

from lucius.ledger.store import Op, StoreError


async def test_a_note_that_took_effect_without_an_answer_keeps_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    house = House(world, window=1)
    real, lost = world.store.commit, 0

    async def unanswered(ops: Sequence[Op]) -> list[str]:
        nonlocal lost
        etags = await real(ops)
        if not lost and any(b"DIRECTIVE_PUBLISHED" in op.body for op in ops):
            lost += 1
            raise StoreError("the store did not answer in time")
        return etags

    monkeypatch.setattr(world.store, "commit", unanswered)
    first, second = await house.submit(), await house.submit()
    for _ in range(3):
        await house.look()
    assert lost == 1
    assert (await house.states(first))[1] == "INITIATED"
    assert (await house.states(second))[1] == "DISPATCHING"
    assert house.relay.unacked("ocr", LANE) == 1


async def test_a_commit_that_is_heard_of_late_gives_no_place_away() -> None:
    """The answer to the commit that began an attempt may come after the one to its publishing."""
    world = World()
    house = House(world, window=1, hints=False)
    job_id = await house.submit()
    born = await house.record(job_id)
    await house.look()
    published = await house.record(job_id)
    house.relay.watch(born, published, ())
    house.relay.watch(None, born, ())
    assert house.relay.unacked("ocr", LANE) == 1
    directive = await Worker(world).take_one()
    await house.apply(job_id, ack(directive))
    house.relay.watch(published, await house.record(job_id), ())
    assert house.relay.unacked("ocr", LANE) == 0
