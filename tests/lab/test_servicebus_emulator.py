"""The emulator through the unmodified SDK: what our bus does not use, bad clients, and its own process."""

import asyncio
import signal
import struct
import sys
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import MessageLockLostError, MessageNotFoundError, ServiceBusError

from lucius_lab.emulators.service_bus import frames
from lucius_lab.emulators.service_bus.codec import UInt
from lucius_lab.emulators.service_bus.server import ServiceBusEmulator, serve
from lucius_lab.emulators.service_bus.topology import SubscriptionRules, TopicRules, Topology

pytestmark = pytest.mark.xdist_group("servicebus-faults")

TOPIC = "Orders"
QUEUE = "orders/subscriptions/all"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
async def emulator() -> AsyncIterator[ServiceBusEmulator]:
    topics = {TOPIC: TopicRules(subscriptions={"all": SubscriptionRules(lock_ms=20_000)})}
    async with serve(now_ms=now_ms, topology=Topology(strict=True, topics=topics)) as running:
        yield running


@pytest.fixture
async def client(emulator: ServiceBusEmulator) -> AsyncIterator[ServiceBusClient]:
    async with ServiceBusClient.from_connection_string(emulator.connection_string, retry_total=0) as opened:
        yield opened


async def test_messages_may_be_scheduled_cancelled_and_peeked(client: ServiceBusClient) -> None:
    async with (
        client.get_topic_sender(TOPIC) as sender,
        client.get_subscription_receiver(TOPIC, "all") as receiver,
    ):
        soon = datetime.now(UTC) + timedelta(seconds=3)
        first, second = await sender.schedule_messages(
            [ServiceBusMessage(b"one", message_id="1"), ServiceBusMessage(b"two", message_id="2")], soon
        )
        await sender.cancel_scheduled_messages(first)
        with pytest.raises(MessageNotFoundError):
            await sender.cancel_scheduled_messages(first)
        assert await receiver.peek_messages(10, sequence_number=1) == []
        assert second > first
        (got,) = await receiver.receive_messages(1, max_wait_time=10)
        assert (str(got), got.message_id) == ("two", "2")
        assert [str(one) for one in await receiver.peek_messages(10, sequence_number=1)] == ["two"]
        await receiver.complete_message(got)
        assert await receiver.peek_messages(10, sequence_number=1) == []


async def test_a_large_batch_and_large_messages_pass_through(client: ServiceBusClient) -> None:
    async with (
        client.get_topic_sender(TOPIC) as sender,
        client.get_subscription_receiver(TOPIC, "all") as receiver,
    ):
        batch = await sender.create_message_batch()
        for number in range(500):
            batch.add_message(ServiceBusMessage(b"x" * 200, message_id=f"b{number}"))
        await sender.send_messages(batch)
        await sender.send_messages(ServiceBusMessage(b"y" * 250_000, message_id="large"))
        found: list[tuple[str | None, int]] = []
        while len(found) < 501:
            for one in await receiver.receive_messages(200, max_wait_time=10):
                found.append((one.message_id, len(b"".join(one.body))))
                await receiver.complete_message(one)
        assert sorted(found) == sorted([*((f"b{number}", 200) for number in range(500)), ("large", 250_000)])


async def test_a_receiver_may_take_without_a_lock(
    client: ServiceBusClient, emulator: ServiceBusEmulator
) -> None:
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    async with client.get_topic_sender(TOPIC) as sender:
        await sender.send_messages(ServiceBusMessage(b"gone", message_id="1"))
    async with client.get_subscription_receiver(TOPIC, "all", receive_mode=mode) as receiver:
        (got,) = await receiver.receive_messages(1, max_wait_time=10)
        assert str(got) == "gone"
    assert emulator.broker.peek(QUEUE, 0, 10, now_ms()) == []


