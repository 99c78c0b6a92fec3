"""Replies from a broker: whole jobs over it, and what becomes of replies that are early, twice, wrong or
unlucky."""

import asyncio

import msgspec
import pytest
from structlog.testing import capture_logs
from tests.support.publisher_setup import (
    LANE,
    Deployment,
    Out,
    Worker,
    World,
    ack,
    message_of,
    reply_to,
    working,
)

from lucius.bus.memory import PublishFault
from lucius.core.states import Fact, JobState
from lucius.engines.reply_consumer import ConsumerLimits, ReplyConsumer

BOUND_SECONDS = 5


async def drained(world: "World") -> None:
    async with asyncio.timeout(BOUND_SECONDS):
        while world.bus.reply_depth(LANE, group="lucius"):
            await asyncio.sleep(0.002)


async def until(deployment: "Deployment", outcome: str, count: int = 1) -> None:
    async with asyncio.timeout(BOUND_SECONDS):
        while deployment.consumer.outcomes[outcome] < count:
            await asyncio.sleep(0.002)


# Whole jobs


async def test_a_job_of_three_steps_runs_over_the_broker() -> None:
    world = World()
    deployment = Deployment(world)
    workers = [Worker(world, service) for service in ("ocr", "embedding", "sis")]
    async with deployment.relaying(), deployment.consuming(), working(*workers):
        job_id = await deployment.submit("OCR_EMBEDDING_SIS")
        record = await deployment.until(job_id, "SUCCEEDED")
    assert record.job.final_output == "s3://results/step_03"
    assert [step.attempt_no for step in record.steps] == [1, 1, 1]
    assert [list(worker.done.values()) for worker in workers] == [[1], [1], [1]]
    step = [Fact.DIRECTIVE_PUBLISHED, Fact.STEP_ACKED, Fact.STEP_PROGRESSED, Fact.STEP_SUCCEEDED]
    assert await deployment.facts(job_id) == [
        Fact.JOB_CREATED,
        *(Fact.ATTEMPT_BEGUN, *step) * 3,
        Fact.JOB_SUCCEEDED,
    ]
    assert await world.replies_buried() == []


async def test_many_jobs_pass_a_small_window() -> None:
    world = World()
    deployment = Deployment(world, window=2)
    async with deployment.relaying(), deployment.consuming(), working(Worker(world)):
        jobs = [await deployment.submit() for _ in range(30)]
        for job_id in jobs:
            await deployment.until(job_id, "SUCCEEDED")
    assert deployment.publisher.unacked("ocr", LANE) == 0
    assert deployment.consumer.outcomes["applied"] == 90


async def test_a_bus_that_doubles_everything_changes_nothing() -> None:
    world = World()
    deployment = Deployment(world)
    worker = Worker(world)

    async def doubled(out: "Out") -> PublishFault:
        return PublishFault.DOUBLED

    world.bus.on_publish = doubled
    async with deployment.relaying(), deployment.consuming(), working(worker):
        job_id = await deployment.submit()
        record = await deployment.until(job_id, "SUCCEEDED")
        await drained(world)
    assert list(worker.done.values()) == [2]
    assert (record.steps[0].attempt_no, record.steps[0].acked) == (1, True)
    facts = await deployment.facts(job_id)
    assert facts.count(Fact.STEP_SUCCEEDED) == facts.count(Fact.JOB_SUCCEEDED) == 1
    assert Fact.REPLY_DUPLICATE in facts


# Early, twice, late


async def test_a_result_faster_than_the_note_marks_the_row_sent() -> None:
    world = World()
    deployment = Deployment(world, hints=False)
    job_id = await deployment.submit()
    world.writes_lost = 1
    await deployment.look()
    assert (await deployment.states(job_id))[1] == "DISPATCHING"
    worker = Worker(world)
    directive = await worker.take_one()
    await worker.reply("RESULT", directive, status="SUCCEEDED")
    async with deployment.consuming():
        record = await deployment.until(job_id, "SUCCEEDED")
    assert record.outbox is not None and record.outbox.state == "SENT"
    events = await deployment.events(job_id)
    implied = {event.type for event in events if event.data.get("implied")}
    assert implied == {Fact.DIRECTIVE_PUBLISHED, Fact.STEP_ACKED}
    await deployment.look()
    assert await deployment.states(job_id) == ("SUCCEEDED", "SUCCEEDED")
    assert len(await deployment.events(job_id)) == len(events)
    assert world.bus.directive_depth("ocr", LANE) == 0
    assert deployment.publisher.unacked("ocr", LANE) == 0


