"""The publisher between a ledger and a broker: what leaves, what fails, and what the window holds back."""

import asyncio

import msgspec
from tests.support.publisher_setup import (
    LANE,
    TENANT,
    TOKENS,
    Deployment,
    Out,
    Worker,
    World,
    ack,
    fates,
    message_of,
)

from lucius.bus.memory import PublishFault
from lucius.core.inputs import DispatchNow
from lucius.core.model import StepPolicy
from lucius.core.routing import lane_of
from lucius.core.states import Fact, OutboxState

OTHER = "tenant_b"
OTHER_LANE = lane_of(OTHER)


# What leaves


async def test_a_directive_leaves_and_the_ack_clock_starts() -> None:
    world = World()
    deployment = Deployment(world)
    job_id = await deployment.submit()
    await deployment.publisher.idle()
    (delivery,) = await Worker(world).take()
    directive = message_of(delivery)
    record = await deployment.record(job_id)
    assert await deployment.states(job_id) == ("DISPATCHING", "INITIATED")
    assert record.outbox is not None and record.outbox.state is OutboxState.SENT
    assert record.steps[0].lease_expires_at_ms == world.clock_ms + 30_000
    assert directive["lease_expires_at"] == "2027-01-15T08:00:30.000Z"
    assert delivery.message_key == TENANT
    assert delivery.message_id == f"{job_id}.step_01.1.{record.steps[0].lease_id}"
    attempt = TOKENS.read(directive["callback_token"])
    assert attempt is not None and (attempt.job_id, attempt.attempt_no) == (job_id, 1)


async def test_a_look_finds_what_another_process_wrote() -> None:
    world = World()
    deployment = Deployment(world, hints=False)
    job_id = await deployment.submit()
    await deployment.publisher.idle()
    assert world.bus.directive_depth("ocr", LANE) == 0
    await Deployment(world).look()
    assert world.bus.directive_depth("ocr", LANE) == 1
    assert await deployment.states(job_id) == ("DISPATCHING", "INITIATED")


async def test_publishers_may_share_the_lanes() -> None:
    world = World()
    deployment = Deployment(world, lanes=frozenset({OTHER_LANE}))
    here, there = await deployment.submit(), await deployment.submit(tenant_id=OTHER)
    await deployment.look()
    assert (await deployment.states(here))[1] == "DISPATCHING"
    assert (await deployment.states(there))[1] == "INITIATED"
    await Deployment(world, lanes=frozenset({LANE})).look()
    assert (await deployment.states(here))[1] == "INITIATED"
    assert world.bus.directive_depth("ocr", OTHER_LANE) == 1


async def test_more_than_a_page_leaves_each_once() -> None:
    world = World()
    deployment = Deployment(world, hints=False, window=1_000)
    jobs = {await deployment.submit() for _ in range(150)}
    await deployment.look()
    await deployment.look()
    taken = [message_of(delivery)["jobId"] for delivery in await Worker(world).take(1_000)]
    assert len(taken) == 150
    assert set(taken) == jobs


async def test_a_store_that_cannot_span_is_served_alike() -> None:
    world = World(spans=False)
    deployment = Deployment(world, hints=False)
    jobs = [await deployment.submit() for _ in range(3)]
    await deployment.look()
    await deployment.look()
    assert world.bus.directive_depth("ocr", LANE) == 3
    for job_id in jobs:
        assert await deployment.states(job_id) == ("DISPATCHING", "INITIATED")


# What fails


async def test_failed_publishes_back_off_and_then_succeed() -> None:
    world = World()
    deployment = Deployment(world)
    world.bus.on_publish = fates(PublishFault.REFUSED, PublishFault.REFUSED)
    job_id = await deployment.submit()
    await deployment.look()
    before = await deployment.record(job_id)
    assert before.outbox is not None and before.outbox.failures == 1
    assert before.steps[0].next_attempt_at_ms == world.clock_ms + 30_000
    await deployment.later(29_999)
    assert (await deployment.record(job_id)).outbox == before.outbox
    await deployment.later(1)
    await deployment.later(119_999)
    assert world.bus.directive_depth("ocr", LANE) == 0
    await deployment.later(1)
    after = await deployment.record(job_id)
    assert await deployment.states(job_id) == ("DISPATCHING", "INITIATED")
    assert (after.steps[0].attempt_no, after.steps[0].lease_id) == (1, before.steps[0].lease_id)
    assert (await deployment.facts(job_id))[2:] == [
        Fact.PUBLISH_FAILED,
        Fact.PUBLISH_FAILED,
        Fact.DIRECTIVE_PUBLISHED,
    ]


