"""The emulator's broker in virtual time: every rule of a queue, without a socket."""

from typing import Any

import msgspec
import pytest

from lucius_lab.emulators.service_bus.broker import (
    DUE_SLACK,
    FULL,
    LOCK_LOST,
    NOT_FOUND,
    NOT_SCHEDULED,
    TOO_LARGE,
    Broker,
    BrokerRefused,
)
from lucius_lab.emulators.service_bus.codec import Timestamp
from lucius_lab.emulators.service_bus.messages import SCHEDULED_TIME, Message
from lucius_lab.emulators.service_bus.queues import TOO_OFTEN, Locked
from lucius_lab.emulators.service_bus.topology import SubscriptionRules, TopicRules, Topology

LOCK_MS = 10_000
RULES = SubscriptionRules(lock_ms=LOCK_MS, deliveries_max=3, messages_max=5)
OCR = "lane/subscriptions/ocr"
DEAD = OCR + "/$deadletterqueue"


def broker(**more: Any) -> Broker:
    topics = {"Lane": TopicRules(duplicates_ms=60_000, subscriptions={"ocr": RULES})}
    return Broker(Topology(topics=topics, new_subscription=RULES, **more), epoch=7)


def message(
    name: str | None = "m1", *, at_ms: int | None = None, size: int = 100, **properties: str
) -> Message:
    return Message(
        message_id=name,
        properties=b"",
        annotations={} if at_ms is None else {SCHEDULED_TIME: Timestamp(at_ms)},
        application=dict(properties),
        body=b"",
        size_bytes=size,
    )


def taken(deployment: Broker, now_ms: int, queue: str = OCR) -> Locked:
    locked = deployment.take(queue, now_ms)
    assert locked is not None
    return locked


def condition(answer: object) -> str:
    assert isinstance(answer, BrokerRefused)
    return answer.condition


# -- locks -------------------------------------------------------------------------------------------------


def test_a_locked_message_is_nobody_elses_until_the_lock_runs_out() -> None:
    deployment = broker()
    assert deployment.publish("lane", [message()], 0) is None
    first = taken(deployment, 0)
    assert (first.entry.deliveries, first.until_ms) == (0, LOCK_MS)
    assert deployment.take(OCR, LOCK_MS - 1) is None
    again = taken(deployment, LOCK_MS)
    assert again.entry.deliveries == 1
    assert again.token != first.token


def test_a_late_owner_is_refused_whatever_it_asks() -> None:
    deployment = broker()
    deployment.publish("lane", [message()], 0)
    late = taken(deployment, 0).token
    for answer in (
        deployment.complete(OCR, late, LOCK_MS),
        deployment.abandon(OCR, late, LOCK_MS),
        deployment.release(OCR, late, LOCK_MS),
        deployment.renew(OCR, late, LOCK_MS),
        deployment.dead_letter(OCR, late, LOCK_MS, reason="r", description=None),
    ):
        assert condition(answer) == LOCK_LOST
    assert deployment.complete(OCR, taken(deployment, LOCK_MS).token, LOCK_MS) is None


def test_a_lock_of_another_broker_fits_nothing() -> None:
    first, second = broker(), Broker(broker().topology, epoch=8)
    for deployment in (first, second):
        deployment.publish("lane", [message()], 0)
        taken(deployment, 0)
    token = taken_token(first)
    assert condition(second.complete(OCR, token, 1)) == LOCK_LOST


def taken_token(deployment: Broker) -> bytes:
    deployment.publish("lane", [message("another")], 0)
    return taken(deployment, 0).token


def test_a_renewed_lock_lasts_a_full_span_more() -> None:
    deployment = broker()
    deployment.publish("lane", [message()], 0)
    token = taken(deployment, 0).token
    assert deployment.renew(OCR, token, 6_000) == 6_000 + LOCK_MS
    assert deployment.take(OCR, LOCK_MS + 1) is None
    assert deployment.complete(OCR, token, 6_000 + LOCK_MS - 1) is None
    assert deployment.take(OCR, 100_000) is None


