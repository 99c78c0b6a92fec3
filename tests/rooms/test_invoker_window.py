"""A lane holds a bounded number of unacknowledged directives; the rest are told when to come again."""

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from lucius.contracts.internal import ExpireReason, Verdict
from lucius.core.inputs import Cancel, Control, Pause
from lucius.core.states import OutboxState
from lucius.invoker.directives import Directives
from lucius.invoker.window import Window, WindowLimits

if TYPE_CHECKING:
    from tests.rooms.invoker_house import House, Workflows
    from tests.rooms.relay_house import LANE, Worker, World, ack, message_of
else:
    from invoker_house import House, Workflows
    from relay_house import LANE, Worker, World, ack, message_of

PLACE = ("ocr", LANE)


async def filled(house: House, window: int) -> list[str]:
    """As many jobs as there is room for, all out."""
    jobs = [await house.submit() for _ in range(window)]
    for job_id in jobs:
        assert (await house.attempt(job_id)).verdict is Verdict.GO
    return jobs


async def test_the_rest_wait_begun_but_without_a_clock() -> None:
    world = World()
    house = House(world, Workflows(), window=2)
    await filled(house, 2)
    late = await house.submit()
    told = await house.attempt(late)
    assert (told.verdict, told.again_in_ms) == (Verdict.WAIT, 1_000)
    assert told.position.deadline_at_ms is None and not told.position.published
    assert house.window.out(PLACE) == 2
    assert len(await Worker(world).take()) == 2
    assert await house.states(late) == ("QUEUED", "INITIATED")


async def test_an_ack_an_expiry_and_a_cancel_make_room() -> None:
    world = World()
    house = House(world, Workflows(), window=3)
    jobs = await filled(house, 3)
    directives = [message_of(delivery) for delivery in await Worker(world).take()]
    await house.apply(directives[0]["jobId"], ack(directives[0]))
    assert house.window.out(PLACE) == 2
    world.clock_ms += 30_000
    await house.expire(jobs[1], ExpireReason.ACK_TIMEOUT)
    assert house.window.out(PLACE) == 1
    await house.control(jobs[2], Cancel())
    assert house.window.out(PLACE) == 1, "it is still out: only its service can end it"
    await house.expire(jobs[2], ExpireReason.ACK_TIMEOUT)
    assert house.window.out(PLACE) == 0


async def test_who_was_published_already_is_let_in_again() -> None:
    house = House(World(), Workflows(), window=1)
    (job_id,) = await filled(house, 1)
    assert (await house.publish(job_id)).verdict is Verdict.GO


async def test_a_failed_publish_takes_no_room() -> None:
    world = World()
    house = House(world, Workflows(), window=1)
    world.bus.down = True
    assert (await house.attempt(await house.submit())).verdict is Verdict.WAIT
    world.bus.down = False
    assert house.window.out(PLACE) == 0
    assert (await house.attempt(await house.submit())).verdict is Verdict.GO


async def test_an_ack_that_another_invoker_took_is_found_out_once_the_lane_is_full() -> None:
    world = World()
    house, other = House(world, Workflows(), window=1), House(world, Workflows(), window=1)
    (job_id,) = await filled(house, 1)
    late = await house.submit()
    assert (await house.attempt(late)).verdict is Verdict.WAIT
    await other.apply(job_id, ack(await Worker(world).take_one()))
    assert (await house.publish(late)).verdict is Verdict.WAIT, "the ledger is asked once a second at most"
    world.clock_ms += 1_000
    assert (await house.publish(late)).verdict is Verdict.GO
    assert house.window.out(PLACE) == 1


async def test_the_more_wait_the_later_they_come_again() -> None:
    house = House(World(), Workflows())
    window = Window(house.ledger, WindowLimits(directives_max=2, waiting_max=7), now_ms=house.world.now_ms)
    assert [await window.enter(PLACE, f"job_{n}") for n in range(2)] == [None, None]
    waits = [await window.enter(PLACE, f"job_{n}") for n in range(10, 20)]
    # The two that took the places are no jobs of the ledger: they are gone at the first look.
    assert waits[:2] == [None, None]
    assert waits[2:] == [1_000, 1_000, 2_000, 2_000, 3_000, 3_000, 4_000, 4_000]
    assert await window.enter(PLACE, "job_99") == 4_000, "what is remembered has a bound"
    window.leave(PLACE, "job_10")
    assert await window.enter(PLACE, "job_99") is None


async def test_who_does_not_come_again_makes_nobody_wait_longer() -> None:
    """Another invoker may have let it in, and its end is nowhere heard of here."""
    house = House(World(), Workflows(), window=1)
    (job_id,) = await filled(house, 1)
    others = [await house.submit() for _ in range(4)]
    assert [(await house.attempt(other)).again_in_ms for other in others] == [1_000, 2_000, 3_000, 4_000]
    house.world.clock_ms += 8_000
    assert (await house.publish(others[0])).again_in_ms == 1_000
    assert house.window.out(PLACE) == 1
    assert (await house.publish(job_id)).verdict is Verdict.GO


async def test_who_comes_again_in_time_is_still_counted() -> None:
    house = House(World(), Workflows(), window=1)
    await filled(house, 1)
    others = [await house.submit() for _ in range(3)]
    for other in others:
        assert (await house.attempt(other)).verdict is Verdict.WAIT
    for _ in range(5):
        house.world.clock_ms += 3_000
        assert [(await house.publish(other)).again_in_ms for other in others] == [3_000, 3_000, 3_000]


@pytest.mark.parametrize("wish", [Pause(), Cancel()])
async def test_who_is_paused_or_cancelled_meanwhile_does_not_wait(wish: Control) -> None:
    house = House(World(), Workflows(), window=1)
    await filled(house, 1)
    first, second = await house.submit(), await house.submit()
    assert (await house.attempt(first)).again_in_ms == 1_000
    await house.control(first, wish)
    assert (await house.attempt(second)).again_in_ms == 1_000


async def test_a_directive_that_cannot_be_made_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(World(), Workflows(), window=1)
    job_id = await house.submit()

    def broken(*_: object) -> Any:
        raise RuntimeError("no key to sign with")

    with monkeypatch.context() as patch:
        patch.setattr(Directives, "of", broken)
        with pytest.raises(RuntimeError):
            await house.attempt(job_id)
    assert house.window.out(PLACE) == 0


async def test_lanes_and_services_have_windows_of_their_own() -> None:
    world = World()
    house = House(world, Workflows(), window=1)
    await filled(house, 1)
    other = await house.submit("EMBEDDING")
    assert (await house.attempt(other)).verdict is Verdict.GO


async def test_a_commit_that_is_heard_of_late_gives_no_place_away() -> None:
    world = World()
    house = House(world, Workflows(), window=1)
    (job_id,) = await filled(house, 1)
    out = await house.record(job_id)
    earlier = msgspec.structs.replace(out.job, version=out.job.version - 1)
    assert out.outbox is not None
    waiting = msgspec.structs.replace(out.outbox, state=OutboxState.PENDING, sent_at_ms=None)
    house.window.watch(None, msgspec.structs.replace(out, job=earlier, outbox=waiting), ())
    assert house.window.out(PLACE) == 1
