"""What every bus does alike. A new adapter joins by one more name in `bus_setups.KINDS` and a way to open it.

Time that a lock or a delay takes is asked for through `Wait`: a bus with a virtual clock jumps, one with a
clock of its own waits.
"""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
from tests.conformance.bus_setups import DELIVERIES_MAX, GROUPS, KINDS, LOCK_MS, Opened, opened

from lucius.bus.port import (
    DELIVERIES_EXHAUSTED,
    MESSAGE_ID_LENGTH_MAX,
    MESSAGE_KEY_LENGTH_MAX,
    REASON_LENGTH_MAX,
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
from lucius.core.attempt import AttemptRef
from lucius.core.routing import LANES

SOON_MS = 20  # for what should not be there
ANSWER_GRACE_MS = 5_000  # for what should: a busy server may be late with it


@pytest.fixture(params=KINDS)
async def deployment(request: pytest.FixtureRequest) -> AsyncIterator[Opened]:
    async with opened(request.param, request) as ready:
        yield ready


@pytest.fixture
def bus(deployment: Opened) -> Bus:
    return deployment.bus


def directive(number: int = 1, *, service: str = "ocr", lane: int = 3, body: bytes = b"{}") -> DirectiveOut:
    message_id = directive_id(
        AttemptRef(job_id=f"job_{number}", step_id="step_01", attempt_no=1, lease_id="lease")
    )
    return DirectiveOut(service=service, lane=lane, message_key="tenant_a", message_id=message_id, body=body)


def reply(number: int = 1, *, lane: int = 3, body: bytes = b"{}") -> ReplyOut:
    return ReplyOut(lane=lane, message_key="tenant_a", message_id=f"reply_{number}", body=body)


async def take(receiver: Receiver, messages_max: int = 10, *, wait_ms: int = SOON_MS) -> list[Delivery]:
    return await receiver.receive(messages_max=messages_max, wait_ms=wait_ms)


async def one(receiver: Receiver) -> Delivery:
    (delivery,) = await take(receiver, wait_ms=ANSWER_GRACE_MS)
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


async def test_a_reply_carries_its_token_beside_the_body(bus: Bus) -> None:
    token = f"{'a' * 40}.{'b-_' * 200}.{'c' * 40}"
    await bus.publish_reply(msgspec.structs.replace(reply(1), token=token))
    await bus.publish_reply(reply(2))
    got = await take(await bus.replies(3, group="lucius"), wait_ms=ANSWER_GRACE_MS)
    if len(got) < 2:
        got += await take(await bus.replies(3, group="lucius"), wait_ms=ANSWER_GRACE_MS)
    assert {delivery.message_id: delivery.token for delivery in got} == {"reply_1": token, "reply_2": None}
    with pytest.raises(ValueError, match="callback token"):
        await bus.publish_reply(msgspec.structs.replace(reply(3), token="t" * 1_025))


async def test_services_and_lanes_are_apart(bus: Bus) -> None:
    for number, (service, lane) in enumerate((("ocr", 0), ("ocr", 15), ("sis", 0))):
        await bus.publish_directive(directive(number, service=service, lane=lane))
    for number, (service, lane) in enumerate((("ocr", 0), ("ocr", 15), ("sis", 0))):
        got = await one(await bus.directives(service, lane))
        assert got.message_id.startswith(f"job_{number}.")
    assert await take(await bus.directives("sis", 15)) == []


@pytest.mark.parametrize(
    "service",
    ["OCR", "o.c.r", "o>r*", "ocr ", "a b\n", "o_63r", "../ocr", "$JS", "\u00f6cr", "\U0001f9ea" * 63],
)
async def test_any_name_of_a_service_is_a_queue_of_its_own(bus: Bus, service: str) -> None:
    await bus.publish_directive(directive(1, service=service))
    assert await take(await bus.directives("ocr", 3)) == []
    receiver = await bus.directives(service, 3)
    await receiver.dead_letter(await one(receiver), reason="looked at")
    (dead,) = await receiver.dead_letters(messages_max=10)
    assert dead.message_id == directive(1).message_id


@pytest.mark.parametrize("key", ["", " a \r\n%20", "t\u00e4nant\t", "\U0001f9ea" * MESSAGE_KEY_LENGTH_MAX])
async def test_keys_ids_and_reasons_may_be_any_text(bus: Bus, key: str) -> None:
    message_id = (key or "-")[:MESSAGE_ID_LENGTH_MAX]
    reason = (key * REASON_LENGTH_MAX)[: REASON_LENGTH_MAX + 1]
    body = b"x" * bus.largest_message_bytes
    await bus.publish_reply(ReplyOut(lane=3, message_key=key, message_id=message_id, body=body))
    receiver = await bus.replies(3, group="lucius")
    got = await one(receiver)
    assert (got.message_key, got.message_id) == (key, message_id)
    await receiver.dead_letter(got, reason=reason)
    (dead,) = await receiver.dead_letters(messages_max=10)
    assert (dead.message_key, dead.message_id) == (key, message_id)
    assert (dead.reason, dead.body) == (reason[:REASON_LENGTH_MAX], body)


async def test_the_same_id_in_another_queue_is_another_message(bus: Bus) -> None:
    for lane in (3, 4):
        await bus.publish_directive(directive(1, lane=lane))
        await bus.publish_directive(directive(1, lane=lane, service="sis"))
        await bus.publish_reply(reply(1, lane=lane))
    for lane in (3, 4):
        for service in ("ocr", "sis"):
            await one(await bus.directives(service, lane))
        await one(await bus.replies(lane, group="lucius"))


async def test_receivers_of_one_lane_compete(bus: Bus) -> None:
    first, second = await bus.directives("ocr", 3), await bus.directives("ocr", 3)
    for number in range(4):
        await bus.publish_directive(directive(number))
    got = await take(first, 2, wait_ms=ANSWER_GRACE_MS)
    while len(got) < 4 and (more := await take(second, 10, wait_ms=ANSWER_GRACE_MS)):
        got += more
    got += await take(first)
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


async def test_a_cancelled_wait_loses_nothing(deployment: Opened) -> None:
    receiver = await deployment.bus.directives("ocr", 3)
    waiting = asyncio.create_task(receiver.receive(messages_max=1, wait_ms=20_000))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await deployment.bus.publish_directive(directive())
    await deployment.wait(LOCK_MS + 1)
    assert (await one(receiver)).message_id == directive().message_id


async def test_who_was_cancelled_takes_nothing_from_others(bus: Bus) -> None:
    cancelled, other = await bus.directives("ocr", 3), await bus.directives("ocr", 3)
    waiting = asyncio.create_task(cancelled.receive(messages_max=5, wait_ms=20_000))
    await asyncio.sleep(0.05)
    waiting.cancel()
    await asyncio.wait({waiting})
    await asyncio.sleep(0.05)
    await bus.publish_directive(directive())
    assert (await one(other)).delivery_count == 1


async def test_a_batch_ends_with_what_is_there(bus: Bus) -> None:
    receiver = await bus.directives("ocr", 3)
    for number in range(5):
        await bus.publish_directive(directive(number))
    got: list[Delivery] = []
    async with asyncio.timeout(5):
        while len(got) < 5:
            got += await receiver.receive(messages_max=100, wait_ms=60_000)
    assert {delivery.message_id for delivery in got} == {directive(n).message_id for n in range(5)}
    assert len({delivery.lock for delivery in got}) == 5


# Settling


async def test_a_completed_message_never_comes_again(deployment: Opened) -> None:
    await deployment.bus.publish_directive(directive())
    receiver = await deployment.bus.directives("ocr", 3)
    await receiver.complete(await one(receiver))
    await deployment.wait(LOCK_MS + 1)
    assert await take(receiver) == []
    assert await receiver.dead_letters(messages_max=10) == []


async def test_a_locked_message_is_hidden_until_the_lock_runs_out(deployment: Opened) -> None:
    await deployment.bus.publish_directive(directive())
    receiver, other = await deployment.bus.directives("ocr", 3), await deployment.bus.directives("ocr", 3)
    first = await one(receiver)
    await deployment.wait(LOCK_MS // 2)
    assert await take(other) == []
    await deployment.wait(LOCK_MS)
    again = await one(other)
    assert (again.message_id, again.body) == (first.message_id, first.body)
    assert (first.delivery_count, again.delivery_count) == (1, 2)


async def test_an_extended_lock_holds_on(deployment: Opened) -> None:
    await deployment.bus.publish_directive(directive())
    receiver = await deployment.bus.directives("ocr", 3)
    held = await one(receiver)
    for _ in range(3):
        await deployment.wait(LOCK_MS // 2)
        renewed = await receiver.extend(held)
        assert renewed.locked_until_ms > held.locked_until_ms
        held = renewed
        assert await take(receiver) == []
    await receiver.complete(held)
    await deployment.wait(LOCK_MS + 1)
    assert await take(receiver) == []


async def test_what_is_given_back_comes_again_after_the_delay(deployment: Opened) -> None:
    await deployment.bus.publish_directive(directive())
    receiver = await deployment.bus.directives("ocr", 3)
    await receiver.give_back(await one(receiver), delay_ms=0)
    second = await one(receiver)
    assert second.delivery_count == 2
    await receiver.give_back(second, delay_ms=LOCK_MS * 4 * deployment.scale)
    await deployment.wait(LOCK_MS * 2)
    assert await take(receiver) == []
    await deployment.wait(LOCK_MS * 2)
    assert (await one(receiver)).delivery_count == 3


async def test_a_dead_letter_keeps_its_reason(deployment: Opened) -> None:
    await deployment.bus.publish_reply(reply(body=b"not json"))
    receiver = await deployment.bus.replies(3, group="lucius")
    await receiver.dead_letter(await one(receiver), reason="POISON: not JSON")
    await deployment.wait(LOCK_MS + 1)
    assert await take(receiver) == []
    (dead,) = await receiver.dead_letters(messages_max=10)
    assert (dead.reason, dead.body, dead.message_id) == ("POISON: not JSON", b"not json", "reply_1")
    assert await (await deployment.bus.replies(3, group="auditors")).dead_letters(messages_max=10) == []


@pytest.mark.parametrize("how", ["given back", "lock ran out"])
async def test_after_the_last_delivery_it_is_put_aside(deployment: Opened, how: str) -> None:
    await deployment.bus.publish_directive(directive())
    receiver = await deployment.bus.directives("ocr", 3)
    for number in range(1, DELIVERIES_MAX + 1):
        delivery = await one(receiver)
        assert (delivery.delivery_count, delivery.deliveries_left) == (number, DELIVERIES_MAX - number)
        if how == "given back":
            await receiver.give_back(delivery, delay_ms=0)
        else:
            await deployment.wait(LOCK_MS + 1)
    assert await take(receiver, wait_ms=LOCK_MS) == []
    (dead,) = await receiver.dead_letters(messages_max=10)
    assert dead.reason.startswith(DELIVERIES_EXHAUSTED)
    assert dead.delivery_count == DELIVERIES_MAX


async def test_a_lost_lock_settles_nothing_where_the_bus_fences(deployment: Opened) -> None:
    await deployment.bus.publish_directive(directive())
    receiver = await deployment.bus.directives("ocr", 3)
    late = await one(receiver)
    await deployment.wait(LOCK_MS + 1)
    current = await one(receiver)
    if deployment.bus.fences:
        for settle in (receiver.complete(late), receiver.dead_letter(late, reason="late")):
            with pytest.raises(LockLost):
                await settle
        with pytest.raises(LockLost):
            await receiver.give_back(late, delay_ms=0)
        with pytest.raises(LockLost):
            await receiver.extend(late)
    await receiver.complete(current)
    await deployment.wait(LOCK_MS + 1)
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
        directive_id(AttemptRef(job_id=job, step_id=step, attempt_no=attempt, lease_id=lease))
        for job in ("job_1", "job_2")
        for step in ("step_01", "step_02")
        for attempt in (1, 2)
        for lease in ("a", "b")
    }
    assert len(ids) == 16
