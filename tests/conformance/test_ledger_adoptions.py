"""Adopting without a key: one event, one job, whoever asks, however often, and long after it has ended."""

import asyncio

import msgspec
import pytest
from tests.conformance.ledger_checks import check_at_rest, held_keys, mentions, run_out
from tests.conformance.ledger_plays import late_successes
from tests.conformance.ledger_setup import KEEP_MS, LAYOUTS, TENANT, Deployment, Died, Trial, World

from lucius.core.attempt import AttemptRef
from lucius.core.inputs import Cancel
from lucius.core.model import JobRecord
from lucius.core.states import JobState
from lucius.jobs.adoptions import Adoptions
from lucius.jobs.submit import Submitted
from lucius.ledger.job_ledger import LayoutName
from lucius.ledger.memory import MemoryStore
from lucius.ledger.rows import IdempotencyRow
from lucius.ledger.store import replace

SUCCEEDED = JobState.SUCCEEDED


async def adopt(deployment: Deployment, late: AttemptRef, seq: int, key: str | None = None) -> Submitted:
    accepted = await deployment.reruns.adopt(late.job_id, step_id=late.step_id, seq=seq, key=key)
    assert isinstance(accepted, Submitted), accepted
    return accepted


async def rerun(deployment: Deployment, late: AttemptRef) -> Submitted:
    accepted = await deployment.reruns.rerun(late.job_id, from_step=None, key=None)
    assert isinstance(accepted, Submitted), accepted
    return accepted


async def test_one_event_is_adopted_once(world: World) -> None:
    """The job of a last step ends as it is born: no open rerun stands for it."""
    late, seq = await late_successes(world)
    deployments = [world.deployment() for _ in range(4)]
    answers = await asyncio.gather(*(adopt(deployments[n % 4], late, seq) for n in range(20)))
    assert len({answer.job_id for answer in answers}) == 1
    assert sum(not answer.duplicate for answer in answers) == 1
    assert {answer.state for answer in answers} == {SUCCEEDED}
    await run_out(world)
    assert set(await check_at_rest(world)) == {late.job_id, answers[0].job_id}


async def test_each_event_has_its_own_job(world: World) -> None:
    late, second = await late_successes(world, times=2)
    wishes = (second - 1, second) * 5
    answers = await asyncio.gather(*(adopt(world.deployment(), late, seq) for seq in wishes))
    jobs = {seq: {a.job_id for a, s in zip(answers, wishes, strict=True) if s == seq} for seq in wishes}
    assert [len(each) for each in jobs.values()] == [1, 1]
    assert jobs[second - 1] != jobs[second]
    named = await adopt(world.deployment(), late, second, "k")
    assert not named.duplicate
    for seq in (second - 1, second):
        again = await adopt(world.deployment(), late, seq)
        assert again.duplicate and {again.job_id} == jobs[seq]
    await run_out(world)
    assert len(await check_at_rest(world)) == 4


async def test_an_adoption_is_found_while_a_later_rerun_is_open(world: World) -> None:
    late, second = await late_successes(world, times=2)
    first = await adopt(world.deployment(), late, second)
    opened = await rerun(world.deployment(), late)
    assert opened.job_id != first.job_id
    assert (await adopt(world.deployment(), late, second)).job_id == first.job_id
    assert (await adopt(world.deployment(), late, second - 1)).job_id == opened.job_id, (
        "one open rerun at most"
    )
    assert await world.deployment().work() == 1
    other = await adopt(world.deployment(), late, second - 1)
    assert other.job_id not in (first.job_id, opened.job_id)
    assert (await adopt(world.deployment(), late, second)).job_id == first.job_id


async def test_an_adoption_that_ran_on_is_found_after_its_end(world: World) -> None:
    late, seq = await late_successes(world, "OCR_EMBEDDING")
    first = await adopt(world.deployment(), late, seq)
    assert (await adopt(world.deployment(), late, seq)).job_id == first.job_id
    assert (await rerun(world.deployment(), late)).job_id == first.job_id, "one open rerun at most"
    assert await world.deployment().work() == 1
    again = await adopt(world.deployment(), late, seq)
    assert (again.job_id, again.state, again.duplicate) == (first.job_id, SUCCEEDED, True)


async def test_an_adoption_that_came_to_nothing_stands_in_nobodys_way(world: World) -> None:
    late, seq = await late_successes(world, "OCR_EMBEDDING")
    first = await adopt(world.deployment(), late, seq)
    await world.deployment().writer.apply(first.job_id, Cancel())
    opened = await rerun(world.deployment(), late)
    assert opened.job_id != first.job_id
    assert (await adopt(world.deployment(), late, seq)).job_id == opened.job_id, "one open rerun at most"
    await world.deployment().writer.apply(opened.job_id, Cancel())
    answers = await asyncio.gather(*(adopt(world.deployment(), late, seq) for _ in range(6)))
    assert sum(not answer.duplicate for answer in answers) == 1
    (second,) = {answer.job_id for answer in answers}
    assert second not in (first.job_id, opened.job_id)
    assert await world.deployment().work() == 1
    again = await adopt(world.deployment(), late, seq)
    assert (again.job_id, again.state, again.duplicate) == (second, SUCCEEDED, True)
    await run_out(world)
    assert len(await check_at_rest(world)) == 4


