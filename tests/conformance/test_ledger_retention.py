"""Retention: a job is forgotten whole, in an order in which it can be found until the end."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.conformance.ledger_checks import check_at_rest, held_keys, mentions, run_out
from tests.conformance.ledger_setup import (
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
from tests.sizes import size

from lucius.core.inputs import ResultStatus
from lucius.engines.outbox import retention
from lucius.jobs.submit import Submitted
from lucius.ledger.job_deletion import JobDeletion
from lucius.ledger.job_ledger import LayoutName
from lucius.ledger.lists import ListFilter
from lucius.ledger.store import Op

REMOVALS_MAX = 40


LATE_ANSWERS = 60
LATE_ANSWERS_OVER_A_WIRE = 5


async def a_long_story(world: World) -> str:
    """A job that failed finally after a retry, with more events than one commit removes."""
    deployment = world.deployment()
    job_id = await submit(deployment, request_type="OCR_EMBEDDING", key="k")
    await deployment.lists.record_time(deployment.clock.now_ms)
    for status in (ResultStatus.FAILED_RETRY, ResultStatus.FAILED_FINAL):
        (attempt,) = await deployment.take("ocr")
        await deployment.result(attempt, status, "BROKEN")
        deployment.clock.now_ms += 30_000
        await deployment.sweeper.sweep()
    for _ in range(LATE_ANSWERS_OVER_A_WIRE if world.frugal else LATE_ANSWERS):
        await deployment.result(attempt)
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
    deployment = world.deployment()
    assert await deployment.retention.look() == 1
    assert await mentions(world, job_id) == []
    order = [part_of(world, op) for ops in deployment.store.commits for op in ops]
    if world.layout is LayoutName.TABLE and not world.store.spans:
        copies = (T.jobs, T.outbox, T.events)
        order = [
            part_of(world, op) for ops in deployment.store.commits for op in ops if op.table not in copies
        ]
    assert sorted(set(order), key=order.index) == ["key", "events", "steps", "job", "list"]
    assert order == sorted(order, key=["key", "events", "steps", "job", "list"].index)
    assert order.count("events") > late
    # The key is free again.
    assert await submit(world.deployment(), request_type="OCR_EMBEDDING", key="k") != job_id


async def test_nothing_goes_before_its_time(world: World) -> None:
    job_id = await a_long_story(world)
    open_job = await submit(world.deployment(), 2)
    rows = await world.rows()
    world.clock.now_ms += KEEP_MS - 60_000
    assert await world.deployment().retention.look() == 0
    assert await world.rows() == rows
    world.clock.now_ms += KEEP_MS
    assert await world.deployment().retention.look() == 1
    assert await mentions(world, job_id) == []
    assert set(await world.records()) == {open_job}


async def test_a_full_page_is_not_the_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "JOBS_PER_PAGE_MAX", 3)
    deployment = world.deployment()
    for number in range(8):
        await submit(deployment, number)
    await deployment.work()
    world.clock.now_ms += KEEP_MS
    assert await deployment.retention.look() == 8
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
            dying = world.deployment(Trial(at=number, dies_before=not after, dies_after=after))
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
    deployment = world.deployment()
    page = await deployment.lists.page(ListFilter(), None, 10, world.clock.now_ms)
    loaded = await deployment.ledger.load(job_id)
    assert page.job_ids == (job_id,) or loaded is None
    # Where commits may not span, the list rows go one after the other, and then the reminder.
    left = {table for table, _, _ in await mentions(world, job_id)}
    assert page.job_ids == (job_id,) or left <= {T.job_index, T.retention}


async def test_a_rerun_keeps_its_key_when_the_job_before_it_is_forgotten(world: World) -> None:
    deployment = world.deployment()
    job_id = await a_long_story(world)
    reruns = []
    for _ in range(2):
        world.clock.now_ms += 1_000
        accepted = await deployment.reruns.rerun(job_id, from_step=None, key=None)
        assert isinstance(accepted, Submitted) and not accepted.duplicate
        reruns.append(accepted.job_id)
        (attempt,) = await deployment.take("ocr")
        await deployment.result(attempt, ResultStatus.FAILED_FINAL, "BROKEN")
    first_ends, second_ends = [(await world.records())[job].job.completed_at_ms or 0 for job in reruns]
    world.clock.now_ms = first_ends + KEEP_MS
    assert await world.deployment().retention.look() == 2
    assert await mentions(world, reruns[0]) == []
    assert (await held_keys(world))[f"rerun#{job_id}"] == reruns[1]
    world.clock.now_ms = second_ends + KEEP_MS
    await world.deployment().retention.look()
    assert await held_keys(world) == {}
    assert await mentions(world, job_id) == []


async def test_a_key_that_is_taken_over_meanwhile_stays(world: World) -> None:
    """Between the look at a key and its removal, another rerun claims it."""
    deployment = world.deployment()
    job_id = await a_long_story(world)
    world.clock.now_ms += 1_000
    first = await deployment.reruns.rerun(job_id, from_step=None, key=None)
    assert isinstance(first, Submitted)
    (attempt,) = await deployment.take("ocr")
    job = (await deployment.result(attempt, ResultStatus.FAILED_FINAL, "BROKEN")).record.job

    async def rerun_again() -> None:
        accepted = await world.deployment().reruns.rerun(job_id, from_step=None, key=None)
        assert isinstance(accepted, Submitted) and accepted.job_id != first.job_id

    job_deletion = JobDeletion(world.deployment(Trial(at=0, sleeps=rerun_again)).ledger)
    await job_deletion.forget(job.lane, job.completed_at_ms or 0, first.job_id)
    second = (await held_keys(world))[f"rerun#{job_id}"]
    assert second in await world.records()
    assert await mentions(world, first.job_id) == []
    await run_out(world)
    await check_at_rest(world)


async def test_chores_that_are_repeated_while_a_job_is_forgotten_leave_nothing(world: World) -> None:
    """Who met an old due row loaded the job before it was removed, and puts its list rows back."""
    job_id = await a_long_story(world)
    loaded = await world.deployment().ledger.load(job_id)
    assert loaded is not None
    job = loaded.record.job
    world.clock.now_ms += KEEP_MS

    async def repeat() -> None:
        await world.deployment().ledger.do_chores(loaded.record)

    def is_last(ops: Sequence[Op]) -> bool:
        return ops[-1].table == T.retention

    job_deletion = JobDeletion(world.deployment(Trial(at=is_last, sleeps=repeat)).ledger)
    await job_deletion.forget(job.lane, job.completed_at_ms or 0, job_id)
    await world.deployment().retention.look()
    assert await mentions(world, job_id) == []