async def test_an_operator_may_cut_the_backoff_short() -> None:
    world = World()
    deployment = Deployment(world)
    world.bus.on_publish = fates(PublishFault.REFUSED)
    job_id = await deployment.submit()
    await deployment.look()
    assert world.bus.directive_depth("ocr", LANE) == 0
    await deployment.apply(job_id, DispatchNow())
    await deployment.look()
    assert world.bus.directive_depth("ocr", LANE) == 1


async def test_it_gives_up_after_so_many_failed_publishes() -> None:
    world = World()
    deployment = Deployment(world, policy=StepPolicy(publish_attempts_max=3, backoff_publish_ms=(1_000,)))
    world.bus.down = True
    job_id = await deployment.submit()
    await deployment.look()
    for _ in range(2):
        await deployment.later(1_000)
    record = await deployment.record(job_id)
    assert await deployment.states(job_id) == ("FAILED_FINAL", "FAILED_FINAL")
    assert record.job.error_code == "PUBLISH_FAILED"
    assert record.job.error_message == "the bus is down"
    assert record.outbox is not None and record.outbox.state is OutboxState.FAILED_FINAL
    world.bus.down = False
    await deployment.later(3_600_000)
    assert world.bus.directive_depth("ocr", LANE) == 0


async def test_it_gives_up_when_the_dispatch_timeout_is_over() -> None:
    world = World()
    deployment = Deployment(
        world, policy=StepPolicy(dispatch_timeout_ms=60_000, backoff_publish_ms=(50_000,))
    )
    world.bus.down = True
    job_id = await deployment.submit()
    await deployment.look()
    await deployment.later(59_999)
    assert await deployment.states(job_id) == ("DISPATCHING", "DISPATCHING")
    await deployment.later(1)
    assert await deployment.states(job_id) == ("FAILED_FINAL", "FAILED_FINAL")
    assert (await deployment.record(job_id)).job.error_code == "PUBLISH_FAILED"


async def test_backoffs_of_nothing_do_not_spin() -> None:
    world = World()
    deployment = Deployment(world, policy=StepPolicy(backoff_publish_ms=(0,)))
    world.bus.down = True
    job_id = await deployment.submit()
    async with asyncio.timeout(5):
        await deployment.publisher.idle()
        await deployment.look()
    record = await deployment.record(job_id)
    assert record.outbox is not None and 1 <= record.outbox.failures <= 3
    world.bus.down = False
    world.clock_ms += 1_000
    await deployment.look()
    assert await deployment.states(job_id) == ("DISPATCHING", "INITIATED")


async def test_a_bus_that_does_not_answer_counts_as_failed() -> None:
    world = World()
    deployment = Deployment(world, publish_timeout_ms=50)

    async def never(out: "Out") -> PublishFault:
        await asyncio.sleep(3_600)
        return PublishFault.KEPT

    world.bus.on_publish = never
    job_id = await deployment.submit()
    await deployment.publisher.idle()
    record = await deployment.record(job_id)
    assert record.outbox is not None and record.outbox.failures == 1
    assert "no answer" in (record.steps[0].last_error_message or "")


async def test_a_message_the_bus_cannot_carry_fails_alone() -> None:
    world = World()
    deployment = Deployment(world, hints=False)

    async def refuse_first(out: "Out") -> PublishFault:
        if msgspec.json.decode(out.body)["jobId"] == large:
            raise ValueError("the message is too large")
        return PublishFault.KEPT

    large, small = await deployment.submit(), await deployment.submit()
    world.bus.on_publish = refuse_first
    await deployment.look()
    assert (await deployment.states(large))[1] == "DISPATCHING"
    assert (await deployment.record(large)).steps[0].last_error_message == "the message is too large"
    assert (await deployment.states(small))[1] == "INITIATED"


