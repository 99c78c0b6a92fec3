"""Sessions of the emulator: its broker in virtual time, and what the unmodified SDK makes of its answers."""

import time

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from lucius_lab.emulators.service_bus.broker import NOT_ALLOWED, SESSION_LOST, Broker, BrokerRefused
from lucius_lab.emulators.service_bus.messages import Message
from lucius_lab.emulators.service_bus.queues import TOO_OFTEN, Locked
from lucius_lab.emulators.service_bus.server import serve
from lucius_lab.emulators.service_bus.session_queue import NO_SESSION, SessionLock
from lucius_lab.emulators.service_bus.topology import SubscriptionRules, TopicRules, Topology

pytestmark = pytest.mark.xdist_group("servicebus-faults")

LOCK_MS = 10_000
OCR = "lane/subscriptions/ocr"
DEAD = OCR + "/$deadletterqueue"
RULES = SubscriptionRules(lock_ms=LOCK_MS, deliveries_max=2, sessions=True)
TOPOLOGY = Topology(
    strict=True, topics={"lane": TopicRules(subscriptions={"ocr": RULES, "plain": SubscriptionRules()})}
)


def broker(*sent: tuple[str, str | None]) -> Broker:
    made = Broker(TOPOLOGY, epoch=7)
    for name, session_id in sent:
        message = Message(
            message_id=name,
            session_id=session_id,
            properties=b"",
            annotations={},
            application={},
            body=b"",
            size_bytes=1,
        )
        assert made.publish("lane", [message], 0) is None
    return made


def accepted(deployment: Broker, now_ms: int, wanted: str | None = None, holder: str = "me") -> SessionLock:
    lock = deployment.accept_session(OCR, wanted, now_ms, holder=holder)
    assert lock is not None
    return lock


def taken(deployment: Broker, lock: SessionLock, now_ms: int) -> Locked:
    locked = deployment.take(OCR, now_ms, lock.session_id)
    assert locked is not None
    return locked


def test_the_session_that_waits_longest_is_next_and_has_one_holder() -> None:
    deployment = broker(("1", "b"), ("2", "a"), ("3", "b"))
    first, second = accepted(deployment, 0), accepted(deployment, 0)
    assert (first.session_id, second.session_id) == ("b", "a")
    assert deployment.accept_session(OCR, None, 0, holder="other") is None
    assert deployment.accept_session(OCR, "a", 0, holder="other") is None
    assert [taken(deployment, first, 0).entry.message.message_id for _ in range(2)] == ["1", "3"]
    assert deployment.take(OCR, 0, "b") is None
    assert taken(deployment, second, 0).entry.message.message_id == "2"
    assert accepted(deployment, 0, "empty").session_id == "empty"


def test_who_leaves_gives_back_uncounted_and_who_is_late_counted() -> None:
    deployment = broker(("1", "a"))
    first = accepted(deployment, 0)
    held = taken(deployment, first, 0)
    deployment.woken.clear()
    deployment.release_session(OCR, first.token, 5)
    assert deployment.woken == {OCR}
    assert isinstance(deployment.complete(OCR, held.token, 5), BrokerRefused)

    second = accepted(deployment, 5)
    assert taken(deployment, second, 5).entry.deliveries == 0
    assert deployment.next_ms() == 5 + LOCK_MS
    deployment.advance(5 + LOCK_MS)
    assert deployment.lost == {second.token}

    third = accepted(deployment, 6 + LOCK_MS)
    assert taken(deployment, third, 6 + LOCK_MS).entry.deliveries == 1
    deployment.advance(6 + 2 * LOCK_MS)
    assert [entry.reason for entry in deployment.peek(DEAD, 0, 10, 6 + 2 * LOCK_MS)] == [TOO_OFTEN]
    assert deployment.accept_session(OCR, None, 6 + 2 * LOCK_MS, holder="me") is None


def test_a_renewal_is_for_the_holder_and_for_all_it_took() -> None:
    deployment = broker(("1", "a"), ("2", "a"))
    lock = accepted(deployment, 0)
    held = [taken(deployment, lock, 0), taken(deployment, lock, 0)]
    assert deployment.renew_session(OCR, "a", 9_000, holder="me") == 9_000 + LOCK_MS
    other = deployment.renew_session(OCR, "a", 9_000, holder="another link")
    assert isinstance(other, BrokerRefused) and other.condition == SESSION_LOST
    deployment.advance(LOCK_MS + 1)
    assert deployment.lost == set()
    assert [deployment.complete(OCR, one.token, 18_000) for one in held] == [None, None]
    assert isinstance(deployment.renew(OCR, held[0].token, 18_000), BrokerRefused)
    assert isinstance(deployment.renew_session(OCR, "a", 9_001 + LOCK_MS, holder="me"), BrokerRefused)


def test_a_message_without_a_session_is_put_aside() -> None:
    deployment = broker(("1", None))
    assert [entry.reason for entry in deployment.peek(DEAD, 0, 10, 0)] == [NO_SESSION]
    assert deployment.check_receiver(DEAD, sessions=False) is None
    for path, sessions in ((OCR, False), ("lane/subscriptions/plain", True)):
        refused = deployment.check_receiver(path, sessions=sessions)
        assert refused is not None and refused.condition == NOT_ALLOWED


async def test_the_sdk_is_told_whether_there_is_a_session() -> None:
    async with (
        serve(now_ms=lambda: time.time_ns() // 1_000_000, topology=TOPOLOGY) as emulator,
        ServiceBusClient.from_connection_string(emulator.connection_string, retry_total=0) as client,
        client.get_topic_sender("lane") as sender,
    ):
        nobody = client.get_subscription_receiver(
            "lane", "ocr", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=0.1
        )
        with pytest.raises(OperationTimeoutError):
            await nobody.__aenter__()
        with pytest.raises(ServiceBusError, match="no sessions"):
            await client.get_subscription_receiver("lane", "plain", session_id="a").__aenter__()

        await sender.send_messages([ServiceBusMessage(text, session_id="a") for text in ("one", "two")])
        async with client.get_subscription_receiver("lane", "ocr", session_id="a") as receiver:
            first = await receiver.receive_messages(1, max_wait_time=5)
            before = receiver.session.locked_until_utc
            assert before is not None and await receiver.session.renew_lock() > before
            with pytest.raises(SessionCannotBeLockedError):
                await client.get_subscription_receiver("lane", "ocr", session_id="a").__aenter__()
            await receiver.complete_message(first[0])
        next_one = client.get_subscription_receiver("lane", "ocr", session_id=NEXT_AVAILABLE_SESSION)
        async with next_one as receiver:
            assert receiver.session.session_id == "a"
            (second,) = await receiver.receive_messages(1, max_wait_time=5)
            assert (str(second), second.delivery_count) == ("two", 0)
            emulator.drop()
            with pytest.raises((SessionLockLostError, ServiceBusError)):
                await receiver.complete_message(second)
