"""A lane holds a bounded number of unacknowledged directives; the rest are told when to come again."""

from typing import Any

import msgspec
import pytest
from tests.support.invoker_setup import Deployment, Workflows
from tests.support.publisher_setup import LANE, Worker, World, ack, message_of

from lucius.contracts.internal import Verdict
from lucius.core.inputs import Cancel, Control, ExpireReason, Pause
from lucius.core.refusal import Code
from lucius.core.states import OutboxState
from lucius.engines.temporal.invoker import DirectiveBuilder
from lucius.engines.temporal.lane_window import LaneWindow, WindowLimits

PLACE = ("ocr", LANE)


async def filled(deployment: Deployment, window: int) -> list[str]:
    """As many jobs as there is room for, all out."""
    jobs = [await deployment.submit() for _ in range(window)]
    for job_id in jobs:
        assert (await deployment.attempt(job_id)).verdict is Verdict.GO
    return jobs


async def test_the_rest_wait_begun_but_without_a_clock() -> None:
    world = World()
    deployment = Deployment(world, Workflows(), window=2)
    await filled(deployment, 2)
    late = await deployment.submit()
    told = await deployment.attempt(late)
    assert (told.verdict, told.again_in_ms) == (Verdict.WAIT, 1_000)
    assert told.position.deadline_at_ms is None and not told.position.published
    assert deployment.window.out(PLACE) == 2
    assert len(await Worker(world).take()) == 2
    assert await deployment.states(late) == ("QUEUED", "INITIATED")


async def test_an_ack_an_expiry_and_a_cancel_make_room() -> None:
    world = World()
    deployment = Deployment(world, Workflows(), window=3)
    jobs = await filled(deployment, 3)
    directives = [message_of(delivery) for delivery in await Worker(world).take()]
    await deployment.apply(directives[0]["jobId"], ack(directives[0]))
    assert deployment.window.out(PLACE) == 2
    world.clock_ms += 30_000
    await deployment.expire(jobs[1], ExpireReason.ACK_TIMEOUT)
    assert deployment.window.out(PLACE) == 1
    await deployment.control(jobs[2], Cancel())
    assert deployment.window.out(PLACE) == 1, "it is still out: only its service can end it"
    await deployment.expire(jobs[2], ExpireReason.ACK_TIMEOUT)
    assert deployment.window.out(PLACE) == 0


async def test_who_was_published_already_is_let_in_again() -> None:
    deployment = Deployment(World(), Workflows(), window=1)
    (job_id,) = await filled(deployment, 1)
    assert (await deployment.publish(job_id)).verdict is Verdict.GO


async def test_a_failed_publish_takes_no_room() -> None:
    world = World()
    deployment = Deployment(world, Workflows(), window=1)
    world.bus.down = True
    refused = await deployment.publish_in_vain(await deployment.submit())
    assert refused.code is Code.PUBLISH_FAILED
    world.bus.down = False
    assert deployment.window.out(PLACE) == 0
    assert (await deployment.attempt(await deployment.submit())).verdict is Verdict.GO


async def test_an_ack_that_another_invoker_took_is_found_out_once_the_lane_is_full() -> None:
    world = World()
    deployment, other = Deployment(world, Workflows(), window=1), Deployment(world, Workflows(), window=1)
    (job_id,) = await filled(deployment, 1)
    late = await deployment.submit()
    assert (await deployment.attempt(late)).verdict is Verdict.WAIT
    await other.apply(job_id, ack(await Worker(world).take_one()))
    assert (await deployment.publish(late)).verdict is Verdict.WAIT, (
        "the ledger is asked once a second at most"
    )
    world.clock_ms += 1_000
    assert (await deployment.publish(late)).verdict is Verdict.GO
    assert deployment.window.out(PLACE) == 1


async def test_the_more_wait_the_later_they_come_again() -> None:
    deployment = Deployment(World(), Workflows())
    window = LaneWindow(
        deployment.ledger, WindowLimits(directives_max=2, waiting_max=7), now_ms=deployment.world.now_ms
    )
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
    deployment = Deployment(World(), Workflows(), window=1)
    (job_id,) = await filled(deployment, 1)
    others = [await deployment.submit() for _ in range(4)]
    assert [(await deployment.attempt(other)).again_in_ms for other in others] == [1_000, 2_000, 3_000, 4_000]
    deployment.world.clock_ms += 8_000
    assert (await deployment.publish(others[0])).again_in_ms == 1_000
    assert deployment.window.out(PLACE) == 1
    assert (await deployment.publish(job_id)).verdict is Verdict.GO


async def test_who_comes_again_in_time_is_still_counted() -> None:
    deployment = Deployment(World(), Workflows(), window=1)
    await filled(deployment, 1)
    others = [await deployment.submit() for _ in range(3)]
    for other in others:
        assert (await deployment.attempt(other)).verdict is Verdict.WAIT
    for _ in range(5):
        deployment.world.clock_ms += 3_000
        assert [(await deployment.publish(other)).again_in_ms for other in others] == [3_000, 3_000, 3_000]


@pytest.mark.parametrize("wish", [Pause(), Cancel()])
async def test_who_is_paused_or_cancelled_meanwhile_does_not_wait(wish: Control) -> None:
    deployment = Deployment(World(), Workflows(), window=1)
    await filled(deployment, 1)
    first, second = await deployment.submit(), await deployment.submit()
    assert (await deployment.attempt(first)).again_in_ms == 1_000
    await deployment.control(first, wish)
    assert (await deployment.attempt(second)).again_in_ms == 1_000


async def test_a_directive_that_cannot_be_made_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = Deployment(World(), Workflows(), window=1)
    job_id = await deployment.submit()

    def broken(*_: object) -> Any:
        raise RuntimeError("no key to sign with")

    with monkeypatch.context() as patch:
        patch.setattr(DirectiveBuilder, "of", broken)
        with pytest.raises(RuntimeError):
            await deployment.attempt(job_id)
    assert deployment.window.out(PLACE) == 0


async def test_lanes_and_services_have_windows_of_their_own() -> None:
    world = World()
    deployment = Deployment(world, Workflows(), window=1)
    await filled(deployment, 1)
    other = await deployment.submit("EMBEDDING")
    assert (await deployment.attempt(other)).verdict is Verdict.GO


async def test_a_commit_that_is_heard_of_late_gives_no_place_away() -> None:
    world = World()
    deployment = Deployment(world, Workflows(), window=1)
    (job_id,) = await filled(deployment, 1)
    out = await deployment.record(job_id)
    earlier = msgspec.structs.replace(out.job, version=out.job.version - 1)
    assert out.outbox is not None
    waiting = msgspec.structs.replace(out.outbox, state=OutboxState.PENDING, sent_at_ms=None)
    deployment.window.watch(None, msgspec.structs.replace(out, job=earlier, outbox=waiting), ())
    assert deployment.window.out(PLACE) == 1