async def test_nothing_of_a_forgotten_adoption_stays(world: World) -> None:
    late, seq = await late_successes(world)
    first = await adopt(world.deployment(), late, seq)
    ended_at_ms = world.clock.now_ms
    world.clock.now_ms += 1_000
    opened = await rerun(world.deployment(), late)
    world.clock.now_ms = ended_at_ms + KEEP_MS
    await world.deployment().retention.look()
    assert await mentions(world, first.job_id) == []
    assert await held_keys(world) == {f"rerun#{late.job_id}": opened.job_id}


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_an_adoption_that_another_rerun_finished_is_none(layout: LayoutName) -> None:
    """Who claimed the key died; a rerun without a key creates the job under the id that it finds."""
    world = World(MemoryStore(spans=False), layout)
    late, seq = await late_successes(world)
    dying = world.deployment(Trial(at=lambda ops: any(op.key == "JOB" for op in ops), dies_before=True))
    with pytest.raises(Died):
        await adopt(dying, late, seq)
    finished = await rerun(world.deployment(), late)
    assert (await adopt(world.deployment(), late, seq)).job_id == finished.job_id, "one open rerun at most"
    assert await world.deployment().work() == 1
    adopted = await adopt(world.deployment(), late, seq)
    assert adopted.job_id != finished.job_id
    assert (await world.events(adopted.job_id))[0].data["adopted"]["seq"] == seq
    assert (await adopt(world.deployment(), late, seq)).job_id == adopted.job_id
    await run_out(world)
    assert set(await check_at_rest(world)) == {late.job_id, finished.job_id, adopted.job_id}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("other", ["a rerun", "another event"])
async def test_an_adoption_that_finished_what_another_began_is_found(layout: LayoutName, other: str) -> None:
    """Who claimed the key, for something else, died; the row does not say what became of its job."""
    world = World(MemoryStore(spans=False), layout)
    late, seq = await late_successes(world, times=2)
    dying = world.deployment(Trial(at=lambda ops: any(op.key == "JOB" for op in ops), dies_before=True))
    with pytest.raises(Died):
        await (rerun(dying, late) if other == "a rerun" else adopt(dying, late, seq - 1))
    adopted = await adopt(world.deployment(), late, seq)
    assert (await world.events(adopted.job_id))[0].data["adopted"]["seq"] == seq
    assert (await adopt(world.deployment(), late, seq)).job_id == adopted.job_id
    assert (await rerun(world.deployment(), late)).job_id != adopted.job_id
    assert (await adopt(world.deployment(), late, seq)).job_id == adopted.job_id, "the next row knows of it"


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_an_adoption_is_found_whose_row_is_older_than_such_knowledge(layout: LayoutName) -> None:
    world = World(MemoryStore(), layout)
    late, seq = await late_successes(world)
    adopted = await adopt(world.deployment(), late, seq)
    table, key = world.deployment().ledger.tables.idempotency, f"rerun#{late.job_id}"
    row = await world.store.get(table, TENANT, key)
    assert row is not None
    written = msgspec.json.decode(row.body)
    assert written.pop("adoptions")
    await world.store.commit([replace(table, TENANT, key, msgspec.json.encode(written), row.etag)])
    assert (await adopt(world.deployment(), late, seq)).job_id == adopted.job_id


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_an_adoption_that_is_created_while_somebody_looks_for_it_is_found(
    layout: LayoutName, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(MemoryStore(spans=False), layout)
    late, seq = await late_successes(world)
    dying = world.deployment(Trial(at=lambda ops: any(op.key == "JOB" for op in ops), dies_before=True))
    with pytest.raises(Died):
        await adopt(dying, late, seq)
    looking, adopted = world.deployment(), list[Submitted]()
    look = Adoptions.find

    async def slow(self: Adoptions, row: IdempotencyRow, name: str) -> JobRecord | None:
        found = await look(self, row, name)
        if not adopted:
            monkeypatch.undo()
            adopted.append(await adopt(world.deployment(), late, seq))
        return found

    monkeypatch.setattr(Adoptions, "find", slow)
    assert (await adopt(looking, late, seq)).job_id == adopted[0].job_id
    await run_out(world)
    assert set(await check_at_rest(world)) == {late.job_id, adopted[0].job_id}
