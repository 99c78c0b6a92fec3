"""What every queue of jobs must do: the one in memory, and SQS as ministack plays it."""

import asyncio
import re

import msgspec
import pytest
from tests.lifebook.samples import a_job

from lucius.lifebook.message import body_of, message_for
from lucius.lifebook.queue import JobDelivery, JobQueue, ReturnedDead
from lucius.lifebook.sqs import group_of, reason_text

MESSAGE = message_for(a_job())


async def _receive(queue: JobQueue, visibility_ms: int = 30_000, wait_seconds: int = 2) -> list[JobDelivery]:
    return await queue.receive(messages_max=10, wait_seconds=wait_seconds, visibility_ms=visibility_ms)


async def test_a_message_comes_as_it_was_sent_until_it_is_deleted(queue: JobQueue) -> None:
    await queue.send(MESSAGE)
    (delivery,) = await _receive(queue)
    assert delivery.body == body_of(MESSAGE)
    assert delivery.receives == 1
    assert (await queue.depths()).in_flight == 1
    await queue.delete(delivery)
    await queue.delete(delivery)
    depths = await queue.depths()
    assert (depths.waiting, depths.in_flight, depths.dead) == (0, 0, 0)


async def test_a_message_that_is_not_deleted_comes_again_and_is_counted(queue: JobQueue) -> None:
    await queue.send(MESSAGE)
    (first,) = await _receive(queue)
    assert await _receive(queue, wait_seconds=0) == []
    await queue.set_visibility(first, 0)
    (second,) = await _receive(queue)
    assert (second.message_id, second.receives) == (first.message_id, 2)


async def test_visibility_is_set_from_now_on(queue: JobQueue) -> None:
    await queue.send(MESSAGE)
    (first,) = await _receive(queue, visibility_ms=1_000)
    await queue.set_visibility(first, 60_000)
    await asyncio.sleep(1.2)
    assert await _receive(queue, wait_seconds=0) == []


async def test_what_was_received_too_often_goes_to_the_dead_letters(queue: JobQueue) -> None:
    await queue.send(MESSAGE)
    for _ in range(5):
        (delivery,) = await _receive(queue)
        await queue.set_visibility(delivery, 0)
    assert await _receive(queue, wait_seconds=1) == []
    (dead,) = await queue.receive_dead(messages_max=10, visibility_ms=0)
    assert dead.body == body_of(MESSAGE)
    assert dead.reason is None
    assert (await queue.depths()).dead == 1


def test_a_message_group_is_one_that_sqs_takes() -> None:
    assert group_of("ws_1") == "ws_1"
    groups = {group_of(name) for name in ("Zürich", "Zurich GmbH", "w" * 129, "w" * 130)}
    assert len(groups) == 4
    assert all(re.fullmatch(r"[!-~]{1,128}", group) for group in groups)


async def test_a_reason_is_a_text_that_sqs_takes(queue: JobQueue) -> None:
    await queue.send(MESSAGE)
    (delivery,) = await _receive(queue)
    await queue.bury(delivery, "Invalid enum value '\x01\x07bad'")
    (dead,) = await queue.receive_dead(messages_max=10, visibility_ms=0)
    assert dead.reason is not None
    assert "bad" in dead.reason
    assert reason_text("a\x01b") == "a b"
    assert reason_text("\n") == "unknown"


async def test_poison_is_buried_at_once_with_its_reason(queue: JobQueue) -> None:
    await queue.send(MESSAGE)
    (delivery,) = await _receive(queue)
    await queue.bury(delivery, "no job")
    assert await _receive(queue, wait_seconds=0) == []
    (dead,) = await queue.receive_dead(messages_max=10, visibility_ms=30_000)
    assert (dead.body, dead.reason) == (body_of(MESSAGE), "no job")
    await queue.delete_dead(dead)
    assert (await queue.depths()).dead == 0


async def test_dead_letters_go_back_as_they_are_and_can_be_received_again(queue: JobQueue) -> None:
    for number in range(12):
        await queue.send(msgspec.structs.replace(MESSAGE, job_id=f"job-{number}"))
    sent: dict[str, str] = {}
    while len(sent) < 12:
        for delivery in await _receive(queue):
            sent[delivery.message_id] = delivery.body
            await queue.bury(delivery, "no job")
    (hidden,) = await queue.receive_dead(messages_max=1, visibility_ms=30_000)
    assert await queue.return_dead(messages_max=5) == ReturnedDead(messages=5)
    await queue.release_dead(hidden)
    assert await queue.return_dead(messages_max=500) == ReturnedDead(messages=7)
    assert await queue.return_dead(messages_max=500) == ReturnedDead()
    back: dict[str, JobDelivery] = {}
    while len(back) < 12:
        back |= {delivery.message_id: delivery for delivery in await _receive(queue)}
    assert sorted(each.body for each in back.values()) == sorted(sent.values())
    assert {(each.receives, each.reason) for each in back.values()} == {(1, None)}
    assert (await queue.depths()).dead == 0


async def test_a_delayed_message_comes_later(queue: JobQueue) -> None:
    await queue.send(MESSAGE, delay_ms=1_500)
    assert await _receive(queue, wait_seconds=0) == []
    assert len(await _receive(queue, wait_seconds=4)) == 1


@pytest.mark.parametrize("visibility_ms", [-5, 99_999_999_999])
async def test_spans_are_kept_within_what_the_queue_takes(queue: JobQueue, visibility_ms: int) -> None:
    await queue.send(MESSAGE)
    (delivery,) = await _receive(queue)
    await queue.set_visibility(delivery, visibility_ms)


async def test_a_dead_letter_that_dies_again_at_once_goes_back_once_a_call(queue: JobQueue) -> None:
    await queue.send(MESSAGE)
    (delivery,) = await _receive(queue)
    await queue.bury(delivery, "no job")

    async def bury_again() -> None:
        while True:
            for each in await _receive(queue, wait_seconds=0):
                await queue.bury(each, "no job")
            await asyncio.sleep(0)

    worker = asyncio.create_task(bury_again())
    try:
        assert await queue.return_dead(messages_max=20) == ReturnedDead(messages=1)
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
