"""The sdk over the bus: the whole way, replies and their ids, repeats, poison, and asking."""

import asyncio
from typing import Any

import msgspec
import pytest
from tests.sdk.test_sdk_runner import directive, until
from tests.support.sdk_bus_setup import (
    KEY,
    LANE,
    LOCK_MS,
    SERVICE,
    Clock,
    a_bus,
    a_runner,
    a_transport,
    ack,
    done,
    give,
    kinds,
    leased,
    message,
    publish,
    replies,
)
from tests.support.virtual_time import virtual

from lucius.bus.memory import PublishFault
from lucius.bus.port import MESSAGE_ID_LENGTH_MAX, BusUnavailable, DirectiveOut, ReplyOut
from lucius.sdk import DeliveryFailed, Directive, ReplyAnswer, Task, messages, parse_directive

# The whole way


async def test_a_directive_is_acknowledged_done_and_answered_on_its_lane() -> None:
    clock = Clock()
    bus = a_bus(clock)
    await give(bus, 1, lane=7)
    await give(bus, 2, lane=12)
    async with a_transport(bus, clock) as transport:
        runner = a_runner(transport, clock)
        running = asyncio.create_task(runner.run())
        await until(lambda: bus.reply_depth(7, group="lucius") == bus.reply_depth(12, group="lucius") == 2)
        runner.stop()
        await running
    for lane, number in ((7, 1), (12, 2)):
        got = await replies(bus, lane)
        assert kinds(got) == ["ACK", "RESULT"]
        assert {delivery.message_key for delivery in got} == {KEY}
        assert all(msgspec.json.decode(delivery.body)["jobId"] == f"job_{number}" for delivery in got)
        assert bus.directive_depth(SERVICE, lane) == 0


async def test_it_is_settled_before_its_ack_and_before_the_work() -> None:
    clock = Clock()
    bus = a_bus(clock)
    seen: list[tuple[str, int]] = []

    async def hook(out: DirectiveOut | ReplyOut) -> PublishFault:
        kind = msgspec.json.decode(out.body)["type"]
        seen.append((kind, bus.directive_depth(SERVICE, LANE)))
        return PublishFault.KEPT

    async def handler(task: Task) -> dict[str, Any]:
        seen.append(("work", bus.directive_depth(SERVICE, LANE)))
        return {"uri": "mem://made"}

    await give(bus)
    bus.on_publish = hook
    async with a_transport(bus, clock) as transport:
        runner = a_runner(transport, clock, handler)
        running = asyncio.create_task(runner.run())
        await until(lambda: len(seen) == 3)
        runner.stop()
        await running
    assert seen == [("ACK", 0), ("work", 0), ("RESULT", 0)]


# Replies


async def test_a_result_outlives_an_outage_and_a_sign_of_life_does_not() -> None:
    clock = Clock()
    bus = a_bus(clock)
    await give(bus)
    transport = a_transport(bus, clock)
    (taken,) = await leased(transport)
    await transport.reply(taken, ack(taken))
    bus.down = True
    with pytest.raises(DeliveryFailed, match="PROGRESS"):
        await transport.reply(taken, messages.progress(taken, 1, 50, ""))
    answering = asyncio.create_task(transport.reply(taken, done(taken)))
    await asyncio.sleep(0.5)
    bus.down = False
    async with asyncio.timeout(5):
        assert (await answering).outcome == "sent"
    assert kinds(await replies(bus)) == ["ACK", "RESULT"]
    await transport.aclose()


@virtual
async def test_a_result_is_sent_within_a_second_of_the_bus_being_back() -> None:
    clock = Clock()
    bus = a_bus(clock)
    transport = a_transport(bus, clock)
    one = parse_directive(message())
    assert one is not None
    for away_seconds in (3.3, 20.2, 300.4):
        bus.down = True
        answering = asyncio.create_task(transport.reply(one, done(one)))
        await asyncio.sleep(away_seconds)
        bus.down = False
        async with asyncio.timeout(1.01):
            assert (await answering).outcome == "sent"
    await transport.aclose()


async def test_a_bus_that_never_answers_is_given_up() -> None:
    clock = Clock()
    bus = a_bus(clock)
    await give(bus)
    transport = a_transport(bus, clock, call_timeout_seconds=0.05)
    (taken,) = await leased(transport)

    async def hook(out: DirectiveOut | ReplyOut) -> PublishFault:
        await asyncio.Event().wait()
        return PublishFault.KEPT

    bus.on_publish = hook
    with pytest.raises(DeliveryFailed, match="did not answer"):
        await transport.reply(taken, messages.progress(taken, 1, 50, ""))
    await transport.aclose()