async def test_a_second_ack_is_kept_as_evidence_and_settled() -> None:
    world = World()
    deployment = Deployment(world)
    job_id = await deployment.submit()
    await deployment.publisher.idle()
    worker = Worker(world)
    directive = await worker.take_one()
    async with deployment.consuming():
        await worker.reply("ACK", directive)
        await worker.reply("ACK", directive)
        await until(deployment, "duplicate")
    assert await deployment.states(job_id) == ("IN_PROGRESS", "PROCESSING")
    assert (await deployment.facts(job_id))[-1] is Fact.REPLY_DUPLICATE
    assert world.bus.reply_depth(LANE, group="lucius") == 0


async def test_a_reply_to_an_older_attempt_is_settled_and_changes_nothing() -> None:
    world = World()
    deployment = Deployment(world)
    job_id = await deployment.submit()
    await deployment.publisher.idle()
    worker = Worker(world)
    directive = await worker.take_one()
    await deployment.later(30_000)
    await deployment.later(60_000)
    assert (await deployment.record(job_id)).steps[0].attempt_no == 2
    async with deployment.consuming():
        await worker.reply("RESULT", directive, status="SUCCEEDED")
        await until(deployment, "stale")
    assert await deployment.states(job_id) == ("DISPATCHING", "INITIATED")
    assert await world.replies_buried() == []


async def test_replies_of_one_job_are_applied_in_their_order() -> None:
    world = World()
    deployment = Deployment(world)
    job_id = await deployment.submit()
    await deployment.publisher.idle()
    worker = Worker(world)
    directive = await worker.take_one()
    await worker.reply("ACK", directive)
    await worker.reply("RESULT", directive, status="FAILED_FINAL", error={"code": "NO", "message": "no"})
    async with deployment.consuming():
        record = await deployment.until(job_id, "FAILED_FINAL")
    assert record.job.error_code == "NO"
    assert Fact.REPLY_DUPLICATE not in await deployment.facts(job_id)
    assert Fact.REPLY_LATE not in await deployment.facts(job_id)


# Wrong


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"not json", "not JSON"),
        (b"", "empty"),
        (b"[1]", "must be a JSON object"),
        (b'{"type":"DIRECTIVE"}', "/type"),
        (b'{"type":"ACK"}', "/jobId"),
    ],
)
async def test_poison_is_put_aside_with_the_reason(body: bytes, reason: str) -> None:
    world = World()
    deployment = Deployment(world)
    async with deployment.consuming():
        await Worker(world).send(body)
        await until(deployment, "poison")
    (dead,) = await world.replies_buried()
    assert dead.body == body
    assert dead.reason.startswith("POISON: ")
    assert reason in dead.reason
    assert dead.delivery_count == 1


async def test_a_member_that_nobody_knows_and_that_cannot_be_read_is_no_poison() -> None:
    world = World()
    deployment = Deployment(world)
    job_id = await deployment.submit()
    await deployment.publisher.idle()
    worker = Worker(world)
    directive = await worker.take_one()
    message = reply_to("RESULT", directive, status="SUCCEEDED", zzz="?")
    async with deployment.consuming():
        await worker.send(msgspec.json.encode(message).replace(b'"?"', b"[" * 70 + b"]" * 70))
        await deployment.until(job_id, "SUCCEEDED")
    assert await world.replies_buried() == []


async def test_a_result_that_carries_credentials_is_poison_and_written_nowhere() -> None:
    world = World()
    deployment = Deployment(world)
    job_id = await deployment.submit()
    await deployment.publisher.idle()
    worker = Worker(world)
    directive = await worker.take_one()
    ref = {"uri": "s3://user:hunter2@a/b?sig=abc"}
    await worker.reply("RESULT", directive, status="SUCCEEDED", output_ref=ref)
    with capture_logs() as logged:
        async with deployment.consuming():
            await until(deployment, "poison")
    (dead,) = await world.replies_buried()
    assert dead.reason.startswith("POISON: ") and "/output_ref/uri" in dead.reason
    record = await deployment.record(job_id)
    assert not record.job.terminal
    assert "hunter2" not in f"{dead.reason}{logged}{record}{await deployment.events(job_id)}"


