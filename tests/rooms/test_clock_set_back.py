"""What a clock that ran ahead has put into the dispatch index and among the webhooks does not wait for it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.rooms.webhook_receiver import status_line
from tests.rooms.webhook_scene import Scene, opened_scene

from lucius.bus.memory import Fate
from lucius.core.inputs import Pause, Resume
from lucius.ledger.webhooks import WebhookPhase

if TYPE_CHECKING:
    from tests.rooms.relay_house import LANE, House, Worker, World, fates
else:
    from relay_house import LANE, House, Worker, World, fates

HOUR_MS = 3_600_000


async def test_a_relay_sends_what_a_clock_ahead_has_put_there() -> None:
    world = World()
    world.clock_ms += HOUR_MS
    ahead = House(world, hints=False)
    job_ids = [await ahead.submit() for _ in range(3)]
    world.clock_ms -= HOUR_MS
    await House(world, hints=False).look()
    taken = await Worker(world).take()
    assert sorted(delivery.message_id.split(".")[0] for delivery in taken) == sorted(job_ids)


async def test_a_relay_sends_what_was_resumed_since() -> None:
    """The row is written anew by a right clock, and its time is still that of the clock ahead."""
    world = World()
    world.clock_ms += HOUR_MS
    ahead = House(world, hints=False)
    job_id = await ahead.submit()
    await ahead.apply(job_id, Pause())
    world.clock_ms -= HOUR_MS
    house = House(world, hints=False)
    await house.apply(job_id, Resume())
    await house.look()
    assert len(await Worker(world).take()) == 1


async def test_a_backoff_of_a_clock_ahead_is_not_waited_out() -> None:
    world = World()
    world.clock_ms += HOUR_MS
    ahead = House(world, hints=False)
    world.bus.on_publish = fates(Fate.REFUSED)
    await ahead.submit()
    await ahead.look()
    world.clock_ms -= HOUR_MS
    await House(world, hints=False).look()
    assert len(await Worker(world).take()) == 1


async def test_a_relay_waits_out_its_own_backoff_all_the_same() -> None:
    world = World()
    house = House(world, hints=False)
    world.bus.on_publish = fates(Fate.REFUSED)
    await house.submit()
    await house.look()
    for _ in range(3):
        world.clock_ms += 6_000
        await house.look()
    assert await Worker(world).take() == [], "the backoff of 30 s is not over"
    world.clock_ms += 30_000
    await house.look()
    assert len(await Worker(world).take()) == 1


async def test_no_more_leaves_for_a_clock_ahead_than_the_window_holds() -> None:
    world = World()
    world.clock_ms += HOUR_MS
    ahead = House(world, hints=False)
    for _ in range(5):
        await ahead.submit()
    world.clock_ms -= HOUR_MS
    house = House(world, hints=False, window=2)
    for _ in range(3):
        world.clock_ms += 6_000
        await house.look()
    assert house.relay.unacked("ocr", LANE) == 2


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with opened_scene(tmp_path) as one:
        yield one


@pytest.mark.parametrize("ahead_ms", [HOUR_MS, 960 * HOUR_MS])
async def test_a_webhook_of_a_job_that_ended_ahead_is_sent(scene: Scene, ahead_ms: int) -> None:
    scene.world.clock.now_ms += ahead_ms
    job_id = await scene.ended()
    scene.world.clock.now_ms -= ahead_ms
    await scene.send()
    assert await scene.phase(job_id) is WebhookPhase.DELIVERED


async def test_a_webhook_that_failed_ahead_is_tried_again(scene: Scene) -> None:
    scene.world.clock.now_ms += HOUR_MS
    job_id = await scene.ended()
    scene.there.answering = lambda request: status_line(503)
    await scene.send()
    assert await scene.phase(job_id) is WebhookPhase.PENDING
    scene.there.answering = lambda request: status_line(204)
    scene.world.clock.now_ms -= HOUR_MS
    await scene.send()
    assert await scene.phase(job_id) is WebhookPhase.DELIVERED


async def test_a_webhook_that_waits_out_its_backoff_is_left_alone(scene: Scene) -> None:
    job_id = await scene.ended()
    scene.there.answering = lambda request: status_line(503)
    await scene.send()
    scene.there.answering = lambda request: status_line(204)
    await scene.send()
    assert await scene.phase(job_id) is WebhookPhase.PENDING
    assert len(scene.there.received) == 1
