"""Many who write to one job at the same time: each gets its turn, in the order in which they came."""

import asyncio

from tests.support.dispatch_setup import Place
from tests.support.virtual_time import virtual

from lucius.core.draft import Outcome
from lucius.core.inputs import Ack, Progress, Result, ResultStatus
from lucius.jobs.writer import TRIES_MAX, Applied
from lucius.ledger.store import StoreUnavailable

MANY = 2 * TRIES_MAX
COMMIT_SECONDS = 0.002


class Attempt:
    """One that is under way, and what its worker says."""

    def __init__(self, place: Place, job_id: str, lease_id: str) -> None:
        self._place = place
        self._job_id = job_id
        self._names = {"step_id": "step_01", "attempt_no": 1, "lease_id": lease_id, "content": dict}

    @classmethod
    async def begun(cls, place: Place) -> "Attempt":
        job_id = await place.submit()
        (handed,) = await place.dispatcher.take("ocr", directives_max=1, wait_ms=0)
        assert handed.step.lease_id is not None
        attempt = cls(place, job_id, handed.step.lease_id)
        assert await attempt.says(Ack) is Outcome.APPLIED
        place.store.takes_seconds = COMMIT_SECONDS
        return attempt

    async def says(self, kind: type[Ack | Progress | Result], **more: object) -> Outcome:
        applied = await self._place.writer.apply(self._job_id, kind(**self._names, **more))  # type: ignore[arg-type]
        assert isinstance(applied, Applied)
        return applied.outcome

    async def chatters(self, percent: int) -> None:
        """Tells of progress again and again, as a worker does whose threads all tell."""
        while await self.says(Progress, progress=percent) is Outcome.APPLIED:
            pass


@virtual
async def test_of_many_replies_at_once_each_is_taken() -> None:
    attempt = await Attempt.begun(Place())
    said = await asyncio.gather(*(attempt.says(Progress, progress=number % 100) for number in range(MANY)))
    assert set(said) == {Outcome.APPLIED}


@virtual
async def test_a_result_comes_through_the_chatter_of_its_own_attempt() -> None:
    attempt = await Attempt.begun(Place())
    chatter = [asyncio.create_task(attempt.chatters(number % 100)) for number in range(MANY)]
    await asyncio.sleep(10 * COMMIT_SECONDS)
    began = asyncio.get_running_loop().time()
    assert await attempt.says(Result, status=ResultStatus.SUCCEEDED) is Outcome.APPLIED
    # Whoever came before it goes before it, once.
    assert asyncio.get_running_loop().time() - began <= (MANY + 10) * COMMIT_SECONDS
    for each in chatter:
        each.cancel()
    await asyncio.gather(*chatter, return_exceptions=True)


@virtual
async def test_who_goes_away_while_it_waits_for_its_turn_holds_nobody_up() -> None:
    attempt = await Attempt.begun(Place())
    waiting = [asyncio.create_task(attempt.says(Progress, progress=number)) for number in range(20)]
    await asyncio.sleep(COMMIT_SECONDS / 2)
    for each in waiting[::2]:
        each.cancel()
    said = await asyncio.gather(*waiting[1::2])
    assert set(said) == {Outcome.APPLIED}
    assert await attempt.says(Result, status=ResultStatus.SUCCEEDED) is Outcome.APPLIED


@virtual
async def test_a_store_that_fails_fails_those_who_wait_one_by_one() -> None:
    place = Place()
    attempt = await Attempt.begun(place)
    waiting = [asyncio.create_task(attempt.says(Progress, progress=number)) for number in range(20)]
    await asyncio.sleep(COMMIT_SECONDS * 3)
    place.failing = True
    done = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(each) for each in done if not isinstance(each, Outcome)} == {StoreUnavailable}
    place.failing = False
    assert await attempt.says(Result, status=ResultStatus.SUCCEEDED) is Outcome.APPLIED
