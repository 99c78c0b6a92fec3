"""The hand-out: who gets what, in how many commits, and what happens when a commit fails."""

import asyncio
from typing import Any

import pytest
from tests.support.dispatch_setup import Place, ids
from tests.support.virtual_time import virtual

from lucius.core.routing import LANES
from lucius.core.states import OutboxState, StepState
from lucius.ledger.store import Row, StoreUnavailable


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


@virtual
async def test_many_takers_that_wait_look_no_more_often_than_one() -> None:
    place = Place()
    reads = 0
    query = place.store.query

    async def counted(*args: Any, **more: Any) -> list[Row]:
        nonlocal reads
        reads += 1
        return await query(*args, **more)

    place.store.query = counted  # type: ignore[method-assign]
    seen: list[int] = []
    for takers in (1, 20):
        before = reads
        polls = (place.dispatcher.take("ocr", directives_max=1, wait_ms=10_000) for _ in range(takers))
        assert await asyncio.gather(*polls) == [[]] * takers
        seen.append(reads - before)
    assert seen[0] == pytest.approx(10 * LANES, abs=2 * LANES)
    assert seen[1] == pytest.approx(seen[0], abs=2 * LANES)


@virtual
async def test_what_another_process_wrote_is_found_within_an_interval() -> None:
    """Though some takers have waited for longer than others, and nothing says a word."""
    place = Place()
    polls = [await place.waiting() for _ in range(3)]
    await asyncio.sleep(0.7)
    queue = place.dispatcher._queues.pop("ocr")
    job_id = await place.submit()
    place.dispatcher._queues["ocr"] = queue
    began = asyncio.get_running_loop().time()
    done, _ = await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED)
    assert [ids(task.result()) for task in done] == [[job_id]]
    assert asyncio.get_running_loop().time() - began <= 1.0
    place.dispatcher.close()
    await asyncio.wait(polls)
