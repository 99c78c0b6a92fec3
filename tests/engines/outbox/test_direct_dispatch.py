"""The hand-out: who gets what, in how many commits, and what happens when a commit fails."""

import asyncio

import pytest
from tests.support.dispatch_setup import Place, ids

from lucius.core.states import OutboxState, StepState
from lucius.ledger.store import StoreUnavailable


@pytest.mark.parametrize(("picked_up", "state"), [(True, StepState.PROCESSING), (False, StepState.INITIATED)])
async def test_a_waiting_taker_is_served_by_the_commit_that_creates_the_job(
    picked_up: bool, state: StepState
) -> None:
    place = Place()
    await place.submit("globex")  # writes the names down once
    await place.dispatcher.take("ocr", directives_max=1, wait_ms=0)
    waiter = await place.waiting(picked_up=picked_up)
    place.commits.clear()
    job_id = await place.submit("globex")
    taken = await waiter
    assert ids(taken) == [job_id] and len(place.commits) == 1
    assert taken[0].step.state is state and await place.step_state(job_id) is state
    outbox = taken[0].record.outbox
    assert outbox is not None and outbox.state is OutboxState.SENT
    assert not [op for op in place.commits[0] if op.table == "lucius_dispatch"]


async def test_nobody_gets_more_than_they_asked_for() -> None:
    place = Place()
    jobs: list[str] = []
    taken: list[str] = []
    done = asyncio.Event()

    async def waiter() -> None:
        while not done.is_set():
            got = await place.dispatcher.take("ocr", directives_max=2, wait_ms=50)
            assert len(got) <= 2
            taken.extend(ids(got))

    async def submitter(tenant: str) -> None:
        for _ in range(40):
            jobs.append(await place.submit(tenant))
            await asyncio.sleep(0)

    takers = [asyncio.create_task(waiter()) for _ in range(5)]
    await asyncio.gather(*(submitter(f"tenant-{n}") for n in range(8)))
    while len(taken) < len(jobs):
        await asyncio.sleep(0.01)
    done.set()
    await asyncio.gather(*takers)
    assert sorted(taken) == sorted(jobs), "each job is handed out exactly once"


async def test_lanes_are_respected() -> None:
    place = Place()
    waiter = await place.waiting(lanes=[0])
    job_id = await place.submit("acme")  # lane 14
    await asyncio.sleep(0.02)
    assert not waiter.done() and await place.step_state(job_id) is StepState.DISPATCHING
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter


async def test_rows_that_wait_longer_go_first() -> None:
    place = Place()
    first, second = await place.submit(), await place.submit()
    waiter = asyncio.create_task(place.dispatcher.take("ocr", directives_max=2, wait_ms=1_000))
    third = await place.submit()
    assert ids(await waiter) == [first, second]
    assert await place.step_state(third) is StepState.DISPATCHING


async def test_a_commit_that_fails_gives_the_hand_back() -> None:
    place = Place()
    await place.submit()
    await place.dispatcher.take("ocr", directives_max=1, wait_ms=0)
    waiter = await place.waiting()
    place.failing = True
    with pytest.raises(StoreUnavailable):
        await place.submit()
    place.failing = False
    assert await waiter == [], "the taker is sent home rather than left with a place that never comes"
    job_id = await place.submit()
    assert ids(await place.dispatcher.take("ocr", directives_max=1, wait_ms=100)) == [job_id]


async def test_a_taker_that_leaves_takes_nothing_with_it() -> None:
    place = Place()
    waiter = await place.waiting()
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    job_id = await place.submit()
    assert await place.step_state(job_id) is StepState.DISPATCHING
    assert ids(await place.dispatcher.take("ocr", directives_max=1, wait_ms=0)) == [job_id]


async def test_closing_sends_everybody_home() -> None:
    place = Place()
    waiter = await place.waiting()
    place.dispatcher.close()
    assert await asyncio.wait_for(waiter, 1) == []
    job_id = await place.submit()
    assert await place.step_state(job_id) is StepState.DISPATCHING