async def test_ids_name_the_message_and_not_the_try() -> None:
    clock = Clock()
    bus = a_bus(clock)
    (long, short) = (parse_directive(message(1, lease_id="x" * 120)), parse_directive(message(2)))
    assert long is not None
    assert short is not None
    transport = a_transport(bus, clock)
    for percent in (10, 10, 20):
        for one in (long, short):
            await transport.reply(one, messages.progress(one, 1, percent, ""))
    got = [delivery.message_id for delivery in await replies(bus)]
    assert got[0] == got[2] != got[4]
    assert got[1] == got[3] != got[5]
    assert got[1].startswith("job_2.step_01.1.lease-2.PROGRESS.")
    assert max(map(len, got)) <= MESSAGE_ID_LENGTH_MAX
    await transport.aclose()


async def test_a_directive_without_a_topic_is_answered_on_the_lane_of_its_key() -> None:
    clock = Clock()
    bus = a_bus(clock)
    one = parse_directive(directive(1))
    assert one is not None
    transport = a_transport(bus, clock)
    await transport.reply(one, done(one))
    assert kinds(await replies(bus, 15)) == ["RESULT"]
    await transport.aclose()


async def test_a_reply_carries_the_token_of_its_directive() -> None:
    clock = Clock()
    bus = a_bus(clock)
    await give(bus, 1, callback_token="t.o.ken")
    async with a_transport(bus, clock) as transport:
        (one,) = await leased(transport)
        await transport.reply(one, ack(one))
        await transport.reply(one, done(one))
    got = await replies(bus)
    assert [delivery.token for delivery in got] == ["t.o.ken", "t.o.ken"]
    assert b"t.o.ken" not in b"".join(delivery.body for delivery in got)


# Repeats and poison


async def test_what_was_published_twice_is_handed_out_once() -> None:
    clock = Clock()
    bus = a_bus(clock)
    await give(bus)
    await give(bus)
    transport = a_transport(bus, clock)
    (taken,) = await leased(transport, 10)
    await transport.reply(taken, ack(taken))
    assert bus.directive_depth(SERVICE, LANE) == 0
    await give(bus)
    assert await leased(transport, 10) == []
    assert bus.directive_depth(SERVICE, LANE) == 0
    await transport.aclose()


async def test_a_result_known_from_before_settles_the_repeat() -> None:
    clock = Clock()
    bus = a_bus(clock)
    await give(bus)
    transport = a_transport(bus, clock)
    (taken,) = await leased(transport)
    await transport.reply(taken, done(taken))
    assert kinds(await replies(bus)) == ["RESULT"]
    assert bus.directive_depth(SERVICE, LANE) == 0
    await transport.aclose()


@pytest.mark.parametrize("body", [b"not json", b"[1]", b'{"jobId": 1}', b"[" * 100_000])
async def test_poison_is_put_aside(body: bytes) -> None:
    clock = Clock()
    bus = a_bus(clock)
    await publish(bus, body)
    await give(bus, 2)
    transport = a_transport(bus, clock)
    (taken,) = await leased(transport, 10)
    assert taken.job_id == "job_2"
    (dead,) = await (await bus.directives(SERVICE, LANE)).dead_letters(messages_max=10)
    assert dead.reason.startswith("POISON")
    await transport.aclose()


# Asking whether the attempt still counts


async def test_the_orchestrator_is_asked_at_signs_of_life_and_about_old_directives() -> None:
    clock = Clock()
    bus = a_bus(clock)
    asked: list[str] = []

    async def ask(one: Directive) -> ReplyAnswer:
        asked.append(one.job_id)
        return ReplyAnswer("stale", stop=True)

    await give(bus)
    crashed = a_transport(bus, clock)
    await leased(crashed)
    clock.at_ms += LOCK_MS
    await give(bus, 2)
    transport = a_transport(bus, clock, ask=ask)
    old, new = await leased(transport, 2)
    assert (await transport.reply(old, ack(old))).stop
    assert not (await transport.reply(new, ack(new))).stop
    assert (await transport.reply(new, messages.progress(new, 1, 1, ""))).stop
    assert asked == ["job_1", "job_2"]
    assert bus.directive_depth(SERVICE, LANE) == 0
    await crashed.aclose()
    await transport.aclose()


async def test_who_cannot_be_asked_has_not_said_stop() -> None:
    async def ask(one: Directive) -> ReplyAnswer:
        raise DeliveryFailed("away")

    clock = Clock()
    bus = a_bus(clock)
    await give(bus)
    transport = a_transport(bus, clock, ask=ask)
    (taken,) = await leased(transport)
    assert await transport.reply(taken, messages.progress(taken, 1, 1, "")) == ReplyAnswer("sent")
    await transport.aclose()


async def test_a_closed_bus_is_said_to_be_out_of_reach() -> None:
    clock = Clock()
    bus = a_bus(clock)
    transport = a_transport(bus, clock)
    bus.down = True
    with pytest.raises(DeliveryFailed, match="down"):
        await leased(transport, wait_seconds=5)
    bus.down = False
    with pytest.raises(BusUnavailable, match="closed"):
        await bus.close()
        await bus.ping()
    await transport.aclose()
