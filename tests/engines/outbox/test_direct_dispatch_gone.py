"""A taker that goes away while something is being committed for it: nothing lies until its ACK timeout."""

import asyncio
from typing import Any

import pytest
from tests.support.dispatch_setup import Place, ids
from tests.support.virtual_time import virtual

from lucius.api.work import _unless_gone
from lucius.core.states import StepState
from lucius.engines.outbox.dispatcher import run_to_its_end
from lucius.ledger.store import StoreUnavailable

LONG_MS = 20_000
ACK_TIMEOUT_MS = 30_000
LANE_OF_ACME = 14


def leasing(place: Place, *, directives_max: int = 1, **more: Any) -> "asyncio.Task[list[dict[str, Any]]]":
    """A worker's poll over HTTP."""
    lease = place.dispatcher.lease("ocr", directives_max=directives_max, wait_ms=LONG_MS, **more)
    return asyncio.create_task(lease)


async def gone_in_the_middle(place: Place) -> str:
    """A job that was handed out to a poll which was cancelled before its commit was answered."""
    job_id = await place.submit()
    place.store.hold()
    poll = leasing(place)
    await place.store.held.wait()
    poll.cancel()
    await asyncio.sleep(0.1)
    assert not poll.done(), "a commit that has begun is waited for"
    place.store.answered.set()
    await asyncio.wait({poll})
    assert poll.cancelled()
    return job_id


@virtual
async def test_a_taker_in_this_process_gets_what_was_committed_for_it() -> None:
    place = Place()
    job_id = await place.submit()
    place.store.hold()
    take = asyncio.create_task(
        place.dispatcher.take("ocr", directives_max=1, wait_ms=LONG_MS, picked_up=True)
    )
    await place.store.held.wait()
    for _ in range(2):
        take.cancel()
        await asyncio.sleep(0.1)
    place.store.answered.set()
    assert ids(await take) == [job_id]


@virtual
async def test_a_taker_whose_time_is_up_meanwhile_gets_what_was_committed_for_it() -> None:
    place = Place()
    job_id = await place.submit()
    place.store.hold()
    take = asyncio.create_task(place.dispatcher.take("ocr", directives_max=1, wait_ms=50))
    await place.store.held.wait()
    await asyncio.sleep(1)
    place.store.answered.set()
    assert ids(await take) == [job_id]


@virtual
async def test_what_was_committed_for_a_worker_that_is_gone_is_for_the_next() -> None:
    place = Place()
    job_id = await gone_in_the_middle(place)
    (directive,) = await leasing(place)
    assert (directive["jobId"], directive["attempt_no"]) == (job_id, 1)
    assert await place.step_state(job_id) is StepState.INITIATED
    third = leasing(place)
    await asyncio.wait({third})
    assert third.result() == [], "and for nobody after that"


@virtual
async def test_who_waits_already_gets_it_at_once() -> None:
    place = Place()
    job_id = await place.submit()
    place.store.hold()
    first = leasing(place)
    await place.store.held.wait()
    second = leasing(place)
    await asyncio.sleep(0.1)
    began = asyncio.get_running_loop().time()
    first.cancel()
    place.store.answered.set()
    assert [one["jobId"] for one in await second] == [job_id]
    assert asyncio.get_running_loop().time() - began < 0.1


@virtual
async def test_it_goes_to_nobody_who_would_not_acknowledge_it_or_asks_for_other_lanes() -> None:
    place = Place()
    job_id = await gone_in_the_middle(place)
    assert await place.dispatcher.take("ocr", directives_max=1, wait_ms=0, picked_up=True) == []
    others = [lane for lane in range(16) if lane != LANE_OF_ACME]
    assert await place.dispatcher.lease("ocr", directives_max=1, wait_ms=0, lanes=others) == []
    (directive,) = await leasing(place, lanes=[LANE_OF_ACME])
    assert directive["jobId"] == job_id


@virtual
async def test_it_is_offered_to_nobody_once_its_time_is_over() -> None:
    place = Place()
    await gone_in_the_middle(place)
    await asyncio.sleep(ACK_TIMEOUT_MS / 1000)
    assert await place.dispatcher.lease("ocr", directives_max=1, wait_ms=0) == []


async def with_one_on_its_way(place: Place) -> "tuple[asyncio.Task[Any], asyncio.Task[str]]":
    """A taker that has a place in a commit which creates a job, and that commit."""
    for tenant in ("acme", "globex"):  # writes the names down once
        await place.submit(tenant)
    assert len(await place.dispatcher.take("ocr", directives_max=2, wait_ms=0)) == 2
    take = asyncio.create_task(place.dispatcher.take("ocr", directives_max=2, wait_ms=LONG_MS))
    await asyncio.sleep(0.1)
    place.store.hold()
    creating = asyncio.create_task(place.submit("acme"))
    await place.store.held.wait()
    return take, creating


@virtual
async def test_a_taker_that_goes_while_it_waits_for_what_is_on_its_way_gets_it() -> None:
    place = Place()
    take, creating = await with_one_on_its_way(place)
    await asyncio.sleep(LONG_MS / 1000)  # it only waits for that by now
    for _ in range(2):
        take.cancel()
        await asyncio.sleep(0.1)
    place.store.answered.set()
    assert ids(await take) == [await creating]


@virtual
async def test_a_look_that_fails_does_not_lose_what_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place()
    take, creating = await with_one_on_its_way(place)

    async def away(*_: object, **__: object) -> Any:
        raise StoreUnavailable("the ledger is away")

    monkeypatch.setattr(place.indexes, "dispatch", away)
    await asyncio.sleep(2)  # the regular look finds nothing out
    place.store.answered.set()
    assert ids(await take) == [await creating]


@virtual
async def test_a_wait_ends_by_the_clock_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on the wall may be set back."""
    place = Place()
    monkeypatch.setattr(place.dispatcher, "_now_ms", lambda: 1)
    assert await place.dispatcher.take("ocr", directives_max=1, wait_ms=LONG_MS) == []
    assert asyncio.get_running_loop().time() == pytest.approx(LONG_MS / 1000)


class Poll:
    """A request whose client stays."""

    async def receive(self) -> Any:
        await asyncio.Event().wait()


@virtual
async def test_a_request_that_is_cancelled_leaves_no_waiter_at_the_dispatcher() -> None:
    place = Place()
    serving = asyncio.create_task(_unless_gone(Poll(), leasing(place)))  # type: ignore[arg-type]
    await asyncio.sleep(0.1)
    serving.cancel()
    await asyncio.wait({serving})
    await asyncio.sleep(0.1)
    job_id = await place.submit()
    assert await place.step_state(job_id) is StepState.DISPATCHING
    assert [one["jobId"] for one in await leasing(place)] == [job_id]


@virtual
async def test_what_fails_is_told_when_it_has_ended() -> None:
    async def work() -> None:
        await asyncio.sleep(1)
        raise StoreUnavailable("the ledger is away")

    task = asyncio.create_task(run_to_its_end(work()))
    await asyncio.sleep(0.5)
    task.cancel()
    with pytest.raises(StoreUnavailable):
        await task
    assert asyncio.get_running_loop().time() == pytest.approx(1)
