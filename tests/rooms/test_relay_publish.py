"""The relay between a ledger and a broker: what leaves, what fails, and what the window holds back."""

import asyncio
from typing import TYPE_CHECKING

import msgspec

from lucius.bus.memory import Fate
from lucius.core.inputs import DispatchNow
from lucius.core.model import StepPolicy
from lucius.core.routing import lane_of
from lucius.core.states import Fact, OutboxState

if TYPE_CHECKING:
    from tests.rooms.relay_house import (
        LANE,
        TENANT,
        TOKENS,
        House,
        Out,
        Worker,
        World,
        ack,
        fates,
        message_of,
    )
else:
    from relay_house import LANE, TENANT, TOKENS, House, Worker, World, ack, fates, message_of

OTHER = "tenant_b"
OTHER_LANE = lane_of(OTHER)


# What leaves


async def test_a_directive_leaves_and_the_ack_clock_starts() -> None:
    world = World()
    house = House(world)
    job_id = await house.submit()
    await house.relay.idle()
    (delivery,) = await Worker(world).take()
    directive = message_of(delivery)
    record = await house.record(job_id)
    assert await house.states(job_id) == ("DISPATCHING", "INITIATED")
    assert record.outbox is not None and record.outbox.state is OutboxState.SENT
    assert record.steps[0].lease_expires_at_ms == world.clock_ms + 30_000
    assert directive["lease_expires_at"] == "2027-01-15T08:00:30.000Z"
    assert delivery.message_key == TENANT
    assert delivery.message_id == f"{job_id}.step_01.1.{record.steps[0].lease_id}"
    attempt = TOKENS.read(directive["callback_token"])
    assert attempt is not None and (attempt.job_id, attempt.attempt_no) == (job_id, 1)


async def test_a_look_finds_what_another_process_wrote() -> None:
    world = World()
    house = House(world, hints=False)
    job_id = await house.submit()
    await house.relay.idle()
    assert world.bus.directive_depth("ocr", LANE) == 0
    await House(world).look()
    assert world.bus.directive_depth("ocr", LANE) == 1
    assert await house.states(job_id) == ("DISPATCHING", "INITIATED")


async def test_relays_may_share_the_lanes() -> None:
    world = World()
    house = House(world, lanes=frozenset({OTHER_LANE}))
    here, there = await house.submit(), await house.submit(tenant_id=OTHER)
    await house.look()
    assert (await house.states(here))[1] == "DISPATCHING"
    assert (await house.states(there))[1] == "INITIATED"
    await House(world, lanes=frozenset({LANE})).look()
    assert (await house.states(here))[1] == "INITIATED"
    assert world.bus.directive_depth("ocr", OTHER_LANE) == 1


async def test_more_than_a_page_leaves_each_once() -> None:
    world = World()
    house = House(world, hints=False, window=1_000)
    jobs = {await house.submit() for _ in range(150)}
    await house.look()
    await house.look()
    taken = [message_of(delivery)["jobId"] for delivery in await Worker(world).take(1_000)]
    assert len(taken) == 150
    assert set(taken) == jobs


async def test_a_store_that_cannot_span_is_served_alike() -> None:
    world = World(spans=False)
    house = House(world, hints=False)
    jobs = [await house.submit() for _ in range(3)]
    await house.look()
    await house.look()
    assert world.bus.directive_depth("ocr", LANE) == 3
    for job_id in jobs:
        assert await house.states(job_id) == ("DISPATCHING", "INITIATED")


# What fails


async def test_failed_publishes_back_off_and_then_succeed() -> None:
    world = World()
    house = House(world)
    world.bus.on_publish = fates(Fate.REFUSED, Fate.REFUSED)
    job_id = await house.submit()
    await house.look()
    before = await house.record(job_id)
    assert before.outbox is not None and before.outbox.failures == 1
    assert before.steps[0].next_attempt_at_ms == world.clock_ms + 30_000
    await house.later(29_999)
    assert (await house.record(job_id)).outbox == before.outbox
    await house.later(1)
    await house.later(119_999)
    assert world.bus.directive_depth("ocr", LANE) == 0
    await house.later(1)
    after = await house.record(job_id)
    assert await house.states(job_id) == ("DISPATCHING", "INITIATED")
    assert (after.steps[0].attempt_no, after.steps[0].lease_id) == (1, before.steps[0].lease_id)
    assert (await house.facts(job_id))[2:] == [
        Fact.PUBLISH_FAILED,
        Fact.PUBLISH_FAILED,
        Fact.DIRECTIVE_PUBLISHED,
    ]


async def test_an_operator_may_cut_the_backoff_short() -> None:
    world = World()
    house = House(world)
    world.bus.on_publish = fates(Fate.REFUSED)
    job_id = await house.submit()
    await house.look()
    assert world.bus.directive_depth("ocr", LANE) == 0
    await house.apply(job_id, DispatchNow())
    await house.look()
    assert world.bus.directive_depth("ocr", LANE) == 1


async def test_it_gives_up_after_so_many_failed_publishes() -> None:
    world = World()
    house = House(world, policy=StepPolicy(publish_attempts_max=3, backoff_publish_ms=(1_000,)))
    world.bus.down = True
    job_id = await house.submit()
    await house.look()
    for _ in range(2):
        await house.later(1_000)
    record = await house.record(job_id)
    assert await house.states(job_id) == ("FAILED_FINAL", "FAILED_FINAL")
    assert record.job.error_code == "PUBLISH_FAILED"
    assert record.job.error_message == "the bus is down"
    assert record.outbox is not None and record.outbox.state is OutboxState.FAILED_FINAL
    world.bus.down = False
    await house.later(3_600_000)
    assert world.bus.directive_depth("ocr", LANE) == 0