async def test_a_dead_or_slow_lane_holds_nobody_up() -> None:
    world = World()
    deployment = Deployment(world)
    let_go = asyncio.Event()

    async def slow_here(out: "Out") -> PublishFault:
        if out.lane == LANE:
            await let_go.wait()
        return PublishFault.KEPT

    world.bus.on_publish = slow_here
    assert LANE != OTHER_LANE
    slow, quick = await deployment.submit(), await deployment.submit(tenant_id=OTHER)
    same_lane = await deployment.submit("SIS")
    async with asyncio.timeout(5):
        while (await deployment.states(quick))[1] != "INITIATED":
            await asyncio.sleep(0.001)
    assert (await deployment.states(slow))[1] == "DISPATCHING"
    let_go.set()
    await deployment.publisher.idle()
    assert (await deployment.states(slow))[1] == (await deployment.states(same_lane))[1] == "INITIATED"


# The window


async def test_the_window_is_kept_and_the_rest_waits_without_a_clock() -> None:
    world = World()
    deployment = Deployment(world, window=2)
    jobs = [await deployment.submit() for _ in range(5)]
    await deployment.look()
    await deployment.look()
    assert deployment.publisher.unacked("ocr", LANE) == 2
    first, second = await Worker(world).take()
    waiting = [job_id for job_id in jobs if (await deployment.states(job_id))[1] == "DISPATCHING"]
    assert len(waiting) == 3
    for job_id in waiting:
        assert (await deployment.record(job_id)).steps[0].lease_expires_at_ms is None
    await deployment.apply(message_of(first)["jobId"], ack(message_of(first)))
    await deployment.publisher.idle()
    assert world.bus.directive_depth("ocr", LANE) == 3
    assert deployment.publisher.unacked("ocr", LANE) == 2
    assert message_of(second)["jobId"] != message_of(first)["jobId"]


async def test_windows_of_services_and_lanes_are_their_own() -> None:
    world = World()
    deployment = Deployment(world, window=1)
    for _ in range(2):
        await deployment.submit("OCR")
        await deployment.submit("SIS")
        await deployment.submit("OCR", tenant_id=OTHER)
    await deployment.publisher.idle()
    assert [
        world.bus.directive_depth("ocr", LANE),
        world.bus.directive_depth("sis", LANE),
        world.bus.directive_depth("ocr", OTHER_LANE),
    ] == [1, 1, 1]


async def test_an_ack_timeout_makes_room() -> None:
    world = World()
    deployment = Deployment(world, window=1)
    first, second = await deployment.submit(), await deployment.submit()
    await deployment.publisher.idle()
    assert (await deployment.states(second))[1] == "DISPATCHING"
    await deployment.later(30_000)
    assert (await deployment.states(first))[1] == "FAILED_RETRY"
    assert (await deployment.states(second))[1] == "INITIATED"


async def test_acks_committed_by_another_process_make_room_at_the_next_look() -> None:
    world = World()
    deployment, elsewhere = Deployment(world, window=1), Deployment(world, hints=False)
    await deployment.submit()
    second = await deployment.submit()
    await deployment.publisher.idle()
    directive = await Worker(world).take_one()
    await elsewhere.apply(directive["jobId"], ack(directive))
    assert deployment.publisher.unacked("ocr", LANE) == 1
    await deployment.look()
    assert (await deployment.states(second))[1] == "INITIATED"


async def test_after_a_restart_the_window_is_overshot_by_one_window_at_most() -> None:
    world = World()
    deployment = Deployment(world, window=2)
    for _ in range(6):
        await deployment.submit()
    await deployment.publisher.idle()
    await Deployment(world, window=2).look()
    assert world.bus.directive_depth("ocr", LANE) == 4
