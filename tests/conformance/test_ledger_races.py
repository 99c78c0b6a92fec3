"""Several processes at once on the same jobs, in many orders.

Each call to the store waits for its turn, and a number decides whose turn it is: one number, one order,
played the same way each time. Between any two turns nothing that is open may be forgotten, and once everybody
is done and time has passed, rows and truth agree.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.ledger_checks import check_always, check_at_rest, held_keys, of_table, run_out
from tests.conformance.ledger_plays import acked, finish, handed_out
from tests.conformance.ledger_setup import (
    EVERY_STORE,
    LAYOUTS,
    Deployment,
    T,
    World,
    envelope,
    opened_world,
    submit,
)
from tests.sizes import size

from lucius.core.inputs import Cancel, Pause, ResultStatus, Resume
from lucius.core.states import JobState
from lucius.jobs.submit import Submitted
from lucius.ledger.commit_plan import GRACE_MS
from lucius.ledger.job_ledger import LayoutName
from lucius.ledger.memory import MemoryStore
from lucius.ledger.store import Op, StoreError, Verb, put

FIRST, ORDERS = 1, size(25, 200)
TURNS_MAX = 5_000
Actor = Callable[[Deployment], Awaitable[object]]


class Turns:
    """Who waits for a turn, and the number that decides who gets it."""

    def __init__(self, number: int) -> None:
        self.chance = random.Random(number)
        self._waiting: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    async def play(self, world: World, actors: list[Coroutine[Any, Any, object]]) -> list[object]:
        tasks, checked = [asyncio.ensure_future(actor) for actor in actors], 0
        for _ in range(TURNS_MAX):
            for _ in range(8):  # everybody gets to where they wait again
                await asyncio.sleep(0)
            if not self._waiting:
                break
            self._waiting.pop(self.chance.randrange(len(self._waiting))).set_result(None)
            await asyncio.sleep(0)
            if world.places.commits > checked:  # else everything is as it was
                checked = world.places.commits
                await check_always(world)
        return await asyncio.gather(*tasks, return_exceptions=True)


async def sweeps(deployment: Deployment) -> None:
    """Time passes while the others are at it."""
    for step_ms in (10, GRACE_MS + 1_000, GRACE_MS + 1_000):
        deployment.clock.now_ms += step_ms
        await deployment.sweeper.sweep()


async def works(deployment: Deployment) -> None:
    await deployment.work()


async def submits(deployment: Deployment) -> object:
    return await submit(deployment, request_type="OCR_EMBEDDING", key="k")


async def cast_of_a_new_job(world: World) -> list[Actor]:
    return [submits, submits, submits, sweeps, works]


async def cast_of_a_lost_key(world: World) -> list[Actor]:
    """A job whose creator died is finished by two clients while a sweeper clears up after it."""
    if not world.store.spans:
        await finish(world)
        world.clock.now_ms += GRACE_MS - 20
    return [submits, submits, sweeps, sweeps, works]


async def cast_of_a_step_under_way(world: World) -> list[Actor]:
    attempt = await acked(world)
    return [
        lambda deployment: deployment.result(attempt),
        lambda deployment: deployment.result(attempt),
        lambda deployment: deployment.writer.apply(attempt.job_id, Cancel()),
        sweeps,
        works,
    ]


async def cast_of_a_reply_at_the_deadline(world: World) -> list[Actor]:
    attempt = await handed_out(world)
    world.clock.now_ms += 29_990
    return [
        lambda deployment: deployment.ack(attempt),
        lambda deployment: deployment.result(attempt, ResultStatus.FAILED_RETRY, "BUSY"),
        sweeps,
        sweeps,
        works,
    ]


async def cast_of_a_pause(world: World) -> list[Actor]:
    job_id = await submit(world.deployment(), request_type="OCR_EMBEDDING")
    return [
        lambda deployment: deployment.writer.apply(job_id, Pause()),
        lambda deployment: deployment.writer.apply(job_id, Resume()),
        lambda deployment: deployment.writer.apply(job_id, Pause()),
        lambda deployment: deployment.writer.apply(job_id, Resume()),
        works,
        sweeps,
    ]


async def cast_of_a_failure(world: World) -> list[Actor]:
    attempt = await acked(world, "OCR")
    return [
        lambda deployment: deployment.result(attempt, ResultStatus.FAILED_FINAL, "BROKEN"),
        lambda deployment: deployment.result(attempt, ResultStatus.FAILED_FINAL, "BROKEN"),
        lambda deployment: deployment.reruns.rerun(attempt.job_id, from_step=None, key=None),
        lambda deployment: deployment.reruns.rerun(attempt.job_id, from_step=None, key=None),
        sweeps,
        works,
    ]


CASTS = {
    "a new job": cast_of_a_new_job,
    "a lost key": cast_of_a_lost_key,
    "a step under way": cast_of_a_step_under_way,
    "a reply at the deadline": cast_of_a_reply_at_the_deadline,
    "a pause": cast_of_a_pause,
    "a failure": cast_of_a_failure,
}


@pytest.mark.parametrize("spans", [False, True], ids=["no-spans", "spans"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("cast", CASTS)
async def test_any_order_ends_well(cast: str, layout: LayoutName, spans: bool) -> None:
    for number in range(FIRST, FIRST + ORDERS):
        world, turns = World(MemoryStore(spans=spans), layout), Turns(number)
        actors = await CASTS[cast](world)
        ends = await turns.play(world, [_act(actor, world.deployment(waits=turns.wait)) for actor in actors])
        unexpected = [e for e in ends if isinstance(e, BaseException) and not isinstance(e, StoreError)]
        assert unexpected == [], (number, unexpected)
        await run_out(world)
        await check_at_rest(world)
        if actors[0] is submits:
            assert len(await world.records()) == 1
            assert {end for end in ends if isinstance(end, str)} == set(await world.records())


async def _act(actor: Actor, deployment: Deployment) -> object:
    return await actor(deployment)


# The same with the stores' own concurrency


@pytest.fixture(params=LAYOUTS, ids=lambda layout: layout.value)
def layout(request: pytest.FixtureRequest) -> LayoutName:
    return LayoutName(request.param)


@pytest.mark.parametrize("kind", EVERY_STORE)
async def test_twenty_submits_make_one_job(kind: str, layout: LayoutName, tmp_path: Path) -> None:
    async with opened_world(kind, layout, tmp_path) as world:
        deployments = [world.deployment() for _ in range(4)]
        answers = await asyncio.gather(
            *(deployments[n % 4].submitter.submit(envelope(key="k")) for n in range(20))
        )
        accepted = [answer for answer in answers if isinstance(answer, Submitted)]
        assert len(accepted) == 20 and len({answer.job_id for answer in accepted}) == 1
        assert sum(not answer.duplicate for answer in accepted) == 1
        # Where they really are at it together, the dispatch row may be a loser's until somebody meets it.
        await (check_always(world) if kind == "azurite" else check_at_rest(world))
        assert list(await world.records()) == [accepted[0].job_id]
        # Whoever finished it, or was about to, knows of this one job; no slot of a loser's is left anywhere.
        flights = [jobs for deployment in deployments for jobs in deployment.admission._jobs.values()]
        assert {job_id for jobs in flights for job_id in jobs} == {accepted[0].job_id}
        fresh = world.deployment().admission
        await fresh.recount()
        assert sum(fresh.by_tenant.values()) == 1
        await run_out(world)
        assert len(await check_at_rest(world)) == 1


@pytest.mark.parametrize("kind", EVERY_STORE)
async def test_a_directive_is_handed_out_once(kind: str, layout: LayoutName, tmp_path: Path) -> None:
    async with opened_world(kind, layout, tmp_path) as world:
        made = {await submit(world.deployment(), number) for number in range(10)}
        taken = await asyncio.gather(*(world.deployment().take("ocr") for _ in range(3)))
        handed = [attempt.job_id for attempts in taken for attempt in attempts]
        assert sorted(handed) == sorted(made)
        await check_at_rest(world)


@pytest.mark.parametrize("kind", EVERY_STORE)
async def test_ack_cancel_and_result_at_once(kind: str, layout: LayoutName, tmp_path: Path) -> None:
    async with opened_world(kind, layout, tmp_path) as world:
        attempt = await handed_out(world)
        await asyncio.gather(
            world.deployment().ack(attempt),
            world.deployment().writer.apply(attempt.job_id, Cancel()),
            world.deployment().result(attempt),
        )
        await run_out(world)
        records = await check_at_rest(world)
        assert records[attempt.job_id].job.state in (JobState.CANCELLED, JobState.SUCCEEDED)


@pytest.mark.parametrize("kind", EVERY_STORE)
async def test_a_job_has_one_open_rerun(kind: str, layout: LayoutName, tmp_path: Path) -> None:
    async with opened_world(kind, layout, tmp_path) as world:
        attempt = await acked(world, "OCR")
        await world.deployment().result(attempt, ResultStatus.FAILED_FINAL, "BROKEN")
        world.clock.now_ms += 1
        answers = await asyncio.gather(
            *(world.deployment().reruns.rerun(attempt.job_id, from_step=None, key=None) for _ in range(12))
        )
        accepted = {answer.job_id for answer in answers if isinstance(answer, Submitted)}
        assert len(accepted) == 1
        records = await check_at_rest(world)
        assert set(records) == {attempt.job_id, *accepted}
        assert (await held_keys(world))[f"rerun#{attempt.job_id}"] in accepted
        assert await of_table(world, T.dlq) == [("left#15", attempt.job_id)]


class _Crowded(MemoryStore):
    """Somebody else announces the same row just before us, time and again."""

    def __init__(self, times: int) -> None:
        super().__init__(spans=False)
        self.times = times

    async def commit(self, ops: Sequence[Op]) -> list[str]:
        (op, *_) = ops
        if op.table == T.due and op.verb in (Verb.INSERT, Verb.REPLACE) and self.times:
            self.times -= 1
            await super().commit([put(op.table, op.partition, op.key, op.body)])
        return await super().commit(ops)


@pytest.mark.parametrize("times", [1, 60])
async def test_an_announcer_in_a_crowd_gets_its_turn(layout: LayoutName, times: int) -> None:
    """Over a wire, twenty clients who send the same command at once change its due row that often."""
    store = _Crowded(times)
    world = World(store, layout)
    job_id = await submit(world.deployment())
    assert store.times == 0
    await run_out(world)
    assert (await check_at_rest(world))[job_id].job.state is JobState.SUCCEEDED
