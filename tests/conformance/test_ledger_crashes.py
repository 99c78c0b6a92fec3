"""A process may die before or after any of its writes, or sleep in front of one while the world moves on.

Each operation is played once to count its writes, then again for every one of them: with a process that dies
there, and with one that sleeps there past every grace period while another process sweeps, works and answers
the same client. Whatever happens, the job ends once, and no row is left that the truth does not ask for.
"""

from contextlib import suppress
from pathlib import Path

import pytest
from tests.conformance.ledger_checks import check_always, check_at_rest, held_keys, mentions, run_out
from tests.conformance.ledger_plays import PLAYS, WITHOUT_SPANS, Act, Play, acked, submit_first
from tests.conformance.ledger_setup import KEEP_MS, LAYOUTS, Died, T, Trial, World, opened_world
from tests.conformance.postgres_setup import POSTGRES

from lucius.core.inputs import ResultStatus
from lucius.core.states import Fact, JobState
from lucius.jobs.submit import Submitted
from lucius.ledger.commit_plan import GRACE_MS
from lucius.ledger.job_ledger import LayoutName
from lucius.ledger.memory import MemoryStore
from lucius.ledger.store import StoreError

F = JobState.FAILED_FINAL
WRITES_MAX = 60
# A rerun leaves the list of failed jobs after it was created.
COMMITS = {"rerun": 2, "redrive": 2}


def _world(layout: LayoutName) -> World:
    return World(MemoryStore(spans=False), layout, frugal=True)


async def _writes(play: Play, world: World) -> int:
    act = await play.prepare(world)
    deployment = world.deployment()
    await act(deployment)
    assert 0 < len(deployment.store.commits) < WRITES_MAX
    return len(deployment.store.commits)


async def _settled(world: World, ends: frozenset[JobState]) -> None:
    await run_out(world)
    records = await check_at_rest(world)
    assert {record.job.state for record in records.values()} <= ends
    for job_id in set(world.ids.jobs) - records.keys():
        await _check_never_came(world, job_id)


async def _check_never_came(world: World, job_id: str) -> None:
    """A key whose client was never answered may stay, and a tombstone in the place of its job."""
    truth = T.ledger if world.layout is LayoutName.LEDGER else T.steps
    assert {table for table, _, _ in await mentions(world, job_id)} <= {T.idempotency, truth}