def test_settled_is_settled() -> None:
    deployment = broker()
    deployment.publish("lane", [message()], 0)
    token = taken(deployment, 0).token
    assert deployment.complete(OCR, token, 1) is None
    assert condition(deployment.complete(OCR, token, 2)) == LOCK_LOST


def test_an_abandoned_message_counts_and_a_released_one_does_not() -> None:
    deployment = broker()
    deployment.publish("lane", [message()], 0)
    assert deployment.release(OCR, taken(deployment, 0).token, 1) is None
    assert deployment.abandon(OCR, taken(deployment, 1).token, 2) is None
    assert taken(deployment, 2).entry.deliveries == 1


def test_what_comes_again_comes_in_its_old_place() -> None:
    deployment = broker()
    deployment.publish("lane", [message("a"), message("b")], 0)
    first = taken(deployment, 0)
    deployment.abandon(OCR, first.token, 1)
    assert taken(deployment, 1).entry.message.message_id == "a"
    assert taken(deployment, 1).entry.message.message_id == "b"


# -- dead letters ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["abandoned", "lock ran out"])
def test_the_last_delivery_ends_among_the_dead_letters(how: str) -> None:
    deployment = broker()
    deployment.publish("lane", [message()], 0)
    now_ms = 0
    for _ in range(RULES.deliveries_max):
        locked = taken(deployment, now_ms)
        if how == "abandoned":
            deployment.abandon(OCR, locked.token, now_ms)
        else:
            now_ms += LOCK_MS
    assert deployment.take(OCR, now_ms) is None
    (dead,) = deployment.peek(DEAD, 0, 10, now_ms)
    assert (dead.reason, dead.deliveries) == (TOO_OFTEN, RULES.deliveries_max)


def test_a_dead_letter_has_its_reason_and_can_be_taken_away() -> None:
    deployment = broker()
    deployment.publish("lane", [message()], 0)
    deployment.dead_letter(OCR, taken(deployment, 0).token, 0, reason="POISON", description="not JSON")
    locked = taken(deployment, 0, DEAD)
    assert (locked.entry.reason, locked.entry.description) == ("POISON", "not JSON")
    for _ in range(5):  # it cannot die twice, however often nobody wants it
        deployment.abandon(DEAD, locked.token, 0)
        locked = taken(deployment, 0, DEAD)
    assert deployment.complete(DEAD, locked.token, 0) is None
    assert deployment.peek(DEAD, 0, 10, 0) == []


# -- publishing --------------------------------------------------------------------------------------------


def test_an_id_is_taken_once_within_the_window() -> None:
    deployment = broker()
    for now_ms in (0, 59_999):
        assert deployment.publish("lane", [message("same"), message("same")], now_ms) is None
    assert deployment.complete(OCR, taken(deployment, 59_999).token, 59_999) is None
    assert deployment.take(OCR, 59_999) is None
    deployment.publish("lane", [message("same")], 60_000)
    assert taken(deployment, 60_000).entry.message.message_id == "same"
    deployment.publish("other", [message("same", service="ocr")], 60_000)
    assert taken(deployment, 60_000, "other/subscriptions/ocr").entry.message.message_id == "same"


def test_without_an_id_or_a_window_nothing_is_a_duplicate() -> None:
    deployment = Broker(Topology(new_topic=TopicRules(duplicates_ms=0), new_subscription=RULES), epoch=1)
    deployment.publish("free", [message("x", service="ocr"), message("x", service="ocr")], 0)
    assert len(deployment.peek("free/subscriptions/ocr", 0, 10, 0)) == 2
    deployment = broker()
    deployment.publish("lane", [message(None), message(None)], 0)
    assert len(deployment.peek(OCR, 0, 10, 0)) == 2


def test_a_full_queue_takes_all_of_a_batch_or_none() -> None:
    deployment = broker()
    four = [message(f"m{number}") for number in range(4)]
    assert deployment.publish("lane", four, 0) is None
    assert condition(deployment.publish("lane", [message("a"), message("b")], 0)) == FULL
    assert len(deployment.peek(OCR, 0, 10, 0)) == 4
    assert deployment.publish("lane", [message("a")], 0) is None  # a refused id is not known


