"""What goes over the wire to Service Bus: ids, keys, properties, batches, bounds; and what must be there."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.amqp import AmqpAnnotatedMessage
from tests.conformance.bus_setups import wall_clock_ms
from tests.conformance.service_bus_setup_sdk import GROUP, a_bus, all_ids, directive, one, topology

from lucius.bus.port import BusUnavailable, MessageTooLarge, ReplyOut
from lucius.bus.service_bus.bus import ServiceBusBus
from lucius.bus.service_bus.connection import NamespaceAccess, ServiceBusRefused
from lucius.core.routing import reply_topic, topic
from lucius_lab.emulators.service_bus.server import ServiceBusEmulator, serve
from lucius_lab.emulators.service_bus.topology import SubscriptionRules, TopicRules, Topology

pytestmark = pytest.mark.xdist_group("servicebus-faults")


@pytest.fixture
async def emulator() -> AsyncIterator[ServiceBusEmulator]:
    async with serve(now_ms=wall_clock_ms, topology=topology()) as running:
        yield running


# -- messages ----------------------------------------------------------------------------------------------


async def test_a_repeat_within_the_window_is_dropped_by_its_id(emulator: ServiceBusEmulator) -> None:
    async with a_bus(emulator) as bus:
        receiver = await bus.directives("ocr", 0)
        for _ in range(2):
            await bus.publish_directive(directive(1))
            await bus.publish_directive(directive(2))
        assert sorted(await all_ids(receiver)) == ["m1", "m2"]


async def test_a_subscription_without_its_rule_keeps_nothing_of_others() -> None:
    """As provisioning leaves it for a moment: a new subscription takes everything until its rule is set."""
    name = topic(0)
    rules = TopicRules(subscriptions={"ocr": SubscriptionRules(), "sis": SubscriptionRules()})
    open_to_all = msgspec.structs.replace(topology(), topics={**topology().topics, name: rules})
    async with serve(now_ms=wall_clock_ms, topology=open_to_all) as emulator, a_bus(emulator) as bus:
        for number, service in enumerate(("ocr", "sis", "ocr")):
            await bus.publish_directive(msgspec.structs.replace(directive(number), service=service))
        receiver = await bus.directives("ocr", 0)
        assert sorted(await all_ids(receiver)) == ["m0", "m2"]
        assert await receiver.dead_letters(messages_max=10) == []
        assert await all_ids(await bus.directives("sis", 0)) == ["m1"]


async def test_a_reply_is_taken_in_whatever_form_it_comes(emulator: ServiceBusEmulator) -> None:
    text = '{"type":"ACK"}'
    forms: list[Any] = [
        ServiceBusMessage(text, application_properties={"service": "ocr", "mode": "DEFAULT"}),
        ServiceBusMessage(b"\xef\xbb\xbf" + text.encode()),
        AmqpAnnotatedMessage(value_body=text),
        AmqpAnnotatedMessage(value_body=text.encode()),
        AmqpAnnotatedMessage(data_body=[text[:5].encode(), text[5:].encode()]),
    ]
    client = ServiceBusClient.from_connection_string(emulator.connection_string)
    async with client, a_bus(emulator) as bus:
        receiver = await bus.replies(3, group="lucius")
        async with client.get_topic_sender(reply_topic(3)) as sender:
            for form in forms:
                await sender.send_messages(form)
                delivery = await one(receiver)
                assert delivery.body == text.encode()
                await receiver.complete(delivery)


async def test_what_is_published_together_goes_together(emulator: ServiceBusEmulator) -> None:
    async with a_bus(emulator) as bus:
        await bus.publish_directive(directive(0))
        transfers = _count_transfers(emulator)
        messages = [directive(number, key=f"k{number % 2}") for number in range(1, 201)]
        await asyncio.gather(*(bus.publish_directive(message) for message in messages))
        assert transfers() <= 4  # two of each key: the first goes alone, the others gather meanwhile
        receiver = await bus.directives("ocr", 0)
        assert sorted(await all_ids(receiver)) == sorted(f"m{number}" for number in range(201))
        same_key = [directive(number) for number in range(300, 400)]
        transfers = _count_transfers(emulator)
        await asyncio.gather(*(bus.publish_directive(message) for message in same_key))
        assert transfers() <= 3


def _count_transfers(emulator: ServiceBusEmulator) -> Any:
    counted: list[int] = []
    publish = type(emulator.broker).publish.__get__(emulator.broker)

    def counting(topic: str, messages: Any, now_ms: int) -> Any:
        counted.append(len(messages))
        return publish(topic, messages, now_ms)

    emulator.broker.publish = counting  # type: ignore[method-assign]
    return lambda: len(counted)


async def test_one_message_of_many_that_no_longer_waits_is_left_out(emulator: ServiceBusEmulator) -> None:
    async with a_bus(emulator) as bus:
        await bus.publish_directive(directive(0))
        sending = [asyncio.create_task(bus.publish_directive(directive(number))) for number in range(1, 4)]
        await asyncio.sleep(0)
        sending[1].cancel()
        await asyncio.wait(sending)
        receiver = await bus.directives("ocr", 0)
        assert {"m0", "m1", "m3"} <= set(await all_ids(receiver))


async def test_properties_show_what_a_message_is(emulator: ServiceBusEmulator) -> None:
    body = (
        b'{"type":"DIRECTIVE","mode":"BURST","jobId":"job_1","stepId":"step_01","tenant_id":"t","attempt_no":2,'
        b'"lease_id":"l","correlation_id":"c","traceparent":"00-a-b-01","payload":{"jobId":"no"}}'
    )
    key = "tenant_ä" * 40
    async with a_bus(emulator) as bus:
        await bus.publish_directive(directive(1, body=body, key=key))
        (entry,) = emulator.broker.peek("global-bus-p0/subscriptions/ocr", 0, 10, wall_clock_ms())
        shown = dict(entry.message.application)
        assert shown == {
            "service": "ocr",
            "message_id": "m1",
            "routing_key_used": key,
            "message_key": key,
            "lane": 0,
            "type": "DIRECTIVE",
            "mode": "BURST",
            "jobId": "job_1",
            "stepId": "step_01",
            "tenant_id": "t",
            "attempt_no": 2,
            "lease_id": "l",
            "correlation_id": "c",
            "traceparent": "00-a-b-01",
        }
        assert entry.message.message_id == "ocr/m1"
        partition = entry.message.annotations["x-opt-partition-key"]
        assert partition.startswith("h.") and len(partition) <= 128


async def test_without_partition_keys_there_are_none(emulator: ServiceBusEmulator) -> None:
    async with a_bus(emulator, partition_keys=False) as bus:
        await bus.publish_reply(ReplyOut(lane=0, message_key="k", message_id="r", body=b"{}"))
        (entry,) = emulator.broker.peek(
            f"global-bus-replies-p0/subscriptions/{GROUP}", 0, 10, wall_clock_ms()
        )
        assert "x-opt-partition-key" not in entry.message.annotations


async def test_a_message_too_large_for_the_namespace_is_refused_clearly(emulator: ServiceBusEmulator) -> None:
    async with a_bus(emulator, largest_message_bytes=1_048_576) as bus:  # more than this one carries
        with pytest.raises(MessageTooLarge, match="Service Bus"):
            await bus.publish_directive(directive(1, body=b"x" * 400_000))
        await bus.publish_directive(directive(2, body=b"x" * 200_000))


async def test_a_message_of_somebody_else_is_delivered_too(emulator: ServiceBusEmulator) -> None:
    async with (
        a_bus(emulator) as bus,
        ServiceBusClient.from_connection_string(emulator.connection_string) as client,
    ):
        async with client.get_topic_sender("global-bus-replies-p0") as sender:
            await sender.send_messages(ServiceBusMessage(b'{"type":"ACK"}', message_id="theirs"))
        receiver = await bus.replies(0, group="lucius")
        got = await one(receiver)
        assert (got.message_id, got.message_key, got.body) == ("theirs", "", b'{"type":"ACK"}')


# -- what must be there ------------------------------------------------------------------------------------


async def test_what_was_not_set_up_is_named() -> None:
    async with (
        serve(now_ms=wall_clock_ms, topology=topology(strict=True)) as emulator,
        a_bus(emulator) as bus,
    ):
        with pytest.raises(ServiceBusRefused, match="no subscription ocr of topic global-bus-p0"):
            await (await bus.directives("ocr", 0)).receive(messages_max=1, wait_ms=5_000)
        await bus.publish_reply(ReplyOut(lane=0, message_key="k", message_id="r", body=b"{}"))
    async with (
        serve(now_ms=wall_clock_ms, topology=Topology(strict=True)) as emulator,
        a_bus(emulator) as bus,
    ):
        with pytest.raises(BusUnavailable, match="Service Bus cannot be used"):  # its SDK knows no more
            await bus.publish_directive(directive(1))


async def test_a_full_queue_refuses_what_is_new(emulator: ServiceBusEmulator) -> None:
    emulator.broker.make_subscription("global-bus-p0", "ocr", SubscriptionRules(messages_max=1))
    async with a_bus(emulator) as bus:
        await bus.publish_directive(directive(1))
        with pytest.raises(BusUnavailable, match="full"):
            await bus.publish_directive(directive(2))


async def test_connections_have_a_bound(emulator: ServiceBusEmulator) -> None:
    async with a_bus(emulator, connections_max=3) as bus:
        for lane in range(6):  # senders that are idle make room for others
            await bus.publish_directive(directive(1, lane=lane))
            assert bus.connections <= 3
        for lane in range(3):
            await bus.directives("ocr", lane)
        with pytest.raises(BusUnavailable, match="all 3 connections"):
            await bus.directives("ocr", 3)
        with pytest.raises(BusUnavailable, match="all 3 connections"):
            await bus.publish_directive(directive(2, lane=0))


@pytest.mark.parametrize(
    "access",
    [
        NamespaceAccess(connection_string="Endpoint=sb://hush"),
        NamespaceAccess(connection_string="hush"),
        NamespaceAccess(namespace="name.servicebus.windows.net"),
        NamespaceAccess(),
    ],
)
async def test_an_access_that_cannot_be_read_is_refused_without_its_text(access: NamespaceAccess) -> None:
    with pytest.raises(ValueError, match="Service Bus") as caught:
        await ServiceBusBus.open(access, now_ms=wall_clock_ms)
    assert "hush" not in f"{caught.value!r} {access!r}"


async def test_closing_sends_what_is_under_way_and_leaves_nothing_behind(
    emulator: ServiceBusEmulator,
) -> None:
    async with a_bus(emulator) as bus:
        await bus.directives("ocr", 1)
        sending = [asyncio.create_task(bus.publish_directive(directive(number))) for number in range(20)]
        await asyncio.sleep(0)
        await bus.close()
        await asyncio.gather(*sending)
        with pytest.raises(BusUnavailable, match="closed"):
            await bus.directives("ocr", 1)
    assert len(emulator.broker.peek("global-bus-p0/subscriptions/ocr", 0, 100, wall_clock_ms())) == 20
    began = time.monotonic()
    while emulator.connections and time.monotonic() < began + 5:
        await asyncio.sleep(0.01)
    assert emulator.connections == 0