async def test_dead_letters_are_a_queue_of_their_own(client: ServiceBusClient) -> None:
    async with (
        client.get_topic_sender(TOPIC) as sender,
        client.get_subscription_receiver(TOPIC, "all") as receiver,
    ):
        await sender.send_messages(ServiceBusMessage(b"bad", message_id="1", application_properties={"n": 7}))
        (got,) = await receiver.receive_messages(1, max_wait_time=10)
        await receiver.dead_letter_message(got, reason="POISON", error_description="no JSON")
        dead_queue = client.get_subscription_receiver(TOPIC, "all", sub_queue=ServiceBusSubQueue.DEAD_LETTER)
        async with dead_queue as graves:
            (dead,) = await graves.receive_messages(1, max_wait_time=10)
            assert (dead.dead_letter_reason, dead.dead_letter_error_description) == ("POISON", "no JSON")
            assert dead.application_properties is not None
            assert dead.application_properties[b"n"] == 7
            await graves.complete_message(dead)
            assert await graves.peek_messages(1) == []


async def test_a_lock_may_be_shown_over_another_link(
    client: ServiceBusClient, emulator: ServiceBusEmulator
) -> None:
    async with client.get_topic_sender(TOPIC) as sender:
        for number in range(2):
            await sender.send_messages(ServiceBusMessage(b"x", message_id=str(number)))
    first = client.get_subscription_receiver(TOPIC, "all")
    async with first:
        got = await first.receive_messages(2, max_wait_time=10)
        assert len(got) == 2
    async with client.get_subscription_receiver(TOPIC, "all") as second:
        await second.complete_message(got[0])
        await second.abandon_message(got[1])
        with pytest.raises((MessageLockLostError, ValueError)):
            await second.abandon_message(got[1])
    (left,) = emulator.broker.peek(QUEUE, 0, 10, now_ms())
    assert (left.message.message_id, left.deliveries) == ("1", 1)


async def test_what_this_emulator_has_not_is_refused(client: ServiceBusClient) -> None:
    async with (
        client.get_topic_sender(TOPIC) as sender,
        client.get_subscription_receiver(TOPIC, "all") as receiver,
    ):
        await sender.send_messages(ServiceBusMessage(b"x", message_id="1"))
        with pytest.raises(ServiceBusError):
            await receiver.receive_deferred_messages([1])


# -- bad clients -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        frames.AMQP_HEADER + struct.pack(">I", 1_000_000_000),
        frames.AMQP_HEADER + struct.pack(">I", 3),
        frames.AMQP_HEADER + struct.pack(">IBBH", 12, 2, 0, 0) + b"\xff\xff\xff\xff",
        frames.AMQP_HEADER
        + frames.make_frame(0, frames.OPEN, ["me"])
        + frames.make_frame(0, frames.BEGIN, [None, UInt(0), UInt(1), UInt(1)])
        + frames.make_frame(0, frames.ATTACH, ["name", "not a number", True]),
    ],
)
async def test_nonsense_ends_its_own_connection_alone(emulator: ServiceBusEmulator, said: bytes) -> None:
    reader, writer = await asyncio.open_connection(emulator.host, emulator.port)
    writer.write(said)
    async with asyncio.timeout(10):
        while await reader.read(1_000):
            pass
    writer.close()
    await writer.wait_closed()
    async with (
        ServiceBusClient.from_connection_string(emulator.connection_string) as client,
        client.get_topic_sender(TOPIC) as sender,
    ):
        await sender.send_messages(ServiceBusMessage(b"fine"))


# -- its own process ---------------------------------------------------------------------------------------


async def test_it_runs_as_a_process_with_a_topology_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "topology.json"
    rules = {"strict": True, "topics": {TOPIC: {"subscriptions": {"all": {"filter": {"kind": "new"}}}}}}
    file.write_bytes(msgspec.json.encode(rules))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "lucius_lab.emulators.service_bus", "--port", "0", "--topology", str(file)),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            address = (await process.stdout.readline()).decode().strip()
        async with ServiceBusClient.from_connection_string(address) as client:
            async with client.get_topic_sender(TOPIC) as sender:
                await sender.send_messages(
                    [
                        ServiceBusMessage(b"old", application_properties={"kind": "old"}),
                        ServiceBusMessage(b"new", application_properties={"kind": "new"}),
                    ]
                )
            async with client.get_subscription_receiver(TOPIC, "all") as receiver:
                assert [str(one) for one in await receiver.peek_messages(10)] == ["new"]
    finally:
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


async def test_a_topology_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "topology.json"
    file.write_text('{"topics": {"t": {"subscription": {}}}}', encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "lucius_lab.emulators.service_bus", "--topology", str(file)),
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await process.communicate()
    assert process.returncode == 2
    assert b"subscription" in said