def test_what_is_too_large_is_refused() -> None:
    deployment = broker(largest_message_bytes=1_000)
    assert deployment.publish("lane", [message(size=1_000)], 0) is None
    assert (
        condition(deployment.publish("lane", [message("x", size=501), message("y", size=500)], 0))
        == TOO_LARGE
    )


def test_a_message_goes_to_whom_it_is_for() -> None:
    deployment = broker()
    deployment.make_subscription("replies", "all", msgspec.structs.replace(RULES))
    deployment.make_subscription("replies", "acks", msgspec.structs.replace(RULES, filter={"type": "ACK"}))
    deployment.publish("replies", [message("a", type="ACK"), message("r", type="RESULT"), message("n")], 0)
    assert len(deployment.peek("replies/subscriptions/all", 0, 10, 0)) == 3
    assert [one.message.message_id for one in deployment.peek("replies/subscriptions/acks", 0, 10, 0)] == [
        "a"
    ]


def test_what_is_addressed_waits_for_a_receiver_that_never_came_before() -> None:
    deployment = broker()
    deployment.publish("new", [message("o", service="ocr"), message("s", service="sis")], 0)
    assert taken(deployment, 0, "new/subscriptions/ocr").entry.message.message_id == "o"
    assert deployment.take("new/subscriptions/ocr", 0) is None
    assert taken(deployment, 0, "NEW/Subscriptions/SIS").entry.message.message_id == "s"


def test_a_strict_broker_has_what_was_named_and_no_more() -> None:
    deployment = broker(strict=True)
    assert deployment.publish("lane", [message()], 0) is None
    assert condition(deployment.publish("lain", [message()], 0)) == NOT_FOUND
    assert condition(deployment.check_queue("lane/subscriptions/sis")) == NOT_FOUND
    assert condition(deployment.check_queue("lane")) == NOT_FOUND
    assert condition(deployment.check_topic("lain")) == NOT_FOUND
    assert deployment.check_queue(DEAD) is None


# -- time --------------------------------------------------------------------------------------------------


def test_a_scheduled_message_comes_in_time_unless_it_is_cancelled() -> None:
    deployment = broker()
    numbers = deployment.schedule("lane", [message("a", at_ms=5_000), message("b", at_ms=6_000)], 0)
    assert isinstance(numbers, list)
    assert deployment.take(OCR, 4_999) is None
    assert deployment.cancel("lane", numbers[1:], 4_999) is None
    assert condition(deployment.cancel("lane", numbers[1:], 4_999)) == NOT_SCHEDULED
    assert deployment.next_ms() == 5_000
    assert taken(deployment, 5_000).entry.message.message_id == "a"
    assert deployment.take(OCR, 9_000) is None


def test_a_message_may_be_published_for_later() -> None:
    deployment = broker()
    deployment.publish("lane", [message(at_ms=5_000)], 0)
    assert deployment.take(OCR, 4_999) is None
    deployment.advance(5_000)
    assert deployment.woken == {OCR}


def test_it_says_when_to_look_again() -> None:
    deployment = broker()
    assert deployment.next_ms() is None
    deployment.publish("lane", [message("a"), message("b")], 0)
    token = taken(deployment, 0).token
    taken(deployment, 2_000)
    assert deployment.next_ms() == LOCK_MS
    deployment.renew(OCR, token, 3_000)
    assert deployment.next_ms() == 2_000 + LOCK_MS
    deployment.complete(OCR, token, 4_000)
    deployment.woken.clear()
    deployment.advance(2_000 + LOCK_MS)
    assert (deployment.woken, deployment.next_ms()) == ({OCR}, None)


def test_locks_that_ended_are_forgotten() -> None:
    deployment = broker()
    for number in range(3 * DUE_SLACK):
        deployment.publish("lane", [message(f"m{number}")], number)
        deployment.complete(OCR, taken(deployment, number).token, number)
    assert len(deployment._due) <= DUE_SLACK + 1
