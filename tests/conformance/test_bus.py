"""What every bus does alike. A new adapter joins by one more name in `KINDS` and a way to open it.

Time that a lock or a delay takes is asked for through `Wait`: a bus with a virtual clock jumps, one with a
clock of its own waits.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from lucius.bus.memory import MemoryBus, MemoryLimits
from lucius.bus.port import (
    DELIVERIES_EXHAUSTED,
    MESSAGE_ID_LENGTH_MAX,
    Bus,
    BusUnavailable,
    Delivery,
    DirectiveOut,
    LockLost,
    MessageTooLarge,
    Receiver,
    ReplyOut,
    directive_id,
)
from lucius.core.routing import LANES

KINDS = ("memory",)
LOCK_MS = 1_000
DELIVERIES_MAX = 3
GROUPS = ("lucius", "auditors")
SOON_MS = 20

Wait = Callable[[int], Awaitable[None]]


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    bus: Bus
    wait: Wait


@asynccontextmanager
async def opened(kind: str) -> AsyncIterator[Opened]:
    assert kind == "memory"
    clock = [1_000_000]
    limits = MemoryLimits(lock_ms=LOCK_MS, deliveries_max=DELIVERIES_MAX, largest_message_bytes=65_536)
    bus = MemoryBus(now_ms=lambda: clock[0], limits=limits, reply_groups=GROUPS)

    async def wait(span_ms: int) -> None:
        clock[0] += span_ms

    yield Opened(bus=bus, wait=wait)
    await bus.close()


@pytest.fixture(params=KINDS)
async def house(request: pytest.FixtureRequest) -> AsyncIterator[Opened]:
    async with opened(request.param) as ready:
        yield ready


@pytest.fixture
def bus(house: Opened) -> Bus:
    return house.bus


def directive(number: int = 1, *, service: str = "ocr", lane: int = 3, body: bytes = b"{}") -> DirectiveOut:
    message_id = directive_id(job_id=f"job_{number}", step_id="step_01", attempt_no=1, lease_id="lease")
    return DirectiveOut(service=service, lane=lane, message_key="tenant_a", message_id=message_id, body=body)


def reply(number: int = 1, *, lane: int = 3, body: bytes = b"{}") -> ReplyOut:
    return ReplyOut(lane=lane, message_key="tenant_a", message_id=f"reply_{number}", body=body)


async def take(receiver: Receiver, messages_max: int = 10) -> list[Delivery]:
    return await receiver.receive(messages_max=messages_max, wait_ms=SOON_MS)


async def one(receiver: Receiver) -> Delivery:
    (delivery,) = await take(receiver)
    return delivery


# Publishing and receiving


async def test_what_is_published_arrives_whole(bus: Bus) -> None:
    body = b'{"n":1,"text":"\xc3\xa4"}'
    sent = directive(7, body=body)
    await bus.publish_directive(sent)
    got = await one(await bus.directives("ocr", 3))
    assert (got.message_id, got.message_key, got.body, got.lane) == (
        "job_7.step_01.1.lease",
        "tenant_a",
        body,
        3,
    )
    assert (got.delivery_count, got.deliveries_left) == (1, DELIVERIES_MAX - 1)


async def test_services_and_lanes_are_apart(bus: Bus) -> None:
    for number, (service, lane) in enumerate((("ocr", 0), ("ocr", 15), ("sis", 0))):
        await bus.publish_directive(directive(number, service=service, lane=lane))
    for number, (service, lane) in enumerate((("ocr", 0), ("ocr", 15), ("sis", 0))):
        got = await one(await bus.directives(service, lane))
        assert got.message_id.startswith(f"job_{number}.")
    assert await take(await bus.directives("sis", 15)) == []


async def test_receivers_of_one_lane_compete(bus: Bus) -> None:
    first, second = await bus.directives("ocr", 3), await bus.directives("ocr", 3)
    for number in range(4):
        await bus.publish_directive(directive(number))
    got = [*await take(first, 2), *await take(second, 10), *await take(first, 10)]
    assert len({delivery.message_id for delivery in got}) == len(got) == 4


async def test_every_group_gets_each_reply_once(bus: Bus) -> None:
    await bus.publish_reply(reply(1))
    for group in GROUPS:
        receiver = await bus.replies(3, group=group)
        assert (await one(receiver)).message_id == "reply_1"
        assert await take(await bus.replies(3, group=group)) == []
    with pytest.raises(ValueError, match="nobody"):
        await bus.replies(3, group="nobody")


async def test_an_empty_lane_gives_nothing_in_time(bus: Bus) -> None:
    receiver = await bus.directives("ocr", 3)
    async with asyncio.timeout(5):
        assert await receiver.receive(messages_max=1, wait_ms=0) == []
        assert await receiver.receive(messages_max=1, wait_ms=50) == []


async def test_a_waiting_receiver_hears_of_a_message(bus: Bus) -> None:
    receiver = await bus.directives("ocr", 3)
    waiting = asyncio.create_task(receiver.receive(messages_max=1, wait_ms=20_000))
    await asyncio.sleep(0.01)
    await bus.publish_directive(directive())
    async with asyncio.timeout(5):
        (got,) = await waiting
    assert got.delivery_count == 1


async def test_a_cancelled_wait_loses_nothing(house: Opened) -> None:
    receiver = await house.bus.directives("ocr", 3)
    waiting = asyncio.create_task(receiver.receive(messages_max=1, wait_ms=20_000))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await house.bus.publish_directive(directive())
    await house.wait(LOCK_MS + 1)
    assert (await one(receiver)).message_id == directive().message_id


# Settling


async def test_a_completed_message_never_comes_again(house: Opened) -> None:
    await house.bus.publish_directive(directive())
    receiver = await house.bus.directives("ocr", 3)
    await receiver.complete(await one(receiver))
    await house.wait(LOCK_MS + 1)
    assert await take(receiver) == []
    assert await receiver.dead_letters(messages_max=10) == []


async def test_a_locked_message_is_hidden_until_the_lock_runs_out(house: Opened) -> None:
    await house.bus.publish_directive(directive())
    receiver, other = await house.bus.directives("ocr", 3), await house.bus.directives("ocr", 3)
    first = await one(receiver)
    await house.wait(LOCK_MS // 2)
    assert await take(other) == []
    await house.wait(LOCK_MS)
    again = await one(other)
    assert (again.message_id, again.body) == (first.message_id, first.body)
    assert (first.delivery_count, again.delivery_count) == (1, 2)


async def test_an_extended_lock_holds_on(house: Opened) -> None:
    await house.bus.publish_directive(directive())
    receiver = await house.bus.directives("ocr", 3)
    held = await one(receiver)
    for _ in range(3):
        await house.wait(LOCK_MS * 3 // 4)
        renewed = await receiver.extend(held)
        assert renewed.locked_until_ms > held.locked_until_ms
        held = renewed
        assert await take(receiver) == []
    await receiver.complete(held)
    await house.wait(LOCK_MS + 1)
    assert await take(receiver) == []


async def test_what_is_given_back_comes_again_after_the_delay(house: Opened) -> None:
    await house.bus.publish_directive(directive())
    receiver = await house.bus.directives("ocr", 3)
    await receiver.give_back(await one(receiver), delay_ms=0)
    second = await one(receiver)
    assert second.delivery_count == 2
    await receiver.give_back(second, delay_ms=LOCK_MS * 4)
    await house.wait(LOCK_MS * 2)
    assert await take(receiver) == []
    await house.wait(LOCK_MS * 2)
    assert (await one(receiver)).delivery_count == 3


async def test_a_dead_letter_keeps_its_reason(house: Opened) -> None:
    await house.bus.publish_reply(reply(body=b"not json"))
    receiver = await house.bus.replies(3, group="lucius")
    await receiver.dead_letter(await one(receiver), reason="POISON: not JSON")
    await house.wait(LOCK_MS + 1)
    assert await take(receiver) == []
    (dead,) = await receiver.dead_letters(messages_max=10)
    assert (dead.reason, dead.body, dead.message_id) == ("POISON: not JSON", b"not json", "reply_1")
    assert await (await house.bus.replies(3, group="auditors")).dead_letters(messages_max=10) == []


@pytest.mark.parametrize("how", ["given back", "lock ran out"])
async def test_after_the_last_delivery_it_is_put_aside(house: Opened, how: str) -> None:
    await house.bus.publish_directive(directive())
    receiver = await house.bus.directives("ocr", 3)
    for number in range(1, DELIVERIES_MAX + 1):
        delivery = await one(receiver)
        assert (delivery.delivery_count, delivery.deliveries_left) == (number, DELIVERIES_MAX - number)
        if how == "given back":
            await receiver.give_back(delivery, delay_ms=0)
        else:
            await house.wait(LOCK_MS + 1)
    assert await take(receiver) == []
    (dead,) = await receiver.dead_letters(messages_max=10)
    assert dead.reason.startswith(DELIVERIES_EXHAUSTED)
    assert dead.delivery_count == DELIVERIES_MAX


async def test_a_lost_lock_settles_nothing_where_the_bus_fences(house: Opened) -> None:
    await house.bus.publish_directive(directive())
    receiver = await house.bus.directives("ocr", 3)
    late = await one(receiver)
    await house.wait(LOCK_MS + 1)
    current = await one(receiver)
    if house.bus.fences:
        for settle in (receiver.complete(late), receiver.dead_letter(late, reason="late")):
            with pytest.raises(LockLost):
                await settle
        with pytest.raises(LockLost):
            await receiver.give_back(late, delay_ms=0)
        with pytest.raises(LockLost):
            await receiver.extend(late)
    await receiver.complete(current)
    await house.wait(LOCK_MS + 1)
    assert await take(receiver) == []


# Bounds and faults


async def test_the_largest_message_fits_and_one_byte_more_does_not(bus: Bus) -> None:
    largest = bus.largest_message_bytes
    await bus.publish_directive(directive(body=b"x" * largest))
    assert len((await one(await bus.directives("ocr", 3))).body) == largest
    with pytest.raises(MessageTooLarge, match=str(largest)):
        await bus.publish_directive(directive(body=b"x" * (largest + 1)))
    with pytest.raises(MessageTooLarge):
        await bus.publish_reply(reply(body=b"x" * (largest + 1)))


@pytest.mark.parametrize("lane", [-1, LANES])
async def test_a_lane_that_does_not_exist_is_a_fault(bus: Bus, lane: int) -> None:
    with pytest.raises(ValueError, match="lanes"):
        await bus.publish_directive(directive(lane=lane))
    with pytest.raises(ValueError, match="lanes"):
        await bus.publish_reply(reply(lane=lane))
    with pytest.raises(ValueError, match="lanes"):
        await bus.directives("ocr", lane)


async def test_names_are_bounded(bus: Bus) -> None:
    long_id = msgspec.structs.replace(directive(), message_id="x" * (MESSAGE_ID_LENGTH_MAX + 1))
    with pytest.raises(ValueError, match="message id"):
        await bus.publish_directive(long_id)
    with pytest.raises(ValueError, match="service"):
        await bus.publish_directive(directive(service=""))


async def test_a_closed_bus_is_unavailable(bus: Bus) -> None:
    receiver = await bus.directives("ocr", 3)
    waiting = asyncio.create_task(receiver.receive(messages_max=1, wait_ms=20_000))
    await asyncio.sleep(0.01)
    await bus.ping()
    await bus.close()
    with pytest.raises(BusUnavailable):
        await bus.publish_directive(directive())
    with pytest.raises(BusUnavailable):
        await bus.ping()
    async with asyncio.timeout(5):
        with pytest.raises(BusUnavailable):
            await waiting


def test_the_id_of_a_directive_names_its_attempt_and_lease() -> None:
    ids = {
        directive_id(job_id=job, step_id=step, attempt_no=attempt, lease_id=lease)
        for job in ("job_1", "job_2")
        for step in ("step_01", "step_02")
        for attempt in (1, 2)
        for lease in ("a", "b")
    }
    assert len(ids) == 16
