"""What the broker in this process does beyond the common suite: its bounds, and the faults it can act out."""

import pytest

from lucius.bus.memory import MemoryBus, MemoryLimits, MemoryReceiver, PublishFault
from lucius.bus.port import BusUnavailable, DirectiveOut, ReplyOut

LIMITS = MemoryLimits(lock_ms=1_000, deliveries_max=3, messages_max=3, dead_letters_max=2)


class Clock:
    def __init__(self) -> None:
        self.at_ms = 0

    def __call__(self) -> int:
        return self.at_ms


def a_bus(clock: Clock | None = None, fate: PublishFault = PublishFault.KEPT) -> MemoryBus:
    async def hook(out: DirectiveOut | ReplyOut) -> PublishFault:
        return fate

    return MemoryBus(now_ms=clock or Clock(), limits=LIMITS, reply_groups=("a", "b"), on_publish=hook)


def directive(number: int) -> DirectiveOut:
    return DirectiveOut(service="ocr", lane=0, message_key="k", message_id=f"m{number}", body=b"{}")


async def ids(receiver: MemoryReceiver) -> list[str]:
    return [delivery.message_id for delivery in await receiver.receive(messages_max=10, wait_ms=0)]


@pytest.mark.parametrize(
    ("fate", "told", "arrived"),
    [
        (PublishFault.KEPT, True, 1),
        (PublishFault.REFUSED, False, 0),
        (PublishFault.LOST, True, 0),
        (PublishFault.DOUBLED, True, 2),
        (PublishFault.UNANSWERED, False, 1),
    ],
)
async def test_fates(fate: PublishFault, told: bool, arrived: int) -> None:
    bus = a_bus(fate=fate)
    if told:
        await bus.publish_directive(directive(1))
    else:
        with pytest.raises(BusUnavailable):
            await bus.publish_directive(directive(1))
    assert await ids(await bus.directives("ocr", 0)) == ["m1"] * arrived


async def test_a_full_queue_takes_no_more_until_one_is_settled() -> None:
    bus = a_bus()
    for number in range(3):
        await bus.publish_directive(directive(number))
    receiver = await bus.directives("ocr", 0)
    locked, *_ = await receiver.receive(messages_max=1, wait_ms=0)
    with pytest.raises(BusUnavailable, match="full"):
        await bus.publish_directive(directive(3))
    await receiver.complete(locked)
    await bus.publish_directive(directive(4))
    assert bus.directive_depth("ocr", 0) == 3
    assert await ids(receiver) == ["m1", "m2", "m4"]


async def test_a_reply_that_one_group_has_no_room_for_reaches_none() -> None:
    bus = a_bus()
    for number in range(3):
        await bus.publish_reply(ReplyOut(lane=1, message_key="k", message_id=f"r{number}", body=b"{}"))
    receiver = await bus.replies(1, group="a")
    for delivery in await receiver.receive(messages_max=10, wait_ms=0):
        await receiver.complete(delivery)
    with pytest.raises(BusUnavailable, match="full"):
        await bus.publish_reply(ReplyOut(lane=1, message_key="k", message_id="r3", body=b"{}"))
    assert (bus.reply_depth(1, group="a"), bus.reply_depth(1, group="b")) == (0, 3)


async def test_what_comes_again_keeps_its_place() -> None:
    clock = Clock()
    bus = a_bus(clock)
    for number in range(3):
        await bus.publish_directive(directive(number))
    receiver = await bus.directives("ocr", 0)
    first, *_ = await receiver.receive(messages_max=1, wait_ms=0)
    await receiver.give_back(first, delay_ms=500)
    clock.at_ms = 499
    assert await ids(receiver) == ["m1", "m2"]
    clock.at_ms = 2_000
    assert await ids(receiver) == ["m0", "m1", "m2"]


async def test_dead_letters_are_bounded_and_the_oldest_go_first() -> None:
    bus = a_bus()
    receiver = await bus.directives("ocr", 0)
    for number in range(3):
        await bus.publish_directive(directive(number))
        (delivery,) = await receiver.receive(messages_max=1, wait_ms=0)
        await receiver.dead_letter(delivery, reason="x" * 5_000)
    dead = await receiver.dead_letters(messages_max=10)
    assert [letter.message_id for letter in dead] == ["m1", "m2"]
    assert {len(letter.reason) for letter in dead} == {1_000}


async def test_settled_locks_leave_nothing_behind() -> None:
    bus = a_bus()
    receiver = await bus.directives("ocr", 0)
    for number in range(500):
        await bus.publish_directive(directive(number))
        (delivery,) = await receiver.receive(messages_max=1, wait_ms=0)
        await receiver.complete(await receiver.extend(delivery))
    assert bus.directive_depth("ocr", 0) == 0
    assert len(receiver._queue._expiries) <= 70


async def test_while_it_is_down_every_call_fails_and_nothing_is_lost() -> None:
    bus = a_bus()
    await bus.publish_directive(directive(1))
    receiver = await bus.directives("ocr", 0)
    (delivery,) = await receiver.receive(messages_max=1, wait_ms=0)
    bus.down = True
    for call in (
        bus.ping(),
        bus.publish_directive(directive(2)),
        receiver.receive(messages_max=1, wait_ms=0),
        receiver.complete(delivery),
        receiver.give_back(delivery, delay_ms=0),
    ):
        with pytest.raises(BusUnavailable):
            await call
    bus.down = False
    await receiver.complete(delivery)
    assert bus.directive_depth("ocr", 0) == 0


async def test_a_closed_receiver_takes_nothing_more() -> None:
    bus = a_bus()
    await bus.publish_directive(directive(1))
    closed, other = await bus.directives("ocr", 0), await bus.directives("ocr", 0)
    await closed.close()
    with pytest.raises(BusUnavailable, match="closed"):
        await closed.receive(messages_max=1, wait_ms=0)
    assert await ids(other) == ["m1"]


def test_it_says_what_it_is() -> None:
    bus = a_bus()
    assert (bus.fences, bus.shared) == (True, False)
