"""Jobs of the temporal engine in the ledger: the same operations, and a process that dies or sleeps anywhere.

Beside what holds on either engine: no dispatch row is ever written, every open job has a due row, and a
control leaves one that stays until the job's workflow was told.
"""

from pathlib import Path

import pytest
from tests.conformance.ledger_checks import check_always, of_table
from tests.conformance.ledger_plays import PLAYS, Act
from tests.conformance.ledger_setup import LAYOUTS, Died, T, Trial, submit
from tests.conformance.ledger_temporal import TemporalWorld
from tests.conformance.test_ledger_crashes import _settled, _writes

from lucius.core.due import ALARM_AFTER_MS
from lucius.core.inputs import Cancel, Control, Pause, Resume
from lucius.core.states import Engine, JobState
from lucius.ledger.commit_plan import GRACE_MS
from lucius.ledger.indexes import DueEntry
from lucius.ledger.job_ledger import LayoutName
from lucius.ledger.memory import MemoryStore
from lucius.ledger.sqlite.store import SqliteStore
from lucius.ledger.store import StoreError

F = JobState.FAILED_FINAL
SPANS = [True, False]


def _world(layout: LayoutName, *, spans: bool = False) -> TemporalWorld:
    return TemporalWorld(MemoryStore(spans=spans), layout)


async def _no_dispatch(world: TemporalWorld) -> None:
    assert T.dispatch not in {table for table, _ in world.places}
    assert all(record.job.engine is Engine.TEMPORAL for record in (await world.records()).values())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PLAYS)
async def test_a_process_may_die_at_any_write(name: str, layout: LayoutName) -> None:
    play = PLAYS[name]
    for number in range(await _writes(play, _world(layout))):
        for after in (False, True):
            world = _world(layout)
            act = await play.prepare(world)
            with pytest.raises(Died):
                await act(world.deployment(Trial(at=number, dies_before=not after, dies_after=after)))
            await check_always(world)
            await _settled(world, play.ends)
            await _no_dispatch(world)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PLAYS)
async def test_a_process_may_sleep_in_front_of_any_write(name: str, layout: LayoutName) -> None:
    play = PLAYS[name]
    for number in range(await _writes(play, _world(layout))):
        world = _world(layout)
        act = await play.prepare(world)

        async def sleep(world: TemporalWorld = world, act: Act = act) -> None:
            for _ in range(3):
                world.clock.now_ms += GRACE_MS + 1_000
                await world.deployment().sweeper.sweep()
                await world.deployment().work()
                await check_always(world)

        try:
            await act(world.deployment(Trial(at=number, sleeps=sleep)))
        except StoreError:
            assert name != "submit"
        await check_always(world)
        await _settled(world, play.ends | play.ends_when_asked_again | {F})
        await _no_dispatch(world)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["ack", "result-middle", "result-last", "cancel-waiting", "resume-waiting"])
async def test_one_commit_is_enough_where_commits_may_span(
    name: str, layout: LayoutName, tmp_path: Path
) -> None:
    world = TemporalWorld(await SqliteStore.open(tmp_path / "ledger.db"), layout)
    try:
        act = await PLAYS[name].prepare(world)
        deployment = world.deployment()
        await deployment.warm()
        await act(deployment)
        assert len(deployment.store.commits) == 1
        await _settled(world, PLAYS[name].ends)
        await _no_dispatch(world)
    finally:
        await world.store.close()


@pytest.mark.parametrize("spans", SPANS)
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_the_alarm_rings_some_time_after_the_workflow_should_have_asked(
    layout: LayoutName, spans: bool
) -> None:
    world = _world(layout, spans=spans)
    deployment = world.deployment()
    job_id = await submit(deployment)
    (attempt,) = await deployment.take("ocr")
    created_ms = world.clock.now_ms
    # A deadline that is later costs no write: the first row is met, and moved.
    assert await _due(world) == [created_ms + ALARM_AFTER_MS]
    await deployment.ack(attempt)
    world.clock.now_ms += ALARM_AFTER_MS
    await world.deployment().sweeper.sweep()
    record = (await world.records())[job_id]
    deadline_ms = record.steps[0].lease_expires_at_ms
    assert deadline_ms is not None
    assert await _due(world) == [deadline_ms + ALARM_AFTER_MS]
    assert world.signals.last[job_id].position.deadline_at_ms == deadline_ms


@pytest.mark.parametrize("spans", SPANS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("wish", "before", "state"),
    [
        (Cancel(), None, JobState.CANCELLED),
        (Pause(), None, JobState.PAUSED),
        (Resume(), Pause(), JobState.QUEUED),
        (Cancel(), Pause(), JobState.CANCELLED),
    ],
    ids=["cancel", "pause", "resume", "cancel-paused"],
)
async def test_a_control_is_due_at_once_until_the_workflow_was_told(
    layout: LayoutName, spans: bool, wish: Control, before: Control | None, state: JobState
) -> None:
    world = _world(layout, spans=spans)
    job_id = await submit(world.deployment())
    if before is not None:
        await world.deployment().writer.apply(job_id, before)
        await world.deployment().sweeper.sweep()
    world.clock.now_ms += 7
    await world.deployment().writer.apply(job_id, wish)
    assert await _due(world) == [world.clock.now_ms]
    world.clock.now_ms += 60_000
    assert await _due(world) == [world.clock.now_ms - 60_000], "it stays as long as nobody has told it"
    await world.deployment().due_handler.meet((await _met(world))[0])
    assert world.signals.last[job_id].position.job_state is state
    assert all(at_ms > world.clock.now_ms for at_ms in await _due(world))
    assert (await _due(world) == []) == (state is JobState.CANCELLED)


@pytest.mark.parametrize("spans", SPANS)
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_what_comes_in_between_does_not_hide_that_the_workflow_must_be_told(
    layout: LayoutName, spans: bool
) -> None:
    world = _world(layout, spans=spans)
    deployment = world.deployment()
    job_id = await submit(deployment)
    (attempt,) = await deployment.take("ocr")
    world.clock.now_ms += 5
    paused_ms = world.clock.now_ms
    await deployment.writer.apply(job_id, Pause())
    world.clock.now_ms += 5
    await deployment.ack(attempt)
    assert await _due(world) == [paused_ms]
    assert job_id not in world.signals.last
    await world.deployment().sweeper.sweep()
    assert world.signals.last[job_id].position.job_state is JobState.PAUSING
    assert (await _due(world))[0] > world.clock.now_ms


async def _due(world: TemporalWorld) -> list[int]:
    return sorted(int(key[:14]) for _, key in await of_table(world, T.due))


async def _met(world: TemporalWorld) -> list[DueEntry]:
    indexes = world.deployment().indexes
    return [entry for lane in range(16) for entry in await indexes.due(lane, world.clock.now_ms, 10)]