async def test_a_reply_for_an_unknown_job_is_put_aside_and_the_next_one_counts() -> None:
    world = World()
    deployment = Deployment(world)
    job_id = await deployment.submit()
    await deployment.publisher.idle()
    worker = Worker(world)
    directive = await worker.take_one()
    stray = msgspec.json.encode(reply_to("ACK", {**directive, "jobId": "job_nobody"}))
    await worker.send(stray)
    await worker.reply("ACK", directive)
    async with deployment.consuming():
        await until(deployment, "applied")
    (dead,) = await world.replies_buried()
    assert dead.reason.startswith("JOB_NOT_FOUND: ")
    assert "job_nobody" in dead.reason
    assert (await deployment.states(job_id))[1] == "PROCESSING"


# Whose it is


async def test_a_reply_of_another_tenant_is_put_aside_and_noted_without_its_words() -> None:
    world = World()
    deployment = Deployment(world)
    job_id = await deployment.submit()
    await deployment.publisher.idle()
    worker = Worker(world)
    directive = await worker.take_one()
    ref = {"uri": "s3://results/of-another"}
    await worker.reply("RESULT", directive, tenant_id="tenant_b", status="SUCCEEDED", output_ref=ref)
    await worker.reply("ACK", directive, tenant_id=f" {directive['tenant_id'].upper()} ")
    async with deployment.consuming():
        await until(deployment, "other_tenant")
        await until(deployment, "applied")
    (dead,) = await world.replies_buried()
    assert dead.reason == "TENANT_MISMATCH: tenant_id is not that of the job"
    assert (await deployment.states(job_id))[1] == "PROCESSING"
    (refused,) = [one for one in await deployment.events(job_id) if one.type is Fact.REPLY_REFUSED]
    assert refused.data["reason"] == "TENANT_MISMATCH" and refused.data["reply"]["type"] == "RESULT"
    assert "of-another" not in str(refused.data) and "tenant_b" not in str(refused.data)


async def test_where_tokens_are_asked_for_a_reply_counts_with_its_own_alone() -> None:
    world = World()
    deployment = Deployment(world, reply_tokens=True)
    jobs = [await deployment.submit() for _ in range(2)]
    await deployment.publisher.idle()
    worker = Worker(world)
    taken = await worker.take(2)
    for delivery in taken:
        await worker.complete(delivery)
    one, two = map(message_of, taken)
    ack_of_one = msgspec.json.encode(reply_to("ACK", one))
    await worker.send(ack_of_one)
    await worker.send(ack_of_one, token=two["callback_token"])
    await worker.send(ack_of_one, token="no.such.token")
    await worker.send(msgspec.json.encode(reply_to("ACK", two)), token=two["callback_token"])
    async with deployment.consuming():
        await until(deployment, "applied")
        await until(deployment, "forged", 2)
    assert deployment.consumer.outcomes["unsigned"] == 1
    # Its key might have been newer than those known here, so it came again as often as the bus lets it.
    assert deployment.consumer.outcomes["given_back"] > 1
    reasons = [dead.reason for dead in await world.replies_buried()]
    assert sorted(reason.split(":")[0] for reason in reasons) == [
        "TOKEN_INVALID",
        "TOKEN_INVALID",
        "TOKEN_MISSING",
    ]
    assert not any(two["callback_token"] in reason for reason in reasons)
    states = {job_id: (await deployment.states(job_id))[1] for job_id in jobs}
    assert states == {one["jobId"]: "INITIATED", two["jobId"]: "PROCESSING"}


# Unlucky


async def test_while_the_ledger_is_down_nothing_is_fetched_and_nothing_buried() -> None:
    world = World(deliveries_max=3)
    deployment = Deployment(world)
    jobs = [await deployment.submit() for _ in range(5)]
    await deployment.publisher.idle()
    worker = Worker(world)
    directives = [msgspec.json.decode(delivery.body) for delivery in await worker.take()]
    async with deployment.consuming():
        world.ledger_down = True
        await worker.reply("ACK", directives[0])
        await until(deployment, "given_back")
        assert not deployment.consumer.fetching
        for directive in directives[1:]:
            await worker.reply("ACK", directive)
        await asyncio.sleep(0.15)
        assert deployment.consumer.outcomes["given_back"] <= 2
        assert world.bus.reply_depth(LANE, group="lucius") == 5
        world.ledger_down = False
        await until(deployment, "applied", 5)
        assert deployment.consumer.fetching
    assert await world.replies_buried() == []
    assert {(await deployment.states(job_id))[1] for job_id in jobs} == {"PROCESSING"}