@pytest.mark.parametrize("again", [False, True], ids=["asked-once", "asked-again"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PLAYS)
async def test_a_process_may_die_at_any_write(name: str, layout: LayoutName, again: bool) -> None:
    play = PLAYS[name]
    for number in range(await _writes(play, _world(layout))):
        for after in (False, True):
            world = _world(layout)
            act = await play.prepare(world)
            with pytest.raises(Died):
                await act(world.deployment(Trial(at=number, dies_before=not after, dies_after=after)))
            await check_always(world)
            if again:
                await act(world.deployment())
                await check_always(world)
            await _settled(world, play.ends_when_asked_again if again else play.ends)
            if again and "submit" in name:
                assert len(await world.records()) == 1
            if again and "adopt" in name:
                assert len(await world.records()) == 2


@pytest.mark.parametrize("kind", ["memory", "sqlite", POSTGRES])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", sorted(PLAYS.keys() - WITHOUT_SPANS))
async def test_one_commit_cannot_be_torn(name: str, layout: LayoutName, kind: str, tmp_path: Path) -> None:
    """Where commits may span, an operation is one of them: dying before it or after it is all there is."""
    play, commits = PLAYS[name], COMMITS.get(name, 1)
    for number, after in [(number, after) for number in range(commits) for after in (False, True)]:
        folder = tmp_path / f"{number}-{after}"
        folder.mkdir()
        async with opened_world(kind, layout, folder) as world:
            act = await play.prepare(world)
            deployment = world.deployment()
            await deployment.warm()
            deployment.store.trial = Trial(at=number, dies_before=not after, dies_after=after)
            with pytest.raises(Died):
                await act(deployment)
            await check_always(world)
            await _settled(world, play.ends)
    async with opened_world(kind, layout, tmp_path) as world:
        act = await play.prepare(world)
        deployment = world.deployment()
        await deployment.warm()
        await act(deployment)
        assert len(deployment.store.commits) == commits


@pytest.mark.parametrize("meanwhile", ["sweep", "work", "ask-again"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PLAYS)
async def test_a_process_may_sleep_in_front_of_any_write(
    name: str, layout: LayoutName, meanwhile: str
) -> None:
    play = PLAYS[name]
    for number in range(await _writes(play, _world(layout))):
        world = _world(layout)
        act = await play.prepare(world)

        async def sleep(world: World = world, act: Act = act) -> None:
            if meanwhile == "ask-again":
                await act(world.deployment())
            for _ in range(6):
                world.clock.now_ms += GRACE_MS + 1_000
                await world.deployment().sweeper.sweep()
                if meanwhile != "sweep":
                    await world.deployment().work()
                await check_always(world)

        try:
            await act(world.deployment(Trial(at=number, sleeps=sleep)))
        except StoreError:
            assert name != "submit"  # a client is not sent away because we were slow
        await check_always(world)
        await _settled(world, play.ends | play.ends_when_asked_again | {F})


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["result-last", "result-final", "cancel-waiting", "cancelled-by-timeout"])
async def test_a_process_may_sleep_until_its_job_is_forgotten(name: str, layout: LayoutName) -> None:
    play = PLAYS[name]
    for number in range(await _writes(play, _world(layout))):
        world = _world(layout)
        act = await play.prepare(world)

        async def sleep(world: World = world) -> None:
            world.clock.now_ms += GRACE_MS + 1_000
            await run_out(world)
            world.clock.now_ms += KEEP_MS
            await world.deployment().retention.look()

        deployment = world.deployment(Trial(at=number, sleeps=sleep))
        with suppress(StoreError, AssertionError):  # the second: an answer that is a refusal
            await act(deployment)
        world.clock.now_ms += KEEP_MS
        await run_out(world)
        for job_id in world.ids.jobs:
            assert await mentions(world, job_id) == []


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_client_who_asks_again_gets_the_one_job(layout: LayoutName, after: bool) -> None:
    for number in range(await _writes(PLAYS["submit"], _world(layout))):
        world = _world(layout)
        act = await submit_first(world)
        with pytest.raises(Died):
            await act(world.deployment(Trial(at=number, dies_before=not after, dies_after=after)))
        first = await act(world.deployment())
        await run_out(world)
        assert await act(world.deployment()) == first
        records = await check_at_rest(world)
        assert list(records) == [first]
        assert set((await held_keys(world)).values()) == {first}


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_job_that_never_came_leaves_a_key_and_a_tombstone_at_most(layout: LayoutName) -> None:
    for number in range(await _writes(PLAYS["submit"], _world(layout))):
        world = _world(layout)
        act = await submit_first(world)
        with pytest.raises(Died):
            await act(world.deployment(Trial(at=number, dies_before=True)))
        world.clock.now_ms += GRACE_MS
        # Nobody polls for the service: the due row alone clears up.
        await world.deployment().sweeper.sweep()
        for job_id in set(world.ids.jobs) - (await world.records()).keys():
            await _check_never_came(world, job_id)


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_redriven_job_stays_out_of_the_dlq(layout: LayoutName) -> None:
    """The chores of its end are repeated after it was taken up again."""
    attempt = await acked(world := _world(layout), "OCR")
    dying = world.deployment(Trial(at=lambda ops: ops[0].table == T.inflight, dies_before=True))
    with pytest.raises(Died):
        await dying.result(attempt, ResultStatus.FAILED_FINAL, "BROKEN")
    accepted = await world.deployment().reruns.rerun(attempt.job_id, from_step=None, key="again")
    assert isinstance(accepted, Submitted)
    await run_out(world)
    records = await check_at_rest(world)
    assert records[attempt.job_id].job.state is F
    assert await world.deployment().lists.dlq("", 10) == []
    assert Fact.JOB_FAILED in {event.type for event in await world.events(attempt.job_id)}