async def test_it_gives_up_when_the_dispatch_timeout_is_over() -> None:
    world = World()
    house = House(world, policy=StepPolicy(dispatch_timeout_ms=60_000, backoff_publish_ms=(50_000,)))
    world.bus.down = True
    job_id = await house.submit()
    await house.look()
    await house.later(59_999)
    assert await house.states(job_id) == ("DISPATCHING", "DISPATCHING")
    await house.later(1)
    assert await house.states(job_id) == ("FAILED_FINAL", "FAILED_FINAL")
    assert (await house.record(job_id)).job.error_code == "PUBLISH_FAILED"


async def test_backoffs_of_nothing_do_not_spin() -> None:
    world = World()
    house = House(world, policy=StepPolicy(backoff_publish_ms=(0,)))
    world.bus.down = True
    job_id = await house.submit()
    async with asyncio.timeout(5):
        await house.relay.idle()
        await house.look()
    record = await house.record(job_id)
    assert record.outbox is not None and 1 <= record.outbox.failures <= 3
    world.bus.down = False
    world.clock_ms += 1_000
    await house.look()
    assert await house.states(job_id) == ("DISPATCHING", "INITIATED")


async def test_a_bus_that_does_not_answer_counts_as_failed() -> None:
    world = World()
    house = House(world, publish_timeout_ms=50)

    async def never(out: "Out") -> Fate:
        await asyncio.sleep(3_600)
        return Fate.KEPT

    world.bus.on_publish = never
    job_id = await house.submit()
    await house.relay.idle()
    record = await house.record(job_id)
    assert record.outbox is not None and record.outbox.failures == 1
    assert "no answer" in (record.steps[0].last_error_message or "")


async def test_a_message_the_bus_cannot_carry_fails_alone() -> None:
    world = World()
    house = House(world, hints=False)

    async def refuse_first(out: "Out") -> Fate:
        if msgspec.json.decode(out.body)["jobId"] == large:
            raise ValueError("the message is too large")
        return Fate.KEPT

    large, small = await house.submit(), await house.submit()
    world.bus.on_publish = refuse_first
    await house.look()
    assert (await house.states(large))[1] == "DISPATCHING"
    assert (await house.record(large)).steps[0].last_error_message == "the message is too large"
    assert (await house.states(small))[1] == "INITIATED"


async def test_a_dead_or_slow_lane_holds_nobody_up() -> None:
    world = World()
    house = House(world)
    let_go = asyncio.Event()

    async def slow_here(out: "Out") -> Fate:
        if out.lane == LANE:
            await let_go.wait()
        return Fate.KEPT

    world.bus.on_publish = slow_here
    assert LANE != OTHER_LANE
    slow, quick = await house.submit(), await house.submit(tenant_id=OTHER)
    same_lane = await house.submit("SIS")
    async with asyncio.timeout(5):
        while (await house.states(quick))[1] != "INITIATED":
            await asyncio.sleep(0.001)
    assert (await house.states(slow))[1] == "DISPATCHING"
    let_go.set()
    await house.relay.idle()
    assert (await house.states(slow))[1] == (await house.states(same_lane))[1] == "INITIATED"


# The window


async def test_the_window_is_kept_and_the_rest_waits_without_a_clock() -> None:
    world = World()
    house = House(world, window=2)
    jobs = [await house.submit() for _ in range(5)]
    await house.look()
    await house.look()
    assert house.relay.unacked("ocr", LANE) == 2
    first, second = await Worker(world).take()
    waiting = [job_id for job_id in jobs if (await house.states(job_id))[1] == "DISPATCHING"]
    assert len(waiting) == 3
    for job_id in waiting:
        assert (await house.record(job_id)).steps[0].lease_expires_at_ms is None
    await house.apply(message_of(first)["jobId"], ack(message_of(first)))
    await house.relay.idle()
    assert world.bus.directive_depth("ocr", LANE) == 3
    assert house.relay.unacked("ocr", LANE) == 2
    assert message_of(second)["jobId"] != message_of(first)["jobId"]


async def test_windows_of_services_and_lanes_are_their_own() -> None:
    world = World()
    house = House(world, window=1)
    for _ in range(2):
        await house.submit("OCR")
        await house.submit("SIS")
        await house.submit("OCR", tenant_id=OTHER)
    await house.relay.idle()
    assert [
        world.bus.directive_depth("ocr", LANE),
        world.bus.directive_depth("sis", LANE),
        world.bus.directive_depth("ocr", OTHER_LANE),
    ] == [1, 1, 1]


async def test_an_ack_timeout_makes_room() -> None:
    world = World()
    house = House(world, window=1)
    first, second = await house.submit(), await house.submit()
    await house.relay.idle()
    assert (await house.states(second))[1] == "DISPATCHING"
    await house.later(30_000)
    assert (await house.states(first))[1] == "FAILED_RETRY"
    assert (await house.states(second))[1] == "INITIATED"


async def test_acks_committed_by_another_process_make_room_at_the_next_look() -> None:
    world = World()
    house, elsewhere = House(world, window=1), House(world, hints=False)
    await house.submit()
    second = await house.submit()
    await house.relay.idle()
    directive = await Worker(world).take_one()
    await elsewhere.apply(directive["jobId"], ack(directive))
    assert house.relay.unacked("ocr", LANE) == 1
    await house.look()
    assert (await house.states(second))[1] == "INITIATED"


async def test_after_a_restart_the_window_is_overshot_by_one_window_at_most() -> None:
    world = World()
    house = House(world, window=2)
    for _ in range(6):
        await house.submit()
    await house.relay.idle()
    await House(world, window=2).look()
    assert world.bus.directive_depth("ocr", LANE) == 4