async def test_a_message_that_may_not_come_again_is_kept_until_the_ledger_is_back() -> None:
    world = World(lock_ms=1_000, deliveries_max=1)
    deployment = Deployment(world)
    job_id = await deployment.submit()
    await deployment.publisher.idle()
    worker = Worker(world)
    directive = await worker.take_one()
    async with deployment.consuming():
        world.ledger_down = True
        await worker.reply("ACK", directive)
        async with asyncio.timeout(BOUND_SECONDS):
            while deployment.consumer.fetching:
                await asyncio.sleep(0.002)
        for _ in range(4):
            await asyncio.sleep(0.05)
            world.clock_ms += 900
        world.ledger_down = False
        await until(deployment, "applied")
    assert (await deployment.states(job_id))[1] == "PROCESSING"
    assert await world.replies_buried() == []
    assert deployment.consumer.outcomes["given_back"] == 0


@pytest.mark.parametrize(("committed", "outcome"), [(False, "applied"), (True, "duplicate")])
async def test_a_reply_taken_by_a_process_that_died_comes_again(committed: bool, outcome: str) -> None:
    world = World(lock_ms=1_000)
    deployment, dying = Deployment(world), Deployment(world, hints=False)
    job_id = await deployment.submit()
    await deployment.publisher.idle()
    worker = Worker(world)
    directive = await worker.take_one()
    await worker.reply("ACK", directive)
    receiver = await world.bus.replies(LANE, group="lucius")
    assert len(await receiver.receive(messages_max=1, wait_ms=0)) == 1
    if committed:
        await dying.apply(job_id, ack(directive))
    async with deployment.consuming():
        await asyncio.sleep(0.03)
        assert deployment.consumer.outcomes.total() == 0
        world.clock_ms += 1_000
        await until(deployment, outcome)
    assert (await deployment.states(job_id))[1] == "PROCESSING"
    assert world.bus.reply_depth(LANE, group="lucius") == 0


async def test_a_bus_that_goes_away_is_found_again() -> None:
    world = World()
    deployment = Deployment(world)
    job_id = await deployment.submit()
    await deployment.publisher.idle()
    worker = Worker(world)
    directive = await worker.take_one()
    async with deployment.consuming():
        world.bus.down = True
        await asyncio.sleep(0.05)
        world.bus.down = False
        await worker.reply("RESULT", directive, status="SUCCEEDED")
        assert (await deployment.until(job_id, "SUCCEEDED")).job.state is JobState.SUCCEEDED


async def test_two_consumers_share_the_replies() -> None:
    world = World()
    deployment, other = Deployment(world), Deployment(world, hints=False)
    async with deployment.relaying(), deployment.consuming(), other.consuming(), working(Worker(world)):
        jobs = [await deployment.submit() for _ in range(20)]
        for job_id in jobs:
            await deployment.until(job_id, "SUCCEEDED")
        await drained(world)
    for job_id in jobs:
        facts = await deployment.facts(job_id)
        assert facts.count(Fact.STEP_SUCCEEDED) == 1
    assert await world.replies_buried() == []


async def test_a_stop_cuts_long_waits_short_and_loses_nothing() -> None:
    world = World()
    deployment = Deployment(world)
    limits = ConsumerLimits(wait_ms=600_000)
    patient = ReplyConsumer(world.bus, deployment.writer, limits, ping_ledger=world.ping_ledger)
    running = asyncio.create_task(patient.run())
    await asyncio.sleep(0.02)  # every lane waits now
    patient.stop()
    async with asyncio.timeout(BOUND_SECONDS):
        await running
    job_id, worker = await deployment.submit(), Worker(world)
    async with deployment.relaying(), deployment.consuming(), working(worker):
        await deployment.until(job_id, "SUCCEEDED")
    assert list(worker.done.values()) == [1]


async def test_who_is_cancelled_while_it_waits_is_cancelled() -> None:
    world = World()
    consumer = ReplyConsumer(
        world.bus, Deployment(world).writer, ConsumerLimits(wait_ms=600_000), ping_ledger=world.ping_ledger
    )
    running = asyncio.create_task(consumer.run())
    await asyncio.sleep(0.02)
    running.cancel()
    async with asyncio.timeout(BOUND_SECONDS):
        await asyncio.wait({running})
    assert running.cancelled()
