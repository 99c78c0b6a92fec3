"""Chores that somebody owes are not forgotten because somebody else cleared away what announced them."""

from collections.abc import Sequence
from contextlib import suppress

import pytest
from tests.conformance.ledger_checks import check_at_rest, run_out
from tests.conformance.ledger_plays import ended, handed_out
from tests.conformance.ledger_setup import LAYOUTS, Died, T, Trial, World

from lucius.core.inputs import Cancel, ResultStatus
from lucius.core.states import JobState
from lucius.ledger.job_ledger import LayoutName
from lucius.ledger.memory import MemoryStore
from lucius.ledger.store import Op


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_who_loses_the_race_to_end_a_job_leaves_the_chores_of_the_winner_announced(
    layout: LayoutName,
) -> None:
    """Both meet the deadline of a job that is being cancelled. One ends it and dies; the other, who had
    announced the same end, is refused and takes its announcement back."""
    world = World(MemoryStore(spans=False), layout)
    attempt = await handed_out(world)
    await world.deployment().writer.apply(attempt.job_id, Cancel())
    job = (await world.records())[attempt.job_id].job
    world.clock.now_ms = job.due_at_ms or 0  # to the millisecond: the end is announced where the deadline was
    winner = world.deployment(Trial(at=_ends_job, dies_after=True))

    async def is_overtaken() -> None:
        with suppress(Died):
            await winner.sweeper.sweep()

    loser = world.deployment(Trial(at=_is_announcement, sleeps=is_overtaken))
    await loser.sweeper.sweep()
    await run_out(world)
    records = await check_at_rest(world)
    assert records[attempt.job_id].job.state is JobState.CANCELLED


@pytest.mark.parametrize("slept_ms", [0, 700, 7_000])
async def test_a_late_answer_is_copied_though_its_writer_was_slow_and_died(slept_ms: int) -> None:
    """Between the row that announces it and the event itself a sweeper looks: the row has to stay."""
    world = World(MemoryStore(spans=False), LayoutName.TABLE)
    attempt = await ended(world, ResultStatus.SUCCEEDED)

    async def is_swept() -> None:
        world.clock.now_ms += slept_ms
        await world.deployment().sweeper.sweep()

    writer = world.deployment(Trial(at=_is_event, sleeps=is_swept, dies_after=True))
    with pytest.raises(Died):
        await writer.result(attempt)
    await run_out(world)
    await check_at_rest(world)


def _ends_job(ops: Sequence[Op]) -> bool:
    return any(op.key == "JOB" and b'"CANCELLED"' in (op.body or b"") for op in ops)


def _is_announcement(ops: Sequence[Op]) -> bool:
    return ops[0].table == T.due


def _is_event(ops: Sequence[Op]) -> bool:
    return ops[0].key.startswith("EVENT#")
