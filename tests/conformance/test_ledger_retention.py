"""Retention: a job is forgotten whole, in an order in which it can be found until the end."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.sizes import size

from lucius.core.inputs import ResultStatus
from lucius.engines.outbox import retention
from lucius.intake.submit import Accepted
from lucius.ledger.forgetting import Forgetting
from lucius.ledger.jobs import LayoutName
from lucius.ledger.lists import Filter
from lucius.ledger.store import Op

if TYPE_CHECKING:
    from tests.conformance.ledger_checks import check_at_rest, held_keys, mentions, run_out
    from tests.conformance.ledger_house import (
        EVERY_STORE,
        KEEP_MS,
        LAYOUTS,
        Died,
        T,
        Trial,
        World,
        opened_world,
        submit,
    )
else:
    from ledger_checks import check_at_rest, held_keys, mentions, run_out
    from ledger_house import EVERY_STORE, KEEP_MS, LAYOUTS, Died, T, Trial, World, opened_world, submit

REMOVALS_MAX = 40


LATE_ANSWERS = 60
LATE_ANSWERS_OVER_A_WIRE = 5


async def a_long_story(world: World) -> str:
    """A job that failed finally after a retry, with more events than one commit removes."""
    house = world.house()
    job_id = await submit(house, request_type="OCR_EMBEDDING", key="k")
    await house.lists.record_time(house.clock.now_ms)
    for status in (ResultStatus.FAILED_RETRY, ResultStatus.FAILED_FINAL):
        (attempt,) = await house.take("ocr")
        await house.result(attempt, status, "BROKEN")
        house.clock.now_ms += 30_000
        await house.sweeper.sweep()
    for _ in range(LATE_ANSWERS_OVER_A_WIRE if world.frugal else LATE_ANSWERS):
        await house.result(attempt)
    return job_id


def part_of(world: World, op: Op) -> str:
    """Which part of a job a removal concerns, in the words of the order."""
    parts = {T.idempotency: "key", T.job_index: "list", T.dlq: "list", T.retention: "list"}
    own = {T.events: "events", T.outbox: "steps", T.steps: "steps", T.jobs: "job", T.ledger: "steps"}
    if op.key.startswith("EVENT#"):
        return "events"
    if op.key == "JOB":
        return "job"
    return parts.get(op.table) or own[op.table]


async def test_everything_goes_in_order(world: World) -> None:
    job_id = await a_long_story(world)
    late = LATE_ANSWERS_OVER_A_WIRE if world.frugal else LATE_ANSWERS
    assert len(await mentions(world, job_id)) > late + 10
    world.clock.now_ms += KEEP_MS
    house = world.house()
    assert await house.retention.look() == 1
    assert await mentions(world, job_id) == []
    order = [part_of(world, op) for ops in house.store.commits for op in ops]
    if world.layout is LayoutName.TABLE and not world.store.spans:
        copies = (T.jobs, T.outbox, T.events)
        order = [part_of(world, op) for ops in house.store.commits for op in ops if op.table not in copies]
    assert sorted(set(order), key=order.index) == ["key", "events", "steps", "job", "list"]
    assert order == sorted(order, key=["key", "events", "steps", "job", "list"].index)
    assert order.count("events") > late
    # The key is free again.
    assert await submit(world.house(), request_type="OCR_EMBEDDING", key="k") != job_id


async def test_nothing_goes_before_its_time(world: World) -> None:
    job_id = await a_long_story(world)
    open_job = await submit(world.house(), 2)
    rows = await world.rows()
    world.clock.now_ms += KEEP_MS - 60_000
    assert await world.house().retention.look() == 0
    assert await world.rows() == rows
    world.clock.now_ms += KEEP_MS
    assert await world.house().retention.look() == 1
    assert await mentions(world, job_id) == []
    assert set(await world.records()) == {open_job}


async def test_a_full_page_is_not_the_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "JOBS_PER_PAGE_MAX", 3)
    house = world.house()
    for number in range(8):
        await submit(house, number)
    await house.work()
    world.clock.now_ms += KEEP_MS
    assert await house.retention.look() == 8
    assert await world.records() == {}


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", EVERY_STORE)
async def test_forgetting_may_die_at_any_write(
    kind: str, layout: LayoutName, after: bool, tmp_path: Path
) -> None:
    """Until the end the job can be found, and read without a fault; then nothing of it is left."""
    # To die after a write is to die before the next: over a wire, each of both takes some of them.
    for number in range(0, REMOVALS_MAX, size(4, 2) if kind == "azurite" else 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        async with opened_world(kind, layout, folder) as world:
            job_id = await a_long_story(world)
            world.clock.now_ms += KEEP_MS
            dying = world.house(Trial(at=number, dies_before=not after, dies_after=after))
            try:
                await dying.retention.look()
            except Died:
                await check_findable(world, job_id)
                await run_out(world)
                assert await mentions(world, job_id) == []
            else:
                return
    raise AssertionError("forgetting one job took too many writes")


async def check_findable(world: World, job_id: str) -> None:
    house = world.house()
    page = await house.lists.page(Filter(), None, 10, world.clock.now_ms)
    loaded = await house.ledger.load(job_id)
    assert page.job_ids == (job_id,) or loaded is None
    # Where commits may not span, the list rows go one after the other, and then the reminder.
    left = {table for table, _, _ in await mentions(world, job_id)}
    assert page.job_ids == (job_id,) or left <= {T.job_index, T.retention}


async def test_a_rerun_keeps_its_key_when_the_job_before_it_is_forgotten(world: World) -> None:
    house = world.house()
    job_id = await a_long_story(world)
    reruns = []
    for _ in range(2):
        world.clock.now_ms += 1_000
        accepted = await house.reruns.rerun(job_id, from_step=None, key=None)
        assert isinstance(accepted, Accepted) and not accepted.duplicate
        reruns.append(accepted.job_id)
        (attempt,) = await house.take("ocr")
        await house.result(attempt, ResultStatus.FAILED_FINAL, "BROKEN")
    first_ends, second_ends = [(await world.records())[job].job.completed_at_ms or 0 for job in reruns]
    world.clock.now_ms = first_ends + KEEP_MS
    assert await world.house().retention.look() == 2
    assert await mentions(world, reruns[0]) == []
    assert (await held_keys(world))[f"rerun#{job_id}"] == reruns[1]
    world.clock.now_ms = second_ends + KEEP_MS
    await world.house().retention.look()
    assert await held_keys(world) == {}
    assert await mentions(world, job_id) == []


async def test_a_key_that_is_taken_over_meanwhile_stays(world: World) -> None:
    """Between the look at a key and its removal, another rerun claims it."""
    house = world.house()
    job_id = await a_long_story(world)
    world.clock.now_ms += 1_000
    first = await house.reruns.rerun(job_id, from_step=None, key=None)
    assert isinstance(first, Accepted)
    (attempt,) = await house.take("ocr")
    job = (await house.result(attempt, ResultStatus.FAILED_FINAL, "BROKEN")).record.job

    async def rerun_again() -> None:
        accepted = await world.house().reruns.rerun(job_id, from_step=None, key=None)
        assert isinstance(accepted, Accepted) and accepted.job_id != first.job_id

    forgetting = Forgetting(world.house(Trial(at=0, sleeps=rerun_again)).ledger)
    await forgetting.forget(job.lane, job.completed_at_ms or 0, first.job_id)
    second = (await held_keys(world))[f"rerun#{job_id}"]
    assert second in await world.records()
    assert await mentions(world, first.job_id) == []
    await run_out(world)
    await check_at_rest(world)


async def test_chores_that_are_repeated_while_a_job_is_forgotten_leave_nothing(world: World) -> None:
    """Who met an old due row loaded the job before it was removed, and puts its list rows back."""
    job_id = await a_long_story(world)
    loaded = await world.house().ledger.load(job_id)
    assert loaded is not None
    job = loaded.record.job
    world.clock.now_ms += KEEP_MS

    async def repeat() -> None:
        await world.house().ledger.do_chores(loaded.record)

    def is_last(ops: Sequence[Op]) -> bool:
        return ops[-1].table == T.retention

    forgetting = Forgetting(world.house(Trial(at=is_last, sleeps=repeat)).ledger)
    await forgetting.forget(job.lane, job.completed_at_ms or 0, job_id)
    await world.house().retention.look()
    assert await mentions(world, job_id) == []
