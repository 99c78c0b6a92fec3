"""What a clock that ran ahead has put into the dispatch index and among the webhooks does not wait for it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.publisher_setup import LANE, Deployment, Worker, World, fates
from tests.support.webhook_receiver import status_line
from tests.support.webhook_setup import Setup, opened_setup

from lucius.bus.memory import PublishFault
from lucius.core.inputs import Pause, Resume
from lucius.ledger.webhooks import WebhookPhase

HOUR_MS = 3_600_000


async def test_a_publisher_sends_what_a_clock_ahead_has_put_there() -> None:
    world = World()
    world.clock_ms += HOUR_MS
    ahead = Deployment(world, hints=False)
    job_ids = [await ahead.submit() for _ in range(3)]
    world.clock_ms -= HOUR_MS
    await Deployment(world, hints=False).look()
    taken = await Worker(world).take()
    assert sorted(delivery.message_id.split(".")[0] for delivery in taken) == sorted(job_ids)


async def test_a_publisher_sends_what_was_resumed_since() -> None:
    """The row is written anew by a right clock, and its time is still that of the clock ahead."""
    world = World()
    world.clock_ms += HOUR_MS
    ahead = Deployment(world, hints=False)
    job_id = await ahead.submit()
    await ahead.apply(job_id, Pause())
    world.clock_ms -= HOUR_MS
    deployment = Deployment(world, hints=False)
    await deployment.apply(job_id, Resume())
    await deployment.look()
    assert len(await Worker(world).take()) == 1


async def test_a_backoff_of_a_clock_ahead_is_not_waited_out() -> None:
    world = World()
    world.clock_ms += HOUR_MS
    ahead = Deployment(world, hints=False)
    world.bus.on_publish = fates(PublishFault.REFUSED)
    await ahead.submit()
    await ahead.look()
    world.clock_ms -= HOUR_MS
    await Deployment(world, hints=False).look()
    assert len(await Worker(world).take()) == 1


async def test_a_publisher_waits_out_its_own_backoff_all_the_same() -> None:
    world = World()
    deployment = Deployment(world, hints=False)
    world.bus.on_publish = fates(PublishFault.REFUSED)
    await deployment.submit()
    await deployment.look()
    for _ in range(3):
        world.clock_ms += 6_000
        await deployment.look()
    assert await Worker(world).take() == [], "the backoff of 30 s is not over"
    world.clock_ms += 30_000
    await deployment.look()
    assert len(await Worker(world).take()) == 1


async def test_no_more_leaves_for_a_clock_ahead_than_the_window_holds() -> None:
    world = World()
    world.clock_ms += HOUR_MS
    ahead = Deployment(world, hints=False)
    for _ in range(5):
        await ahead.submit()
    world.clock_ms -= HOUR_MS
    deployment = Deployment(world, hints=False, window=2)
    for _ in range(3):
        world.clock_ms += 6_000
        await deployment.look()
    assert deployment.publisher.unacked("ocr", LANE) == 2


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[Setup]:
    async with opened_setup(tmp_path) as one:
        yield one


@pytest.mark.parametrize("ahead_ms", [HOUR_MS, 960 * HOUR_MS])
async def test_a_webhook_of_a_job_that_ended_ahead_is_sent(setup: Setup, ahead_ms: int) -> None:
    setup.world.clock.now_ms += ahead_ms
    job_id = await setup.ended()
    setup.world.clock.now_ms -= ahead_ms
    await setup.send()
    assert await setup.phase(job_id) is WebhookPhase.DELIVERED


async def test_a_webhook_that_failed_ahead_is_tried_again(setup: Setup) -> None:
    setup.world.clock.now_ms += HOUR_MS
    job_id = await setup.ended()
    setup.there.answering = lambda request: status_line(503)
    await setup.send()
    assert await setup.phase(job_id) is WebhookPhase.PENDING
    setup.there.answering = lambda request: status_line(204)
    setup.world.clock.now_ms -= HOUR_MS
    await setup.send()
    assert await setup.phase(job_id) is WebhookPhase.DELIVERED


async def test_a_webhook_that_waits_out_its_backoff_is_left_alone(setup: Setup) -> None:
    job_id = await setup.ended()
    setup.there.answering = lambda request: status_line(503)
    await setup.send()
    setup.there.answering = lambda request: status_line(204)
    await setup.send()
    assert await setup.phase(job_id) is WebhookPhase.PENDING
    assert len(setup.there.received) == 1
